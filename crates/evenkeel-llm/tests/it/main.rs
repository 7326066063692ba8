//! The door at its real edges: sockets on loopback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod monitor;
mod pages;
mod stub;
mod upstream;
