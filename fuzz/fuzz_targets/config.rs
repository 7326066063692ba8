//! Fuzzes the parser of configuration files.
#![no_main]

#[path = "../../crates/evenkeel/tests/it/checks/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|file: &[u8]| config::check(file));
