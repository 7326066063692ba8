//! Doors at their real edge: sockets on loopback, bytes as an attacker writes them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod disconnect;
mod drain;
mod h2;
mod harness;
mod http1;
mod rate;
mod tls;
