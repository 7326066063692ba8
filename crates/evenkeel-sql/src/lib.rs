//! The SQL API: SQL over HTTP with real transactions, in front of PostgreSQL and SQLite.
//!
//! The life of a statement: [`api`](SqlApi) authenticates by its routes → `statement` parses the body (`request`, [`param`])
//! → `database` waits for the tenant's turn in the scheduler and takes a connection ([`datasource`]) → the engine runs the
//! statement → `result` writes rows as JSON (`encode`) → the connection's release settles the tenant's charge
//! (`held_slot`). A statement of an open transaction takes the connection from its actor (`transaction`) instead.
//! `neon` serves Neon's driver in the same way, `rds_data` the clients of the AWS RDS Data API, and `hrana` those of libSQL.
//! A request for which there is no room may go to a peer instead (`handover`).

mod api;
mod csv;
mod database;
pub mod datasource;
mod encode;
pub mod error;
mod handover;
mod health;
mod held_slot;
mod hrana;
mod idempotency;
mod metrics;
mod neon;
mod options;
pub mod param;
mod rds_data;
mod received;
mod request;
mod result;
mod sql_words;
mod statement;
mod stats;
mod transaction;
mod transaction_routes;

pub use api::{SqlApi, SqlStartError};
pub use options::{DatasourceOptions, SqlLimits, SqlOptions};
pub use transaction::{EndedBy, TransactionsError};
