//! Fuzzes the messages that set up a relay.
#![no_main]

#[path = "../../crates/evenkeel-link/tests/it/checks/relay_setup.rs"]
mod relay_setup;

libfuzzer_sys::fuzz_target!(|input: &[u8]| relay_setup::check(input));
