//! Several nodes in front of one PostgreSQL: redirects, forwards, tickets, and transactions that find their owner.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use evenkeel_pipeline::RedirectMode;
use evenkeel_test_postgres::SharedDatabase;
use serde_json::{Value, json};

use crate::harness::{Client, Membership, RawResponse, Setup, SqlServer, bind, eventually, postgres, tenant};
use crate::outside::{Outside, database_with};

const SECRET: &str = "the secret of the test's cluster";
/// Connections of each node.
const CONNS: u32 = 3;
/// Statement that holds a connection until the test ends it; the longest sleep is far above any time limit.
const HOLD: &str = "select pg_sleep(600)";

/// Nodes `a`, `b`, … in front of one database, each with its name as `application_name`.
struct TestCluster {
    nodes: Vec<SqlServer>,
    database: SharedDatabase,
}

impl TestCluster {
    async fn start(count: usize, setup: impl Fn() -> Setup) -> Self {
        Self::with_secrets(&vec![SECRET; count], setup).await
    }

    async fn with_secrets(secrets: &[&str], setup: impl Fn() -> Setup) -> Self {
        let database = database_with("create table marks (mark text)").await;
        let mut listeners = Vec::new();
        for _ in secrets {
            listeners.push(bind().await);
        }
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let mut nodes = Vec::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            let others = (0..addresses.len()).filter(|other| *other != index);
            let membership = Membership {
                node: name(index),
                secret: secrets[index].to_owned(),
                peers: others.map(|other| (name(other), addresses[other])).collect(),
            };
            let setup = setup();
            let url = format!("{}?application_name=node-{}", database.url(), name(index));
            let source = postgres(&url, setup.max_open_conns);
            nodes.push(SqlServer::start_on(listener, vec![("main", source)], setup, Some(membership)).await);
        }
        Self { nodes, database }
    }

    /// Starts a cluster and waits until every node knows the figures of all others.
    async fn settled(count: usize, setup: impl Fn() -> Setup) -> Self {
        let cluster = Self::start(count, setup).await;
        for node in &cluster.nodes {
            eventually("every peer is known", || async {
                let known = peers_of(node).await;
                known.len() + 1 == count && known.iter().all(|peer| peer["scores"]["query"].is_number())
            })
            .await;
        }
        cluster
    }

    /// Returns the number of statements that sleep now, by the node that runs them, as PostgreSQL sees it.
    async fn sleeping(&self) -> BTreeMap<String, usize> {
        let rows = self
            .database
            .sql(
                "select application_name, count(*) from pg_stat_activity where datname = current_database() \
                 and state = 'active' and query like 'select pg_sleep%' group by 1",
            )
            .await;
        let rows = rows.lines().filter_map(|row| row.split_once('|'));
        rows.map(|(node, count)| (node.to_owned(), count.parse().unwrap())).collect()
    }

    /// Occupies `count` connections of a node until the statements are dropped.
    async fn occupy(&self, node: usize, count: usize) -> Vec<tokio::task::JoinHandle<RawResponse>> {
        let name = format!("node-{}", name(node));
        let before = self.sleeping().await.get(&name).copied().unwrap_or(0);
        let client = self.nodes[node].client();
        let held = (0..count).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.query(HOLD, json!([])).await })
        });
        let held = held.collect();
        eventually("the connections are occupied", || async {
            self.sleeping().await.get(&name).copied().unwrap_or(0) == before + count
        })
        .await;
        held
    }
}

fn name(index: usize) -> String {
    char::from(b'a' + index as u8).to_string()
}

fn setup() -> Setup {
    Setup { max_open_conns: CONNS, max_transaction_conns: 2, ..Setup::default() }
}

fn forwarding() -> Setup {
    Setup { redirect: RedirectMode::Forward, ..setup() }
}

/// Returns the peers that share a node's database, as `/api/sql` shows them.
async fn peers_of(node: &SqlServer) -> Vec<Value> {
    let sql = node.describe().await;
    sql["datasources"][0]["peers"]["peers"].as_array().cloned().unwrap_or_default()
}

/// Returns the node that a redirect leads to, and its URL.
fn redirect_of(response: &RawResponse) -> (String, String) {
    assert_eq!(response.status, 307, "{response:?}");
    let redirect = response.json()["redirect"].clone();
    let url = redirect["url"].as_str().unwrap().to_owned();
    assert_eq!(response.headers["location"], url);
    (redirect["node"].as_str().unwrap().to_owned(), url)
}

/// Sends a request to the URL of a redirect, without any API key.
async fn follow(url: &str, body: &str) -> RawResponse {
    let (client, path) = target_of(url);
    client.send("POST", &path, body).await
}

/// Splits a URL into a client of its server and its path.
fn target_of(url: &str) -> (Client, String) {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    (Client::at(address), format!("/{path}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_redirects_and_the_ticket_serves_the_request_once() {
    let cluster = TestCluster::settled(2, setup).await;
    let held = cluster.occupy(0, CONNS as usize).await;
    let body =
        json!({"sql": "insert into marks values ('moved') returning current_setting('application_name')"});
    let body = body.to_string();
    let (node, url) = redirect_of(&cluster.nodes[0].client().send("POST", "/execute", &body).await);
    assert_eq!(node, "b");

    let other = follow(&url, &body.replace("moved", "other")).await;
    assert_eq!(other.error(), (403, "invalid_ticket".to_owned()), "{other:?}");
    assert!(other.json()["message"].as_str().unwrap().contains("another body"), "{other:?}");

    let (_, url) = redirect_of(&cluster.nodes[0].client().send("POST", "/execute", &body).await);
    let elsewhere = follow(&url.replace("/execute?", "/query?"), &body).await;
    assert_eq!(elsewhere.error(), (403, "invalid_ticket".to_owned()), "{elsewhere:?}");

    let (_, url) = redirect_of(&cluster.nodes[0].client().send("POST", "/execute", &body).await);
    assert_eq!(follow(&url, &body).await.ok()["rows"], json!([["node-b"]]));
    let replayed = follow(&url, &body).await;
    assert_eq!(replayed.error(), (403, "invalid_ticket".to_owned()), "{replayed:?}");
    assert!(replayed.json()["message"].as_str().unwrap().contains("used already"), "{replayed:?}");
    assert_eq!(cluster.database.value::<u32>("select count(*) from marks").await, 1);
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_forwards_if_the_client_or_the_configuration_asks_for_it() {
    for setup in [setup as fn() -> Setup, forwarding] {
        let cluster = TestCluster::settled(2, setup).await;
        let held = cluster.occupy(0, CONNS as usize).await;
        let client = cluster.nodes[0].client().with("x-evenkeel-redirect", "forward");
        let response = client.query("select current_setting('application_name')", json!([])).await;
        assert_eq!(response.ok()["rows"], json!([["node-b"]]));
        assert!(!response.headers.contains_key("x-evenkeel-report"), "figures are for peers only");
        held.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_room_serves_and_scores_no_peer() {
    let cluster = TestCluster::settled(3, setup).await;
    for _ in 0..20 {
        let client = cluster.nodes[0].client();
        let response = client.query("select current_setting('application_name')", json!([])).await;
        assert_eq!(response.ok()["rows"], json!([["node-a"]]));
    }
    let tx_id = cluster.nodes[0].client().begin(json!({})).await;
    let ended = cluster.nodes[0].client().post("/tx/rollback", json!({"txId": tx_id})).await;
    ended.ok();
    for node in &cluster.nodes {
        let cluster = node.describe().await["cluster"].clone();
        let counts = ["noRoom", "peersScored", "redirected"].map(|count| cluster[count].as_u64());
        assert_eq!(counts, [Some(0); 3], "{cluster}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_mode_is_an_error() {
    let cluster = TestCluster::settled(2, setup).await;
    let client = cluster.nodes[0].client().with("x-evenkeel-redirect", "foward");
    let response = client.query("select 1", json!([])).await;
    assert_eq!(response.error(), (400, "invalid_request".to_owned()));
    assert!(response.json()["message"].as_str().unwrap().contains("X-Evenkeel-Redirect"), "{response:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_served_by_its_owner_over_every_route_of_every_node() {
    let cluster = TestCluster::settled(3, setup).await;
    let [a, b, c] = [0, 1, 2].map(|node| cluster.nodes[node].client());
    let tx_id = b.begin(json!({})).await;
    // Every other connection of the owner is in use, so it has no room for anything else.
    let held = cluster.occupy(1, 2).await;
    for client in [&a, &b, &c] {
        let inserted = client.execute_in(&tx_id, "insert into marks values ('tx')").await.ok();
        assert_eq!(inserted["rowCount"], 1);
        let sql = "select current_setting('application_name'), count(*)::int4 from marks group by 1";
        let read = client.post("/query", json!({"sql": sql, "txId": tx_id})).await.ok();
        assert_eq!(read["rows"][0][0], "node-b");
    }
    let lines = a.clone().with("accept", "application/x-ndjson");
    let streamed = lines.post("/query", json!({"sql": "select mark from marks", "txId": tx_id})).await;
    assert_eq!(streamed.body.lines().count(), 1 + 3 + 1, "{streamed:?}");
    assert_eq!(cluster.database.value::<u32>("select count(*) from marks").await, 0, "not committed yet");
    assert_eq!(c.post("/tx/commit", json!({"txId": tx_id})).await.ok(), json!({"status": "committed"}));
    assert_eq!(cluster.database.value::<u32>("select count(*) from marks").await, 3);
    for client in [&a, &b, &c] {
        let ended = client.execute_in(&tx_id, "select 1").await;
        assert_eq!(ended.error(), (410, "transaction_ended".to_owned()), "{ended:?}");
        let ended = client.post("/tx/rollback", json!({"txId": tx_id})).await;
        assert_eq!(ended.error(), (410, "transaction_ended".to_owned()), "{ended:?}");
    }
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_another_tenant_stays_out_of_reach_over_a_peer() {
    let setup = || Setup { tenants: vec![tenant("acme"), tenant("globex")], ..setup() };
    let cluster = TestCluster::settled(2, setup).await;
    let tx_id = cluster.nodes[1].client_of("acme").begin(json!({})).await;
    let foreign = cluster.nodes[0].client_of("globex").execute_in(&tx_id, "select 1").await;
    assert_eq!(foreign.error(), (403, "foreign_transaction".to_owned()));
    let forged = cluster.nodes[0].client_of("acme").execute_in(&format!("{tx_id}x"), "select 1").await;
    assert_eq!(forged.error(), (400, "invalid_tx_id".to_owned()));
    let without_key = cluster.nodes[0].client().execute_in(&tx_id, "select 1").await;
    assert_eq!(without_key.status, 401);
    cluster.nodes[0].client_of("acme").execute_in(&tx_id, "select 1").await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_counted_against_the_rate_limit_once() {
    let limited = || {
        let mut acme = tenant("acme");
        acme.rpm = Some(2);
        Setup { tenants: vec![acme, tenant("other")], redirect: RedirectMode::Forward, ..setup() }
    };
    let cluster = TestCluster::settled(2, limited).await;
    let held: Vec<_> = (0..CONNS)
        .map(|_| {
            let client = cluster.nodes[0].client_of("other").clone();
            tokio::spawn(async move { client.query(HOLD, json!([])).await })
        })
        .collect();
    eventually("node a is full", || async {
        cluster.sleeping().await.get("node-a").copied() == Some(CONNS as usize)
    })
    .await;
    let acme = cluster.nodes[0].client_of("acme");
    acme.query("select 1", json!([])).await.ok();
    acme.query("select 1", json!([])).await.ok();
    assert_eq!(acme.query("select 1", json!([])).await.status, 429);
    // The peer has counted none of them.
    let at_peer = cluster.nodes[1].client_of("acme");
    at_peer.query("select 1", json!([])).await.ok();
    at_peer.query("select 1", json!([])).await.ok();
    assert_eq!(at_peer.query("select 1", json!([])).await.status, 429);
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_different_secrets_do_not_hand_over() {
    let cluster = TestCluster::with_secrets(&[SECRET, "another secret of the same length"], setup).await;
    eventually("the peer is rejected", || async {
        let sql = cluster.nodes[0].describe().await;
        let peer = &sql["cluster"]["peers"][0];
        peer["status"] == "DOWN"
            && peer["error"].as_str().is_some_and(|error| error.contains("secrets differ"))
    })
    .await;
    let tx_id = cluster.nodes[1].client().begin(json!({})).await;
    let unreadable = cluster.nodes[0].client().execute_in(&tx_id, "select 1").await;
    assert_eq!(unreadable.error(), (400, "invalid_tx_id".to_owned()));
    let held = cluster.occupy(0, CONNS as usize).await;
    let waiting = cluster.nodes[0].client();
    let waited = waiting.post("/query", json!({"sql": "select 1", "timeoutMs": 500})).await;
    assert!([503, 504].contains(&waited.status), "it waits here instead: {waited:?}");
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_request_stays_where_its_repeat_finds_it() {
    let cluster = TestCluster::settled(2, setup).await;
    let held = cluster.occupy(0, CONNS as usize).await;
    let client = cluster.nodes[0].client().with("idempotency-key", "order-1");
    let body = json!({"sql": "insert into marks values ('once')"});
    let first = tokio::spawn({
        let client = client.clone();
        let body = body.clone();
        async move { client.post("/execute", body).await }
    });
    eventually("the request waits here", || async {
        cluster.nodes[0].stats().await["waitConnCount"].as_u64() == Some(1)
    })
    .await;
    held.iter().for_each(tokio::task::JoinHandle::abort);
    first.await.unwrap().ok();
    client.post("/execute", body).await.ok();
    assert_eq!(cluster.database.value::<u32>("select count(*) from marks").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_node_hands_new_work_over_and_finishes_its_transactions() {
    let cluster = TestCluster::settled(2, setup).await;
    let a = cluster.nodes[0].client();
    let tx_id = a.begin(json!({})).await;
    let api = cluster.nodes[0].api.clone();
    let draining = tokio::spawn(async move { api.drain(std::time::Duration::from_secs(30)).await });
    eventually("the node drains", || async { cluster.nodes[0].api.is_draining() }).await;
    let (node, _) = redirect_of(&a.post("/tx/begin", json!({})).await);
    assert_eq!(node, "b");
    let (node, _) = redirect_of(&a.query("select 1", json!([])).await);
    assert_eq!(node, "b");
    cluster.nodes[1].client().execute_in(&tx_id, "insert into marks values ('drained')").await.ok();
    a.post("/tx/commit", json!({"txId": tx_id})).await.ok();
    draining.await.unwrap();
    assert_eq!(cluster.database.value::<u32>("select count(*) from marks").await, 1);
    eventually("the peer knows", || async {
        let sql = cluster.nodes[1].describe().await;
        sql["cluster"]["peers"][0]["status"] == "DRAINING"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_full_nodes_make_a_request_wait_after_at_most_two_hops() {
    let cluster = TestCluster::settled(3, forwarding).await;
    let mut held = Vec::new();
    for node in 0..3 {
        held.extend(cluster.occupy(node, CONNS as usize).await);
    }
    let client = cluster.nodes[0].client();
    let waiting = tokio::spawn(async move { client.query("select 1", json!([])).await });
    eventually("the request waits at one node", || async {
        let mut waiting = 0;
        for node in &cluster.nodes {
            waiting += node.stats().await["waitConnCount"].as_u64().unwrap();
        }
        waiting == 1
    })
    .await;
    held.iter().for_each(tokio::task::JoinHandle::abort);
    waiting.await.unwrap().ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_accepted_under_a_host_name_that_open_mode_refuses() {
    let cluster = TestCluster::settled(2, setup).await;
    let held = cluster.occupy(0, CONNS as usize).await;
    let body = json!({"sql": "select 1"}).to_string();
    let (_, url) = redirect_of(&cluster.nodes[0].client().send("POST", "/query", &body).await);
    let (client, path) = target_of(&url);
    let client = client.with_host("node-b.example");
    assert_eq!(client.send("POST", "/query", &body).await.error(), (403, "unknown_host".to_owned()));
    client.send("POST", &path, &body).await.ok();
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_forwarded_to_an_ended_transaction_counts_against_the_rate_limit() {
    let limited = || {
        let mut acme = tenant("acme");
        acme.rpm = Some(3);
        Setup { tenants: vec![acme], ..setup() }
    };
    let cluster = TestCluster::settled(2, limited).await;
    let [a, b] = [0, 1].map(|node| cluster.nodes[node].client_of("acme"));
    let tx_id = b.begin(json!({})).await;
    for _ in 0..5 {
        a.execute_in(&tx_id, "select 1").await.ok();
    }
    a.post("/tx/rollback", json!({"txId": tx_id})).await.ok();
    let statuses_of = async |client: &Client, count: usize| {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(client.execute_in(&tx_id, "select 1").await.status);
        }
        statuses
    };
    assert_eq!(statuses_of(&a, 4).await, [410, 410, 410, 429], "forwarded to the owner");
    assert_eq!(statuses_of(&b, 4).await, [410; 4], "at the owner");
}

/// Starts two nodes whose datasources are in another order, or have the other's name.
async fn mismatched(
    first: [(&str, &SharedDatabase); 2],
    second: [(&str, &SharedDatabase); 2],
) -> [SqlServer; 2] {
    let listeners = [bind().await, bind().await];
    let addresses = [0, 1].map(|node: usize| listeners[node].local_addr().unwrap());
    let mut nodes = Vec::new();
    for (index, (listener, sources)) in listeners.into_iter().zip([first, second]).enumerate() {
        let peers = vec![(name(1 - index), addresses[1 - index])];
        let membership = Membership { node: name(index), secret: SECRET.to_owned(), peers };
        let source =
            |(name, database): (&'static str, &SharedDatabase)| (name, postgres(&database.url(), CONNS));
        let sources = sources.map(|(name, database)| source((if name == "x" { "x" } else { "y" }, database)));
        nodes.push(SqlServer::start_on(listener, sources.into(), forwarding(), Some(membership)).await);
    }
    nodes.try_into().unwrap_or_else(|_| panic!("two nodes"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_never_runs_a_statement_in_another_database() {
    let one = database_with("").await;
    let two = database_with("").await;
    for second in [[("y", &two), ("x", &one)], [("x", &two), ("y", &one)]] {
        let nodes = mismatched([("x", &one), ("y", &two)], second).await;
        eventually("the peer is known", || async {
            let sql = nodes[0].describe().await;
            sql["cluster"]["peers"][0]["status"] == "SERVING"
        })
        .await;
        let held: Vec<_> = (0..CONNS)
            .map(|_| {
                let client = nodes[0].client();
                tokio::spawn(async move { client.query(HOLD, json!([])).await })
            })
            .collect();
        eventually("the node is full", || async { nodes[0].stats().await["runningSql"] == CONNS }).await;
        let client = nodes[0].client();
        let waiting = tokio::spawn(async move { client.query("select current_database()", json!([])).await });
        eventually("the request waits here", || async {
            waiting.is_finished() || nodes[0].stats().await["waitConnCount"] == 1
        })
        .await;
        held.iter().for_each(tokio::task::JoinHandle::abort);
        assert_eq!(waiting.await.unwrap().ok()["rows"], json!([[one.name()]]));
    }
}
