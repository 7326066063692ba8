//! Runs one statement in one round trip: everything up to the Sync goes out in one write.

use core::future::poll_fn;
use std::sync::Arc;

use bytes::BytesMut;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend::{self, BindError};

use super::ServerConnection;
use super::reply::{NextStep, StatementReply};
use crate::backend::Description;
use crate::counters::increment;
use crate::db_error::DbError;
use crate::error::PgError;
use crate::startup::{malformed, unexpected};
use crate::statement::{NoRows, Param, RowSink, Statement, StatementCompletion, TransactionStatus};
use crate::wire::lost;

/// Fails an open transaction: there is no such savepoint.
const FAIL_TRANSACTION: &str = "ROLLBACK TO SAVEPOINT evenkeel_result_too_large";

/// A statement and the purpose of sending it.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) statement: Statement<'a>,
    pub(super) purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Run,
    /// Run without caching it and without its rows.
    Command,
    Describe,
}

impl Batch<'_> {
    pub(super) fn types(&self) -> impl Iterator<Item = u32> + Clone {
        self.statement.params.iter().map(|param| param.type_oid)
    }
}

impl ServerConnection {
    pub(crate) async fn run(
        &mut self,
        statement: &Statement<'_>,
        sink: &mut dyn RowSink,
    ) -> Result<StatementCompletion, PgError> {
        let batch = Batch { statement: *statement, purpose: Purpose::Run };
        let reply = self.execute(batch, sink).await?;
        Ok(reply.completion(self.state.status))
    }

    /// Runs one command such as `BEGIN`, without parameters and rows.
    pub(crate) async fn command(&mut self, sql: &str) -> Result<StatementCompletion, PgError> {
        let batch = Batch { statement: Statement::new(sql, &[]), purpose: Purpose::Command };
        let reply = self.execute(batch, &mut NoRows).await?;
        Ok(reply.completion(self.state.status))
    }

    pub(crate) async fn describe(
        &mut self,
        sql: &str,
        type_oids: &[u32],
    ) -> Result<Arc<Description>, PgError> {
        self.check_usable()?;
        if self.state.session.prologue().is_none()
            && let Some(description) = self.state.cache.get(sql, type_oids.iter().copied())
        {
            return Ok(description.clone());
        }
        let params: Vec<Param<'_>> =
            type_oids.iter().map(|&type_oid| Param { type_oid, value: None }).collect();
        let batch = Batch { statement: Statement::new(sql, &params), purpose: Purpose::Describe };
        let reply = self.execute(batch, &mut NoRows).await?;
        reply.into_description()
    }

    /// Sends a statement and handles its reply; prepares it once more if the server no longer accepts the cached one.
    async fn execute(&mut self, batch: Batch<'_>, sink: &mut dyn RowSink) -> Result<StatementReply, PgError> {
        self.check_usable()?;
        batch.statement.check(self.limits)?;
        let may_retry = self.state.status == TransactionStatus::Idle;
        let mut result = self.exchange(batch, sink).await;
        if let Ok(reply) = &result
            && reply.is_stale_plan()
        {
            self.state.cache.remove(batch.statement.sql, batch.types());
            if may_retry {
                result = self.exchange(batch, sink).await;
            }
        }
        let result = match result {
            Ok(reply) => self.finish(reply).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            self.record_failure(error);
            if matches!(error, PgError::ResultTooLarge { .. }) {
                self.end_large_result().await;
            }
        }
        result
    }

    /// Ends a statement with a message above the limit, and fails an open transaction as any other error does.
    ///
    /// If this is not possible, the connection is marked as broken.
    async fn end_large_result(&mut self) {
        if self.recover().await.is_err() || self.state.status != TransactionStatus::InTransaction {
            return;
        }
        let batch = Batch { statement: Statement::new(FAIL_TRANSACTION, &[]), purpose: Purpose::Command };
        if let Err(error) = self.exchange(batch, &mut NoRows).await {
            self.record_failure(&error);
        }
    }

    async fn exchange(
        &mut self,
        batch: Batch<'_>,
        sink: &mut dyn RowSink,
    ) -> Result<StatementReply, PgError> {
        self.handle_unsolicited()?;
        let mut reply = match self.write(batch) {
            Ok(reply) => reply,
            Err(error) => {
                self.wire.discard_output();
                return Err(error);
            }
        };
        self.wire.flush().await?;
        loop {
            while let Some(frame) = self.wire.next()? {
                match reply.handle(frame, batch, &mut self.state, sink)? {
                    NextStep::Continue => {}
                    NextStep::Done | NextStep::Stopped => return Ok(reply),
                    NextStep::CopyIn => {
                        self.write_copy_refusal();
                        self.wire.flush().await?;
                    }
                    NextStep::CopyOut => {
                        self.recover().await?;
                        return Ok(reply);
                    }
                }
            }
            if reply.has_rows() && poll_fn(|cx| sink.poll_ready(cx)).await.is_break() {
                reply.stop();
                return Ok(reply);
            }
            if let Err(error) = self.wire.fill().await {
                // A fatal error is followed by the end of the connection.
                return Err(reply.error().map_or(error, |error| lost(&error.to_string())));
            }
        }
    }

    /// Handles messages that came after the last reply; only some types may.
    fn handle_unsolicited(&mut self) -> Result<(), PgError> {
        while let Some(frame) = self.wire.next()? {
            match frame.kind {
                b'A' | b'N' | b'S' => self.state.observe(frame)?,
                b'E' => return Err(lost(&DbError::parse(frame.body).map_err(malformed)?.to_string())),
                kind => return Err(unexpected(kind)),
            }
        }
        Ok(())
    }

    /// Turns a complete reply into its result.
    async fn finish(&mut self, reply: StatementReply) -> Result<StatementReply, PgError> {
        if self.state.ready_pending == 0
            && let Some(name) = self.state.preparing.take()
        {
            self.state.cache.close(name);
        }
        if reply.is_listen() {
            let command = Batch { statement: Statement::new("UNLISTEN *", &[]), purpose: Purpose::Command };
            self.exchange(command, &mut NoRows).await?.into_result()?;
            return Err(PgError::Unsupported { what: "LISTEN" });
        }
        reply.into_result()
    }

    /// Writes the messages of a statement to the output.
    fn write(&mut self, batch: Batch<'_>) -> Result<StatementReply, PgError> {
        let Statement { sql, params, rows_max } = batch.statement;
        let state = &mut self.state;
        let output = &mut self.wire.output;
        // Within a transaction the session cannot have changed.
        let is_idle = state.status == TransactionStatus::Idle;
        let prologue = if is_idle { state.session.prologue() } else { None };
        if prologue.is_some_and(|prologue| prologue.resets) {
            // The server drops the statements itself.
            state.cache.forget_all();
        }
        let is_cached = batch.purpose != Purpose::Command && state.cache.accepts(sql);
        let description = if is_cached { state.cache.get(sql, batch.types()).cloned() } else { None };
        let mut preparing = None;
        if is_cached {
            let counters = &self.counters;
            increment(if description.is_some() {
                &counters.statement_hits
            } else {
                &counters.statement_misses
            });
            if description.is_none() {
                preparing = Some(state.cache.begin_insert());
            }
        }
        write_closes(state.cache.take_closing(), output)?;
        let mut prologue_commands = 0;
        if let Some(prologue) = prologue {
            prologue_commands = state.session.write(prologue, output)?;
            if prologue.resets {
                increment(&self.counters.resets);
            }
        }
        let name = preparing.as_deref().or(description.as_ref().map(|found| &*found.name)).unwrap_or("");
        if description.is_none() {
            frontend::parse(name, sql, batch.types(), output).map_err(unsendable)?;
            if batch.purpose != Purpose::Command {
                frontend::describe(b'S', name, output).map_err(unsendable)?;
            }
        }
        if batch.purpose != Purpose::Describe {
            write_bind(name, params, output)?;
            frontend::execute("", i32::try_from(rows_max).unwrap_or(i32::MAX), output).map_err(unsendable)?;
        }
        frontend::sync(output);
        state.preparing = preparing;
        state.ready_pending = 1;
        Ok(StatementReply::new(prologue_commands, description))
    }

    /// Ends a `COPY … FROM STDIN` that the server has begun.
    ///
    /// The server usually ignores the Sync that it has received already, but not if the COPY failed just before: the
    /// empty query marks the last ReadyForQuery.
    pub(super) fn write_copy_refusal(&mut self) {
        let output = &mut self.wire.output;
        let written = frontend::copy_fail("COPY is not supported over this interface", output);
        debug_assert!(written.is_ok(), "the text has no zero byte");
        frontend::sync(output);
        let written = frontend::query("", output);
        debug_assert!(written.is_ok(), "the text has no zero byte");
        self.state.awaits_marker = true;
    }
}

pub(super) fn write_closes(names: Vec<Box<str>>, output: &mut BytesMut) -> Result<(), PgError> {
    for name in names {
        frontend::close(b'S', &name, output).map_err(unsendable)?;
    }
    Ok(())
}

/// Binds the parameters as text; the result is text too.
fn write_bind(name: &str, params: &[Param<'_>], output: &mut BytesMut) -> Result<(), PgError> {
    let write_value = |param: &Param<'_>, output: &mut BytesMut| match &param.value {
        Some(value) => {
            output.extend_from_slice(value.as_bytes());
            Ok(IsNull::No)
        }
        None => Ok(IsNull::Yes),
    };
    frontend::bind("", name, [], params, write_value, [], output).map_err(|error| match error {
        BindError::Serialization(error) => unsendable(error),
        BindError::Conversion(error) => unsendable(std::io::Error::other(error)),
    })
}

fn unsendable(error: std::io::Error) -> PgError {
    PgError::InvalidStatement { reason: error.to_string(), sqlstate: "54000" }
}
