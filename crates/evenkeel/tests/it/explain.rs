//! `evenkeel explain` and `GET /api/requests/{id}`: requests of both APIs, jobs, and requests handed over between nodes.

use std::net::{SocketAddr, TcpListener};

use evenkeel_sim_node::testing::{RawResponse, TestNode, chat, fast, read, stuck};
use evenkeel_test_postgres::{SharedDatabase, shared};
use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_chat_is_explained_by_the_id_in_its_response() {
    let node = TestNode::start(fast());
    let (dir, server) = start("explain-chat", &node, "");
    let reply = server.post(CHAT, &chat(json!({})));
    assert_eq!(reply.status, 200, "{reply:?}");
    let id = reply.head.split_once("x-request-id: ").unwrap().1.lines().next().unwrap();
    // The last step is recorded when the response has ended, which its client may see first.
    let finished = || texts(&explained(&server, id)).last().is_some_and(|text| text.starts_with("finished"));
    while !finished() {}
    let request = explained(&server, id);
    assert_eq!(
        (&request["id"], &request["api"], &request["tenant"]),
        (&json!(id), &json!("llm"), &json!("open"))
    );
    assert_eq!((&request["omitted"], &request["earlier"]), (&json!(0), &json!([])));
    assert_steps(
        &request,
        &[
            "accepted for \"sim\", estimated cost ",
            "admitted, 1 waiting",
            "dispatched to node \"one\" after 0ns, attempt 1: ",
            "first byte from node \"one\" after ",
            "finished on node \"one\" after ",
        ],
    );
    let times: Vec<_> = steps(&request).iter().map(|step| step["atMs"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");

    let shown = dir.run(&["explain", id]).ok();
    let mut lines = shown.lines();
    assert!(lines.next().unwrap().starts_with("llm request of tenant \"open\", "), "{shown}");
    assert!(lines.next().unwrap().contains("+0.000 ms  accepted for \"sim\", estimated cost "), "{shown}");
    assert_eq!(lines.count(), 4, "{shown}");
    let printed: Value = serde_json::from_str(&dir.run(&["explain", id, "--json"]).ok()).unwrap();
    assert_eq!(texts(&printed), texts(&request));
}

#[test]
fn a_waiting_chat_is_explained_and_so_are_all_requests_with_its_id() {
    let node = TestNode::start(stuck());
    let (dir, server) = start("explain-waiting", &node, "max_concurrency = 1\n");
    let running = server.send("POST", CHAT, "x-request-id: shared\r\n", &chat(json!({})));
    while server.get("/api/requests/shared").status == 404 {}
    let waiting = server.send("POST", CHAT, "x-request-id: shared\r\n", &chat(json!({})));
    while explained(&server, "shared")["earlier"] == json!([]) {}
    let request = explained(&server, "shared");
    assert_steps(&request, &["accepted for \"sim\"", "admitted, 1 waiting"]);
    assert_steps(&request["earlier"][0], &["accepted", "admitted", "dispatched to node \"one\""]);
    drop(waiting);
    while texts(&explained(&server, "shared")).len() < 3 {}
    assert_steps(&explained(&server, "shared"), &["accepted", "admitted", "cancelled while waiting"]);
    let shown = dir.run(&["explain", "shared"]).ok();
    assert_eq!(shown.matches("llm request of tenant \"open\"").count(), 2, "{shown}");
    assert!(
        shown.find("dispatched").unwrap() < shown.find("cancelled").unwrap(),
        "not oldest first: {shown}"
    );
    drop(running);
}

#[test]
fn a_chat_that_waited_is_explained_with_those_served_meanwhile_and_its_path() {
    let node = TestNode::start(stuck());
    let dir = TestDir::new("explain-behind");
    let port = node.address().port();
    let paths = format!("paths = ['http://127.0.0.1:{port}', 'http://localhost:{port}']");
    let lines = "models = ['sim']\nmax_concurrency = 1\n";
    dir.write("evenkeel.toml", &format!("[[llm.nodes]]\nname = 'one'\n{paths}\n{lines}"));
    let server = ServerProcess::start(&dir, &[]);
    let send = |id: &str| server.send("POST", CHAT, &format!("x-request-id: {id}\r\n"), &chat(json!({})));
    let is_dispatched = |id: &str| {
        let reply = server.get(&format!("/api/requests/{id}"));
        reply.status == 200 && reply.body.contains("dispatched to node")
    };
    let first = send("first");
    while !is_dispatched("first") {}
    let second = send("second");
    while server.get("/api/requests/second").status == 404 {}
    let third = send("third");
    while server.get("/api/requests/third").status == 404 {}
    drop(first);
    while !is_dispatched("second") {}
    drop(second);
    while !is_dispatched("third") {}
    assert_steps(
        &explained(&server, "third"),
        &[
            "accepted for \"sim\"",
            "admitted, 2 waiting",
            "waited while 1 request got a slot: 1 of its own tenant",
            "dispatched to node \"one\" over path http://",
        ],
    );
    drop(third);
}

#[test]
fn a_statement_and_a_statement_of_a_transaction_are_explained() {
    let dir = TestDir::new("explain-sql");
    let server = ServerProcess::start(&dir, &[]);
    let reply = send(&server, "/execute", "mine:1", &json!({"sql": "create table t (n int)"}));
    assert!(reply.status == 200 && reply.head.contains("\r\nx-request-id: mine:1"), "{reply:?}");
    while texts(&explained(&server, "mine:1")).len() < 5 {}
    let request = explained(&server, "mine:1");
    assert_eq!((&request["api"], &request["tenant"]), (&json!("sql"), &json!("open")));
    assert_steps(
        &request,
        &[
            "accepted for \"main\", estimated cost ",
            "admitted, 1 waiting",
            "dispatched to node \"main-writer\" after ",
            "first byte from node \"main-writer\" after ",
            "finished on node \"main-writer\" after ",
        ],
    );
    let tx_id = server.post("/tx/begin", &json!({})).json()["txId"].clone();
    let inside =
        send(&server, "/execute", "inside", &json!({"sql": "insert into t values (1)", "txId": tx_id}));
    assert_eq!(inside.status, 200, "{inside:?}");
    assert_eq!(send(&server, "/tx/commit", "end", &json!({"txId": tx_id})).status, 200);
    for id in ["inside", "end"] {
        let text = "runs on the connection of its transaction, on node \"main-writer\"";
        assert_eq!(texts(&explained(&server, id)), [text]);
    }
}

#[test]
fn the_log_keeps_the_latest_requests_and_the_first_and_latest_steps() {
    let dir = TestDir::new("explain-limits");
    dir.write("evenkeel.toml", "[telemetry]\nrequests_max = 2\nsteps_max = 3\n");
    let server = ServerProcess::start(&dir, &[]);
    for id in ["one", "two", "three"] {
        assert_eq!(send(&server, "/query", id, &json!({"sql": "select 1"})).status, 200);
    }
    while explained(&server, "three")["omitted"] != 2 {}
    assert_steps(&explained(&server, "three"), &["accepted", "first byte", "finished"]);
    let shown = dir.run(&["explain", "three"]).ok();
    assert!(shown.contains("2 steps omitted ([telemetry] steps_max)"), "{shown}");
    assert_eq!(server.get("/api/requests/two").status, 200);
    let dropped = dir.run(&["explain", "one"]).failed();
    assert!(dropped.contains("no request \"one\" among the last 2 requests of each API"), "{dropped}");
}

#[test]
fn an_unknown_or_malformed_id_and_a_disabled_log_are_errors_that_say_so() {
    let dir = TestDir::new("explain-unknown");
    let server = ServerProcess::start(&dir, &[]);
    let unknown = server.get("/api/requests/nobody");
    let message = unknown.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(unknown.status, 404);
    assert!(message.starts_with("there is no request \"nobody\" among the last 1024 requests"), "{message}");
    assert!(message.contains("[telemetry] requests_max"), "{message}");
    let longest = "x".repeat(128);
    assert_eq!(server.get(&format!("/api/requests/{longest}")).status, 404);
    for path in ["", "a/b"] {
        assert_eq!(server.get(&format!("/api/requests/{path}")).status, 404, "{path} is not one segment");
    }
    for id in ["two%20words", "a%2Fb", "%C3%A9", &format!("{longest}x")] {
        let reply = server.get(&format!("/api/requests/{id}"));
        assert_eq!(reply.status, 400, "{id}: {reply:?}");
        assert!(reply.body.contains("a request id has 1 to 128 ASCII letters"), "{reply:?}");
    }
    let malformed = dir.run(&["explain", "two words"]).failed();
    assert!(malformed.contains("a request id has 1 to 128"), "{malformed}");
    let no_message = dir.run(&["explain", "00000001-0000-0001-0000-000000000005"]).failed();
    assert!(no_message.contains("no queue has a message with this id"), "{no_message}");
    drop(server);

    dir.write("evenkeel.toml", "[telemetry]\nrequests_max = 0\n");
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(send(&server, "/query", "unlogged", &json!({"sql": "select 1"})).status, 200);
    let disabled = dir.run(&["explain", "unlogged"]).failed();
    assert!(disabled.contains("there is no request log: [telemetry] requests_max is 0"), "{disabled}");
}

#[test]
fn only_an_admin_may_ask_for_a_request() {
    let dir = TestDir::new("explain-admin");
    let output = dir.run(&["tenant", "key"]).ok();
    let (key, hash) = output.trim().split_once('\n').unwrap();
    dir.write("evenkeel.toml", &format!("[server]\nadmin_key_hashes = ['{hash}']\n"));
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.get("/api/requests/any").status, 401);
    assert_eq!(server.get_with_key("/api/requests/any", key).status, 404);
    let refused = dir.run(&["explain", "any"]).failed();
    assert!(refused.contains("set EVENKEEL_ADMIN_KEY to the admin key"), "{refused}");
}

#[test]
fn a_message_is_explained_by_its_id_alone_and_a_job_with_its_steps() {
    let node = TestNode::start(fast());
    let (dir, server) = start("explain-message", &node, "");
    dir.run(&["queue", "create", "other"]).ok();
    dir.run(&["queue", "create", "waiting"]).ok();
    let id = dir.run(&["queue", "send", "waiting", "hello"]).ok().trim().to_owned();
    let shown = dir.run(&["explain", &id]).ok();
    assert!(shown.starts_with("message of queue \"waiting\": "), "{shown}");
    let printed: Value = serde_json::from_str(&dir.run(&["explain", &id, "--json"]).ok()).unwrap();
    assert_eq!((&printed["id"], &printed["message"]["queue"]), (&json!(id), &json!("waiting")));

    dir.run(&["queue", "create", "jobs", &format!("dispatch={}", json!({"target": CHAT}))]).ok();
    let id = dir
        .run(&["queue", "send", "jobs", "--key", "open", &chat(json!({})).to_string()])
        .ok()
        .trim()
        .to_owned();
    let finished = || {
        let reply = server.get(&format!("/api/requests/{id}"));
        reply.status == 200 && texts(&reply.json()).last().unwrap().starts_with("finished")
    };
    while !finished() {}
    let shown = dir.run(&["explain", &id]).ok();
    assert!(shown.starts_with("llm request of tenant \"open\""), "{shown}");
}

#[test]
fn a_redirected_and_a_forwarded_statement_are_explained_at_both_nodes() {
    let cluster = TestCluster::start("explain-cluster");
    let [a, b] = &cluster.nodes;
    let held =
        a.server.send("POST", "/query", "x-request-id: held\r\n", &json!({"sql": "select pg_sleep(600)"}));
    while !a.server.get("/healthz").body.contains("\"runningSql\":1") {}
    let query = json!({"sql": "select 1"});

    let redirected = send(&a.server, "/query", "moved", &query);
    assert_eq!(redirected.status, 307, "{redirected:?}");
    let handed_over = [
        "query redirected to peer \"b\": no database connection is free for this request; best of 1 by score ",
    ];
    assert_steps(&explained(&a.server, "moved"), &handed_over);
    let url = redirected.json()["redirect"]["url"].clone();
    let path = url.as_str().unwrap().strip_prefix(&format!("http://{}", b.server.address)).unwrap();
    assert_eq!(send(&b.server, path, "moved", &query).status, 200);
    assert_served(b, "moved");

    let headers = "x-request-id: passed\r\nx-evenkeel-redirect: forward\r\n";
    assert_eq!(read(a.server.send("POST", "/query", headers, &query)).status, 200);
    let forwarded = [handed_over[0], "peer \"b\" answered after "];
    assert_steps(&explained(&a.server, "passed"), &forwarded);
    assert_served(b, "passed");
    let shown = a.dir.run(&["explain", "passed"]).ok();
    assert!(
        shown.starts_with("sql request of tenant \"open\"") && shown.contains("peer \"b\" answered"),
        "{shown}"
    );

    let tx_id = b.server.post("/tx/begin", &json!({})).json()["txId"].clone();
    let inside = json!({"sql": "select 1", "txId": tx_id});
    assert_eq!(send(&a.server, "/query", "owned", &inside).status, 200);
    let owned = ["forwarded to peer \"b\", which holds its transaction", "peer \"b\" answered after "];
    assert_steps(&explained(&a.server, "owned"), &owned);
    assert_steps(
        &explained(&b.server, "owned"),
        &["runs on the connection of its transaction, on node \"pg\""],
    );
    drop(held);
}

#[test]
fn a_statement_that_no_peer_could_take_is_explained_with_its_steps_here() {
    let cluster = TestCluster::start("explain-lost-peer");
    let held = cluster.nodes[0].server.send("POST", "/query", "", &json!({"sql": "select pg_sleep(600)"}));
    while !cluster.nodes[0].server.get("/healthz").body.contains("\"runningSql\":1") {}
    let [a, b] = cluster.nodes;
    b.server.signal("KILL");
    b.server.wait();
    let headers = "x-request-id: stays\r\nx-evenkeel-redirect: forward\r\n";
    let body = json!({"sql": "select 1", "timeoutMs": 500});
    let reply = read(a.server.send("POST", "/query", headers, &body));
    assert_eq!(reply.status, 504, "{reply:?}");
    assert_steps(
        &explained(&a.server, "stays"),
        &[
            "query redirected to peer \"b\": ",
            "peer \"b\": could not be reached or rejected it, and did not execute it",
            "accepted for \"pg\"",
            "admitted, 1 waiting",
            "rejected: no slot became free in time",
        ],
    );
    drop(held);
}

fn start(name: &str, node: &TestNode, node_lines: &str) -> (TestDir, ServerProcess) {
    let dir = TestDir::new(name);
    let url = format!("http://{}", node.address());
    let config = format!("[[llm.nodes]]\nname = 'one'\nurl = '{url}'\nmodels = ['sim']\n{node_lines}");
    dir.write("evenkeel.toml", &config);
    let server = ServerProcess::start(&dir, &[]);
    (dir, server)
}

/// Sends a request with an id of the client.
fn send(server: &ServerProcess, path: &str, id: &str, body: &Value) -> RawResponse {
    read(server.send("POST", path, &format!("x-request-id: {id}\r\n"), body))
}

#[track_caller]
fn explained(server: &ServerProcess, id: &str) -> Value {
    let reply = server.get(&format!("/api/requests/{id}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn steps(request: &Value) -> &[Value] {
    request["steps"].as_array().unwrap()
}

fn texts(request: &Value) -> Vec<String> {
    steps(request).iter().map(|step| step["text"].as_str().unwrap().to_owned()).collect()
}

/// Asserts that the texts of a request's steps begin with these.
#[track_caller]
fn assert_steps(request: &Value, beginnings: &[&str]) {
    let texts = texts(request);
    let all_begin = texts.iter().zip(beginnings).all(|(text, beginning)| text.starts_with(beginning));
    assert!(texts.len() == beginnings.len() && all_begin, "{texts:#?} instead of {beginnings:#?}");
}

/// Asserts that a node explains a statement that it served.
#[track_caller]
fn assert_served(node: &ClusterNode, id: &str) {
    while texts(&explained(&node.server, id)).len() < 5 {}
    let served = ["accepted for \"pg\"", "admitted", "dispatched to node \"pg\"", "first byte", "finished"];
    assert_steps(&explained(&node.server, id), &served);
}

/// Nodes `a` and `b` in front of one PostgreSQL; `a` has one connection.
struct TestCluster {
    nodes: [ClusterNode; 2],
    _database: SharedDatabase,
}

struct ClusterNode {
    server: ServerProcess,
    dir: TestDir,
}

impl TestCluster {
    /// Starts both nodes and waits until each knows the figures of the other.
    fn start(test: &str) -> Self {
        let database = shared().unwrap();
        let reserved = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [0, 1].map(|index: usize| reserved[index].local_addr().unwrap());
        drop(reserved);
        let nodes = [("a", 1), ("b", 8)].map(|(name, conns)| {
            let dir = TestDir::new(&format!("{test}-{name}"));
            let url = database.url();
            dir.write("evenkeel.toml", &cluster_config(name, conns, &url, addresses));
            let listen = addresses[usize::from(name == "b")].to_string();
            let server = ServerProcess::spawn(&mut dir.command(&["serve", "--listen", &listen]));
            ClusterNode { server, dir }
        });
        for node in &nodes {
            let is_known = || {
                let sql = node.server.get("/api/sql").json();
                sql["datasources"][0]["peers"]["peers"][0]["scores"]["query"].is_number()
            };
            while !is_known() {}
        }
        Self { nodes, _database: database }
    }
}

fn cluster_config(name: &str, conns: u32, url: &str, addresses: [SocketAddr; 2]) -> String {
    let [a, b] = addresses;
    format!(
        "[[sql.datasources]]\nname = 'pg'\nurl = '{url}'\nmax_open_conns = {conns}\nmax_transaction_conns = 1\n\
         [cluster]\nname = '{name}'\nsecret = 'the secret of the tested cluster'\n\
         [[cluster.peers]]\nname = 'a'\nurl = 'http://{a}'\n[[cluster.peers]]\nname = 'b'\nurl = 'http://{b}'\n"
    )
}
