//! A connection that is lent to one caller.

use core::fmt;
use std::sync::Arc;

use super::loan::{Loan, Release};
use crate::backend::Description;
use crate::connection::ServerConnection;
use crate::error::PgError;
use crate::statement::{RowSink, Statement, StatementCompletion, TransactionStatus};

/// A connection lent by a [`Pool`](crate::Pool).
///
/// Dropping it returns it. If a statement is in flight or a transaction is open, a task cancels and rolls back first, for
/// at most five seconds. If that fails, it terminates the server's process, for at most five more, and discards the
/// connection.
pub struct PooledConnection {
    loan: Loan,
}

impl PooledConnection {
    pub(super) fn new(loan: Loan) -> Self {
        Self { loan }
    }

    fn connection(&mut self) -> Result<&mut ServerConnection, PgError> {
        self.loan.connection.as_deref_mut().ok_or(PgError::Closed)
    }

    /// Runs one statement and passes its rows to the sink.
    ///
    /// The future may be dropped at any point; [`recover`](Self::recover) then ends the statement, or dropping the
    /// connection does.
    pub async fn run(
        &mut self,
        statement: &Statement<'_>,
        sink: &mut dyn RowSink,
    ) -> Result<StatementCompletion, PgError> {
        self.connection()?.run(statement, sink).await
    }

    /// Returns the parameter types and columns of a statement, from the cache if it was prepared before.
    pub async fn describe(&mut self, sql: &str, type_oids: &[u32]) -> Result<Arc<Description>, PgError> {
        self.connection()?.describe(sql, type_oids).await
    }

    /// Runs one command without parameters and rows, such as `BEGIN` or `COMMIT`.
    ///
    /// A `COMMIT` of a failed transaction succeeds with the tag `ROLLBACK`.
    pub async fn simple(&mut self, sql: &str) -> Result<StatementCompletion, PgError> {
        self.connection()?.command(sql).await
    }

    /// Returns the status after the last statement.
    pub fn transaction_status(&self) -> TransactionStatus {
        self.loan.connection.as_ref().map_or(TransactionStatus::Idle, |connection| connection.status())
    }

    /// Cancels a statement that was dropped or stopped half-way, and waits until the connection takes the next one.
    ///
    /// An open transaction fails, but stays open. If this returns an error, or is dropped, the connection is discarded.
    pub async fn recover(&mut self) -> Result<(), PgError> {
        self.connection()?.recover().await
    }

    /// Adds a callback that is called exactly once: when the connection is idle again, or discarded.
    pub fn on_release(&mut self, callback: impl FnOnce(Release) + Send + 'static) {
        self.loan.on_release(Box::new(callback));
    }
}

impl fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledConnection").field("status", &self.transaction_status()).finish_non_exhaustive()
    }
}
