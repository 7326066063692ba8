//! A fresh database for one test, on a server that all tests of a run share.

use crate::program::ProgramError;
use crate::server::{TestServer, TestServerError};
use crate::server_url::{ServerUrl, ServerUrlError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Environment variable with the URL of the shared server, for a superuser; `cargo xtask test` sets it.
pub const SHARED_SERVER_VARIABLE: &str = "EVENKEEL_TEST_POSTGRES";

/// Database in which `CREATE DATABASE` and `DROP DATABASE` run.
const ADMIN_DATABASE: &str = "postgres";

/// Failure to create a database.
#[derive(Debug, thiserror::Error)]
pub enum SharedDatabaseError {
    #[error("environment variable {SHARED_SERVER_VARIABLE}: {0}")]
    Variable(ServerUrlError),
    #[error(transparent)]
    Server(#[from] TestServerError),
    #[error("cannot create a database: {0}")]
    Create(ProgramError),
}

/// An empty database that only its owner knows; dropping it drops the database and disconnects its clients.
#[derive(Debug)]
pub struct SharedDatabase {
    name: String,
    server: ServerUrl,
    /// The server, if it was started for this database.
    own_server: Option<TestServer>,
}

/// Creates a database on the server that `EVENKEEL_TEST_POSTGRES` names, or on a new server if the variable is not set.
///
/// Roles and settings of the server are shared with other tests: give roles unique names, such as the database's.
pub fn shared() -> Result<SharedDatabase, SharedDatabaseError> {
    match std::env::var(SHARED_SERVER_VARIABLE) {
        Ok(url) => {
            let server = ServerUrl::parse(&url).map_err(SharedDatabaseError::Variable)?;
            SharedDatabase::create(server, None)
        }
        Err(_) => {
            let server = TestServer::start()?;
            SharedDatabase::create(server.server_url(), Some(server))
        }
    }
}

impl SharedDatabase {
    fn create(server: ServerUrl, own_server: Option<TestServer>) -> Result<Self, SharedDatabaseError> {
        let name = unique_name();
        // Nobody can connect to template0, which would make this fail.
        let sql = format!("CREATE DATABASE {name} TEMPLATE template0");
        server.psql(ADMIN_DATABASE, &sql).map_err(SharedDatabaseError::Create)?;
        Ok(Self { name, server, own_server })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the database's URL, with the superuser's name and password.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Returns the database's URL for another user.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.server.url_as(&self.name, user, password)
    }

    /// Runs SQL statements as the superuser and returns their rows: a line each, columns separated by `|`.
    pub fn psql(&self, sql: &str) -> Result<String, ProgramError> {
        self.server.psql(&self.name, sql)
    }
}

impl Drop for SharedDatabase {
    fn drop(&mut self) {
        if self.own_server.is_some() {
            return;
        }
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        if let Err(error) = self.server.psql(ADMIN_DATABASE, &sql) {
            eprintln!("database {} remains: {error}", self.name);
        }
    }
}

/// Returns a name that no other database on the server has: tests of several processes create databases at once.
fn unique_name() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("evenkeel_test_{}_{}_{count}", now.as_nanos(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_dropped_database_is_removed_from_a_shared_server_although_a_client_is_connected() {
        let server = TestServer::start().unwrap();
        let database = SharedDatabase::create(server.server_url(), None).unwrap();
        let name = database.name().to_owned();
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'");
        let url = server.server_url();
        let client = thread::spawn(move || url.psql(&name, "SELECT pg_sleep(50)"));
        while server.psql(ADMIN_DATABASE, &sessions).unwrap() != "1\n" {
            assert!(!client.is_finished());
        }
        let databases = format!("SELECT count(*) FROM pg_database WHERE datname = '{}'", database.name());
        assert_eq!(server.psql(ADMIN_DATABASE, &databases).unwrap(), "1\n");
        drop(database);
        assert_eq!(server.psql(ADMIN_DATABASE, &databases).unwrap(), "0\n");
        let error = client.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("terminating connection"), "{error}");
    }

    #[test]
    fn databases_can_be_created_at_the_same_time() {
        let server = TestServer::start().unwrap();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let url = server.server_url();
                thread::spawn(move || {
                    SharedDatabase::create(url, None).map(|database| database.psql("SELECT 1"))
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap().unwrap(), "1\n");
        }
    }
}
