//! Clients that know one node of three.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::{CONNS, FORWARD, Setup, TestCluster, eventually, post, post_following};

/// Clients, each with one request at a time: three times as many as one node has connections.
const CLIENTS: usize = 3 * CONNS;
/// Requests of each client.
const REQUESTS: usize = 20;

/// Sends one request of a client to node `a`; returns its status.
type Send = fn(SocketAddr, &Value) -> u16;

fn send_redirected(address: SocketAddr, body: &Value) -> u16 {
    post_following(address, "/execute", body).0.status
}

fn send_forwarded(address: SocketAddr, body: &Value) -> u16 {
    post(address, "/execute", FORWARD, body).status
}

#[test]
fn a_node_at_three_times_its_load_keeps_its_share_and_redirects_the_rest_evenly() {
    overload("overload-redirect", send_redirected);
}

#[test]
fn a_node_at_three_times_its_load_keeps_its_share_and_forwards_the_rest_evenly() {
    overload("overload-forward", send_forwarded);
}

fn overload(test: &str, send: Send) {
    let cluster = TestCluster::settled(test, 3, &Setup::default());
    let address = cluster.nodes[0].address;
    let unfinished = AtomicUsize::new(CLIENTS);
    let mut samples = Vec::new();
    let failures: Vec<u16> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let unfinished = &unfinished;
                scope.spawn(move || {
                    let statuses = (0..REQUESTS).map(|request| {
                        let mark = format!("{client}-{request}");
                        send(address, &json!({"sql": "insert into marks select $1 from pg_sleep(0.15)", "params": [mark]}))
                    });
                    let failures: Vec<u16> = statuses.filter(|status| *status != 200).collect();
                    unfinished.fetch_sub(1, Ordering::Relaxed);
                    failures
                })
            })
            .collect();
        // Once a client has finished, the load is below three times that of a node.
        while unfinished.load(Ordering::Relaxed) == CLIENTS {
            samples.push(cluster.active());
        }
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(failures, [0_u16; 0], "nobody gets an error");
    assert_eq!(cluster.marks(), CLIENTS * REQUESTS);
    assert_eq!(cluster.count("select count(distinct mark) from marks"), CLIENTS * REQUESTS);

    // The first samples are from before the peers' figures are known under load.
    let busy: BTreeMap<&str, f64> = ["a", "b", "c"].map(|node| (node, mean(&samples, node))).into();
    let executed = cluster.marks_by_node();
    println!(
        "{test}: mean of {} samples of busy connections {busy:.2?}, executed {executed:?}",
        samples.len()
    );
    let total = (CLIENTS * REQUESTS) as f64;
    let share = |node: &str| executed.get(node).copied().unwrap_or(0) as f64 / total;
    assert!(0.7 < busy["a"] / CONNS as f64, "node a keeps its connections busy: {busy:?}");
    assert!(0.28 < share("a"), "{executed:?}");
    for node in ["b", "c"] {
        assert!((0.22..0.45).contains(&share(node)), "{executed:?}");
        assert!(0.5 * busy["a"] < busy[node], "{busy:?}");
    }
    let counts = cluster.nodes[0].describe()["cluster"].clone();
    assert!(counts["redirected"].as_u64().unwrap() as f64 >= total * 0.5, "{counts}");
    eventually("nothing runs", || cluster.active().is_empty());
}

fn mean(samples: &[BTreeMap<String, usize>], node: &str) -> f64 {
    let sum: usize = samples.iter().filter_map(|sample| sample.get(node)).sum();
    sum as f64 / samples.len() as f64
}

#[test]
fn an_idle_cluster_never_redirects_and_scores_no_peer() {
    let cluster = TestCluster::settled("idle", 3, &Setup::default());
    for node in &cluster.nodes {
        for _ in 0..200 {
            assert_eq!(node.who(""), node.name);
        }
        let tx_id = node.begin();
        assert_eq!(node.execute_in(&tx_id, "insert into marks values ('idle')").status, 200);
        assert_eq!(node.end(&tx_id, "commit").status, 200);
    }
    assert_eq!(cluster.marks_by_node(), BTreeMap::from(["a", "b", "c"].map(|node| (node.to_owned(), 1))));
    for node in &cluster.nodes {
        let counts = node.describe()["cluster"].clone();
        let counted = ["noRoom", "peersScored", "redirected"].map(|count| counts[count].as_u64());
        assert_eq!(counted, [Some(0); 3], "{counts}");
    }
}
