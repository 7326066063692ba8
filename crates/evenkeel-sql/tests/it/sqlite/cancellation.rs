//! Cancelled statements, and rows that are not taken.

use core::ops::ControlFlow;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_sql::datasource::{AccessMode, BoxFuture, Cell, Column, Datasource, RowSink, TransactionStatus};
use evenkeel_sql::error::DatabaseError;
use tokio::sync::Semaphore;

use super::harness::{
    ALICE, BOB, CollectSink, ENDLESS, ENDLESS_ROWS, TestConnection, TestDatabase, Value, lease, poll_once,
    statement,
};

#[tokio::test]
async fn dropping_a_connection_ends_its_statement() {
    let database = TestDatabase::with(|options| options.readers_max = 1);
    for sql in [ENDLESS, ENDLESS_ROWS] {
        let mut reader = database.reader(ALICE).await;
        reader.start_and_drop(sql);
        reader.release().await;
        assert_eq!(database.datasource.gauges().in_use, 0);
        assert_eq!(database.reader(BOB).await.value("SELECT 1").await, Value::Integer(1));
    }
    assert_eq!(database.datasource.gauges().open, 2, "no connection was discarded");
}

#[tokio::test]
async fn a_connection_recovers_from_a_dropped_statement() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    for sql in [ENDLESS, ENDLESS_ROWS] {
        reader.start_and_drop(sql);
        reader.connection.recover().await.unwrap();
        assert_eq!(reader.value("SELECT 1").await, Value::Integer(1));
        reader.start_and_drop(sql);
        // A statement without `recover` before it waits for the dropped one.
        assert_eq!(reader.value("SELECT 2").await, Value::Integer(2));
    }
}

#[tokio::test]
async fn a_statement_ends_at_its_time_limit() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let mut limited = statement(ENDLESS, []);
    limited.time_max = Duration::from_millis(20);
    let result = reader.connection.run(&limited, &mut CollectSink::default()).await;
    assert_eq!(result.unwrap_err(), DatabaseError::Cancelled);
    assert_eq!(reader.value("SELECT 1").await, Value::Integer(1));
}

#[tokio::test]
async fn the_time_limit_includes_the_wait_for_a_sink() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let mut limited = statement(ENDLESS_ROWS, []);
    limited.time_max = Duration::from_millis(20);
    let gate = Arc::new(Semaphore::new(0));
    let mut sink = GatedSink::new(&gate);
    let run = reader.connection.run(&limited, &mut sink);
    let result = open_gate_after(Duration::from_millis(40), &gate, run).await;
    assert_eq!(result.unwrap_err(), DatabaseError::Cancelled);
}

#[tokio::test]
async fn a_cancelled_read_leaves_the_transaction_open() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a)"]).await;
    let mut writer = database.writer(ALICE).await;
    writer.begin(AccessMode::ReadWrite).await.unwrap();
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
    writer.start_and_drop(ENDLESS);
    writer.connection.recover().await.unwrap();
    assert_eq!(writer.status(), TransactionStatus::Open);
    writer.commit().await.unwrap();
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(1));
}

#[tokio::test]
async fn a_cancelled_write_has_no_effect_and_fails_its_transaction() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a)"]).await;
    let mut writer = database.writer(ALICE).await;
    let endless_insert = format!("INSERT INTO t {ENDLESS_ROWS}");
    drop_once_it_writes(&database, &mut writer, &endless_insert).await;
    writer.connection.recover().await.unwrap();
    assert_eq!(writer.status(), TransactionStatus::Idle);
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));

    writer.begin(AccessMode::ReadWrite).await.unwrap();
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
    drop_once_it_writes(&database, &mut writer, &endless_insert).await;
    writer.connection.recover().await.unwrap();
    assert_eq!(writer.status(), TransactionStatus::Failed);
    assert_eq!(writer.error("INSERT INTO t VALUES (2)").await.code, "25P02");
    writer.rollback().await.unwrap();
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));
}

/// Drops a statement after its changes have outgrown the page cache and reached the write-ahead log.
async fn drop_once_it_writes(database: &TestDatabase, writer: &mut TestConnection, sql: &str) {
    let log = database.path.with_file_name("test.db-wal");
    let before = log.metadata().unwrap().len();
    let statement = statement(sql, []);
    let mut sink = CollectSink::default();
    let mut run = writer.connection.run(&statement, &mut sink);
    while log.metadata().unwrap().len() <= before {
        assert!(poll_once(run.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
}

/// A statement that writes, and returns more rows than wait for a sink.
const INSERT_RETURNING: &str =
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
     INSERT INTO t SELECT i FROM n RETURNING a";

#[tokio::test]
async fn a_write_that_waits_for_a_sink_at_its_time_limit_has_no_effect() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a)"]).await;
    let mut writer = database.writer(ALICE).await;
    let mut limited = statement(INSERT_RETURNING, []);
    limited.time_max = Duration::from_millis(300);
    let gate = Arc::new(Semaphore::new(0));
    let mut sink = GatedSink::new(&gate);
    let run = writer.connection.run(&limited, &mut sink);
    let result = open_gate_after(Duration::from_millis(600), &gate, run).await;
    assert_eq!(result.unwrap_err(), DatabaseError::Cancelled);
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));
}

#[tokio::test]
async fn a_cancelled_write_whose_rows_wait_has_no_effect() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a)"]).await;
    let mut writer = database.writer(ALICE).await;
    let gate = Arc::new(Semaphore::new(0));
    let mut sink = GatedSink::new(&gate);
    let reached = Arc::clone(&sink.polls);
    let returning = statement(INSERT_RETURNING, []);
    let mut run = writer.connection.run(&returning, &mut sink);
    // All rows have been inserted once the first of them has arrived.
    while reached.load(Ordering::Relaxed) == 0 {
        assert!(poll_once(run.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(run);
    writer.connection.recover().await.unwrap();
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));
}

/// Drops statements at random moments; the statement after each must be unharmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_never_hits_the_next_statement() {
    const RACES: usize = 300;
    let database = TestDatabase::with(|options| options.readers_max = 1);
    let mut random = SplitMix(0x5eed);
    let mut finished = 0;
    let mut cancelled = 0;
    // Counts to about the number at which a statement and its cancel take the same time.
    let mut count_to = 20_000_u64;
    for race in 0..RACES {
        let mut reader = database.reader(ALICE).await;
        let counting = count_statement(count_to);
        let mut sink = CollectSink::default();
        {
            let counted = statement(&counting, []);
            let run = reader.connection.run(&counted, &mut sink);
            let pause = Duration::from_micros(random.below(2_000));
            tokio::select! {
                biased;
                result = run => { result.unwrap(); finished += 1; count_to += count_to / 8; }
                () = tokio::time::sleep(pause) => { cancelled += 1; count_to -= count_to / 8; }
            }
        }
        if random.below(2) == 0 {
            // The next statement of the same connection.
            assert_eq!(reader.value(&count_statement(1_000)).await, Value::Integer(1_000), "race {race}");
        }
        drop(reader);
        // The next user of the same thread.
        let mut next = database.reader(BOB).await;
        assert_eq!(next.value(&count_statement(1_000)).await, Value::Integer(1_000), "race {race}");
    }
    assert!(RACES / 10 <= finished, "{finished} finished, {cancelled} cancelled");
    assert!(RACES / 10 <= cancelled, "{finished} finished, {cancelled} cancelled");
}

fn count_statement(count: u64) -> String {
    format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT count(*) FROM n"
    )
}

/// 1 000 000 rows of 1 000 bytes do not pile up in memory while nobody takes them.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_sink_slows_the_statement_down() {
    const GROWTH_BYTES_MAX: u64 = 48 << 20;
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)";
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let mut other = database.reader(ALICE).await;
    let before = resident_bytes();
    let gate = Arc::new(Semaphore::new(0));
    let mut sink = GatedSink::new(&gate);
    let large = statement(&format!("{rows} SELECT i, zeroblob(1000) FROM n"), []);
    let mut run = reader.connection.run(&large, &mut sink);
    assert!(poll_once(run.as_mut()).is_pending());
    // The same work on another thread takes the time in which all rows could have been produced.
    let same_work = format!("{rows} SELECT count(DISTINCT i), sum(length(zeroblob(1000))) FROM n");
    other.run(&same_work).await.unwrap();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "grew by {grown} bytes");
    gate.close();
    let completion = run.await.unwrap();
    assert_eq!(completion.rows_affected, 1_000_000);
    assert_eq!(sink.rows, 1_000_000);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "grew by {grown} bytes");
}

#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_counted_while_clients_disconnect_at_random() {
    const CLIENTS: usize = 200;
    let database = Arc::new(TestDatabase::with(|options| options.readers_max = 4));
    database.setup(&["CREATE TABLE t (a)"]).await;
    let released = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for seed in 0..CLIENTS as u64 {
        let database = Arc::clone(&database);
        let released = Arc::clone(&released);
        clients.spawn(async move {
            let mut random = SplitMix(seed);
            let access = if random.below(3) == 0 { AccessMode::ReadWrite } else { AccessMode::ReadOnly };
            let count = move || {
                released.fetch_add(1, Ordering::Relaxed);
            };
            let session = async {
                let mut connection = database.datasource.connect(lease(seed, access, count)).await.unwrap();
                let sql = if access == AccessMode::ReadWrite { "INSERT INTO t VALUES (1)" } else { ENDLESS };
                let _ = connection.run(&statement(sql, []), &mut CollectSink::default()).await;
            };
            let pause = Duration::from_micros(random.below(3_000));
            let _ = tokio::time::timeout(pause, session).await;
            let gauges = database.datasource.gauges();
            assert_eq!(gauges.open, gauges.idle + gauges.in_use);
            assert!(gauges.open <= 5, "{gauges:?}");
        });
    }
    while let Some(joined) = clients.join_next().await {
        joined.unwrap();
    }
    // All connections can be lent again only if none was lost.
    let _writer = database.writer(ALICE).await;
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(database.reader(ALICE).await);
    }
    // A callback may run after the connection has been lent again.
    while released.load(Ordering::Relaxed) < CLIENTS {
        tokio::task::yield_now().await;
    }
    assert_eq!(released.load(Ordering::Relaxed), CLIENTS);
    let gauges = database.datasource.gauges();
    assert_eq!((gauges.open, gauges.idle, gauges.in_use, gauges.waiting), (5, 0, 5, 0));
}

/// Lets a statement's rows wait until its time limit has passed.
async fn open_gate_after<T>(pause: Duration, gate: &Semaphore, mut run: BoxFuture<'_, T>) -> T {
    tokio::select! {
        result = &mut run => result,
        () = tokio::time::sleep(pause) => {
            gate.close();
            run.await
        }
    }
}

/// Takes no row until the gate's semaphore is closed.
struct GatedSink {
    gate: Arc<Semaphore>,
    rows: usize,
    polls: Arc<AtomicUsize>,
}

impl GatedSink {
    fn new(gate: &Arc<Semaphore>) -> Self {
        Self { gate: Arc::clone(gate), rows: 0, polls: Arc::default() }
    }
}

impl RowSink for GatedSink {
    fn columns(&mut self, _: &[Column]) {}

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        self.rows += usize::from(0 < cells.count());
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if self.gate.is_closed() {
            return Poll::Ready(ControlFlow::Continue(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Random numbers that a seed repeats.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
