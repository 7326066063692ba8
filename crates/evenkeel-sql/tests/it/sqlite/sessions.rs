//! Nothing of one tenant's session reaches another tenant.

use super::harness::{ALICE, BOB, TestDatabase, Value};

async fn database_with_table() -> TestDatabase {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a INTEGER PRIMARY KEY, b)"]).await;
    database
}

/// Runs statements as Alice and releases the connection.
async fn as_alice(database: &TestDatabase, statements: &[&str]) {
    let mut writer = database.writer(ALICE).await;
    for sql in statements {
        writer.run(sql).await.unwrap();
    }
    writer.release().await;
}

#[tokio::test]
async fn temporary_tables_and_views_are_invisible_to_the_next_tenant() {
    let database = database_with_table().await;
    let statements = [
        "CREATE TEMP TABLE secret (a)",
        "INSERT INTO secret VALUES (42)",
        "CREATE TEMP VIEW secret_view AS SELECT * FROM secret",
    ];
    as_alice(&database, &statements).await;
    let mut bob = database.writer(BOB).await;
    assert_eq!(bob.error("SELECT * FROM secret").await.code, "42P01");
    assert_eq!(bob.error("SELECT * FROM secret_view").await.code, "42P01");
    let objects = "SELECT count(*) FROM sqlite_temp_schema WHERE name LIKE 'secret%'";
    assert_eq!(bob.value(objects).await, Value::Integer(0));
}

#[tokio::test]
async fn a_temporary_trigger_does_not_run_for_the_next_tenant() {
    let database = database_with_table().await;
    let statements = [
        "CREATE TEMP TABLE seen (b)",
        "CREATE TEMP TRIGGER spy AFTER INSERT ON main.t BEGIN DELETE FROM t; END",
    ];
    as_alice(&database, &statements).await;
    let mut bob = database.writer(BOB).await;
    bob.run("INSERT INTO t (b) VALUES ('bob')").await.unwrap();
    assert_eq!(bob.value("SELECT count(*) FROM t").await, Value::Integer(1));
}

#[tokio::test]
async fn a_temporary_table_cannot_shadow_a_table_of_the_next_tenant() {
    let database = database_with_table().await;
    as_alice(&database, &["INSERT INTO t VALUES (1, 'real')", "CREATE TEMP TABLE t (a, b)"]).await;
    let mut bob = database.writer(BOB).await;
    assert_eq!(bob.value("SELECT b FROM t").await, Value::Text("real".to_owned()));
}

#[tokio::test]
async fn the_last_rowid_and_the_changes_are_zero_for_the_next_tenant() {
    let database = database_with_table().await;
    as_alice(&database, &["INSERT INTO t VALUES (4711, 1), (4712, 2)"]).await;
    let mut bob = database.writer(BOB).await;
    assert_eq!(bob.value("SELECT last_insert_rowid()").await, Value::Integer(0));
    assert_eq!(bob.value("SELECT changes()").await, Value::Integer(0));
    bob.run("INSERT INTO t VALUES (5, 5)").await.unwrap();
    assert_eq!(bob.value("SELECT last_insert_rowid()").await, Value::Integer(5));
    bob.release().await;
    let mut alice = database.writer(ALICE).await;
    assert_eq!(alice.value("SELECT last_insert_rowid()").await, Value::Integer(0));
}

#[tokio::test]
async fn the_reset_also_precedes_a_transaction() {
    let database = database_with_table().await;
    as_alice(&database, &["INSERT INTO t VALUES (4711, 1)", "CREATE TEMP TABLE secret (a)"]).await;
    let mut bob = database.writer(BOB).await;
    bob.begin(evenkeel_sql::datasource::AccessMode::ReadWrite).await.unwrap();
    assert_eq!(bob.value("SELECT last_insert_rowid()").await, Value::Integer(0));
    assert_eq!(bob.error("SELECT * FROM secret").await.code, "42P01");
    bob.commit().await.unwrap();
}

#[tokio::test]
async fn a_tenant_keeps_its_own_session_while_no_other_uses_the_connection() {
    let database = database_with_table().await;
    as_alice(&database, &["CREATE TEMP TABLE mine (a)", "INSERT INTO mine VALUES (1)"]).await;
    let mut alice = database.writer(ALICE).await;
    assert_eq!(alice.value("SELECT a FROM mine").await, Value::Integer(1));
}

#[tokio::test]
async fn an_open_transaction_ends_with_its_connection() {
    let database = database_with_table().await;
    let mut alice = database.writer(ALICE).await;
    alice.run("BEGIN").await.unwrap();
    alice.run("INSERT INTO t VALUES (1, 1)").await.unwrap();
    alice.release().await;
    let mut bob = database.writer(BOB).await;
    assert_eq!(bob.value("SELECT count(*) FROM t").await, Value::Integer(0));
    assert_eq!(bob.error("COMMIT").await.code, "25P01");
}

#[tokio::test]
async fn the_private_table_is_out_of_reach() {
    let database = database_with_table().await;
    let mut writer = database.writer(ALICE).await;
    for sql in [
        "SELECT * FROM evenkeel_session",
        "INSERT INTO temp.evenkeel_session VALUES (1)",
        "DELETE FROM Evenkeel_Session",
        "DROP TABLE evenkeel_session",
        "ALTER TABLE temp.evenkeel_session RENAME TO mine",
        "CREATE TEMP TRIGGER x AFTER INSERT ON evenkeel_session BEGIN SELECT 1; END",
        "CREATE INDEX temp.x ON evenkeel_session (unused)",
        "CREATE TEMP VIEW evenkeel_session AS SELECT 1",
    ] {
        let error = writer.error(sql).await;
        assert_eq!(error.code, "0A000", "{sql}: {}", error.message);
    }
    // A table of the file may have the name.
    writer.run("ALTER TABLE t RENAME TO evenkeel_session").await.unwrap();
    writer.run("INSERT INTO main.evenkeel_session VALUES (1, 1)").await.unwrap();
    writer.run("DROP TABLE main.evenkeel_session").await.unwrap();
}
