//! The embedded engine: a SQLite file in WAL mode, with one writer and several readers.
//!
//! Each connection has a thread of its own (`sqlite-writer`, `sqlite-reader-0` …), because SQLite blocks. A request
//! hands its statement to the thread and gets its rows back in batches; up to a few hundred rows come with the reply in
//! one wake-up. A thread whose rows are not taken waits (back-pressure).
//!
//! Guarantees, besides those of [`crate::datasource`]:
//! - One connection writes at a time. Requests that only read use readers, on which every write is an error (25006).
//! - With [`Synchronous::Normal`] a power cut may lose the last commits, but never corrupts the file or loses part of a
//!   transaction; with [`Synchronous::Full`] a commit is on disk before it is acknowledged.
//! - A statement that writes has no effect if it is cancelled or reaches its time limit. If it had begun to write,
//!   SQLite also rolls back the transaction around it, whose status is then `Failed`. A statement that writes and whose
//!   sink wants no more rows is completed.
//! - Clients cannot attach files, load extensions, copy the database elsewhere, or change settings of the connection.
//!
//! Limits: [`SqliteOptions`]; 1 MiB of SQL, 32 766 parameters, expressions 1 000 levels deep, `LIKE` patterns of 1 000
//! bytes. Files in which SQLite sorts are limited only by the disk and the statement's time limit. One call of a
//! built-in function cannot be interrupted: `instr` and `replace` take time that grows with the square of
//! `value_bytes_max`.
//!
//! [`crate::datasource::ReleaseCallback`]s may run on a SQLite thread, outside the async runtime.

mod authorizer;
mod batch;
mod connection;
mod error;
mod exchange;
mod params;
mod pool;
mod session;
pub(crate) mod sql_text;
mod statement;
mod worker;

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::connection::SqliteConnection;
use self::pool::SqlitePool;
use crate::datasource::{BoxFuture, ConnectionGauges, DatabaseConnection, Datasource, EngineKind, Lease};
use crate::error::DatabaseError;

/// Highest accepted `readers_max`: each reader is a thread.
const READERS_MAX: u32 = 1_024;
/// Highest accepted `value_bytes_max`; SQLite's own limit.
const VALUE_BYTES_MAX: u32 = 1_000_000_000;

/// Options of a SQLite datasource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// The database file; it is created if it does not exist, its directory is not.
    pub path: PathBuf,
    /// Most connections that read at once, 1 to 1 024.
    pub readers_max: u32,
    pub synchronous: Synchronous,
    /// Longest wait for a lock that another process holds.
    pub busy_timeout: Duration,
    /// Largest text, blob or row.
    pub value_bytes_max: u32,
    /// Largest database file; a write beyond it is an error (53100).
    pub bytes_max: Option<u64>,
    /// Largest total of a connection's temporary tables.
    pub temp_bytes_max: u64,
    /// Most memory of SQLite in this process, all datasources together; the smallest value counts.
    pub heap_bytes_max: u64,
    /// Compiled statements that a connection keeps.
    pub statements_max: usize,
}

impl SqliteOptions {
    /// Returns the default options for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers_max: 8,
            synchronous: Synchronous::Normal,
            busy_timeout: Duration::from_secs(5),
            value_bytes_max: 64 << 20,
            bytes_max: None,
            temp_bytes_max: 1 << 30,
            heap_bytes_max: 1 << 30,
            statements_max: 100,
        }
    }
}

/// Moment at which a commit reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronous {
    /// At the next checkpoint: a power cut may lose the last commits.
    Normal,
    /// Before the commit is acknowledged.
    Full,
}

/// Reason why a database cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("option {option} of the SQLite datasource must be between {min} and {max}")]
    Option { option: &'static str, min: u64, max: u64 },
    #[error("{path:?} is not the path of a file; a SQLite datasource cannot be in memory", path = .path.display())]
    NotAFile { path: PathBuf },
    #[error("the directory of the SQLite database {path:?} cannot be read", path = .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("the SQLite database {path:?} cannot be opened: {source}", path = .path.display())]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error("the SQLite database {path:?} cannot be written; check its permissions", path = .path.display())]
    ReadOnlyFile { path: PathBuf },
    #[error(
        "the SQLite database {path:?} does not support a write-ahead log (its journal mode is {mode}); \
         use a local file system",
        path = .path.display()
    )]
    NoWriteAheadLog { path: PathBuf, mode: String },
    #[error("a thread for the SQLite database cannot be started")]
    Thread(#[source] io::Error),
}

/// A SQLite file behind the SQL API.
pub struct SqliteDatasource {
    pool: Arc<SqlitePool>,
    database_id: String,
}

impl SqliteDatasource {
    /// Opens the database, or creates it; blocks while SQLite recovers the write-ahead log of a crashed process.
    pub fn open(mut options: SqliteOptions) -> Result<Arc<Self>, OpenError> {
        check_option("readers_max", options.readers_max.into(), 1, READERS_MAX.into())?;
        check_option("value_bytes_max", options.value_bytes_max.into(), 1_024, VALUE_BYTES_MAX.into())?;
        options.path = absolute(&options.path)?;
        let path = options.path.clone();
        let pool = SqlitePool::open(options)?;
        let database_id = file_id(&path).map_err(|source| OpenError::Directory { path, source })?;
        Ok(Arc::new(Self { pool, database_id }))
    }
}

fn check_option(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), OpenError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(OpenError::Option { option, min, max }) }
}

/// Returns the absolute path of a file that may not exist yet.
fn absolute(path: &Path) -> Result<PathBuf, OpenError> {
    let not_a_file = || OpenError::NotAFile { path: path.to_owned() };
    let name = path.file_name().filter(|name| *name != ":memory:").ok_or_else(not_a_file)?;
    let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let directory =
        directory.canonicalize().map_err(|source| OpenError::Directory { path: path.to_owned(), source })?;
    let path = directory.join(name);
    if path.is_dir() { Err(not_a_file()) } else { Ok(path) }
}

/// Identifies a file on this machine by its path, device and inode.
///
/// It is not unique among machines, which matters little, because a SQLite file is served by one node.
fn file_id(path: &Path) -> io::Result<String> {
    let path = path.canonicalize()?;
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    digest.update(path.as_os_str().as_encoded_bytes());
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = path.metadata()?;
        digest.update(&metadata.dev().to_le_bytes());
        digest.update(&metadata.ino().to_le_bytes());
    }
    let hash = digest.finish();
    let hex: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sqlite:{hex}"))
}

impl Datasource for SqliteDatasource {
    fn engine(&self) -> EngineKind {
        EngineKind::Sqlite
    }

    fn connect(&self, lease: Lease) -> BoxFuture<'_, Result<Box<dyn DatabaseConnection>, DatabaseError>> {
        Box::pin(async move {
            let session = lease.session;
            if session.role.is_some() || !session.settings.is_empty() {
                let what =
                    "SQLite has no roles and no session settings; remove them from the datasource and tenant";
                return Err(DatabaseError::Unsupported { what: what.to_owned() });
            }
            let loan = self.pool.lend(lease.access, lease.on_release).await?;
            let connection = SqliteConnection::open(Arc::clone(&self.pool), loan, session.owner).await?;
            Ok(Box::new(connection) as Box<dyn DatabaseConnection>)
        })
    }

    fn database_id(&self) -> BoxFuture<'_, Result<String, DatabaseError>> {
        Box::pin(async { Ok(self.database_id.clone()) })
    }

    fn gauges(&self) -> ConnectionGauges {
        self.pool.gauges()
    }

    /// Waits until lent connections are released, and moves the write-ahead log into the file.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.pool.start_close();
            self.pool.closed().await;
        })
    }
}

impl fmt::Debug for SqliteDatasource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteDatasource")
            .field("path", &self.pool.options().path)
            .field("gauges", &self.pool.gauges())
            .finish_non_exhaustive()
    }
}

impl Drop for SqliteDatasource {
    /// Ends the threads without waiting for them.
    fn drop(&mut self) {
        self.pool.start_close();
    }
}
