//! Properties of the frame codec and of the session; flows over real sockets on loopback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod checks;
mod corpus;
mod flows;
mod frames;
mod reassembly;
