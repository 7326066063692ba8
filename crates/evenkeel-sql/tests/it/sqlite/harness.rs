//! A database in a temporary directory, connections to it, and sinks for rows.

use core::future::Future;
use core::ops::ControlFlow;
use core::task::{Context, Poll, Waker};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_sql::datasource::sqlite::{SqliteDatasource, SqliteOptions};
use evenkeel_sql::datasource::{
    AccessMode, BeginOptions, Cell, Column, Completion, DatabaseConnection, Datasource, Lease,
    ReleaseCallback, RowSink, Session, Statement, TransactionEnd, TransactionStatus,
};
use evenkeel_sql::error::{DatabaseError, StatementError};
use evenkeel_sql::param::{Param, ParamValue};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub(super) const ALICE: u64 = 1;
pub(super) const BOB: u64 = 2;

/// A query that does not end by itself and returns no row.
pub(super) const ENDLESS: &str =
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

/// A query that does not end by itself and returns a row for each number.
pub(super) const ENDLESS_ROWS: &str =
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n";

pub(super) struct TestDatabase {
    pub(super) datasource: Arc<SqliteDatasource>,
    pub(super) path: PathBuf,
    _directory: TempDir,
}

impl TestDatabase {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut SqliteOptions)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        let mut options = SqliteOptions::new(&path);
        change(&mut options);
        Self { datasource: SqliteDatasource::open(options).unwrap(), path, _directory: directory }
    }

    /// Opens the file again, with the default options.
    pub(super) fn reopen(self) -> Self {
        let datasource = SqliteDatasource::open(SqliteOptions::new(&self.path)).unwrap();
        Self { datasource, ..self }
    }

    /// Runs statements as Alice, on the writer.
    pub(super) async fn setup(&self, statements: &[&str]) {
        let mut writer = self.writer(ALICE).await;
        for sql in statements {
            writer.run(sql).await.unwrap();
        }
    }

    pub(super) async fn writer(&self, owner: u64) -> TestConnection {
        self.connect(owner, AccessMode::ReadWrite).await.unwrap()
    }

    pub(super) async fn reader(&self, owner: u64) -> TestConnection {
        self.connect(owner, AccessMode::ReadOnly).await.unwrap()
    }

    pub(super) async fn connect(
        &self,
        owner: u64,
        access: AccessMode,
    ) -> Result<TestConnection, DatabaseError> {
        let (sender, released) = oneshot::channel();
        let lease = lease(owner, access, move || {
            let _ = sender.send(());
        });
        let connection = self.datasource.connect(lease).await?;
        Ok(TestConnection { connection, released })
    }
}

pub(super) fn lease(owner: u64, access: AccessMode, on_release: impl FnOnce() + Send + 'static) -> Lease {
    let session = Session { owner, role: None, settings: Vec::new() };
    Lease { session, access, on_release: ReleaseCallback::new(on_release) }
}

pub(super) struct TestConnection {
    pub(super) connection: Box<dyn DatabaseConnection>,
    released: oneshot::Receiver<()>,
}

impl TestConnection {
    /// Runs a statement without parameters and collects its rows.
    pub(super) async fn run(&mut self, sql: &str) -> Result<Collected, DatabaseError> {
        self.run_with(sql, []).await
    }

    pub(super) async fn run_with<const N: usize>(
        &mut self,
        sql: &str,
        params: [Param; N],
    ) -> Result<Collected, DatabaseError> {
        let mut sink = CollectSink::default();
        let statement = statement(sql, params);
        let completion = self.connection.run(&statement, &mut sink).await?;
        Ok(Collected { completion, columns: sink.columns, rows: sink.rows })
    }

    /// Runs a statement and returns the only value of its only row.
    pub(super) async fn value(&mut self, sql: &str) -> Value {
        let collected = self.run(sql).await.unwrap();
        let [row] = collected.rows.as_slice() else { panic!("{sql}: {} rows", collected.rows.len()) };
        let [value] = row.as_slice() else { panic!("{sql}: {} columns", row.len()) };
        value.clone()
    }

    /// Runs a statement that the database must reject.
    pub(super) async fn error(&mut self, sql: &str) -> StatementError {
        match self.run(sql).await {
            Err(DatabaseError::Statement(error)) => *error,
            other => panic!("{sql}: {other:?}"),
        }
    }

    pub(super) async fn begin(&mut self, access: AccessMode) -> Result<(), DatabaseError> {
        self.connection.begin(BeginOptions { isolation: None, access }).await
    }

    pub(super) async fn commit(&mut self) -> Result<(), DatabaseError> {
        self.connection.end(TransactionEnd::Commit).await
    }

    pub(super) async fn rollback(&mut self) -> Result<(), DatabaseError> {
        self.connection.end(TransactionEnd::Rollback).await
    }

    pub(super) fn status(&self) -> TransactionStatus {
        self.connection.transaction_status()
    }

    /// Drops the connection and waits until it has been released.
    pub(super) async fn release(self) {
        drop(self.connection);
        self.released.await.unwrap();
    }

    /// Starts a statement, polls it once and drops it.
    pub(super) fn start_and_drop(&mut self, sql: &str) {
        let statement = statement(sql, []);
        let mut sink = CollectSink::default();
        let mut run = self.connection.run(&statement, &mut sink);
        assert!(poll_once(run.as_mut()).is_pending(), "{sql} finished at once");
    }
}

/// The SQLSTATE of a result that must be an error of the database.
pub(super) fn sqlstate<T: core::fmt::Debug>(result: Result<T, DatabaseError>) -> String {
    match result {
        Err(DatabaseError::Statement(error)) => error.code,
        other => panic!("{other:?}"),
    }
}

pub(super) fn statement<const N: usize>(sql: &str, params: [Param; N]) -> Statement {
    Statement {
        sql: sql.to_owned(),
        params: params.into(),
        time_max: Duration::from_secs(600),
        rows_max: None,
    }
}

pub(super) fn poll_once<F: Future + ?Sized>(future: core::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

pub(super) fn text(text: &str) -> Param {
    Param::untyped(ParamValue::Text(text.to_owned()))
}

pub(super) fn number(digits: &str) -> Param {
    Param::untyped(ParamValue::Number(digits.to_owned()))
}

pub(super) fn typed(type_name: &str, value: &str) -> Param {
    let value = ParamValue::Text(value.to_owned());
    Param { name: None, type_name: Some(type_name.to_owned()), value }
}

/// A cell that owns its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl From<Cell<'_>> for Value {
    fn from(cell: Cell<'_>) -> Self {
        match cell {
            Cell::Null => Self::Null,
            Cell::Integer(integer) => Self::Integer(integer),
            Cell::Real(real) => Self::Real(real),
            Cell::Text(text) => Self::Text(text.to_owned()),
            Cell::Blob(blob) => Self::Blob(blob.to_owned()),
        }
    }
}

/// Result of a statement.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) completion: Completion,
    pub(super) columns: Option<Vec<Column>>,
    pub(super) rows: Vec<Vec<Value>>,
}

/// Collects rows, at most `rows_max` of them.
#[derive(Debug)]
pub(super) struct CollectSink {
    pub(super) columns: Option<Vec<Column>>,
    pub(super) rows: Vec<Vec<Value>>,
    pub(super) rows_max: usize,
    /// Calls of `poll_ready`, which is once per batch.
    pub(super) polls: usize,
}

impl Default for CollectSink {
    fn default() -> Self {
        Self { columns: None, rows: Vec::new(), rows_max: usize::MAX, polls: 0 }
    }
}

impl RowSink for CollectSink {
    fn columns(&mut self, columns: &[Column]) {
        assert!(self.columns.is_none() && self.rows.is_empty(), "columns come once, before the rows");
        self.columns = Some(columns.to_owned());
    }

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        assert!(self.columns.is_some(), "columns come before the rows");
        if self.rows.len() == self.rows_max {
            return ControlFlow::Break(());
        }
        self.rows.push(cells.map(Value::from).collect());
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        self.polls += 1;
        Poll::Ready(ControlFlow::Continue(()))
    }
}
