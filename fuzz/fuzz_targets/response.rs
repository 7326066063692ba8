//! What nodes say over HTTP/1.1.
#![no_main]

#[path = "../../crates/evenkeel-upstream/tests/it/checks/response.rs"]
mod response;

libfuzzer_sys::fuzz_target!(|said: &[u8]| response::check(said));
