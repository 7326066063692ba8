//! The SQLite engine, through the interface that the API uses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod access;
mod cancellation;
mod harness;
mod limits;
mod pool;
mod sessions;
mod statements;
mod transactions;
mod values;
