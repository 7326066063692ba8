//! A client disconnect frees the request's slot or its place in the queue.

use evenkeel_sim_node::SimOptions;
use evenkeel_sim_node::testing::{TestNode, chat, fast, read_until, stuck};
use serde_json::json;

#[test]
fn a_disconnect_before_the_first_token_frees_the_slot() {
    for stream in [false, true] {
        let node = TestNode::start(stuck());
        let client = node.send("/v1/chat/completions", &chat(json!({"stream": stream})));
        node.wait_for(1, 0);
        drop(client);
        node.wait_for(0, 0);
    }
}

#[test]
fn a_disconnect_in_the_middle_of_a_stream_frees_the_slot() {
    let node = TestNode::start(SimOptions { tokens_per_second: 1, context_max: 1_000_000, ..fast() });
    let body = chat(json!({"stream": true, "max_tokens": 900_000}));
    let mut client = node.send("/v1/chat/completions", &body);
    read_until(&mut client, "\"content\":\"");
    node.wait_for(1, 0);
    drop(client);
    node.wait_for(0, 0);
}

#[test]
fn a_disconnect_of_a_queued_client_removes_its_request_from_the_queue() {
    for stream in [false, true] {
        let node = TestNode::start(SimOptions { slots: 1, ..stuck() });
        let send = || node.send("/v1/chat/completions", &chat(json!({"stream": stream})));
        let first = send();
        node.wait_for(1, 0);
        let second = send();
        node.wait_for(1, 1);
        let third = send();
        node.wait_for(1, 2);
        drop(second);
        node.wait_for(1, 1);
        drop(first);
        node.wait_for(1, 0);
        drop(third);
        node.wait_for(0, 0);
    }
}

#[test]
fn many_disconnects_leak_neither_slots_nor_queue_places() {
    let node = TestNode::start(SimOptions { slots: 4, queue_max: 1_000, ..stuck() });
    for _ in 0..10 {
        let send =
            |index: u32| node.send("/v1/chat/completions", &chat(json!({"stream": index.is_multiple_of(2)})));
        let clients: Vec<_> = (0..50).map(send).collect();
        node.wait_for(4, 46);
        drop(clients);
        node.wait_for(0, 0);
    }
}
