//! Integration tests: the API on real sockets, in front of a real PostgreSQL and SQLite.

mod harness;
mod postgres_api;
