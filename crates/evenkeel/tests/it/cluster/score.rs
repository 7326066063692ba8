//! Every constant of `[sql.score]` changes what a running node does.

use std::collections::BTreeMap;

use evenkeel_policy::score::NodeStats;
use serde_json::{Value, json};

use super::fake_peer::{FakePeer, idle};
use super::{CONNS, SECRET, Setup, TestCluster, eventually, redirect_of};

/// Peers with chosen figures, which outlive the nodes that are started for one setting after the other.
struct FakePeers {
    peers: BTreeMap<&'static str, (FakePeer, NodeStats)>,
}

impl FakePeers {
    fn start(figures: impl IntoIterator<Item = (&'static str, NodeStats)>) -> Self {
        let peers = figures.into_iter().map(|(name, stats)| (name, (FakePeer::start(name), stats)));
        Self { peers: peers.collect() }
    }

    /// Starts a node with one setting and waits until it knows the peers.
    fn start_node(&self, test: &str, setting: &str) -> TestCluster {
        let others = self.peers.iter().map(|(name, (peer, _))| ((*name).to_owned(), peer.address)).collect();
        let setup = Setup { sections: format!("[sql.score]\n{setting}\n"), others, ..Setup::default() };
        let cluster = TestCluster::start(test, &[SECRET], &setup);
        let database_id = cluster.nodes[0].database_id();
        for (peer, stats) in self.peers.values() {
            peer.report(&database_id, *stats);
        }
        eventually("the node knows the figures", || cluster.nodes[0].peers().len() == self.peers.len());
        cluster
    }

    /// Returns the scores, or the closed gates, of a peer at a node with one setting.
    fn scores(&self, setting: &str, peer: &str) -> Value {
        self.start_node("score", setting).nodes[0].peers()[peer]["scores"].clone()
    }

    /// Redirects requests of a full node with one setting, and counts the peers that get them.
    fn redirects(&self, setting: &str) -> BTreeMap<String, usize> {
        let cluster = self.start_node("draw", setting);
        let full = cluster.occupy(0, CONNS);
        let mut chosen = BTreeMap::new();
        for _ in 0..100 {
            let reply = cluster.nodes[0].post("/query", "", &json!({"sql": "select 1"}));
            *chosen.entry(redirect_of(&reply).node).or_default() += 1;
        }
        drop(full);
        chosen
    }
}

#[test]
fn every_limit_changes_the_scores_or_the_gates() {
    // Each figure is in the range in which its limit matters.
    let used = NodeStats {
        running_tx: 45,
        open_conns: 60,
        idle_conns: 5,
        wait_conn_count: 5,
        p95_latency_ms: 900.0,
        latency_samples: 100,
        error_rate_1m: 0.02,
        timeouts_1m: 8,
        uptime_sec: 100,
        ..idle()
    };
    let fast = NodeStats { p95_latency_ms: 300.0, latency_samples: 100, ..idle() };
    let peers = FakePeers::start([("fast", fast), ("used", used)]);
    let default = peers.scores("", "used");
    for kind in ["query", "execute", "begin"] {
        assert!(default[kind].is_number(), "no gate is closed: {default}");
    }
    let score = |scores: &Value, kind: &str| scores[kind].as_f64().unwrap_or_else(|| panic!("{scores}"));
    for (setting, kind) in [
        ("err_bad = 0.2", "query"),
        ("to_bad = 40", "execute"),
        ("wait_bad = 20", "execute"),
        ("uptime_ok = 150", "query"),
        ("k = 1.5", "query"),
    ] {
        let changed = peers.scores(setting, "used");
        println!("{setting}: {kind} scores {} instead of {}", changed[kind], default[kind]);
        assert!(score(&default, kind) < score(&changed, kind), "{setting}: {changed} after {default}");
    }
    for (setting, kind, gate) in [
        ("lat_bad_ms = 800", "query", "latency is too high"),
        ("err_bad = 0.01", "execute", "error rate is too high"),
        ("tx_free_min = 0.2", "begin", "too few transaction connections are free"),
        ("tx_wait_max = 4", "begin", "too many requests wait"),
    ] {
        let changed = peers.scores(setting, "used");
        println!("{setting}: {kind} is {}", changed[kind]);
        assert!(changed[kind].as_str().is_some_and(|text| text.contains(gate)), "{setting}: {changed}");
    }
}

#[test]
fn top_k_and_power_change_the_draw() {
    // So large that the redirects themselves do not change the scores.
    let large = NodeStats { max_open_conns: 100_000, max_http_sessions: 100_000, ..idle() };
    let busier = NodeStats { open_conns: 50_000, running_http_session: 50_000, ..large };
    let peers = FakePeers::start([("best", large), ("second", busier), ("third", busier)]);
    let share = |chosen: &BTreeMap<String, usize>, peer: &str| chosen.get(peer).copied().unwrap_or(0);
    let best_only = peers.redirects("top_k = 1");
    assert_eq!(best_only, BTreeMap::from([("best".to_owned(), 100)]));
    let flat = peers.redirects("power = 1");
    let steep = peers.redirects("power = 16");
    println!("100 redirects: top_k = 1 {best_only:?}, power = 1 {flat:?}, power = 16 {steep:?}");
    assert!(20 < share(&flat, "second") + share(&flat, "third"), "{flat:?}");
    assert!(share(&flat, "best") + 15 < share(&steep, "best"), "{flat:?} {steep:?}");
}
