//! Transactions: their status, their end, and their isolation.

use std::time::Duration;

use evenkeel_sql::datasource::{AccessMode, TransactionStatus};
use evenkeel_sql::error::DatabaseError;

use super::harness::{ALICE, TestDatabase, Value, poll_once, sqlstate, statement};

async fn database() -> TestDatabase {
    let database = TestDatabase::new();
    let statements = [
        "CREATE TABLE t (a UNIQUE)",
        "CREATE TABLE p (id INTEGER PRIMARY KEY)",
        "CREATE TABLE f (p REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)",
    ];
    database.setup(&statements).await;
    database
}

#[tokio::test]
async fn a_commit_is_visible_to_readers_and_a_rollback_is_not() {
    let database = database().await;
    let mut reader = database.reader(ALICE).await;
    let mut writer = database.writer(ALICE).await;
    for (is_committed, expected) in [(false, 0), (true, 1)] {
        writer.begin(AccessMode::ReadWrite).await.unwrap();
        assert_eq!(writer.status(), TransactionStatus::Open);
        writer.run("INSERT INTO t VALUES (1)").await.unwrap();
        assert_eq!(reader.value("SELECT count(*) FROM t").await, Value::Integer(0));
        if is_committed {
            writer.commit().await.unwrap();
        } else {
            writer.rollback().await.unwrap();
        }
        assert_eq!(writer.status(), TransactionStatus::Idle);
        assert_eq!(reader.value("SELECT count(*) FROM t").await, Value::Integer(expected));
    }
}

#[tokio::test]
async fn a_read_only_transaction_sees_the_snapshot_of_its_beginning() {
    let database = database().await;
    let mut reader = database.reader(ALICE).await;
    reader.begin(AccessMode::ReadOnly).await.unwrap();
    database.setup(&["INSERT INTO t VALUES (1)"]).await;
    assert_eq!(reader.value("SELECT count(*) FROM t").await, Value::Integer(0));
    reader.commit().await.unwrap();
    assert_eq!(reader.value("SELECT count(*) FROM t").await, Value::Integer(1));
}

#[tokio::test]
async fn transaction_commands_work_as_sql() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    writer.begin(AccessMode::ReadWrite).await.unwrap();
    for sql in
        ["INSERT INTO t VALUES (1)", "SAVEPOINT a", "INSERT INTO t VALUES (2)", "ROLLBACK TO a", "RELEASE a"]
    {
        writer.run(sql).await.unwrap();
        assert_eq!(writer.status(), TransactionStatus::Open, "{sql}");
    }
    assert_eq!(writer.run("COMMIT").await.unwrap().completion.command, "COMMIT");
    assert_eq!(writer.status(), TransactionStatus::Idle);
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(1));
    writer.run("BEGIN").await.unwrap();
    assert_eq!(writer.status(), TransactionStatus::Open);
    writer.run("ROLLBACK").await.unwrap();
    assert_eq!(writer.status(), TransactionStatus::Idle);
}

#[tokio::test]
async fn a_failed_statement_leaves_the_transaction_open() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    writer.begin(AccessMode::ReadWrite).await.unwrap();
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
    assert_eq!(writer.error("INSERT INTO t VALUES (1)").await.code, "23505");
    assert_eq!(writer.status(), TransactionStatus::Open);
    writer.commit().await.unwrap();
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(1));
}

#[tokio::test]
async fn a_failed_commit_leaves_the_transaction_open() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    writer.begin(AccessMode::ReadWrite).await.unwrap();
    writer.run("INSERT INTO f VALUES (1)").await.unwrap();
    assert_eq!(sqlstate(writer.commit().await), "23503");
    assert_eq!(writer.status(), TransactionStatus::Open);
    assert_eq!(writer.error("COMMIT").await.code, "23503");
    assert_eq!(writer.status(), TransactionStatus::Open);
    writer.run("INSERT INTO p VALUES (1)").await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(writer.status(), TransactionStatus::Idle);
    assert_eq!(writer.value("SELECT count(*) FROM f").await, Value::Integer(1));
}

#[tokio::test]
async fn a_transaction_that_sqlite_rolls_back_has_failed() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    for ending in ["ROLLBACK", "COMMIT"] {
        writer.begin(AccessMode::ReadWrite).await.unwrap();
        writer.run("INSERT INTO t VALUES (1)").await.unwrap();
        assert_eq!(writer.error("INSERT OR ROLLBACK INTO t VALUES (1)").await.code, "23505");
        assert_eq!(writer.status(), TransactionStatus::Failed);
        assert_eq!(writer.error("INSERT INTO t VALUES (2)").await.code, "25P02");
        assert_eq!(writer.error("ROLLBACK TO a").await.code, "25P02");
        assert_eq!(sqlstate(writer.begin(AccessMode::ReadWrite).await), "25P02");
        assert_eq!(writer.run(ending).await.unwrap().completion.command, "ROLLBACK");
        assert_eq!(writer.status(), TransactionStatus::Idle);
        assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));
    }
}

#[tokio::test]
async fn a_failed_transaction_cannot_be_committed() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    for is_committed in [true, false] {
        writer.begin(AccessMode::ReadWrite).await.unwrap();
        writer.run("INSERT INTO t VALUES (1)").await.unwrap();
        writer.error("INSERT OR ROLLBACK INTO t VALUES (1)").await;
        if is_committed {
            assert_eq!(sqlstate(writer.commit().await), "40000");
        } else {
            writer.rollback().await.unwrap();
        }
        assert_eq!(writer.status(), TransactionStatus::Idle);
        writer.run("SELECT 1").await.unwrap();
    }
}

#[tokio::test]
async fn a_failed_transaction_does_not_outlive_its_connection() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    writer.begin(AccessMode::ReadWrite).await.unwrap();
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
    writer.error("INSERT OR ROLLBACK INTO t VALUES (1)").await;
    writer.release().await;
    let mut writer = database.writer(ALICE).await;
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
    assert_eq!(writer.status(), TransactionStatus::Idle);
}

#[tokio::test]
async fn a_read_only_transaction_on_the_writer_rejects_writes() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    for ending in ["COMMIT", "ROLLBACK"] {
        writer.begin(AccessMode::ReadOnly).await.unwrap();
        assert_eq!(writer.error("INSERT INTO t VALUES (1)").await.code, "25006");
        writer.run(ending).await.unwrap();
        writer.run("DELETE FROM t").await.unwrap();
    }
    writer.begin(AccessMode::ReadOnly).await.unwrap();
    writer.release().await;
    let mut writer = database.writer(ALICE).await;
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
}

#[tokio::test]
async fn beginnings_and_ends_must_match() {
    let database = database().await;
    let mut writer = database.writer(ALICE).await;
    assert_eq!(sqlstate(writer.commit().await), "25P01");
    assert_eq!(sqlstate(writer.rollback().await), "25P01");
    writer.begin(AccessMode::ReadWrite).await.unwrap();
    assert_eq!(sqlstate(writer.begin(AccessMode::ReadWrite).await), "25001");
    assert_eq!(writer.status(), TransactionStatus::Open);
    let mut reader = database.reader(ALICE).await;
    assert_eq!(sqlstate(reader.begin(AccessMode::ReadWrite).await), "25006");
    assert_eq!(reader.status(), TransactionStatus::Idle);
}

/// A lock that another process would hold.
fn foreign_lock(database: &TestDatabase) -> rusqlite::Connection {
    let other = rusqlite::Connection::open(&database.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[tokio::test]
async fn a_lock_of_another_process_is_awaited_and_then_reported() {
    let database = TestDatabase::with(|options| options.busy_timeout = Duration::from_millis(20));
    database.setup(&["CREATE TABLE t (a)"]).await;
    let other = foreign_lock(&database);
    let mut writer = database.writer(ALICE).await;
    assert_eq!(sqlstate(writer.begin(AccessMode::ReadWrite).await), "55P03");
    assert_eq!(writer.status(), TransactionStatus::Idle);
    assert_eq!(writer.error("INSERT INTO t VALUES (1)").await.code, "55P03");
    other.execute_batch("ROLLBACK").unwrap();
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
}

#[tokio::test]
async fn the_wait_for_a_foreign_lock_can_be_cancelled() {
    let database = TestDatabase::with(|options| options.busy_timeout = Duration::from_secs(3_600));
    database.setup(&["CREATE TABLE t (a)"]).await;
    let _other = foreign_lock(&database);
    let mut writer = database.writer(ALICE).await;
    let insert = statement("INSERT INTO t VALUES (1)", []);
    let mut sink = super::harness::CollectSink::default();
    let mut run = writer.connection.run(&insert, &mut sink);
    assert!(poll_once(run.as_mut()).is_pending());
    drop(run);
    writer.connection.recover().await.unwrap();
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));

    let mut limited = statement("INSERT INTO t VALUES (1)", []);
    limited.time_max = Duration::from_millis(20);
    let result = writer.connection.run(&limited, &mut sink).await;
    assert_eq!(result.unwrap_err(), DatabaseError::Cancelled);
}
