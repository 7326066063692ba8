//! The effect of every fault on a client.

use evenkeel_sim_node::testing::{ResponseEnd, TestNode, chat, fast, is_silent, read, read_until};
use evenkeel_sim_node::{Fault, FaultKind, SimOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

const END_OF_STREAM: &str = "[DONE]";

#[test]
fn a_silent_node_accepts_requests_and_probes_and_never_responds() {
    let node = faulty(FaultKind::Silent);
    let mut chat = node.send("/v1/chat/completions", &chat(json!({})));
    let mut probe = node.open("GET /health HTTP/1.1\r\nhost: sim\r\n\r\n");
    wait_for_hits(&node, 2);
    clear(&node);
    assert_eq!(node.get("/health").status, 200, "later requests get a response");
    assert!(is_silent(&mut chat) && is_silent(&mut probe));
}

#[test]
fn a_slow_first_token_follows_the_response_head() {
    let node = faulty(FaultKind::SlowFirstToken);
    let mut client = stream(&node);
    assert!(read_until(&mut client, "\r\n\r\n").starts_with("HTTP/1.1 200"));
    node.wait_for(1, 0);
    assert!(is_silent(&mut client));
    set(&node, &json!({"kind": "slow-first-token", "ms": 1}));
    assert!(read(stream(&node)).body.ends_with("[DONE]\n\n"), "after the delay the stream is complete");
}

#[test]
fn a_cut_ends_a_response_in_the_middle() {
    let node = faulty(FaultKind::MidStreamCut);
    let reply = read(stream(&node));
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Truncated));
    assert_eq!(reply.streamed_text().split(' ').count(), 4, "half of the text: {reply:?}");
    let whole = node.chat(json!({}));
    assert_eq!((whole.status, whole.end), (200, ResponseEnd::Truncated));
    node.wait_for(0, 0);
}

#[test]
fn a_stalled_response_keeps_its_connection_and_its_slot() {
    let node = faulty(FaultKind::StalledStream);
    let mut client = stream(&node);
    for event in 0..5 {
        assert!(
            read_until(&mut client, "\n\n\r\n").contains("data: "),
            "event {event} of the role and half of the tokens is missing"
        );
    }
    node.wait_for(1, 0);
    assert!(is_silent(&mut client));
    drop(client);
    node.wait_for(0, 0);
    let mut whole = node.send("/v1/chat/completions", &chat(json!({})));
    read_until(&mut whole, "\"choices\":");
    node.wait_for(1, 0);
    drop(whole);
    node.wait_for(0, 0);
}

#[test]
fn a_429_comes_with_or_without_retry_after() {
    let plain = faulty(FaultKind::TooManyRequests).chat(json!({}));
    assert_eq!((plain.status, &plain.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(!plain.head.contains("retry-after"));
    let later = faulty(FaultKind::TooManyRequestsRetryAfter).chat(json!({"stream": true}));
    assert_eq!(later.status, 429);
    assert!(later.head.contains("retry-after: 1"), "{}", later.head);
}

#[test]
fn malformed_json_is_a_complete_response_that_does_not_parse() {
    let node = faulty(FaultKind::MalformedJson);
    let reply = node.chat(json!({}));
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete));
    assert!(serde_json::from_str::<Value>(&reply.body).is_err(), "{reply:?}");
    let stream = read(stream(&node));
    let events = stream.events();
    let malformed = events
        .iter()
        .filter(|event| serde_json::from_str::<Value>(event).is_err() && **event != END_OF_STREAM);
    assert_eq!((malformed.count(), events.last()), (1, Some(&END_OF_STREAM)), "{events:?}");
}

#[test]
fn a_wrong_content_length_announces_more_than_is_sent() {
    let node = faulty(FaultKind::WrongContentLength);
    let reply = node.chat(json!({}));
    assert_eq!(reply.end, ResponseEnd::Truncated);
    assert!(reply.json()["usage"].is_object(), "only the length is wrong");
    let stream = read(stream(&node));
    assert!(stream.head.contains("content-length: ") && stream.body.ends_with("[DONE]\n\n"), "{stream:?}");
    assert_eq!(stream.end, ResponseEnd::Truncated);
}

#[test]
fn a_reset_resets_the_connection() {
    let node = faulty(FaultKind::Reset);
    assert_eq!(node.chat(json!({})).end, ResponseEnd::Reset);
    assert_eq!(node.get("/health").end, ResponseEnd::Reset);
}

#[test]
fn a_half_closed_connection_sends_nothing_and_still_reads() {
    let node = faulty(FaultKind::HalfClose);
    let mut client = node.send("/v1/chat/completions", &chat(json!({})));
    let mut nothing = Vec::new();
    client.read_to_end(&mut nothing).unwrap();
    assert!(nothing.is_empty());
    // A closed socket would reset the connection, and a later write would fail.
    for _ in 0..100 {
        client.write_all(b"still there?").unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn a_truncated_stream_ends_cleanly_in_the_middle_of_an_event() {
    let node = faulty(FaultKind::TruncatedSse);
    let reply = read(stream(&node));
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete));
    assert!(!reply.body.ends_with("\n\n") && !reply.body.contains(END_OF_STREAM), "{reply:?}");
}

#[test]
fn a_burst_of_500_responses_ends() {
    let node = faulty(FaultKind::ErrorBurst);
    set(&node, &json!({"kind": "500-burst", "count": 2}));
    let statuses: Vec<_> = (0..4).map(|_| node.chat(json!({})).status).collect();
    assert_eq!(statuses, [500, 500, 200, 200]);
    assert_eq!(node.get("/health").status, 200);
}

#[test]
fn a_flapping_node_fails_and_recovers_for_probes_too() {
    let node = faulty(FaultKind::Flapping);
    set(&node, &json!({"kind": "flapping", "count": 2}));
    let statuses: Vec<_> = (0..6)
        .map(|number| if number % 2 == 0 { node.get("/health").status } else { node.chat(json!({})).status })
        .collect();
    assert_eq!(statuses, [0, 0, 200, 200, 0, 0]);
}

#[test]
fn the_same_seed_hits_the_same_requests() {
    let statuses = |seed| -> Vec<u16> {
        let fault = Fault { rate: 0.5, ..Fault::new(FaultKind::TooManyRequests) };
        let node = TestNode::start(SimOptions { seed, fault: Some(fault), ..fast() });
        (0..16).map(|_| node.chat(json!({})).status).collect()
    };
    assert_eq!(statuses(3), statuses(3));
    assert_ne!(statuses(3), statuses(4));
    assert!(statuses(3).contains(&200) && statuses(3).contains(&429));
}

#[test]
fn every_fault_can_be_set_at_run_time_and_leaks_no_slot() {
    let node = TestNode::start(SimOptions { slots: 1, ..fast() });
    for (name, kind) in FaultKind::ALL {
        set(&node, &json!({"kind": name}));
        let clients = [stream(&node), node.send("/v1/chat/completions", &chat(json!({})))];
        wait_for_hits(&node, 2);
        drop(clients);
        node.wait_for(0, 0);
        assert_eq!(node.get("/sim/fault").json()["kind"], kind.to_string());
    }
    clear(&node);
    assert_eq!(node.chat(json!({})).status, 200);
}

fn faulty(kind: FaultKind) -> TestNode {
    TestNode::start(SimOptions { fault: Some(Fault::new(kind)), ..fast() })
}

fn stream(node: &TestNode) -> TcpStream {
    node.send("/v1/chat/completions", &chat(json!({"stream": true})))
}

fn set(node: &TestNode, fault: &Value) {
    let reply = node.post("/sim/fault", fault);
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn clear(node: &TestNode) {
    set(node, &json!({"kind": null}));
}

/// Waits until the fault has hit a number of requests.
fn wait_for_hits(node: &TestNode, hits: u64) {
    while node.get("/sim/fault").json()["struck"] != hits {}
}
