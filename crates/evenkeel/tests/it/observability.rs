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
fn model_requests_are_measured_by_opentelemetrys_conventions() {
    let dir = TestDir::new("observability-gen-ai");
    let node = TestNode::start(fast());
    write_config(&dir, &[&node.address().to_string()], "[[llm.models]]\nname = 'gpt'\nalias_of = 'sim'\n");
    let server = ServerProcess::start(&dir, &[]);
    let streamed = server.post(CHAT, &chat(json!({"model": "gpt", "stream": true})));
    let input = chat_input(&server.post(CHAT, &chat(json!({"model": "gpt"}))).json());
    assert_eq!(streamed.status, 200);
    assert_eq!(server.post(CHAT, &chat(json!({"max_tokens": 1_000_000}))).status, 400);
    assert_eq!(server.post(CHAT, &chat(json!({"model": "unknown"}))).status, 404);
    let embed = json!({"model": "sim", "input": "keel"});
    assert_eq!(server.post("/v1/embeddings", &embed).status, 200);
    let labels = |operation: &str, request: &str, more: &str| {
        format!(
            "{{gen_ai_operation_name=\"{operation}\",gen_ai_provider_name=\"openai\",\
             gen_ai_request_model=\"{request}\",gen_ai_response_model=\"sim\"{more}}}"
        )
    };
    let duration = "gen_ai_server_request_duration_seconds";
    let first_token = "gen_ai_server_time_to_first_token_seconds";
    let output_token = "gen_ai_server_time_per_output_token_seconds";
    let usage = "gen_ai_client_token_usage";
    let output = ",gen_ai_token_type=\"output\"";
    for line in [
        format!("{duration}_count{} 2", labels("chat", "gpt", ",error_type=\"\"")),
        format!("{duration}_count{} 1", labels("chat", "sim", ",error_type=\"400\"")),
        format!("{duration}_count{} 1", labels("embeddings", "sim", ",error_type=\"\"")),
        // Only streams have a first token.
        format!("{first_token}_count{} 1", labels("chat", "gpt", "")),
        format!("{output_token}_count{} 1", labels("chat", "gpt", "")),
        format!("{usage}_sum{} {}", labels("chat", "gpt", ",gen_ai_token_type=\"input\""), 2 * input),
        format!("{usage}_sum{} 16", labels("chat", "gpt", output)),
        format!("{usage}_bucket{} 0", labels("chat", "gpt", &format!("{output},le=\"4\""))),
        format!("{usage}_bucket{} 2", labels("chat", "gpt", &format!("{output},le=\"16\""))),
        format!("{usage}_count{} 0", labels("embeddings", "sim", output)),
        // A failed request has no tokens.
        format!("{usage}_count{} 0", labels("chat", "sim", output)),
    ] {
        // The metrics are recorded when the response has ended, which its client may see first.
        while !server.get("/metrics").body.lines().any(|found| found == line) {}
    }
    let metrics = server.get("/metrics").body;
    for bounds in [(duration, "0.01", "81.92"), (first_token, "0.001", "10"), (output_token, "0.01", "2.5")] {
        let (name, first, last) = bounds;
        for bound in [first, last] {
            let is_bucket = |line: &str| {
                line.starts_with(&format!("{name}_bucket")) && line.contains(&format!("le=\"{bound}\""))
            };
            assert!(metrics.lines().any(is_bucket), "{name} has no bucket {bound}");
        }
    }
    assert!(!metrics.contains("unknown\""), "a name that a client made up is a label: {metrics}");
}

fn chat_input(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens"].as_u64().unwrap()
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
