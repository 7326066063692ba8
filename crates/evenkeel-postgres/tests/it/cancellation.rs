//! Statements that are dropped or stopped half-way: they end on the server, and no other statement is hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_postgres::{
    DiscardReason, Param, PgError, Pool, PoolGauges, PooledConnection, Release, Statement, TransactionStatus,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fixture::{ALICE, BOB, Fixture, Rows, execute, failure, query_with, session, value};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Seeds a test from the environment or the clock, and prints the seed.
fn random() -> Random {
    let clock = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("EVENKEEL_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(clock);
    println!("EVENKEEL_TEST_SEED={seed}");
    Random(seed)
}

/// Runs a statement in a task that owns the connection.
fn spawn(mut connection: PooledConnection, sql: &'static str) -> JoinHandle<()> {
    tokio::spawn(async move {
        let result = connection.run(&Statement::new(sql, &[]), &mut Rows::default()).await;
        panic!("{sql} ended: {result:?}");
    })
}

/// Waits until so many statements with this text run in the fixture's database.
async fn wait_for_running(fixture: &Fixture, sql: &str, count: usize) {
    let name = fixture.database.name();
    let counting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND state = 'active' AND query = '{sql}'"
    );
    let reached = async {
        while fixture.psql(&counting) != count.to_string() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(30), reached).await.unwrap();
}

/// Reports releases of a connection.
fn releases(connection: &mut PooledConnection) -> mpsc::UnboundedReceiver<Release> {
    let (sender, receiver) = mpsc::unbounded_channel();
    connection.on_release(move |release| sender.send(release).unwrap());
    receiver
}

#[tokio::test]
async fn a_dropped_statement_is_cancelled_and_the_slot_is_released_once_afterwards() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let process = value(&mut connection, "SELECT pg_backend_pid()").await;
    let mut released = releases(&mut connection);
    let statement = spawn(connection, "SELECT pg_sleep(600)");
    wait_for_running(&fixture, "SELECT pg_sleep(600)", 1).await;
    assert_eq!(fixture.pool.gauges(), PoolGauges { open: 1, idle: 0, in_use: 1, waiting: 0 });
    assert!(released.try_recv().is_err());
    statement.abort();
    assert_eq!(released.recv().await, Some(Release::Idle));
    assert_eq!(released.recv().await, None, "the callback is dropped after its call");
    wait_for_running(&fixture, "SELECT pg_sleep(600)", 0).await;
    assert_eq!(fixture.pool.gauges(), PoolGauges { open: 1, idle: 1, in_use: 0, waiting: 0 });
    assert_eq!(fixture.pool.counts().cancels_sent, 1);
    let mut connection = fixture.get(BOB).await;
    assert_eq!(value(&mut connection, "SELECT pg_backend_pid()").await, process);
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    let mut connection = fixture.get(ALICE).await;
    connection.simple("BEGIN").await.unwrap();
    execute(&mut connection, "INSERT INTO t VALUES (1)").await;
    let mut released = releases(&mut connection);
    drop(connection);
    assert_eq!(released.recv().await, Some(Release::Idle));
    assert_eq!(fixture.psql("SELECT count(*) FROM t"), "0");
    let mut connection = fixture.get(ALICE).await;
    assert_eq!(connection.transaction_status(), TransactionStatus::Idle);
    connection.simple("BEGIN").await.unwrap();
    execute(&mut connection, "INSERT INTO t VALUES (1)").await;
    let mut released = releases(&mut connection);
    let statement = spawn(connection, "SELECT pg_sleep(600)");
    wait_for_running(&fixture, "SELECT pg_sleep(600)", 1).await;
    statement.abort();
    assert_eq!(released.recv().await, Some(Release::Idle));
    assert_eq!(fixture.psql("SELECT count(*) FROM t"), "0");
    assert_eq!(fixture.pool.counts().connections_opened, 1);
}

#[tokio::test]
async fn recover_ends_a_dropped_statement_and_keeps_the_transaction_open_but_failed() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    connection.simple("BEGIN").await.unwrap();
    let statement = Statement::new("SELECT pg_sleep(600)", &[]);
    timeout(Duration::from_millis(20), connection.run(&statement, &mut Rows::default())).await.unwrap_err();
    let error = failure(&mut connection, "SELECT 1").await;
    assert!(matches!(error, PgError::Stopped), "{error:?}");
    connection.recover().await.unwrap();
    assert_eq!(connection.transaction_status(), TransactionStatus::Failed);
    connection.simple("ROLLBACK").await.unwrap();
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
    connection.recover().await.unwrap();
    assert_eq!(value(&mut connection, "SELECT 2").await, "2");
}

#[tokio::test]
async fn a_statement_that_the_sink_stops_is_cancelled_by_the_release() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let mut released = releases(&mut connection);
    let statement = Statement::new("SELECT generate_series(1, 1000000000)", &[]);
    let mut rows = Rows { stop_after: Some(5), ..Rows::default() };
    let completion = connection.run(&statement, &mut rows).await.unwrap();
    assert!(completion.stopped);
    assert_eq!(rows.rows.len(), 5);
    drop(connection);
    assert_eq!(released.recv().await, Some(Release::Idle));
    assert_eq!(fixture.pool.counts().cancels_sent, 1);
}

#[tokio::test]
async fn a_statement_being_prepared_when_it_is_dropped_is_closed() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    for n in 0..5 {
        // Planning does not begin before the parameters are bound, so the statement is prepared at once and then runs.
        let sql = format!("SELECT pg_sleep(600), {n}");
        let statement = Statement::new(&sql, &[]);
        timeout(Duration::from_millis(20), connection.run(&statement, &mut Rows::default()))
            .await
            .unwrap_err();
        connection.recover().await.unwrap();
    }
    let names = "SELECT count(*) FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared%'";
    let cached = value(&mut connection, names).await.parse::<usize>().unwrap();
    assert!(cached <= 5, "{cached}");
    assert_eq!(fixture.pool.counts().statement_misses, 6);
}

#[tokio::test]
async fn a_copy_that_is_dropped_leaves_a_usable_connection() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    let mut random = random();
    for _ in 0..50 {
        let mut connection = fixture.get(ALICE).await;
        let sql = if random.below(2) == 0 {
            "COPY t FROM STDIN"
        } else {
            "COPY (SELECT generate_series(1, 1000000)) TO STDOUT"
        };
        let statement = Statement::new(sql, &[]);
        let micros = random.below(2000);
        drop_after(connection.run(&statement, &mut Rows::default()), micros).await;
        let mut released = releases(&mut connection);
        drop(connection);
        assert_eq!(released.recv().await, Some(Release::Idle));
        let mut connection = fixture.get(ALICE).await;
        for n in 0..3 {
            assert_eq!(value(&mut connection, &format!("SELECT {n}")).await, n.to_string());
        }
    }
    assert_eq!(fixture.pool.counts().connections_opened, 1);
}

/// Polls a future for about so many microseconds, then drops it; returns its output if it completed.
async fn drop_after<T>(future: impl Future<Output = T>, micros: u64) -> Option<T> {
    // Tokio's timers count milliseconds.
    let end = std::time::Instant::now() + Duration::from_micros(micros);
    tokio::select! {
        biased;
        output = future => Some(output),
        () = async { while std::time::Instant::now() < end { tokio::task::yield_now().await } } => None,
    }
}

/// Drops a short statement at a random moment, many times, and runs another on the same connection at once.
///
/// On a busy machine a cancel request takes longer. The moment of the drop and the statement's duration follow, so that
/// the cancel request and the statement win equally often.
#[tokio::test]
async fn a_cancel_request_never_hits_the_next_statement() {
    let races =
        std::env::var("EVENKEEL_CANCEL_RACES").ok().and_then(|races| races.parse().ok()).unwrap_or(300);
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE finished (n int)");
    let mut random = random();
    let mut moment_mean = 2000;
    let mut duration = 4000;
    let mut cancelled = 0;
    let mut finished = 0;
    for race in 0..races {
        let mut connection = fixture.get(random.below(2)).await;
        let sql = "INSERT INTO finished SELECT $1::int FROM pg_sleep($2::int / 1e6)";
        let params = [Param::text(race.to_string()), Param::text(duration.to_string())];
        let statement = Statement::new(sql, &params);
        let mut rows = Rows::default();
        let moment = random.below(2 * moment_mean);
        let is_dropped = drop_after(connection.run(&statement, &mut rows), moment).await.is_none();
        if random.below(2) == 0 {
            connection.recover().await.unwrap();
        } else {
            drop(connection);
            connection = fixture.get(random.below(2)).await;
        }
        let next = "SELECT count(*), pg_sleep(0.001) FROM finished WHERE n = $1::int";
        let found = query_with(&mut connection, next, &params[..1]).await.unwrap()[0][0] == "1";
        match (is_dropped, found) {
            (true, true) => finished += 1,
            (true, false) => cancelled += 1,
            (false, found) => assert!(found, "race {race} completed without effect"),
        }
        moment_mean = if found { moment_mean * 10 / 11 } else { moment_mean * 11 / 10 + 1 }.min(duration);
        if found && moment_mean < 100 {
            duration = duration * 11 / 10;
            moment_mean = 100;
        }
    }
    let counts = fixture.pool.counts();
    println!("{races} races: {cancelled} cancelled, {finished} finished after the drop");
    println!("statements of {duration} µs, dropped after {moment_mean} µs; {counts:?}");
    assert!(races <= cancelled * 10, "{cancelled} of {races} were cancelled");
    assert!(races <= finished * 10, "{finished} of {races} finished although they were dropped");
    assert_eq!(counts.discarded(DiscardReason::Recovery), 0);
    assert_eq!(counts.connections_opened, 1);
}

/// Checks the gauges until the task ends.
async fn watch_gauges(pool: Arc<Pool>, connections_max: usize) -> usize {
    let mut checks = 0;
    loop {
        let PoolGauges { open, idle, in_use, waiting } = pool.gauges();
        assert_eq!(open, idle + in_use);
        assert!(open <= connections_max, "{open} open");
        if waiting > 0 {
            assert_eq!((idle, in_use), (0, connections_max), "callers wait although connections are free");
        }
        checks += 1;
        if in_use == 0 && waiting == 0 && Arc::strong_count(&pool) == 2 {
            return checks;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gauges_are_exact_while_200_clients_disconnect_at_random_points() {
    let connections_max = 8;
    let fixture = Fixture::with(|config| config.connections_max = connections_max);
    let mut random = random();
    // Opening a connection takes longer than the clients stay.
    let mut warm = Vec::new();
    for _ in 0..connections_max {
        warm.push(fixture.get(ALICE).await);
    }
    drop(warm);
    let released = Arc::new(AtomicUsize::new(0));
    let lent = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for client in 0..200_u64 {
        let pool = fixture.pool.clone();
        let micros = random.below(200_000);
        let millis = random.below(10);
        let released = released.clone();
        let lent = lent.clone();
        clients.push(tokio::spawn(async move {
            let work = async {
                let mut connection = pool.get(&session(client % 7)).await.unwrap();
                lent.fetch_add(1, Ordering::SeqCst);
                connection.on_release(move |_| {
                    released.fetch_add(1, Ordering::SeqCst);
                });
                if client % 3 == 0 {
                    connection.simple("BEGIN").await.unwrap();
                }
                let sql = format!("SELECT pg_sleep(0.00{millis})");
                connection.run(&Statement::new(&sql, &[]), &mut Rows::default()).await.unwrap();
            };
            let _ = timeout(Duration::from_micros(micros), work).await;
        }));
    }
    let watching = tokio::spawn(watch_gauges(fixture.pool.clone(), connections_max));
    for client in clients {
        client.await.unwrap();
    }
    let checks = timeout(Duration::from_secs(60), watching).await.unwrap().unwrap();
    assert!(100 < checks);
    assert_eq!(released.load(Ordering::SeqCst), lent.load(Ordering::SeqCst));
    assert!(connections_max < lent.load(Ordering::SeqCst), "no connection was lent twice");
    let name = fixture.database.name();
    let others = format!(
        "SELECT count(*), count(*) FILTER (WHERE state = 'idle') FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    );
    let open = fixture.pool.gauges().open;
    assert_eq!(fixture.psql(&others), format!("{open}|{open}"));
}

#[tokio::test]
async fn a_dropped_recovery_is_taken_up_again() {
    let fixture = Fixture::with_one_connection();
    let mut random = random();
    for round in 0..20 {
        let mut connection = fixture.get(ALICE).await;
        let statement = Statement::new("SELECT pg_sleep(600)", &[]);
        let mut rows = Rows::default();
        timeout(Duration::from_millis(5), connection.run(&statement, &mut rows)).await.unwrap_err();
        for _ in 0..random.below(5) {
            let micros = random.below(500);
            if drop_after(connection.recover(), micros).await.is_none() {
                let error = failure(&mut connection, "SELECT 1").await;
                assert!(matches!(error, PgError::Stopped), "{error:?}");
            }
        }
        if round % 2 == 0 {
            connection.recover().await.unwrap();
        } else {
            drop(connection);
            connection = fixture.get(BOB).await;
        }
        assert_eq!(value(&mut connection, "SELECT 1").await, "1");
    }
    assert_eq!(fixture.pool.counts().connections_opened, 1);
    assert_eq!(fixture.pool.counts().cancels_sent, 20);
}
