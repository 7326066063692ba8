//! Statements, their parameters, and the receiver of their rows.

use core::ops::ControlFlow;
use core::task::{Context, Poll};
use std::borrow::Cow;

use crate::backend::{ColumnDescription, CommandTag, RowText};
use crate::error::PgError;

/// Most parameters of a statement; the protocol counts them in 16 bits.
pub const PARAMS_MAX: usize = 65_535;

/// One SQL command and its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Statement<'a> {
    pub sql: &'a str,
    pub params: &'a [Param<'a>],
    /// Rows after which the statement ends early, without a cancel request; 0 means no limit.
    ///
    /// It also counts as ended early if it has exactly so many rows.
    pub rows_max: u32,
}

/// A parameter in PostgreSQL's text format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// Type; 0 lets the server infer it.
    pub type_oid: u32,
    /// `None` is NULL.
    pub value: Option<Cow<'a, str>>,
}

/// Receiver of a statement's rows.
pub trait RowSink: Send {
    /// Receives the columns; called once, before the first row, and not for statements without a result set.
    fn columns(&mut self, columns: &[ColumnDescription]);

    /// Receives one row; `Break` stops the statement.
    fn row(&mut self, row: &RowText<'_>) -> ControlFlow<()>;

    /// Applies back-pressure: awaited between reads from the socket; `Break` stops the statement.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>>;
}

/// Result of a statement besides its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementCompletion {
    /// Empty if the statement was stopped, or was empty itself.
    pub tag: CommandTag,
    pub rows_affected: Option<u64>,
    pub status: TransactionStatus,
    /// Reports whether the sink or `rows_max` ended the statement early.
    ///
    /// A statement that the sink ended is still in flight: `recover` ends it, or dropping the connection.
    pub stopped: bool,
}

/// State of a connection's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionStatus {
    /// No transaction is open.
    Idle,
    InTransaction,
    /// A statement failed; only a rollback is accepted.
    Failed,
}

impl<'a> Statement<'a> {
    pub fn new(sql: &'a str, params: &'a [Param<'a>]) -> Self {
        Self { sql, params, rows_max: 0 }
    }

    /// Ends the statement early after `rows_max` rows.
    pub fn with_rows_max(self, rows_max: u32) -> Self {
        Self { rows_max, ..self }
    }

    pub(crate) fn check(&self, limits: StatementLimits) -> Result<(), PgError> {
        const LIMIT_EXCEEDED: &str = "54000";
        let invalid = |reason: String, sqlstate| Err(PgError::InvalidStatement { reason, sqlstate });
        if limits.sql_bytes_max < self.sql.len() {
            return invalid(format!("SQL is longer than {} bytes", limits.sql_bytes_max), LIMIT_EXCEEDED);
        }
        if PARAMS_MAX < self.params.len() {
            return invalid(format!("statement has more than {PARAMS_MAX} parameters"), LIMIT_EXCEEDED);
        }
        let params = self.params.iter().map(|param| param.value.as_ref().map_or(0, |value| value.len()));
        if limits.message_bytes_max < self.sql.len() + params.sum::<usize>() {
            let reason = format!("SQL and parameters are longer than {} bytes", limits.message_bytes_max);
            return invalid(reason, LIMIT_EXCEEDED);
        }
        if memchr::memchr(0, self.sql.as_bytes()).is_some() {
            return invalid("SQL contains a zero byte".to_owned(), "22021");
        }
        Ok(())
    }
}

impl<'a> Param<'a> {
    /// Creates a parameter whose type the server infers.
    pub fn text(value: impl Into<Cow<'a, str>>) -> Self {
        Self { type_oid: 0, value: Some(value.into()) }
    }

    pub fn null() -> Self {
        Self { type_oid: 0, value: None }
    }
}

/// Limits of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatementLimits {
    pub(crate) sql_bytes_max: usize,
    pub(crate) message_bytes_max: usize,
}

/// Ignores rows, for commands such as `BEGIN`.
pub(crate) struct NoRows;

impl RowSink for NoRows {
    fn columns(&mut self, _columns: &[ColumnDescription]) {}

    fn row(&mut self, _row: &RowText<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StatementLimits = StatementLimits { sql_bytes_max: 10, message_bytes_max: 20 };

    fn sqlstate(sql: &str, params: &[Param<'_>]) -> Option<String> {
        Statement::new(sql, params).check(LIMITS).err().map(|error| error.sqlstate().to_owned())
    }

    #[test]
    fn every_limit_of_a_statement_is_checked() {
        assert_eq!(sqlstate("0123456789", &[]), None);
        assert_eq!(sqlstate("0123456789x", &[]).as_deref(), Some("54000"));
        assert_eq!(sqlstate("0123456789", &[Param::text("0123456789")]), None);
        assert_eq!(sqlstate("0123456789", &[Param::text("0123456789x")]).as_deref(), Some("54000"));
        assert_eq!(sqlstate("x\0y", &[]).as_deref(), Some("22021"));
        assert_eq!(sqlstate("x", &vec![Param::null(); PARAMS_MAX]), None);
        assert_eq!(sqlstate("x", &vec![Param::null(); PARAMS_MAX + 1]).as_deref(), Some("54000"));
    }
}
