//! Outages of nodes, and requests that a node refuses, at the real edge.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use evenkeel_sim_node::SimOptions;
use evenkeel_sim_node::testing::{TestNode, chat, fast, read};
use serde_json::{Value, json};

use crate::fleet::{Backend, CHAT, Fleet};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const CONFIG: &str = "
[llm.health]
interval_secs = 0.1
timeout_secs = 1
[llm.breaker]
backoff_min_secs = 0.05
backoff_max_secs = 0.1
cooldown_secs = 0.02
";

#[test]
fn requests_wait_for_an_engine_that_restarts() {
    let address = unused_address();
    let fleet = Fleet::start("restart", CONFIG, vec![("engine", Backend::Url(format!("http://{address}")))]);
    let requests: Vec<_> =
        (0..8).map(|user| fleet.send("none", CHAT, &chat(json!({"user": user.to_string()})))).collect();
    fleet.wait_status("down", |status| {
        status["nodes"][0]["breaker"] != "closed" && status["waiting"].as_u64() >= Some(7)
    });
    start_engine(&address);
    for reply in requests.into_iter().map(read) {
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    fleet.wait_idle();
}

#[test]
fn after_the_hold_an_outage_is_answered_with_its_cause_and_ready_names_the_node() {
    let address = unused_address();
    let config = format!("{CONFIG}hold_secs = 0.2\n");
    let fleet = Fleet::start("outage", &config, vec![("engine", Backend::Url(format!("http://{address}")))]);
    fleet.wait_status("down", |status| status["nodes"][0]["unreachable_ms"].as_f64() > Some(300.0));
    for _ in 0..5 {
        let reply = fleet.post("none", CHAT, &chat(json!({})));
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (503, &json!("unavailable")), "{reply:?}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("node \"engine\": ") && message.contains("refused"), "{message}");
        assert!(reply.head.contains("retry-after: "), "{}", reply.head);
    }
    let ready = fleet.get("/readyz");
    assert_eq!((ready.status, ready.body.as_str()), (200, "ready\nnode \"engine\" is unhealthy\n"));
    fleet.wait_idle();
}

#[test]
fn a_request_that_a_node_refuses_twice_gets_the_refusal_and_others_are_served() {
    let address = unused_address();
    start_engine(&address);
    let fleet = Fleet::start("refusal", CONFIG, vec![("engine", Backend::Url(format!("http://{address}")))]);
    let ordinary = chat(json!({}));
    assert_eq!(fleet.post("none", CHAT, &ordinary).status, 200);
    let poison = fleet.send("none", CHAT, &chat(json!({"user": "poison"})));
    fleet.wait_status("refused", |status| status["counts"]["retried"].as_u64() >= Some(1));
    // The node serves a request that was sent after the refusal.
    assert_eq!(fleet.post("none", CHAT, &ordinary).status, 200);
    let reply = read(poison);
    assert_eq!((reply.status, reply.body.as_str()), (429, "{\"error\":\"not this one\"}"));
    assert!(reply.head.contains("retry-after: 30"), "{}", reply.head);
    fleet.wait_idle();
}

#[test]
fn a_node_that_is_down_at_start_is_logged_and_its_unknown_models_are_unavailable_until_it_is_asked() {
    let address = unused_address();
    let dir = TestDir::new("down-at-start");
    let node = format!("[[llm.nodes]]\nname = 'engine'\nurl = 'http://{address}'\n");
    dir.write("evenkeel.toml", &format!("{CONFIG}{node}"));
    let server = ServerProcess::start(&dir, &[]);
    let failed = server.wait_early_log("health check failed");
    assert_eq!(failed["node"], "engine");
    assert!(failed["error"].as_str().unwrap().contains("refused"), "{failed}");

    for reply in [server.post(CHAT, &chat(json!({}))), server.get("/v1/models/sim")] {
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (503, &json!("unavailable")), "{reply:?}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("node \"engine\": ") && message.contains("refused"), "{message}");
        assert!(reply.head.contains("retry-after: 2"), "{}", reply.head);
    }

    let _engine = TestNode::start(SimOptions { listen: address.parse().unwrap(), ..fast() });
    server.wait_log("health check succeeded again");
    while server.post(CHAT, &chat(json!({}))).status != 200 {}
    assert_eq!(server.post(CHAT, &chat(json!({"model": "other"}))).status, 404);
}

#[test]
fn a_request_waits_while_neither_its_model_nor_the_fallback_can_be_reached() {
    let addresses = [unused_address(), unused_address()];
    let dir = TestDir::new("chain-down");
    let node = |model: &str, address: &String| {
        format!("[[llm.nodes]]\nname = '{model}'\nurl = 'http://{address}'\nmodels = ['{model}']\n")
    };
    let nodes = node("sim", &addresses[0]) + &node("other", &addresses[1]);
    let chain = "[[llm.models]]\nname = 'sim'\nfallbacks = ['other']\n";
    // Between two checks there is time for requests to probe.
    let config = CONFIG.replace("interval_secs = 0.1", "interval_secs = 0.4");
    dir.write("evenkeel.toml", &format!("{config}{nodes}{chain}"));
    let server = ServerProcess::start(&dir, &[]);
    let status = || server.get("/api/load-status").json();
    let is_down = |node: &Value| node["breaker"] != "closed";
    while !status()["nodes"].as_array().unwrap().iter().all(is_down) {}
    let request = server.send("POST", CHAT, "", &chat(json!({})));
    // It probes the node each time that the breaker is half-open.
    while status()["counts"]["dispatched"].as_u64() < Some(3) {}
    // Either may be the one that it waits for: a half-open breaker makes the fallback usable for a moment.
    let engine = |model: &str, address: &String| {
        let models = vec![model.to_owned()];
        TestNode::start(SimOptions { listen: address.parse().unwrap(), models, ..fast() })
    };
    let _engines = [engine("sim", &addresses[0]), engine("other", &addresses[1])];
    let reply = read(request);
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// Returns an address at which nothing listens.
fn unused_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// An engine that refuses every request of the user "poison".
fn start_engine(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(connection) = connection else { return };
            thread::spawn(move || serve(connection));
        }
    });
}

fn serve(mut connection: TcpStream) -> Option<()> {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    let (head, body) = loop {
        let count = connection.read(&mut chunk).ok().filter(|count| 0 < *count)?;
        received.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&received).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_ascii_lowercase();
        let length =
            length.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        if length.unwrap_or(0) <= body.len() {
            break (head.to_owned(), body.to_owned());
        }
    };
    let (status, more, body) = match body.contains("poison") {
        true => ("429 Too Many Requests", "retry-after: 30\r\n", "{\"error\":\"not this one\"}"),
        false if head.starts_with("GET") => ("200 OK", "", "{}"),
        false => ("200 OK", "", "{\"choices\":[{\"message\":{\"content\":\"hi\"}}]}"),
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    connection.write_all(response.as_bytes()).ok()
}
