//! Actions that clients may not take.

use evenkeel_sql::datasource::sqlite::SqliteOptions;
use evenkeel_sql::datasource::{AccessMode, Datasource, Session};
use evenkeel_sql::error::DatabaseError;

use super::harness::{ALICE, TestDatabase, Value, lease, sqlstate, text};

#[tokio::test]
async fn a_reader_cannot_write() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a UNIQUE)", "INSERT INTO t VALUES (1)"]).await;
    let mut reader = database.reader(ALICE).await;
    for sql in [
        "INSERT INTO t VALUES (2)",
        "UPDATE t SET a = 2 RETURNING a",
        "DELETE FROM t",
        "WITH x AS (SELECT 2) INSERT INTO t SELECT * FROM x",
        "CREATE TABLE u (a)",
        "CREATE TEMP TABLE u (a)",
        "DROP TABLE t",
        "BEGIN IMMEDIATE",
        "REINDEX",
        "ANALYZE",
        "VACUUM",
    ] {
        let error = reader.error(sql).await;
        assert_eq!(error.code, "25006", "{sql}: {}", error.message);
        assert_eq!(error.message, "attempt to write a readonly database", "{sql}");
        assert!(error.hint.unwrap().contains("only read"));
    }
    assert_eq!(reader.value("SELECT a FROM t").await, Value::Integer(1));
}

#[tokio::test]
async fn denied_statements_say_so() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a)"]).await;
    let copy = database.path.with_file_name("copy.db");
    let vacuum_into = format!("VACUUM INTO '{}'", copy.display());
    for (sql, reason) in [
        ("ATTACH 'other.db' AS other", "ATTACH is not allowed"),
        ("ATTACH '' AS other", "ATTACH is not allowed"),
        ("ATTACH ':memory:' AS other", "ATTACH is not allowed"),
        ("ATTACH 'a' || 'b' AS other", "ATTACH is not allowed"),
        ("DETACH main", "DETACH is not allowed"),
        ("DETACH 'a' || 'b'", "DETACH is not allowed"),
        ("SELECT load_extension('x')", "the function load_extension is not allowed"),
        ("SELECT fts3_tokenizer('simple')", "the function fts3_tokenizer is not allowed"),
        (vacuum_into.as_str(), "VACUUM INTO is not allowed"),
        ("PRAGMA writable_schema = ON", "PRAGMA writable_schema is not allowed"),
        ("PRAGMA writable_schema", "PRAGMA writable_schema is not allowed"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode can be read, but not set"),
        ("PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys can be read, but not set"),
        ("PRAGMA user_version = 7", "PRAGMA user_version can be read, but not set"),
        ("PRAGMA query_only = OFF", "PRAGMA query_only is not allowed"),
        ("PRAGMA temp_store = MEMORY", "PRAGMA temp_store is not allowed"),
        ("PRAGMA temp_store_directory = '/tmp'", "PRAGMA temp_store_directory is not allowed"),
        ("PRAGMA cache_size = 1000000", "PRAGMA cache_size is not allowed"),
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count can be read, but not set"),
        ("PRAGMA synchronous = OFF", "PRAGMA synchronous is not allowed"),
        ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA locking_mode is not allowed"),
        ("PRAGMA busy_timeout = 1", "PRAGMA busy_timeout is not allowed"),
        ("PRAGMA trusted_schema = ON", "PRAGMA trusted_schema is not allowed"),
        ("PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA wal_checkpoint is not allowed"),
        ("PRAGMA hard_heap_limit = 1", "PRAGMA hard_heap_limit is not allowed"),
        ("PRAGMA database_list", "PRAGMA database_list is not allowed"),
        ("SELECT * FROM pragma_database_list", "PRAGMA database_list is not allowed"),
        (
            "SELECT total_changes()",
            "the function total_changes is not allowed, because it counts changes of other tenants; use changes()",
        ),
    ] {
        for access in [AccessMode::ReadWrite, AccessMode::ReadOnly] {
            let mut connection = database.connect(ALICE, access).await.unwrap();
            let error = connection.error(sql).await;
            if sql == vacuum_into && access == AccessMode::ReadOnly {
                // The copy's file is opened before the source is checked.
                assert!(["0A000", "25006"].contains(&error.code.as_str()), "{sql}: {}", error.message);
                continue;
            }
            assert_eq!(
                (error.code.as_str(), error.message),
                ("0A000", format!("not authorized: {reason}")),
                "{sql}"
            );
        }
    }
    assert!(!copy.exists());
}

#[tokio::test]
async fn a_copy_to_a_bound_file_name_is_denied() {
    let database = TestDatabase::new();
    let copy = database.path.with_file_name("copy.db");
    let mut writer = database.writer(ALICE).await;
    let result = writer.run_with("VACUUM INTO ?", [text(copy.to_str().unwrap())]).await;
    assert_eq!(sqlstate(result), "0A000");
    assert!(!copy.exists());
}

#[tokio::test]
async fn a_schema_cannot_be_edited_as_a_table() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a)"]).await;
    let mut writer = database.writer(ALICE).await;
    let error = writer.error("UPDATE sqlite_schema SET sql = 'CREATE TABLE t (b)'").await;
    assert!(error.message.contains("may not be modified"), "{}", error.message);
}

#[tokio::test]
async fn reading_pragmas_and_their_functions_work() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a PRIMARY KEY, b REFERENCES t (a))"]).await;
    let mut reader = database.reader(ALICE).await;
    for (sql, rows) in [
        ("PRAGMA table_info(t)", 2),
        ("PRAGMA table_xinfo('t')", 2),
        ("PRAGMA index_list(t)", 1),
        ("PRAGMA index_info(sqlite_autoindex_t_1)", 1),
        ("PRAGMA foreign_key_list(t)", 1),
        ("PRAGMA foreign_key_check", 0),
        ("PRAGMA integrity_check", 1),
        ("PRAGMA user_version", 1),
        ("SELECT name FROM pragma_table_info('t')", 2),
        ("SELECT name FROM pragma_table_list WHERE schema = 'main' AND name = 't'", 1),
    ] {
        assert_eq!(reader.run(sql).await.unwrap().rows.len(), rows, "{sql}");
    }
    assert_eq!(reader.value("PRAGMA journal_mode").await, Value::Text("wal".to_owned()));
    assert_eq!(reader.value("PRAGMA foreign_keys").await, Value::Integer(1));
}

#[tokio::test]
async fn ordinary_schema_changes_and_modules_work() {
    let database = TestDatabase::new();
    let mut writer = database.writer(ALICE).await;
    for sql in [
        "CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT, b TEXT)",
        "INSERT INTO t (b) VALUES ('one two'), ('two three')",
        "ALTER TABLE t RENAME COLUMN b TO c",
        "ALTER TABLE t ADD COLUMN d DEFAULT 4",
        "ALTER TABLE t DROP COLUMN d",
        "ALTER TABLE t RENAME TO u",
        "CREATE VIEW v AS SELECT c FROM u",
        "CREATE INDEX i ON u (c)",
        "CREATE VIRTUAL TABLE words USING fts5 (text)",
        "INSERT INTO words SELECT c FROM u",
        "CREATE VIRTUAL TABLE boxes USING rtree (id, x0, x1)",
        "INSERT INTO boxes VALUES (1, 0.0, 1.0)",
        "ANALYZE",
        "REINDEX",
        "VACUUM",
        "DROP VIEW v",
    ] {
        let result = writer.run(sql).await;
        assert!(result.is_ok(), "{sql}: {result:?}");
    }
    let mut reader = database.reader(ALICE).await;
    assert_eq!(reader.value("SELECT count(*) FROM words WHERE words MATCH 'two'").await, Value::Integer(2));
    assert_eq!(reader.value("SELECT id FROM boxes WHERE 0.5 < x1").await, Value::Integer(1));
}

#[tokio::test]
async fn a_vacuum_leaves_attaching_denied() {
    let database = TestDatabase::new();
    let mut writer = database.writer(ALICE).await;
    writer.run("VACUUM").await.unwrap();
    assert_eq!(writer.error("ATTACH '' AS x").await.code, "0A000");
    writer.run("BEGIN").await.unwrap();
    assert_eq!(writer.error("VACUUM").await.code, "25001");
}

#[tokio::test]
async fn roles_and_settings_are_refused_instead_of_ignored() {
    let database = TestDatabase::new();
    let sessions = [
        Session { owner: ALICE, role: Some("reporting".to_owned()), settings: Vec::new() },
        Session { owner: ALICE, role: None, settings: vec![("app.tenant".to_owned(), "1".to_owned())] },
    ];
    for session in sessions {
        let mut lease = lease(ALICE, AccessMode::ReadOnly, || {});
        lease.session = session;
        let result = database.datasource.connect(lease).await;
        assert!(matches!(result.err(), Some(DatabaseError::Unsupported { .. })));
    }
}

#[test]
fn the_defaults_fit_a_small_server() {
    let options = SqliteOptions::new("x.db");
    assert_eq!((options.readers_max, options.value_bytes_max, options.bytes_max), (8, 64 << 20, None));
}
