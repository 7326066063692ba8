//! The server over real sockets on loopback, with requests written byte by byte, as an attacker would.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod connections;
mod disconnect;
mod drain;
mod h2;
mod harness;
mod http1;
mod rate;
mod slow;
mod tls;
