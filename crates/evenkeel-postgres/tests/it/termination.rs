//! Statements that ignore cancel requests: their server processes are terminated before the slot is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_postgres::{DiscardReason, PgError, PoolGauges, PooledConnection, Release, Statement};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::fixture::{ALICE, BOB, Fixture, Rows, execute, value};

const STUBBORN: &str = "DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(1); EXCEPTION WHEN query_canceled THEN NULL; END; \
                        END LOOP; END $$";
const CONNECTIONS_MAX: usize = 2;

/// A connection whose statement ignores cancel requests and a closed socket.
struct Stubborn {
    connection: PooledConnection,
    process: String,
    released: mpsc::UnboundedReceiver<Release>,
}

/// Starts the statement and drops it half-way.
async fn start_stubborn(fixture: &Fixture) -> Stubborn {
    let mut connection = fixture.get(ALICE).await;
    let (sender, released) = mpsc::unbounded_channel();
    connection.on_release(move |release| sender.send(release).unwrap());
    execute(&mut connection, "SET client_connection_check_interval = 0").await;
    let process = value(&mut connection, "SELECT pg_backend_pid()").await;
    let running =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process} AND query LIKE 'DO %'");
    let statement = Statement::new(STUBBORN, &[]);
    let mut rows = Rows::default();
    tokio::select! {
        result = connection.run(&statement, &mut rows) => panic!("{result:?}"),
        () = async {
            while fixture.psql(&running) != "1" {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    Stubborn { connection, process, released }
}

/// Returns the largest number of the pool's processes that were seen until `done` is set.
fn processes_max(fixture: &Fixture, done: &AtomicBool) -> usize {
    // The connections of psql itself have another name.
    let name = fixture.database.name();
    let counting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND application_name = 'evenkeel'"
    );
    let mut max = 0;
    while !done.load(Ordering::SeqCst) {
        max = max.max(fixture.psql(&counting).parse().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    max
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_ignores_its_cancel_is_terminated_before_the_slot_is_released() {
    let fixture = Arc::new(Fixture::with(|config| config.connections_max = CONNECTIONS_MAX));
    let dropped = start_stubborn(&fixture).await;
    let recovered = start_stubborn(&fixture).await;
    let done = Arc::new(AtomicBool::new(false));
    let watching = {
        let fixture = fixture.clone();
        let done = done.clone();
        tokio::task::spawn_blocking(move || processes_max(&fixture, &done))
    };

    drop(dropped.connection);
    let mut connection = recovered.connection;
    let error = connection.recover().await.unwrap_err();
    assert!(matches!(error, PgError::ConnectionLost { .. }), "{error:?}");
    drop(connection);
    for (process, mut released) in
        [(dropped.process, dropped.released), (recovered.process, recovered.released)]
    {
        let release = timeout(Duration::from_secs(60), released.recv()).await.unwrap();
        assert_eq!(release, Some(Release::Discarded));
        assert_eq!(released.recv().await, None, "the callback is called once");
        let running = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}");
        assert_eq!(fixture.psql(&running), "0");
    }

    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut connection = fixture.get(BOB).await;
        assert_eq!(value(&mut connection, "SELECT 1").await, "1");
        connections.push(connection);
    }
    done.store(true, Ordering::SeqCst);
    let max = watching.await.unwrap();
    assert!((CONNECTIONS_MAX..=CONNECTIONS_MAX + 1).contains(&max), "{max} processes");
    let counts = fixture.pool.counts();
    assert_eq!(counts.processes_terminated, 2);
    assert_eq!(counts.discarded(DiscardReason::Recovery), 2);
    assert_eq!(counts.discarded(DiscardReason::StillRunning), 0);
    assert_eq!(fixture.pool.gauges(), PoolGauges { open: 2, idle: 0, in_use: 2, waiting: 0 });
}
