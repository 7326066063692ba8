//! Tenants that compete for connections and for transaction places get their shares.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_policy::weight::Weight;
use evenkeel_server::tenant::{TenantSettings, TenantSql};
use evenkeel_sql::SqlLimits;
use evenkeel_test_postgres::{SharedDatabase, TestServer};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cancel::is_idle;
use crate::harness::{Client, Setup, SqlServer, eventually, tenant};
use crate::outside::{Backends, Outside, Random, database_with};

/// Returns a tenant whose sessions carry its name, so that the database can tell the tenants apart.
fn weighted(name: &str, weight: u32) -> TenantSettings {
    let settings = vec![("application_name".to_owned(), name.to_owned())];
    let sql = TenantSql { settings, ..TenantSql::default() };
    TenantSettings { weight: Weight::whole(weight).unwrap(), sql, ..tenant(name) }
}

/// A function that sleeps and logs when it ended, on which connection, and for which tenant.
const WORK: &str = "create unlogged table held (tenant text, pid int, at timestamptz);
    create function work(seconds float8) returns void language plpgsql as $$ begin
        perform pg_sleep(seconds);
        insert into held values (current_setting('application_name'), pg_backend_pid(), clock_timestamp());
    end $$";

/// Runs statements of 1 to 20 ms until told to stop.
async fn work(client: Client, mut random: Random, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let seconds = (1_000 + random.below(19_001)) as f64 / 1e6;
        client.execute("select work($1)", json!([seconds])).await.ok();
    }
}

const RUN: Duration = Duration::from_secs(10);
const POOL: u32 = 4;
/// Clients of each tenant: so many that every tenant always waits.
const CLIENTS: usize = 24;
const WEIGHTS: [(&str, u32); 3] = [("one", 1), ("two", 2), ("three", 3)];

#[tokio::test(flavor = "multi_thread")]
async fn connection_time_is_shared_by_weight_within_two_percent() {
    let database = database_with(WORK).await;
    let mut tenants: Vec<TenantSettings> = WEIGHTS.map(|(name, weight)| weighted(name, weight)).into();
    tenants.push(weighted("first", 1));
    let setup = Setup { tenants, max_open_conns: POOL, ..Setup::default() };
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    let mut random = Random::from_environment();
    let Contention { held, seen } = contend(&database, &server, &mut random).await;
    for ((name, _), ratio) in WEIGHTS.iter().zip(ratios(&held)) {
        assert!((0.98..=1.02).contains(&ratio), "{name} held connections for {ratio} of its share: {held:?}");
    }
    // The database does not see the time that the gateway takes before and after a statement, and a machine that is busy
    // with other work holds statements up at random.
    for ((name, _), ratio) in WEIGHTS.iter().zip(ratios(&seen)) {
        assert!(
            (0.9..=1.1).contains(&ratio),
            "the database served {name} for {ratio} of its share: {seen:?}"
        );
    }
}

/// The time that each tenant had, in seconds.
struct Contention {
    /// For which it held connections, as it was charged.
    held: BTreeMap<String, f64>,
    /// For which the database worked for it.
    seen: BTreeMap<String, f64>,
}

/// Returns each tenant's time as a part of its share.
fn ratios(time: &BTreeMap<String, f64>) -> [f64; 3] {
    let total: f64 = time.values().sum();
    WEIGHTS.map(|(name, weight)| time[name] / total * 6.0 / f64::from(weight))
}

/// Returns the time for which each tenant has held connections so far, as it was charged.
fn charged(server: &SqlServer) -> BTreeMap<String, f64> {
    let text = server.registry.render();
    let of_tenant = |(name, _): (&str, u32)| {
        let series = format!("evenkeel_cost_units_total{{pool=\"sql\",tenant=\"{name}\"}} ");
        let micros: f64 = text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap();
        (name.to_owned(), micros / 1e6)
    };
    WEIGHTS.map(of_tenant).into()
}

/// Lets the tenants compete for a while.
async fn contend(database: &SharedDatabase, server: &SqlServer, random: &mut Random) -> Contention {
    // Another tenant has all connections until the three wait, so that none of them is ahead at the start.
    let body = json!({"sql": "select pg_sleep(600) /* first */"}).to_string();
    let mut first = Vec::new();
    for _ in 0..POOL {
        first.push(server.client_of("first").open("POST", "/query", &body).await);
    }
    eventually("the pool is full", async || database.running("first").await == POOL).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for (name, _) in WEIGHTS {
        for _ in 0..CLIENTS {
            clients.spawn(work(server.client_of(name), random.split(), stop.clone()));
        }
    }
    eventually("all wait", async || waiting(server).await == 3 * CLIENTS).await;
    let from = database.sql("select clock_timestamp()").await;
    drop(first);
    let mut least_waiting = usize::MAX;
    let ends_at = Instant::now() + RUN;
    while Instant::now() < ends_at {
        tokio::time::sleep(Duration::from_millis(200)).await;
        least_waiting = least_waiting.min(waiting(server).await);
    }
    let to = database.sql("select clock_timestamp()").await;
    let held_until_now = charged(server);
    stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert!(2 * CLIENTS < least_waiting, "only {least_waiting} requests waited, perhaps none of one tenant");
    let seen = database.sql(&held(&from, &to)).await.lines().map(tenant_and_number).collect();
    println!("held {held_until_now:?} s, seen by the database {seen:?} s");
    Contention { held: held_until_now, seen }
}

async fn waiting(server: &SqlServer) -> usize {
    server.stats().await["waitConnCount"].as_u64().unwrap() as usize
}

/// Returns a query for the seconds for which each tenant had connections: on each connection, from the end of one
/// statement to the end of the next, which includes the reset between two tenants.
fn held(from: &str, to: &str) -> String {
    format!(
        "select tenant, sum(extract(epoch from least(at, '{to}') - before)) from
         (select tenant, at, lag(at, 1, '{from}') over (partition by pid order by at) as before
          from held where at > '{from}') statements
         where before < '{to}' group by tenant"
    )
}

fn tenant_and_number(line: &str) -> (String, f64) {
    let (tenant, number) = line.split_once('|').unwrap();
    (tenant.to_owned(), number.parse().unwrap())
}

/// Counts each tenant's open transactions in the database.
async fn open_transactions(database: &impl Outside) -> BTreeMap<String, f64> {
    let sql = "select application_name, count(*) from pg_stat_activity where datname = current_database() \
               and state = 'idle in transaction' group by 1";
    database.sql(sql).await.lines().map(tenant_and_number).collect()
}

fn counts(counts: &[(&str, f64)]) -> BTreeMap<String, f64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Begins so many transactions at once.
fn begin(client: &Client, count: usize) -> JoinSet<Value> {
    let mut begins = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        begins.spawn(async move { client.post("/tx/begin", json!({})).await.ok()["txId"].clone() });
    }
    begins
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_transactions_above_the_share_are_rolled_back_while_another_tenant_waits() {
    const CONTENDED_IDLE: Duration = Duration::from_millis(300);
    let database = database_with("").await;
    let limits = SqlLimits { transaction_contended_idle_max: CONTENDED_IDLE, ..SqlLimits::default() };
    let tenants = vec![weighted("idle", 1), weighted("busy", 2)];
    let setup = Setup { tenants, limits, max_open_conns: 8, max_transaction_conns: 6, ..Setup::default() };
    let server = SqlServer::on_postgres(&database.url(), setup).await;
    let idle = server.client_of("idle");
    let busy = server.client_of("busy");
    let mut held = begin(&idle, 6).join_all().await;
    tokio::time::sleep(3 * CONTENDED_IDLE).await;
    assert_eq!(
        open_transactions(&database).await,
        counts(&[("idle", 6.0)]),
        "nobody waits, so they may be idle"
    );
    // A plain statement waits for nothing: it has connections of its own.
    busy.query("select 1", json!([])).await.ok();
    assert_eq!(open_transactions(&database).await, counts(&[("idle", 6.0)]));
    let mut begins = begin(&busy, 5);
    let mut begun = Vec::new();
    while begun.len() < 4 {
        begun.push(begins.join_next().await.unwrap().unwrap());
    }
    assert_eq!(open_transactions(&database).await, counts(&[("busy", 4.0), ("idle", 2.0)]));
    let mut kept = Vec::new();
    for tx_id in held.drain(..) {
        let response = idle.execute_in(tx_id.as_str().unwrap(), "select 1").await;
        if response.status == 200 {
            kept.push(tx_id);
        } else {
            assert_eq!(response.error(), (410, "transaction_ended".to_owned()));
            assert!(response.body.contains("idle while other requests waited"), "{response:?}");
        }
    }
    assert_eq!(kept.len(), 2, "a tenant keeps its share");
    assert!(begins.try_join_next().is_none(), "a tenant that has its share waits");
    for (client, tx_id) in [(&idle, &kept[0]), (&busy, &begun[0])] {
        client.post("/tx/commit", json!({"txId": tx_id})).await.ok();
    }
    begun.push(begins.join_next().await.unwrap().unwrap());
    for tx_id in &begun[1..] {
        busy.post("/tx/commit", json!({"txId": tx_id})).await.ok();
    }
    idle.post("/tx/rollback", json!({"txId": kept[1]})).await.ok();
    assert!(is_idle(&server).await);
}

const CONNECTIONS: u32 = 60;
const CAP: u32 = 50;
/// A twentieth of the cap stays free, as the load-balancing specification demands.
const PLACES: usize = 48;

/// Runs one transaction: begin, a statement that logs its tenant, commit.
async fn transact(client: Client, name: &'static str) {
    let tx_id = client.begin(json!({})).await;
    let insert = format!("insert into log (tenant) select '{name}' from pg_sleep(0.01)");
    client.execute_in(&tx_id, &insert).await.ok();
    client.post("/tx/commit", json!({"txId": tx_id})).await.ok();
}

/// Starts 500 transactions of each tenant, and waits until all of them wait.
async fn queue_thousand(server: &SqlServer) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for name in ["a", "b"] {
        for _ in 0..5 {
            for _ in 0..100 {
                clients.spawn(transact(server.client_of(name), name));
            }
            // The listener's backlog is 128 connections.
            let queued = clients.len();
            eventually("they wait", async || waiting(server).await == queued).await;
        }
    }
    clients
}

/// Counts the transactions of the two tenants that are open in the database.
const OPEN: &str = "select count(*) from pg_stat_activity where application_name in ('a', 'b') \
    and (state like 'idle in transaction%' or (state = 'active' and xact_start < query_start))";

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_transactions_against_a_cap_of_50_are_all_served_fairly() {
    let starting = || TestServer::options().setting("max_connections", "100").start().unwrap();
    let database = tokio::task::spawn_blocking(starting).await.unwrap();
    database.sql("create table log (id serial, tenant text)").await;
    let limits =
        SqlLimits { transaction_contended_idle_max: Duration::from_secs(60), ..SqlLimits::default() };
    let tenants = vec![weighted("a", 1), weighted("b", 1), weighted("holder", 1)];
    let setup = Setup {
        tenants,
        limits,
        max_open_conns: CONNECTIONS,
        max_transaction_conns: CAP,
        ..Setup::default()
    };
    let server = SqlServer::on_postgres(&database.url("postgres"), setup).await;
    let holder = server.client_of("holder");
    let held = begin(&holder, PLACES).join_all().await;
    assert_eq!(open_transactions(&database).await, counts(&[("holder", PLACES as f64)]));
    let mut clients = queue_thousand(&server).await;
    for tx_id in held {
        holder.post("/tx/rollback", json!({"txId": tx_id})).await.ok();
    }
    let mut samples = 0;
    let mut most_open = 0;
    while !clients.is_empty() {
        let backends = database.backends().await;
        assert!(backends.open <= CONNECTIONS, "{backends:?}");
        let open: u32 = database.value(OPEN).await;
        assert!(open <= CAP, "{open} transactions are open in the database");
        let stats = server.stats().await;
        assert!(stats["runningTx"].as_u64().unwrap() <= u64::from(CAP), "{stats}");
        most_open = most_open.max(open);
        samples += 1;
        while let Some(client) = clients.try_join_next() {
            client.unwrap();
        }
    }
    println!("{samples} samples, at most {most_open} open");
    assert!(3 < samples && 20 < most_open, "{samples} samples, at most {most_open} open");
    assert_served_fairly(&database).await;
    eventually("nothing is left", async || is_idle(&server).await).await;
    let open = database.backends().await.open;
    assert_eq!(database.backends().await, Backends { open, idle: open, ..Backends::default() });
    assert_eq!(server.stats().await["openConns"], open);
}

/// Checks that the tenants took turns: at any time, each had about half of what was served.
async fn assert_served_fairly(database: &TestServer) {
    assert_eq!(database.sql("select count(*) from log").await, "1000");
    for served in [100, 250, 500, 750] {
        let first = format!(
            "select count(*) from (select tenant from log order by id limit {served}) l where tenant = 'a'"
        );
        let of_a: u32 = database.value(&first).await;
        println!("{of_a} of the first {served}");
        assert!(
            of_a.abs_diff(served / 2) <= PLACES as u32 / 2,
            "{of_a} of the first {served} were of the first tenant"
        );
    }
}
