//! The cache of prepared statements.

use evenkeel_postgres::{Param, TransactionStatus};

use crate::fixture::{ALICE, Fixture, execute, failure, query, query_with, value};

const NAMES: &str = "SELECT string_agg(statement, '; ' ORDER BY prepare_time) FROM pg_prepared_statements \
                     WHERE statement NOT LIKE '%pg_prepared_statements%'";

#[tokio::test]
async fn a_statement_is_prepared_once() {
    let fixture = Fixture::with_one_connection();
    for n in 0..3 {
        let mut connection = fixture.get(ALICE).await;
        let params = [Param::text(n.to_string())];
        let rows = query_with(&mut connection, "SELECT $1::int + 1", &params).await.unwrap();
        assert_eq!(rows, [[(n + 1).to_string()]]);
    }
    let counts = fixture.pool.counts();
    assert_eq!((counts.statement_misses, counts.statement_hits), (1, 2));
    let mut connection = fixture.get(ALICE).await;
    assert_eq!(value(&mut connection, NAMES).await, "SELECT $1::int + 1");
}

#[tokio::test]
async fn the_least_recently_used_statement_is_closed_on_the_server() {
    let fixture = Fixture::with(|config| {
        config.connections_max = 1;
        config.statements_max = 3;
    });
    let mut connection = fixture.get(ALICE).await;
    for sql in ["SELECT 1", "SELECT 2", "SELECT 1", "SELECT 3", "SELECT 4"] {
        execute(&mut connection, sql).await;
    }
    // The statement that reads the names takes a place as well.
    assert_eq!(value(&mut connection, NAMES).await, "SELECT 3; SELECT 4");
}

#[tokio::test]
async fn a_statement_whose_result_type_changed_is_prepared_again() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (a int); INSERT INTO t VALUES (1)");
    let mut connection = fixture.get(ALICE).await;
    assert_eq!(query(&mut connection, "SELECT * FROM t").await.unwrap(), [["1"]]);
    fixture.psql("ALTER TABLE t ADD b text DEFAULT 'x'");
    assert_eq!(query(&mut connection, "SELECT * FROM t").await.unwrap(), [["1", "x"]]);
    assert_eq!(query(&mut connection, "SELECT * FROM t").await.unwrap(), [["1", "x"]]);
    assert_eq!(fixture.pool.counts().statement_misses, 2);
}

#[tokio::test]
async fn within_a_transaction_a_changed_result_type_is_an_error_and_the_statement_is_forgotten() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (a int); INSERT INTO t VALUES (1)");
    let mut connection = fixture.get(ALICE).await;
    query(&mut connection, "SELECT * FROM t").await.unwrap();
    fixture.psql("ALTER TABLE t ADD b text DEFAULT 'x'");
    connection.simple("BEGIN").await.unwrap();
    assert_eq!(failure(&mut connection, "SELECT * FROM t").await.sqlstate(), "0A000");
    assert_eq!(connection.transaction_status(), TransactionStatus::Failed);
    connection.simple("ROLLBACK").await.unwrap();
    connection.simple("BEGIN").await.unwrap();
    assert_eq!(query(&mut connection, "SELECT * FROM t").await.unwrap(), [["1", "x"]]);
}

#[tokio::test]
async fn statements_that_the_client_deallocates_are_prepared_again() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let hidden = "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$";
    for forget in ["DEALLOCATE ALL", "DISCARD ALL", "DEALLOCATE mine", hidden] {
        execute(&mut connection, "SELECT 1").await;
        execute(&mut connection, "PREPARE mine AS SELECT 2").await;
        execute(&mut connection, forget).await;
        assert_eq!(value(&mut connection, "SELECT 1").await, "1", "{forget}");
        execute(&mut connection, "DEALLOCATE ALL").await;
    }
}

#[tokio::test]
async fn a_long_statement_is_not_cached() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let long = format!("SELECT 1 -- {}", "x".repeat(16 * 1024));
    for _ in 0..2 {
        assert_eq!(value(&mut connection, &long).await, "1");
    }
    assert_eq!(value(&mut connection, NAMES).await, "-");
    let too_long = format!("SELECT 1 -- {}", "x".repeat(1 << 20));
    assert_eq!(failure(&mut connection, &too_long).await.sqlstate(), "54000");
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
}

#[tokio::test]
async fn a_statement_that_cannot_be_bound_stays_prepared() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let sql = "SELECT $1::int";
    let error = query_with(&mut connection, sql, &[Param::text("x")]).await.unwrap_err();
    assert_eq!(error.sqlstate(), "22P02");
    assert_eq!(query_with(&mut connection, sql, &[Param::text("5")]).await.unwrap(), [["5"]]);
    assert_eq!(fixture.pool.counts().statement_hits, 1);
    assert_eq!(failure(&mut connection, "SELEC 1").await.sqlstate(), "42601");
    assert_eq!(value(&mut connection, NAMES).await, sql);
}

#[tokio::test]
async fn the_most_parameters_that_the_protocol_allows_are_bound() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let params = vec![Param::text("1"); 65_535];
    let list: Vec<String> = (1..=params.len()).map(|index| format!("${index}::int")).collect();
    let sql = format!("SELECT count(*) FROM unnest(ARRAY[{}])", list.join(","));
    assert_eq!(query_with(&mut connection, &sql, &params).await.unwrap(), [["65535"]]);
    let params = vec![Param::text("1"); 65_536];
    let error = query_with(&mut connection, "SELECT 1", &params).await.unwrap_err();
    assert_eq!(error.sqlstate(), "54000");
}
