//! Queues that run their jobs themselves: the real binary before simulated engines.

mod order;
mod outcomes;
mod share;
mod webhook;
mod worker;

use std::time::{Duration, Instant};

use evenkeel_sim_node::SimOptions;
use serde_json::{Value, json};

use crate::fleet::PATIENCE;
use crate::folder::Folder;
use crate::raw::{Node, Reply, chat, read};
use crate::server_process::Served;

/// The binary, an engine, and a queue `jobs` whose messages are chats.
struct Bench {
    served: Served,
    folder: Folder,
    node: Node,
}

impl Bench {
    /// Starts all; `config` comes before what the engine needs, `settings` are the queue's.
    fn start(name: &str, engine: SimOptions, config: &str, settings: &Value) -> Self {
        let slots = engine.slots;
        let folder = Folder::new(name);
        let node = Node::start(engine);
        let engine = format!(
            "[[llm.nodes]]\nname = 'one'\nurl = 'http://{}'\nmodels = ['sim']\nmax_concurrency = {slots}\n",
            node.address()
        );
        folder.write("evenkeel.toml", &format!("{config}\n{engine}"));
        let bench = Self { served: Served::start(&folder, &[]), folder, node };
        bench.put("dead", &json!({}));
        let mut wishes = json!({
            "dispatch": {"target": "/v1/chat/completions"}, "lease_ms": 1_000,
            "backoff_ms_min": 20, "backoff_ms_max": 100,
        });
        for (name, value) in settings.as_object().unwrap() {
            wishes[name] = value.clone();
        }
        bench.put("jobs", &wishes);
        bench
    }

    /// Ends the binary by a signal, and starts it again; says how it ended.
    fn restart(self, signal: &str) -> (Option<i32>, Self) {
        let Self { served, folder, node } = self;
        served.signal(signal);
        let code = served.wait();
        (code, Self { served: Served::start(&folder, &[]), folder, node })
    }

    #[track_caller]
    fn put(&self, queue: &str, wishes: &Value) -> Value {
        let reply = read(self.served.send("PUT", &format!("/api/queues/{queue}"), "", wishes));
        assert!(matches!(reply.status, 200 | 201), "{reply:?}");
        reply.json()
    }

    /// Sends jobs, each a key and a body, and names them.
    #[track_caller]
    fn send(&self, jobs: &[(&str, Value)]) -> Vec<String> {
        let mut ids = Vec::new();
        for some in jobs.chunks(500) {
            let messages: Vec<Value> = some
                .iter()
                .map(|(key, body)| json!({"fairness_key": key, "body": body.to_string()}))
                .collect();
            let reply = self.served.post("/api/queues/jobs/messages", &json!({"messages": messages}));
            assert_eq!(reply.status, 201, "{reply:?}");
            ids.extend(
                reply.json()["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()),
            );
        }
        ids
    }

    #[track_caller]
    fn send_one(&self, body: &Value) -> String {
        self.send(&[("default", body.clone())]).remove(0)
    }

    fn result(&self, id: &str) -> Reply {
        self.served.get(&format!("/api/queues/jobs/results/{id}"))
    }

    #[track_caller]
    fn wait_result(&self, id: &str) -> Value {
        wait_for("a result", || Some(self.result(id)).filter(|reply| reply.status == 200)).json()
    }

    fn explained(&self, id: &str) -> Value {
        self.served.get(&format!("/api/queues/jobs/messages/{id}")).json()
    }

    /// Waits until a job is explained by these words.
    #[track_caller]
    fn wait_explained(&self, id: &str, words: &str) -> String {
        wait_for(words, || {
            let said = self.explained(id)["explanation"].as_str()?.to_owned();
            said.contains(words).then_some(said)
        })
    }

    fn pending(&self, queue: &str) -> Value {
        self.served.get(&format!("/api/queues/{queue}")).json()["pending"].clone()
    }

    /// Waits until so many jobs are counted: what came of one is told before.
    #[track_caller]
    fn wait_counted(&self, outcome: &str, count: u64) {
        wait_for(outcome, || (self.counted(outcome) == count).then_some(()));
    }

    fn counted(&self, outcome: &str) -> u64 {
        let series = format!("evenkeel_dispatch_jobs_total{{queue=\"jobs\",outcome=\"{outcome}\"}} ");
        let page = self.served.get("/metrics").body;
        page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
    }
}

/// A job, which is a chat.
fn job() -> Value {
    chat(json!({}))
}

#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
