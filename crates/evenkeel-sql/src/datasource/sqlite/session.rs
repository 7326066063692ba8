//! One open SQLite connection: its configuration, its limits, and its reset between tenants.
//!
//! A writer is reset in one of two ways when its owner changes. Without temporary objects, two statements on a private
//! temporary table set `last_insert_rowid()` and `changes()` to zero, which takes about a microsecond;
//! `total_changes()` cannot be reset and is denied. With temporary objects, the connection is closed and opened again.
//! A reader has no session state: it cannot write, not even temporary tables, and settings cannot be changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::hooks::AuthContext;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use super::authorizer::{Authorizer, Caller, SESSION_TABLE};
use super::exchange::Exchange;
use super::{OpenError, SqliteOptions, Synchronous};
use crate::datasource::AccessMode;

/// Longest SQL text.
const SQL_BYTES_MAX: i32 = 1 << 20;
/// Deepest expression; a thread's stack is sized for it.
const EXPRESSION_DEPTH_MAX: i32 = 1_000;
/// Longest pattern of `LIKE` and `GLOB`, whose time grows with the product of pattern and text.
const PATTERN_BYTES_MAX: i32 = 1_000;
/// Highest number of parameters.
const VARIABLES_MAX: i32 = 32_766;
/// Virtual-machine instructions between two checks for an interrupt or deadline; some 100 µs.
const INSTRUCTIONS_PER_CHECK: i32 = 4_000;
/// Size to which the write-ahead log is truncated after a checkpoint.
const LOG_BYTES_AFTER_CHECKPOINT: i64 = 64 << 20;
/// Longest pause between two attempts to take a lock that another process holds.
const LOCK_RETRY_PAUSE_MAX: Duration = Duration::from_millis(50);

/// An open database, used by one thread.
pub(super) struct SqliteSession {
    connection: Connection,
    authorizer: Authorizer,
}

/// Result of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionReset {
    Done,
    /// Temporary objects exist; only a new connection is free of them.
    ReopenNeeded,
}

impl SqliteSession {
    /// Opens a database for writing or reading, and sends interrupts from `exchange` to it.
    pub(super) fn open(
        options: &SqliteOptions,
        access: AccessMode,
        exchange: &Arc<Exchange>,
    ) -> Result<Self, OpenError> {
        let open_error = |source| OpenError::Sqlite { path: options.path.clone(), source };
        let mode = match access {
            AccessMode::ReadOnly => OpenFlags::SQLITE_OPEN_READ_ONLY,
            AccessMode::ReadWrite => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&options.path, flags).map_err(open_error)?;
        install_busy_handler(&mut connection, options.busy_timeout, exchange).map_err(open_error)?;
        harden(&connection, options).map_err(open_error)?;
        match access {
            AccessMode::ReadOnly => connection.pragma_update(None, "query_only", true).map_err(open_error)?,
            AccessMode::ReadWrite => configure_writer(&connection, options)?,
        }
        let authorizer = Authorizer::default();
        let decider = authorizer.clone();
        let authorize = move |context: AuthContext<'_>| decider.authorize(&context);
        connection.authorizer(Some(authorize)).map_err(open_error)?;
        let watched = Arc::clone(exchange);
        let is_interrupted = move || watched.is_interrupted();
        connection.progress_handler(INSTRUCTIONS_PER_CHECK, Some(is_interrupted)).map_err(open_error)?;
        exchange.set_interrupt(connection.get_interrupt_handle());
        Ok(Self { connection, authorizer })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn authorizer(&self) -> &Authorizer {
        &self.authorizer
    }

    /// Interrupts the statement that runs on this thread, at its next step.
    pub(super) fn interrupt(&self) {
        self.connection.get_interrupt_handle().interrupt();
    }

    /// Makes a writer forget the session of its previous owner; no transaction is open.
    pub(super) fn reset(&self) -> rusqlite::Result<SessionReset> {
        self.as_engine(|connection| {
            let objects: i64 = connection
                .prepare_cached("SELECT count(*) FROM sqlite_temp_schema")?
                .query_row((), |row| row.get(0))?;
            // The private table is one of them.
            if objects != 1 {
                return Ok(SessionReset::ReopenNeeded);
            }
            let zero_rowid = format!("INSERT OR REPLACE INTO temp.{SESSION_TABLE} (rowid) VALUES (0)");
            connection.prepare_cached(&zero_rowid)?.execute(())?;
            let zero_changes = format!("DELETE FROM temp.{SESSION_TABLE} WHERE false");
            connection.prepare_cached(&zero_changes)?.execute(())?;
            Ok(SessionReset::Done)
        })
    }

    /// Runs statements of the engine itself.
    pub(super) fn as_engine<T>(
        &self,
        run: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.authorizer.set_caller(Caller::Engine);
        let result = run(&self.connection);
        self.authorizer.set_caller(Caller::Client);
        result
    }

    /// Runs a client's `VACUUM`, which needs to attach a database.
    pub(super) fn as_vacuum<T>(&self, run: impl FnOnce() -> T) -> rusqlite::Result<T> {
        self.connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 1)?;
        self.authorizer.set_caller(Caller::ClientVacuum);
        let result = run();
        self.authorizer.set_caller(Caller::Client);
        self.connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        Ok(result)
    }
}

/// Waits for locks that other processes hold, but ends the wait when the statement is interrupted.
fn install_busy_handler(
    connection: &mut Connection,
    timeout: Duration,
    exchange: &Arc<Exchange>,
) -> rusqlite::Result<()> {
    let exchange = Arc::clone(exchange);
    let mut waiting_since = Instant::now();
    let wait = move |attempts: i32| {
        if attempts == 0 {
            waiting_since = Instant::now();
        }
        if exchange.is_interrupted() || timeout <= waiting_since.elapsed() {
            return false;
        }
        let pause = Duration::from_millis(1 << attempts.clamp(0, 10));
        exchange.pause(pause.min(LOCK_RETRY_PAUSE_MAX));
        true
    };
    connection.busy_handler(Some(wait))
}

fn harden(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, true)?;
    let value_bytes_max = i32::try_from(options.value_bytes_max).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, value_bytes_max)?;
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, SQL_BYTES_MAX)?;
    connection.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, EXPRESSION_DEPTH_MAX)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_BYTES_MAX)?;
    connection.set_limit(Limit::SQLITE_LIMIT_VARIABLE_NUMBER, VARIABLES_MAX)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_prepared_statement_cache_capacity(options.statements_max);
    Ok(())
}

fn configure_writer(connection: &Connection, options: &SqliteOptions) -> Result<(), OpenError> {
    let open_error = |source| OpenError::Sqlite { path: options.path.clone(), source };
    if connection.is_readonly("main").map_err(open_error)? {
        return Err(OpenError::ReadOnlyFile { path: options.path.clone() });
    }
    let read_mode = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    let mode =
        connection.pragma_update_and_check(None, "journal_mode", "wal", read_mode).map_err(open_error)?;
    if mode != "wal" {
        return Err(OpenError::NoWriteAheadLog { path: options.path.clone(), mode });
    }
    let synchronous = match options.synchronous {
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    let set_pragmas = || {
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES_AFTER_CHECKPOINT)?;
        if let Some(bytes_max) = options.bytes_max {
            limit_pages(connection, "main", bytes_max)?;
        }
        limit_pages(connection, "temp", options.temp_bytes_max)?;
        let heap_bytes_max = i64::try_from(options.heap_bytes_max).unwrap_or(i64::MAX);
        connection.pragma_update(None, "hard_heap_limit", heap_bytes_max)?;
        connection.execute_batch(&format!("CREATE TEMP TABLE {SESSION_TABLE} (unused)"))
    };
    set_pragmas().map_err(open_error)
}

/// Limits the size of a database; one that is larger already cannot grow.
fn limit_pages(connection: &Connection, schema: &str, bytes_max: u64) -> rusqlite::Result<()> {
    let page_bytes: u32 = connection.pragma_query_value(Some(schema), "page_size", |row| row.get(0))?;
    let pages = (bytes_max / u64::from(page_bytes.max(1))).clamp(1, u64::from(u32::MAX - 1));
    let pages = i64::try_from(pages).unwrap_or(i64::MAX);
    connection.pragma_update(Some(schema), "max_page_count", pages)
}
