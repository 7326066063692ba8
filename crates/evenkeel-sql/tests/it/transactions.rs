//! Transactions over HTTP in front of a real PostgreSQL: their life, their ends, and who may use them.

use std::time::Duration;

use evenkeel_server::tenant::TenantSettings;
use evenkeel_sql::SqlLimits;
use evenkeel_sql::datasource::{
    AccessMode, BeginOptions, Lease, ReleaseCallback, Session, TransactionEnd, TransactionStatus,
};
use evenkeel_test_postgres::SharedDatabase;
use serde_json::json;

use crate::harness::{Client, Setup, SqlServer, eventually, postgres, tenant};
use crate::postgres_api::database;

/// Starts a server in front of a database with a table `t (id int)`.
async fn start(setup: Setup) -> (SharedDatabase, SqlServer) {
    let database = database().await;
    psql(&database, "create table t (id int)").await;
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    (database, server)
}

async fn psql(database: &SharedDatabase, sql: &str) -> String {
    tokio::task::block_in_place(|| database.psql(sql).unwrap()).trim().to_owned()
}

/// Returns the ids that a client beside the gateway sees.
async fn ids(database: &SharedDatabase) -> String {
    psql(database, "select coalesce(string_agg(id::text, ',' order by id), '') from t").await
}

fn ended(reason: &str) -> (u16, String, String) {
    (410, "transaction_ended".to_owned(), format!("the transaction has ended: {reason}"))
}

/// Runs a statement in a transaction and returns status, code and message of the error.
async fn error_in(client: &Client, tx_id: &str) -> (u16, String, String) {
    let response = client.execute_in(tx_id, "select 1").await;
    let (status, code) = response.error();
    (status, code, response.json()["message"].as_str().unwrap_or_default().to_owned())
}

async fn is_idle(server: &SqlServer) -> bool {
    let stats = server.stats().await;
    stats["runningTx"] == 0 && stats["openConns"] == stats["idleConns"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_visible_and_a_rollback_is_not() {
    let (database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    assert_eq!(client.execute_in(&tx, "insert into t values (1)").await.status, 200);
    assert_eq!(ids(&database).await, "", "nobody else sees it yet");
    assert_eq!(server.stats().await["runningTx"], 1);
    assert_eq!(client.post("/tx/commit", json!({"txId": tx})).await.ok()["status"], "committed");
    assert_eq!(ids(&database).await, "1");
    let other = client.begin(json!({"isolation": "serializable"})).await;
    let level = client.execute_in(&other, "show transaction_isolation").await.ok();
    assert_eq!(level["rows"], json!([["serializable"]]));
    assert_eq!(client.execute_in(&other, "insert into t values (2)").await.status, 200);
    assert_eq!(client.post("/tx/rollback", json!({"txId": other})).await.ok()["status"], "rolled back");
    assert_eq!(ids(&database).await, "1");
    assert_eq!(error_in(&client, &tx).await, ended("it was committed"));
    assert_eq!(error_in(&client, &other).await, ended("it was rolled back"));
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_transaction_rejects_writes() {
    let (_database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({"readOnly": true})).await;
    assert_eq!(client.execute_in(&tx, "insert into t values (1)").await.error().1, "25006");
    let commit = client.post("/tx/commit", json!({"txId": tx})).await;
    assert_eq!(commit.error(), (409, "40000".to_owned()), "a failed transaction cannot be committed");
    let failed = ended("the database rolled it back instead of committing it");
    assert_eq!(error_in(&client, &tx).await, failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_statement_at_once_is_rejected() {
    let (_database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    let slow = tokio::spawn({
        let client = client.clone();
        let tx = tx.clone();
        async move { client.execute_in(&tx, "select pg_sleep(1)").await.status }
    });
    eventually("the first runs", async || server.stats().await["runningSql"] == 1).await;
    assert_eq!(client.execute_in(&tx, "select 1").await.error(), (409, "transaction_busy".to_owned()));
    let commit = client.post("/tx/commit", json!({"txId": tx})).await;
    assert_eq!(commit.error(), (409, "transaction_busy".to_owned()));
    assert_eq!(slow.await.unwrap(), 200);
    assert_eq!(client.post("/tx/commit", json!({"txId": tx})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_transaction_is_rolled_back() {
    let limits = SqlLimits { transaction_idle_max: Duration::from_millis(300), ..SqlLimits::default() };
    let (database, server) = start(Setup { limits, ..Setup::default() }).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    client.execute_in(&tx, "insert into t values (1)").await.ok();
    eventually("it is rolled back", async || server.stats().await["runningTx"] == 0).await;
    assert_eq!(error_in(&client, &tx).await, ended("it was idle for too long and was rolled back"));
    assert_eq!(ids(&database).await, "");
    eventually("its connection is idle", async || is_idle(&server).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_may_take_longer_than_the_idle_limit() {
    let limits = SqlLimits { transaction_idle_max: Duration::from_millis(200), ..SqlLimits::default() };
    let (_database, server) = start(Setup { limits, ..Setup::default() }).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    client.execute_in(&tx, "select pg_sleep(1)").await.ok();
    assert_eq!(client.post("/tx/commit", json!({"txId": tx})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_limit_ends_a_transaction_and_its_statement() {
    let limits = SqlLimits { transaction_time_max: Duration::from_millis(500), ..SqlLimits::default() };
    let (database, server) = start(Setup { limits, ..Setup::default() }).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    let stopped = client.execute_in(&tx, "select pg_sleep(600)").await;
    assert_eq!(stopped.error(), (410, "transaction_ended".to_owned()));
    eventually("it is rolled back", async || is_idle(&server).await).await;
    assert_eq!(error_in(&client, &tx).await, ended("it was open for too long and was rolled back"));
    let sleeping =
        "select count(*) from pg_stat_activity where query like '%pg_sleep(600)' and state <> 'idle'";
    assert_eq!(psql(&database, sleeping).await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_and_rollback_as_sql_end_the_transaction() {
    let (database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    client.execute_in(&tx, "insert into t values (1)").await.ok();
    client.execute_in(&tx, "COMMIT").await.ok();
    assert_eq!(error_in(&client, &tx).await, ended("it was committed"));
    let tx = client.begin(json!({})).await;
    client.execute_in(&tx, "insert into t values (2)").await.ok();
    client.execute_in(&tx, "rollback").await.ok();
    assert_eq!(error_in(&client, &tx).await, ended("it was rolled back"));
    assert_eq!(ids(&database).await, "1");
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_statement_leaves_a_transaction_that_can_be_rolled_back() {
    let (_database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    assert_eq!(client.execute_in(&tx, "select 1 / 0").await.error(), (400, "22012".to_owned()));
    assert_eq!(client.execute_in(&tx, "select 1").await.error(), (400, "25P02".to_owned()));
    assert_eq!(client.post("/tx/rollback", json!({"txId": tx})).await.status, 200);
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_survives_an_error() {
    let (database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    for sql in ["insert into t values (1)", "savepoint a", "insert into t values (2)"] {
        client.execute_in(&tx, sql).await.ok();
    }
    assert_eq!(client.execute_in(&tx, "select 1 / 0").await.status, 400);
    client.execute_in(&tx, "rollback to savepoint a").await.ok();
    client.post("/tx/commit", json!({"txId": tx})).await.ok();
    assert_eq!(ids(&database).await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_cancels_its_statement_but_keeps_its_transaction() {
    let (_database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    let body = json!({"sql": "select pg_sleep(600)", "txId": tx}).to_string();
    let connection = client.open("POST", "/query", &body).await;
    eventually("it runs", async || server.stats().await["runningSql"] == 1).await;
    drop(connection);
    eventually("the transaction takes statements again", async || {
        client.execute_in(&tx, "select 1").await.error().1 != "transaction_busy"
    })
    .await;
    assert_eq!(client.execute_in(&tx, "select 1").await.error().1, "25P02", "a cancelled statement fails it");
    assert_eq!(client.post("/tx/rollback", json!({"txId": tx})).await.status, 200);
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_in_a_transaction_cancels_only_the_statement() {
    let (_database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    let slow = json!({"sql": "select pg_sleep(600)", "txId": tx, "timeoutMs": 200});
    assert_eq!(client.post("/query", slow).await.error(), (504, "57014".to_owned()));
    eventually("the transaction can be rolled back", async || {
        client.post("/tx/rollback", json!({"txId": tx})).await.status == 200
    })
    .await;
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_tenant_on_its_node_can_use_a_transaction() {
    let tenants = vec![tenant("a"), tenant("b")];
    let (database, server) = start(Setup { tenants: tenants.clone(), ..Setup::default() }).await;
    let a = server.client_of("a");
    let tx = a.begin(json!({})).await;
    let b = server.client_of("b");
    for path in ["/tx/commit", "/tx/rollback"] {
        let foreign = b.post(path, json!({"txId": tx})).await;
        assert_eq!(foreign.error(), (403, "foreign_transaction".to_owned()));
    }
    assert_eq!(b.execute_in(&tx, "select 1").await.error(), (403, "foreign_transaction".to_owned()));
    let restarted =
        SqlServer::on_postgres(&database.url(), Setup { tenants: tenants.clone(), ..Setup::default() }).await;
    let gone = restarted.client_of("a").execute_in(&tx, "select 1").await;
    assert_eq!(gone.error(), (410, "unknown_transaction".to_owned()));
    let setup = Setup { tenants, signing_key: [8; 32], ..Setup::default() };
    let other_key = SqlServer::on_postgres(&database.url(), setup).await;
    let forged = other_key.client_of("a").execute_in(&tx, "select 1").await;
    assert_eq!(forged.error(), (400, "invalid_tx_id".to_owned()));
    assert_eq!(a.post("/tx/commit", json!({"txId": tx})).await.status, 200, "nothing of that harmed it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_is_served_over_the_rate_limit_and_while_draining() {
    let tenants = vec![TenantSettings { rpm: Some(2), ..tenant("a") }];
    let (database, server) = start(Setup { tenants, ..Setup::default() }).await;
    let client = server.client_of("a");
    let tx = client.begin(json!({})).await;
    let other = client.begin(json!({})).await;
    assert_eq!(client.query("select 1", json!([])).await.status, 429);
    for _ in 0..5 {
        client.execute_in(&tx, "insert into t values (1)").await.ok();
    }
    let draining = tokio::spawn({
        let api = server.api.clone();
        async move { api.drain(Duration::from_secs(2)).await }
    });
    eventually("it drains", async || server.stats().await["status"] == "DRAINING").await;
    assert_eq!(client.post("/tx/begin", json!({})).await.status, 429);
    client.execute_in(&tx, "insert into t values (2)").await.ok();
    assert_eq!(client.post("/tx/commit", json!({"txId": tx})).await.status, 200);
    draining.await.unwrap();
    eventually("the other is rolled back", async || is_idle(&server).await).await;
    assert_eq!(error_in(&client, &other).await, ended("the server was shut down, and it was rolled back"));
    assert_eq!(ids(&database).await, "1,1,1,1,1,2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_node_begins_nothing_new() {
    let (_database, server) = start(Setup::default()).await;
    server.api.drain(Duration::ZERO).await;
    let client = server.client();
    assert_eq!(client.post("/tx/begin", json!({})).await.error(), (503, "shutting_down".to_owned()));
    assert_eq!(client.query("select 1", json!([])).await.error(), (503, "shutting_down".to_owned()));
    assert_eq!(client.get("/healthz").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_a_transaction_gives_the_connection_back() {
    let (_database, server) = start(Setup::default()).await;
    let client = server.client();
    let tx = client.begin(json!({})).await;
    let lines = client.clone().with("accept", "application/x-ndjson");
    let body = json!({"sql": "select generate_series(1, 1000)", "txId": tx});
    let response = lines.post("/query", body).await;
    assert_eq!(response.body.lines().count(), 1_002);
    client.execute_in(&tx, "select 1").await.ok();
    let truncated = json!({"sql": "select generate_series(1, 1000000000)", "txId": tx, "maxRows": 2});
    let cut = client.post("/query", truncated).await.ok();
    assert_eq!(
        (&cut["truncated"], &cut["rowCount"], &cut["command"]),
        (&json!(true), &json!(2), &json!("SELECT"))
    );
    client.execute_in(&tx, "select 1").await.ok();
    assert_eq!(client.post("/tx/commit", json!({"txId": tx})).await.status, 200);
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_at_any_moment_leaves_a_transaction_that_can_be_ended() {
    let (_database, server) =
        start(Setup { max_open_conns: 8, max_transaction_conns: 6, ..Setup::default() }).await;
    let client = server.client();
    let rounds = (0..4).map(|worker: u64| {
        let client = client.clone();
        tokio::spawn(async move {
            for round in 0..30 {
                let tx = client.begin(json!({})).await;
                let body = json!({"sql": "select 1", "txId": tx}).to_string();
                let connection = client.open("POST", "/query", &body).await;
                // From before the request is read to after its response is sent.
                tokio::time::sleep(Duration::from_micros((worker * 30 + round) * 40)).await;
                drop(connection);
                eventually("the transaction can be rolled back", async || {
                    client.post("/tx/rollback", json!({"txId": tx})).await.status == 200
                })
                .await;
            }
        })
    });
    for round in rounds.collect::<Vec<_>>() {
        round.await.unwrap();
    }
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_as_sql_that_fails_ends_the_transaction() {
    let (database, server) = start(Setup::default()).await;
    let client = server.client();
    let deferred = "create table p (id int primary key); create table c (p int references p deferrable initially deferred)";
    psql(&database, deferred).await;
    let tx = client.begin(json!({})).await;
    client.execute_in(&tx, "insert into c values (1)").await.ok();
    assert_eq!(client.execute_in(&tx, "COMMIT").await.error(), (400, "23503".to_owned()));
    let failed = ended("the database rolled it back instead of committing it");
    assert_eq!(error_in(&client, &tx).await, failed, "a statement must not run outside of the transaction");
    let tx = client.begin(json!({})).await;
    assert_eq!(client.execute_in(&tx, "select 1 / 0").await.status, 400);
    assert_eq!(client.execute_in(&tx, "end").await.error(), (409, "40000".to_owned()));
    assert_eq!(error_in(&client, &tx).await, failed);
    assert!(is_idle(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_has_failed_after_a_recovery_even_if_the_cancel_came_too_late() {
    let (database, _server) = start(Setup::default()).await;
    let source = postgres(&database.url(), 1);
    let session = Session { owner: 1, role: None, settings: Vec::new() };
    let lease = Lease { session, access: AccessMode::ReadWrite, on_release: ReleaseCallback::new(|| ()) };
    let mut connection = source.connect(lease).await.unwrap();
    let options = BeginOptions { isolation: None, access: AccessMode::ReadWrite };
    connection.begin(options).await.unwrap();
    // No statement runs any more, as when it finished before the cancel.
    connection.recover().await.unwrap();
    assert_eq!(connection.transaction_status(), TransactionStatus::Failed);
    assert_eq!(connection.end(TransactionEnd::Commit).await.unwrap_err().sqlstate(), "40000");
}
