//! Limits and order of the pool.

use std::time::Duration;

use evenkeel_postgres::{DiscardReason, PgError, PoolGauges, Release};
use tokio::time::timeout;

use crate::fixture::{ALICE, BOB, Fixture, execute, session, value};

#[tokio::test]
async fn callers_wait_in_order_and_at_most_connections_max_are_open() {
    let fixture = Fixture::with_one_connection();
    let connection = fixture.get(ALICE).await;
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    let mut callers = Vec::new();
    for caller in 0..5_usize {
        let pool = fixture.pool.clone();
        let sender = sender.clone();
        callers.push(tokio::spawn(async move {
            let _connection = pool.get(&session(ALICE)).await.unwrap();
            sender.send(caller).unwrap();
        }));
        while fixture.pool.gauges().waiting != caller + 1 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(fixture.pool.gauges(), PoolGauges { open: 1, idle: 0, in_use: 1, waiting: 5 });
    // A caller that gives up leaves its place.
    callers[2].abort();
    while fixture.pool.gauges().waiting != 4 {
        tokio::task::yield_now().await;
    }
    drop(connection);
    for expected in [0, 1, 3, 4] {
        assert_eq!(served.recv().await, Some(expected));
    }
    for caller in callers {
        let _ = caller.await;
    }
    assert_eq!(fixture.pool.gauges(), PoolGauges { open: 1, idle: 1, in_use: 0, waiting: 0 });
}

#[tokio::test]
async fn a_caller_that_waits_too_long_gets_an_error() {
    let fixture = Fixture::with(|config| {
        config.connections_max = 1;
        config.acquire_timeout = Duration::from_millis(20);
    });
    let _connection = fixture.get(ALICE).await;
    let error = fixture.pool.get(&session(BOB)).await.unwrap_err();
    assert!(
        matches!(error, PgError::PoolTimeout { waited } if waited == Duration::from_millis(20)),
        "{error:?}"
    );
    assert_eq!(error.sqlstate(), "53300");
    assert_eq!(fixture.pool.gauges().waiting, 0);
}

#[tokio::test]
async fn at_most_waiting_max_callers_wait() {
    let fixture = Fixture::with(|config| {
        config.connections_max = 1;
        config.waiting_max = 1;
    });
    let _connection = fixture.get(ALICE).await;
    let session = session(BOB);
    let mut first = Box::pin(fixture.pool.get(&session));
    tokio::select! {
        biased;
        _ = &mut first => panic!("a second connection was lent"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(fixture.pool.gauges().waiting, 1);
    let error = fixture.pool.get(&session).await.unwrap_err();
    assert!(matches!(error, PgError::PoolTimeout { .. }), "{error:?}");
}

#[tokio::test]
async fn a_connection_of_the_same_owner_is_preferred() {
    let fixture = Fixture::new();
    let mut alice = fixture.get(ALICE).await;
    let mut bob = fixture.get(BOB).await;
    let process = value(&mut alice, "SELECT pg_backend_pid()").await;
    execute(&mut bob, "SELECT 1").await;
    drop(alice);
    drop(bob);
    let mut alice = fixture.get(ALICE).await;
    assert_eq!(value(&mut alice, "SELECT pg_backend_pid()").await, process);
    assert_eq!(fixture.pool.counts().resets, 0);
}

#[tokio::test]
async fn idle_connections_expire() {
    let fixture = Fixture::with(|config| config.idle_max = Duration::from_millis(50));
    drop(fixture.get(ALICE).await);
    let expired = async {
        while fixture.pool.gauges().open != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), expired).await.unwrap();
    assert_eq!(fixture.pool.counts().discarded(DiscardReason::Expired), 1);
}

#[tokio::test]
async fn a_closed_pool_rejects_callers_and_closes_connections() {
    let fixture = Fixture::with(|config| config.connections_max = 2);
    drop(fixture.get(ALICE).await);
    let mut connection = fixture.get(ALICE).await;
    let second = fixture.get(ALICE).await;
    let waiting = tokio::spawn({
        let pool = fixture.pool.clone();
        async move { pool.get(&session(BOB)).await.map(|_| ()) }
    });
    while fixture.pool.gauges().waiting != 1 {
        tokio::task::yield_now().await;
    }
    drop(second);
    waiting.await.unwrap().unwrap();
    fixture.pool.close();
    assert_eq!(fixture.pool.gauges(), PoolGauges { open: 1, idle: 0, in_use: 1, waiting: 0 });
    let error = fixture.pool.get(&session(BOB)).await.unwrap_err();
    assert!(matches!(error, PgError::Closed), "{error:?}");
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
    let (sender, released) = tokio::sync::oneshot::channel();
    connection.on_release(move |release| sender.send(release).unwrap());
    drop(connection);
    assert_eq!(released.await, Ok(Release::Discarded));
    assert_eq!(fixture.pool.gauges(), PoolGauges::default());
    assert_eq!(fixture.pool.counts().discarded(DiscardReason::Closed), 2);
}

#[tokio::test]
async fn a_pool_without_connections_tells_waiting_callers_that_it_is_closed() {
    let fixture = Fixture::with_one_connection();
    let _connection = fixture.get(ALICE).await;
    let waiting = tokio::spawn({
        let pool = fixture.pool.clone();
        async move { pool.get(&session(BOB)).await.map(|_| ()) }
    });
    while fixture.pool.gauges().waiting != 1 {
        tokio::task::yield_now().await;
    }
    fixture.pool.close();
    assert!(matches!(waiting.await.unwrap(), Err(PgError::Closed)));
}

#[tokio::test]
async fn every_callback_of_a_connection_is_called() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    let (sender, mut released) = tokio::sync::mpsc::unbounded_channel();
    for name in ["first", "second"] {
        let sender = sender.clone();
        connection.on_release(move |release| sender.send((name, release)).unwrap());
    }
    drop(connection);
    assert_eq!(released.recv().await, Some(("first", Release::Idle)));
    assert_eq!(released.recv().await, Some(("second", Release::Idle)));
}
