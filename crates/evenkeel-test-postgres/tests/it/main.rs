//! Tests of the servers and databases that other crates' tests use; they need PostgreSQL 15.

mod killed_owner;
mod server;
mod shared_database;
