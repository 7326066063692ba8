//! A client that goes away gives everything back at once, wherever its request is.

use crate::raw::{Node, chat, fast, read_until, stuck};
use evenkeel_sim_node::SimOptions;
use serde_json::json;

#[test]
fn who_leaves_before_the_first_token_frees_its_slot() {
    for stream in [false, true] {
        let node = Node::start(stuck());
        let client = node.send("/v1/chat/completions", &chat(json!({"stream": stream})));
        node.wait_for(1, 0);
        drop(client);
        node.wait_for(0, 0);
    }
}

#[test]
fn who_leaves_in_the_middle_of_a_stream_frees_its_slot() {
    let node = Node::start(SimOptions { tokens_per_second: 1, context_max: 1_000_000, ..fast() });
    let body = chat(json!({"stream": true, "max_tokens": 900_000}));
    let mut client = node.send("/v1/chat/completions", &body);
    read_until(&mut client, "\"content\":\"");
    node.wait_for(1, 0);
    drop(client);
    node.wait_for(0, 0);
}

#[test]
fn who_leaves_while_waiting_gives_its_place_to_the_next() {
    for stream in [false, true] {
        let node = Node::start(SimOptions { slots: 1, ..stuck() });
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
fn a_storm_of_leaving_clients_leaves_nothing_behind() {
    let node = Node::start(SimOptions { slots: 4, queue_max: 1_000, ..stuck() });
    for _ in 0..10 {
        let send =
            |index: u32| node.send("/v1/chat/completions", &chat(json!({"stream": index.is_multiple_of(2)})));
        let clients: Vec<_> = (0..50).map(send).collect();
        node.wait_for(4, 46);
        drop(clients);
        node.wait_for(0, 0);
    }
}
