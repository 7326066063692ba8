//! Overloaded nodes: requests wait instead of failing, and a node that answered 429 or 503 gets a cooldown.

use evenkeel_sim_node::{Fault, FaultKind, SimNode, SimOptions};
use serde_json::{Value, json};

use crate::fleet::{Backend, CHAT, Fleet, request, tenant};
use evenkeel_sim_node::testing::{chat, fast, open, read};

/// The cooldown is short, because a test waits for many of them.
const CONFIG: &str = "
[llm.health]
interval_secs = 3600
[llm.breaker]
cooldown_secs = 0.005
cooldown_max_secs = 2
";

/// The engine has one slot and no queue, but the gateway is configured for eight slots.
#[test]
fn requests_rejected_by_an_overloaded_engine_wait_and_are_all_served() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = SimOptions { slots: 1, queue_max: 0, tokens_per_second: 2_000, ..fast() };
    let sim = runtime.block_on(SimNode::bind(options)).unwrap();
    let backend = Backend::Url(format!("http://{}", sim.address()));
    let fleet = Fleet::start("busy-served", CONFIG, vec![("small", backend)]);
    let requests: Vec<_> = (0..24)
        .map(|user| {
            let body = chat(json!({"user": user.to_string(), "stream": user % 2 == 0}));
            fleet.send("none", CHAT, &body)
        })
        .collect();
    for reply in requests.into_iter().map(read) {
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let status = fleet.status();
    assert!(
        status["counts"]["retried"].as_u64() > Some(3),
        "waiting for an overloaded node must not use the retry budget: {status:#}"
    );
    assert_eq!(status["counts"]["refused"], 0);
    assert_eq!(
        (&status["nodes"][0]["breaker"], &status["nodes"][0]["error_rate"]),
        (&json!("closed"), &json!(0.0))
    );
    fleet.wait_idle();
}

#[test]
fn a_request_is_rejected_as_soon_as_all_cooldowns_outlast_its_timeout() {
    // A cooldown lasts at most half of the default timeout: here two seconds, longer than these requests may wait.
    let config = format!(
        "[load_manager]\ndefault_timeout_secs = 4\n{}",
        CONFIG.replace("0.005", "40").replace("= 2", "= 40")
    );
    let node = || busy(FaultKind::TooManyRequests);
    let fleet = Fleet::start("busy-all", &config, vec![("one", node()), ("other", node())]);
    let request = request("none", CHAT, &chat(json!({})));
    let request =
        request.replace("\r\nconnection: close", "\r\nx-request-timeout-ms: 500\r\nconnection: close");
    for _ in 0..5 {
        let reply = read(open(fleet.address, &request));
        let outcome = (reply.status, reply.json()["error"]["code"].clone());
        assert_eq!(outcome, (503, json!("queue_full")), "{reply:?}");
        let retry_after = reply.head.split("retry-after: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let secs: u64 = retry_after.unwrap().parse().unwrap();
        assert!((1..=2).contains(&secs), "retry-after is the remaining cooldown in whole seconds: {secs}");
    }
    let refused = fleet.sims.iter().map(hits).sum::<u64>();
    assert!(refused <= 10, "each engine refuses each request at most once: {refused}");
    fleet.wait_idle();
}

#[test]
fn a_request_waits_for_the_first_engine_that_recovers() {
    let config = tenant("one", "") + &tenant("two", "") + CONFIG;
    let nodes = vec![("one", busy_with_retry_after()), ("other", busy_with_retry_after())];
    let fleet = Fleet::start("busy-waits", &config, nodes);
    // Refusals of two tenants are a cooldown for all.
    let request = |number: u32| {
        let tenant = if number.is_multiple_of(2) { "one" } else { "two" };
        fleet.send(tenant, CHAT, &chat(json!({"user": number.to_string()})))
    };
    let requests: Vec<_> = (0..24).map(request).collect();
    let is_cooling = |node: &Value| !node["cooldown_ms"].is_null();
    fleet.wait_status("in cooldown", |status| status["nodes"].as_array().unwrap().iter().all(is_cooling));
    fleet.sims[1].set_fault(None).unwrap();
    for reply in requests.into_iter().map(read) {
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    fleet.wait_idle();
}

fn busy_with_retry_after() -> Backend {
    busy(FaultKind::TooManyRequestsRetryAfter)
}

fn busy(kind: FaultKind) -> Backend {
    Backend::Sim(SimOptions { fault: Some(Fault::new(kind)), ..fast() })
}

/// Returns the number of requests hit by the fault of a node.
fn hits(sim: &SimNode) -> u64 {
    let head = "GET /sim/fault HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
    read(open(sim.address(), head)).json()["struck"].as_u64().unwrap()
}
