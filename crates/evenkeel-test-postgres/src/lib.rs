//! PostgreSQL servers and databases for tests.
//!
//! [`shared`] creates a fresh database for one test; [`TestServer`] is a private server that a test can stop, restart and
//! kill. All calls block. Servers listen on loopback only, and do not survive the process that started them, even if it
//! is killed.

mod installation;
mod program;
mod server;
mod server_url;
mod shared_database;
mod template;
mod watchdog;

pub use installation::is_installed;
pub use program::ProgramError;
pub use server::{TestServer, TestServerError, TestServerOptions};
pub use server_url::{ServerUrl, ServerUrlError};
pub use shared_database::{SHARED_SERVER_VARIABLE, SharedDatabase, SharedDatabaseError, shared};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
