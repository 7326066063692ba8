//! The private PostgreSQL server behind all contenders, with pgbench's tables.
//!
//! Everything fits in the server's memory, and nothing is written during the rounds.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_test_postgres::TestServer;

use crate::case::RESULT_ROWS;

/// Scale of pgbench's tables; 100 000 accounts each.
const SCALE: u32 = 10;
pub(crate) const ACCOUNTS: u32 = SCALE * 100_000;
/// Name of the database, and of the role that owns it and that all contenders use.
pub(crate) const NAME: &str = "bench";
const PASSWORD: &str = "bench";
const ADMIN_DATABASE: &str = "postgres";
/// Directory of Debian's programs; `/usr/bin/pgbench` is a script that starts the one in this directory.
const DEBIAN_DIRECTORY: &str = "/usr/lib/postgresql/15/bin";

/// Settings of the server, besides those of [`TestServer`].
const SETTINGS: &[(&str, &str)] = &[
    ("shared_buffers", "512MB"),
    // Each contender keeps its server connections for the whole run.
    ("max_connections", "400"),
    // Nothing is written, so vacuuming would only disturb.
    ("autovacuum", "off"),
];

pub(crate) struct BenchDatabase {
    server: TestServer,
    /// Bytes that PostgreSQL sends for the rows of one result in [`SqlCase::Rows`](crate::case::SqlCase::Rows); 0 without
    /// tables.
    pub(crate) result_bytes: f64,
}

impl BenchDatabase {
    /// Starts a server and fills its tables.
    pub(crate) fn start() -> io::Result<Self> {
        let Self { server, .. } = Self::start_empty()?;
        let psql = |database: &str, sql: &str| server.psql(database, sql).map_err(io::Error::other);
        fill(server.port())?;
        // Reads the table and its index into memory.
        psql(NAME, "SET enable_seqscan = off; SELECT sum(abalance) FROM pgbench_accounts WHERE 0 < aid")?;
        psql(ADMIN_DATABASE, "CHECKPOINT")?;
        // A DataRow message has 7 bytes, and 4 for each of the 4 columns, besides the text.
        let result_bytes = psql(
            NAME,
            &format!(
                "SELECT sum(7 + 4 * 4 + length(aid::text) + length(bid::text) + length(abalance::text) \
                 + octet_length(filler)) FROM (SELECT * FROM pgbench_accounts LIMIT {RESULT_ROWS}) AS result"
            ),
        )?;
        let result_bytes = result_bytes.trim_end().parse().map_err(io::Error::other)?;
        Ok(Self { server, result_bytes })
    }

    /// Starts a server without tables.
    pub(crate) fn start_empty() -> io::Result<Self> {
        let mut options = TestServer::options().hba("host all all 127.0.0.1/32 trust");
        for (name, value) in SETTINGS {
            options = options.setting(*name, *value);
        }
        let server = options.start().map_err(io::Error::other)?;
        let psql = |database: &str, sql: &str| server.psql(database, sql).map_err(io::Error::other);
        psql(ADMIN_DATABASE, &format!("CREATE ROLE {NAME} LOGIN PASSWORD '{PASSWORD}'"))?;
        psql(ADMIN_DATABASE, &format!("CREATE DATABASE {NAME} OWNER {NAME}"))?;
        Ok(Self { server, result_bytes: 0.0 })
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    pub(crate) fn url(&self) -> String {
        self.server.url_as(NAME, NAME, PASSWORD)
    }

    /// Runs statements as the superuser, each in a transaction of its own, and returns their rows.
    pub(crate) fn psql(&self, sql: &str) -> io::Result<String> {
        self.server.psql(NAME, sql).map_err(io::Error::other)
    }

    /// Returns the server's log.
    pub(crate) fn log(&self) -> String {
        self.server.log()
    }
}

fn fill(port: u16) -> io::Result<()> {
    let mut command = pgbench(port);
    let output = command.args(["-i", "-q", "-s", &SCALE.to_string(), NAME]).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("pgbench -i: {}", String::from_utf8_lossy(&output.stderr).trim_end())))
}

/// Creates a call of pgbench for a server on loopback.
pub(crate) fn pgbench(port: u16) -> Command {
    let debian = Path::new(DEBIAN_DIRECTORY).join("pgbench");
    let mut command = Command::new(if debian.is_file() { debian } else { PathBuf::from("pgbench") });
    // Variables such as PGOPTIONS would change what is measured.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_libpq_variable(name)) {
        command.env_remove(name);
    }
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", NAME]).env("PGSSLMODE", "disable");
    command
}

fn is_libpq_variable(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with("PG")
}
