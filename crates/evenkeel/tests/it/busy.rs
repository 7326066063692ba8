//! Engines without room, through the gateway: requests wait instead of failing, and nobody is asked again at once.

use evenkeel_sim_node::{Fault, FaultKind, SimNode, SimOptions};
use serde_json::{Value, json};

use crate::fleet::{Behind, CHAT, Fleet};
use crate::raw::{chat, fast, open, read};

/// Rests so short that a test can wait for many of them.
const CONFIG: &str = "
[llm.health]
interval_secs = 3600
[llm.breaker]
spare_secs = 0.005
spare_max_secs = 2
";

/// An engine that works on one request and lets none wait, of which the gateway believes that it takes eight.
#[test]
fn requests_that_an_engine_without_room_refuses_wait_and_are_all_served() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = SimOptions { slots: 1, queue_max: 0, tokens_per_second: 2_000, ..fast() };
    let sim = runtime.block_on(SimNode::bind(options)).unwrap();
    let behind = Behind::Url(format!("http://{}", sim.address()));
    let fleet = Fleet::start("busy-served", CONFIG, vec![("small", behind)]);
    let asking: Vec<_> = (0..24)
        .map(|user| {
            let asked = chat(json!({"user": user.to_string(), "stream": user % 2 == 0}));
            fleet.send("none", CHAT, &asked)
        })
        .collect();
    for reply in asking.into_iter().map(read) {
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let status = fleet.status();
    assert!(status["counts"]["retried"].as_u64() > Some(3), "more than any budget allows: {status:#}");
    assert_eq!(status["counts"]["refused"], 0);
    assert_eq!(
        (&status["nodes"][0]["breaker"], &status["nodes"][0]["error_rate"]),
        (&json!("closed"), &json!(0.0))
    );
    fleet.wait_idle();
}

#[test]
fn when_all_engines_are_busy_for_longer_than_a_request_waits_it_hears_so_at_once() {
    let config = format!(
        "[load_manager]\ndefault_timeout_secs = 1\n{}",
        CONFIG.replace("0.005", "40").replace("= 2", "= 40")
    );
    let nodes = || busy(FaultKind::TooManyRequests);
    let fleet = Fleet::start("busy-all", &config, vec![("one", nodes()), ("other", nodes())]);
    for _ in 0..5 {
        let reply = fleet.post("none", CHAT, &chat(json!({})));
        let told = (reply.status, reply.json()["error"]["code"].clone());
        assert_eq!(told, (503, json!("queue_full")), "{reply:?}");
        let after = reply.head.split("retry-after: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let secs: u64 = after.unwrap().parse().unwrap();
        assert!((2..=40).contains(&secs), "the rest that is left, not a constant: {secs}");
    }
    assert_eq!(fleet.sims.iter().map(struck).sum::<u64>(), 2, "resting engines are left alone");
    fleet.wait_idle();
}

#[test]
fn a_request_waits_for_the_first_engine_that_has_room_again() {
    let fleet = Fleet::start("busy-waits", CONFIG, vec![("one", retry_later()), ("other", retry_later())]);
    let asking = fleet.send("none", CHAT, &chat(json!({})));
    let rests = |node: &Value| !node["cooldown_ms"].is_null();
    fleet.wait_status("resting", |status| status["nodes"].as_array().unwrap().iter().all(rests));
    fleet.sims[1].set_fault(None).unwrap();
    let reply = read(asking);
    assert_eq!(reply.status, 200, "{reply:?}");
    fleet.wait_idle();
}

fn retry_later() -> Behind {
    busy(FaultKind::TooManyRequestsRetryAfter)
}

fn busy(kind: FaultKind) -> Behind {
    Behind::Sim(SimOptions { fault: Some(Fault::new(kind)), ..fast() })
}

/// How many requests an engine's fault has hit.
fn struck(sim: &SimNode) -> u64 {
    let head = "GET /sim/fault HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
    read(open(sim.address(), head)).json()["struck"].as_u64().unwrap()
}
