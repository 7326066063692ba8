//! `/sql` in front of a real PostgreSQL: Neon's own driver, and what the driver cannot send.

use std::time::Duration;

use evenkeel_server::tenant::{TenantSettings, TenantSql, TenantState};
use evenkeel_sql::SqlLimits;
use evenkeel_sql::datasource::sqlite::{SqliteDatasource, SqliteOptions};
use evenkeel_test_postgres::SharedDatabase;
use serde_json::{Value, json};

use crate::external_client::{node, node_packages, run};
use crate::harness::{Client, RawResponse, Setup, SqlServer, postgres, tenant};
use crate::postgres_api::database;

const PACKAGE: &str = "@neondatabase/serverless";

async fn psql(database: &SharedDatabase, sql: &str) -> String {
    tokio::task::block_in_place(|| database.psql(sql).unwrap()).trim().to_owned()
}

async fn start(setup: Setup) -> (SharedDatabase, SqlServer) {
    let database = database().await;
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    (database, server)
}

/// Returns a client of `/sql` with the API key of a tenant.
fn client(server: &SqlServer, tenant: &str) -> Client {
    connect(server, &format!("postgresql://u:ek-{tenant}@h/main"))
}

fn connect(server: &SqlServer, connection_string: &str) -> Client {
    server.client().with("neon-connection-string", connection_string)
}

async fn query(client: &Client, sql: &str) -> RawResponse {
    client.post("/sql", json!({"query": sql, "params": []})).await
}

fn batch(queries: &[&str]) -> Value {
    let queries: Vec<Value> = queries.iter().map(|query| json!({"query": query})).collect();
    json!({"queries": queries})
}

/// Asserts an error in the form that the driver reads; returns its message.
#[track_caller]
fn message(response: &RawResponse, status: u16, code: &str) -> String {
    assert_eq!(response.error(), (status, code.to_owned()), "{response:?}");
    let json = response.json();
    assert!(json["severity"].is_string(), "{json}");
    json["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_driver_works() {
    let database = database().await;
    let role = format!("role_{}", database.name());
    psql(&database, &format!("create role {role}")).await;
    let sql = TenantSql {
        datasources: vec!["main".to_owned()],
        role: Some(role.clone()),
        settings: vec![("app.tenant".to_owned(), "o'hara".to_owned())],
    };
    let tenants = vec![TenantSettings { sql, ..tenant("a") }, tenant("b")];
    let directory = tempfile::tempdir().unwrap();
    let lite = SqliteDatasource::open(SqliteOptions::new(directory.path().join("lite.db"))).unwrap();
    // Two connections, so that the tenants share them.
    let setup = Setup { tenants, max_open_conns: 2, max_transaction_conns: 1, ..Setup::default() };
    let sources = vec![("main", postgres(&database.url(), 2)), ("lite", lite as _)];
    let server = SqlServer::start(sources, setup).await;
    let config = json!({
        "endpoint": format!("http://{}/sql", server.address), "database": database.name(), "role": role,
        "keys": ["ek-a", "ek-b"],
    });
    let script = move || run(node("neon_client.cjs").arg(node_packages(PACKAGE)).arg(config.to_string()));
    tokio::task::spawn_blocking(script).await.unwrap();
    server.api.close().await;
    psql(&database, &format!("drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_drivers_headers_rows_are_objects_of_json_values() {
    let (_database, server) = start(Setup::default()).await;
    let sql =
        "select $1::int4 as n, $2::jsonb as o, $3::int4[] as l, $4::bool as b, $5::text as t, $6::json as z";
    let body = json!({"query": sql, "params": [7, {"a": 1}, [1, null], true, "x", null]});
    let client = connect(&server, "postgresql://h");
    let plain = client.post("/sql", body.clone()).await.ok();
    let row = json!({"n": 7, "o": {"a": 1}, "l": [1, null], "b": true, "t": "x", "z": null});
    assert_eq!((&plain["rows"], &plain["rowAsArray"]), (&json!([row]), &json!(false)));
    let driver = client.with("neon-raw-text-output", "true").with("neon-array-mode", "true");
    let raw = driver.post("/sql", body).await.ok();
    assert_eq!(raw["rows"], json!([["7", "{\"a\": 1}", "{1,NULL}", "t", "x", null]]));
    assert_eq!(raw["rowAsArray"], json!(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn open_mode_needs_no_password_and_no_database() {
    let (_database, server) = start(Setup::default()).await;
    for connection_string in ["postgres://h", "postgres://u@h/", "postgresql://u:anything@h/main?x=y"] {
        let response = query(&connect(&server, connection_string), "select 1 as one").await.ok();
        assert_eq!(response["rows"], json!([{"one": 1}]), "{connection_string}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_gets_a_clear_error() {
    let (_database, server) = start(Setup { tenants: vec![tenant("a")], ..Setup::default() }).await;
    let missing = query(&server.client_of("a"), "select 1").await;
    assert_eq!(message(&missing, 400, "08P01"), "Neon-Connection-String is missing");
    let scheme = query(&connect(&server, "mysql://u:ek-a@h/main"), "select 1").await;
    assert!(message(&scheme, 400, "08P01").contains("must be postgresql://"));
    let client = client(&server, "a");
    for (body, part) in [
        ("{", "invalid JSON body"),
        ("{}", "query is missing"),
        (r#"{"query": "select 1", "queries": []}"#, "not both"),
        (r#"{"query": "select 1", "params": {}}"#, "invalid type"),
    ] {
        let response = client.send("POST", "/sql", body).await;
        assert!(message(&response, 400, "08P01").contains(part), "{body}: {response:?}");
    }
    // A page of another site lacks the key, and is rejected where none is needed.
    let page = client.clone().with("origin", "https://evil.example");
    assert_eq!(query(&page, "select 1").await.status, 200);
    server.reload(Vec::new());
    message(&query(&page, "select 1").await, 403, "42501");
    let method = client.send("GET", "/sql", "").await;
    assert_eq!((method.status, method.headers["allow"].as_str()), (405, "POST"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_keeps_its_limits() {
    let limited = TenantSettings { rpm: Some(2), ..tenant("a") };
    let disabled = TenantSettings { state: TenantState::Disabled, ..tenant("b") };
    let (_database, server) = start(Setup { tenants: vec![limited, disabled], ..Setup::default() }).await;
    let client_a = client(&server, "a");
    assert_eq!(query(&connect(&server, "postgres://u:wrong@h/main"), "select 1").await.status, 400);
    // A batch is one request.
    client_a.post("/sql", batch(&["select 1", "select 2"])).await.ok();
    query(&client_a, "select 1").await.ok();
    let response = query(&client_a, "select 1").await;
    message(&response, 429, "53400");
    assert!(response.headers.contains_key("retry-after"), "{response:?}");
    message(&query(&client(&server, "b"), "select 1").await, 400, "28000");
}

#[tokio::test(flavor = "multi_thread")]
async fn results_and_queries_are_limited() {
    let limits = SqlLimits { result_bytes_max: 10_000, statements_max: 2, ..SqlLimits::default() };
    let (database, server) = start(Setup { limits, ..Setup::default() }).await;
    psql(&database, "create table t (id int)").await;
    let client = connect(&server, "postgres://h");
    let large = query(&client, "select repeat('x', 1000) from generate_series(1, 1000000)").await;
    assert!(message(&large, 400, "54000").contains("larger than 10000 bytes"));
    let half = "select repeat('x', 6000)";
    client.post("/sql", batch(&[half])).await.ok();
    let both = client.post("/sql", batch(&[half, half])).await;
    assert!(message(&both, 400, "54000").contains("larger than 10000 bytes"));
    let large_write = batch(&["insert into t values (1)", "select repeat('x', 20000)"]);
    message(&client.post("/sql", large_write).await, 400, "54000");
    let many = client.post("/sql", batch(&["select 1", "select 2", "select 3"])).await;
    assert_eq!(message(&many, 400, "08P01"), "queries has more than 2 entries");
    assert_eq!(psql(&database, "select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_limit_rolls_a_batch_back() {
    let limits = SqlLimits { timeout_default: Duration::from_millis(500), ..SqlLimits::default() };
    let (database, server) = start(Setup { limits, ..Setup::default() }).await;
    psql(&database, "create table t (id int)").await;
    let client = connect(&server, "postgres://h");
    message(&query(&client, "select pg_sleep(600)").await, 400, "57014");
    let slow = batch(&["insert into t values (1)", "select pg_sleep(600)"]);
    message(&client.post("/sql", slow).await, 400, "57014");
    assert_eq!(psql(&database, "select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_several_databases_have_selects_none() {
    let database = database().await;
    let source = || postgres(&database.url(), 4);
    let server = SqlServer::start(vec![("x", source()), ("y", source())], Setup::default()).await;
    let shared_name = connect(&server, &format!("postgres://h/{}", database.name()));
    assert!(message(&query(&shared_name, "select 1").await, 400, "08P01").contains("several datasources"));
    for name in ["x", "y"] {
        query(&connect(&server, &format!("postgres://h/{name}")), "select 1").await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_accepts_no_queries() {
    let (_database, server) = start(Setup::default()).await;
    let client = connect(&server, "postgres://h");
    query(&client, "select 1").await.ok();
    server.api.drain(Duration::ZERO).await;
    let response = query(&client, "select 1").await;
    message(&response, 503, "57P03");
    assert!(response.headers.contains_key("retry-after"), "{response:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_code() {
    let (_database, server) = start(Setup::default()).await;
    let client = connect(&server, "postgres://h");
    query(&client, "select 1").await.ok();
    query(&client, "select nothing").await;
    let metrics = server.registry.render();
    for line in [
        r#"evenkeel_sql_requests_total{operation="neon",code="OK"} 1"#,
        r#"evenkeel_sql_requests_total{operation="neon",code="42703"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}
