//! The runtime from outside: real tokio, many threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod on_tokio;
mod runtime_cases;
mod scenarios;
