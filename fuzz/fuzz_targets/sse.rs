//! Fuzzes the scanner of server-sent events.
#![no_main]

#[path = "../../crates/evenkeel-llm/tests/it/checks/sse.rs"]
mod sse;

libfuzzer_sys::fuzz_target!(|stream: &[u8]| sse::check(stream));
