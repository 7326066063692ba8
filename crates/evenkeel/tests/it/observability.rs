//! Request ids in log lines, the metrics of nodes and responses, and the configuration in force.

use std::net::TcpListener;

use evenkeel_sim_node::testing::{TestNode, chat, fast, read};
use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn log_lines_of_a_request_have_its_id() {
    let dir = TestDir::new("observability-logs");
    let node = TestNode::start(fast());
    write_config(&dir, &[&node.address().to_string()], "");
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let server = ServerProcess::spawn(dir.command(&serve).env("RUST_LOG", "debug"));
    let send = |path: &str, id: &str, body: &Value| {
        read(server.send("POST", path, &format!("x-request-id: {id}\r\n"), body))
    };
    assert_eq!(send(CHAT, "chat:1", &chat(json!({}))).status, 200);
    for message in ["accepted for", "admitted", "dispatched to node", "first byte from", "finished on"] {
        let line = server.wait_log(message);
        assert_eq!(line["request_id"], "chat:1", "{line}");
    }
    // The SQL API logs this without knowing the id.
    let reply = send("/query", "sql:2", &json!({"sql": "select 1", "database": "gone"}));
    assert_eq!(reply.status, 503, "{reply:?}");
    let line = server.wait_log("could not connect to the database");
    assert_eq!(line["request_id"], "sql:2", "{line}");
}

#[test]
fn metrics_tell_which_node_is_down_and_which_statuses_were_sent() {
    let dir = TestDir::new("observability-metrics");
    let node = TestNode::start(fast());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    write_config(
        &dir,
        &[&node.address().to_string(), &closed.to_string()],
        "[llm.health]\ninterval_secs = 0.1\n",
    );
    let server = ServerProcess::start(&dir, &[]);
    let has = |line: &str| server.get("/metrics").body.lines().any(|found| found == line);
    for line in [
        "evenkeel_node_up{pool=\"llm\",node=\"node-0\"} 1",
        "evenkeel_node_up{pool=\"llm\",node=\"node-1\"} 0",
        "evenkeel_node_breaker_state{pool=\"llm\",node=\"node-0\"} 0",
    ] {
        while !has(line) {}
    }
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
    assert_eq!(server.post(CHAT, &json!({"model": "sim", "messages": 1})).status, 400);
    assert_eq!(server.get("/no/such/path").status, 404);
    for line in [
        "evenkeel_node_responses_total{pool=\"llm\",node=\"node-0\",status=\"200\"} 1",
        "evenkeel_http_responses_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "evenkeel_http_responses_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "evenkeel_http_responses_total{route=\"none\",status=\"404\"} 1",
    ] {
        assert!(has(line), "{line}");
    }
}

#[test]
fn the_shown_configuration_is_the_one_in_force() {
    let dir = TestDir::new("observability-config");
    let node = TestNode::start(fast());
    let address = node.address().to_string();
    write_config(&dir, &[&address], "[load_manager]\nmax_waiting = 50\n");
    let server = ServerProcess::start(&dir, &[]);
    let config = || server.get("/api/config").json();
    assert_eq!(config()["load_manager"]["max_waiting"], json!({"value": 50, "from": "evenkeel.toml:2"}));

    write_config(&dir, &[&address, &address], "[load_manager]\nmax_waiting = 70\n");
    server.signal("HUP");
    server.wait_log("reloaded");
    let shown = config();
    assert_eq!(
        shown["load_manager"]["max_waiting"],
        json!({"value": 50, "from": "evenkeel.toml:2", "after_restart": 70})
    );
    assert_eq!(shown["llm.nodes"].as_array().unwrap().len(), 2, "nodes are reloaded at once");
}

/// Writes settings, a datasource that does not answer, and a node per address.
fn write_config(dir: &TestDir, addresses: &[&str], settings: &str) {
    let mut text = settings.to_owned();
    for (index, address) in addresses.iter().enumerate() {
        text +=
            &format!("[[llm.nodes]]\nname = 'node-{index}'\nurl = 'http://{address}'\nmodels = ['sim']\n");
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    text += &format!("[[sql.datasources]]\nname = 'gone'\nurl = 'postgres://user@{closed}/db'\n");
    dir.write("evenkeel.toml", &text);
}
