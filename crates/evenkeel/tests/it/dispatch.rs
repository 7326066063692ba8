//! Queues with dispatch, with the binary as a process and a simulated node.

mod order;
mod outcomes;
mod share;
mod webhook;
mod worker;

use std::time::{Duration, Instant};

use evenkeel_sim_node::SimOptions;
use serde_json::{Value, json};

use crate::fleet::TIMEOUT;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, TestNode, chat, read};

/// A server, a node, and a queue `jobs` with dispatch whose messages are chat requests.
struct DispatchTest {
    server: ServerProcess,
    dir: TestDir,
    node: TestNode,
}

impl DispatchTest {
    /// Starts everything with additional configuration and queue settings.
    fn start(name: &str, engine: SimOptions, config: &str, settings: &Value) -> Self {
        let slots = engine.slots;
        let dir = TestDir::new(name);
        let node = TestNode::start(engine);
        let engine = format!(
            "[[llm.nodes]]\nname = 'one'\nurl = 'http://{}'\nmodels = ['sim']\nmax_concurrency = {slots}\n",
            node.address()
        );
        dir.write("evenkeel.toml", &format!("{config}\n{engine}"));
        let test = Self { server: ServerProcess::start(&dir, &[]), dir, node };
        test.put("dead", &json!({}));
        let mut queue = json!({
            "dispatch": {"target": "/v1/chat/completions"}, "lease_ms": 1_000,
            "backoff_ms_min": 20, "backoff_ms_max": 100,
        });
        for (name, value) in settings.as_object().unwrap() {
            queue[name] = value.clone();
        }
        test.put("jobs", &queue);
        test
    }

    /// Stops the server by a signal and restarts it; returns its exit code.
    fn restart(self, signal: &str) -> (Option<i32>, Self) {
        let Self { server, dir, node } = self;
        server.signal(signal);
        let code = server.wait();
        (code, Self { server: ServerProcess::start(&dir, &[]), dir, node })
    }

    #[track_caller]
    fn put(&self, queue: &str, settings: &Value) -> Value {
        let reply = read(self.server.send("PUT", &format!("/api/queues/{queue}"), "", settings));
        assert!(matches!(reply.status, 200 | 201), "{reply:?}");
        reply.json()
    }

    /// Sends jobs, each a fairness key and a body; returns their IDs.
    #[track_caller]
    fn send(&self, jobs: &[(&str, Value)]) -> Vec<String> {
        let mut ids = Vec::new();
        for batch in jobs.chunks(500) {
            let messages: Vec<Value> = batch
                .iter()
                .map(|(key, body)| json!({"fairness_key": key, "body": body.to_string()}))
                .collect();
            let reply = self.server.post("/api/queues/jobs/messages", &json!({"messages": messages}));
            assert_eq!(reply.status, 201, "{reply:?}");
            ids.extend(
                reply.json()["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()),
            );
        }
        ids
    }

    /// Sends jobs as a tenant, in one request; returns their IDs.
    #[track_caller]
    fn send_as(&self, tenant: &str, key: &str, count: usize) -> Vec<String> {
        let message = json!({"fairness_key": key, "body": job().to_string()});
        let body = json!({"messages": vec![message; count]});
        let headers = format!("authorization: Bearer ek-{tenant}\r\n");
        let reply = read(self.server.send("POST", "/api/queues/jobs/messages", &headers, &body));
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    fn result_as(&self, tenant: &str, id: &str) -> RawResponse {
        self.server.get_with_key(&format!("/api/queues/jobs/results/{id}"), &format!("ek-{tenant}"))
    }

    #[track_caller]
    fn send_one(&self, body: &Value) -> String {
        self.send(&[("default", body.clone())]).remove(0)
    }

    fn result(&self, id: &str) -> RawResponse {
        self.server.get(&format!("/api/queues/jobs/results/{id}"))
    }

    #[track_caller]
    fn wait_result(&self, id: &str) -> Value {
        wait_for("a result", || Some(self.result(id)).filter(|reply| reply.status == 200)).json()
    }

    fn explain(&self, id: &str) -> Value {
        self.server.get(&format!("/api/queues/jobs/messages/{id}")).json()
    }

    /// Waits until the explanation of a job contains a text.
    #[track_caller]
    fn wait_explanation(&self, id: &str, part: &str) -> String {
        wait_for(part, || {
            let text = self.explain(id)["explanation"].as_str()?.to_owned();
            text.contains(part).then_some(text)
        })
    }

    fn pending(&self, queue: &str) -> Value {
        self.server.get(&format!("/api/queues/{queue}")).json()["pending"].clone()
    }

    /// Waits until `count` jobs with this outcome are counted; a result is visible before it is counted.
    #[track_caller]
    fn wait_counted(&self, outcome: &str, count: u64) {
        wait_for(outcome, || (self.counted(outcome) == count).then_some(()));
    }

    fn counted(&self, outcome: &str) -> u64 {
        let series =
            format!("evenkeel_dispatch_jobs_total{{queue=\"jobs\",owner=\"\",outcome=\"{outcome}\"}} ");
        let page = self.server.get("/metrics").body;
        page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
    }
}

/// Returns a job, which is a chat request.
fn job() -> Value {
    chat(json!({}))
}

#[track_caller]
fn wait_for<T>(expected: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for {expected}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
