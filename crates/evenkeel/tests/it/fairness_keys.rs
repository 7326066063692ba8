//! Fairness keys as labels: in queues of others, a tenant can neither use another's key nor lower the price of its messages.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::external_client::{python, run};
use crate::fleet::tenant;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

const CUSTOMERS: usize = 1_000;

/// A server with tenants and a shared queue `jobs`.
struct SharedQueue {
    dir: TestDir,
    server: ServerProcess,
}

impl SharedQueue {
    fn start(name: &str, tenants: &[String]) -> Self {
        let dir = TestDir::new(name);
        dir.write("evenkeel.toml", &format!("[queue]\nstore = 'memory'\n{}", tenants.concat()));
        let server = ServerProcess::start(&dir, &[]);
        dir.run(&["queue", "create", "jobs", "--shared"]).ok();
        Self { dir, server }
    }

    /// Sends a request as a tenant and checks its status.
    #[track_caller]
    fn post(&self, tenant: &str, path: &str, status: u16, body: &Value) -> Value {
        let headers = format!("authorization: Bearer ek-{tenant}\r\n");
        let reply = read(self.server.send("POST", &format!("/api/queues/jobs/{path}"), &headers, body));
        assert_eq!(reply.status, status, "{reply:?}");
        reply.json()
    }

    /// Sends messages as a tenant, each with its key as the body.
    #[track_caller]
    fn send(&self, tenant: &str, keys: impl Iterator<Item = String>) {
        let messages: Vec<Value> = keys.map(|key| json!({"fairness_key": key, "body": key})).collect();
        for batch in messages.chunks(1_000) {
            self.post(tenant, "messages", 201, &json!({"messages": batch}));
        }
    }

    /// Receives messages as a tenant and acknowledges them.
    #[track_caller]
    fn consume(&self, tenant: &str, count: usize) -> Vec<Value> {
        let mut all = Vec::new();
        while all.len() < count {
            let max = (count - all.len()).min(1_000);
            let received = self.post(tenant, "receive", 200, &json!({"max": max, "wait_ms": 20_000}));
            let messages = received["messages"].as_array().unwrap();
            assert!(!messages.is_empty(), "{} of {count}", all.len());
            let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
            let acked = self.post(tenant, "ack", 200, &json!({"receipts": receipts}));
            assert_eq!(acked["done"], receipts.len());
            all.extend(messages.iter().cloned());
        }
        all
    }

    /// Returns the names of the queue's keys, from the command line.
    fn keys(&self) -> HashSet<String> {
        let stats = self.dir.run(&["queue", "stats", "jobs"]).ok();
        stats.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    }
}

/// Counts messages by the key that their consumer sees.
fn count_by_key(messages: &[Value]) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    for message in messages {
        assert_eq!(message["fairness_key"], message["body"], "the consumer sees the key that was sent");
        *counts.entry(message["fairness_key"].as_str().unwrap()).or_default() += 1;
    }
    counts
}

#[test]
fn one_producer_for_a_thousand_customers_and_one_fleet_need_no_permission() {
    let queue = SharedQueue::start("keys-producer", &[tenant("producer", ""), tenant("fleet", "")]);
    let backlog = 2 * CUSTOMERS;
    queue.send("producer", (0..backlog).map(|_| "busy".to_owned()));
    queue.send("producer", (1..CUSTOMERS).map(|customer| format!("customer-{customer}")));
    // One message of each customer is delivered before the second of the busy one.
    let first = queue.consume("fleet", CUSTOMERS);
    let counts = count_by_key(&first);
    assert_eq!(counts.len(), CUSTOMERS);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    assert!(first.iter().all(|message| message["sender"] == "producer"));
    let rest = queue.consume("fleet", backlog - 1);
    assert_eq!(count_by_key(&rest), HashMap::from([("busy", backlog - 1)]));
}

#[test]
fn two_producers_that_may_act_for_a_customer_use_one_key() {
    let may_act = "act_for = ['*']";
    let tenants = [tenant("one", may_act), tenant("two", "act_for = ['acme']"), tenant("fleet", "")];
    let queue = SharedQueue::start("keys-act-for", &tenants);
    queue.send("one", (0..200).map(|n| if n % 2 == 0 { "acme" } else { "bolt" }.to_owned()));
    queue.send("two", (0..200).map(|_| "acme".to_owned()));
    let keys = queue.keys();
    assert!(keys.contains("acme") && keys.contains("bolt") && !keys.contains("two/acme"), "{keys:?}");
    // With a key per producer, two of three messages would be of acme.
    let counts = count_by_key(&queue.consume("fleet", 100)).into_values().collect::<Vec<_>>();
    assert_eq!(counts, [50, 50]);
}

#[test]
fn a_flood_under_anothers_key_delays_only_the_flooding_tenant() {
    let tenants = [tenant("mallory", ""), tenant("victim", ""), tenant("fleet", "")];
    let queue = SharedQueue::start("keys-flood", &tenants);
    let flood = |key: &str| {
        let cheap = json!({"fairness_key": key, "body": key, "cost": 1, "weight": 1_000});
        let messages = vec![cheap; 1_000];
        queue.post("mallory", "messages", 201, &json!({"messages": messages}));
    };
    flood("victim");
    flood("victim/eu");
    flood("mallory");
    queue.send("victim", (0..50).map(|_| "victim".to_owned()));
    let keys = queue.keys();
    for filed in ["mallory/victim", "mallory/victim/eu", "mallory", "victim"] {
        assert!(keys.contains(filed), "{keys:?}");
    }
    // Equal weights and equal costs: every second delivery is the victim's.
    let delivered = queue.consume("fleet", 100);
    let of_victim = delivered.iter().filter(|message| message["sender"] == "victim").count();
    assert!((49..=51).contains(&of_victim), "{of_victim} of 100");
}

#[test]
fn boto3_receives_the_group_that_was_sent_and_the_authenticated_sender() {
    let dir = TestDir::new("keys-boto3");
    dir.run(&["tenant", "add", "producer"]).ok();
    dir.run(&["tenant", "add", "fleet"]).ok();
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["queue", "create", "jobs", "--shared"]).ok();
    dir.run(&["queue", "create", "jobs.fifo", "--shared", "order=fifo"]).ok();
    let mut script = python("fairness_keys_client.py");
    script.arg(format!("http://{}", server.address));
    for tenant in ["producer", "fleet"] {
        let (key, secret) = crate::sqs::sqs_key(&dir, tenant);
        script.args([key, secret]);
    }
    run(&mut script);
}
