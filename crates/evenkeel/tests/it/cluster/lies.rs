//! A peer that knows the secret and lies.

use evenkeel_cluster::PoolReport;
use evenkeel_policy::score::NodeStats;
use evenkeel_sim_node::testing::{ResponseEnd, read};
use serde_json::json;

use super::fake_peer::{Answer, FakePeer, idle};
use super::{CONNS, FORWARD, SECRET, Setup, TestCluster, error_of, eventually, send};

/// One node whose peer `liar` is a fake.
struct Deceived {
    cluster: TestCluster,
    liar: FakePeer,
    database_id: String,
}

impl Deceived {
    fn start(test: &str) -> Self {
        let liar = FakePeer::start("liar");
        let setup = Setup { others: vec![("liar".to_owned(), liar.address)], ..Setup::default() };
        let cluster = TestCluster::start(test, &[SECRET], &setup);
        let database_id = cluster.nodes[0].database_id();
        Self { cluster, liar, database_id }
    }

    /// Reports idle figures until the node believes them.
    fn be_believed(&self) {
        self.liar.report(&self.database_id, idle());
        eventually("the peer is a candidate", || {
            let scores =
                self.cluster.nodes[0].peers().get("liar").map(|peer| peer["scores"]["execute"].clone());
            scores.is_some_and(|score| score.is_number())
        });
    }

    /// Checks that a request waits at the full node, although the peer claims to be idle, and is executed once.
    #[track_caller]
    fn check_waits(&self) {
        let node = &self.cluster.nodes[0];
        let before = self.cluster.marks();
        let received = self.liar.received();
        let full = self.cluster.occupy(0, CONNS);
        let waiting =
            send(node.address, "/execute", FORWARD, &json!({"sql": "insert into marks values ('waited')"}));
        eventually("the request waits", || {
            node.stats()["waitConnCount"] == 1 || received < self.liar.received()
        });
        assert_eq!(self.liar.received(), received, "the liar got nothing");
        drop(full);
        assert_eq!(read(waiting).status, 200);
        assert_eq!(self.cluster.marks(), before + 1);
    }
}

#[test]
fn impossible_figures_are_not_believed_and_exclude_the_peer_at_once() {
    let deceived = Deceived::start("impossible");
    let lies = [
        NodeStats { error_rate_1m: 7.0, ..idle() },
        NodeStats { error_rate_1m: f64::NAN, ..idle() },
        NodeStats { idle_conns: 11, ..idle() },
        NodeStats { p95_latency_ms: -1.0, ..idle() },
        NodeStats { latency_estimate_ms: f64::INFINITY, ..idle() },
    ];
    for stats in lies {
        deceived.be_believed();
        deceived.liar.report(&deceived.database_id, stats);
        eventually("the lie is noticed", || deceived.cluster.nodes[0].peer_status("liar").0 == "DOWN");
        let (_, error) = deceived.cluster.nodes[0].peer_status("liar");
        assert!(error.contains("is not believed"), "{error}");
        deceived.check_waits();
    }
    let pool = |name: &str| PoolReport {
        database_id: deceived.database_id.clone(),
        name: name.to_owned(),
        stats: idle(),
    };
    for pools in
        [vec![pool("x"), pool("x")], vec![pool("")], (0..300).map(|n| pool(&n.to_string())).collect()]
    {
        deceived.be_believed();
        deceived.liar.report_pools(pools);
        eventually("the lie is noticed", || deceived.cluster.nodes[0].peer_status("liar").0 == "DOWN");
    }
    deceived.check_waits();
}

#[test]
fn extreme_figures_do_no_harm() {
    let deceived = Deceived::start("extreme");
    let highest = NodeStats {
        running_http_session: u32::MAX,
        running_sql: u32::MAX,
        running_tx: u32::MAX,
        max_http_sessions: i32::MAX,
        max_open_conns: i32::MAX,
        max_transaction_conns: i32::MAX,
        open_conns: u32::MAX,
        idle_conns: u32::MAX,
        wait_conn_count: u32::MAX,
        latency_samples: u32::MAX,
        timeouts_1m: u32::MAX,
        uptime_sec: u64::MAX,
        latency_estimate_ms: 86_400_000.0,
        ..idle()
    };
    let lowest = NodeStats {
        max_http_sessions: i32::MIN,
        max_open_conns: i32::MIN,
        max_transaction_conns: -1,
        ..idle()
    };
    deceived.liar.answer(Answer::Bytes("HTTP/1.1 418 no\r\ncontent-length: 2\r\n\r\n{}"));
    for stats in [highest, lowest] {
        deceived.be_believed();
        deceived.liar.report(&deceived.database_id, stats);
        eventually("the figures arrive", || {
            let peer = &deceived.cluster.nodes[0].peers()["liar"]["stats"];
            peer["maxOpenConns"].as_i64() == Some(i64::from(stats.max_open_conns))
        });
        let full = deceived.cluster.occupy(0, CONNS);
        let body = json!({"sql": "insert into marks values ('never')", "timeoutMs": 300});
        let reply = deceived.cluster.nodes[0].post("/execute", FORWARD, &body);
        // It waits in vain, or the peer's answer is passed on.
        assert!([418, 503, 504].contains(&reply.status), "{reply:?}");
        drop(full);
        eventually("the node is free", || deceived.cluster.active().is_empty());
        assert_eq!(deceived.cluster.nodes[0].who(""), "a");
    }
    assert_eq!(deceived.cluster.count("select count(*) from marks where mark = 'never'"), 0);
}

#[test]
fn a_peer_with_another_database_or_another_name_gets_nothing() {
    let deceived = Deceived::start("other-database");
    deceived.be_believed();
    deceived.liar.report("another database", idle());
    eventually("the peer is no candidate", || deceived.cluster.nodes[0].peers().is_empty());
    deceived.check_waits();

    let impostor = FakePeer::start("impostor");
    let setup = Setup { others: vec![("liar".to_owned(), impostor.address)], ..Setup::default() };
    let cluster = TestCluster::start("other-name", &[SECRET], &setup);
    eventually("the name is noticed", || cluster.nodes[0].peer_status("liar").1.contains("another name"));
    assert_eq!(cluster.nodes[0].peer_status("liar").0, "DOWN");
}

#[test]
fn a_peer_that_claims_to_be_free_and_never_answers_leaves_the_outcome_unknown() {
    let deceived = Deceived::start("silent");
    deceived.be_believed();
    let full = deceived.cluster.occupy(0, CONNS);
    let answers = [
        Answer::None,
        Answer::Bytes(""),
        Answer::Bytes("HTTP/1.1 200 OK\r\ncontent-le"),
        Answer::Bytes("SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    ];
    for (sent, answer) in answers.into_iter().enumerate() {
        deceived.liar.answer(answer.clone());
        let body = json!({"sql": "insert into marks values ('lost')", "timeoutMs": 200});
        let reply = deceived.cluster.nodes[0].post("/execute", FORWARD, &body);
        let (status, code, message) = error_of(&reply);
        assert_eq!((status, code.as_str()), (502, "08007"), "{answer:?}: {reply:?}");
        assert!(message.contains("node \"liar\""), "{message}");
        assert_eq!(deceived.liar.received(), sent + 1, "sent once");
    }
    // A response that ends early is passed on as one that ends early.
    deceived.liar.answer(Answer::Bytes("HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{\"rows\":["));
    let reply = deceived.cluster.nodes[0].execute(FORWARD, "select 1");
    assert_ne!(reply.end, ResponseEnd::Complete, "{reply:?}");
    drop(full);
    eventually("the node is free", || deceived.cluster.active().is_empty());
    assert_eq!(deceived.cluster.nodes[0].who(""), "a");
    assert_eq!(deceived.cluster.marks(), 0);
}
