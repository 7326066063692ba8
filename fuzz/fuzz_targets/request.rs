//! Fuzzes the parser of LLM request bodies.
#![no_main]

#[path = "../../crates/evenkeel-llm/tests/it/checks/request.rs"]
mod request;

libfuzzer_sys::fuzz_target!(|body: &[u8]| request::check(body));
