//! Three `evenkeel serve` processes in front of one PostgreSQL.
//!
//! Shares and leaks are read from PostgreSQL: every node's connections carry its name as `application_name`.

mod clients;
mod crash;
mod drain;
mod fake_peer;
mod hops;
mod lies;
mod lost_answer;
mod overload;
mod restart;
mod score;
mod stream;
mod tickets;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_sim_node::testing::{RawResponse, ResponseEnd, open, read};
use evenkeel_test_postgres::{SharedDatabase, shared};
use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const SECRET: &str = "the secret of the tested cluster";
/// Connections of each node.
const CONNS: usize = 4;
/// Longest wait for a condition that must come true.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Header by which a client asks a node to forward instead of redirecting.
const FORWARD: &str = "x-evenkeel-redirect: forward\r\n";
/// Statement that holds a connection until its client disconnects.
const HOLD: &str = "select pg_sleep(600)";
/// Statement that says which node executes it.
const WHO: &str = "select current_setting('application_name')";

/// Settings of a cluster.
#[derive(Clone, Default)]
struct Setup {
    /// Lines of `[sql]`.
    sql: String,
    /// Sections after it.
    sections: String,
    /// Peers of every node beside the nodes themselves.
    others: Vec<(String, SocketAddr)>,
}

/// Nodes `a`, `b`, … in front of one database with the table `marks (mark text, node text)`.
struct TestCluster {
    nodes: Vec<Node>,
    database: SharedDatabase,
}

/// A node that can be killed and started again.
struct Node {
    name: String,
    address: SocketAddr,
    dir: TestDir,
    server: Option<ServerProcess>,
}

impl TestCluster {
    /// Starts nodes and waits until each knows the figures of all others.
    fn settled(test: &str, count: usize, setup: &Setup) -> Self {
        let cluster = Self::start(test, &vec![SECRET; count], setup);
        cluster.wait_settled();
        cluster
    }

    fn wait_settled(&self) {
        for node in &self.nodes {
            eventually("every node knows the others", || {
                let known = node.peers();
                let is_known = |other: &Node| {
                    known.get(&other.name).is_some_and(|peer| peer["scores"]["query"].is_number())
                };
                self.nodes.iter().all(|other| other.name == node.name || is_known(other))
            });
        }
    }

    /// Starts a node for each secret.
    fn start(test: &str, secrets: &[&str], setup: &Setup) -> Self {
        let database = shared().unwrap();
        database
            .psql("create table marks (mark text, node text default current_setting('application_name'))")
            .unwrap();
        let listeners: Vec<_> = secrets.iter().map(|_| reserve_port()).collect();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let mut peers: Vec<_> =
            addresses.iter().enumerate().map(|(index, address)| (name(index), *address)).collect();
        peers.extend(setup.others.iter().cloned());
        let mut nodes = Vec::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            let name = name(index);
            let dir = TestDir::new(&format!("cluster-{test}-{name}"));
            let url = format!("{}?application_name=node-{name}", database.url());
            dir.write("evenkeel.toml", &config(&name, secrets[index], &peers, setup, &url));
            let mut node = Node { name, address: addresses[index], dir, server: None };
            drop(listener);
            node.start();
            nodes.push(node);
        }
        Self { nodes, database }
    }

    fn count(&self, sql: &str) -> usize {
        let text = self.database.psql(sql).unwrap();
        text.trim().parse().unwrap_or_else(|_| panic!("{sql}: {text:?}"))
    }

    fn marks(&self) -> usize {
        self.count("select count(*) from marks")
    }

    /// Returns the number of marks by the node that executed the statement.
    fn marks_by_node(&self) -> BTreeMap<String, usize> {
        counts(&self.database.psql("select node, count(*) from marks group by 1").unwrap())
    }

    /// Returns the number of executing statements by node.
    fn active(&self) -> BTreeMap<String, usize> {
        counts(
            &self
                .database
                .psql(&activity("application_name, count(*)", "state = 'active' group by 1"))
                .unwrap(),
        )
    }

    /// Returns the number of connections of a node.
    fn connections(&self, node: &str) -> usize {
        self.count(&activity("count(*)", &format!("application_name = 'node-{node}'")))
    }

    /// Returns the number of executing statements of a node whose text contains `part`.
    fn running(&self, node: &str, part: &str) -> usize {
        let filter =
            format!("application_name = 'node-{node}' and state = 'active' and query like '%{part}%'");
        self.count(&activity("count(*)", &filter))
    }

    /// Occupies connections of a node until the result is dropped.
    fn occupy(&self, node: usize, count: usize) -> Vec<TcpStream> {
        let node = &self.nodes[node];
        let before = self.running(&node.name, HOLD);
        let held =
            (0..count).map(|_| node.server().send("POST", "/query", "", &json!({"sql": HOLD}))).collect();
        eventually("the connections are occupied", || self.running(&node.name, HOLD) == before + count);
        held
    }
}

impl Node {
    fn start(&mut self) {
        self.server = Some(ServerProcess::start_at(&self.dir, self.address));
    }

    fn kill(&mut self) {
        let server = self.server.take().unwrap();
        server.signal("KILL");
        server.wait();
    }

    fn server(&self) -> &ServerProcess {
        self.server.as_ref().unwrap()
    }

    /// Sends a request without following redirects.
    fn post(&self, path: &str, headers: &str, body: &Value) -> RawResponse {
        post(self.address, path, headers, body)
    }

    fn execute(&self, headers: &str, sql: &str) -> RawResponse {
        self.post("/execute", headers, &json!({"sql": sql}))
    }

    /// Returns the node that executes a statement sent here, by its `application_name`.
    fn who(&self, headers: &str) -> String {
        let reply = self.post("/query", headers, &json!({"sql": WHO}));
        first_value(&reply)
    }

    /// Returns the redirect of a request to this full node.
    ///
    /// Redirects that no client follows count as load of the peer for a while, so that the request may wait here first.
    fn redirect(&self, path: &str, body: &Value) -> Redirect {
        let mut body = body.clone();
        body["timeoutMs"] = json!(1_000);
        let mut reply = None;
        eventually("the node redirects", || {
            let response = self.post(path, "", &body);
            let is_redirect = response.status == 307;
            reply = Some(response);
            is_redirect
        });
        redirect_of(&reply.unwrap())
    }

    fn begin(&self) -> String {
        let reply = self.post("/tx/begin", "", &json!({}));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["txId"].as_str().unwrap().to_owned()
    }

    fn execute_in(&self, tx_id: &str, sql: &str) -> RawResponse {
        self.post("/execute", "", &json!({"sql": sql, "txId": tx_id}))
    }

    fn end(&self, tx_id: &str, how: &str) -> RawResponse {
        self.post(&format!("/tx/{how}"), "", &json!({"txId": tx_id}))
    }

    fn describe(&self) -> Value {
        self.server().get("/api/sql").json()
    }

    /// Returns the peers that share this node's database, as `/api/sql` shows them.
    fn peers(&self) -> BTreeMap<String, Value> {
        by_name(&self.describe()["datasources"][0]["peers"]["peers"])
    }

    /// Returns a peer's status and its last failure.
    fn peer_status(&self, peer: &str) -> (String, String) {
        let peers = by_name(&self.describe()["cluster"]["peers"]);
        let text = |key: &str| peers[peer][key].as_str().unwrap_or_default().to_owned();
        (text("status"), text("error"))
    }

    /// Returns the identity of the database, which peers compare.
    fn database_id(&self) -> String {
        let mut id = None;
        eventually("the node knows its database", || {
            let health = self.server().get("/healthz").json();
            id = health["datasources"][0]["databaseId"].as_str().map(str::to_owned);
            id.is_some()
        });
        id.unwrap()
    }

    fn stats(&self) -> Value {
        self.server().get("/healthz").json()["datasources"][0]["stats"].clone()
    }
}

fn name(index: usize) -> String {
    char::from(b'a' + index as u8).to_string()
}

fn config(node: &str, secret: &str, peers: &[(String, SocketAddr)], setup: &Setup, url: &str) -> String {
    let peers = peers
        .iter()
        .map(|(name, address)| format!("[[cluster.peers]]\nname = '{name}'\nurl = 'http://{address}'\n"));
    let peers: String = peers.collect();
    let Setup { sql, sections, .. } = setup;
    format!(
        "[cluster]\nname = '{node}'\nsecret = '{secret}'\n{peers}[sql]\ntimeout_ms = 120000\n{sql}\n{sections}\n\
         [[sql.datasources]]\nname = 'main'\nurl = '{url}'\nmax_open_conns = {CONNS}\n"
    )
}

/// Binds a free port below those that Linux gives to outgoing connections, so that a stopped node finds it free again.
fn reserve_port() -> TcpListener {
    for attempt in 0..100 {
        let port = 12_000 + RandomState::new().hash_one(attempt) % 20_000;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port as u16)) {
            return listener;
        }
    }
    panic!("no free port");
}

/// Returns a statement that reads `pg_stat_activity` for the connections of nodes.
fn activity(columns: &str, filter: &str) -> String {
    format!(
        "select {columns} from pg_stat_activity where datname = current_database() \
         and application_name like 'node-%' and {filter}"
    )
}

/// Parses lines of `name|count`, and drops the prefix of the nodes' names.
fn counts(rows: &str) -> BTreeMap<String, usize> {
    let rows = rows.lines().filter_map(|row| row.split_once('|'));
    rows.map(|(node, count)| (node.trim_start_matches("node-").to_owned(), count.parse().unwrap())).collect()
}

fn by_name(peers: &Value) -> BTreeMap<String, Value> {
    let peers = peers.as_array().cloned().unwrap_or_default();
    peers.into_iter().map(|peer| (peer["name"].as_str().unwrap().to_owned(), peer)).collect()
}

fn post(address: SocketAddr, path: &str, headers: &str, body: &Value) -> RawResponse {
    read(send(address, path, headers, body))
}

/// Sends a request without reading the response.
fn send(address: SocketAddr, path: &str, headers: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}");
    open(address, &format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
}

/// Sends a request and follows redirects, without the API key, as browsers do; returns the number of redirects too.
fn post_following(address: SocketAddr, path: &str, body: &Value) -> (RawResponse, usize) {
    let mut reply = post(address, path, "", body);
    let mut redirects = 0;
    while reply.status == 307 {
        redirects += 1;
        assert!(redirects <= 2, "{reply:?}");
        reply = follow(&redirect_of(&reply).url, body);
    }
    (reply, redirects)
}

/// Target of a redirect.
#[derive(Debug)]
struct Redirect {
    node: String,
    url: String,
}

#[track_caller]
fn redirect_of(reply: &RawResponse) -> Redirect {
    assert_eq!(reply.status, 307, "{reply:?}");
    let redirect = reply.json()["redirect"].clone();
    let text = |key: &str| redirect[key].as_str().unwrap().to_owned();
    let url = text("url");
    assert!(reply.head.contains(&format!("location: {}", url.to_ascii_lowercase())), "{reply:?}");
    Redirect { node: text("node"), url }
}

/// Sends a request to the URL of a redirect.
fn follow(url: &str, body: &Value) -> RawResponse {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    post(address.parse().unwrap(), &format!("/{path}"), "", body)
}

#[track_caller]
fn first_value(reply: &RawResponse) -> String {
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
    let value = reply.json()["rows"][0][0].as_str().unwrap().to_owned();
    value.trim_start_matches("node-").to_owned()
}

/// Returns the status, the code and the message of an error.
#[track_caller]
fn error_of(reply: &RawResponse) -> (u16, String, String) {
    assert_ne!(reply.status, 200, "{reply:?}");
    let body = reply.json();
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    (reply.status, text("code"), text("message"))
}

/// Waits until a condition is true.
#[track_caller]
fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < WAIT_MAX, "not within {WAIT_MAX:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
