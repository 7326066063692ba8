//! A node that is stopped with SIGTERM while it holds transactions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use super::{CONNS, FORWARD, Setup, TestCluster, eventually, post, post_following, redirect_of};

#[test]
fn a_draining_node_hands_new_work_over_finishes_its_transactions_and_exits_with_0() {
    let mut cluster = TestCluster::settled("drain", 3, &Setup::default());
    let [a, b, c] = [0, 1, 2];
    let open: Vec<_> = (0..2).map(|_| cluster.nodes[a].begin()).collect();
    assert_eq!(cluster.nodes[a].execute_in(&open[0], "insert into marks values ('before')").status, 200);
    cluster.nodes[a].server().signal("TERM");
    cluster.nodes[a].server().wait_log("stopping");
    eventually("the node drains", || {
        cluster.nodes[a].server().get("/healthz").json()["status"] == "DRAINING"
    });

    let begun = cluster.nodes[a].post("/tx/begin", "", &json!({}));
    assert!(["b", "c"].contains(&&*redirect_of(&begun).node), "{begun:?}");
    let (begun, redirects) = post_following(cluster.nodes[a].address, "/tx/begin", &json!({}));
    assert_eq!((begun.status, redirects), (200, 1), "{begun:?}");
    let elsewhere = begun.json()["txId"].as_str().unwrap().to_owned();
    assert_ne!(cluster.nodes[a].who(FORWARD), "a");
    let forwarded = cluster.nodes[a].execute(FORWARD, "insert into marks values ('forwarded')");
    assert_eq!(forwarded.status, 200, "{forwarded:?}");

    // The transaction that began elsewhere is reached over the draining node too.
    assert_eq!(cluster.nodes[a].execute_in(&elsewhere, "insert into marks values ('elsewhere')").status, 200);
    assert_eq!(cluster.nodes[a].end(&elsewhere, "commit").status, 200);
    eventually("the peers know", || {
        [b, c].iter().all(|node| cluster.nodes[*node].peer_status("a").0 == "DRAINING")
    });
    for node in [a, b, c] {
        for tx_id in &open {
            let reply = cluster.nodes[node].execute_in(tx_id, "insert into marks values ('open')");
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
    assert_eq!(cluster.nodes[b].end(&open[0], "commit").status, 200);
    assert_eq!(cluster.nodes[a].end(&open[1], "commit").status, 200);
    let server = cluster.nodes[a].server.take().unwrap();
    assert_eq!(server.wait_log("stopped")["requests_cut"], 0);
    assert_eq!(server.wait(), Some(0));
    assert_eq!(cluster.marks(), 1 + 1 + 1 + 6);
    assert_eq!(cluster.connections("a"), 0);
    assert_eq!(cluster.nodes[b].who(""), "b");
}

#[test]
fn a_rolling_restart_under_load_loses_no_forwarded_request() {
    let mut cluster = TestCluster::settled("rolling", 3, &Setup::default());
    let address = cluster.nodes[0].address;
    let is_stopping = AtomicBool::new(false);
    let client = || {
        let mut served = 0;
        while !is_stopping.load(Ordering::Relaxed) {
            let body = json!({"sql": "insert into marks select 'rolling' from pg_sleep(0.02)"});
            let reply = post(address, "/execute", FORWARD, &body);
            assert_eq!(reply.status, 200, "after {served}: {reply:?}");
            served += 1;
        }
        served
    };
    let served: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..3 * CONNS).map(|_| scope.spawn(client)).collect();
        for node in [1, 2] {
            let before = cluster.marks_by_node().get(&cluster.nodes[node].name).copied().unwrap_or(0);
            let gets_work = |cluster: &TestCluster| {
                let marks = cluster.marks_by_node();
                before + 20 <= marks.get(&cluster.nodes[node].name).copied().unwrap_or(0)
            };
            eventually("the node gets work", || gets_work(&cluster));
            cluster.nodes[node].server().signal("TERM");
            assert_eq!(cluster.nodes[node].server.take().unwrap().wait(), Some(0));
            let before_start = cluster.marks();
            eventually("the others serve", || before_start + 20 <= cluster.marks());
            cluster.nodes[node].start();
            cluster.wait_settled();
        }
        is_stopping.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(cluster.marks(), served, "executed once each");
}
