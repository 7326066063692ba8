//! The SQL API of `evenkeel serve` on SQLite: statements, tenants, shutdown and crashes.

mod command;
mod examples;
mod postgres;
mod rds_data;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read};

/// Returns the status and the body of a response.
fn outcome(reply: &RawResponse) -> (u16, Value) {
    (reply.status, reply.json())
}

fn query(server: &ServerProcess, sql: &str) -> Value {
    let reply = server.post("/query", &json!({"sql": sql}));
    assert_eq!(reply.status, 200, "{sql}: {reply:?}");
    reply.json()["rows"].clone()
}

fn execute(server: &ServerProcess, sql: &str) -> Value {
    let reply = server.post("/execute", &json!({"sql": sql}));
    assert_eq!(reply.status, 200, "{sql}: {reply:?}");
    reply.json()
}

fn begin(server: &ServerProcess) -> String {
    let reply = server.post("/tx/begin", &json!({}));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["txId"].as_str().unwrap().to_owned()
}

/// Runs a statement of a transaction.
fn execute_in(server: &ServerProcess, tx_id: &str, sql: &str) -> RawResponse {
    server.post("/execute", &json!({"sql": sql, "txId": tx_id}))
}

#[test]
fn a_server_without_a_config_file_stores_rows_in_a_sqlite_file() {
    let dir = TestDir::new("sql-bare");
    let server = ServerProcess::start(&dir, &[]);
    execute(&server, "create table t (n integer primary key, s text)");
    let inserted =
        server.post("/execute", &json!({"sql": "insert into t values (?, ?)", "params": [7, "é"]}));
    assert_eq!((inserted.status, &inserted.json()["rowCount"]), (200, &json!(1)), "{inserted:?}");
    assert_eq!(query(&server, "select n, s from t"), json!([[7, "é"]]));
    assert!(dir.file("evenkeel-data/sql.db").exists());
    let (status, health) = outcome(&server.get("/healthz"));
    assert_eq!((status, &health["status"]), (200, &json!("SERVING")));
    assert_eq!(
        (&health["datasources"][0]["name"], &health["datasources"][0]["stats"]["maxOpenConns"]),
        (&json!("main"), &json!(9))
    );
    assert_eq!(server.get("/api/sql").json()["datasources"][0]["engine"], "sqlite");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let again = ServerProcess::start(&dir, &[]);
    assert_eq!(query(&again, "select n from t"), json!([[7]]));
}

#[test]
fn the_paths_of_hrana_are_served_by_sql_and_those_beside_them_by_the_llm_api() {
    let dir = TestDir::new("sql-hrana");
    let server = ServerProcess::start(&dir, &[]);
    let statement = json!({"sql": "select 7"});
    let value = json!([[{"type": "integer", "value": "7"}]]);
    let body = server.post("/v1/execute", &json!({"stmt": statement})).json();
    assert_eq!(body["result"]["rows"], value);
    let body = server.post("/v1/batch", &json!({"batch": {"steps": [{"stmt": statement}]}})).json();
    assert_eq!(body["result"]["step_results"][0]["rows"], value);
    let requests = json!({"requests": [{"type": "execute", "stmt": statement}]});
    for path in ["/v2/pipeline", "/v3/pipeline", "/dev/main/v2/pipeline"] {
        let body = server.post(path, &requests).json();
        assert_eq!(body["results"][0]["response"]["result"]["rows"], value, "{path}");
    }
    assert_eq!(server.post("/v3/cursor", &json!({"batch": {"steps": []}})).status, 200);
    assert_eq!([server.get("/v2").status, server.get("/v3").status], [200, 200]);
    // The errors of the LLM API have an object `error`.
    for path in ["/v1/Execute", "/v1/executes"] {
        assert!(server.post(path, &json!({"stmt": statement})).json()["error"].is_object(), "{path}");
    }
}

#[test]
fn the_metrics_of_both_actor_systems_are_on_one_page() {
    let dir = TestDir::new("sql-metrics");
    let server = ServerProcess::start(&dir, &[]);
    query(&server, "select 1");
    let page = server.get("/metrics").body;
    for line in [
        "scheduler_ready_queue_depth{system=\"llm\"} ",
        "scheduler_ready_queue_depth{system=\"sql\"} ",
        "evenkeel_sql_requests_total{operation=\"query\",code=\"OK\"} 1",
        "evenkeel_sql_node{datasource=\"main\",figure=\"maxOpenConns\"} 9",
        "evenkeel_finished_total{pool=\"sql\",tenant=\"open\",outcome=\"served\"} 1",
        "evenkeel_telemetry_sources_skipped_total 0",
    ] {
        assert!(page.lines().any(|found| found.starts_with(line)), "no {line:?} in {page}");
    }
    let mut types: Vec<_> = page.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    types.sort_unstable();
    let repeated: Vec<_> = types.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
}

#[test]
fn a_tenant_uses_only_its_datasources() {
    let dir = TestDir::new("sql-tenants");
    let datasource = |name: &str| format!("[[sql.datasources]]\nname = '{name}'\nurl = 'sqlite:{name}.db'\n");
    let output = dir.run(&["tenant", "key"]).ok();
    let (key, hash) = output.trim().split_once('\n').unwrap();
    let tenant = format!("[[tenants]]\nname = 'filed'\nkey_hashes = ['{hash}']\ndatasources = ['b']\n");
    dir.write("evenkeel.toml", &format!("{}{}{tenant}", datasource("a"), datasource("b")));
    let server = ServerProcess::start(&dir, &[]);
    let status = |key: &str, database: Option<&str>| {
        let authorization = format!("authorization: Bearer {}\r\n", key.trim());
        let body = json!({"sql": "select 1", "database": database});
        read(server.send("POST", "/query", &authorization, &body)).status
    };
    assert_eq!([None, Some("a"), Some("b"), Some("c")].map(|name| status(key, name)), [403, 403, 200, 404]);
    assert_eq!(server.post("/query", &json!({"sql": "select 1"})).status, 401);

    let added = dir.run(&["tenant", "add", "added", "--datasource", "a"]).ok();
    assert_eq!([None, Some("a"), Some("b")].map(|name| status(&added, name)), [200, 200, 403]);
    let listed = dir.run(&["tenant", "list"]).ok();
    assert!(listed.contains("DATASOURCES") && !listed.contains("ROLE"), "{listed}");
    dir.run(&["tenant", "set", "added", "--unlimited", "datasources", "--role", "clerk"]).ok();
    let described = server.get("/api/tenants").json();
    let added_settings = &described["tenants"][1];
    assert_eq!((&added_settings["datasources"], &added_settings["role"]), (&json!([]), &json!("clerk")));
    assert_eq!(status(&added, Some("b")), 400, "SQLite has no roles");
    dir.run(&["tenant", "set", "added", "--role", "none"]).ok();
    assert_eq!(status(&added, Some("b")), 200);
}

#[test]
fn a_transaction_that_is_open_at_sigterm_can_still_be_committed() {
    let dir = TestDir::new("sql-drain");
    let server = ServerProcess::start(&dir, &[]);
    execute(&server, "create table t (n integer)");
    let tx_id = begin(&server);
    assert_eq!(execute_in(&server, &tx_id, "insert into t values (1)").status, 200);
    server.signal("TERM");
    server.wait_log("stopping");
    while server.get("/healthz").json()["status"] != "DRAINING" {}
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.post("/tx/begin", &json!({})).status, 503);
    assert_eq!(server.post("/query", &json!({"sql": "select 1"})).status, 503);
    assert_eq!(execute_in(&server, &tx_id, "insert into t values (2)").status, 200);
    let committed = server.post("/tx/commit", &json!({"txId": tx_id}));
    assert_eq!(outcome(&committed), (200, json!({"status": "committed"})));
    assert_eq!(server.wait_log("stopped")["requests_cut"], 0);
    assert_eq!(server.wait(), Some(0));
    let again = ServerProcess::start(&dir, &[]);
    assert_eq!(query(&again, "select n from t order by n"), json!([[1], [2]]));
    let (status, error) = outcome(&execute_in(&again, &tx_id, "insert into t values (3)"));
    assert_eq!((status, &error["code"]), (410, &json!("unknown_transaction")), "{error}");
}

#[test]
fn a_transaction_that_outlasts_drain_secs_is_rolled_back() {
    let dir = TestDir::new("sql-drain-limit");
    dir.write("evenkeel.toml", "[server]\ndrain_secs = 0.1\n");
    let server = ServerProcess::start(&dir, &[]);
    execute(&server, "create table t (n integer)");
    let tx_id = begin(&server);
    assert_eq!(execute_in(&server, &tx_id, "insert into t values (1)").status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let again = ServerProcess::start(&dir, &[]);
    assert_eq!(query(&again, "select count(*) from t"), json!([[0]]));
}

#[test]
fn nothing_of_an_open_transaction_survives_a_crash() {
    let dir = TestDir::new("sql-crash");
    let server = ServerProcess::start(&dir, &[]);
    execute(&server, "create table t (n integer)");
    execute(&server, "insert into t values (1)");
    let tx_id = begin(&server);
    assert_eq!(execute_in(&server, &tx_id, "insert into t values (2)").status, 200);
    assert_eq!(execute_in(&server, &tx_id, "delete from t where n = 1").status, 200);
    server.signal("KILL");
    server.wait();
    let again = ServerProcess::start(&dir, &[]);
    assert_eq!(query(&again, "select n from t"), json!([[1]]));
    let (status, error) = outcome(&again.post("/tx/commit", &json!({"txId": tx_id})));
    assert_eq!((status, &error["code"]), (410, &json!("unknown_transaction")), "{error}");
    execute(&again, "insert into t values (3)");
}

#[test]
fn a_changed_datasource_takes_effect_only_after_a_restart() {
    let dir = TestDir::new("sql-reload");
    let config = |file: &str, more: &str| {
        dir.write(
            "evenkeel.toml",
            &format!("{more}[[sql.datasources]]\nname = 'main'\nurl = 'sqlite:{file}'\n"),
        );
    };
    config("one.db", "");
    let server = ServerProcess::start(&dir, &[]);
    execute(&server, "create table t (n integer)");
    config("two.db", "[sql]\ntimeout_ms = 1000\n");
    server.signal("HUP");
    assert_eq!(server.wait_log("after a restart")["settings"], "sql.timeout_ms,sql.datasources");
    assert_eq!(query(&server, "select count(*) from t"), json!([[0]]));
    config("one.db", "");
    server.signal("HUP");
    server.wait_log("reloaded");
    dir.write("evenkeel.toml", "[[sql.datasources]]\nname = 'main'\n");
    server.signal("HUP");
    let rejected = server.wait_log("reload rejected");
    assert_eq!(rejected["error"], "evenkeel.toml:1: a datasource needs a url");
}

#[test]
fn a_sqlite_file_that_cannot_be_opened_prevents_the_start() {
    let dir = TestDir::new("sql-unopenable");
    dir.write("not-a-database", &"text ".repeat(1_000));
    for (file, part) in [("missing/a.db", "missing/a.db"), ("not-a-database", "not-a-database")] {
        let path = dir.file(file);
        let config = format!("[[sql.datasources]]\nname = 'notes'\nurl = 'sqlite:{}'\n", path.display());
        dir.write("evenkeel.toml", &config);
        let error = dir.run(&["serve", "--listen", "127.0.0.1:0"]).failed();
        assert!(error.contains("datasource \"notes\": ") && error.contains(part), "{error}");
    }
}
