//! Thread of one SQLite connection.
//!
//! It opens the connection, runs one job at a time, and returns the connection to the pool after rolling back what is
//! open. A transaction that SQLite rolled back by itself (`ON CONFLICT ROLLBACK`, a full disk, an interrupted write)
//! counts as failed until the client ends it, as in PostgreSQL, so that later statements do not run on their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::wal::CheckpointMode;

use super::SqliteOptions;
use super::batch::RowBatch;
use super::error::{SqlSource, breaks_connection, database_error, statement_error};
use super::exchange::{
    BeginJob, Exchange, ForeignKeys, Health, RunJob, StatementSummary, WorkItem, WorkerJob, WorkerReply,
};
use super::pool::{Release, SqlitePool, WorkerKind};
use super::session::{SessionReset, SqliteSession};
use super::sql_text;
use super::statement::{StatementEnd, StatementRun};
use crate::datasource::{AccessMode, TransactionEnd, TransactionStatus};
use crate::error::DatabaseError;

/// Stack of a thread: SQLite recurses into expressions of the permitted depth.
pub(super) const STACK_BYTES: usize = 4 << 20;

/// State of a connection's thread.
pub(super) struct SqliteWorker {
    kind: WorkerKind,
    exchange: Arc<Exchange>,
    pool: Arc<SqlitePool>,
    /// `None` while the database is not open.
    session: Option<SqliteSession>,
    /// Tenant whose session state the connection holds.
    owner: Option<u64>,
    /// SQLite rolled the client's transaction back by itself.
    is_transaction_lost: bool,
    /// The writer runs a read-only transaction.
    is_query_only: bool,
    /// The writer runs a transaction in which foreign keys are not enforced.
    is_without_foreign_keys: bool,
    health: Health,
}

impl SqliteWorker {
    pub(super) fn new(
        kind: WorkerKind,
        exchange: Arc<Exchange>,
        pool: Arc<SqlitePool>,
        session: Option<SqliteSession>,
    ) -> Self {
        Self {
            kind,
            exchange,
            pool,
            session,
            owner: None,
            is_transaction_lost: false,
            is_query_only: false,
            is_without_foreign_keys: false,
            health: Health::Good,
        }
    }

    /// Runs jobs until the pool or a broken connection ends the thread.
    pub(super) fn run(mut self) {
        if self.session.is_none() {
            let opened = self.open();
            self.finish(None, opened.map(|()| StatementSummary::default()));
        }
        loop {
            match self.exchange.next() {
                WorkItem::Job(job) => self.handle(job),
                WorkItem::Release(release) => match self.clean_up() {
                    Health::Good => self.give_back(release),
                    Health::Broken => return self.discard(release),
                },
                WorkItem::Exit => {
                    self.close();
                    return self.pool.end(self.kind);
                }
            }
        }
    }

    fn open(&mut self) -> Result<(), DatabaseError> {
        let opened = SqliteSession::open(self.options(), self.kind.access(), &self.exchange);
        match opened {
            Ok(session) => {
                self.session = Some(session);
                Ok(())
            }
            Err(error) => {
                tracing::error!(path = %self.options().path.display(), %error, "cannot open the SQLite database");
                // The path is not for clients.
                Err(DatabaseError::Unavailable { reason: "the database file cannot be opened".to_owned() })
            }
        }
    }

    fn options(&self) -> &SqliteOptions {
        self.pool.options()
    }

    fn handle(&mut self, job: WorkerJob) {
        let run = || match job {
            WorkerJob::Run(job) => self.run_statement(&job),
            WorkerJob::Describe(job) => StatementEnd { last_rows: None, result: self.describe(&job) },
            WorkerJob::Begin(job) => {
                let begun = self.begin(job);
                StatementEnd { last_rows: None, result: begun.map(|()| StatementSummary::default()) }
            }
            WorkerJob::End(end) => {
                let ended = self.end(end);
                StatementEnd { last_rows: None, result: ended.map(|()| StatementSummary::default()) }
            }
        };
        let ended = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            tracing::error!("the SQLite binding panicked; its connection is discarded");
            StatementEnd { last_rows: None, result: Err(DatabaseError::OutcomeUnknown) }
        });
        self.finish(ended.last_rows, ended.result);
    }

    fn finish(&mut self, last_rows: Option<RowBatch>, result: Result<StatementSummary, DatabaseError>) {
        if result.as_ref().is_err_and(breaks_connection) {
            self.health = Health::Broken;
        }
        let reply = WorkerReply { result, status: self.status(), health: self.health };
        self.exchange.finish(last_rows, reply);
    }

    fn status(&self) -> TransactionStatus {
        if self.is_transaction_lost {
            return TransactionStatus::Failed;
        }
        match &self.session {
            Some(session) if !session.connection().is_autocommit() => TransactionStatus::Open,
            _ => TransactionStatus::Idle,
        }
    }

    fn run_statement(&mut self, job: &RunJob) -> StatementEnd {
        let failed = |error| StatementEnd { last_rows: None, result: Err(error) };
        let Some(command) = sql_text::command(&job.sql) else { return failed(empty_statement()) };
        if self.is_transaction_lost {
            return StatementEnd { last_rows: None, result: self.run_after_loss(job, &command) };
        }
        self.exchange.set_deadline(job.deadline);
        if let Err(error) = self.adopt(job.owner) {
            return failed(error);
        }
        let Some(session) = &self.session else { return failed(closed()) };
        let row_bytes_max = self.options().value_bytes_max as usize;
        let was_open = !session.connection().is_autocommit();
        let ended = StatementRun::new(session, &self.exchange, job, &command, row_bytes_max).run();
        let is_open = !session.connection().is_autocommit();
        let ends_transaction = ["COMMIT", "END", "ROLLBACK", "RELEASE"].contains(&command.as_str());
        self.is_transaction_lost = was_open && !is_open && !ends_transaction;
        self.end_modes();
        ended
    }

    fn describe(&mut self, job: &RunJob) -> Result<StatementSummary, DatabaseError> {
        let command = sql_text::command(&job.sql).ok_or_else(empty_statement)?;
        self.exchange.set_deadline(job.deadline);
        self.adopt(job.owner)?;
        let Some(session) = &self.session else { return Err(closed()) };
        let run = StatementRun::new(session, &self.exchange, job, &command, 0);
        Ok(StatementSummary { description: Some(run.describe()?), ..StatementSummary::default() })
    }

    /// Answers statements in a transaction that no longer exists.
    fn run_after_loss(&mut self, job: &RunJob, command: &str) -> Result<StatementSummary, DatabaseError> {
        let ends_transaction = match command {
            "COMMIT" | "END" => true,
            "ROLLBACK" => !sql_text::is_rollback_to_savepoint(&job.sql),
            _ => false,
        };
        if !ends_transaction {
            return Err(transaction_lost());
        }
        self.is_transaction_lost = false;
        let command = "ROLLBACK".to_owned();
        let first_response = job.sent_at.elapsed();
        Ok(StatementSummary { command, first_response, ..StatementSummary::default() })
    }

    /// Makes the connection the owner's: a writer that another tenant used is reset.
    fn adopt(&mut self, owner: u64) -> Result<(), DatabaseError> {
        if self.exchange.is_interrupted() {
            return Err(DatabaseError::Cancelled);
        }
        let is_used_by_another = self.owner.is_some_and(|previous| previous != owner);
        if is_used_by_another && self.kind.access() == AccessMode::ReadWrite {
            let Some(session) = &self.session else { return Err(closed()) };
            match session.reset() {
                Ok(SessionReset::Done) => {}
                Ok(SessionReset::ReopenNeeded) => self.reopen()?,
                Err(_) if self.exchange.is_interrupted() => return Err(DatabaseError::Cancelled),
                Err(error) => {
                    tracing::warn!(%error, "cannot reset a SQLite connection; opening another");
                    self.reopen()?;
                }
            }
        }
        self.owner = Some(owner);
        Ok(())
    }

    /// Replaces the connection; the old one stays open meanwhile, so that the write-ahead log is kept.
    fn reopen(&mut self) -> Result<(), DatabaseError> {
        let old = self.session.take();
        let opened = self.open();
        drop(old);
        opened
    }

    fn begin(&mut self, job: BeginJob) -> Result<(), DatabaseError> {
        let BeginJob { owner, access, foreign_keys } = job;
        self.adopt(owner)?;
        if self.is_transaction_lost {
            return Err(transaction_lost());
        }
        let Some(session) = &self.session else { return Err(closed()) };
        let was_open = !session.connection().is_autocommit();
        let begun = session.as_engine(|connection| match access {
            AccessMode::ReadWrite if foreign_keys == ForeignKeys::Ignored => {
                connection.pragma_update(None, "foreign_keys", false)?;
                connection.execute_batch("BEGIN IMMEDIATE")
            }
            AccessMode::ReadWrite => connection.execute_batch("BEGIN IMMEDIATE"),
            AccessMode::ReadOnly => {
                connection.execute_batch("BEGIN")?;
                // The read takes the snapshot.
                connection.query_row(
                    "SELECT count(*) FROM (SELECT 1 FROM sqlite_schema LIMIT 1)",
                    (),
                    |_| Ok(()),
                )?;
                connection.pragma_update(None, "query_only", true)
            }
        });
        self.is_without_foreign_keys = foreign_keys == ForeignKeys::Ignored;
        let Err(error) = begun else {
            // A reader is always in this mode.
            self.is_query_only = (access, self.kind) == (AccessMode::ReadOnly, WorkerKind::Writer);
            return Ok(());
        };
        let error = self.engine_error(&error);
        if !was_open && self.status() == TransactionStatus::Open {
            self.roll_back();
        }
        self.end_modes();
        Err(error)
    }

    fn end(&mut self, end: TransactionEnd) -> Result<(), DatabaseError> {
        if self.is_transaction_lost {
            self.is_transaction_lost = false;
            return match end {
                TransactionEnd::Rollback => Ok(()),
                TransactionEnd::Commit => {
                    Err(statement_error("40000", "the transaction was rolled back and cannot be committed"))
                }
            };
        }
        let Some(session) = &self.session else { return Err(closed()) };
        let sql = match end {
            TransactionEnd::Commit => "COMMIT",
            TransactionEnd::Rollback => "ROLLBACK",
        };
        let ended = session.as_engine(|connection| connection.execute_batch(sql));
        self.end_modes();
        ended.map_err(|error| self.engine_error(&error))
    }

    /// Ends the writer's modes that last as long as a transaction: it may write again, and foreign keys are enforced.
    fn end_modes(&mut self) {
        let Some(session) = &self.session else { return };
        let has_mode = self.is_query_only || self.is_without_foreign_keys;
        if !has_mode || !session.connection().is_autocommit() {
            return;
        }
        let reset = session.as_engine(|connection| {
            connection.pragma_update(None, "query_only", false)?;
            connection.pragma_update(None, "foreign_keys", true)
        });
        match reset {
            Ok(()) => {
                self.is_query_only = false;
                self.is_without_foreign_keys = false;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot reset the modes of a SQLite connection; discarding it");
                self.health = Health::Broken;
            }
        }
    }

    fn engine_error(&self, error: &rusqlite::Error) -> DatabaseError {
        if self.exchange.stop_request().is_some() {
            return DatabaseError::Cancelled;
        }
        database_error(error, SqlSource(""), None)
    }

    /// Rolls back what is open.
    fn clean_up(&mut self) -> Health {
        self.is_transaction_lost = false;
        if self.status() == TransactionStatus::Open {
            self.roll_back();
        }
        self.end_modes();
        self.health
    }

    fn roll_back(&mut self) {
        if let Err(error) = self.end(TransactionEnd::Rollback) {
            tracing::warn!(%error, "cannot roll back on a SQLite connection; discarding it");
            self.health = Health::Broken;
        }
    }

    fn give_back(&self, release: Release) {
        self.pool.give_back(self.kind, &self.exchange);
        drop_guarded(release);
    }

    fn discard(&mut self, release: Release) {
        drop_guarded(self.session.take());
        self.pool.discard(self.kind);
        drop_guarded(release);
    }

    /// Closes the database; the writer first moves the write-ahead log into the file.
    fn close(&mut self) {
        let Some(session) = self.session.take() else { return };
        if self.kind == WorkerKind::Writer {
            let checkpoint = session.as_engine(|connection| {
                connection.wal_checkpoint_v2(rusqlite::DEFAULT_NAME, CheckpointMode::TRUNCATE)
            });
            if let Err(error) = checkpoint {
                tracing::warn!(%error, "cannot checkpoint the SQLite database; its write-ahead log stays");
            }
        }
        drop_guarded(session);
    }
}

/// Drops a value on a thread that must survive a panic of it.
fn drop_guarded<T>(value: T) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("a panic was caught while a SQLite connection was released");
    }
}

fn empty_statement() -> DatabaseError {
    statement_error("42601", "the statement is empty")
}

fn transaction_lost() -> DatabaseError {
    statement_error("25P02", "the transaction was rolled back; end it with ROLLBACK")
}

fn closed() -> DatabaseError {
    DatabaseError::Unavailable { reason: "the database connection is closed".to_owned() }
}
