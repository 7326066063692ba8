//! Tests against a real PostgreSQL server, and against a scripted one where a real one cannot be made to misbehave.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod access;
mod backpressure;
mod basics;
mod cancellation;
mod fake_server;
mod fixture;
mod isolation;
mod login;
mod misbehaviour;
mod pool;
mod prepared;
mod restart;
mod result_size;
mod termination;
mod tls;
mod unsupported;
