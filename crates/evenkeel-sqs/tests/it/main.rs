//! The SQS API over real sockets: unmodified client libraries, and raw requests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod clients;
mod disconnect;
mod external_client;
mod harness;
mod protocol;
mod query;
