//! Types that users of a database create: enum, domain, composite, range, and arrays of them.

use serde_json::{Value, json};

use crate::harness::{Setup, SqlServer};
use crate::outside::{Outside, database_with};

const CREATE: &str = "create type mood as enum ('sad', 'it''s \"ok\"', 'a,b');
     create domain positive as int check (value > 0);
     create domain email as text check (value like '%@%');
     create type pair as (n int, \"T x\" text);
     create type float_range as range (subtype = float8);
     create type \"My Type\" as enum ('x');";

#[tokio::test(flavor = "multi_thread")]
async fn values_of_user_types_come_back_as_they_were_sent() {
    let database = database_with(CREATE).await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    for (index, (name, values)) in [
        ("mood", ["sad", "it's \"ok\"", "a,b"]),
        ("positive", ["1", "2147483647", "7"]),
        ("email", ["a@b", "@", "o'hara@x"]),
        ("pair", ["(1,a)", "(,)", "(-3,\"a\"\"b\\\\ ,(é)\")"]),
        ("float_range", ["empty", "[1.5,2)", "(,Infinity]"]),
        ("float_multirange", ["{}", "{[1.5,2)}", "{(,1),[2,3]}"]),
        ("\"My Type\"", ["x", "x", "x"]),
    ]
    .into_iter()
    .enumerate()
    {
        database.sql(&format!("create table t{index} (n serial, v {name}, a {name}[])")).await;
        let insert = format!("insert into t{index} (v, a) values ($1, $2) returning v, a");
        for value in values {
            let array = json!([value, null]);
            let stored = client.execute(&insert, json!([value, array])).await.ok()["rows"][0].clone();
            let typed = json!({"type": name, "value": value});
            let typed_array = json!({"type": format!("{name}[]"), "value": array});
            let back = client.execute(&insert, json!([typed, typed_array])).await.ok()["rows"][0].clone();
            assert_eq!(back, stored, "{name} {value}");
            let returned = client.execute(&insert, stored.clone()).await.ok()["rows"][0].clone();
            assert_eq!(returned, stored, "{name} {value}");
        }
        let texts = format!("select count(*), count(distinct (v::text, a::text)) from t{index}");
        let distinct = if name == "\"My Type\"" { 1 } else { 3 };
        assert_eq!(database.sql(&texts).await, format!("9|{distinct}"), "{name}");
        let expected = database.sql(&format!("select v::text from t{index} order by n limit 1")).await;
        let read =
            client.query(&format!("select v, a from t{index} order by n limit 1"), json!([])).await.ok();
        let text = read["rows"][0][0].as_str().map_or_else(|| read["rows"][0][0].to_string(), str::to_owned);
        assert_eq!(text, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_have_the_names_of_user_types() {
    let database = database_with(CREATE).await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let sql =
        "select null::mood, null::mood[], null::pair, null::pair[], null::float_range, null::\"My Type\"";
    let columns = server.client().query(sql, json!([])).await.ok()["columns"].clone();
    let names: Vec<&Value> = columns.as_array().unwrap().iter().map(|column| &column["type"]).collect();
    assert_eq!(names, ["mood", "mood[]", "pair", "pair[]", "float_range", "\"My Type\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domains_check_is_the_databases_own_error() {
    let database = database_with(CREATE).await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let negative = server.client().query("select $1::positive", json!([-1])).await;
    assert_eq!(negative.error(), (400, "23514".to_owned()));
    let unknown = server.client().query("select $1::mood", json!(["glad"])).await;
    assert_eq!(unknown.error(), (400, "22P02".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_that_is_created_later_can_be_named_at_once() {
    let database = database_with("create schema other; create type other.deep as enum ('z')").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    client.query("select 1", json!([])).await.ok();
    client.execute("create type late as enum ('x')", json!([])).await.ok();
    let named = client.query("select $1 as v", json!([{"type": "late", "value": "x"}])).await.ok();
    assert_eq!(named["rows"], json!([["x"]]));
    let array = json!({"type": "late[]", "value": ["x", null]});
    let named =
        client.query("select $1::text, $2 as v", json!([array, {"type": "other.deep", "value": "z"}])).await;
    assert_eq!(named.ok()["rows"], json!([["{x,NULL}", "z"]]));
    assert_eq!(named.ok()["columns"][1]["type"], "other.deep");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_type_of_a_table_has_its_name_and_keeps_the_session() {
    let database =
        database_with("create table pairs (a int, b text); insert into pairs values (1, 'x')").await;
    let server =
        SqlServer::on_postgres(&database.url(), Setup { max_open_conns: 1, ..Setup::default() }).await;
    let client = server.client();
    client.execute("create temporary table mine (id int)", json!([])).await.ok();
    for _ in 0..3 {
        let row = client.query("select pairs from pairs", json!([])).await.ok();
        assert_eq!((&row["rows"], &row["columns"][0]["type"]), (&json!([["(1,x)"]]), &json!("pairs")));
        // Loading the types again would take the connection from the tenant's session.
        client.query("select * from mine", json!([])).await.ok();
    }
}
