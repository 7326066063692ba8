//! What nodes say over HTTP/1.1.
#![no_main]

#[path = "../../crates/evenkeel-llm/tests/it/checks/answer.rs"]
mod answer;

libfuzzer_sys::fuzz_target!(|said: &[u8]| answer::check(said));
