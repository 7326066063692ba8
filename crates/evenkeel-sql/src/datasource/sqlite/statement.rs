//! Runs one client statement on its thread.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::Value;
use rusqlite::{CachedStatement, Connection, Row, Rows, ffi};

use super::authorizer::Caller;
use super::batch::RowBatch;
use super::error::{SqlSource, database_error, statement_error};
use super::exchange::{Exchange, RunJob, StatementSummary, Stop};
use super::session::SqliteSession;
use crate::datasource::{Column, ColumnOrigin, StatementDescription};
use crate::error::DatabaseError;

/// Longest SQL text whose compiled statement is cached.
const CACHED_SQL_BYTES_MAX: usize = 16 << 10;
/// Age after which a batch is sent although it is not full.
const BATCH_AGE_MAX: Duration = Duration::from_millis(10);

/// A statement on its way through SQLite.
pub(super) struct StatementRun<'a> {
    session: &'a SqliteSession,
    exchange: &'a Exchange,
    job: &'a RunJob,
    command: &'a str,
    /// Largest row of a result, in bytes of text and blobs.
    row_bytes_max: usize,
    batch: RowBatch,
    batch_since: Instant,
    first_response: Option<Duration>,
}

/// Rows that were not sent yet, and the result of the statement.
pub(super) struct StatementEnd {
    pub(super) last_rows: Option<RowBatch>,
    pub(super) result: Result<StatementSummary, DatabaseError>,
}

impl<'a> StatementRun<'a> {
    pub(super) fn new(
        session: &'a SqliteSession,
        exchange: &'a Exchange,
        job: &'a RunJob,
        command: &'a str,
        row_bytes_max: usize,
    ) -> Self {
        Self {
            session,
            exchange,
            job,
            command,
            row_bytes_max,
            batch: RowBatch::default(),
            batch_since: job.sent_at,
            first_response: None,
        }
    }

    /// Compiles the statement, binds its parameters and sends its rows.
    pub(super) fn run(mut self) -> StatementEnd {
        let result = self.prepare_and_step();
        let last_rows = (!self.batch.is_empty()).then(|| self.batch.take());
        StatementEnd { last_rows, result }
    }

    fn prepare_and_step(&mut self) -> Result<StatementSummary, DatabaseError> {
        let connection = self.session.connection();
        self.session.authorizer().set_caller(Caller::Client);
        let mut statement = self.prepare(connection)?;
        self.bind(&mut statement)?;
        let is_writing = !statement.readonly();
        if is_writing {
            self.exchange.set_writing();
        }
        let stepped = if self.command == "VACUUM" {
            let stepped = self.session.as_vacuum(|| self.step(&mut statement));
            stepped.map_err(|error| self.database_error(&error))?
        } else {
            self.step(&mut statement)
        };
        if CACHED_SQL_BYTES_MAX < self.job.sql.len() {
            statement.discard();
        }
        stepped?;
        let is_dml = ["INSERT", "REPLACE", "UPDATE", "DELETE"].contains(&self.command);
        let is_insert = ["INSERT", "REPLACE"].contains(&self.command);
        Ok(StatementSummary {
            command: self.command.to_owned(),
            changes: is_dml.then(|| connection.changes()),
            last_insert_rowid: is_insert.then(|| connection.last_insert_rowid()),
            first_response: self.first_response.unwrap_or_else(|| self.job.sent_at.elapsed()),
            description: None,
        })
    }

    /// Compiles the statement and describes it.
    pub(super) fn describe(&self) -> Result<StatementDescription, DatabaseError> {
        self.session.authorizer().set_caller(Caller::Client);
        let statement = self.prepare(self.session.connection())?;
        let name = |index: usize| statement.parameter_name(index).map(str::to_owned);
        Ok(StatementDescription {
            params: (1..=statement.parameter_count()).map(name).collect(),
            columns: columns(&statement),
            is_explain: statement.is_explain() != 0,
            is_readonly: statement.readonly(),
        })
    }

    fn prepare<'c>(&self, connection: &'c Connection) -> Result<CachedStatement<'c>, DatabaseError> {
        let sql = self.job.sql.as_str();
        // SQLite would ignore everything after it.
        if sql.contains('\0') {
            return Err(statement_error("42601", "the statement contains a NUL character"));
        }
        connection.prepare_cached(sql).map_err(|error| {
            let original = self.database_error(&error);
            // An error in a second statement, such as a table that the first one creates, would be misleading.
            let mut statements = rusqlite::Batch::new(connection, sql);
            let is_first_valid = sql.contains(';') && matches!(statements.next(), Ok(Some(_)));
            if is_first_valid { self.database_error(&rusqlite::Error::MultipleStatement) } else { original }
        })
    }

    fn bind(&self, statement: &mut CachedStatement<'_>) -> Result<(), DatabaseError> {
        let expected = statement.parameter_count();
        let (positional, named): (Vec<_>, Vec<_>) =
            self.job.params.iter().partition(|param| param.name.is_none());
        if expected < positional.len() {
            let reason = format!("is one too many; the statement has {expected} parameters");
            return Err(DatabaseError::Param { index: expected, reason });
        }
        let mut values: Vec<Option<&Value>> = positional.iter().map(|param| Some(&param.value)).collect();
        values.resize(expected, None);
        for (number, param) in named.iter().enumerate() {
            let name = param.name.as_deref().unwrap_or_default();
            let index = parameter_index(statement, name).ok_or_else(|| DatabaseError::Param {
                index: positional.len() + number,
                reason: format!("has the name {name:?}, which the statement does not contain"),
            })?;
            values[index] = Some(&param.value);
        }
        for (index, value) in values.into_iter().enumerate() {
            let value = value.ok_or_else(|| {
                let name = statement.parameter_name(index + 1);
                let name = name.map(|name| format!("({name}) ")).unwrap_or_default();
                let reason = format!("{name}is missing; the statement has {expected} parameters");
                DatabaseError::Param { index, reason }
            })?;
            let bound = statement.raw_bind_parameter(index + 1, value);
            bound.map_err(|error| self.database_error(&error))?;
        }
        Ok(())
    }

    /// Steps through the rows; after it the statement is reset.
    fn step(&mut self, statement: &mut CachedStatement<'_>) -> Result<(), DatabaseError> {
        let is_writing = !statement.readonly();
        let mut rows = statement.raw_query();
        let mut wants_rows = true;
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(error) => return self.step_error(&error),
            };
            if !wants_rows {
                continue;
            }
            if let Err(error) = self.push(row) {
                self.cancel(&mut rows);
                return Err(error);
            }
            match self.send_if_due() {
                Ok(()) => {}
                // SQLite has made all changes before the first row, so the rest is short.
                Err(Stop::Rows) if is_writing => wants_rows = false,
                Err(Stop::Rows) => return Ok(()),
                Err(Stop::Statement) => return Err(self.cancel(&mut rows)),
            }
        }
        drop(rows);
        self.note_response();
        if self.batch_is_first() && 0 < statement.column_count() {
            self.batch.set_columns(columns(statement));
        }
        Ok(())
    }

    fn batch_is_first(&self) -> bool {
        self.batch.columns.is_none() && self.batch.width() == 0
    }

    fn note_response(&mut self) {
        if self.first_response.is_none() {
            self.first_response = Some(self.job.sent_at.elapsed());
        }
    }

    fn push(&mut self, row: &Row<'_>) -> Result<(), DatabaseError> {
        self.note_response();
        if self.batch_is_first() {
            self.batch.set_columns(columns(row.as_ref()));
        }
        let bytes_before = self.batch.bytes();
        for index in 0..self.batch.width() {
            let value = row.get_ref(index).map_err(|error| self.database_error(&error))?;
            self.batch.push(value);
            if self.row_bytes_max < self.batch.bytes() - bytes_before {
                let message = format!("a row of the result is larger than {} bytes", self.row_bytes_max);
                return Err(statement_error("54000", message));
            }
        }
        Ok(())
    }

    fn send_if_due(&mut self) -> Result<(), Stop> {
        if !self.batch.is_full() && self.batch_since.elapsed() < BATCH_AGE_MAX {
            return Ok(());
        }
        let batch = self.batch.take();
        let sent = self.exchange.send_rows(batch);
        self.batch_since = Instant::now();
        sent
    }

    /// Makes SQLite end the statement with an error, so that its changes are undone.
    fn cancel(&self, rows: &mut Rows<'_>) -> DatabaseError {
        self.session.interrupt();
        match rows.next() {
            Ok(_) => DatabaseError::Cancelled,
            Err(error) => self.cancelled_or(&error),
        }
    }

    fn step_error(&self, error: &rusqlite::Error) -> Result<(), DatabaseError> {
        let is_interrupt = error.sqlite_error_code() == Some(ffi::ErrorCode::OperationInterrupted);
        if is_interrupt && self.exchange.stop_request() == Some(Stop::Rows) {
            return Ok(());
        }
        Err(self.cancelled_or(error))
    }

    /// Reports an interrupt, or a lock wait that ended because of one, as a cancelled statement.
    fn cancelled_or(&self, error: &rusqlite::Error) -> DatabaseError {
        let code = error.sqlite_error_code();
        let may_be_cancelled =
            matches!(code, Some(ffi::ErrorCode::OperationInterrupted | ffi::ErrorCode::DatabaseBusy));
        if may_be_cancelled && self.exchange.stop_request().is_some() {
            return DatabaseError::Cancelled;
        }
        self.database_error(error)
    }

    fn database_error(&self, error: &rusqlite::Error) -> DatabaseError {
        let denial = self.session.authorizer().take_denial();
        database_error(error, SqlSource(&self.job.sql), denial)
    }
}

/// Finds a parameter by its name, which may lack the prefix; returns its index from 0.
fn parameter_index(statement: &rusqlite::Statement<'_>, name: &str) -> Option<usize> {
    let index = |name: &str| statement.parameter_index(name).ok().flatten();
    let found = match name.chars().next() {
        Some(':' | '@' | '$' | '?') => index(name),
        _ => [":", "@", "$"].iter().find_map(|prefix| index(&format!("{prefix}{name}"))),
    };
    found.map(|index| index - 1)
}

fn columns(statement: &rusqlite::Statement<'_>) -> Vec<Column> {
    let column = |column: rusqlite::Column<'_>| Column {
        name: column.name().to_owned(),
        type_name: type_name(column.decl_type().unwrap_or_default()),
        origin: ColumnOrigin::default(),
    };
    statement.columns().map(column).collect()
}

/// Returns a declared type, without an allocation for the usual ones, which SQLite writes in capitals.
fn type_name(declared: &str) -> Cow<'static, str> {
    const USUAL: [&str; 5] = ["", "INTEGER", "TEXT", "REAL", "BLOB"];
    match USUAL.iter().find(|usual| **usual == declared) {
        Some(usual) => Cow::Borrowed(usual),
        None => Cow::Owned(declared.to_owned()),
    }
}
