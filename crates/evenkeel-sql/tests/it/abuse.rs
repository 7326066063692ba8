//! Tenants that try to hurt others, or themselves, with requests that the API accepts.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_sql::SqlLimits;
use evenkeel_sql::datasource::sqlite::{SqliteDatasource, SqliteOptions};
use serde_json::json;

use crate::harness::{Setup, SqlServer, eventually, tenant};
use crate::postgres_api::database;

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_gets_the_id_of_a_removed_one_sees_nothing_of_it() {
    let database = database().await;
    let setup = Setup { tenants: vec![tenant("old")], max_open_conns: 1, ..Setup::default() };
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    let old = server.client_of("old").with("idempotency-key", "k");
    old.execute("create temp table secrets (id int)", json!([])).await.ok();
    server.reload(Vec::new());
    server.reload(vec![tenant("new")]);
    let new = server.client_of("new");
    assert_eq!(new.query("select * from secrets", json!([])).await.error(), (400, "42P01".to_owned()));
    let repeated =
        new.with("idempotency-key", "k").execute("create temp table secrets (id int)", json!([])).await;
    assert!(repeated.ok()["elapsedUs"].is_u64());
    assert_eq!(
        server.client_of("new").query("select * from secrets", json!([])).await.status,
        200,
        "it was executed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_that_a_client_raises_takes_the_database_out_of_service() {
    let database = database().await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    for code in ["08006", "53300", "57P01", "58030", "XX001"] {
        for _ in 0..6 {
            let sql = format!("do $$ begin raise exception using errcode = '{code}'; end $$");
            assert_eq!(client.execute(&sql, json!([])).await.json()["code"], code);
        }
    }
    for _ in 0..6 {
        let hasty = json!({"sql": "select pg_sleep(0.1)", "timeoutMs": 1});
        assert_eq!(client.post("/query", hasty).await.status, 504);
    }
    assert_eq!(client.query("select 1", json!([])).await.status, 200);
    let stats = server.stats().await;
    assert_eq!(stats["status"], "SERVING", "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_a_large_result_is_executed_and_says_so() {
    let database = database().await;
    tokio::task::block_in_place(|| database.psql("create table t (v text)").unwrap());
    let limits = SqlLimits { result_bytes_max: 10_000, ..SqlLimits::default() };
    let server = SqlServer::on_postgres(&database.url(), Setup { limits, ..Setup::default() }).await;
    let client = server.client();
    let insert = "insert into t select repeat('x', 1000) from generate_series(1, 5000) returning v";
    let response = client.execute(insert, json!([])).await;
    assert_eq!(response.error(), (413, "executed_result_too_large".to_owned()));
    let count = client.query("select count(*)::int4 from t", json!([])).await.ok();
    assert_eq!(count["rows"], json!([[5_000]]));
    let list = client.post("/execute", json!({"statements": [{"sql": insert}]})).await;
    assert_eq!(list.error(), (413, "result_too_large".to_owned()));
    let count = client.query("select count(*)::int4 from t", json!([])).await.ok();
    assert_eq!(count["rows"], json!([[5_000]]), "the list was rolled back");
    let wide = client.query("select repeat(chr(1), 60000000)", json!([])).await;
    assert_eq!(wide.error(), (413, "result_too_large".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_learn_the_address_of_an_unreachable_database() {
    let server = SqlServer::on_postgres("postgres://joe:secret@127.0.0.1:1/db", Setup::default()).await;
    let response = server.client().query("select 1", json!([])).await;
    assert_eq!(response.error(), (503, "08001".to_owned()));
    assert_eq!(response.json()["message"], "the database is unavailable");
    let stored = server.client().with("idempotency-key", "k");
    for _ in 0..2 {
        assert_eq!(stored.execute("select 1", json!([])).await.status, 503);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_in_a_transaction_is_rejected() {
    let database = database().await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    let response = client.clone().with("idempotency-key", "k").execute_in(&tx, "select 1").await;
    assert_eq!(response.error(), (400, "idempotency_in_transaction".to_owned()));
    client.post("/tx/commit", json!({"txId": tx})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_transaction_does_not_hold_the_writer_of_sqlite_while_others_wait() {
    let directory = tempfile::tempdir().unwrap();
    let source = SqliteDatasource::open(SqliteOptions::new(directory.path().join("a.db"))).unwrap();
    let limits =
        SqlLimits { transaction_contended_idle_max: Duration::from_millis(200), ..SqlLimits::default() };
    let setup = Setup { tenants: vec![tenant("a"), tenant("b")], limits, ..Setup::default() };
    let server = SqlServer::start(vec![("main", source as Arc<_>)], setup).await;
    let a = server.client_of("a");
    a.execute("create table t (id integer)", json!([])).await.ok();
    let tx = a.begin(json!({})).await;
    a.execute_in(&tx, "insert into t values (1)").await.ok();
    server.client_of("b").execute("insert into t values (2)", json!([])).await.ok();
    let ended = a.execute_in(&tx, "select 1").await;
    assert_eq!(ended.error(), (410, "transaction_ended".to_owned()));
    let rows = server.client_of("b").query("select id from t", json!([])).await.ok();
    assert_eq!(rows["rows"], json!([[2]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_begin_that_waited_through_the_drain_opens_nothing() {
    let database = database().await;
    let setup = Setup { max_open_conns: 1, max_transaction_conns: 1, ..Setup::default() };
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    let client = server.client();
    let slow = tokio::spawn({
        let client = client.clone();
        async move { client.query("select pg_sleep(1)", json!([])).await.status }
    });
    eventually("the only connection is busy", async || server.stats().await["runningSql"] == 1).await;
    let waiting = tokio::spawn(async move { client.post("/tx/begin", json!({})).await.error() });
    eventually("a begin waits", async || server.stats().await["waitConnCount"] == 1).await;
    server.api.drain(Duration::ZERO).await;
    assert_eq!(waiting.await.unwrap(), (503, "shutting_down".to_owned()));
    assert_eq!(slow.await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn end_as_sql_commits_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let source = SqliteDatasource::open(SqliteOptions::new(directory.path().join("a.db"))).unwrap();
    let server = SqlServer::start(vec![("main", source as Arc<_>)], Setup::default()).await;
    let client = server.client();
    client.execute("create table t (id integer)", json!([])).await.ok();
    let tx = client.begin(json!({})).await;
    client.execute_in(&tx, "insert into t values (1)").await.ok();
    client.execute_in(&tx, "end").await.ok();
    assert_eq!(client.query("select id from t", json!([])).await.ok()["rows"], json!([[1]]));
    let ended = client.execute_in(&tx, "select 1").await.json();
    assert_eq!(ended["message"], "the transaction has ended: it was committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_cannot_be_prepared_for_two_phase_commit() {
    let database = database().await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    let refused = client.execute_in(&tx, " Prepare  transaction 'x'").await;
    assert_eq!(refused.error(), (400, "0A000".to_owned()));
    client.post("/tx/commit", json!({"txId": tx})).await.ok();
}
