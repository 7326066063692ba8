//! `/v3/cursor`: a batch whose entries are sent while it runs.
//!
//! The response begins with the baton, which depends on whether a transaction is open at the end. Entries up to the last
//! statement that begins or ends a transaction are therefore held back, within the size limit of results; those after it
//! are streamed with back-pressure.

use core::ops::ControlFlow;
use core::task::{Context, Poll};

use bytes::Bytes;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, channel};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::HranaStream;
use super::batch::{Batch, StepOutcome};
use super::error::to_json_within;
use super::request::BatchBody;
use super::result::{write_columns, write_counts, write_row};
use super::stream::StreamCall;
use crate::datasource::{Cell, Column, Completion, RowSink};
use crate::error::SqlError;
use crate::result::{Reserving, poll_send};
use crate::statement::{CHUNKS_MAX, NDJSON};

/// Serves a cursor.
pub(super) async fn serve(call: StreamCall, body: &[u8]) -> Result<Response, SqlError> {
    let BatchBody { baton, batch } = BatchBody::parse(body, &call.api.limits)?;
    let mut stream = HranaStream::open(call, baton.as_deref())?;
    let (sender, chunks) = mpsc::channel::<Bytes>(CHUNKS_MAX);
    let (started_sender, starts) = oneshot::channel();
    let reader = sender.clone();
    let mut entries = EntryStream::new(sender, started_sender, stream.result_bytes_max());
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = run(&mut stream, &batch, &mut entries) => {}
            // The client is gone; dropping the statement cancels it.
            () = reader.closed() => {}
        }
        if !entries.has_begun {
            stream.withdraw_baton();
        }
        // A client that reads slowly must not keep the connection until it has read the end.
        drop(stream);
        entries.finish().await;
    });
    starts.await.map_err(|_| ApiError::Internal)??;
    let mut response = Response::new(channel(chunks));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    Ok(response)
}

/// Runs the steps of a batch whose conditions hold, and sends their entries.
async fn run(stream: &mut HranaStream, batch: &Batch, entries: &mut EntryStream) {
    let last_control = batch.steps().iter().rposition(|step| stream.is_control(&step.stmt));
    let mut outcomes = Vec::new();
    for (index, step) in batch.steps().iter().enumerate() {
        if last_control.is_none_or(|last| last < index) {
            entries.settle(stream);
        }
        let is_due = step.is_due(&outcomes, stream.is_autocommit());
        let result = match (is_due, stream.statement(&step.stmt)) {
            (false, _) => None,
            (true, Err(error)) => Some(Err(error)),
            (true, Ok(statement)) => {
                let start = entries.out.len();
                let mut sink = entries.step(index, step.stmt.wants_rows());
                let run = stream.run(&statement, &mut sink).await;
                let run = run.map(|completion| sink.finish(&completion));
                Some(match entries.is_too_large() {
                    true => run.and(Err(entries.drop_from(start))),
                    false => run,
                })
            }
        };
        outcomes.push(StepOutcome::of(result.as_ref()));
        let Some(Err(error)) = result else { continue };
        if stream.is_rejected_by(&error) {
            return entries.reject(error);
        }
        entries.write_error(json!({"type": "step_error", "step": index}), &error);
    }
    entries.settle(stream);
    entries.start();
}

/// Entries on their way to the client.
struct EntryStream {
    out: Vec<u8>,
    chunks: mpsc::Sender<Bytes>,
    reserving: Option<Reserving>,
    /// Signals that the response can begin, or the error that takes its place; `None` once it was sent.
    started: Option<oneshot::Sender<Result<(), SqlError>>>,
    /// Set once the response began, so that the client can receive the baton.
    has_begun: bool,
    /// Set once the baton is known and written; entries are held back until then.
    is_settled: bool,
    /// Largest size of entries that are held back.
    bytes_max: usize,
    /// Set when a row of the current step did not fit.
    is_cut: bool,
}

impl EntryStream {
    fn new(
        chunks: mpsc::Sender<Bytes>,
        started: oneshot::Sender<Result<(), SqlError>>,
        bytes_max: usize,
    ) -> Self {
        Self {
            out: Vec::new(),
            chunks,
            reserving: None,
            started: Some(started),
            has_begun: false,
            is_settled: false,
            bytes_max,
            is_cut: false,
        }
    }

    /// Writes the baton in front of the entries, once no statement changes it any more.
    fn settle(&mut self, stream: &mut HranaStream) {
        if self.is_settled {
            return;
        }
        self.is_settled = true;
        let held_back = core::mem::take(&mut self.out);
        self.write(&json!({"baton": stream.issue_baton(), "base_url": null}));
        self.out.extend_from_slice(&held_back);
    }

    /// Lets the response begin, unless it has begun or the baton is not known.
    fn start(&mut self) {
        if !self.is_settled {
            return;
        }
        if let Some(started) = self.started.take() {
            // Fails only if the client is gone, which `poll_ready` notices too.
            self.has_begun = started.send(Ok(())).is_ok();
        }
    }

    /// Returns the sink of a step.
    fn step(&mut self, index: usize, wants_rows: bool) -> StepEntries<'_> {
        StepEntries { entries: self, index, wants_rows, has_begun: false }
    }

    /// Reports whether the entries that are held back exceed the limit.
    fn is_too_large(&self) -> bool {
        self.is_cut || (!self.is_settled && self.bytes_max < self.out.len())
    }

    /// Drops the entries of a step that is too large, and returns the error that takes their place.
    fn drop_from(&mut self, start: usize) -> SqlError {
        self.out.truncate(start);
        self.is_cut = false;
        SqlError::ExecutedResultTooLarge { bytes_max: self.bytes_max }
    }

    fn write(&mut self, entry: &Value) {
        self.out.extend_from_slice(entry.to_string().as_bytes());
        self.out.push(b'\n');
    }

    /// Writes an error into an entry. Errors are not sent before the next row or the end, so their size is limited too.
    fn write_error(&mut self, mut entry: Value, error: &SqlError) {
        entry["error"] = to_json_within(error, self.bytes_max.saturating_sub(self.out.len()));
        self.write(&entry);
    }

    /// Sends an error in place of the response, or writes it as the last entry.
    fn reject(&mut self, error: SqlError) {
        match self.started.take() {
            // Fails only if the client is gone.
            Some(started) => drop(started.send(Err(error))),
            None => self.write_error(json!({"type": "error"}), &error),
        }
    }

    /// Sends the rest.
    async fn finish(self) {
        // Fails only if the client is gone.
        let _ = self.chunks.send(self.out.into()).await;
    }
}

/// Entries of one step.
struct StepEntries<'a> {
    entries: &'a mut EntryStream,
    index: usize,
    wants_rows: bool,
    has_begun: bool,
}

impl StepEntries<'_> {
    fn begin(&mut self, columns: &[Column]) {
        self.has_begun = true;
        self.entries.start();
        let out = &mut self.entries.out;
        let head = format!(r#"{{"type":"step_begin","step":{},"cols":["#, self.index);
        out.extend_from_slice(head.as_bytes());
        write_columns(out, columns);
        out.extend_from_slice(b"]}\n");
    }

    fn finish(mut self, completion: &Completion) {
        if !self.has_begun {
            self.begin(&[]);
        }
        let out = &mut self.entries.out;
        out.extend_from_slice(br#"{"type":"step_end","#);
        write_counts(out, completion);
        out.extend_from_slice(b"}\n");
    }
}

impl RowSink for StepEntries<'_> {
    fn columns(&mut self, columns: &[Column]) {
        self.begin(columns);
    }

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        if self.wants_rows && !self.entries.is_too_large() {
            let entries = &mut *self.entries;
            let bytes_max = if entries.is_settled { usize::MAX } else { entries.bytes_max };
            entries.out.extend_from_slice(br#"{"type":"row","row":"#);
            entries.is_cut = write_row(&mut entries.out, cells, bytes_max).is_break();
            entries.out.extend_from_slice(b"}\n");
        }
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        let entries = &mut *self.entries;
        match entries.started {
            Some(_) => Poll::Ready(ControlFlow::Continue(())),
            None => poll_send(&mut entries.out, &entries.chunks, &mut entries.reserving, cx),
        }
    }
}
