//! Results with a message above `message_bytes_max`: an error of the statement, not of the connection.

use evenkeel_postgres::{DiscardReason, PgError, TransactionStatus};

use crate::fixture::{ALICE, Fixture, execute, failure, value};

const BYTES_MAX: usize = 100_000;

fn fixture() -> Fixture {
    Fixture::with(|config| {
        config.connections_max = 1;
        config.message_bytes_max = BYTES_MAX;
    })
}

#[tokio::test]
async fn a_message_above_the_limit_is_the_statements_error_and_keeps_the_connection() {
    let fixture = fixture();
    let mut connection = fixture.get(ALICE).await;
    let statements = [
        "SELECT repeat('x', 70000000)",
        "SELECT repeat('x', 200000) FROM generate_series(1, 1000000)",
        "DO $$ BEGIN RAISE NOTICE '%', repeat('x', 200000); PERFORM pg_sleep(600); END $$",
        "DO $$ BEGIN RAISE EXCEPTION '%', repeat('x', 200000); END $$",
    ];
    let process = value(&mut connection, "SELECT pg_backend_pid()").await;
    for sql in statements {
        let error = failure(&mut connection, sql).await;
        assert!(matches!(error, PgError::ResultTooLarge { bytes_max: BYTES_MAX }), "{sql}: {error:?}");
        assert_eq!(error.sqlstate(), "54000");
        assert!(!error.is_node_fault());
        assert_eq!(value(&mut connection, "SELECT pg_backend_pid()").await, process, "{sql}");
    }
    drop(connection);
    assert_eq!(fixture.pool.gauges().idle, 1);
    assert_eq!(fixture.pool.counts().discarded, [0; DiscardReason::ALL.len()]);
}

#[tokio::test]
async fn the_longest_row_below_the_limit_is_returned() {
    let fixture = fixture();
    let mut connection = fixture.get(ALICE).await;
    // A row of one value has 10 bytes more: its own length, the number of values, the value's length.
    let longest = BYTES_MAX - 10;
    let text = value(&mut connection, &format!("SELECT repeat('x', {longest})")).await;
    assert_eq!(text.len(), longest);
    let error = failure(&mut connection, &format!("SELECT repeat('x', {})", longest + 1)).await;
    assert!(matches!(error, PgError::ResultTooLarge { .. }), "{error:?}");
}

#[tokio::test]
async fn a_message_above_the_limit_fails_an_open_transaction() {
    let fixture = fixture();
    fixture.psql("CREATE TABLE t (n int)");
    let mut connection = fixture.get(ALICE).await;
    connection.simple("BEGIN").await.unwrap();
    execute(&mut connection, "INSERT INTO t VALUES (1)").await;
    let error = failure(&mut connection, "SELECT repeat('x', 200000)").await;
    assert!(matches!(error, PgError::ResultTooLarge { .. }), "{error:?}");
    assert_eq!(connection.transaction_status(), TransactionStatus::Failed);
    assert_eq!(connection.simple("COMMIT").await.unwrap().tag.as_str(), "ROLLBACK");
    assert_eq!(value(&mut connection, "SELECT count(*) FROM t").await, "0");
}
