//! Classes and sessions of a tenant, with a real server process, simulated nodes and the openai-python client.

use std::net::TcpStream;

use evenkeel_server::api_key::KeyHash;
use evenkeel_sim_node::testing::{TestNode, chat, fast, read, stuck};
use serde_json::{Value, json};

use crate::external_client::{python, run};
use crate::fleet::{CHAT, tenant, tenant_status};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

/// A gateway with a team of one key, in front of a node with one slot that never answers.
struct Team {
    // Fields are dropped in this order: the server before its node and its directory.
    server: ServerProcess,
    _node: TestNode,
    _dir: TestDir,
}

impl Team {
    fn start(name: &str, config: &str) -> Self {
        let node = TestNode::start(stuck());
        let dir = TestDir::new(name);
        let url = format!("url = 'http://{}'\nmodels = ['sim']\nmax_concurrency = 1\n", node.address());
        let nodes = format!("[[llm.nodes]]\nname = 'one'\n{url}");
        dir.write("evenkeel.toml", &format!("{config}{nodes}{}", tenant("team", "")));
        Self { server: ServerProcess::start(&dir, &[]), _node: node, _dir: dir }
    }

    /// Sends a chat under a request ID, and waits until the gateway has accepted or rejected it.
    fn send(&self, id: &str, headers: &str) -> TcpStream {
        let headers = format!("authorization: Bearer ek-team\r\nx-request-id: {id}\r\n{headers}");
        let sent = self.server.send("POST", CHAT, &headers, &chat(json!({})));
        while self.steps(id).is_empty() {}
        sent
    }

    fn steps(&self, id: &str) -> Vec<String> {
        let reply = self.server.get(&format!("/api/requests/{id}"));
        if reply.status == 404 {
            return vec![];
        }
        let request = reply.json();
        let texts =
            request["steps"].as_array().unwrap().iter().map(|step| step["text"].as_str().unwrap().to_owned());
        texts.collect()
    }

    fn is_dispatched(&self, id: &str) -> bool {
        self.steps(id).iter().any(|step| step.starts_with("dispatched"))
    }

    /// Disconnects each request that has the slot, and returns the order in which the others got it.
    fn dispatch_order(&self, first: TcpStream, mut waiting: Vec<(&str, TcpStream)>) -> Vec<String> {
        let mut order = vec![];
        let mut in_flight = first;
        while !waiting.is_empty() {
            drop(in_flight);
            let next = loop {
                if let Some(next) = waiting.iter().position(|(id, _)| self.is_dispatched(id)) {
                    break next;
                }
            };
            let (id, sent) = waiting.remove(next);
            order.push(id.to_owned());
            in_flight = sent;
        }
        order
    }
}

const LOOP: &str = "x-evenkeel-session: loop\r\n";

#[test]
fn a_persons_request_is_served_before_the_backlog_of_a_looping_agent() {
    let team = Team::start("classes-loop", "");
    let first = team.send("loop-0", LOOP);
    let mut waiting = vec![];
    for id in ["loop-1", "loop-2", "loop-3", "loop-4"] {
        waiting.push((id, team.send(id, LOOP)));
    }
    waiting.push(("person", team.send("person", "x-evenkeel-session: person\r\n")));
    let order = team.dispatch_order(first, waiting);
    assert_eq!(order, ["person", "loop-1", "loop-2", "loop-3", "loop-4"]);
}

#[test]
fn a_high_request_is_served_before_waiting_low_ones() {
    let team = Team::start("classes-high", "");
    let first = team.send("low-0", "x-evenkeel-priority: low\r\n");
    let mut waiting = vec![];
    for id in ["low-1", "low-2"] {
        waiting.push((id, team.send(id, "x-evenkeel-priority: low\r\n")));
    }
    waiting.push(("high", team.send("high", "x-evenkeel-priority: high\r\n")));
    let status = team.server.get("/api/load-status").json();
    let classes = &tenant_status(&status, "team")["classes"];
    assert_eq!(
        ["high", "normal", "low", "background"].map(|class| classes[class]["waiting"].as_u64().unwrap()),
        [1, 0, 2, 0],
        "{status:#}"
    );
    let metrics = team.server.get("/metrics").body;
    for line in [r#"evenkeel_class_waiting{class="high"} 1"#, r#"evenkeel_class_waiting{class="low"} 2"#] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(team.dispatch_order(first, waiting), ["high", "low-1", "low-2"]);
}

#[test]
fn an_agent_loop_does_not_take_its_teams_waiting_places() {
    let team = Team::start("classes-places", "[load_manager]\nmax_waiting = 5\nmax_delay_ms = 1\n");
    let first = team.send("loop-0", LOOP);
    let waiting = ["loop-1", "loop-2", "loop-3", "loop-4"].map(|id| team.send(id, LOOP));
    let refused = read(team.send("loop-5", LOOP));
    assert_eq!(refused.status, 503, "{refused:?}");
    let person = team.send("person", "x-evenkeel-session: person\r\n");
    let [kept @ .., newest] = waiting;
    let evicted = read(newest);
    assert_eq!(evicted.status, 503, "{evicted:?}");
    assert!(evicted.head.contains("retry-after: "), "{evicted:?}");
    let ids = ["loop-1", "loop-2", "loop-3"];
    let mut left: Vec<_> = ids.into_iter().zip(kept).collect();
    left.push(("person", person));
    assert_eq!(team.dispatch_order(first, left), ["person", "loop-1", "loop-2", "loop-3"]);
}

#[test]
fn an_invalid_priority_or_session_is_rejected_with_the_valid_values() {
    let node = TestNode::start(fast());
    let (_dir, server) = start("classes-invalid", &node, &tenant("team", ""));
    let long = "x".repeat(129);
    for (header, message) in [
        ("x-evenkeel-priority: urgent", "x-evenkeel-priority must be one of high, normal and low"),
        ("x-evenkeel-priority: ", "x-evenkeel-priority must be one of high, normal and low"),
        ("x-evenkeel-priority: low\r\nx-evenkeel-priority: high", "x-evenkeel-priority is given twice"),
        ("x-evenkeel-session: ", "x-evenkeel-session must be 1 to 128 printable ASCII characters"),
        (
            &format!("x-evenkeel-session: {long}"),
            "x-evenkeel-session must be 1 to 128 printable ASCII characters",
        ),
    ] {
        let reply = send(&server, "team", &format!("{header}\r\n"), json!({}));
        assert_eq!(reply.status, 400, "{header}: {reply:?}");
        let error = &reply.json()["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{header}: {error}");
        assert_eq!(error["param"].as_str(), header.split(':').next(), "{error}");
    }
    assert_eq!(send(&server, "team", "x-evenkeel-priority: low\r\n", json!({})).status, 200);
}

#[test]
fn a_tenants_priority_is_the_default_and_its_maximum_a_cap() {
    let node = TestNode::start(fast());
    let config = tenant("plain", "")
        + &tenant("batch", "priority = 'low'")
        + &tenant("mixed", "priority = 'low'\npriority_max = 'normal'")
        + &tenant("team", &low_key());
    let (dir, server) = start("classes-caps", &node, &config);
    let mut count = 0;
    let mut class = |tenant: &str, headers: &str, body: Value| {
        count += 1;
        let reply = send(&server, tenant, &format!("x-request-id: r-{count}\r\n{headers}"), body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let shown = dir.run(&["explain", &format!("r-{count}")]).ok();
        let (_, rest) = shown.split_once(", class ").unwrap_or_else(|| panic!("{shown}"));
        rest.split([',', '\n']).next().unwrap().to_owned()
    };
    let high = "x-evenkeel-priority: high\r\n";
    assert_eq!(class("plain", "", json!({})), "normal");
    assert_eq!(class("plain", high, json!({})), "high");
    assert_eq!(class("plain", "", json!({"service_tier": "flex"})), "low");
    assert_eq!(class("plain", "", json!({"service_tier": "priority"})), "high");
    assert_eq!(class("plain", "", json!({"service_tier": "auto"})), "normal");
    assert_eq!(class("plain", "x-evenkeel-priority: normal\r\n", json!({"service_tier": "flex"})), "normal");
    assert_eq!(class("batch", "", json!({})), "low");
    assert_eq!(class("batch", high, json!({})), "low");
    assert_eq!(class("mixed", "", json!({})), "low");
    assert_eq!(class("mixed", high, json!({})), "normal");
    assert_eq!(class("team", high, json!({})), "high");
    assert_eq!(class("team-nightly", high, json!({})), "low");
}

#[test]
fn statements_have_the_class_of_their_key() {
    let dir = TestDir::new("classes-sql");
    dir.write("evenkeel.toml", &tenant("team", &low_key()));
    let server = ServerProcess::start(&dir, &[]);
    let post = |key: &str, path: &str, body: Value| {
        server.send("POST", path, &format!("authorization: Bearer ek-{key}\r\n"), &body)
    };
    let execute = |key: &str, sql: &str| post(key, "/execute", json!({"sql": sql}));
    let wait_waiting = |count: u64| {
        let waiting = || server.get("/healthz").json()["datasources"][0]["stats"]["waitConnCount"].as_u64();
        while waiting() != Some(count) {}
    };
    assert_eq!(read(execute("team-nightly", "create table t (name text)")).status, 200);
    // The transaction holds the only connection that writes. It is low too, so that the other class has no debt.
    let began = read(post("team-nightly", "/tx/begin", json!({}))).json();
    let mut sent = vec![];
    for (waiting, (key, name)) in
        (1..).zip([("team-nightly", "low-1"), ("team-nightly", "low-2"), ("team", "normal")])
    {
        sent.push(execute(key, &format!("insert into t values ('{name}')")));
        wait_waiting(waiting);
    }
    assert_eq!(read(post("team-nightly", "/tx/rollback", json!({"txId": began["txId"]}))).status, 200);
    sent.into_iter().for_each(|sent| assert_eq!(read(sent).status, 200));
    let rows = read(post("team", "/query", json!({"sql": "select name from t order by rowid"}))).json();
    assert_eq!(rows["rows"], json!([["normal"], ["low-1"], ["low-2"]]));
}

#[test]
fn openai_python_names_its_class_and_session() {
    let node = TestNode::start(fast());
    let (dir, server) = start("classes-openai", &node, &tenant("team", ""));
    let url = format!("http://{}/v1", server.address);
    run(python("classes_client.py").arg(url).env("OPENAI_API_KEY", "ek-team"));
    let session = |id: &str| {
        let shown = dir.run(&["explain", id]).ok();
        let named = shown.split_once(", session ").map(|(_, rest)| rest.lines().next().unwrap().to_owned());
        (shown.contains(", class low"), named)
    };
    let named = session("named");
    assert!(named.0 && named.1.is_some(), "{named:?}");
    assert_eq!(session("named-again"), named);
    let amy = session("amy");
    assert!(!amy.0 && amy.1.is_some() && amy.1 != named.1, "{amy:?}");
    assert_eq!(session("amy-in-another-conversation"), amy);
    assert_ne!(session("ben").1, amy.1);
    assert_eq!(session("nobody"), (false, None));
}

/// Returns a second key of a tenant, whose requests are low.
fn low_key() -> String {
    let hash = KeyHash::of("ek-team-nightly");
    format!("[[tenants.keys]]\nname = 'nightly'\nhash = '{hash}'\npriority = 'low'")
}

fn start(name: &str, node: &TestNode, config: &str) -> (TestDir, ServerProcess) {
    let dir = TestDir::new(name);
    let node = format!("[[llm.nodes]]\nname = 'one'\nurl = 'http://{}'\nmodels = ['sim']\n", node.address());
    dir.write("evenkeel.toml", &format!("{node}{config}"));
    let server = ServerProcess::start(&dir, &[]);
    (dir, server)
}

fn send(
    server: &ServerProcess,
    tenant: &str,
    headers: &str,
    fields: Value,
) -> evenkeel_sim_node::testing::RawResponse {
    let headers = format!("authorization: Bearer ek-{tenant}\r\n{headers}");
    read(server.send("POST", CHAT, &headers, &chat(fields)))
}
