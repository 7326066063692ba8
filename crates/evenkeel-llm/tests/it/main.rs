//! The door at its real edges: sockets on loopback, bytes as anybody may write them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod answer;
mod api;
mod checks;
mod corpus;
mod load;
mod monitor;
mod pages;
mod request;
mod sse;
mod stub;
mod upstream;
mod usage;
mod values;
