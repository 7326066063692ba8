//! Statements that end early, by their time limit or because the client disconnects: they end in the database, they never
//! hit another client's statement, and they leave neither connection nor slot behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_sql::SqlLimits;
use evenkeel_test_postgres::SharedDatabase;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::harness::{Client, Setup, SqlServer, eventually, tenant};
use crate::outside::{Backends, Outside, Random, database_with};

/// A statement that writes and then sleeps; the mark shows it in `pg_stat_activity`.
const SLOW: &str =
    "with written as (insert into t values (1) returning 1) select pg_sleep(600) from written /* slow */";

/// Bodies of requests that run a slow statement, one for each way of sending it.
fn slow_requests(tx_id: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("/query", json!({"sql": "select pg_sleep(600) /* slow */"})),
        ("/execute", json!({"sql": SLOW})),
        ("/execute", json!({"statements": [{"sql": "insert into t values (2)"}, {"sql": SLOW}]})),
        ("/execute", json!({"sql": SLOW, "txId": tx_id})),
    ]
}

pub(crate) async fn is_idle(server: &SqlServer) -> bool {
    let stats = server.stats().await;
    let is_zero = |figure: &str| stats[figure] == 0;
    stats["openConns"] == stats["idleConns"]
        && ["runningHttpSession", "runningSql", "runningTx", "waitConnCount"].into_iter().all(is_zero)
}

/// Checks that the slow statement has ended in the database without an effect, on connections that stay open.
async fn assert_ended(database: &SharedDatabase, server: &SqlServer, before: Backends) {
    eventually("the statement has ended", async || database.running("slow").await == 0).await;
    let is_unlocked = async || database.backends().await.active == 0;
    eventually("no connection is busy", is_unlocked).await;
    assert_eq!(database.sql("select count(*) from t").await, "0", "it was rolled back");
    assert_eq!(database.backends().await.open, before.open, "its connection stays");
    assert_eq!(server.stats().await["runningSql"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_ends_the_statement_in_the_database() {
    let database = database_with("create table t (id int)").await;
    let server =
        SqlServer::on_postgres(&database.url(), Setup { max_open_conns: 2, ..Setup::default() }).await;
    let client = server.client();
    for accept in ["application/json", "application/x-ndjson"] {
        let client = client.clone().with("accept", accept);
        let tx_id = client.begin(json!({})).await;
        assert_eq!(client.query("select 1", json!([])).await.status, 200);
        let before = database.backends().await;
        for (path, mut body) in slow_requests(&tx_id) {
            body["timeoutMs"] = json!(300);
            let response = client.post(path, body.clone()).await;
            assert_eq!(response.error(), (504, "57014".to_owned()), "{path} {body}");
            assert_ended(&database, &server, before).await;
        }
        let failed = client.execute_in(&tx_id, "select 1").await;
        assert_eq!(failed.error(), (400, "25P02".to_owned()), "the transaction is open, but failed");
        client.post("/tx/rollback", json!({"txId": tx_id})).await.ok();
        assert!(is_idle(&server).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_whose_commit_exceeds_the_time_limit_has_an_unknown_outcome() {
    let database = database_with(
        "create table t (id int); create function slow() returns trigger language plpgsql as
         $$ begin perform pg_sleep(600); return null; end $$;
         create constraint trigger slow after insert on t deferrable initially deferred
         for each row execute function slow()",
    )
    .await;
    let server =
        SqlServer::on_postgres(&database.url(), Setup { max_open_conns: 1, ..Setup::default() }).await;
    let list = json!({"statements": [{"sql": "insert into t values (1)"}], "timeoutMs": 300});
    let response = server.client().post("/execute", list).await;
    assert_eq!(response.error(), (502, "08007".to_owned()));
    eventually("every connection is idle", async || is_idle(&server).await).await;
    assert_eq!(database.backends().await, Backends { open: 1, idle: 1, ..Backends::default() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_ends_the_statement_in_the_database() {
    let database = database_with("create table t (id int)").await;
    let server =
        SqlServer::on_postgres(&database.url(), Setup { max_open_conns: 2, ..Setup::default() }).await;
    let client = server.client();
    for accept in ["application/json", "application/x-ndjson"] {
        let client = client.clone().with("accept", accept);
        let tx_id = client.begin(json!({})).await;
        assert_eq!(client.query("select 1", json!([])).await.status, 200);
        let before = database.backends().await;
        for (path, body) in slow_requests(&tx_id) {
            let connection = client.open("POST", path, &body.to_string()).await;
            eventually("it runs", async || database.running("slow").await == 1).await;
            drop(connection);
            assert_ended(&database, &server, before).await;
        }
        eventually("the transaction takes statements again", async || {
            client.execute_in(&tx_id, "select 1").await.error().1 == "25P02"
        })
        .await;
        client.post("/tx/rollback", json!({"txId": tx_id})).await.ok();
        eventually("every connection is idle", async || is_idle(&server).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_a_stream_ends_the_statement_in_the_database() {
    let database = database_with("create table t (id int)").await;
    let server =
        SqlServer::on_postgres(&database.url(), Setup { max_open_conns: 2, ..Setup::default() }).await;
    let client = server.client();
    client.query("select 1", json!([])).await.ok();
    let before = database.backends().await;
    let lines = client.with("accept", "application/x-ndjson");
    let body =
        json!({"sql": "select repeat('x', 1000), generate_series(1, 1000000000) /* slow */"}).to_string();
    let mut connection = lines.open("POST", "/query", &body).await;
    let mut some = vec![0; 100_000];
    connection.read_exact(&mut some).await.unwrap();
    assert_eq!(database.running("slow").await, 1);
    drop(connection);
    assert_ended(&database, &server, before).await;
    eventually("every connection is idle", async || is_idle(&server).await).await;
}

/// Returns the number of races: a few for every run, more on demand.
fn races() -> u32 {
    std::env::var("EVENKEEL_CANCEL_RACES").ok().and_then(|races| races.parse().ok()).unwrap_or(400)
}

/// Counts each start, sleeps, and logs the end; the sequence keeps the starts that were rolled back.
const WORK: &str = "create sequence started; create table finished (n int);
    create function work(n int) returns void language plpgsql as $$ begin
        perform nextval('started'); perform pg_sleep(0.012); insert into finished values (n); end $$";

/// Sends a short statement and disconnects after a random time, unless the response came first.
async fn race(client: &Client, n: u32, delay: Duration) {
    let body = json!({"sql": "select work($1)", "params": [n]}).to_string();
    let mut connection = client.open("POST", "/execute", &body).await;
    let mut response = Vec::new();
    let answered = tokio::time::timeout(delay, connection.read_to_end(&mut response)).await;
    if answered.is_ok() {
        assert!(response.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&response));
    }
}

/// Runs statements until told to stop, each of which must succeed; returns their number.
async fn bystander(client: Client, stop: Arc<AtomicBool>) -> u32 {
    let mut statements = 0;
    while !stop.load(Ordering::Relaxed) {
        statements += 1;
        let response = client.query("select $1::int4, pg_sleep(0.001)", json!([statements])).await;
        assert_eq!(response.ok()["rows"], json!([[statements, ""]]));
    }
    statements
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_never_hits_the_statement_of_another_client() {
    let database = database_with(WORK).await;
    let tenants = vec![tenant("racer"), tenant("bystander")];
    let server =
        SqlServer::on_postgres(&database.url(), Setup { tenants, max_open_conns: 2, ..Setup::default() })
            .await;
    let mut random = Random::from_environment();
    let stop = Arc::new(AtomicBool::new(false));
    let bystanders =
        ["bystander", "racer"].map(|name| tokio::spawn(bystander(server.client_of(name), stop.clone())));
    let next = Arc::new(AtomicU32::new(0));
    let mut racers = JoinSet::new();
    for _ in 0..2 {
        let client = server.client_of("racer");
        let next = next.clone();
        let mut random = random.split();
        racers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if races() <= n {
                    return;
                }
                race(&client, n, Duration::from_micros(random.below(24_000))).await;
            }
        });
    }
    while let Some(racer) = racers.join_next().await {
        racer.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for bystander in bystanders {
        let statements = bystander.await.unwrap();
        assert!(races() / 20 < statements, "only {statements} statements of another client ran");
    }
    eventually("every connection is idle", async || is_idle(&server).await).await;
    let started: u32 = database.value("select last_value from started").await;
    let finished: u32 = database.value("select count(distinct n) from finished").await;
    println!("{} races: {started} began in the database, {finished} finished", races());
    assert_eq!(database.value::<u32>("select count(*) from finished").await, finished, "none ran twice");
    let cancelled = started - finished;
    assert!(races() <= cancelled * 10, "{cancelled} of {} were cancelled", races());
    assert!(races() <= finished * 10, "{finished} of {} finished", races());
    assert_eq!(database.backends().await, Backends { open: 2, idle: 2, ..Backends::default() });
}

const CONNECTIONS: u32 = 8;
const CLIENTS: u64 = 200;

/// One of the 200 clients: does something, and disconnects at a random point of it.
async fn leave_at_random(client: Client, mut random: Random) {
    let sleep = format!("select pg_sleep(0.0{:02})", random.below(30));
    let delay = Duration::from_micros(random.below(40_000));
    let kind = random.below(6);
    let (path, body) = match kind {
        0 => ("/query", json!({"sql": sleep})),
        1 => ("/execute", json!({"sql": format!("insert into t select 1 from ({sleep}) s")})),
        2 => (
            "/execute",
            json!({"statements": [{"sql": sleep}, {"sql": "insert into t values (1)"}, {"sql": sleep}]}),
        ),
        3 => ("/query", json!({"sql": "select repeat('x', 1000) from generate_series(1, 100000)"})),
        4 => ("/tx/begin", json!({})),
        _ => {
            let begun = client.post("/tx/begin", json!({})).await.ok();
            ("/execute", json!({"sql": sleep, "txId": begun["txId"]}))
        }
    };
    let body = body.to_string();
    let mut connection = client.open("POST", path, &body).await;
    let mut response = vec![0; 10_000];
    // The response, if it comes in time, is of no interest.
    let _ = tokio::time::timeout(delay, connection.read(&mut response)).await;
}

/// Compares the gateway's figures with the database's until the clients are gone; returns the number of comparisons.
async fn compare(database: &SharedDatabase, server: &SqlServer, stop: &AtomicBool) -> u32 {
    let mut comparisons = 0;
    while !stop.load(Ordering::Relaxed) {
        let stats = server.stats().await;
        let backends = database.backends().await;
        assert_eq!(
            (&stats["openConns"], backends.open),
            (&json!(CONNECTIONS), CONNECTIONS),
            "{stats} {backends:?}"
        );
        let running = stats["runningSql"].as_u64().unwrap();
        assert!(running <= u64::from(CONNECTIONS), "{stats}");
        assert!(stats["runningHttpSession"].as_u64().unwrap() <= CLIENTS + 1, "{stats}");
        server.client().query("select 1", json!([])).await.ok();
        comparisons += 1;
    }
    comparisons
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaks_while_200_clients_disconnect_at_random_points() {
    let database = database_with("create table t (id int)").await;
    let limits = SqlLimits { transaction_idle_max: Duration::from_millis(200), ..SqlLimits::default() };
    let setup = Setup { limits, max_open_conns: CONNECTIONS, max_transaction_conns: 6, ..Setup::default() };
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    occupy_all(&database, &server).await;
    let mut random = Random::from_environment();
    let stop = AtomicBool::new(false);
    let storm = async {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(leave_at_random(server.client(), random.split()));
            // In waves, so that the pool is full but the queue moves.
            if number % 10 == 9 {
                tokio::time::sleep(Duration::from_millis(random.below(100))).await;
            }
        }
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    };
    let ((), comparisons) = tokio::join!(storm, compare(&database, &server, &stop));
    assert!(5 < comparisons, "only {comparisons} comparisons during the storm");
    eventually("every connection is idle", async || is_idle(&server).await).await;
    let idle = Backends { open: CONNECTIONS, idle: CONNECTIONS, ..Backends::default() };
    eventually("the database agrees", async || database.backends().await == idle).await;
    occupy_all(&database, &server).await;
    assert_eq!(database.backends().await.open, CONNECTIONS, "the same connections as before");
}

/// Runs as many statements at once as there are connections: each slot and each connection is usable.
async fn occupy_all(database: &SharedDatabase, server: &SqlServer) {
    let mut sleepers = Vec::new();
    let body = json!({"sql": "select pg_sleep(600) /* all */"}).to_string();
    for _ in 0..CONNECTIONS {
        sleepers.push(server.client().open("POST", "/query", &body).await);
    }
    eventually("all run at once", async || database.running("all").await == CONNECTIONS).await;
    assert_eq!(server.stats().await["waitConnCount"], 0);
    drop(sleepers);
    eventually("all are cancelled", async || is_idle(server).await).await;
}
