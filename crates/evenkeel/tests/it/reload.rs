//! Reloads that change a node while it serves requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use evenkeel_sim_node::SimOptions;
use evenkeel_sim_node::testing::{TestNode, chat, fast, open, read, stuck};
use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_reload_that_changes_a_node_sends_it_no_more_than_the_new_limit_allows() {
    let dir = TestDir::new("reload-limit");
    let node = TestNode::start(SimOptions { slots: 64, ..stuck() });
    let write = |limit: u32, weight: u32| {
        let more = format!("models = ['sim']\nmax_concurrency = {limit}\nweight = {weight}\n");
        write_node(&dir, node.address(), &more);
    };
    write(4, 1);
    let server = ServerProcess::start(&dir, &[]);
    let _clients: Vec<_> = (0..16).map(|_| server.send("POST", CHAT, "", &chat(json!({})))).collect();
    node.wait_for(4, 0);
    for (limit, weight) in [(3, 2), (4, 1), (2, 3), (4, 2)] {
        write(limit, weight);
        let reloaded = reload(&server);
        assert_eq!((&reloaded["nodes_changed"], &reloaded["nodes_removed"]), (&json!("one"), &json!("")));
        let status = server.get("/api/load-status").json();
        assert_eq!(
            (&status["nodes"][0]["slots"], &status["nodes"][0]["busy"]),
            (&json!(limit), &json!(4)),
            "{status:#}"
        );
    }
    // Two more slots, two more requests: none of the reloads before has sent any.
    write(6, 2);
    reload(&server);
    node.wait_for(6, 0);
    assert_eq!(node.peak(), 6);
}

#[test]
fn reloads_that_change_limit_weight_and_url_under_load_fail_no_request() {
    let dir = TestDir::new("reload-load");
    let nodes = [TestNode::start(fast()), TestNode::start(fast())];
    // The models are discovered, so a new node does not know them at first.
    let write = |turn: usize| {
        let more = format!("max_concurrency = {}\nweight = {}\n", 2 + turn % 3, 1 + turn % 2);
        write_node(&dir, nodes[(turn / 2) % 2].address(), &more);
    };
    write(0);
    let server = ServerProcess::start(&dir, &[]);
    let address = server.address;
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
    let stopped = AtomicBool::new(false);
    let served = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                // A client that fails ends the test.
                let _guard = StopOnDrop(&stopped);
                while !stopped.load(Ordering::Relaxed) {
                    let reply = read(open(address, &request()));
                    assert_eq!(reply.status, 200, "{reply:?}");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let guard = StopOnDrop(&stopped);
        for turn in 1..=16 {
            write(turn);
            let reloaded = reload(&server);
            assert_eq!(reloaded["nodes_changed"], "one", "{reloaded}");
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < before + 20 {
                assert!(!stopped.load(Ordering::Relaxed));
                thread::yield_now();
            }
        }
        drop(guard);
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn write_node(dir: &TestDir, address: SocketAddr, more: &str) {
    let node = format!("[[llm.nodes]]\nname = 'one'\nurl = 'http://{address}'\n{more}");
    dir.write("evenkeel.toml", &node);
}

fn reload(server: &ServerProcess) -> Value {
    server.signal("HUP");
    server.wait_log("reloaded")
}

fn request() -> String {
    let body = chat(json!({})).to_string();
    let length = body.len();
    format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}
