//! PostgreSQL restarted and killed under load: every request gets a result or an honest error, and service resumes by
//! itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_test_postgres::TestServer;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Client, RawResponse, Setup, SqlServer, eventually};
use crate::outside::Outside;

/// Time limit of a request; a response that takes much longer counts as a hang.
const TIMEOUT_MS: u64 = 5_000;
const RESPONSE_MAX: Duration = Duration::from_secs(10);

async fn start(setup: Setup) -> (TestServer, SqlServer) {
    let database = tokio::task::spawn_blocking(|| TestServer::start().unwrap()).await.unwrap();
    let server = SqlServer::on_postgres(&database.url("postgres"), setup).await;
    (database, server)
}

/// Outcome of a request during a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Served,
    /// Nothing was executed.
    Refused,
    /// The connection was lost after the statement was sent.
    Unknown,
}

/// Checks that a response is a result or an honest error.
fn outcome(response: &RawResponse) -> Outcome {
    if response.status == 200 {
        return Outcome::Served;
    }
    let (status, code) = response.error();
    let message = response.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(10 < message.len(), "{response:?}");
    match (status, code.as_str()) {
        (503, "08001" | "57P01" | "57P02" | "57P03") => Outcome::Refused,
        (502, "08007") => Outcome::Unknown,
        _ => panic!("neither a result nor an honest error: {response:?}"),
    }
}

async fn post(client: &Client, path: &str, mut body: Value) -> RawResponse {
    body["timeoutMs"] = json!(TIMEOUT_MS);
    tokio::time::timeout(RESPONSE_MAX, client.post(path, body)).await.expect("a response in time")
}

/// Load on the server, and what the clients learned.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    next: AtomicU32,
}

type Outcomes = Vec<(u32, Outcome)>;

impl Load {
    /// Reads until told to stop; a result must be the one of this request.
    async fn read(self: Arc<Self>, client: Client) -> Outcomes {
        let mut outcomes = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let body = json!({"sql": "select $1::int4, pg_sleep(0.005)", "params": [n]});
            let response = post(&client, "/query", body).await;
            let outcome = outcome(&response);
            if outcome == Outcome::Served {
                assert_eq!(response.json()["rows"], json!([[n, ""]]));
            }
            outcomes.push((n, outcome));
        }
        outcomes
    }

    /// Inserts a number per statement until told to stop.
    async fn write(self: Arc<Self>, client: Client) -> Outcomes {
        let mut outcomes = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let body = json!({"sql": "insert into t select $1 from pg_sleep(0.005)", "params": [n]});
            outcomes.push((n, outcome(&post(&client, "/execute", body).await)));
        }
        outcomes
    }

    /// Inserts a number per transaction until told to stop.
    async fn transact(self: Arc<Self>, client: Client) -> Outcomes {
        let mut outcomes = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            outcomes.push((n, transaction(&client, n).await));
        }
        outcomes
    }
}

/// Inserts a number in a transaction. An error before the commit means that nothing was stored.
async fn transaction(client: &Client, n: u32) -> Outcome {
    let begun = post(client, "/tx/begin", json!({})).await;
    if outcome(&begun) != Outcome::Served {
        return Outcome::Refused;
    }
    let tx_id = begun.json()["txId"].clone();
    let insert = json!({"sql": "insert into t select $1 from pg_sleep(0.005)", "params": [n], "txId": tx_id});
    let inserted = post(client, "/execute", insert).await;
    if is_ended(&inserted) || outcome(&inserted) != Outcome::Served {
        return Outcome::Refused;
    }
    let committed = client.post("/tx/commit", json!({"txId": tx_id})).await;
    if is_ended(&committed) { Outcome::Refused } else { outcome(&committed) }
}

/// Reports whether the transaction has ended because its connection was lost.
fn is_ended(response: &RawResponse) -> bool {
    response.status == 410
        && response.json()["message"].as_str().unwrap().contains("connection to the database was lost")
}

async fn restart(mut database: TestServer) -> TestServer {
    let restarting = tokio::task::spawn_blocking(move || {
        database.restart().unwrap();
        database
    });
    restarting.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_under_load_gives_honest_errors_and_service_resumes_by_itself() {
    let (mut database, server) = start(Setup::default()).await;
    database.sql("create table t (n int primary key)").await;
    let load = Arc::new(Load::default());
    let mut readers = JoinSet::new();
    let mut writers = JoinSet::new();
    for _ in 0..3 {
        readers.spawn(load.clone().read(server.client()));
        writers.spawn(load.clone().write(server.client()));
        writers.spawn(load.clone().transact(server.client()));
    }
    for _ in 0..2 {
        let before = load.next.load(Ordering::Relaxed);
        eventually("the load runs", async || before + 100 < load.next.load(Ordering::Relaxed)).await;
        database = restart(database).await;
    }
    eventually("statements succeed again", async || {
        outcome(&server.client().query("select 1", json!([])).await) == Outcome::Served
    })
    .await;
    let stats = server.stats().await;
    assert!(0.0 < stats["errorRate1m"].as_f64().unwrap(), "{stats}");
    let before = load.next.load(Ordering::Relaxed);
    eventually("the load runs", async || before + 100 < load.next.load(Ordering::Relaxed)).await;
    assert_eq!(server.stats().await["status"], "SERVING");
    load.stop.store(true, Ordering::Relaxed);
    let mut counts: BTreeMap<Outcome, u32> = BTreeMap::new();
    for (_, outcome) in readers.join_all().await.concat() {
        *counts.entry(outcome).or_default() += 1;
    }
    let written = writers.join_all().await.concat();
    let stored: BTreeSet<u32> =
        database.sql("select n from t").await.lines().map(|n| n.parse().unwrap()).collect();
    for (n, outcome) in &written {
        *counts.entry(*outcome).or_default() += 1;
        match outcome {
            Outcome::Served => assert!(stored.contains(n), "{n} was acknowledged, but is not stored"),
            Outcome::Refused => assert!(!stored.contains(n), "{n} was refused, but is stored"),
            Outcome::Unknown => {}
        }
    }
    println!("{counts:?}");
    assert!(200 < counts[&Outcome::Served], "{counts:?}");
    assert!(
        counts.values().sum::<u32>() > counts[&Outcome::Served],
        "the restarts met no request: {counts:?}"
    );
    eventually("nothing is left", async || crate::cancel::is_idle(&server).await).await;
    let backends = database.backends().await;
    assert_eq!(json!(backends.open), server.stats().await["openConns"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_down_is_reported_and_found_again() {
    let (mut database, server) = start(Setup::default()).await;
    let client = server.client();
    client.query("select 1", json!([])).await.ok();
    let mut database = tokio::task::spawn_blocking(move || {
        database.stop().unwrap();
        database
    })
    .await
    .unwrap();
    eventually("the node is down", async || {
        let refused = client.post("/query", json!({"sql": "select 1", "timeoutMs": 200})).await;
        assert_eq!(refused.error(), (503, "08001".to_owned()), "{refused:?}");
        assert!(refused.json()["message"].as_str().unwrap().contains("unavailable"), "{refused:?}");
        server.stats().await["status"] == "DOWN"
    })
    .await;
    let health = client.get("/healthz").await;
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("DOWN")));
    let stats = server.stats().await;
    assert!(0.5 < stats["errorRate1m"].as_f64().unwrap(), "{stats}");
    assert_eq!((&stats["openConns"], &stats["idleConns"]), (&json!(0), &json!(0)), "{stats}");
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.query("select 7", json!([])).await.ok()["rows"].clone() }
    });
    database = restart(database).await;
    assert_eq!(waiting.await.unwrap(), json!([[7]]), "a request that waited is served");
    eventually("the node serves", async || server.stats().await["status"] == "SERVING").await;
    assert_eq!(database.backends().await.open, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_that_the_database_closed_are_replaced_without_an_error() {
    let (database, server) = start(Setup::default()).await;
    let client = server.client();
    for _ in 0..3 {
        let mut sleepers = JoinSet::new();
        for _ in 0..4 {
            let client = client.clone();
            sleepers.spawn(async move { client.query("select pg_sleep(0.02)", json!([])).await.status });
        }
        assert_eq!(sleepers.join_all().await, [200; 4]);
        let terminate = "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity where application_name = 'evenkeel'";
        assert!(0 < database.value::<u32>(terminate).await);
    }
    assert_eq!(server.stats().await["errorRate1m"], 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_ends_open_transactions_and_leaves_a_commits_outcome_unknown() {
    let (mut database, server) = start(Setup::default()).await;
    database
        .sql(
            "create table t (n int); create function slow() returns trigger language plpgsql as
             $$ begin perform pg_sleep(600); return null; end $$;
             create constraint trigger slow after insert on t deferrable initially deferred
             for each row when (new.n = 2) execute function slow()",
        )
        .await;
    let client = server.client();
    let idle = client.begin(json!({})).await;
    client.execute_in(&idle, "insert into t values (1)").await.ok();
    let committing = client.begin(json!({})).await;
    client.execute_in(&committing, "insert into t values (2)").await.ok();
    let commit = tokio::spawn({
        let client = client.clone();
        let tx_id = committing.clone();
        async move { client.post("/tx/commit", json!({"txId": tx_id})).await }
    });
    eventually("the commit runs", async || database.backends().await.active == 1).await;
    let mut database = tokio::task::spawn_blocking(move || {
        database.kill().unwrap();
        database
    })
    .await
    .unwrap();
    assert_eq!(commit.await.unwrap().error(), (502, "08007".to_owned()));
    let late = client.execute_in(&committing, "select 1").await;
    assert_eq!(late.error(), (410, "transaction_ended".to_owned()));
    assert!(late.body.contains("outcome is unknown"), "{late:?}");
    database = restart(database).await;
    let lost = client.post("/tx/commit", json!({"txId": idle})).await;
    assert!(
        [(502, "08007".to_owned()), (410, "transaction_ended".to_owned())].contains(&lost.error()),
        "{lost:?}"
    );
    assert_eq!(client.execute_in(&idle, "select 1").await.error(), (410, "transaction_ended".to_owned()));
    assert_eq!(database.sql("select count(*) from t").await, "0");
    let begun = transaction(&client, 3).await;
    assert_eq!(begun, Outcome::Served, "new transactions are served at once");
    assert_eq!(database.sql("select n from t").await, "3");
}
