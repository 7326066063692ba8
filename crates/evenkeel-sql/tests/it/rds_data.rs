//! The RDS Data API in front of a real PostgreSQL and SQLite: an unmodified boto3, and its retries.

use std::time::Duration;

use evenkeel_server::tenant::{TenantSettings, TenantSql, TenantState};
use evenkeel_sql::SqlLimits;
use evenkeel_sql::datasource::sqlite::{SqliteDatasource, SqliteOptions};
use evenkeel_test_postgres::SharedDatabase;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::external_client::{python, run};
use crate::harness::{Setup, SqlServer, postgres, tenant};
use crate::injection::HOSTILE;
use crate::outside::{Outside, database_with};

/// A server with PostgreSQL (`main`) and SQLite (`lite`).
struct BothEngines {
    server: SqlServer,
    database: SharedDatabase,
    _directory: TempDir,
}

async fn start(tables: &str, setup: Setup) -> BothEngines {
    let database = database_with(tables).await;
    let directory = tempfile::tempdir().unwrap();
    let lite = SqliteDatasource::open(SqliteOptions::new(directory.path().join("lite.db"))).unwrap();
    let sources = vec![("main", postgres(&database.url(), setup.max_open_conns)), ("lite", lite as _)];
    BothEngines { server: SqlServer::start(sources, setup).await, database, _directory: directory }
}

/// Runs a script with the AWS credentials of these tenants.
async fn run_script(script: &'static str, both: &BothEngines, tenants: &[&str]) {
    let mut keys = Map::new();
    for name in tenants {
        let pair = both.server.credentials(name);
        keys.insert((*name).to_owned(), json!([pair.access_key_id, pair.secret_access_key.expose()]));
    }
    let config = json!({
        "endpoint": format!("http://{}", both.server.address), "database": both.database.name(),
        "hostile": HOSTILE, "keys": Value::Object(keys),
    });
    let script = move || run(python(script).arg(config.to_string()));
    tokio::task::spawn_blocking(script).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_boto3_performs_every_operation_with_every_type() {
    let both = start("", Setup { tenants: vec![tenant("a")], ..Setup::default() }).await;
    run_script("rds_data_client.py", &both, &["a"]).await;
    let metrics = both.server.registry.render();
    let line = r#"evenkeel_sql_requests_total{operation="rds-data",code="OK"}"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_raises_the_documented_errors_and_repeats_nothing_that_may_have_taken_effect() {
    let only_main = TenantSql { datasources: vec!["main".to_owned()], ..TenantSql::default() };
    let tenants = vec![
        tenant("a"),
        TenantSettings { sql: only_main, ..tenant("b") },
        TenantSettings { state: TenantState::Disabled, ..tenant("disabled") },
        TenantSettings { rpm: Some(1), ..tenant("limited") },
    ];
    let limits = SqlLimits {
        timeout_default: Duration::from_secs(2),
        result_bytes_max: 100_000,
        ..SqlLimits::default()
    };
    // Commits that lose their connection, or take longer than the time limit.
    let tables =
        "create table t (id int primary key); create sequence calls; create table dies (id int); create table sleeps (id int);
        create function die() returns trigger language plpgsql as
          'begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(60); return null; end';
        create constraint trigger die after insert on dies deferrable initially deferred
          for each row execute function die();
        create function doze() returns trigger language plpgsql as
          'begin perform pg_sleep(600); return null; end';
        create constraint trigger doze after insert on sleeps deferrable initially deferred
          for each row execute function doze();";
    let both = start(tables, Setup { tenants, limits, ..Setup::default() }).await;
    run_script("rds_data_errors_client.py", &both, &["a", "b", "disabled", "limited"]).await;
    assert_eq!(both.database.sql("select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_mode_needs_no_signature() {
    let both = start("", Setup::default()).await;
    let body = json!({"resourceArn": "arn:x:main", "secretArn": "s", "sql": "select 1"});
    let response = both.server.client().post("/Execute", body).await.ok();
    assert_eq!(response["records"], json!([[{"longValue": 1}]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_serves_only_open_transactions() {
    let both = start("", Setup::default()).await;
    let client = both.server.client();
    let target = json!({"resourceArn": "arn:x:main", "secretArn": "s"});
    let begun = client.post("/BeginTransaction", target.clone()).await.ok();
    let drain = both.server.api.drain(Duration::from_secs(30));
    let requests = async {
        let with = |extra: Value| {
            let mut body = target.clone();
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            body
        };
        let rejected = client.post("/Execute", with(json!({"sql": "select 1"}))).await;
        assert_eq!(rejected.status, 503);
        assert_eq!(rejected.headers["x-amzn-errortype"], "ServiceUnavailableError");
        let id = &begun["transactionId"];
        client.post("/Execute", with(json!({"sql": "select 1", "transactionId": id}))).await.ok();
        client.post("/CommitTransaction", with(json!({"transactionId": id}))).await.ok();
    };
    tokio::join!(drain, requests);
}

/// Starts a server with SQLite only, and returns it with its file's directory.
async fn start_sqlite(setup: Setup) -> (SqlServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let lite = SqliteDatasource::open(SqliteOptions::new(directory.path().join("lite.db"))).unwrap();
    (SqlServer::start(vec![("lite", lite as _)], setup).await, directory)
}

fn lite(extra: Value) -> Value {
    let mut body = json!({"resourceArn": "arn:x:lite", "secretArn": "s"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_would_end_its_transaction_runs_nothing() {
    let (server, _directory) = start_sqlite(Setup::default()).await;
    let client = server.client();
    client.post("/Execute", lite(json!({"sql": "create table t (id integer)"}))).await.ok();
    let id = client.post("/BeginTransaction", lite(json!({}))).await.ok()["transactionId"].clone();
    let insert = json!({"sql": "insert into t values (1)", "transactionId": id});
    client.post("/Execute", lite(insert)).await.ok();
    for sql in ["commit", "/* app */ END", "-- app\nrollback", "; begin"] {
        let batch = json!({"sql": sql, "parameterSets": [[], []], "transactionId": id});
        let rejected = client.post("/BatchExecute", lite(batch)).await;
        assert_eq!(rejected.status, 400, "{sql}: {rejected:?}");
        let message = "the statement of a batch may not begin or end a transaction";
        assert!(rejected.body.contains(message), "{sql}: {rejected:?}");
    }
    for sql in ["savepoint a", "/* app */ rollback to a"] {
        let batch = json!({"sql": sql, "parameterSets": [[]], "transactionId": id});
        client.post("/BatchExecute", lite(batch)).await.ok();
    }
    let count = json!({"sql": "select count(*) from t", "transactionId": id});
    let count = client.post("/Execute", lite(count)).await.ok();
    assert_eq!(count["records"], json!([[{"longValue": 1}]]), "the transaction is still open");
    client.post("/RollbackTransaction", lite(json!({"transactionId": id}))).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sets_of_a_batch_are_bound_after_admission() {
    let (server, _directory) = start_sqlite(Setup::default()).await;
    let client = server.client();
    let id = client.post("/BeginTransaction", lite(json!({}))).await.ok()["transactionId"].clone();
    let batch = lite(json!({"sql": "select :missing", "parameterSets": vec![json!([]); 10_000]}));
    assert_eq!(client.post("/BatchExecute", batch.clone()).await.status, 400);
    let drain = server.api.drain(Duration::from_secs(30));
    let requests = async {
        assert_eq!(client.post("/BatchExecute", batch).await.status, 503);
        client.post("/RollbackTransaction", lite(json!({"transactionId": id}))).await.ok();
    };
    tokio::join!(drain, requests);
}
