//! A simulated node behind real sockets, started in the test process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod disconnect;
mod engine;
mod faults;
