//! Fuzzes the HTTP/1.1 response parser of the upstream client.
#![no_main]

#[path = "../../crates/evenkeel-upstream/tests/it/checks/response.rs"]
mod response;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| response::check(bytes));
