//! Lost connections and restarts of the server.

use evenkeel_postgres::{ConnectConfig, ConnectError, DiscardReason, PgError, Pool, PoolConfig, Statement};
use evenkeel_test_postgres::TestServer;

use crate::fixture::{ALICE, BOB, Fixture, Rows, execute, failure, session, value};

#[tokio::test]
async fn after_a_restart_idle_connections_are_replaced_and_statements_in_flight_are_lost() {
    let mut server = TestServer::start().unwrap();
    let pool = Pool::new(PoolConfig::new(ConnectConfig::parse(&server.url("postgres")).unwrap()));
    let mut idle = pool.get(&session(ALICE)).await.unwrap();
    execute(&mut idle, "SELECT 1").await;
    let mut busy = pool.get(&session(BOB)).await.unwrap();
    let mut rows = Rows::default();
    let statement = Statement::new("SELECT pg_sleep(600)", &[]);
    let running = async { busy.run(&statement, &mut rows).await };
    let restarting = async {
        drop(idle);
        tokio::task::spawn_blocking(move || {
            server.restart().unwrap();
            server
        })
        .await
        .unwrap()
    };
    let (result, mut server) = tokio::join!(running, restarting);
    let error = result.unwrap_err();
    assert!(matches!(error, PgError::ConnectionLost { .. }), "{error:?}");
    assert_eq!(error.sqlstate(), "08006");
    assert!(error.is_node_fault());
    assert!(error.to_string().contains("terminating connection"), "{error}");
    drop(busy);
    let mut connection = pool.get(&session(ALICE)).await.unwrap();
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
    let counts = pool.counts();
    assert_eq!(counts.discarded(DiscardReason::Stale) + counts.discarded(DiscardReason::Lost), 2);
    assert_eq!(counts.discarded(DiscardReason::Lost), 1);
    drop(connection);

    server.stop().unwrap();
    let error = pool.get(&session(ALICE)).await.unwrap_err();
    assert!(matches!(error, PgError::Connect(ConnectError::Unreachable { .. })), "{error:?}");
    assert!(error.is_node_fault());
    assert_eq!(pool.gauges().open, 0);
}

#[tokio::test]
async fn a_terminated_connection_is_lost_and_replaced() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let error = failure(&mut connection, "SELECT pg_terminate_backend(pg_backend_pid())").await;
    assert!(matches!(error, PgError::ConnectionLost { .. }), "{error:?}");
    assert!(error.to_string().contains("57P01"), "{error}");
    let again = failure(&mut connection, "SELECT 1").await;
    assert!(matches!(again, PgError::ConnectionLost { .. }), "{again:?}");
    assert!(connection.recover().await.is_err());
    drop(connection);
    assert_eq!(fixture.pool.gauges().open, 0);
    let mut connection = fixture.get(ALICE).await;
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_is_not_lent() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let process = value(&mut connection, "SELECT pg_backend_pid()").await;
    drop(connection);
    fixture.psql(&format!("SELECT pg_terminate_backend({process}, 10000)"));
    // The end of the connection reaches the reactor with its next events.
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let mut connection = fixture.get(ALICE).await;
    assert_ne!(value(&mut connection, "SELECT pg_backend_pid()").await, process);
    assert_eq!(fixture.pool.counts().discarded(DiscardReason::Stale), 1);
}

#[tokio::test]
async fn a_server_with_too_many_connections_is_at_fault() {
    let server = TestServer::options()
        .setting("max_connections", "4")
        .setting("superuser_reserved_connections", "0")
        .setting("max_wal_senders", "0")
        .start()
        .unwrap();
    let pool = Pool::new(PoolConfig::new(ConnectConfig::parse(&server.url("postgres")).unwrap()));
    let mut lent = Vec::new();
    let error = loop {
        match pool.get(&session(ALICE)).await {
            Ok(connection) => lent.push(connection),
            Err(error) => break error,
        }
    };
    assert_eq!(lent.len(), 4);
    assert!(matches!(error, PgError::Connect(ConnectError::Rejected(_))), "{error:?}");
    assert_eq!(error.sqlstate(), "53300");
    assert!(error.is_node_fault());
    assert_eq!(pool.gauges().open, 4);
}
