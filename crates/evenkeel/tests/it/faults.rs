//! Each fault as a client meets it.

use crate::raw::{Ended, Node, chat, fast, is_silent, read, read_until};
use evenkeel_sim_node::{Fault, FaultKind, SimOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

const WHOLE: &str = "[DONE]";

#[test]
fn a_silent_node_takes_requests_and_probes_and_never_answers() {
    let node = faulty(FaultKind::Silent);
    let mut chat = node.send("/v1/chat/completions", &chat(json!({})));
    let mut probe = node.open("GET /health HTTP/1.1\r\nhost: sim\r\n\r\n");
    wait_struck(&node, 2);
    clear(&node);
    assert_eq!(node.get("/health").status, 200, "others are answered by then");
    assert!(is_silent(&mut chat) && is_silent(&mut probe));
}

#[test]
fn a_slow_first_token_comes_after_the_head() {
    let node = faulty(FaultKind::SlowFirstToken);
    let mut client = stream(&node);
    assert!(read_until(&mut client, "\r\n\r\n").starts_with("HTTP/1.1 200"));
    node.wait_for(1, 0);
    assert!(is_silent(&mut client));
    set(&node, &json!({"kind": "slow-first-token", "ms": 1}));
    assert!(read(stream(&node)).body.ends_with("[DONE]\n\n"), "slow is not silent");
}

#[test]
fn a_cut_ends_an_answer_in_the_middle() {
    let node = faulty(FaultKind::MidStreamCut);
    let reply = read(stream(&node));
    assert_eq!((reply.status, reply.ended), (200, Ended::Early));
    assert_eq!(reply.said().split(' ').count(), 4, "half of it: {reply:?}");
    let whole = node.chat(json!({}));
    assert_eq!((whole.status, whole.ended), (200, Ended::Early));
    node.wait_for(0, 0);
}

#[test]
fn a_stalled_answer_keeps_its_connection_and_its_slot() {
    let node = faulty(FaultKind::StalledStream);
    let mut client = stream(&node);
    for event in 0..5 {
        assert!(
            read_until(&mut client, "\n\n\r\n").contains("data: "),
            "the role and half the tokens: {event}"
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
fn too_many_requests_come_with_and_without_retry_after() {
    let plain = faulty(FaultKind::TooManyRequests).chat(json!({}));
    assert_eq!((plain.status, &plain.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(!plain.head.contains("retry-after"));
    let later = faulty(FaultKind::TooManyRequestsRetryAfter).chat(json!({"stream": true}));
    assert_eq!(later.status, 429);
    assert!(later.head.contains("retry-after: 1"), "{}", later.head);
}

#[test]
fn malformed_json_is_a_whole_answer_that_does_not_parse() {
    let node = faulty(FaultKind::MalformedJson);
    let reply = node.chat(json!({}));
    assert_eq!((reply.status, reply.ended), (200, Ended::Whole));
    assert!(serde_json::from_str::<Value>(&reply.body).is_err(), "{reply:?}");
    let stream = read(stream(&node));
    let events = stream.events();
    let broken =
        events.iter().filter(|event| serde_json::from_str::<Value>(event).is_err() && **event != WHOLE);
    assert_eq!((broken.count(), events.last()), (1, Some(&WHOLE)), "{events:?}");
}

#[test]
fn a_wrong_content_length_promises_more_than_comes() {
    let node = faulty(FaultKind::WrongContentLength);
    let reply = node.chat(json!({}));
    assert_eq!(reply.ended, Ended::Early);
    assert!(reply.json()["usage"].is_object(), "all there but for the length");
    let stream = read(stream(&node));
    assert!(stream.head.contains("content-length: ") && stream.body.ends_with("[DONE]\n\n"), "{stream:?}");
    assert_eq!(stream.ended, Ended::Early);
}

#[test]
fn a_reset_is_a_reset() {
    let node = faulty(FaultKind::Reset);
    assert_eq!(node.chat(json!({})).ended, Ended::Reset);
    assert_eq!(node.get("/health").ended, Ended::Reset);
}

#[test]
fn a_half_closed_connection_says_nothing_and_still_listens() {
    let node = faulty(FaultKind::HalfClose);
    let mut client = node.send("/v1/chat/completions", &chat(json!({})));
    let mut nothing = Vec::new();
    client.read_to_end(&mut nothing).unwrap();
    assert!(nothing.is_empty());
    // A closed socket would answer these bytes with a reset, and the second write would fail.
    for _ in 0..100 {
        client.write_all(b"still there?").unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn a_truncated_stream_ends_properly_in_the_middle_of_an_event() {
    let node = faulty(FaultKind::TruncatedSse);
    let reply = read(stream(&node));
    assert_eq!((reply.status, reply.ended), (200, Ended::Whole));
    assert!(!reply.body.ends_with("\n\n") && !reply.body.contains(WHOLE), "{reply:?}");
}

#[test]
fn a_burst_of_500_ends() {
    let node = faulty(FaultKind::ErrorBurst);
    set(&node, &json!({"kind": "500-burst", "count": 2}));
    let statuses: Vec<_> = (0..4).map(|_| node.chat(json!({})).status).collect();
    assert_eq!(statuses, [500, 500, 200, 200]);
    assert_eq!(node.get("/health").status, 200);
}

#[test]
fn a_flapping_node_goes_and_comes_probes_included() {
    let node = faulty(FaultKind::Flapping);
    set(&node, &json!({"kind": "flapping", "count": 2}));
    let asked: Vec<_> = (0..6)
        .map(|turn| if turn % 2 == 0 { node.get("/health").status } else { node.chat(json!({})).status })
        .collect();
    assert_eq!(asked, [0, 0, 200, 200, 0, 0]);
}

#[test]
fn the_same_seed_hits_the_same_requests() {
    let statuses = |seed| -> Vec<u16> {
        let fault = Fault { rate: 0.5, ..Fault::new(FaultKind::TooManyRequests) };
        let node = Node::start(SimOptions { seed, fault: Some(fault), ..fast() });
        (0..16).map(|_| node.chat(json!({})).status).collect()
    };
    assert_eq!(statuses(3), statuses(3));
    assert_ne!(statuses(3), statuses(4));
    assert!(statuses(3).contains(&200) && statuses(3).contains(&429));
}

#[test]
fn every_fault_is_set_at_run_time_and_leaves_no_slot_behind() {
    let node = Node::start(SimOptions { slots: 1, ..fast() });
    for (name, kind) in FaultKind::ALL {
        set(&node, &json!({"kind": name}));
        let clients = [stream(&node), node.send("/v1/chat/completions", &chat(json!({})))];
        wait_struck(&node, 2);
        drop(clients);
        node.wait_for(0, 0);
        assert_eq!(node.get("/sim/fault").json()["kind"], kind.to_string());
    }
    clear(&node);
    assert_eq!(node.chat(json!({})).status, 200);
}

fn faulty(kind: FaultKind) -> Node {
    Node::start(SimOptions { fault: Some(Fault::new(kind)), ..fast() })
}

fn stream(node: &Node) -> TcpStream {
    node.send("/v1/chat/completions", &chat(json!({"stream": true})))
}

fn set(node: &Node, fault: &Value) {
    let reply = node.post("/sim/fault", fault);
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn clear(node: &Node) {
    set(node, &json!({"kind": null}));
}

/// Waits until the fault has hit so many requests.
fn wait_struck(node: &Node, struck: u64) {
    while node.get("/sim/fault").json()["struck"] != struck {}
}
