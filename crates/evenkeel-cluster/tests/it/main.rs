//! Tests of clusters whose nodes reach each other over real sockets on loopback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod forwards;
mod log_counter;
mod node;
mod polls;
mod start;
mod tampering;
mod ticket_properties;
mod tickets;

use core::time::Duration;
use std::sync::Arc;

use evenkeel_cluster::{
    Cluster, ClusterOptions, ClusterSecret, NodeReport, PeerOptions, PeerSnapshot, PoolReport,
};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::score::{NodeStats, Status};
use evenkeel_policy::weight::Weight;
use evenkeel_upstream::{Origin, TlsRoots, Upstream};

use crate::node::{Server, answer_poll};

const SECRET: &str = "the secret of this cluster";

/// Long enough for a test not to reach it.
const NEVER: Duration = Duration::from_secs(3600);

fn peer(name: &str, url: &str) -> PeerOptions {
    let origin = Origin::parse(url).unwrap();
    PeerOptions { name: name.to_owned(), origin, url: url.to_owned(), weight: Weight::ONE }
}

/// Options with a poll every few milliseconds.
fn options(node: &str, peers: Vec<PeerOptions>) -> ClusterOptions {
    ClusterOptions {
        poll_interval: Duration::from_millis(4),
        poll_timeout: NEVER,
        down_after: NEVER,
        ..ClusterOptions::new(node, ClusterSecret::new(SECRET).unwrap(), peers)
    }
}

fn start(options: ClusterOptions, report: impl Fn() -> NodeReport + Send + Sync + 'static) -> Arc<Cluster> {
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    Cluster::start(options, upstream, report).unwrap()
}

/// Starts a node without peers, which only answers.
fn start_target(name: &str, report: impl Fn() -> NodeReport + Send + Sync + 'static) -> Arc<Cluster> {
    start(options(name, vec![]), report)
}

/// Starts node "a" with the peer "b" at a server.
fn start_poller(server: &Server) -> Arc<Cluster> {
    start(options("a", vec![peer("b", &server.url())]), || serving(vec![]))
}

fn serving(pools: Vec<PoolReport>) -> NodeReport {
    NodeReport { status: Status::Serving, pools }
}

fn pool(name: &str, stats: NodeStats) -> PoolReport {
    PoolReport { database_id: "7412345/shop".to_owned(), name: name.to_owned(), stats }
}

fn busy_stats() -> NodeStats {
    NodeStats {
        running_http_session: 7,
        running_sql: 5,
        max_http_sessions: 100,
        max_open_conns: 50,
        max_transaction_conns: -1,
        open_conns: 9,
        idle_conns: 4,
        p95_latency_ms: 12.75,
        latency_samples: 400,
        error_rate_1m: 0.03,
        uptime_sec: 3_600,
        status: Status::Serving,
        ..NodeStats::default()
    }
}

/// Waits until the only peer of a node is as wanted, and returns it.
async fn peer_when(cluster: &Cluster, is_wanted: impl Fn(&PeerSnapshot) -> bool) -> PeerSnapshot {
    let waiting = async {
        loop {
            let peer = cluster.peers().remove(0);
            if is_wanted(&peer) {
                return peer;
            }
            tokio::task::yield_now().await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    found.unwrap_or_else(|_| panic!("the peer stays as it is: {:?}", cluster.peers()))
}

/// Waits for the failure of a peer, and returns the reason.
async fn error_of_peer(cluster: &Cluster) -> String {
    let is_failed =
        |peer: &PeerSnapshot| peer.error.as_ref().is_some_and(|error| !error.contains("answered yet"));
    let peer = peer_when(cluster, is_failed).await;
    peer.error.unwrap().to_string()
}

fn is_serving(peer: &PeerSnapshot) -> bool {
    peer.status == Status::Serving
}

/// Serves polls of a node.
async fn serve_polls(cluster: Arc<Cluster>) -> Server {
    Server::start(move |request| {
        let response = answer_poll(&cluster, request.headers());
        async move { Ok(response) }
    })
    .await
}
