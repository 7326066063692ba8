//! A private PostgreSQL server in a temporary directory.
//!
//! Guarantees: the server listens on 127.0.0.1 and on a Unix socket in its directory only; it is stopped and its directory
//! removed when the [`TestServer`] is dropped or its process dies. Limits: 200 connections, 30 s to start, 30 s to stop.

use crate::installation::{Installation, server_account};
use crate::program::{Account, ProgramError};
use crate::server_url::ServerUrl;
use crate::template::{self, PASSWORD, SUPERUSER};
use crate::watchdog::Watchdog;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const HOST: &str = "127.0.0.1";
const START_MAX: Duration = Duration::from_secs(30);
const STOP_SECONDS_MAX: &str = "30";
/// Ports to try before giving up; another process may take a port between its choice and its use.
const PORTS_MAX: usize = 5;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Settings of every server. Committed data survives [`TestServer::kill`], but not a crash of the machine.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", HOST),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "200"),
    ("shared_buffers", "32MB"),
    ("max_wal_size", "1GB"),
    ("log_line_prefix", "%m [%p] "),
];

/// Failure to start, stop or restart a server.
#[derive(Debug, thiserror::Error)]
pub enum TestServerError {
    #[error(
        "PostgreSQL is not installed: initdb, postgres, pg_ctl and psql are neither in /usr/lib/postgresql/15/bin, \
         nor in `pg_config --bindir`, nor in PATH; on Debian, install the package postgresql-15"
    )]
    NotInstalled,
    #[error("PostgreSQL refuses to run as root, and the user `postgres` does not exist")]
    NoUser,
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("no free port on {HOST}: {0}")]
    NoPort(io::Error),
    #[error("cannot run the watchdog of the server: {0}")]
    Watchdog(io::Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("the server did not start ({status}); its log:\n{log}")]
    Exited { status: ExitStatus, log: String },
    #[error("the server was not ready within {limit:?}; its log:\n{log}")]
    NotReady { limit: Duration, log: String },
}

/// Settings of a server to start.
#[derive(Debug, Default)]
pub struct TestServerOptions {
    settings: Vec<(String, String)>,
    hba_lines: Vec<String>,
    tls: Option<Tls>,
}

#[derive(Debug)]
struct Tls {
    certificate_pem: String,
    key_pem: String,
}

impl TestServerOptions {
    /// Accepts TLS connections with this certificate; connections without TLS stay possible.
    pub fn enable_tls(mut self, certificate_pem: impl Into<String>, key_pem: impl Into<String>) -> Self {
        self.tls = Some(Tls { certificate_pem: certificate_pem.into(), key_pem: key_pem.into() });
        self
    }

    /// Adds a line to `pg_hba.conf`, before the lines that require SCRAM from everybody.
    pub fn hba(mut self, line: impl Into<String>) -> Self {
        self.hba_lines.push(line.into());
        self
    }

    /// Sets a parameter of the server, such as `max_connections`.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    pub fn start(self) -> Result<TestServer, TestServerError> {
        TestServer::start_on(&self, free_port)
    }
}

/// A running PostgreSQL server; dropping it stops it and removes its data.
#[derive(Debug)]
pub struct TestServer {
    // Dropped before the directory, which the server uses.
    watchdog: Option<Watchdog>,
    installation: Installation,
    account: Option<Account>,
    settings: Vec<(String, String)>,
    port: u16,
    directory: TempDir,
}

impl TestServer {
    /// Starts a server without TLS and waits until it accepts connections.
    pub fn start() -> Result<Self, TestServerError> {
        Self::options().start()
    }

    pub fn options() -> TestServerOptions {
        TestServerOptions::default()
    }

    /// Starts a server on the first port of `next_port` that is free.
    fn start_on(
        options: &TestServerOptions,
        mut next_port: impl FnMut() -> io::Result<u16>,
    ) -> Result<Self, TestServerError> {
        let mut server = Self::prepare(options)?;
        let mut ports_left = PORTS_MAX;
        loop {
            ports_left -= 1;
            server.port = next_port().map_err(TestServerError::NoPort)?;
            match server.launch(START_MAX) {
                Err(TestServerError::Exited { log, .. }) if is_port_conflict(&log) && 0 < ports_left => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
    }

    /// Creates the directory of a server.
    fn prepare(options: &TestServerOptions) -> Result<Self, TestServerError> {
        let installation = Installation::find().ok_or(TestServerError::NotInstalled)?;
        let directory = tempfile::Builder::new()
            .prefix("evenkeel-postgres-")
            .tempdir()
            .map_err(|source| TestServerError::Io { path: std::env::temp_dir(), source })?;
        let is_root = template::own_uid(directory.path())? == 0;
        let account = if is_root { Some(server_account().ok_or(TestServerError::NoUser)?) } else { None };
        let defaults = SETTINGS.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let mut server = Self {
            watchdog: None,
            installation,
            account,
            settings: defaults.chain(options.settings.iter().cloned()).collect(),
            port: 0,
            directory,
        };
        template::copy_to(&server.data(), &server.installation, account)?;
        template::give_to(account, server.directory.path())?;
        server.write("pg_hba.conf", &hba(&options.hba_lines))?;
        if let Some(tls) = &options.tls {
            server.write("server.crt", &tls.certificate_pem)?;
            server.write("server.key", &tls.key_pem)?;
            server.settings.push(("ssl".to_owned(), "on".to_owned()));
        }
        Ok(server)
    }

    /// Writes a file that only the server's user can read, in the data directory.
    fn write(&self, name: &str, text: &str) -> Result<(), TestServerError> {
        let path = self.data().join(name);
        let io_error = |source| TestServerError::Io { path: path.clone(), source };
        let mut file = File::options();
        let mut file =
            file.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(io_error)?;
        io::Write::write_all(&mut file, text.as_bytes()).map_err(io_error)?;
        template::give_to(self.account, &path)
    }

    /// Starts the server process on `self.port` and waits until it is ready.
    fn launch(&mut self, limit: Duration) -> Result<(), TestServerError> {
        let directory = self.directory.path().to_owned();
        let io_error = |source| TestServerError::Io { path: directory.clone(), source };
        let log = File::create(self.log_path()).map_err(io_error)?;
        let status_file = self.data().join("postmaster.pid");
        // A server that crashed leaves its status file, which says "ready".
        match fs::remove_file(&status_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(error)),
            Ok(()) | Err(_) => {}
        }
        let postgres = self.installation.path("postgres");
        let watchdog = Watchdog::start(&postgres, &self.args(), &directory, log, self.account);
        let watchdog = self.watchdog.insert(watchdog.map_err(TestServerError::Watchdog)?);
        let started = Instant::now();
        loop {
            if let Some(status) = watchdog.exit_status().map_err(TestServerError::Watchdog)? {
                return Err(TestServerError::Exited { status, log: self.log() });
            }
            if fs::read_to_string(&status_file).is_ok_and(|status| is_ready(&status)) {
                return Ok(());
            }
            if limit <= started.elapsed() {
                return Err(TestServerError::NotReady { limit, log: self.log() });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn args(&self) -> Vec<String> {
        let mut args = vec!["-D".to_owned(), self.data().display().to_string()];
        args.extend(["-p".to_owned(), self.port.to_string()]);
        args.extend(["-k".to_owned(), self.socket_directory().display().to_string()]);
        for (name, value) in &self.settings {
            args.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        args
    }

    /// Returns a URL of a database, with the superuser's name and password.
    pub fn url(&self, database: &str) -> String {
        self.server_url().url(database)
    }

    /// Returns a URL of a database for another user.
    pub fn url_as(&self, database: &str, user: &str, password: &str) -> String {
        self.server_url().url_as(database, user, password)
    }

    pub fn server_url(&self) -> ServerUrl {
        ServerUrl::new(SUPERUSER, PASSWORD, &format!("{HOST}:{}", self.port))
    }

    pub fn host(&self) -> &'static str {
        HOST
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn user(&self) -> &'static str {
        SUPERUSER
    }

    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Returns the directory of the Unix socket `.s.PGSQL.<port>`.
    pub fn socket_directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs SQL statements as the superuser and returns their rows: a line each, columns separated by `|`.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String, ProgramError> {
        self.server_url().psql(database, sql)
    }

    /// Stops the server after it has disconnected its clients and written its data; does nothing if it is stopped.
    pub fn stop(&mut self) -> Result<(), TestServerError> {
        self.stop_by("fast")
    }

    /// Stops the server at once, as if it had crashed; does nothing if it is stopped.
    pub fn kill(&mut self) -> Result<(), TestServerError> {
        self.stop_by("immediate")
    }

    /// Stops the server if it is running, and starts it with the same data on the same port.
    pub fn restart(&mut self) -> Result<(), TestServerError> {
        self.stop()?;
        self.launch(START_MAX)
    }

    fn stop_by(&mut self, mode: &str) -> Result<(), TestServerError> {
        let Some(mut watchdog) = self.watchdog.take() else { return Ok(()) };
        if watchdog.exit_status().map_err(TestServerError::Watchdog)?.is_none() {
            let pg_ctl = self.installation.program("pg_ctl").account(self.account);
            pg_ctl
                .args([
                    "stop",
                    "--silent",
                    "--wait",
                    "--timeout",
                    STOP_SECONDS_MAX,
                    "--mode",
                    mode,
                    "--pgdata",
                ])
                .path_arg(&self.data())
                .run()?;
        }
        watchdog.wait().map_err(TestServerError::Watchdog)?;
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Returns the server's log since its last start.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Returns a port that is free at the moment.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((HOST, 0))?.local_addr()?.port())
}

fn is_port_conflict(log: &str) -> bool {
    log.contains("Address already in use")
}

/// Reports whether the server accepts connections, from the contents of `postmaster.pid`.
fn is_ready(status: &str) -> bool {
    status.lines().nth(7).is_some_and(|line| line.trim_end() == "ready")
}

fn hba(first_lines: &[String]) -> String {
    let rest = ["local all all scram-sha-256", "host all all 127.0.0.1/32 scram-sha-256"];
    let lines = first_lines.iter().map(String::as_str).chain(rest);
    lines.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_replaced_by_another() {
        let taken = TcpListener::bind((HOST, 0)).unwrap();
        let taken_port = taken.local_addr().unwrap().port();
        let mut ports = vec![free_port().unwrap(), taken_port];
        let server = start_on(|| ports.pop().unwrap()).unwrap();
        assert_ne!(server.port(), taken_port);
        assert_eq!(server.psql("postgres", "SELECT 1").unwrap(), "1\n");
    }

    #[test]
    fn the_start_fails_after_five_taken_ports() {
        let taken = TcpListener::bind((HOST, 0)).unwrap();
        let mut tries = 0;
        let error = start_on(|| {
            tries += 1;
            taken.local_addr().unwrap().port()
        });
        assert!(matches!(error, Err(TestServerError::Exited { log, .. }) if is_port_conflict(&log)));
        assert_eq!(tries, PORTS_MAX);
    }

    #[test]
    fn a_server_that_is_not_ready_in_time_is_an_error_and_ends() {
        let mut server = TestServer::prepare(&TestServerOptions::default()).unwrap();
        server.port = free_port().unwrap();
        let directory = server.directory.path().to_owned();
        let error = server.launch(Duration::ZERO).unwrap_err();
        assert!(matches!(error, TestServerError::NotReady { .. }), "{error}");
        drop(server);
        assert!(!directory.exists());
    }

    fn start_on(mut next_port: impl FnMut() -> u16) -> Result<TestServer, TestServerError> {
        TestServer::start_on(&TestServerOptions::default(), || Ok(next_port()))
    }
}
