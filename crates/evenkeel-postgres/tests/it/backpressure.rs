//! A slow sink slows the server down instead of filling memory.

use std::ops::ControlFlow;
use std::task::{Context, Poll};

use evenkeel_postgres::{ColumnDescription, RowSink, RowText, Statement};

use crate::fixture::{ALICE, Fixture, value};

/// Counts rows; wants to be asked several times before it takes more.
#[derive(Default)]
struct SlowSink {
    rows: usize,
    bytes_since_ready: usize,
    bytes_since_ready_max: usize,
    polls: usize,
    stop_at: Option<usize>,
}

impl RowSink for SlowSink {
    fn columns(&mut self, _columns: &[ColumnDescription]) {}

    fn row(&mut self, row: &RowText<'_>) -> ControlFlow<()> {
        self.rows += 1;
        self.bytes_since_ready += row.byte_len();
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        self.bytes_since_ready_max = self.bytes_since_ready_max.max(self.bytes_since_ready);
        self.bytes_since_ready = 0;
        self.polls += 1;
        if self.stop_at.is_some_and(|rows| rows <= self.rows) {
            return Poll::Ready(ControlFlow::Break(()));
        }
        if !self.polls.is_multiple_of(3) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(ControlFlow::Continue(()))
    }
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn a_result_of_a_million_rows_needs_little_memory() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    let sql = "SELECT n, repeat('x', 100) FROM generate_series(1, 1000000) AS n";
    let mut sink = SlowSink::default();
    value(&mut connection, "SELECT 1").await;
    let before = resident_bytes();
    let completion = connection.run(&Statement::new(sql, &[]), &mut sink).await.unwrap();
    let growth = resident_bytes().saturating_sub(before);
    assert_eq!(completion.rows_affected, Some(1_000_000));
    assert_eq!(sink.rows, 1_000_000);
    assert!(sink.bytes_since_ready_max <= 64 * 1024, "{} bytes at once", sink.bytes_since_ready_max);
    assert!(growth < 16 << 20, "{growth} bytes more");
}

#[tokio::test]
async fn a_sink_that_is_not_ready_any_more_stops_the_statement() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let mut sink = SlowSink { stop_at: Some(1000), ..SlowSink::default() };
    let statement = Statement::new("SELECT generate_series(1, 100000000)", &[]);
    let completion = connection.run(&statement, &mut sink).await.unwrap();
    assert!(completion.stopped);
    assert!(1000 <= sink.rows && sink.rows < 100_000, "{} rows", sink.rows);
    connection.recover().await.unwrap();
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
    assert_eq!(fixture.pool.counts().cancels_sent, 1);
}
