//! Values of every PostgreSQL type through HTTP: as a parameter, through a table, and back in the form they came in.
//!
//! `psql` writes the reference values and compares the texts that the gateway's statements stored with theirs.

mod corpus;
mod user_types;
mod values;

use std::collections::BTreeSet;

use evenkeel_test_postgres::SharedDatabase;
use serde_json::{Value, json};

use self::corpus::{TypeCase, UNREADABLE, all};
use crate::harness::{Client, Setup, SqlServer};
use crate::outside::{Outside, database_with};

/// Tasks that send the values of different types at once.
const TASKS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn the_corpus_has_every_base_type_range_and_multirange() {
    let database = database_with("").await;
    let types = database
        .sql(
            "select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace \
             and typtype in ('b', 'r', 'm') and (typcategory <> 'A' or typname in ('int2vector', 'oidvector'))",
        )
        .await;
    let known: BTreeSet<&str> = types.lines().collect();
    let cases = all();
    let tested: BTreeSet<&str> =
        cases.iter().map(|case| case.name.trim_matches('"')).chain(UNREADABLE).collect();
    assert!(70 < known.len(), "{known:?}");
    assert_eq!(known.difference(&tested).collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_value_of_every_type_comes_back_as_it_was_sent() {
    let cases = all();
    let database = database_with(&reference_tables(&cases)).await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let tasks = (0..TASKS).map(|task| {
        let client = server.client();
        tokio::spawn(async move {
            for (index, case) in all().iter().enumerate().skip(task).step_by(TASKS) {
                send_values(&client, index, case).await;
                if case.has_arrays() {
                    send_arrays(&client, index, case).await;
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(differences(&database, &cases).await, "", "type, way, row, stored text, expected text");
    let rows: usize = database.value(&counts(cases.len())).await;
    let expected: usize = cases.iter().map(TypeCase::rows).sum();
    assert_eq!(rows, expected);
}

/// Creates a table per type with a row per value and a row with arrays of all values; `way` says who wrote a row.
fn reference_tables(cases: &[TypeCase]) -> String {
    let mut sql = String::new();
    for (index, case) in cases.iter().enumerate() {
        let name = case.name;
        sql.push_str(&format!(
            "create table t{index} (way text, n int, v {name}, a {name}[], b {name}[]);\n"
        ));
        for (n, (literal, _)) in case.values.iter().enumerate() {
            sql.push_str(&format!("insert into t{index} values ('reference', {n}, $lit${literal}$lit$);\n"));
        }
        if !case.has_arrays() {
            continue;
        }
        sql.push_str(&format!(
            "insert into t{index} select 'reference', -1, null, a, array[a, a] \
             from (select array_agg(v order by n) || null::{name} as a from t{index}) all_values;\n"
        ));
    }
    sql
}

/// Sends each value in every form that the API accepts.
async fn send_values(client: &Client, index: usize, case: &TypeCase) {
    let insert = format!("insert into t{index} (way, n, v) values ($1, $2, $3)");
    let select = format!("select v from t{index} where way = 'reference' and n = $1");
    for (n, (literal, expected)) in case.values.iter().enumerate() {
        let typed = json!({"type": case.name, "value": case.typed_value(literal)});
        let echo = client.query("select $1 as v", json!([typed])).await.ok();
        assert_eq!(echo["rows"], json!([[expected]]), "{} {literal}", case.name);
        assert_eq!(echo["columns"], json!([{"name": "v", "type": case.name}]));
        let stored = client.query(&select, json!([n])).await.ok();
        assert_eq!(stored["rows"], json!([[expected]]), "{} {literal}", case.name);
        let cell = &stored["rows"][0][0];
        let mut ways = vec![("typed", typed), ("plain", json!(literal)), ("returned", cell.clone())];
        if !case.is_json() {
            ways.push(("returned typed", json!({"type": case.name, "value": cell})));
        }
        for (way, param) in ways {
            let response = client.execute(&insert, json!([way, n, param])).await;
            assert_eq!(response.status, 200, "{} {way} {param}: {response:?}", case.name);
        }
    }
    for (way, param) in [("null", json!(null)), ("typed null", json!({"type": case.name, "value": null}))] {
        if way == "null" || !case.is_json() {
            client.execute(&insert, json!([way, -2, param])).await.ok();
        }
    }
    let nulls = client.query(&format!("select v from t{index} where n = -2"), json!([])).await.ok();
    assert!(nulls["rows"].as_array().unwrap().iter().all(|row| row == &json!([null])), "{}", case.name);
}

/// Sends an array and an array of arrays of all values back as they came.
async fn send_arrays(client: &Client, index: usize, case: &TypeCase) {
    let select = format!("select a, b from t{index} where way = 'reference' and n = -1");
    let stored = client.query(&select, json!([])).await.ok();
    let row = &stored["rows"][0];
    if case.has_json_arrays() {
        let mut cells: Vec<Value> = case.values.iter().map(|(_, expected)| expected.clone()).collect();
        cells.push(Value::Null);
        assert_eq!(row[0], json!(cells), "{}", case.name);
        if !case.is_json() {
            assert_eq!(row[1], json!([cells, cells]), "{}", case.name);
        }
        assert_eq!(stored["columns"][0]["type"], format!("{}[]", case.name));
    }
    let insert = format!("insert into t{index} values ($1, -1, null, $2, $3)");
    let mut ways = vec![("returned array", row[0].clone(), row[1].clone())];
    if !case.is_json() {
        let typed = |value: &Value| json!({"type": format!("{}[]", case.name), "value": value});
        ways.push(("returned typed array", typed(&row[0]), typed(&row[1])));
    }
    for (way, one, two) in ways {
        let response = client.execute(&insert, json!([way, one, two])).await;
        assert_eq!(response.status, 200, "{} {way}: {response:?}", case.name);
    }
}

/// Returns the rows whose text differs from the reference with the same number.
async fn differences(database: &SharedDatabase, cases: &[TypeCase]) -> String {
    let tables = cases.iter().enumerate().map(|(index, case)| {
        format!(
            "select '{}', other.way, other.n, coalesce(other.v::text, other.a::text), coalesce(r.v::text, r.a::text) \
             from t{index} other join t{index} r on r.way = 'reference' and r.n = other.n \
             where (other.v::text, other.a::text, other.b::text) is distinct from (r.v::text, r.a::text, r.b::text)",
            case.name
        )
    });
    database.sql(&tables.collect::<Vec<_>>().join(" union all ")).await
}

fn counts(tables: usize) -> String {
    let counts = (0..tables).map(|index| format!("(select count(*) from t{index})"));
    format!("select {}", counts.collect::<Vec<_>>().join(" + "))
}
