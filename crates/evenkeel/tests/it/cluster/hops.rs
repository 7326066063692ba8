//! Hops: a request visits at most three nodes, none of them twice, and ends when its client disconnects.

use std::thread;
use std::time::Duration;

use evenkeel_sim_node::testing::read;
use serde_json::{Value, json};

use super::fake_peer::{TicketIssuer, TicketText};
use super::{
    CONNS, FORWARD, Setup, TestCluster, error_of, eventually, first_value, follow, post_following,
    redirect_of, send,
};

/// Returns the number of requests that wait for a connection, in all nodes.
fn waiting(cluster: &TestCluster) -> u64 {
    cluster.nodes.iter().map(|node| node.stats()["waitConnCount"].as_u64().unwrap()).sum()
}

#[test]
fn with_all_nodes_full_a_request_waits_at_one_of_them_and_is_executed_once() {
    let cluster = TestCluster::settled("all-full", 3, &Setup::default());
    let full: Vec<_> = (0..3).map(|node| cluster.occupy(node, CONNS)).collect();
    let body = |mark: &str| json!({"sql": "insert into marks values ($1)", "params": [mark]});
    let address = cluster.nodes[0].address;
    thread::scope(|scope| {
        let forwarded: Vec<_> =
            (0..4).map(|_| send(address, "/execute", FORWARD, &body("forwarded"))).collect();
        let redirected: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| post_following(address, "/execute", &body("redirected"))))
            .collect();
        eventually("every request waits at one node", || waiting(&cluster) == 8);
        drop(full);
        for reply in forwarded.into_iter().map(read) {
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        for (reply, redirects) in redirected.into_iter().map(|reply| reply.join().unwrap()) {
            assert_eq!(reply.status, 200, "{reply:?}");
            assert!(redirects <= 2, "{redirects} redirects");
        }
    });
    assert_eq!(cluster.marks(), 8);
    assert_eq!(waiting(&cluster), 0);
}

#[test]
fn a_request_takes_at_most_two_hops_and_visits_no_node_twice() {
    let cluster = TestCluster::settled("hops", 3, &Setup::default());
    let issuer = TicketIssuer::join(&cluster.nodes, Duration::from_secs(10));
    let full = cluster.occupy(1, CONNS);
    let who = json!({"sql": super::WHO});
    let text =
        |hops_left, visited| TicketText { tenant: "open", path: "/query", body: &who, hops_left, visited };
    let url = |ticket: String| format!("http://{}/query?ticket={ticket}", cluster.nodes[1].address);

    for (visited, next) in [(&["c"], "a"), (&["a"], "c")] {
        // Redirects that no client follows count as load of the peer: more of them than it has connections would wait.
        for _ in 0..2 {
            let reply = follow(&url(issuer.issue(1, text(1, visited))), &who);
            assert_eq!(redirect_of(&reply).node, next);
        }
    }
    // No hop left, or no node left: the request waits here although other nodes are free.
    let exhausted = [text(0, &[] as &[&str]), text(1, &["a", "c"])].map(|text| url(issuer.issue(1, text)));
    thread::scope(|scope| {
        let waiting_here = exhausted.map(|url| {
            let who = &who;
            scope.spawn(move || follow(&url, who))
        });
        eventually("both wait here", || cluster.nodes[1].stats()["waitConnCount"] == 2);
        drop(full);
        for reply in waiting_here {
            assert_eq!(first_value(&reply.join().unwrap()), "b");
        }
    });

    let tx_id = cluster.nodes[1].begin();
    let body: Value = json!({"sql": "select 1", "txId": tx_id});
    let ticket = issuer.issue(0, TicketText { path: "/execute", body: &body, ..text(0, &[]) });
    let reply = follow(&format!("http://{}/execute?ticket={ticket}", cluster.nodes[0].address), &body);
    let (status, code, message) = error_of(&reply);
    assert_eq!((status, code.as_str()), (503, "owner_unreachable"), "{reply:?}");
    assert!(message.contains("2 hops"), "{message}");
}

#[test]
fn a_client_that_disconnects_cancels_its_forwarded_statement_at_the_peer() {
    let cluster = TestCluster::settled("disconnect", 2, &Setup::default());
    let full = cluster.occupy(0, CONNS);
    for path in ["/query", "/execute"] {
        let body = json!({"sql": "select pg_sleep(600) /* forwarded */"});
        let client = send(cluster.nodes[0].address, path, FORWARD, &body);
        eventually("the peer executes it", || cluster.running("b", "/* forwarded */") == 1);
        drop(client);
        eventually("PostgreSQL has cancelled it", || cluster.running("b", "/* forwarded */") == 0);
    }
    // A statement of a transaction that is forwarded to its owner.
    let tx_id = cluster.nodes[1].begin();
    let body = json!({"sql": "select pg_sleep(600) /* in transaction */", "txId": tx_id});
    let client = send(cluster.nodes[0].address, "/query", "", &body);
    eventually("the owner executes it", || cluster.running("b", "/* in transaction */") == 1);
    drop(client);
    eventually("PostgreSQL has cancelled it", || cluster.running("b", "/* in transaction */") == 0);
    assert_eq!(cluster.nodes[1].who(""), "b");
    drop(full);
}
