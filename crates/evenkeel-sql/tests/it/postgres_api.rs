//! The API's own routes in front of a real PostgreSQL: statements, lists, streams, limits, errors.

use evenkeel_server::tenant::{TenantSettings, TenantSql};
use evenkeel_sql::SqlLimits;
use evenkeel_test_postgres::{SharedDatabase, shared};
use serde_json::{Value, json};

use crate::harness::{Client, Setup, SqlServer, eventually, tenant};

pub(crate) async fn database() -> SharedDatabase {
    tokio::task::spawn_blocking(|| shared().unwrap()).await.unwrap()
}

/// Runs SQL with psql, beside the gateway.
async fn psql(database: &SharedDatabase, sql: &str) -> String {
    tokio::task::block_in_place(|| database.psql(sql).unwrap()).trim().to_owned()
}

async fn start(setup: Setup) -> (SharedDatabase, SqlServer, Client) {
    let database = database().await;
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    let client = server.client();
    (database, server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_returns_columns_and_rows() {
    let (_database, _server, client) = start(Setup::default()).await;
    let json = client.query("select $1::int4 as n, $2 as t, null as z", json!([7, "é"])).await.ok();
    let columns =
        json!([{"name": "n", "type": "int4"}, {"name": "t", "type": "text"}, {"name": "z", "type": "text"}]);
    assert_eq!(json["columns"], columns);
    assert_eq!(json["rows"], json!([[7, "é", null]]));
    assert_eq!((&json["rowCount"], &json["command"]), (&json!(1), &json!("SELECT")));
    assert!(json["elapsedUs"].is_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_may_not_write_and_an_execute_may() {
    let (database, _server, client) = start(Setup::default()).await;
    psql(&database, "create table t (id int primary key, v text)").await;
    let insert = "insert into t values ($1, $2) returning v";
    assert_eq!(client.query(insert, json!([1, "a"])).await.error(), (400, "25006".to_owned()));
    assert_eq!(client.execute(insert, json!([1, "a"])).await.ok()["rows"], json!([["a"]]));
    assert_eq!(client.query(insert, json!([2, "b"])).await.error(), (400, "25006".to_owned()));
    let updated = client.execute("update t set v = 'c'", json!([])).await.ok();
    assert_eq!((&updated["rowCount"], &updated["command"]), (&json!(1), &json!("UPDATE")));
    assert_eq!(psql(&database, "select v from t").await, "c");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_error_keeps_its_fields() {
    let (database, _server, client) = start(Setup::default()).await;
    psql(&database, "create table t (id int primary key); insert into t values (1)").await;
    let error = client.execute("insert into t values (1)", json!([])).await.json();
    assert_eq!(error["code"], "23505");
    assert_eq!(error["detail"], "Key (id)=(1) already exists.");
    assert_eq!(error["constraint"], "t_pkey");
    let error = client.query("select * from missing", json!([])).await.json();
    assert_eq!((&error["code"], &error["position"]), (&json!("42P01"), &json!(15)));
    assert_eq!(client.query("select 1; select 2", json!([])).await.error(), (400, "42601".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_one_transaction() {
    let (database, _server, client) = start(Setup::default()).await;
    psql(&database, "create table t (id int primary key)").await;
    let list =
        |sqls: &[&str]| json!({"statements": sqls.iter().map(|sql| json!({"sql": sql})).collect::<Vec<_>>()});
    let both = client
        .post("/execute", list(&["insert into t values (1)", "select count(*)::int4 from t"]))
        .await
        .ok();
    assert_eq!(both["results"][1]["rows"], json!([[1]]));
    let failed =
        client.post("/execute", list(&["insert into t values (2)", "insert into t values (1)"])).await;
    assert_eq!(failed.error(), (400, "23505".to_owned()));
    assert_eq!(psql(&database, "select array_agg(id) from t").await, "{1}");
    let ended = client.post("/execute", list(&["insert into t values (3)", "commit", "select 1"])).await;
    assert_eq!(ended.error(), (400, "25001".to_owned()));
    let query = client.post("/query", list(&["select 1", "insert into t values (9)"])).await;
    assert_eq!(query.error(), (400, "25006".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_sends_lines_and_a_summary() {
    let (_database, _server, client) = start(Setup::default()).await;
    let client = client.with("accept", "application/x-ndjson");
    let response =
        client.query("select n, repeat('x', 100) from generate_series(1, 5000) n", json!([])).await;
    assert_eq!(response.headers["content-type"], "application/x-ndjson");
    let lines: Vec<Value> = response.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 5_002);
    assert_eq!(lines[0]["columns"][0]["name"], "n");
    assert_eq!((&lines[1][0], &lines[5_000][0]), (&json!(1), &json!(5_000)));
    assert_eq!(lines[5_001]["rowCount"], 5_000);
    let early = client.query("select * from missing", json!([])).await;
    assert_eq!(early.error(), (400, "42P01".to_owned()));
    let late = client.query("select 1 / (1000 - n) from generate_series(1, 1000) n", json!([])).await;
    let last: Value = serde_json::from_str(late.body.lines().last().unwrap()).unwrap();
    assert_eq!((late.status, &last["error"]["code"]), (200, &json!("22012")));
}

#[tokio::test(flavor = "multi_thread")]
async fn max_rows_and_the_size_limit_bound_a_result() {
    let limits = SqlLimits { result_bytes_max: 10_000, ..SqlLimits::default() };
    let (_database, server, client) = start(Setup { limits, ..Setup::default() }).await;
    let body = json!({"sql": "select generate_series(1, 1000000000)", "maxRows": 3});
    let cut = client.post("/query", body).await.ok();
    assert_eq!((&cut["rowCount"], &cut["truncated"]), (&json!(3), &json!(true)));
    let large = client.query("select repeat('x', 1000) from generate_series(1, 1000000)", json!([])).await;
    assert_eq!(large.error(), (413, "result_too_large".to_owned()));
    eventually("every connection is idle again", async || {
        let stats = server.stats().await;
        stats["openConns"] == stats["idleConns"] && stats["runningSql"] == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_cancels_the_statement_in_the_database() {
    let (database, _server, client) = start(Setup::default()).await;
    let body = json!({"sql": "select pg_sleep(600) /* slow */", "timeoutMs": 200});
    assert_eq!(client.post("/query", body).await.error(), (504, "57014".to_owned()));
    eventually("the statement is gone", async || running(&database, "slow").await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_cancels_the_statement_in_the_database() {
    let (database, server, client) = start(Setup::default()).await;
    let body = json!({"sql": "select pg_sleep(600) /* left */"}).to_string();
    let connection = client.open("POST", "/query", &body).await;
    eventually("the statement runs", async || running(&database, "left").await == 1).await;
    assert_eq!(server.stats().await["runningSql"], 1);
    drop(connection);
    eventually("the statement is gone", async || running(&database, "left").await == 0).await;
    eventually("the connection is idle again", async || {
        let stats = server.stats().await;
        stats["openConns"] == stats["idleConns"] && stats["runningHttpSession"] == 0
    })
    .await;
}

/// Counts the statements with a mark that the database executes now.
async fn running(database: &SharedDatabase, mark: &str) -> u32 {
    let sql = format!(
        "select count(*) from pg_stat_activity where state = 'active' and query like '%/* {mark} */' \
         and pid <> pg_backend_pid()"
    );
    psql(database, &sql).await.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_http_cannot_carry_get_a_clear_error_and_leave_a_clean_connection() {
    let (database, server, client) = start(Setup { max_open_conns: 1, ..Setup::default() }).await;
    psql(&database, "create table t (id int)").await;
    for sql in ["copy t from stdin", "copy t to stdout", "listen x"] {
        let error = client.execute(sql, json!([])).await;
        assert_eq!(error.error(), (400, "0A000".to_owned()), "{sql}");
        assert!(error.json()["message"].as_str().unwrap().contains("not supported"), "{sql}");
        assert_eq!(client.query("select 1", json!([])).await.ok()["rows"], json!([[1]]));
    }
    assert_eq!(client.execute("begin", json!([])).await.error(), (400, "25001".to_owned()));
    assert_eq!(client.execute("insert into t values (1)", json!([])).await.status, 200);
    assert_eq!(
        psql(&database, "select count(*) from t").await,
        "1",
        "the begin was rolled back, the insert committed"
    );
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_a_clear_error() {
    let (_database, _server, client) = start(Setup::default()).await;
    for (path, body, expected) in [
        ("/query", "{", (400, "invalid_request")),
        ("/query", r#"{"sql": 1}"#, (400, "invalid_request")),
        ("/query", r#"{"sql": "select 1", "database": "nope"}"#, (404, "unknown_database")),
        ("/query", r#"{"sql": "select $1", "params": [{"type": "nope", "value": 1}]}"#, (400, "22023")),
        ("/query", r#"{"sql": "select $1::int", "params": [[1]]}"#, (400, "22023")),
        ("/query", r#"{"sql": "select $1::int", "params": ["x"]}"#, (400, "22P02")),
        ("/query", r#"{"sql": "select $1::int"}"#, (400, "08P01")),
        ("/query", r#"{"sql": "select 1", "txId": "forged"}"#, (400, "invalid_tx_id")),
        ("/tx/commit", "{}", (400, "invalid_request")),
        ("/tx/begin", r#"{"isolation": "dirty"}"#, (400, "invalid_request")),
    ] {
        let response = client.send("POST", path, body).await;
        assert_eq!(response.error(), (expected.0, expected.1.to_owned()), "{path} {body}: {response:?}");
    }
    let foreign = client.clone().with("origin", "https://evil.example").query("select 1", json!([])).await;
    assert_eq!(foreign.error(), (403, "foreign_origin".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_uses_only_its_datasources_and_its_rate() {
    let database = database().await;
    let only_other = TenantSql { datasources: vec!["other".to_owned()], ..TenantSql::default() };
    let tenants = vec![
        TenantSettings { sql: only_other, ..tenant("a") },
        TenantSettings { rpm: Some(1), ..tenant("b") },
    ];
    let server = SqlServer::on_postgres(&database.url(), Setup { tenants, ..Setup::default() }).await;
    assert_eq!(
        server.client().query("select 1", json!([])).await.error(),
        (401, "invalid_api_key".to_owned())
    );
    let forbidden = server.client_of("a").query("select 1", json!([])).await;
    assert_eq!(forbidden.error(), (403, "datasource_forbidden".to_owned()));
    let limited = server.client_of("b");
    assert_eq!(limited.query("select 1", json!([])).await.status, 200);
    let response = limited.query("select 1", json!([])).await;
    assert_eq!(response.error(), (429, "rate_limit_exceeded".to_owned()));
    assert!(response.json()["retryAfterMs"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_and_settings_apply_to_a_tenants_statements() {
    let database = database().await;
    let role = format!("role_{}", database.name());
    psql(&database, &format!("create role {role}")).await;
    let sql = TenantSql {
        role: Some(role.clone()),
        settings: vec![("app.tenant".to_owned(), "o'hara".to_owned())],
        ..TenantSql::default()
    };
    let tenants = vec![TenantSettings { sql, ..tenant("a") }, tenant("b")];
    let setup = Setup { tenants, max_open_conns: 1, ..Setup::default() };
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    let sql = "select current_user::text, current_setting('app.tenant', true)";
    for _ in 0..2 {
        let a = server.client_of("a").query(sql, json!([])).await.ok();
        assert_eq!(a["rows"], json!([[role, "o'hara"]]));
        let b = server.client_of("b").query(sql, json!([])).await.ok();
        assert_ne!(b["rows"][0][0], json!(role));
        assert_ne!(b["rows"][0][1], json!("o'hara"));
    }
    server.api.close().await;
    psql(&database, &format!("drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_executes_once() {
    let (database, _server, client) = start(Setup::default()).await;
    psql(&database, "create table t (id int)").await;
    let client = client.with("idempotency-key", "abc");
    let insert = "insert into t values (1) returning id";
    let first = client.execute(insert, json!([])).await;
    let second = client.execute(insert, json!([])).await;
    assert_eq!((first.status, first.body), (second.status, second.body));
    assert_eq!(psql(&database, "select count(*) from t").await, "1");
    let other = client.execute("insert into t values (2)", json!([])).await;
    assert_eq!(other.error(), (422, "idempotency_mismatch".to_owned()));
}
