//! Limits, each reached.

use evenkeel_sql::datasource::sqlite::{OpenError, SqliteDatasource, SqliteOptions, Synchronous};
use evenkeel_sql::datasource::{AccessMode, Datasource, TransactionStatus};
use evenkeel_sql::error::DatabaseError;
use evenkeel_sql::param::Param;

use super::harness::{ALICE, BOB, CollectSink, TestDatabase, Value, number, sqlstate, text};

const MANY_ROWS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
                         INSERT INTO t SELECT randomblob(1000) FROM n";

#[tokio::test]
async fn a_full_database_is_an_error_and_recovers() {
    let database = TestDatabase::with(|options| options.bytes_max = Some(1 << 20));
    database.setup(&["CREATE TABLE t (a)"]).await;
    let mut writer = database.writer(ALICE).await;
    let error = writer.error(MANY_ROWS).await;
    assert_eq!((error.code.as_str(), error.message.as_str()), ("53100", "database or disk is full"));
    assert_eq!(writer.status(), TransactionStatus::Idle);
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));
    writer.run("INSERT INTO t VALUES (1)").await.unwrap();
    // The limit survives a new connection, which a temporary table of another tenant causes.
    writer.run("CREATE TEMP TABLE x (a)").await.unwrap();
    writer.release().await;
    assert_eq!(database.writer(BOB).await.error(MANY_ROWS).await.code, "53100");
}

#[tokio::test]
async fn temporary_tables_are_limited() {
    let database = TestDatabase::with(|options| options.temp_bytes_max = 1 << 20);
    let mut writer = database.writer(ALICE).await;
    writer.run("CREATE TEMP TABLE t (a)").await.unwrap();
    assert_eq!(writer.error(MANY_ROWS).await.code, "53100");
    writer.release().await;
    database.writer(BOB).await.run("CREATE TEMP TABLE t (a)").await.unwrap();
}

#[tokio::test]
async fn values_and_rows_are_limited() {
    let database = TestDatabase::with(|options| options.value_bytes_max = 10_000);
    let mut reader = database.reader(ALICE).await;
    assert_eq!(reader.run("SELECT zeroblob(9000)").await.unwrap().rows.len(), 1);
    assert_eq!(reader.error("SELECT hex(zeroblob(9000))").await.code, "54000");
    assert_eq!(sqlstate(reader.run_with("SELECT ?", [text(&"x".repeat(10_001))]).await), "54000");
    let row = reader.error("SELECT zeroblob(9000), zeroblob(9000)").await;
    assert_eq!(
        (row.code.as_str(), row.message.as_str()),
        ("54000", "a row of the result is larger than 10000 bytes")
    );
    assert_eq!(reader.value("SELECT 1").await, Value::Integer(1));
}

#[tokio::test]
async fn a_row_that_is_too_large_undoes_its_statement() {
    let database = TestDatabase::with(|options| options.value_bytes_max = 10_000);
    database.setup(&["CREATE TABLE t (a)"]).await;
    let mut writer = database.writer(ALICE).await;
    let sql = "INSERT INTO t VALUES (zeroblob(9000)) RETURNING a, a";
    assert_eq!(writer.error(sql).await.code, "54000");
    assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(0));
}

#[tokio::test]
async fn sql_text_is_limited() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let of_length = |bytes: usize| format!("SELECT '{}'", "x".repeat(bytes - "SELECT ''".len()));
    assert_eq!(reader.run(&of_length(1 << 20)).await.unwrap().rows.len(), 1);
    assert_eq!(reader.error(&of_length((1 << 20) + 1)).await.code, "54000");
}

#[tokio::test]
async fn patterns_are_limited() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let of_length = |bytes: usize| format!("SELECT 'x' LIKE '{}'", "x".repeat(bytes));
    assert_eq!(reader.value(&of_length(1_000)).await, Value::Integer(0));
    assert_eq!(reader.error(&of_length(1_001)).await.code, "54000");
}

#[tokio::test]
async fn parameters_are_limited() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let params: Vec<Param> = (0..32_766).map(|index: u32| number(&index.to_string())).collect();
    let mut statement = super::harness::statement("SELECT ?32766", []);
    statement.params = params;
    let mut sink = CollectSink::default();
    reader.connection.run(&statement, &mut sink).await.unwrap();
    assert_eq!(sink.rows, [[Value::Integer(32_765)]]);
    let error = reader.error("SELECT ?32767").await;
    assert_eq!(error.message, "variable number must be between ?1 and ?32766");
}

#[tokio::test]
async fn deep_expressions_neither_overflow_the_stack_nor_pass_the_limit() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let sum = |terms: usize| format!("SELECT 1{}", " + 1".repeat(terms - 1));
    assert_eq!(reader.value(&sum(990)).await, Value::Integer(990));
    assert_eq!(reader.error(&sum(1_100)).await.code, "54001");
    let nested = format!("SELECT {}1{}", "abs(".repeat(5_000), ")".repeat(5_000));
    reader.error(&nested).await;
    let json = format!("SELECT json('{}{}')", "[".repeat(5_000), "]".repeat(5_000));
    reader.error(&json).await;
    assert_eq!(reader.value("SELECT 1").await, Value::Integer(1));
}

#[tokio::test]
async fn memory_is_limited() {
    let database = TestDatabase::with(|options| options.heap_bytes_max = 64 << 20);
    let mut reader = database.reader(ALICE).await;
    let columns = vec!["randomblob(10000000)"; 20].join(", ");
    let result = reader.run(&format!("SELECT {columns}")).await;
    assert_eq!(sqlstate(result), "53200");
    reader.release().await;
    assert_eq!(database.reader(ALICE).await.value("SELECT 1").await, Value::Integer(1));
}

#[tokio::test]
async fn the_statement_cache_is_limited() {
    let database = TestDatabase::with(|options| options.statements_max = 2);
    let mut reader = database.reader(ALICE).await;
    for round in 0..3 {
        for number in 0..10 {
            let sql = format!("SELECT {number}");
            assert_eq!(reader.value(&sql).await, Value::Integer(number), "round {round}");
        }
    }
}

#[tokio::test]
async fn a_damaged_page_is_a_fault_of_the_node_and_discards_the_connection() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a)", MANY_ROWS]).await;
    database.datasource.close().await;
    let mut bytes = std::fs::read(&database.path).unwrap();
    bytes[4096..200 * 4096].fill(0xff);
    std::fs::write(&database.path, bytes).unwrap();
    let damaged = database.reopen();
    let mut reader = damaged.reader(ALICE).await;
    assert_eq!(reader.error("SELECT count(a) FROM t").await.code, "XX001");
    assert_eq!(damaged.datasource.gauges().open, 2);
    reader.release().await;
    let gauges = damaged.datasource.gauges();
    assert_eq!((gauges.open, gauges.in_use), (1, 0));
    assert_eq!(damaged.reader(ALICE).await.value("SELECT 1").await, Value::Integer(1));
}

#[tokio::test]
async fn a_file_that_disappears_makes_new_connections_fail() {
    let database = TestDatabase::new();
    let moved = database.path.with_file_name("moved.db");
    std::fs::rename(&database.path, moved).unwrap();
    std::fs::create_dir(&database.path).unwrap();
    let result = database.connect(ALICE, AccessMode::ReadOnly).await;
    let Some(DatabaseError::Unavailable { reason }) = result.err() else { panic!("it was opened") };
    assert_eq!(reason, "the database file cannot be opened");
    while database.datasource.gauges().open != 1 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn options_outside_their_range_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let open = |change: fn(&mut SqliteOptions)| {
        let mut options = SqliteOptions::new(directory.path().join("test.db"));
        change(&mut options);
        SqliteDatasource::open(options).err()
    };
    let refused: [fn(&mut SqliteOptions); 4] = [
        |options| options.readers_max = 0,
        |options| options.readers_max = 1_025,
        |options| options.value_bytes_max = 1_023,
        |options| options.value_bytes_max = 1_000_000_001,
    ];
    for change in refused {
        assert!(matches!(open(change), Some(OpenError::Option { .. })));
    }
    assert!(open(|options| options.synchronous = Synchronous::Full).is_none());
}
