//! A connection on loan: the part that lives in the request's task.

use core::future::poll_fn;
use core::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use super::batch::RowBatch;
use super::error::statement_error;
use super::exchange::{
    BeginJob, Exchange, ForeignKeys, Health, RunJob, StatementSummary, Stop, WorkerJob, WorkerOutput,
    WorkerReply,
};
use super::params;
use super::pool::{Loan, Release, SqlitePool, WorkerKind};
use crate::datasource::{
    AccessMode, BeginOptions, BoxFuture, Completion, DatabaseConnection, RowSink, RowsEnd, Statement,
    StatementDescription, TransactionEnd, TransactionStatus,
};
use crate::error::DatabaseError;

/// A connection that is lent to one request or transaction.
pub(super) struct SqliteConnection {
    pool: Arc<SqlitePool>,
    kind: WorkerKind,
    exchange: Arc<Exchange>,
    /// Taken when the connection is dropped.
    release: Option<Release>,
    owner: u64,
    status: TransactionStatus,
    health: Health,
}

impl SqliteConnection {
    /// Takes over a loan and waits until its database is open.
    pub(super) async fn open(pool: Arc<SqlitePool>, loan: Loan, owner: u64) -> Result<Self, DatabaseError> {
        let Loan { kind, exchange, release } = loan;
        let release = Some(release);
        let status = TransactionStatus::Idle;
        let mut connection = Self { pool, kind, exchange, release, owner, status, health: Health::Good };
        if connection.exchange.is_occupied() {
            let opened = reply(&connection.exchange).await;
            connection.absorb(opened)?;
        }
        Ok(connection)
    }

    async fn run_statement(
        &mut self,
        statement: &Statement,
        sink: &mut dyn RowSink,
    ) -> Result<Completion, DatabaseError> {
        let job = self.run_job(statement)?;
        self.settle().await;
        self.exchange.submit(WorkerJob::Run(job));
        let mut delivery = Delivery { exchange: &self.exchange, rows: 0, end: RowsEnd::All };
        let reply = loop {
            match next(&self.exchange).await {
                WorkerOutput::Done(reply) => break reply,
                WorkerOutput::Rows(batch) => delivery.deliver(&batch, sink).await,
            }
        };
        let delivered = delivery.rows;
        let end = delivery.end;
        drop(delivery);
        let summary = self.absorb(reply)?;
        Ok(Completion {
            command: summary.command,
            rows_affected: summary.changes.unwrap_or(delivered),
            first_response: summary.first_response,
            end,
            last_insert_rowid: summary.last_insert_rowid,
        })
    }

    fn run_job(&self, statement: &Statement) -> Result<RunJob, DatabaseError> {
        let params = params::to_bound(&statement.params)?;
        let sent_at = Instant::now();
        let deadline = sent_at.checked_add(statement.time_max);
        Ok(RunJob { owner: self.owner, sql: statement.sql.clone(), params, sent_at, deadline })
    }

    /// Runs a job without rows.
    async fn run_without_rows(&mut self, job: WorkerJob) -> Result<StatementSummary, DatabaseError> {
        self.settle().await;
        self.exchange.submit(job);
        let guard = Delivery { exchange: &self.exchange, rows: 0, end: RowsEnd::All };
        let done = reply(&self.exchange).await;
        drop(guard);
        self.absorb(done)
    }

    async fn begin_job(
        &mut self,
        access: AccessMode,
        foreign_keys: ForeignKeys,
    ) -> Result<(), DatabaseError> {
        if access == AccessMode::ReadWrite && self.kind.access() == AccessMode::ReadOnly {
            let message = "a transaction that writes cannot begin on a connection that only reads";
            return Err(statement_error("25006", message));
        }
        let job = BeginJob { owner: self.owner, access, foreign_keys };
        self.run_without_rows(WorkerJob::Begin(job)).await.map(drop)
    }

    /// Cancels a job whose future was dropped, and waits until the thread has finished it.
    async fn settle(&mut self) {
        if self.exchange.is_occupied() {
            self.exchange.stop(Stop::Statement);
            let dropped = reply(&self.exchange).await;
            let _ = self.absorb(dropped);
        }
    }

    fn absorb(&mut self, reply: WorkerReply) -> Result<StatementSummary, DatabaseError> {
        self.status = reply.status;
        self.health = reply.health;
        reply.result
    }
}

impl DatabaseConnection for SqliteConnection {
    fn run<'a>(
        &'a mut self,
        statement: &'a Statement,
        sink: &'a mut dyn RowSink,
    ) -> BoxFuture<'a, Result<Completion, DatabaseError>> {
        Box::pin(self.run_statement(statement, sink))
    }

    /// SQLite's transactions are serializable, which satisfies every isolation level.
    fn begin(&mut self, options: BeginOptions) -> BoxFuture<'_, Result<(), DatabaseError>> {
        Box::pin(self.begin_job(options.access, ForeignKeys::Enforced))
    }

    fn begin_without_foreign_keys(&mut self) -> BoxFuture<'_, Result<(), DatabaseError>> {
        Box::pin(self.begin_job(AccessMode::ReadWrite, ForeignKeys::Ignored))
    }

    fn describe<'a>(
        &'a mut self,
        statement: &'a Statement,
    ) -> BoxFuture<'a, Result<StatementDescription, DatabaseError>> {
        Box::pin(async move {
            let job = self.run_job(statement)?;
            let summary = self.run_without_rows(WorkerJob::Describe(job)).await?;
            summary.description.ok_or(DatabaseError::Cancelled)
        })
    }

    fn end(&mut self, end: TransactionEnd) -> BoxFuture<'_, Result<(), DatabaseError>> {
        Box::pin(async move { self.run_without_rows(WorkerJob::End(end)).await.map(drop) })
    }

    /// Returns the status after the last job whose future was not dropped, or after [`DatabaseConnection::recover`].
    fn transaction_status(&self) -> TransactionStatus {
        self.status
    }

    fn recover(&mut self) -> BoxFuture<'_, Result<(), DatabaseError>> {
        Box::pin(async move {
            self.settle().await;
            Ok(())
        })
    }
}

impl Drop for SqliteConnection {
    fn drop(&mut self) {
        let Some(release) = self.release.take() else { return };
        let is_clean = self.status == TransactionStatus::Idle
            && self.health == Health::Good
            && !self.exchange.is_occupied();
        if is_clean {
            self.pool.give_back(self.kind, &self.exchange);
            drop(release);
        } else {
            self.exchange.release(release);
        }
    }
}

/// Rows of a running job on their way to the sink; dropping it cancels the job if it still runs.
struct Delivery<'a> {
    exchange: &'a Exchange,
    /// Rows that the sink has received.
    rows: u64,
    end: RowsEnd,
}

impl Delivery<'_> {
    /// Passes rows on until the sink stops the statement, and drops them from then on.
    async fn deliver(&mut self, batch: &RowBatch, sink: &mut dyn RowSink) {
        if self.end == RowsEnd::Stopped {
            return;
        }
        if let Some(columns) = &batch.columns {
            sink.columns(columns);
        }
        if batch.has_rows() && self.push_rows(batch, sink).await.is_break() {
            self.end = RowsEnd::Stopped;
            self.exchange.stop(Stop::Rows);
        }
    }

    async fn push_rows(&mut self, batch: &RowBatch, sink: &mut dyn RowSink) -> ControlFlow<()> {
        poll_fn(|cx| sink.poll_ready(cx)).await?;
        for mut row in batch.rows() {
            sink.row(&mut row)?;
            self.rows += 1;
        }
        ControlFlow::Continue(())
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        self.exchange.stop(Stop::Statement);
    }
}

async fn next(exchange: &Exchange) -> WorkerOutput {
    poll_fn(|cx| exchange.poll_next(cx)).await
}

/// Waits for the reply to the running job, and drops its rows.
async fn reply(exchange: &Exchange) -> WorkerReply {
    loop {
        if let WorkerOutput::Done(reply) = next(exchange).await {
            return reply;
        }
    }
}
