//! A node that is killed and started again.

use std::collections::BTreeMap;

use super::{CONNS, FORWARD, Setup, TestCluster, error_of, eventually};

/// Uptime in seconds from which a node gets its full share.
const UPTIME_OK: u64 = 12;

/// Requests by which the shares of the nodes are measured; enough that chance does not decide.
const REQUESTS: usize = 180;

#[test]
fn a_restarted_node_has_forgotten_its_transactions_and_starts_slowly() {
    let setup = Setup { sections: format!("[sql.score]\nuptime_ok = {UPTIME_OK}\n"), ..Setup::default() };
    let mut cluster = TestCluster::settled("restart", 3, &setup);
    let tx_id = cluster.nodes[1].begin();
    assert_eq!(cluster.nodes[0].execute_in(&tx_id, "insert into marks values ('lost')").status, 200);
    eventually("node c has its full share", || {
        cluster.nodes[2].stats()["uptimeSec"].as_u64().is_some_and(|uptime| UPTIME_OK <= uptime)
    });
    let full = cluster.occupy(0, CONNS);
    let before = shares(&cluster);

    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    for node in [0, 2] {
        eventually("the peers know the restarted node", || {
            let uptime =
                cluster.nodes[node].peers().get("b").and_then(|peer| peer["stats"]["uptimeSec"].as_u64());
            uptime.is_some_and(|uptime| uptime < UPTIME_OK)
                && cluster.nodes[node].peer_status("b").0 == "SERVING"
        });
    }
    let after = shares(&cluster);
    println!("{REQUESTS} requests forwarded before the restart of b: {before:?}, right after it: {after:?}");
    let share = |shares: &BTreeMap<String, usize>, node: &str| shares.get(node).copied().unwrap_or(0);
    assert!(3 * share(&after, "b") < 2 * share(&before, "b"), "{before:?}, {after:?}");
    assert!(2 * share(&after, "b") < share(&after, "c"), "{after:?}");

    for node in &cluster.nodes {
        for reply in
            [node.execute_in(&tx_id, "select 1"), node.end(&tx_id, "commit"), node.end(&tx_id, "rollback")]
        {
            let (status, code, message) = error_of(&reply);
            assert_eq!(
                (status, code.as_str()),
                (410, "unknown_transaction"),
                "node {}: {reply:?}",
                node.name
            );
            assert!(message.contains("restarted"), "{message}");
        }
    }
    drop(full);
    assert_eq!(cluster.count("select count(*) from marks where mark = 'lost'"), 0);
}

/// Forwards requests one after the other, and counts the nodes that serve them.
fn shares(cluster: &TestCluster) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..REQUESTS {
        *shares.entry(cluster.nodes[0].who(FORWARD)).or_default() += 1;
    }
    shares
}
