//! PostgreSQL as a datasource: a pool of connections with text rows.
//!
//! Guarantees: see [`datasource`](super); the pool keeps them. A statement is sent once, except when the server rejects a
//! cached plan outside a transaction.

mod params;
pub(crate) mod types;

use core::fmt;
use core::ops::ControlFlow;
use core::task::{Context, Poll};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_postgres::{
    ColumnDescription, Param as TextParam, PgError, Pool, PoolConfig, PooledConnection, RowText,
    Statement as PgStatement,
};

use self::types::TypeNames;
use super::{
    AccessMode, BeginOptions, BoxFuture, Cell, Column, ColumnOrigin, Completion, ConnectionGauges,
    DatabaseConnection, Datasource, EngineKind, Isolation, Lease, RowSink, RowsEnd, Session, Statement,
    TransactionEnd, TransactionStatus,
};
use crate::error::{DatabaseError, StatementError};
use crate::param::Param;

/// Owner of the sessions in which this crate runs its own statements.
const INTERNAL_OWNER: u64 = u64::MAX;
/// Types that users of the database have created, with their arrays; the row types of tables last.
const USER_TYPES: &str = "select oid, format_type(oid, null) from pg_type where oid >= 16384 \
                          and typtype in ('b', 'c', 'd', 'e', 'r', 'm') order by typtype = 'c', oid limit 10000";
/// Looks a type up as the tenant's session sees it.
const TYPE_OID: &str = "select pg_catalog.to_regtype($1)::pg_catalog.oid";
/// A standby has the identifier of its primary, but not its latest data, and accepts no writes.
const DATABASE_ID: &str = "select (select system_identifier from pg_control_system()) || \
                           case when pg_is_in_recovery() then '/standby' else '' end, current_database()";
/// Fails the open transaction: there is no such savepoint.
const FAIL_TRANSACTION: &str = "ROLLBACK TO SAVEPOINT evenkeel_cancelled_statement";
const IS_SUPERUSER: &str = "select current_setting('is_superuser')";

/// A PostgreSQL database.
pub struct PostgresDatasource {
    pool: Arc<Pool>,
    types: Arc<TypeNames>,
}

impl PostgresDatasource {
    /// Creates the datasource; connections are opened as they are needed.
    pub fn new(config: PoolConfig) -> Arc<Self> {
        Arc::new(Self { pool: Pool::new(config), types: Arc::default() })
    }

    /// Reports whether the configured user is a superuser, whom row-level security does not restrict.
    pub async fn is_superuser(&self) -> Result<bool, DatabaseError> {
        let rows = self.internal_query(IS_SUPERUSER).await?;
        Ok(rows.first().and_then(|row| row.first()).is_some_and(|value| value == "on"))
    }

    /// Runs a statement of this crate and returns its rows.
    async fn internal_query(&self, sql: &str) -> Result<Vec<Vec<String>>, DatabaseError> {
        let session = evenkeel_postgres::Session {
            owner: INTERNAL_OWNER,
            role: None,
            settings: Vec::new(),
            access: evenkeel_postgres::AccessMode::ReadOnly,
        };
        let mut connection = self.pool.get(&session).await.map_err(database_error)?;
        let mut rows = CollectedRows::default();
        connection.run(&PgStatement::new(sql, &[]), &mut rows).await.map_err(database_error)?;
        Ok(rows.0)
    }

    async fn load_types(&self) -> Result<(), DatabaseError> {
        let rows = self.internal_query(USER_TYPES).await?;
        let types: HashMap<u32, String> = rows
            .into_iter()
            .filter_map(|row| {
                let mut values = row.into_iter();
                Some((values.next()?.parse().ok()?, values.next()?))
            })
            .collect();
        self.types.set_user_types(types);
        Ok(())
    }
}

impl Datasource for PostgresDatasource {
    fn engine(&self) -> EngineKind {
        EngineKind::Postgres
    }

    fn connect(&self, lease: Lease) -> BoxFuture<'_, Result<Box<dyn DatabaseConnection>, DatabaseError>> {
        Box::pin(async move {
            let Lease { session, access, on_release } = lease;
            if self.types.take_stale() && self.load_types().await.is_err() {
                // Names of types are worth no failed request; the next one tries again.
                self.types.set_stale();
            }
            let session = pg_session(session, access);
            let mut connection = self.pool.get(&session).await.map_err(database_error)?;
            connection.on_release(move |_| drop(on_release));
            let lent = PostgresConnection { connection, types: self.types.clone() };
            Ok(Box::new(lent) as Box<dyn DatabaseConnection>)
        })
    }

    fn database_id(&self) -> BoxFuture<'_, Result<String, DatabaseError>> {
        Box::pin(async move {
            let rows = self.internal_query(DATABASE_ID).await?;
            let values = rows.into_iter().next().unwrap_or_default();
            Ok(values.join("/"))
        })
    }

    fn database_name(&self) -> Option<&str> {
        Some(self.pool.config().connect.database())
    }

    fn gauges(&self) -> ConnectionGauges {
        let gauges = self.pool.gauges();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        ConnectionGauges {
            open: count(gauges.open),
            idle: count(gauges.idle),
            in_use: count(gauges.in_use),
            waiting: count(gauges.waiting),
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.pool.close();
        Box::pin(async {})
    }
}

impl fmt::Debug for PostgresDatasource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresDatasource").field("gauges", &self.pool.gauges()).finish_non_exhaustive()
    }
}

fn pg_session(session: Session, access: AccessMode) -> evenkeel_postgres::Session {
    let Session { owner, role, settings } = session;
    let access = match access {
        AccessMode::ReadOnly => evenkeel_postgres::AccessMode::ReadOnly,
        AccessMode::ReadWrite => evenkeel_postgres::AccessMode::ReadWrite,
    };
    evenkeel_postgres::Session { owner, role, settings, access }
}

/// A connection of the pool.
struct PostgresConnection {
    connection: PooledConnection,
    types: Arc<TypeNames>,
}

impl PostgresConnection {
    async fn run(
        &mut self,
        statement: &Statement,
        sink: &mut dyn RowSink,
    ) -> Result<Completion, DatabaseError> {
        let mut types = self.named_types(&statement.params).await?;
        if params::needs_inferred_types(&statement.params) {
            let described = self.connection.describe(&statement.sql, &types).await.map_err(database_error)?;
            types.clone_from(&described.params);
        }
        let params = params::encode(&statement.params, &types)?;
        let started = Instant::now();
        // One more than the sink takes, so that it learns that there are more.
        let rows_max =
            statement.rows_max.and_then(|max| u32::try_from(max.saturating_add(1)).ok()).unwrap_or(0);
        let mut rows =
            TextRows { sink, types: &self.types, started, first_response: None, rows_max, rows: 0 };
        let pg_statement = PgStatement::new(&statement.sql, &params).with_rows_max(rows_max);
        let completion = self.connection.run(&pg_statement, &mut rows).await.map_err(database_error)?;
        let first_response = rows.first_response.unwrap_or_else(|| started.elapsed());
        let is_cut = 0 < rows_max && rows.rows == rows_max;
        Ok(Completion {
            // The server sends no tag for a query that ends early.
            command: if is_cut { "SELECT" } else { command(completion.tag.as_str()) }.to_owned(),
            rows_affected: completion.rows_affected.unwrap_or(0),
            first_response,
            end: if completion.stopped && !is_cut { RowsEnd::Stopped } else { RowsEnd::All },
            last_insert_rowid: None,
        })
    }

    /// Returns the types that the parameters name; 0 where the server infers one.
    async fn named_types(&mut self, params: &[Param]) -> Result<Vec<u32>, DatabaseError> {
        let mut types = Vec::with_capacity(params.len());
        for (index, param) in params.iter().enumerate() {
            if param.name.is_some() {
                let reason = "has a name; parameters of PostgreSQL are numbered".to_owned();
                return Err(DatabaseError::Param { index, reason });
            }
            types.push(match params::named_type(param, &self.types) {
                Ok(oid) => oid,
                Err(name) => {
                    self.look_up_type(name).await?.ok_or_else(|| params::unknown_type(index, name))?
                }
            });
        }
        Ok(types)
    }

    /// Asks the database for a type that was created after the types were loaded, or that is not in the default schema.
    async fn look_up_type(&mut self, name: &str) -> Result<Option<u32>, DatabaseError> {
        let mut rows = CollectedRows::default();
        let params = [TextParam::text(name)];
        match self.connection.run(&PgStatement::new(TYPE_OID, &params), &mut rows).await {
            Ok(_) => Ok(rows.0.first().and_then(|row| row.first()?.parse().ok())),
            // The name is malformed.
            Err(PgError::Database(error)) if error.code.starts_with("42") => Ok(None),
            Err(error) => Err(database_error(error)),
        }
    }

    async fn end(&mut self, end: TransactionEnd) -> Result<(), DatabaseError> {
        let sql = match end {
            TransactionEnd::Commit => "COMMIT",
            TransactionEnd::Rollback => "ROLLBACK",
        };
        let completion = self.connection.simple(sql).await.map_err(database_error)?;
        if end == TransactionEnd::Commit && completion.tag.as_str() == "ROLLBACK" {
            return Err(DatabaseError::rolled_back());
        }
        Ok(())
    }
}

impl DatabaseConnection for PostgresConnection {
    fn run<'a>(
        &'a mut self,
        statement: &'a Statement,
        sink: &'a mut dyn RowSink,
    ) -> BoxFuture<'a, Result<Completion, DatabaseError>> {
        Box::pin(self.run(statement, sink))
    }

    fn begin(&mut self, options: BeginOptions) -> BoxFuture<'_, Result<(), DatabaseError>> {
        let isolation = match options.isolation {
            None => "",
            Some(Isolation::ReadCommitted) => " ISOLATION LEVEL READ COMMITTED",
            Some(Isolation::RepeatableRead) => " ISOLATION LEVEL REPEATABLE READ",
            Some(Isolation::Serializable) => " ISOLATION LEVEL SERIALIZABLE",
        };
        let access = match options.access {
            AccessMode::ReadOnly => " READ ONLY",
            AccessMode::ReadWrite => " READ WRITE",
        };
        Box::pin(async move {
            let sql = format!("BEGIN{isolation}{access}");
            self.connection.simple(&sql).await.map(drop).map_err(database_error)
        })
    }

    fn end(&mut self, end: TransactionEnd) -> BoxFuture<'_, Result<(), DatabaseError>> {
        Box::pin(self.end(end))
    }

    fn transaction_status(&self) -> TransactionStatus {
        match self.connection.transaction_status() {
            evenkeel_postgres::TransactionStatus::Idle => TransactionStatus::Idle,
            evenkeel_postgres::TransactionStatus::InTransaction => TransactionStatus::Open,
            evenkeel_postgres::TransactionStatus::Failed => TransactionStatus::Failed,
        }
    }

    fn recover(&mut self) -> BoxFuture<'_, Result<(), DatabaseError>> {
        Box::pin(async move {
            self.connection.recover().await.map_err(database_error)?;
            // The cancel may have come too late. A client that was told of a cancel would repeat the statement.
            if self.connection.transaction_status() == evenkeel_postgres::TransactionStatus::InTransaction {
                let failed = self.connection.simple(FAIL_TRANSACTION).await;
                debug_assert!(failed.is_err());
            }
            Ok(())
        })
    }
}

/// Returns the words of a command tag without its numbers: `INSERT 0 1` is `INSERT`.
fn command(tag: &str) -> &str {
    tag.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ')
}

/// Passes rows on as text cells.
struct TextRows<'a> {
    sink: &'a mut dyn RowSink,
    types: &'a TypeNames,
    started: Instant,
    first_response: Option<Duration>,
    /// Rows after which the server itself ends the statement; 0 means no limit.
    rows_max: u32,
    rows: u32,
}

impl evenkeel_postgres::RowSink for TextRows<'_> {
    fn columns(&mut self, columns: &[ColumnDescription]) {
        let columns: Vec<Column> = columns
            .iter()
            .map(|column| Column {
                name: column.name.clone(),
                type_name: self
                    .types
                    .name(column.type_oid)
                    .unwrap_or_else(|| Cow::Owned(format!("oid {}", column.type_oid))),
                origin: ColumnOrigin {
                    type_oid: column.type_oid,
                    type_size: column.type_size,
                    type_modifier: column.type_modifier,
                    table_oid: column.table_oid,
                    column_id: column.column_id,
                },
            })
            .collect();
        self.sink.columns(&columns);
    }

    fn row(&mut self, row: &RowText<'_>) -> ControlFlow<()> {
        self.first_response.get_or_insert_with(|| self.started.elapsed());
        // The server's encoding is UTF-8; an invalid text can only come from a broken server.
        let mut cells = (*row).map(|value| match value.map(str::from_utf8) {
            None => Cell::Null,
            Some(Ok(text)) => Cell::Text(text),
            Some(Err(_)) => Cell::Text("\u{fffd}"),
        });
        let flow = self.sink.row(&mut cells);
        self.rows = self.rows.saturating_add(1);
        // The last row needs no cancel, which would fail a transaction.
        if self.rows == self.rows_max { ControlFlow::Continue(()) } else { flow }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        self.sink.poll_ready(cx)
    }
}

/// Rows of a statement of this crate.
#[derive(Default)]
struct CollectedRows(Vec<Vec<String>>);

impl evenkeel_postgres::RowSink for CollectedRows {
    fn columns(&mut self, _: &[ColumnDescription]) {}

    fn row(&mut self, row: &RowText<'_>) -> ControlFlow<()> {
        let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        self.0.push((*row).map(text).collect());
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

fn database_error(error: PgError) -> DatabaseError {
    match error {
        PgError::Database(error) | PgError::Session(error) => DatabaseError::Statement(error),
        PgError::Connect(error) => DatabaseError::Unavailable { reason: error.to_string() },
        PgError::PoolTimeout { .. } | PgError::Closed => {
            DatabaseError::Unavailable { reason: error.to_string() }
        }
        PgError::ConnectionLost { .. } | PgError::Protocol { .. } => DatabaseError::OutcomeUnknown,
        PgError::Unsupported { what } => {
            DatabaseError::Unsupported { what: format!("{what} is not supported over HTTP") }
        }
        PgError::ResultTooLarge { bytes_max } => DatabaseError::Statement(Box::new(StatementError {
            code: "54000".to_owned(),
            message: format!(
                "a row of the result is larger than {bytes_max} bytes; a write outside a transaction may have taken effect"
            ),
            severity: "ERROR".to_owned(),
            ..StatementError::default()
        })),
        PgError::InvalidStatement { reason, sqlstate } => {
            DatabaseError::Statement(Box::new(StatementError {
                code: sqlstate.to_owned(),
                message: reason,
                severity: "ERROR".to_owned(),
                ..StatementError::default()
            }))
        }
        PgError::Stopped => DatabaseError::Cancelled,
    }
}
