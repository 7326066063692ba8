//! Values whose form JSON, SQL or a setting could change on the way.

use serde_json::{Value, json};

use crate::harness::{Client, Setup, SqlServer};
use crate::outside::{Outside, database_with};

async fn rows(client: &Client, sql: &str, params: Value) -> Value {
    client.query(sql, params).await.ok()["rows"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_number_reaches_the_database_with_all_its_digits() {
    let database = database_with("").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let numeric = format!("{}.{}", "1234567890".repeat(10), "0987654321".repeat(10));
    let body = format!(
        r#"{{"sql": "select $1::numeric, $2::int8, $3::float8, $4::numeric",
            "params": [{numeric}, -9223372036854775808, 5e-324, {{"type": "numeric", "value": 1.10}}]}}"#
    );
    let response = server.client().send("POST", "/query", &body).await.ok();
    assert_eq!(response["rows"], json!([[numeric, "-9223372036854775808", 5e-324, "1.10"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_null_is_not_a_sql_null() {
    let database = database_with("create table t (id int, j json, b jsonb)").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    let insert = "insert into t values ($1, $2, $3)";
    let json_null = |name: &str| json!({"type": name, "value": null});
    client.execute(insert, json!([1, json_null("json"), json_null("jsonb")])).await.ok();
    client.execute(insert, json!([2, null, null])).await.ok();
    client.execute(insert, json!([3, "null", "null"])).await.ok();
    let stored = "select string_agg(concat_ws(' ', id, j is null, b is null, j, b), ', ' order by id) from t";
    assert_eq!(database.sql(stored).await, "1 f f null null, 2 t t, 3 f f null null");
    let read = rows(&client, "select j, b from t order by id", json!([])).await;
    assert_eq!(read, json!([["null", "null"], [null, null], ["null", "null"]]));
    let elements = rows(&client, "select array['null', null]::jsonb[]", json!([])).await;
    assert_eq!(elements, json!([[["null", null]]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_databases_own_output_settings_do_not_change_results() {
    let database = database_with(
        "do $$ begin execute format('alter database %I set timezone = %L', current_database(), 'Asia/Tokyo');
         execute format('alter database %I set datestyle = %L', current_database(), 'German, DMY');
         execute format('alter database %I set intervalstyle = %L', current_database(), 'iso_8601');
         execute format('alter database %I set bytea_output = %L', current_database(), 'escape');
         execute format('alter database %I set extra_float_digits = -15', current_database()); end $$",
    )
    .await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let sql = "select $1::timestamptz, $2::date, $3::interval, $4::bytea, $5::float8";
    let sent = json!(["2024-06-01 12:00:00+02", "2024-03-02", "1 day 02:00:00", "\\x00ff", 0.1]);
    let expected = json!([["2024-06-01 10:00:00+00", "2024-03-02", "1 day 02:00:00", "\\x00ff", 0.1]]);
    assert_eq!(rows(&server.client(), sql, sent).await, expected);
    assert_eq!(rows(&server.client(), sql, expected[0].clone()).await, expected);
    assert_eq!(database.sql("select '2024-06-01'::date").await, "01.06.2024", "the settings were in force");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_arrays_become_arrays_of_the_columns_type() {
    let database = database_with("create table t (id int, t text[], i int4[], j jsonb[])").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    let texts =
        json!([["a,b", "NULL", null, "", "\"\\", "{x}"], ["é\u{1f980}", " ", "\\N", "'", "a\nb", "}{"]]);
    let documents = json!([{"a": [1]}, [2], 3, true]);
    client
        .execute("insert into t values (1, $1, $2, $3)", json!([texts, [1, null, -3], documents]))
        .await
        .ok();
    client.execute("insert into t values (2, $1, $2, $3)", json!([[], [], []])).await.ok();
    client.execute("insert into t values (3, $1, $2, $3)", json!([[null], [[[1]], [[2]]], null])).await.ok();
    let stored = "select string_agg(concat_ws(' ', id, array_dims(t), array_dims(i), cardinality(j)), ', ' order by id) from t";
    assert_eq!(database.sql(stored).await, "1 [1:2][1:6] [1:3] 4, 2 0, 3 [1:1] [1:2][1:1][1:1]");
    let inner = database.sql(
        "select t[1][1] || t[1][2] || t[1][5] || t[2][1], t[1][3] is null, j[1]->'a' from t where id = 1",
    );
    assert_eq!(inner.await, "a,bNULL\"\\é\u{1f980}|t|[1]");
    let read = rows(&client, "select t, i, j from t order by id", json!([])).await;
    let documents = json!(["{\"a\": [1]}", "[2]", "3", "true"]);
    let expected = json!([[texts, [1, null, -3], documents], [[], [], []], [[null], [[[1]], [[2]]], null]]);
    assert_eq!(read, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_with_other_lower_bounds_stays_text_and_comes_back() {
    let database = database_with("create table t (a int4[])").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    client.execute("insert into t values ('[0:1]={1,2}')", json!([])).await.ok();
    let read = rows(&client, "select a from t", json!([])).await;
    assert_eq!(read, json!([["[0:1]={1,2}"]]));
    client.execute("insert into t values ($1)", json!([read[0][0]])).await.ok();
    assert_eq!(database.sql("select count(*), count(distinct a), max(a[0]) from t").await, "2|1|1");
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_that_no_column_can_hold_are_clear_errors() {
    let database = database_with("").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    for (sql, param, code) in [
        ("select $1::int4[]", "[[1], [2, 3]]", "22P02"),
        ("select $1::int4[]", "[[[[[[[1]]]]]]]", "22023"),
        ("select $1::int4[]", r#"[{"a": 1}]"#, "22023"),
        ("select $1::int4[]", r#"["x"]"#, "22P02"),
        ("select $1::int4", "[1]", "22023"),
        ("select $1::text[]", r#"["a\u0000b"]"#, "22023"),
        ("select $1::text", r#""a\u0000b""#, "22023"),
        ("select $1::json", r#"{"type": "json", "value": "a\ud800"}"#, "invalid_request"),
        ("select $1::text", r#""a\ud800b""#, "invalid_request"),
        ("select $1::text[]", r#"["a\ud800b"]"#, "22023"),
    ] {
        let body = format!(r#"{{"sql": "{sql}", "params": [{param}]}}"#);
        let response = server.client().send("POST", "/query", &body).await;
        assert_eq!(response.error(), (400, code.to_owned()), "{param}: {response:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_and_every_kind_of_character_survives() {
    let database = database_with("create table t (b bytea, s text)").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    let bytes: String = (0..=255_u8).map(|byte| format!("{byte:02x}")).collect();
    let text: String =
        (1..0x300_u32).chain(0x1f600..0x1f610).chain(0xfff0..=0xffff).filter_map(char::from_u32).collect();
    client.execute("insert into t values ($1, $2)", json!([format!("\\x{bytes}"), text])).await.ok();
    let read = rows(&client, "select b, s from t", json!([])).await;
    assert_eq!(read, json!([[format!("\\x{bytes}"), text]]));
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let stored =
        database.sql("select encode(b, 'hex') || ' ' || encode(convert_to(s, 'UTF8'), 'hex') from t").await;
    assert_eq!(stored, format!("{bytes} {hex}"));
}
