//! The server's reply to a statement, message by message.

use std::sync::Arc;

use super::ConnectionState;
use super::execute::{Batch, Purpose};
use crate::backend::{ColumnDescription, CommandTag, Description, RowText, parse_columns, parse_param_types};
use crate::db_error::DbError;
use crate::error::PgError;
use crate::frame::Frame;
use crate::startup::{malformed, unexpected};
use crate::statement::{RowSink, StatementCompletion, TransactionStatus};

/// The part of a reply that has been received.
pub(super) struct StatementReply {
    /// Commands before the statement that are not complete.
    prologue_commands: u8,
    /// The description came from the statement cache.
    from_cache: bool,
    /// Parameter types of a statement that is being described.
    param_types: Vec<u32>,
    description: Option<Arc<Description>>,
    progress: ReplyProgress,
    tag: CommandTag,
    stopped: bool,
    unsupported: Option<&'static str>,
    error: Option<Box<DbError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReplyProgress {
    Sent,
    /// The parameters were accepted; execution may have begun.
    Bound,
    Rows,
}

/// Action that a message calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Continue,
    /// The server is ready for the next statement.
    Done,
    /// The sink wants no more rows.
    Stopped,
    /// The server waits for the data of a COPY.
    CopyIn,
    /// The server sends the data of a COPY.
    CopyOut,
}

impl StatementReply {
    pub(super) fn new(prologue_commands: u8, description: Option<Arc<Description>>) -> Self {
        Self {
            prologue_commands,
            from_cache: description.is_some(),
            param_types: Vec::new(),
            description,
            progress: ReplyProgress::Sent,
            tag: CommandTag::EMPTY,
            stopped: false,
            unsupported: None,
            error: None,
        }
    }

    pub(super) fn handle(
        &mut self,
        frame: Frame<'_>,
        batch: Batch<'_>,
        state: &mut ConnectionState,
        sink: &mut dyn RowSink,
    ) -> Result<NextStep, PgError> {
        state.observe(frame)?;
        match frame.kind {
            b'D' => return self.row(frame.body, batch, sink),
            b'2' if self.prologue_commands == 0 => self.bound(sink),
            b'C' => self.complete(frame.body, state)?,
            b'Z' if state.ready_pending == 0 => return Ok(NextStep::Done),
            b'E' => {
                let error = DbError::parse(frame.body).map_err(malformed)?;
                self.error.get_or_insert(Box::new(error));
            }
            b't' => self.param_types = parse_param_types(frame.body).map_err(malformed)?,
            b'T' => {
                let columns = parse_columns(frame.body).map_err(malformed)?;
                self.described(Some(columns), batch, state);
            }
            b'n' => self.described(None, batch, state),
            b's' => self.stopped = true,
            b'G' => {
                self.unsupported = Some("COPY FROM STDIN");
                return Ok(NextStep::CopyIn);
            }
            b'H' => {
                self.unsupported = Some("COPY TO STDOUT");
                return Ok(NextStep::CopyOut);
            }
            // Notifications, COPY data, ParseComplete, BindComplete, CloseComplete, EmptyQueryResponse, notices, parameters.
            b'A' | b'c' | b'd' | b'1' | b'2' | b'3' | b'I' | b'N' | b'S' | b'Z' => {}
            kind => return Err(unexpected(kind)),
        }
        Ok(NextStep::Continue)
    }

    fn row(&mut self, body: &[u8], batch: Batch<'_>, sink: &mut dyn RowSink) -> Result<NextStep, PgError> {
        if 0 < self.prologue_commands || batch.purpose != Purpose::Run {
            return Ok(NextStep::Continue);
        }
        self.progress = ReplyProgress::Rows;
        if sink.row(&RowText::parse(body).map_err(malformed)?).is_break() {
            self.stop();
            return Ok(NextStep::Stopped);
        }
        Ok(NextStep::Continue)
    }

    fn bound(&mut self, sink: &mut dyn RowSink) {
        self.progress = ReplyProgress::Bound;
        if let Some(columns) = self.description.as_ref().and_then(|description| description.columns.as_ref())
        {
            sink.columns(columns);
        }
    }

    fn complete(&mut self, body: &[u8], state: &mut ConnectionState) -> Result<(), PgError> {
        if self.prologue_commands == 0 {
            self.tag = CommandTag::parse(body).map_err(malformed)?;
            return Ok(());
        }
        self.prologue_commands -= 1;
        if self.prologue_commands == 0 {
            state.session.confirm();
        }
        Ok(())
    }

    fn described(
        &mut self,
        columns: Option<Vec<ColumnDescription>>,
        batch: Batch<'_>,
        state: &mut ConnectionState,
    ) {
        let params = std::mem::take(&mut self.param_types);
        let Some(name) = state.preparing.take() else {
            self.description = Some(Arc::new(Description { params, columns, name: Box::default() }));
            return;
        };
        let description = Arc::new(Description { params, columns, name });
        state.cache.insert(batch.statement.sql, batch.types(), &description);
        self.description = Some(description);
    }

    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(super) fn has_rows(&self) -> bool {
        self.progress == ReplyProgress::Rows
    }

    pub(super) fn error(&self) -> Option<&DbError> {
        self.error.as_deref()
    }

    pub(super) fn is_listen(&self) -> bool {
        self.tag.as_str() == "LISTEN"
    }

    /// Reports whether the server rejected the cached statement before it began to run.
    ///
    /// 0A000 means that its result type has changed, 26000 that it does not exist.
    pub(super) fn is_stale_plan(&self) -> bool {
        let is_rejected = self.error.as_ref().is_some_and(|error| matches!(&*error.code, "0A000" | "26000"));
        is_rejected && self.from_cache && self.prologue_commands == 0 && self.progress == ReplyProgress::Sent
    }

    /// Returns the error that the reply amounts to, if it does.
    pub(super) fn into_result(mut self) -> Result<Self, PgError> {
        if let Some(what) = self.unsupported {
            return Err(PgError::Unsupported { what });
        }
        match self.error.take() {
            Some(error) if 0 < self.prologue_commands => Err(PgError::Session(error)),
            Some(error) => Err(PgError::Database(error)),
            None => Ok(self),
        }
    }

    pub(super) fn completion(&self, status: TransactionStatus) -> StatementCompletion {
        let tag = self.tag;
        StatementCompletion { tag, rows_affected: tag.rows_affected(), status, stopped: self.stopped }
    }

    pub(super) fn into_description(self) -> Result<Arc<Description>, PgError> {
        self.description.ok_or_else(|| PgError::Protocol {
            reason: "the server did not describe the statement".to_owned(),
        })
    }
}
