//! The adaptive concurrency limit of nodes, and load that other clients put on them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use evenkeel_sim_node::{SimNode, SimOptions};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fleet::{CHAT, Fleet};
use evenkeel_sim_node::testing::{chat, fast, open, stuck};

const CONFIG: &str = "
[llm.health]
load_interval_secs = 0.05
";

/// The first token takes 100 ms, so that a busy test machine does not look like a busy engine.
fn engine(slots: u32) -> SimOptions {
    SimOptions { slots, first_token: Duration::from_millis(100), tokens_per_second: 100, ..fast() }
}

#[test]
fn the_limit_of_a_small_engine_is_found_and_its_queue_stays_short() {
    let (_runtime, sim) = start(engine(3));
    let fleet = Fleet::start("adaptive-small", &format!("{CONFIG}{}", node("small", &sim, "")), vec![]);
    under_load(&fleet, 24, || {
        fleet.wait_status("limited to 3 slots", |status| status["nodes"][0]["slots"].as_u64() <= Some(3));
        for _ in 0..50 {
            let slots = fleet.status()["nodes"][0]["slots"].as_u64().unwrap();
            assert!((1..=6).contains(&slots), "{slots} slots for an engine with 3");
        }
    });
    let status = fleet.status();
    let node = &status["nodes"][0];
    assert_eq!(node["engine"], "sim-node");
    assert!(node["adaptive"]["limit"].is_number() && node["engine_load"]["running"].is_number(), "{node:#}");
    assert_eq!((&status["counts"]["refused"], &status["counts"]["timed_out"]), (&json!(0), &json!(0)));
}

#[test]
fn the_limit_of_a_large_engine_grows() {
    let (_runtime, sim) = start(engine(64));
    let config = node("large", &sim, "max_concurrency = 'adaptive'");
    let fleet =
        Fleet::start("adaptive-large", &format!("[llm.health]\nload_interval_secs = 0\n{config}"), vec![]);
    under_load(&fleet, 48, || {
        fleet.wait_status("at 16 slots", |status| status["nodes"][0]["slots"].as_u64() >= Some(16));
    });
    let node = fleet.status()["nodes"][0].clone();
    assert_eq!(node["engine_load"], Value::Null, "the load was scraped although scraping is off");
    assert!(node["adaptive"]["idle_first_token_ms"].as_f64() > Some(90.0), "{node:#}");
    let page = fleet.get("/metrics").body;
    assert!(page.contains("evenkeel_node_slots{pool=\"llm\",node=\"large\"}"), "{page}");
}

#[test]
fn an_engine_loaded_by_other_clients_gets_no_requests_while_another_engine_is_idle() {
    let (_one, shared) = start(SimOptions { slots: 8, ..stuck() });
    let (_two, own) = start(fast());
    let slots = "max_concurrency = 8";
    let config = format!("{CONFIG}{}{}", node("shared", &shared, slots), node("own", &own, slots));
    let fleet = Fleet::start("adaptive-others", &config, vec![]);
    let others: Vec<_> = (0..3).map(|_| open(shared.address(), &request())).collect();
    let is_seen = |status: &Value| status["nodes"][0]["engine_load"]["external"] == 3;
    fleet.wait_status("aware of the external load", is_seen);
    for user in 0..6 {
        let reply = fleet.post("none", CHAT, &chat(json!({"user": user.to_string(), "messages": [{"role": "user", "content": user.to_string()}]})));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let page = fleet.get("/metrics").body;
    assert!(page.contains("evenkeel_node_engine_running{pool=\"llm\",node=\"shared\"} 3"), "{page}");
    assert!(page.contains("evenkeel_dispatched_total{pool=\"llm\",node=\"shared\"} 0"), "{page}");
    drop(others);
    fleet.wait_status("idle", |status| status["nodes"][0]["engine_load"]["external"] == 0);
}

/// Runs `observe` while clients send streaming requests without pause.
fn under_load(fleet: &Fleet, clients: usize, observe: impl FnOnce()) {
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in 0..clients {
            let stopped = &stopped;
            scope.spawn(move || {
                let body = chat(json!({"stream": true, "user": client.to_string()}));
                while !stopped.load(Ordering::Relaxed) {
                    let reply = fleet.post("none", CHAT, &body);
                    assert_eq!(reply.status, 200, "{reply:?}");
                }
            });
        }
        // Stops the clients even if `observe` panics.
        let guard = StopGuard(&stopped);
        observe();
        drop(guard);
    });
}

struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn start(options: SimOptions) -> (Runtime, SimNode) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let sim = runtime.block_on(SimNode::bind(options)).unwrap();
    (runtime, sim)
}

fn node(name: &str, sim: &SimNode, more: &str) -> String {
    format!("\n[[llm.nodes]]\nname = '{name}'\nurl = 'http://{}'\nmodels = ['sim']\n{more}\n", sim.address())
}

/// Returns a request to send to the node directly.
fn request() -> String {
    let body = chat(json!({"stream": true})).to_string();
    let length = body.len();
    format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
