//! Tests against a real PostgreSQL server.

mod basics;
mod fixture;
