//! COPY and LISTEN are errors that leave a usable connection.

use evenkeel_postgres::{PgError, TransactionStatus};

use crate::fixture::{ALICE, Fixture, failure, value};

/// Runs an unsupported statement, checks the error, and checks that the connection still works.
async fn unsupported(fixture: &Fixture, sql: &str, expected: &str) {
    let mut connection = fixture.get(ALICE).await;
    let process = value(&mut connection, "SELECT pg_backend_pid()").await;
    let error = failure(&mut connection, sql).await;
    assert!(matches!(error, PgError::Unsupported { what } if what == expected), "{error:?}");
    assert_eq!(error.sqlstate(), "0A000");
    assert!(!error.is_node_fault());
    assert_eq!(connection.transaction_status(), TransactionStatus::Idle);
    for n in 0..3 {
        assert_eq!(value(&mut connection, &format!("SELECT {n}")).await, n.to_string());
    }
    assert_eq!(value(&mut connection, "SELECT pg_backend_pid()").await, process, "the connection is kept");
}

#[tokio::test]
async fn copy_in_is_an_error_that_leaves_a_usable_connection() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    unsupported(&fixture, "COPY t FROM STDIN", "COPY FROM STDIN").await;
    assert_eq!(fixture.psql("SELECT count(*) FROM t"), "0");
    assert_eq!(fixture.pool.counts().cancels_sent, 0);
}

#[tokio::test]
async fn a_short_and_a_long_copy_out_are_errors_that_leave_a_usable_connection() {
    let fixture = Fixture::with_one_connection();
    unsupported(&fixture, "COPY (SELECT 1) TO STDOUT", "COPY TO STDOUT").await;
    unsupported(&fixture, "COPY (SELECT generate_series(1, 100000000)) TO STDOUT", "COPY TO STDOUT").await;
}

#[tokio::test]
async fn listen_is_an_error_and_does_not_listen() {
    let fixture = Fixture::with_one_connection();
    unsupported(&fixture, "LISTEN news", "LISTEN").await;
    let mut connection = fixture.get(ALICE).await;
    assert_eq!(value(&mut connection, "SELECT count(*) FROM pg_listening_channels()").await, "0");
}

#[tokio::test]
async fn copy_in_within_a_transaction_fails_the_transaction() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    let mut connection = fixture.get(ALICE).await;
    connection.simple("BEGIN").await.unwrap();
    let error = failure(&mut connection, "COPY t FROM STDIN").await;
    assert!(matches!(error, PgError::Unsupported { .. }), "{error:?}");
    assert_eq!(connection.transaction_status(), TransactionStatus::Failed);
    connection.simple("ROLLBACK").await.unwrap();
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
}
