//! A database and a pool for one test, and short forms of common calls.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_postgres::{
    AccessMode, ColumnDescription, ConnectConfig, Param, PgError, Pool, PoolConfig, PooledConnection,
    RowSink, RowText, Session, Statement, StatementCompletion,
};
use evenkeel_test_postgres::SharedDatabase;

pub(crate) const ALICE: u64 = 1;
pub(crate) const BOB: u64 = 2;

/// A database of its own, and a pool of connections to it.
pub(crate) struct Fixture {
    pub(crate) pool: Arc<Pool>,
    pub(crate) database: SharedDatabase,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Creates a pool with one connection, so that every session uses the same one.
    pub(crate) fn with_one_connection() -> Self {
        Self::with(|config| config.connections_max = 1)
    }

    pub(crate) fn with(change: impl FnOnce(&mut PoolConfig)) -> Self {
        let database = evenkeel_test_postgres::shared().unwrap();
        let mut config = PoolConfig::new(ConnectConfig::parse(&database.url()).unwrap());
        change(&mut config);
        Self { pool: Pool::new(config), database }
    }

    pub(crate) async fn get(&self, owner: u64) -> PooledConnection {
        self.pool.get(&session(owner)).await.unwrap()
    }

    /// Runs SQL as a superuser, outside the pool.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.database.psql(sql).unwrap().trim().to_owned()
    }
}

pub(crate) fn session(owner: u64) -> Session {
    Session { owner, role: None, settings: Vec::new(), access: AccessMode::ReadWrite }
}

pub(crate) fn read_only(owner: u64) -> Session {
    Session { access: AccessMode::ReadOnly, ..session(owner) }
}

/// Collects columns and rows.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) columns: Option<Vec<ColumnDescription>>,
    pub(crate) rows: Vec<Vec<Option<String>>>,
    /// Stops the statement once so many rows were received.
    pub(crate) stop_after: Option<usize>,
}

impl RowSink for Rows {
    fn columns(&mut self, columns: &[ColumnDescription]) {
        assert!(self.columns.is_none(), "columns are given once");
        self.columns = Some(columns.to_vec());
    }

    fn row(&mut self, row: &RowText<'_>) -> ControlFlow<()> {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        self.rows.push(row.map(|value| value.map(text)).collect());
        if self.stop_after == Some(self.rows.len()) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

/// Runs a statement without parameters and returns its rows as text, NULL as `-`.
pub(crate) async fn query(connection: &mut PooledConnection, sql: &str) -> Result<Vec<Vec<String>>, PgError> {
    query_with(connection, sql, &[]).await
}

pub(crate) async fn query_with(
    connection: &mut PooledConnection,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Vec<String>>, PgError> {
    let mut rows = Rows::default();
    connection.run(&Statement::new(sql, params), &mut rows).await?;
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    Ok(rows.rows.into_iter().map(|row| row.into_iter().map(text).collect()).collect())
}

/// Runs a statement that returns one value.
pub(crate) async fn value(connection: &mut PooledConnection, sql: &str) -> String {
    let rows = query(connection, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(rows.len(), 1, "{sql}");
    rows[0][0].clone()
}

/// Runs a statement whose rows do not matter.
pub(crate) async fn execute(connection: &mut PooledConnection, sql: &str) -> StatementCompletion {
    let result = connection.run(&Statement::new(sql, &[]), &mut Rows::default()).await;
    result.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Runs a statement that fails.
pub(crate) async fn failure(connection: &mut PooledConnection, sql: &str) -> PgError {
    match connection.run(&Statement::new(sql, &[]), &mut Rows::default()).await {
        Ok(completion) => panic!("{sql}: {completion:?}"),
        Err(error) => error,
    }
}
