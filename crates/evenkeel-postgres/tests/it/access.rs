//! Read-only sessions.

use evenkeel_postgres::Session;

use crate::fixture::{ALICE, BOB, Fixture, execute, failure, read_only, session, value};

const READ_ONLY_TRANSACTION: &str = "25006";

#[tokio::test]
async fn a_read_only_session_rejects_writes_and_a_writable_one_accepts_them() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    for _ in 0..2 {
        let mut connection = fixture.pool.get(&read_only(ALICE)).await.unwrap();
        assert_eq!(value(&mut connection, "SELECT 1").await, "1");
        let error = failure(&mut connection, "INSERT INTO t VALUES (1)").await;
        assert_eq!(error.sqlstate(), READ_ONLY_TRANSACTION);
        drop(connection);
        let mut connection = fixture.get(ALICE).await;
        execute(&mut connection, "INSERT INTO t VALUES (1)").await;
    }
    assert_eq!(fixture.psql("SELECT count(*) FROM t"), "2");
    assert_eq!(fixture.pool.counts().resets, 0);
}

#[tokio::test]
async fn a_client_that_turns_read_only_off_is_noticed() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    let mut connection = fixture.pool.get(&read_only(ALICE)).await.unwrap();
    execute(&mut connection, "SET default_transaction_read_only = off").await;
    let error = failure(&mut connection, "INSERT INTO t VALUES (1)").await;
    assert_eq!(error.sqlstate(), READ_ONLY_TRANSACTION);
    execute(&mut connection, "SELECT set_config('default_transaction_read_only', 'off', false)").await;
    drop(connection);
    let mut connection = fixture.pool.get(&read_only(ALICE)).await.unwrap();
    let error = failure(&mut connection, "INSERT INTO t VALUES (1)").await;
    assert_eq!(error.sqlstate(), READ_ONLY_TRANSACTION);
}

#[tokio::test]
async fn access_is_set_again_after_a_reset() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    let settings = vec![("app.tenant".to_owned(), "x".to_owned())];
    for owner in [ALICE, BOB, ALICE] {
        let session = Session { settings: settings.clone(), ..read_only(owner) };
        let mut connection = fixture.pool.get(&session).await.unwrap();
        let error = failure(&mut connection, "INSERT INTO t VALUES (1)").await;
        assert_eq!(error.sqlstate(), READ_ONLY_TRANSACTION);
    }
    let mut connection = fixture.get(BOB).await;
    execute(&mut connection, "INSERT INTO t VALUES (1)").await;
}

#[tokio::test]
async fn a_read_only_default_of_the_database_does_not_stop_a_writable_session() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    fixture
        .psql(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", fixture.database.name()));
    for owner in [ALICE, BOB] {
        let mut connection = fixture.pool.get(&session(owner)).await.unwrap();
        execute(&mut connection, "INSERT INTO t VALUES (1)").await;
    }
}
