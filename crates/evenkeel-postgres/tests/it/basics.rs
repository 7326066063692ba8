//! Statements, parameters, results, errors, transactions.

use evenkeel_postgres::{DbError, Param, PgError, Statement, TransactionStatus};

use crate::fixture::{ALICE, Fixture, Rows, execute, failure, query, query_with, value};

#[tokio::test]
async fn a_statement_returns_columns_rows_and_its_tag() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    execute(&mut connection, "CREATE TABLE t (n int, s varchar(9))").await;
    let inserted = execute(&mut connection, "INSERT INTO t VALUES (1, 'a'), (2, NULL)").await;
    assert_eq!(inserted.tag.as_str(), "INSERT 0 2");
    assert_eq!(inserted.rows_affected, Some(2));
    assert_eq!(inserted.status, TransactionStatus::Idle);
    let mut rows = Rows::default();
    let statement = Statement::new("SELECT n, s, n + 1 FROM t ORDER BY n", &[]);
    let completion = connection.run(&statement, &mut rows).await.unwrap();
    assert_eq!(completion.tag.as_str(), "SELECT 2");
    assert!(!completion.stopped);
    let columns = rows.columns.unwrap();
    let described: Vec<_> = columns
        .iter()
        .map(|column| (&*column.name, column.type_oid, column.column_id, column.type_size))
        .collect();
    assert_eq!(described, [("n", 23, 1, 4), ("s", 1043, 2, -1), ("?column?", 23, 0, 4)]);
    assert_eq!(columns[1].type_modifier, 9 + 4);
    assert_ne!(columns[0].table_oid, 0);
    let text = |value: &str| Some(value.to_owned());
    assert_eq!(rows.rows, [[text("1"), text("a"), text("2")], [text("2"), None, text("3")]]);
}

#[tokio::test]
async fn parameters_are_bound_and_null_is_not_the_empty_text() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    let params = [Param::text("'; DROP TABLE t; --"), Param::text(""), Param::null()];
    let rows = query_with(&mut connection, "SELECT $1::text, $2::text, $3::text", &params).await.unwrap();
    assert_eq!(rows, [["'; DROP TABLE t; --", "", "-"]]);
    let typed = [Param { type_oid: 20, value: Some("41".into()) }];
    let rows = query_with(&mut connection, "SELECT $1 + 1, pg_typeof($1)", &typed).await.unwrap();
    assert_eq!(rows, [["42", "bigint"]]);
}

#[tokio::test]
async fn a_failed_statement_reports_every_field_and_leaves_a_usable_connection() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    execute(&mut connection, "CREATE TABLE t (n int CONSTRAINT positive CHECK (0 < n))").await;
    let PgError::Database(error) = failure(&mut connection, "INSERT INTO t VALUES (-1)").await else {
        panic!("not an error of the database")
    };
    let DbError { severity, code, schema, table, constraint, detail, file, line, routine, .. } = *error;
    assert_eq!(severity, "ERROR");
    assert_eq!(code, "23514");
    assert_eq!(schema.as_deref(), Some("public"));
    assert_eq!(table.as_deref(), Some("t"));
    assert_eq!(constraint.as_deref(), Some("positive"));
    assert_eq!(detail.as_deref(), Some("Failing row contains (-1)."));
    assert_eq!(file.as_deref(), Some("execMain.c"));
    assert!(line.is_some());
    assert_eq!(routine.as_deref(), Some("ExecConstraints"));

    let PgError::Database(error) = failure(&mut connection, "SELECT nam FROM (SELECT 1 AS name) AS x").await
    else {
        panic!("not an error of the database")
    };
    assert_eq!(error.position, Some(8));
    assert!(error.hint.unwrap().contains("name"));

    let sql = "DO $$ BEGIN EXECUTE 'SELECT 1 +'; END $$";
    let PgError::Database(error) = failure(&mut connection, sql).await else {
        panic!("not an error of the database")
    };
    assert_eq!(error.internal_query.as_deref(), Some("SELECT 1 +"));
    assert_eq!(error.internal_position, Some(11));
    assert!(error.context.unwrap().contains("inline_code_block"));

    let sql = "DO $$ BEGIN RAISE EXCEPTION 'x' USING COLUMN = 'c', DATATYPE = 'd'; END $$";
    let PgError::Database(error) = failure(&mut connection, sql).await else {
        panic!("not an error of the database")
    };
    assert_eq!(error.column.as_deref(), Some("c"));
    assert_eq!(error.data_type.as_deref(), Some("d"));
    assert_eq!(value(&mut connection, "SELECT 1").await, "1");
}

#[tokio::test]
async fn the_transaction_status_follows_the_statements() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    let begun = connection.simple("BEGIN ISOLATION LEVEL SERIALIZABLE").await.unwrap();
    assert_eq!(begun.tag.as_str(), "BEGIN");
    assert_eq!(connection.transaction_status(), TransactionStatus::InTransaction);
    assert_eq!(value(&mut connection, "SHOW transaction_isolation").await, "serializable");
    failure(&mut connection, "SELECT 1/0").await;
    assert_eq!(connection.transaction_status(), TransactionStatus::Failed);
    assert_eq!(failure(&mut connection, "SELECT 1").await.sqlstate(), "25P02");
    let ended = connection.simple("COMMIT").await.unwrap();
    assert_eq!(ended.tag.as_str(), "ROLLBACK");
    assert_eq!(connection.transaction_status(), TransactionStatus::Idle);
}

#[tokio::test]
async fn describe_returns_parameter_types_and_columns_and_prepares_the_statement() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    let sql = "SELECT $1::int8 AS a, $2::text[] AS b";
    let description = connection.describe(sql, &[]).await.unwrap();
    assert_eq!(description.params, [20, 1009]);
    let names: Vec<_> = description.columns.iter().flatten().map(|column| &*column.name).collect();
    assert_eq!(names, ["a", "b"]);
    let params = [Param::text("1"), Param::text("{x,y}")];
    assert_eq!(query_with(&mut connection, sql, &params).await.unwrap(), [["1", "{x,y}"]]);
    connection.describe(sql, &[]).await.unwrap();
    let counts = fixture.pool.counts();
    assert_eq!((counts.statement_misses, counts.statement_hits), (1, 1));
    assert_eq!(connection.describe("SET a.b = 1", &[]).await.unwrap().columns, None);
}

#[tokio::test]
async fn the_session_is_pinned() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    for (name, expected) in [
        ("DateStyle", "ISO, MDY"),
        ("IntervalStyle", "postgres"),
        ("TimeZone", "UTC"),
        ("extra_float_digits", "1"),
        ("bytea_output", "hex"),
        ("client_encoding", "UTF8"),
        ("standard_conforming_strings", "on"),
        ("client_connection_check_interval", "1s"),
        ("application_name", "evenkeel"),
    ] {
        execute(&mut connection, &format!("SET {name} TO DEFAULT")).await;
        assert_eq!(value(&mut connection, &format!("SHOW {name}")).await, expected, "{name}");
    }
    execute(&mut connection, "SET TimeZone = 'Asia/Tokyo'").await;
    execute(&mut connection, "RESET ALL").await;
    assert_eq!(value(&mut connection, "SHOW TimeZone").await, "UTC");
}

#[tokio::test]
async fn rows_max_ends_a_statement_early_and_keeps_its_transaction() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    connection.simple("BEGIN").await.unwrap();
    let statement = Statement::new("SELECT generate_series(1, 1000000)", &[]).with_rows_max(3);
    let mut rows = Rows::default();
    let completion = connection.run(&statement, &mut rows).await.unwrap();
    assert!(completion.stopped);
    assert_eq!(rows.rows.len(), 3);
    assert_eq!(completion.status, TransactionStatus::InTransaction);
    let completion = connection.run(&statement.with_rows_max(1_000_001), &mut Rows::default()).await.unwrap();
    assert!(!completion.stopped);
    connection.simple("COMMIT").await.unwrap();
    assert_eq!(fixture.pool.counts().cancels_sent, 0);
}

#[tokio::test]
async fn an_empty_statement_completes_and_several_statements_in_one_are_rejected() {
    let fixture = Fixture::new();
    let mut connection = fixture.get(ALICE).await;
    assert_eq!(execute(&mut connection, "").await.tag.as_str(), "");
    assert_eq!(execute(&mut connection, "-- nothing").await.rows_affected, None);
    assert_eq!(failure(&mut connection, "SELECT 1; SELECT 2").await.sqlstate(), "42601");
    assert_eq!(query(&mut connection, "SELECT 1 WHERE false").await.unwrap(), Vec::<Vec<String>>::new());
}
