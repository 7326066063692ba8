//! A node that is killed while it holds transactions.

use serde_json::json;

use super::{CONNS, FORWARD, Setup, TestCluster, error_of, eventually, follow};

/// Reads the locks of transactions of node `b`.
const LOCKS: &str = "select count(*) from pg_locks join pg_stat_activity using (pid) \
                     where application_name = 'node-b' and datname = current_database() \
                     and pg_locks.database is not null";

#[test]
fn transactions_of_a_killed_node_are_rolled_back_and_its_work_goes_elsewhere() {
    let mut cluster = TestCluster::settled("kill", 3, &Setup::default());
    cluster
        .database
        .psql("create table accounts (id int primary key, amount int); insert into accounts values (1, 0)")
        .unwrap();
    let open: Vec<_> = (0..2).map(|_| cluster.nodes[1].begin()).collect();
    // One statement comes over a peer.
    assert_eq!(cluster.nodes[1].execute_in(&open[0], "update accounts set amount = 5").status, 200);
    assert_eq!(cluster.nodes[2].execute_in(&open[1], "insert into marks values ('lost')").status, 200);
    let held = cluster.occupy(1, 1);
    assert_ne!(cluster.count(LOCKS), 0);
    let full = cluster.occupy(0, CONNS);

    cluster.nodes[1].kill();
    drop(held);
    // The peers' figures of the dead node are still fresh: a forward that cannot be sent goes to the next node.
    for _ in 0..20 {
        assert_eq!(cluster.nodes[0].who(FORWARD), "c");
    }
    // A redirected client cannot try another node, so one failed poll is enough to send none there.
    eventually("a poll of the dead node has failed", || !cluster.nodes[0].peer_status("b").1.is_empty());
    for _ in 0..5 {
        assert_eq!(cluster.nodes[0].redirect("/query", &json!({"sql": "select 1"})).node, "c");
    }
    for tx_id in &open {
        for node in [0, 2] {
            for reply in
                [cluster.nodes[node].execute_in(tx_id, "select 1"), cluster.nodes[node].end(tx_id, "commit")]
            {
                let (status, code, message) = error_of(&reply);
                assert_eq!((status, code.as_str()), (503, "owner_unreachable"), "{reply:?}");
                assert!(message.contains("node \"b\"") && message.contains("rolled back"), "{message}");
            }
        }
    }
    eventually("PostgreSQL has closed the dead node's connections", || cluster.connections("b") == 0);
    assert_eq!(cluster.count(LOCKS), 0);
    assert_eq!((cluster.marks(), cluster.count("select amount from accounts")), (0, 0));
    assert_eq!(cluster.nodes[2].execute("", "update accounts set amount = amount + 1").status, 200);

    eventually("the dead node is DOWN", || {
        let down = |node: usize| cluster.nodes[node].peer_status("b").0 == "DOWN";
        down(0) && down(2)
    });
    let body = json!({"sql": "insert into marks values ('served')"});
    for _ in 0..10 {
        assert_eq!(cluster.nodes[0].redirect("/execute", &body).node, "c");
    }
    let redirect = cluster.nodes[0].redirect("/execute", &body);
    let body = json!({"sql": "insert into marks values ('served')", "timeoutMs": 1_000});
    assert_eq!(follow(&redirect.url, &body).status, 200);
    assert_eq!(cluster.marks(), 1);
    let listed = cluster.nodes[0]
        .dir
        .run(&["node", "list", "--url", &format!("http://{}", cluster.nodes[0].address)])
        .ok();
    assert!(listed.lines().any(|line| line.starts_with('b') && line.contains("DOWN")), "{listed}");
    drop(full);
    eventually("nothing runs", || cluster.active().is_empty());
    for node in [0, 2] {
        assert_eq!(cluster.nodes[node].who(""), cluster.nodes[node].name);
        assert!(cluster.connections(&cluster.nodes[node].name) <= CONNS);
    }
    let in_transaction = super::activity("count(*)", "state like 'idle in transaction%'");
    assert_eq!(cluster.count(&in_transaction), 0);
}
