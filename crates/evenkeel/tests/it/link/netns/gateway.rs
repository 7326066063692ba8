//! A gateway reaches a node behind a link, over emulated paths.

use std::thread;
use std::time::Duration;

use evenkeel_sim_node::testing::{ResponseEnd, TestNode, chat, fast, read};
use evenkeel_test_network::{PathSpec, network_or_skip};
use serde_json::json;

use crate::link::gateway_site::{CHAT, GatewaySite};
use crate::link::process::wait_for;

const PATHS: [PathSpec; 2] =
    [PathSpec::new(10.0, Duration::from_millis(10)), PathSpec::new(10.0, Duration::from_millis(20))];

/// Returns the streamed text of a model server without delays.
fn expected_text(tokens: u64) -> String {
    TestNode::start(fast()).chat(json!({"max_tokens": tokens, "stream": true})).streamed_text()
}

#[test]
fn requests_checks_and_scrapes_reach_a_node_that_only_the_link_reaches() {
    let site = GatewaySite::start("gateway-requests", network_or_skip!(&PATHS), 1_000);
    assert!(!site.is_node_reachable_from_edge());
    let reply = site.post(CHAT, &chat(json!({})));
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
    let reply = site.post("/v1/embeddings", &json!({"model": "sim", "input": "hello"}));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["data"][0]["embedding"].is_array(), "{reply:?}");
    let reply = read(site.stream(32));
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
    assert_eq!(reply.streamed_text(), expected_text(32));
    // Discovery and load scrapes took the same way.
    let node = site.wait_node("load", |node| node["engine_load"].is_object());
    assert_eq!((&node["via"], &node["breaker"]), (&json!("site-b"), &json!("closed")), "{node}");
    assert!(node["engine"].is_string() && node["paths"] == json!([]), "{node}");

    let link = site.link();
    assert_eq!(
        (&link["name"], &link["up"], &link["peer"]),
        (&json!("site-b"), &json!(true), &json!(site.sites.core_key))
    );
    assert_eq!(link["paths"].as_array().unwrap().len(), 2, "{link}");
    let page = site.get("/metrics").body;
    assert!(page.contains("\nnyx_multipath_active_paths 2\n"), "{page}");
    assert!(page.contains("evenkeel_link_reinjected_bytes_total{link=\"site-b\"}"), "{page}");
    let listed = site.run(&["node", "list"]).ok();
    assert!(listed.contains("site-b"), "{listed}");
}

#[test]
fn a_stream_whose_path_is_black_holed_arrives_complete() {
    const TOKENS: u64 = 80;
    let site = GatewaySite::start("gateway-stream", network_or_skip!(&PATHS), 10);
    let client = site.stream(TOKENS);
    let reading = thread::spawn(move || read(client));
    let flow =
        wait_for("streamed data", || site.largest_core_flow().filter(|flow| flow.written_bytes > 3_000));
    site.network().path(flow.path).black_hole(true);
    // The flow moves while the response is still being generated.
    wait_for("another path", || {
        site.largest_core_flow().filter(|now| now.id == flow.id && now.path != flow.path)
    });
    let reply = reading.join().unwrap();
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
    assert_eq!(reply.events().last(), Some(&"[DONE]"));
    assert_eq!(reply.streamed_text(), expected_text(TOKENS));
    let black_holed = site.link()["paths"][flow.path - 1].clone();
    assert_ne!(black_holed["state"], "ACTIVE", "{black_holed}");
    let node = site.wait_node("healthy", |node| node["health_error"].is_null());
    assert_eq!(node["breaker"], "closed", "{node}");
}

#[test]
fn a_gateway_starts_while_its_link_is_down_and_serves_once_it_is_up() {
    let mut site = GatewaySite::start_down("gateway-down", network_or_skip!(&PATHS), 1_000);
    let node = site.wait_node("unhealthy", |node| node["health_error"].is_string());
    let error = "could not connect: link \"site-b\": the link is down: none of its paths answers";
    assert_eq!((&node["health_error"], &site.link()["up"]), (&json!(error), &json!(false)), "{node}");
    let logged = site.gateway.wait_log("health check failed");
    assert_eq!((&logged["node"], &logged["error"]), (&json!("gpu"), &json!(error)));
    let listed = site.run(&["node", "list"]).ok();
    assert!(listed.contains("the link is down"), "{listed}");
    let queue = json!({"dispatch": {"target": CHAT}, "backoff_ms_min": 100, "backoff_ms_max": 500});
    assert_eq!(read(site.send("PUT", "/api/queues/jobs", &queue)).status, 201);
    let body = chat(json!({})).to_string();
    let sent = site.post("/api/queues/jobs/messages", &json!({"messages": [{"body": body}]})).json();
    let id = sent["ids"][0].as_str().unwrap().to_owned();

    site.listen();
    site.wait_node("healthy", |node| node["health_error"].is_null() && node["models"] == json!(["sim"]));
    site.gateway.wait_log("health check succeeded again");
    let reply = wait_for("served request", || {
        Some(site.post(CHAT, &chat(json!({})))).filter(|reply| reply.status == 200)
    });
    assert_eq!(reply.end, ResponseEnd::Complete);
    let result = wait_for("result of the job", || {
        let path = format!("/api/queues/jobs/results/{id}");
        Some(site.get(&path)).filter(|reply| reply.status == 200)
    });
    assert_eq!(result.json()["status"], 200, "{result:?}");
}

#[test]
fn requests_are_served_again_after_the_other_side_was_killed_and_restarted() {
    let mut site = GatewaySite::start("gateway-killed", network_or_skip!(&PATHS), 1_000);
    site.listener = None;
    site.wait_node("unhealthy", |node| node["health_error"].is_string());
    site.listen();
    site.wait_node("healthy", |node| node["health_error"].is_null());
    assert_eq!(site.post(CHAT, &chat(json!({}))).status, 200);
}
