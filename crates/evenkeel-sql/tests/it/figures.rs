//! Each figure of `/healthz` and of the metrics beside one that is read from outside: from PostgreSQL, or from what the
//! clients of the test did.

use std::time::{Duration, Instant};

use evenkeel_sql::SqlLimits;
use evenkeel_test_postgres::{SharedDatabase, TestServer};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::cancel::is_idle;
use crate::harness::{Client, Setup, SqlServer, eventually};
use crate::outside::{Backends, Outside, database_with};

const SLEEP: &str = "select pg_sleep(600) /* asleep */";

/// Returns the figures of `/healthz`, after comparing all with the gauges of the same names.
///
/// Needs a node that is at rest: nothing may begin or end between the two.
async fn figures(server: &SqlServer) -> Value {
    let stats = server.stats().await;
    server.api.update_metrics();
    let metrics = server.registry.render();
    for (figure, value) in stats.as_object().unwrap() {
        let prefix = format!("evenkeel_sql_node{{datasource=\"main\",figure=\"{figure}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
        let gauge: f64 = line.unwrap_or_else(|| panic!("no {figure} in {metrics}")).parse().unwrap();
        let expected = match value.as_str() {
            Some(status) => f64::from(u8::from(status == "SERVING")),
            None => value.as_f64().unwrap(),
        };
        // A second may begin between the two.
        let tolerance = if figure == "uptimeSec" { 1.0 } else { 1e-9 };
        assert!(
            (gauge - expected).abs() <= tolerance,
            "{figure}: {gauge} in the metrics, {expected} in /healthz"
        );
    }
    stats
}

/// Starts so many statements that sleep until their client disconnects.
async fn sleepers(client: &Client, count: usize) -> Vec<TcpStream> {
    let body = json!({"sql": SLEEP}).to_string();
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(client.open("POST", "/query", &body).await);
    }
    connections
}

async fn wait_for_running(database: &SharedDatabase, count: u32) {
    eventually(&format!("{count} statements run"), async || database.running("asleep").await == count).await;
}

async fn wait_for(server: &SqlServer, figure: &str, value: u32) {
    eventually(&format!("{figure} is {value}"), async || server.stats().await[figure] == value).await;
}

async fn start(setup: Setup) -> (SharedDatabase, SqlServer, Client) {
    let database = database_with("create table t (id int primary key)").await;
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    let client = server.client();
    client.query("select 1", json!([])).await.ok();
    // The first request for the health looks up the identity of the database, which takes a connection.
    server.stats().await;
    (database, server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn running_statements_and_connections_are_those_of_the_database() {
    let (database, server, client) = start(Setup { max_open_conns: 6, ..Setup::default() }).await;
    let mut asleep = Vec::new();
    for (step, count) in [1, 4, 6].into_iter().enumerate() {
        asleep.extend(sleepers(&client, count - asleep.len()).await);
        wait_for_running(&database, count as u32).await;
        compare_connections(&database, &server, count as u32).await;
        assert_eq!(figures(&server).await["runningHttpSession"], count, "step {step}");
    }
    for count in [5, 2, 0] {
        asleep.truncate(count);
        wait_for_running(&database, count as u32).await;
        wait_for(&server, "idleConns", 6 - count as u32).await;
        let backends = compare_connections(&database, &server, count as u32).await;
        assert_eq!(
            backends,
            Backends { open: 6, active: count as u32, idle: 6 - count as u32, idle_in_transaction: 0 }
        );
    }
    let terminate = "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity \
                     where datname = current_database() and application_name = 'evenkeel' and state = 'idle'";
    assert_eq!(database.sql(terminate).await, "6");
    client.query("select 1", json!([])).await.ok();
    let open = figures(&server).await["openConns"].clone();
    assert_eq!(open, database.backends().await.open, "connections that the database closed do not count");
}

/// Compares the figures of connections and statements with the database's.
async fn compare_connections(database: &SharedDatabase, server: &SqlServer, running: u32) -> Backends {
    let backends = database.backends().await;
    let stats = figures(server).await;
    assert_eq!(backends.active, running);
    assert_eq!(stats["runningSql"], backends.active, "{stats}");
    assert_eq!(stats["openConns"], backends.open, "{stats}");
    assert_eq!(stats["idleConns"], backends.idle, "{stats}");
    assert_eq!((&stats["waitConnCount"], &stats["runningTx"]), (&json!(0), &json!(0)), "{stats}");
    backends
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_and_http_sessions_are_the_clients_that_wait() {
    let (database, server, client) = start(Setup { max_open_conns: 2, ..Setup::default() }).await;
    let running = sleepers(&client, 2).await;
    wait_for_running(&database, 2).await;
    let mut waiting = sleepers(&client, 5).await;
    wait_for(&server, "waitConnCount", 5).await;
    let stats = figures(&server).await;
    assert_eq!((&stats["runningHttpSession"], &stats["runningSql"]), (&json!(7), &json!(2)), "{stats}");
    assert_eq!(database.running("asleep").await, 2, "the others wait outside of the database");
    waiting.truncate(2);
    wait_for(&server, "waitConnCount", 2).await;
    assert_eq!(figures(&server).await["runningHttpSession"], 4);
    drop(running);
    wait_for(&server, "waitConnCount", 0).await;
    wait_for_running(&database, 2).await;
    assert_eq!(figures(&server).await["runningHttpSession"], 2);
    drop(waiting);
    wait_for(&server, "runningHttpSession", 0).await;
    assert_eq!(server.stats().await["runningSql"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_an_http_session_and_a_statement_until_its_last_line() {
    let (database, server, client) = start(Setup::default()).await;
    let lines = client.with("accept", "application/x-ndjson");
    let body =
        json!({"sql": "select repeat('x', 1000), generate_series(1, 100000) /* asleep */"}).to_string();
    let mut stream = lines.open("POST", "/query", &body).await;
    let mut some = vec![0; 100_000];
    stream.read_exact(&mut some).await.unwrap();
    assert_eq!(database.running("asleep").await, 1, "the reader is slow, so it still runs");
    let stats = figures(&server).await;
    assert_eq!((&stats["runningHttpSession"], &stats["runningSql"]), (&json!(1), &json!(1)), "{stats}");
    stream.read_to_end(&mut some).await.unwrap();
    eventually("nothing runs", async || is_idle(&server).await).await;
    assert_eq!(database.running("asleep").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn running_transactions_are_those_that_are_open_in_the_database() {
    let limits = SqlLimits { transaction_idle_max: Duration::from_secs(3), ..SqlLimits::default() };
    let setup = Setup { limits, max_open_conns: 6, max_transaction_conns: 5, ..Setup::default() };
    let (database, server, client) = start(setup).await;
    let mut open = Vec::new();
    for count in 1..=3 {
        open.push(client.begin(json!({})).await);
        assert_eq!(database.backends().await.idle_in_transaction, count);
        let stats = figures(&server).await;
        assert_eq!((&stats["runningTx"], &stats["runningSql"]), (&json!(count), &json!(0)), "{stats}");
        assert_eq!(
            stats["openConns"].as_u64().unwrap() - stats["idleConns"].as_u64().unwrap(),
            u64::from(count)
        );
    }
    client.post("/tx/commit", json!({"txId": open[0]})).await.ok();
    assert_eq!(client.execute_in(&open[1], "select 1 / 0").await.status, 400, "a failed one stays open");
    let body = json!({"statements": [{"sql": "select 1"}, {"sql": SLEEP}]}).to_string();
    let list = client.open("POST", "/execute", &body).await;
    wait_for_running(&database, 1).await;
    let in_transaction = "select count(*) from pg_stat_activity where datname = current_database() \
                          and (state like 'idle in transaction%' or (state = 'active' and xact_start < query_start))";
    assert_eq!(database.sql(in_transaction).await, "3", "two are idle, and the list is one");
    let stats = figures(&server).await;
    assert_eq!((&stats["runningTx"], &stats["runningSql"]), (&json!(3), &json!(1)), "{stats}");
    drop(list);
    wait_for(&server, "runningTx", 2).await;
    eventually("the others are rolled back", async || database.backends().await.idle_in_transaction == 0)
        .await;
    wait_for(&server, "runningTx", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latency_is_that_of_the_database_up_to_the_first_row() {
    let (_database, server, client) = start(Setup::default()).await;
    let tx_id = client.begin(json!({})).await;
    let mut clocked = Vec::new();
    for nth in 0..40 {
        // A tenth is slow, half of it in a transaction.
        let sql = if nth % 10 == 9 { "select pg_sleep(0.2)" } else { "select pg_sleep(0.002)" };
        let body = if nth % 20 == 9 { json!({"sql": sql, "txId": tx_id}) } else { json!({"sql": sql}) };
        let started = Instant::now();
        client.post("/query", body).await.ok();
        clocked.push(started.elapsed().as_secs_f64() * 1e3);
    }
    client.post("/tx/rollback", json!({"txId": tx_id})).await.ok();
    let stats = figures(&server).await;
    clocked.sort_by(f64::total_cmp);
    let p95 = stats["p95LatencyMs"].as_f64().unwrap();
    // The histogram has 16 buckets per doubling.
    let slowest = clocked[39] * 1.07;
    assert!(200.0 * 0.94 <= p95 && p95 <= slowest, "p95 {p95}, clients measured {clocked:?}");
    assert_eq!(stats["latencySamples"], 41, "with the one of the start");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latency_ends_with_the_first_row() {
    let (_database, server, client) = start(Setup::default()).await;
    // PostgreSQL sends its buffer when it is full: the second row sends the rest of the first.
    let sql =
        "select repeat('x', 20000), case when n = 3 then pg_sleep(0.1) end from generate_series(1, 3) n";
    let mut fastest = f64::MAX;
    for _ in 0..20 {
        let started = Instant::now();
        client.query(sql, json!([])).await.ok();
        fastest = fastest.min(started.elapsed().as_secs_f64() * 1e3);
    }
    let p95 = figures(&server).await["p95LatencyMs"].as_f64().unwrap();
    assert!(100.0 <= fastest, "{fastest}");
    assert!(0.0 < p95 && p95 < 100.0, "{p95}: the whole statement takes at least 100 ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_rate_counts_timeouts_and_lost_connections_but_not_the_clients_own_errors() {
    let (_database, server, client) = start(Setup::default()).await;
    assert_eq!(figures(&server).await["errorRate1m"], 0.0);
    for id in 0..12 {
        client.execute("insert into t values ($1)", json!([id])).await.ok();
    }
    let own_errors = [
        ("insert into t values (1)", "23505"),
        ("selec 1", "42601"),
        ("select 1 / 0", "22012"),
        ("select * from missing", "42P01"),
        ("select 'x'::int", "22P02"),
        ("copy t from stdin", "0A000"),
    ];
    for (sql, code) in own_errors {
        assert_eq!(client.execute(sql, json!([])).await.error().1, code);
    }
    let stats = figures(&server).await;
    assert_eq!((&stats["errorRate1m"], &stats["timeouts1m"]), (&json!(0.0), &json!(0)), "{stats}");
    for _ in 0..4 {
        let slow = client.post("/query", json!({"sql": SLEEP, "timeoutMs": 50})).await;
        assert_eq!(slow.error(), (504, "57014".to_owned()));
    }
    for _ in 0..2 {
        let lost = client.query("select pg_terminate_backend(pg_backend_pid())", json!([])).await;
        assert_eq!(lost.error(), (502, "08007".to_owned()));
    }
    let stats = figures(&server).await;
    assert_eq!((&stats["errorRate1m"], &stats["timeouts1m"]), (&json!(6.0 / 25.0), &json!(4)), "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_are_those_of_the_configuration_and_hold() {
    let setup = Setup { max_open_conns: 3, max_transaction_conns: 2, ..Setup::default() };
    let (database, server, client) = start(setup).await;
    let stats = figures(&server).await;
    assert_eq!((&stats["maxOpenConns"], &stats["maxTransactionConns"]), (&json!(3), &json!(2)));
    assert_eq!(stats["maxHttpSessions"], 1_000);
    let mut begins = JoinSet::new();
    for _ in 0..4 {
        let client = client.clone();
        begins.spawn(async move { client.begin(json!({})).await });
    }
    let open = [begins.join_next().await.unwrap().unwrap(), begins.join_next().await.unwrap().unwrap()];
    wait_for(&server, "waitConnCount", 2).await;
    assert_eq!(database.backends().await.idle_in_transaction, 2, "two transactions at most");
    let asleep = sleepers(&client, 3).await;
    wait_for(&server, "waitConnCount", 4).await;
    wait_for_running(&database, 1).await;
    assert_eq!(database.backends().await.open, 3, "three connections at most");
    drop(asleep);
    for tx_id in &open {
        client.post("/tx/commit", json!({"txId": tx_id})).await.ok();
    }
    assert_eq!(begins.join_all().await.len(), 2, "the others get the places");
    assert_eq!(database.backends().await.idle_in_transaction, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_uptime_is_that_of_this_server() {
    let before = Instant::now();
    let (_database, server, _) = start(Setup::default()).await;
    let after = Instant::now();
    eventually("two seconds have passed", async || server.stats().await["uptimeSec"] == 2).await;
    assert!(Duration::from_secs(2) <= before.elapsed());
    let passed = after.elapsed().as_secs();
    let uptime = figures(&server).await["uptimeSec"].as_u64().unwrap();
    assert!(passed <= uptime && uptime <= before.elapsed().as_secs(), "{passed} <= {uptime}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_whether_the_node_serves_drains_or_has_no_database() {
    let database = tokio::task::spawn_blocking(|| TestServer::start().unwrap()).await.unwrap();
    let server = SqlServer::on_postgres(&database.url("postgres"), Setup::default()).await;
    let client = server.client();
    client.query("select 1", json!([])).await.ok();
    assert_eq!(figures(&server).await["status"], "SERVING");
    assert_eq!(client.get("/healthz").await.status, 200);
    tokio::task::spawn_blocking(move || drop(database)).await.unwrap();
    eventually("the node is down", async || {
        client.post("/query", json!({"sql": "select 1", "timeoutMs": 100})).await.error();
        server.stats().await["status"] == "DOWN"
    })
    .await;
    assert_eq!(client.get("/healthz").await.status, 503);
    assert_eq!(figures(&server).await["status"], "DOWN");
    server.api.drain(Duration::ZERO).await;
    assert_eq!(figures(&server).await["status"], "DRAINING");
    assert_eq!(client.get("/healthz").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_reported_while_every_connection_is_in_use() {
    let database = database_with("").await;
    let server =
        SqlServer::on_postgres(&database.url(), Setup { max_open_conns: 2, ..Setup::default() }).await;
    let client = server.client();
    let asleep = sleepers(&client, 2).await;
    wait_for_running(&database, 2).await;
    let health = client.get("/healthz").await;
    assert_eq!(health.json()["datasources"][0]["stats"]["runningSql"], 2);
    assert_eq!(database.running("asleep").await, 2, "it did not wait for a connection");
    drop(asleep);
    eventually("the identity is known", async || {
        client.get("/healthz").await.json()["datasources"][0]["databaseId"].is_string()
    })
    .await;
    let id = client.get("/healthz").await.json()["datasources"][0]["databaseId"].clone();
    let expected =
        database.sql("select system_identifier || '/' || current_database() from pg_control_system()").await;
    assert_eq!(id, expected);
}
