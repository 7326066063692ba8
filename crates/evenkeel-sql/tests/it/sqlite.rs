//! The SQLite engine, through the interface that the API uses.

mod access;
mod cancellation;
mod harness;
mod limits;
mod pool;
mod sessions;
mod statements;
mod transactions;
mod values;
