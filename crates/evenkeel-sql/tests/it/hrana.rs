//! Hrana over HTTP in front of a real SQLite: the unmodified clients, and what they do not send.

mod cursors;
mod limits;
mod requests;
mod transactions;

use evenkeel_server::tenant::{TenantSettings, TenantSql};
use evenkeel_sql::datasource::sqlite::{SqliteDatasource, SqliteOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::external_client::{node, node_packages, python, run};
use crate::harness::{Client, RawResponse, Setup, SqlServer, postgres, tenant};

/// A server in front of one SQLite file.
struct HranaServer {
    server: SqlServer,
    client: Client,
    _directory: TempDir,
}

async fn start(setup: Setup) -> HranaServer {
    let directory = tempfile::tempdir().unwrap();
    let source = SqliteDatasource::open(SqliteOptions::new(directory.path().join("main.db"))).unwrap();
    let server = SqlServer::start(vec![("main", source as _)], setup).await;
    let client = server.client();
    HranaServer { server, client, _directory: directory }
}

/// Starts a server with a table `t (id integer primary key, v text)`.
async fn start_with_table(setup: Setup) -> HranaServer {
    let started = start(setup).await;
    let sql = "create table t (id integer primary key, v text)";
    started.pipeline(None, json!([execute(sql), close()])).await;
    started
}

impl HranaServer {
    /// Sends a pipeline, and returns the body of its response.
    async fn pipeline(&self, baton: Option<&str>, requests: Value) -> Value {
        self.send(baton, requests).await.ok()
    }

    async fn send(&self, baton: Option<&str>, requests: Value) -> RawResponse {
        self.client.post("/v3/pipeline", json!({"baton": baton, "requests": requests})).await
    }

    /// Runs a statement on a stream of its own, and returns its only value.
    async fn value(&self, sql: &str) -> Value {
        let body = self.pipeline(None, json!([execute(sql), close()])).await;
        body["results"][0]["response"]["result"]["rows"][0][0]["value"].clone()
    }

    /// Begins a transaction that writes, and returns its baton.
    async fn begin(&self) -> String {
        baton(&self.pipeline(None, json!([execute("BEGIN IMMEDIATE")])).await)
    }
}

fn execute(sql: &str) -> Value {
    json!({"type": "execute", "stmt": {"sql": sql}})
}

fn close() -> Value {
    json!({"type": "close"})
}

/// Returns a batch of steps without conditions.
fn batch(statements: &[&str]) -> Value {
    let steps: Vec<Value> = statements.iter().map(|sql| json!({"stmt": {"sql": sql}})).collect();
    json!({"steps": steps})
}

#[track_caller]
fn baton(body: &Value) -> String {
    body["baton"].as_str().unwrap_or_else(|| panic!("no baton in {body}")).to_owned()
}

/// Returns the rows of the result at an index, each value as `{type, value}`.
fn rows(body: &Value, index: usize) -> &Value {
    &body["results"][index]["response"]["result"]["rows"]
}

/// Returns the code of the error at an index.
#[track_caller]
fn code(body: &Value, index: usize) -> &str {
    let result = &body["results"][index];
    assert_eq!(result["type"], "error", "{body}");
    result["error"]["code"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_javascript_client_works() {
    let started = start(Setup { tenants: vec![tenant("a"), tenant("b")], ..Setup::default() }).await;
    let url = format!("http://{}", started.server.address);
    let config = json!({"url": url, "keys": ["ek-a", "ek-b"]});
    let script = move || {
        run(node("libsql_client.cjs").arg(node_packages("@libsql/client")).arg(config.to_string()));
    };
    tokio::task::spawn_blocking(script).await.unwrap();
    assert_eq!(started.server.stats().await["runningTx"], 0, "every transaction ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_python_client_works() {
    let started = start(Setup { tenants: vec![tenant("a")], ..Setup::default() }).await;
    let url = format!("http://{}", started.server.address);
    let script = move || run(python("libsql_client.py").arg(url).arg("ek-a"));
    tokio::task::spawn_blocking(script).await.unwrap();
    assert_eq!(started.server.stats().await["runningTx"], 0, "every transaction ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_path_names_a_datasource_which_must_be_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let lite = SqliteDatasource::open(SqliteOptions::new(directory.path().join("lite.db"))).unwrap();
    let sources = vec![("main", postgres("postgres://u@127.0.0.1:1/x", 2)), ("lite", lite as _)];
    let sql = TenantSql { datasources: vec!["main".to_owned()], ..TenantSql::default() };
    let tenants = vec![TenantSettings { sql, ..tenant("a") }, tenant("b")];
    let server = SqlServer::start(sources, Setup { tenants, ..Setup::default() }).await;
    let client = server.client_of("b");
    let requests = json!({"requests": [execute("select 7"), close()]});
    let default = client.post("/v2/pipeline", requests.clone()).await;
    assert_eq!(default.error(), (400, "SQLITE_ERROR".to_owned()));
    assert!(
        default.body.contains(r#"Hrana is for SQLite, and datasource \"main\" is PostgreSQL"#),
        "{default:?}"
    );
    let named = client.post("/dev/lite/v2/pipeline", requests.clone()).await.ok();
    assert_eq!(rows(&named, 0), &json!([[{"type": "integer", "value": "7"}]]));
    assert_eq!(client.get("/dev/lite/v2").await.status, 200);
    let unknown = client.post("/dev/nowhere/v2/pipeline", requests.clone()).await;
    assert_eq!(unknown.error(), (404, "UNKNOWN_DATABASE".to_owned()));
    let forbidden = server.client_of("a").post("/dev/lite/v2/pipeline", requests).await;
    assert_eq!(forbidden.error(), (403, "DATASOURCE_FORBIDDEN".to_owned()));
    for (method, path) in [("POST", "/dev/lite/v9/pipeline"), ("POST", "/dev/lite"), ("GET", "/dev/lite/v1")]
    {
        assert_eq!(client.send(method, path, "{}").await.status, 404, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_needs_an_api_key() {
    let started = start(Setup { tenants: vec![tenant("a")], ..Setup::default() }).await;
    let missing = started.send(None, json!([execute("select 1")])).await;
    assert_eq!(missing.error(), (401, "INVALID_API_KEY".to_owned()));
    // Clients ask for the version without a key.
    for path in ["/v2", "/v3"] {
        assert_eq!(started.client.get(path).await.status, 200, "{path}");
    }
    // A page of another site lacks the key, and is rejected where none is needed.
    started.server.reload(Vec::new());
    let foreign = started.server.client().with("origin", "https://evil.example");
    let foreign = foreign.post("/v2/pipeline", json!({"requests": [execute("select 1")]})).await;
    assert_eq!(foreign.error(), (403, "FOREIGN_ORIGIN".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_code() {
    let started = start(Setup::default()).await;
    started.pipeline(None, json!([execute("select 1"), close()])).await;
    assert_eq!(started.send(Some("x"), json!([])).await.status, 400);
    let metrics = started.server.registry.render();
    for line in [
        r#"evenkeel_sql_requests_total{operation="hrana",code="OK"} 1"#,
        r#"evenkeel_sql_requests_total{operation="hrana",code="invalid_tx_id"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}
