//! The seam between the SQL API and a database engine: [`Datasource`] lends [`DatabaseConnection`]s, which run [`Statement`]s and
//! write rows to a [`RowSink`].
//!
//! Guarantees that every engine keeps:
//! - Nothing of one tenant's session is visible to another tenant.
//! - Any future of a connection may be dropped at any point. Dropping the connection then cancels what still runs, rolls
//!   back an open transaction, and calls `on_release` exactly once: when the connection can be lent again, or when it was
//!   discarded. A statement that was cancelled never affects the next user of its connection.
//! - At most `connections_max` connections exist.

pub mod postgres;
pub mod sqlite;

use core::fmt;
use core::future::{Future, ready};
use core::ops::ControlFlow;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::borrow::Cow;
use std::time::Duration;

use crate::error::DatabaseError;
use crate::param::Param;

/// Boxed future of a trait method.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A database behind the SQL API.
pub trait Datasource: Send + Sync + fmt::Debug {
    fn engine(&self) -> EngineKind;

    /// Lends a connection. The caller holds a slot of the scheduler, so that it rarely waits here.
    fn connect(&self, lease: Lease) -> BoxFuture<'_, Result<Box<dyn DatabaseConnection>, DatabaseError>>;

    /// Returns the identity of the database: equal on two nodes only if both use the same database.
    fn database_id(&self) -> BoxFuture<'_, Result<String, DatabaseError>>;

    /// Returns the name of the database at its server; `None` if it has none.
    fn database_name(&self) -> Option<&str> {
        None
    }

    /// Returns the exact number of connections.
    fn gauges(&self) -> ConnectionGauges;

    /// Closes idle connections and lends no more.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A connection that is lent to one request or transaction.
pub trait DatabaseConnection: Send {
    /// Runs one statement.
    ///
    /// A statement that the sink stops is cancelled, and its [`Completion`] says so.
    fn run<'a>(
        &'a mut self,
        statement: &'a Statement,
        sink: &'a mut dyn RowSink,
    ) -> BoxFuture<'a, Result<Completion, DatabaseError>>;

    fn begin(&mut self, options: BeginOptions) -> BoxFuture<'_, Result<(), DatabaseError>>;

    /// Begins a transaction that writes, in which foreign keys are not enforced; an error unless the engine is SQLite.
    fn begin_without_foreign_keys(&mut self) -> BoxFuture<'_, Result<(), DatabaseError>> {
        Box::pin(ready(Err(unsupported("a transaction without foreign keys is supported only on SQLite"))))
    }

    /// Compiles a statement without running it; an error unless the engine is SQLite.
    fn describe<'a>(
        &'a mut self,
        _: &'a Statement,
    ) -> BoxFuture<'a, Result<StatementDescription, DatabaseError>> {
        Box::pin(ready(Err(unsupported("a statement can be described only on SQLite"))))
    }

    /// Commits or rolls back the open transaction.
    ///
    /// A commit that the database answers with a rollback is an error. A connection lost during a commit is
    /// [`DatabaseError::OutcomeUnknown`].
    fn end(&mut self, end: TransactionEnd) -> BoxFuture<'_, Result<(), DatabaseError>>;

    fn transaction_status(&self) -> TransactionStatus;

    /// Cancels a statement whose future was dropped and waits until the connection can run the next one.
    ///
    /// The open transaction stays open; on PostgreSQL it has failed.
    fn recover(&mut self) -> BoxFuture<'_, Result<(), DatabaseError>>;
}

fn unsupported(what: &str) -> DatabaseError {
    DatabaseError::Unsupported { what: what.to_owned() }
}

/// Database engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    Postgres,
    Sqlite,
}

impl EngineKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

/// Terms on which a connection is lent.
pub struct Lease {
    pub session: Session,
    pub access: AccessMode,
    /// Called exactly once, when the connection can be lent again or was discarded; also when [`Datasource::connect`]
    /// fails or is dropped.
    pub on_release: ReleaseCallback,
}

/// Callback of a [`Lease`]. Dropping it calls it.
pub struct ReleaseCallback(Option<Box<dyn FnOnce() + Send>>);

impl ReleaseCallback {
    pub fn new(callback: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }
}

impl Drop for ReleaseCallback {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            callback();
        }
    }
}

/// Session state that a tenant's statements run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The tenant; a connection is reset when it passes from one owner to another.
    pub owner: u64,
    /// Role that PostgreSQL switches to.
    pub role: Option<String>,
    /// Settings such as `app.tenant`, for row-level security.
    pub settings: Vec<(String, String)>,
}

/// Kind of access that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Statements that write are errors.
    ReadOnly,
    ReadWrite,
}

/// Options of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginOptions {
    /// `None` means the database's default.
    pub isolation: Option<Isolation>,
    pub access: AccessMode,
}

/// Isolation level of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

/// The way in which a client ends a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    Commit,
    Rollback,
}

/// State of a connection's transaction after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction is open.
    Idle,
    Open,
    /// A statement failed; only a rollback is accepted.
    Failed,
}

/// A statement and its bound parameters.
#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: String,
    pub params: Vec<Param>,
    /// Time limit of the statement; the caller also enforces it.
    pub time_max: Duration,
    /// Rows after which the sink stops a query; an engine that knows this need not cancel it.
    pub rows_max: Option<u64>,
}

/// Result of a statement besides its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// First word or words of the statement as the database understood it, such as `INSERT` or `ROLLBACK`.
    pub command: String,
    /// Rows that the statement inserted, updated, deleted or returned.
    pub rows_affected: u64,
    /// Time from sending the statement to its first row or its completion.
    pub first_response: Duration,
    /// Reports whether the sink stopped the statement before its end.
    pub end: RowsEnd,
    /// Row id of the last row that an `INSERT` on SQLite added.
    pub last_insert_rowid: Option<i64>,
}

/// Parameters and columns of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementDescription {
    /// The name of each parameter, with its prefix; `None` for `?`.
    pub params: Vec<Option<String>>,
    pub columns: Vec<Column>,
    pub is_explain: bool,
    pub is_readonly: bool,
}

/// Extent of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsEnd {
    All,
    /// The sink stopped the statement.
    Stopped,
}

/// Receiver of a statement's rows.
pub trait RowSink: Send {
    /// Receives the columns; called once, before the first row, and not for statements without a result set.
    fn columns(&mut self, columns: &[Column]);

    /// Receives one row; `Break` stops the statement.
    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()>;

    /// Back-pressure: awaited between reads from the database; `Break` stops the statement.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>>;
}

/// Column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// Name of the type in the database's words, such as `int4` or `TEXT`; empty if the database knows none.
    pub type_name: Cow<'static, str>,
    /// PostgreSQL's description of the column; zeros for SQLite.
    pub origin: ColumnOrigin,
}

/// PostgreSQL's description of a column, as its protocol reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnOrigin {
    pub type_oid: u32,
    pub type_size: i16,
    pub type_modifier: i32,
    pub table_oid: u32,
    pub column_id: i16,
}

/// One value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    Null,
    /// PostgreSQL's text form of any type, or a text of SQLite.
    Text(&'a str),
    Integer(i64),
    Real(f64),
    Blob(&'a [u8]),
}

impl Cell<'_> {
    /// Returns the size of a text or blob; other values are small.
    pub fn byte_len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Blob(bytes) => bytes.len(),
            Self::Null | Self::Integer(_) | Self::Real(_) => 0,
        }
    }
}

/// Numbers of connections of a datasource; `open` is the sum of `idle` and `in_use`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionGauges {
    pub open: u32,
    pub idle: u32,
    pub in_use: u32,
    /// Callers that wait for a connection.
    pub waiting: u32,
}
