//! Results: one JSON object, or lines of JSON or CSV that are sent while the statement runs.

use core::mem;
use core::ops::ControlFlow;
use core::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::csv;
use crate::datasource::{AccessMode, BoxFuture, Cell, Column, Completion, RowSink, RowsEnd};
use crate::encode::{TextFormat, write_cell, write_string};
use crate::error::SqlError;

/// Rows of one result.
#[derive(Debug)]
struct RowWriter {
    out: Vec<u8>,
    formats: Vec<TextFormat>,
    encoding: RowEncoding,
    rows: u64,
    rows_max: Option<u64>,
    extent: Extent,
}

/// Form of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowEncoding {
    /// JSON arrays, separated by commas.
    JsonList,
    /// JSON arrays, a line each.
    JsonLines,
    Csv,
}

/// Extent of the rows that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    All,
    /// Further rows were left out because of `maxRows`.
    Truncated,
    /// The result is larger than the limit.
    TooLarge,
}

impl RowWriter {
    fn new(encoding: RowEncoding, rows_max: Option<u64>) -> Self {
        Self { out: Vec::new(), formats: Vec::new(), encoding, rows: 0, rows_max, extent: Extent::All }
    }

    fn write_json_columns(&mut self, columns: &[Column]) {
        self.formats = columns.iter().map(TextFormat::of).collect();
        self.out.extend_from_slice(br#"{"columns":["#);
        for (index, column) in columns.iter().enumerate() {
            self.out.extend_from_slice(if index == 0 { br#"{"name":"#.as_slice() } else { br#",{"name":"# });
            write_string(&mut self.out, &column.name);
            self.out.extend_from_slice(br#","type":"#);
            write_string(&mut self.out, &column.type_name);
            self.out.push(b'}');
        }
        self.out.push(b']');
    }

    /// Writes a row, unless `maxRows` is reached or the result would be larger than `bytes_max`.
    fn write_row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>, bytes_max: usize) -> bool {
        if self.extent == Extent::TooLarge {
            return false;
        }
        if self.rows_max.is_some_and(|max| max <= self.rows) {
            self.extent = Extent::Truncated;
            return false;
        }
        let (separator, open, close) = match self.encoding {
            RowEncoding::JsonList => (",", "[", "]"),
            RowEncoding::JsonLines => ("\n", "[", "]"),
            RowEncoding::Csv => ("", "", csv::LINE_END),
        };
        if self.rows > 0 {
            self.out.extend_from_slice(separator.as_bytes());
        }
        self.rows += 1;
        self.out.extend_from_slice(open.as_bytes());
        let mut formats = self.formats.iter();
        for (index, cell) in cells.enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            // Before the cell is encoded, which may multiply its size.
            if bytes_max < self.out.len().saturating_add(cell.byte_len()) {
                self.extent = Extent::TooLarge;
                return false;
            }
            let format = formats.next().copied().unwrap_or(TextFormat::String);
            match self.encoding {
                RowEncoding::JsonList | RowEncoding::JsonLines => write_cell(&mut self.out, cell, format),
                RowEncoding::Csv => csv::write_cell(&mut self.out, cell),
            }
        }
        self.out.extend_from_slice(close.as_bytes());
        true
    }
}

/// A whole result as one JSON object, up to a size limit.
#[derive(Debug)]
pub(crate) struct JsonResult {
    writer: RowWriter,
    access: AccessMode,
    bytes_max: usize,
    has_columns: bool,
}

impl JsonResult {
    pub(crate) fn new(rows_max: Option<u64>, bytes_max: usize, access: AccessMode) -> Self {
        Self {
            writer: RowWriter::new(RowEncoding::JsonList, rows_max),
            access,
            bytes_max,
            has_columns: false,
        }
    }

    pub(crate) fn extent(&self) -> Extent {
        self.writer.extent
    }

    /// Completes the object.
    pub(crate) fn finish(self, completion: &Completion, elapsed: Duration) -> Vec<u8> {
        let has_columns = self.has_columns;
        let RowWriter { mut out, rows, extent, .. } = self.writer;
        if !has_columns {
            out.extend_from_slice(br#"{"columns":[],"rows":["#);
        }
        let row_count = match has_columns {
            true => rows.max(completion_rows(completion, extent)),
            false => completion.rows_affected,
        };
        out.extend_from_slice(br#"],"rowCount":"#);
        out.extend_from_slice(row_count.to_string().as_bytes());
        out.extend_from_slice(br#","command":"#);
        write_string(&mut out, &completion.command);
        if extent == Extent::Truncated {
            out.extend_from_slice(br#","truncated":true"#);
        }
        out.extend_from_slice(br#","elapsedUs":"#);
        out.extend_from_slice(elapsed.as_micros().to_string().as_bytes());
        out.push(b'}');
        out
    }
}

impl RowSink for JsonResult {
    fn columns(&mut self, columns: &[Column]) {
        self.has_columns = true;
        self.writer.write_json_columns(columns);
        self.writer.out.extend_from_slice(br#","rows":["#);
    }

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        let written = self.writer.write_row(cells, self.bytes_max);
        if self.bytes_max < self.writer.out.len() {
            self.writer.extent = Extent::TooLarge;
        }
        if self.writer.extent == Extent::TooLarge {
            self.writer.out = Vec::new();
        }
        if written && self.writer.extent != Extent::TooLarge {
            ControlFlow::Continue(())
        } else {
            after_last_row(self.access)
        }
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

/// Format of a stream. A client notices a cut in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    /// A line with the columns, one per row, and a last line with a summary or an error.
    NdJson,
    /// A line with the names of the columns, and one per row. A cut or an error aborts the response.
    Csv,
}

/// The ends of a stream that its body reads from.
pub(crate) struct StreamSender {
    pub(crate) chunks: mpsc::Sender<Bytes>,
    /// Signals that the stream is complete; without it, the response is aborted.
    pub(crate) completed: oneshot::Sender<()>,
    /// Signals that the response can begin, or the error that takes its place.
    pub(crate) started: oneshot::Sender<Result<(), SqlError>>,
}

/// A result that is sent line by line.
///
/// Chunks go through a bounded channel: a slow client stops the reading from the database.
pub(crate) struct LineStream {
    writer: RowWriter,
    format: StreamFormat,
    access: AccessMode,
    chunks: mpsc::Sender<Bytes>,
    completed: oneshot::Sender<()>,
    reserving: Option<Reserving>,
    /// `None` once it was sent.
    started: Option<oneshot::Sender<Result<(), SqlError>>>,
}

pub(crate) type Reserving = BoxFuture<'static, Result<mpsc::OwnedPermit<Bytes>, mpsc::error::SendError<()>>>;

impl LineStream {
    pub(crate) fn new(
        format: StreamFormat,
        rows_max: Option<u64>,
        access: AccessMode,
        sender: StreamSender,
    ) -> Self {
        let encoding = match format {
            StreamFormat::NdJson => RowEncoding::JsonLines,
            StreamFormat::Csv => RowEncoding::Csv,
        };
        let writer = RowWriter::new(encoding, rows_max);
        let StreamSender { chunks, completed, started } = sender;
        Self { writer, format, access, chunks, completed, reserving: None, started: Some(started) }
    }

    /// Lets the response begin, unless it has begun.
    fn start(&mut self) {
        if let Some(started) = self.started.take() {
            // Fails only if the client is gone, which `poll_ready` notices too.
            let _ = started.send(Ok(()));
        }
    }

    /// Sends the rest of the rows and the end. An error before the first line takes the place of the response.
    pub(crate) async fn finish(mut self, result: Result<(&Completion, Duration), SqlError>) {
        let has_columns = self.started.is_none();
        if let Some(started) = self.started.take() {
            // Fails only if the client is gone.
            let _ = started.send(result.as_ref().map(|_| ()).map_err(Clone::clone));
            if result.is_err() {
                return;
            }
        }
        match self.format {
            StreamFormat::NdJson => self.write_last_line(result, has_columns),
            // Dropping `completed` aborts the response.
            StreamFormat::Csv if result.is_err() => return,
            StreamFormat::Csv => {}
        }
        // Both fail only if the client is gone.
        if !self.writer.out.is_empty() {
            let _ = self.chunks.send(self.writer.out.into()).await;
        }
        let _ = self.completed.send(());
    }

    /// Writes the last line of a stream of JSON: a summary or an error.
    fn write_last_line(&mut self, result: Result<(&Completion, Duration), SqlError>, has_columns: bool) {
        if self.writer.rows > 0 {
            self.writer.out.push(b'\n');
        }
        let last = match result {
            Ok((completion, elapsed)) => {
                let rows = match has_columns {
                    true => self.writer.rows.max(completion_rows(completion, self.writer.extent)),
                    false => completion.rows_affected,
                };
                let mut summary = json!({
                    "rowCount": rows,
                    "command": completion.command,
                    "elapsedUs": elapsed.as_micros() as u64,
                });
                if self.writer.extent == Extent::Truncated {
                    summary["truncated"] = json!(true);
                }
                summary
            }
            Err(error) => json!({"error": error.to_json()}),
        };
        self.writer.out.extend_from_slice(last.to_string().as_bytes());
        self.writer.out.push(b'\n');
    }
}

impl RowSink for LineStream {
    fn columns(&mut self, columns: &[Column]) {
        match self.format {
            StreamFormat::NdJson => {
                self.start();
                self.writer.write_json_columns(columns);
                self.writer.out.extend_from_slice(b"}\n");
            }
            StreamFormat::Csv => csv::write_header(&mut self.writer.out, columns),
        }
    }

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        // An error before the first row is then a response of its own, which is clearer than an aborted one.
        self.start();
        let written = self.writer.write_row(cells, usize::MAX);
        if written { ControlFlow::Continue(()) } else { after_last_row(self.access) }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        poll_send(&mut self.writer.out, &self.chunks, &mut self.reserving, cx)
    }
}

/// Sends what `out` contains as one chunk once the channel has room; `Break` if the client is gone.
pub(crate) fn poll_send(
    out: &mut Vec<u8>,
    chunks: &mpsc::Sender<Bytes>,
    reserving: &mut Option<Reserving>,
    cx: &mut Context<'_>,
) -> Poll<ControlFlow<()>> {
    if out.is_empty() {
        return Poll::Ready(ControlFlow::Continue(()));
    }
    let pending = reserving.get_or_insert_with(|| Box::pin(chunks.clone().reserve_owned()));
    let reserved = ready!(pending.as_mut().poll(cx));
    *reserving = None;
    match reserved {
        Ok(permit) => {
            permit.send(mem::take(out).into());
            Poll::Ready(ControlFlow::Continue(()))
        }
        // The client is gone.
        Err(_) => Poll::Ready(ControlFlow::Break(())),
    }
}

/// Chooses what happens to rows beyond a limit: stopping a statement that writes could undo it, or leave its outcome
/// unknown.
fn after_last_row(access: AccessMode) -> ControlFlow<()> {
    match access {
        AccessMode::ReadOnly => ControlFlow::Break(()),
        AccessMode::ReadWrite => ControlFlow::Continue(()),
    }
}

/// Returns the rows of a statement that ran to its end, although `maxRows` may have cut the response; 0 if it was ended
/// early.
fn completion_rows(completion: &Completion, extent: Extent) -> u64 {
    match (completion.end, extent) {
        (RowsEnd::All, Extent::Truncated) => completion.rows_affected,
        (RowsEnd::All | RowsEnd::Stopped, _) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasource::ColumnOrigin;
    use serde_json::Value;

    const ELAPSED: Duration = Duration::from_micros(7);

    fn completion(rows_affected: u64, end: RowsEnd) -> Completion {
        let command = "SELECT".to_owned();
        Completion { command, rows_affected, first_response: ELAPSED, end, last_insert_rowid: None }
    }

    fn columns() -> [Column; 2] {
        let column = |name: &str, type_oid| Column {
            name: name.to_owned(),
            type_name: "t".into(),
            origin: ColumnOrigin { type_oid, ..ColumnOrigin::default() },
        };
        [column("a\"", 23), column("b", 25)]
    }

    /// Writes rows `[n, "x"]` until the sink stops them; returns how many were offered.
    fn write_rows(sink: &mut dyn RowSink, rows: u64) -> u64 {
        sink.columns(&columns());
        (1..=rows)
            .find(|n| {
                let number = n.to_string();
                sink.row(&mut [Cell::Text(&number), Cell::Text("x")].into_iter()).is_break()
            })
            .unwrap_or(rows)
    }

    fn parse(bytes: Vec<u8>) -> Value {
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn a_result_is_one_object() {
        let mut result = JsonResult::new(None, 1_000, AccessMode::ReadOnly);
        write_rows(&mut result, 2);
        let json = parse(result.finish(&completion(2, RowsEnd::All), ELAPSED));
        let columns = json!([{"name": "a\"", "type": "t"}, {"name": "b", "type": "t"}]);
        let expected = json!({
            "columns": columns, "rows": [[1, "x"], [2, "x"]], "rowCount": 2, "command": "SELECT", "elapsedUs": 7
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_statement_without_a_result_set_counts_its_rows() {
        let result = JsonResult::new(None, 1_000, AccessMode::ReadWrite);
        let json = parse(result.finish(&completion(3, RowsEnd::All), ELAPSED));
        assert_eq!((&json["columns"], &json["rows"], &json["rowCount"]), (&json!([]), &json!([]), &json!(3)));
    }

    #[test]
    fn max_rows_stops_a_query_but_not_a_statement_that_writes() {
        let mut query = JsonResult::new(Some(2), 1_000, AccessMode::ReadOnly);
        assert_eq!(write_rows(&mut query, 9), 3, "the row after the last shows that there are more");
        let json = parse(query.finish(&completion(2, RowsEnd::Stopped), ELAPSED));
        assert_eq!((&json["rowCount"], &json["truncated"]), (&json!(2), &json!(true)));
        let mut dml = JsonResult::new(Some(2), 1_000, AccessMode::ReadWrite);
        assert_eq!(write_rows(&mut dml, 9), 9);
        let json = parse(dml.finish(&completion(9, RowsEnd::All), ELAPSED));
        assert_eq!(json["rows"].as_array().unwrap().len(), 2);
        assert_eq!((&json["rowCount"], &json["truncated"]), (&json!(9), &json!(true)));
    }

    #[test]
    fn a_result_above_the_size_limit_stops_a_query() {
        let mut result = JsonResult::new(None, 100, AccessMode::ReadOnly);
        assert!(write_rows(&mut result, 99) < 99);
        assert_eq!(result.extent(), Extent::TooLarge);
        let mut result = JsonResult::new(None, 100, AccessMode::ReadWrite);
        assert_eq!(write_rows(&mut result, 99), 99, "a statement that writes is not stopped");
        assert_eq!(result.extent(), Extent::TooLarge);
    }

    #[tokio::test]
    async fn a_stream_ends_with_a_summary_and_waits_for_its_reader() {
        let TestStream { mut stream, mut receiver, mut starts, .. } = stream(StreamFormat::NdJson);
        write_rows(&mut stream, 2);
        assert_eq!(starts.try_recv(), Ok(Ok(())));
        assert!(poll_ready(&mut stream).is_ready(), "the channel has room for a chunk");
        assert!(stream.row(&mut [Cell::Text("3"), Cell::Null].into_iter()).is_continue());
        assert!(poll_ready(&mut stream).is_pending(), "the reader has not taken the first chunk");
        let mut text = receiver.recv().await.unwrap().to_vec();
        assert!(poll_ready(&mut stream).is_ready());
        let completion = completion(3, RowsEnd::All);
        let reader = async {
            while let Some(chunk) = receiver.recv().await {
                text.extend_from_slice(&chunk);
            }
            text
        };
        let ((), text) = tokio::join!(stream.finish(Ok((&completion, ELAPSED))), reader);
        let lines: Vec<Value> = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| parse(line.to_vec()))
            .collect();
        assert_eq!(lines[1..4], [json!([1, "x"]), json!([2, "x"]), json!([3, null])]);
        assert_eq!(lines[4], json!({"rowCount": 3, "command": "SELECT", "elapsedUs": 7}));
        assert_eq!(lines.len(), 5);
    }

    #[tokio::test]
    async fn an_error_before_the_first_line_takes_the_place_of_the_response() {
        for format in [StreamFormat::NdJson, StreamFormat::Csv] {
            let TestStream { stream, mut receiver, starts, .. } = stream(format);
            stream.finish(Err(SqlError::Timeout)).await;
            assert_eq!(starts.await, Ok(Err(SqlError::Timeout)));
            assert_eq!(receiver.recv().await, None);
        }
    }

    #[tokio::test]
    async fn a_stream_without_a_result_set_counts_its_rows() {
        let TestStream { stream, mut receiver, .. } = stream(StreamFormat::NdJson);
        stream.finish(Ok((&completion(3, RowsEnd::All), ELAPSED))).await;
        let summary = parse(receiver.recv().await.unwrap().to_vec());
        assert_eq!(summary["rowCount"], 3);
    }

    #[tokio::test]
    async fn a_later_error_is_the_last_line() {
        let TestStream { mut stream, mut receiver, mut completed, .. } = stream(StreamFormat::NdJson);
        write_rows(&mut stream, 1);
        stream.finish(Err(SqlError::Timeout)).await;
        assert_eq!(completed.try_recv(), Ok(()));
        let text = String::from_utf8(receiver.recv().await.unwrap().to_vec()).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], "57014");
    }

    #[tokio::test]
    async fn a_stream_stops_once_its_reader_is_gone() {
        let TestStream { mut stream, receiver, .. } = stream(StreamFormat::NdJson);
        write_rows(&mut stream, 1);
        drop(receiver);
        assert_eq!(poll_ready(&mut stream), Poll::Ready(ControlFlow::Break(())));
    }

    #[tokio::test]
    async fn csv_has_a_line_per_row_and_an_error_leaves_it_incomplete() {
        let end = completion(2, RowsEnd::All);
        for (result, is_complete) in [(Ok((&end, ELAPSED)), true), (Err(SqlError::Timeout), false)] {
            let TestStream { mut stream, mut receiver, mut completed, mut starts } =
                stream(StreamFormat::Csv);
            stream.columns(&columns());
            assert!(starts.try_recv().is_err(), "an error before the first row is a response of its own");
            assert!(stream.row(&mut [Cell::Text("1"), Cell::Null].into_iter()).is_continue());
            assert_eq!(starts.try_recv(), Ok(Ok(())));
            assert!(poll_ready(&mut stream).is_ready());
            assert_eq!(receiver.recv().await.unwrap(), "\"a\"\"\",b\r\n1,\r\n");
            assert!(stream.row(&mut [Cell::Text("2"), Cell::Text("")].into_iter()).is_continue());
            stream.finish(result).await;
            let rest = receiver.recv().await;
            assert_eq!(rest.is_some_and(|rest| rest == "2,\"\"\r\n"), is_complete);
            assert_eq!(completed.try_recv().is_ok(), is_complete);
        }
    }

    /// A stream and the ends that its response reads from.
    struct TestStream {
        stream: LineStream,
        receiver: mpsc::Receiver<Bytes>,
        completed: oneshot::Receiver<()>,
        starts: oneshot::Receiver<Result<(), SqlError>>,
    }

    fn stream(format: StreamFormat) -> TestStream {
        let (chunks, receiver) = mpsc::channel(1);
        let (completed_sender, completed) = oneshot::channel();
        let (started, starts) = oneshot::channel();
        let sender = StreamSender { chunks, completed: completed_sender, started };
        let stream = LineStream::new(format, None, AccessMode::ReadOnly, sender);
        TestStream { stream, receiver, completed, starts }
    }

    fn poll_ready(stream: &mut LineStream) -> Poll<ControlFlow<()>> {
        stream.poll_ready(&mut Context::from_waker(core::task::Waker::noop()))
    }
}
