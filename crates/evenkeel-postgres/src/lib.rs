#![doc = include_str!("../README.md")]

mod backend;
mod cancel;
mod config;
mod connect;
mod connection;
mod counters;
mod db_error;
mod error;
mod frame;
mod pool;
mod session;
mod startup;
mod statement;
mod statement_cache;
mod terminate;
mod tls;
mod transport;
mod wire;

pub use backend::{ColumnDescription, CommandTag, Description, RowText};
pub use config::{ConnectConfig, ConnectConfigError};
pub use counters::{DiscardReason, PoolCounts};
pub use db_error::DbError;
pub use error::{ConnectError, PgError};
pub use pool::{Pool, PoolConfig, PoolGauges, PooledConnection, Release};
pub use session::{AccessMode, SETTINGS_MAX, Session};
pub use statement::{PARAMS_MAX, Param, RowSink, Statement, StatementCompletion, TransactionStatus};
