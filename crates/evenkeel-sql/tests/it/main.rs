//! Integration tests: the API on real sockets, in front of a real PostgreSQL and SQLite.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod abuse;
mod cancel;
mod cluster;
mod csv;
#[path = "../../../evenkeel-sqs/tests/it/external_client.rs"]
mod external_client;
mod fairness;
mod figures;
mod harness;
mod hrana;
mod injection;
mod long_statement;
mod memory;
mod neon;
mod outside;
mod postgres_api;
mod rds_data;
mod restart;
mod session_leaks;
mod sqlite;
mod transactions;
mod types;
