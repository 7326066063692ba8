//! Tests of the LLM API with real sockets on loopback and with arbitrary bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod api;
mod checks;
mod corpus;
mod load;
mod monitor;
mod pages;
mod request;
mod sse;
#[path = "../../../evenkeel-upstream/tests/it/stub.rs"]
#[allow(dead_code, reason = "shared with the tests of evenkeel-upstream, which use all of it")]
mod stub;
mod usage;
mod values;
