//! Fuzzes the frames of a link, and the session that gets them.
#![no_main]

#[path = "../../crates/evenkeel-link/tests/it/checks/link_frames.rs"]
mod link_frames;

libfuzzer_sys::fuzz_target!(|input: &[u8]| link_frames::check(input));
