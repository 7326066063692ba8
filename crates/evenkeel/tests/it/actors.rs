//! The actors of queues in a running gateway: their workers, metrics and traces.

use evenkeel_actor::hub::names;
use serde_json::{Value, json};

use crate::exposition::{self, Family, Sample};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

/// Target of the spans of actors.
const SPANS: &str = "evenkeel_actor";

#[test]
fn the_metrics_of_queue_actors_are_on_a_valid_page_and_several_workers_run_them() {
    const QUEUES: [&str; 4] = ["one", "two", "three", "four"];
    const ROUNDS_MAX: usize = 500;
    let dir = TestDir::new("actors-metrics");
    dir.write("evenkeel.toml", "[queue]\nstore = 'memory'\n[actor]\nworkers = 3\nworker_batch = 2\n");
    let server = ServerProcess::start(&dir, &[]);
    QUEUES.iter().for_each(|queue| create(&server, queue));
    let page = || exposition::read(&server.get("/metrics").body).unwrap();
    let mut messages = 0;
    let mut rounds = 0;
    let mut busy_workers = 0;
    while busy_workers < 2 {
        rounds += 1;
        assert!(rounds <= ROUNDS_MAX, "{busy_workers} workers have handled {messages} messages");
        let requests: Vec<_> = QUEUES
            .iter()
            .cycle()
            .take(4 * QUEUES.len())
            .map(|queue| server.send("POST", &path(queue, "/messages"), "", &json!({"body": "x"})))
            .collect();
        messages += requests.len();
        requests.into_iter().for_each(|request| assert_eq!(read(request).status, 201));
        // A worker counts its messages at the end of a slice.
        let handled = samples(&page(), "scheduler.messages_total");
        busy_workers = handled.iter().filter(|sample| sample.value > 0.0).count();
    }
    let page = page();
    for name in names::ALL {
        assert!(!samples(&page, name).is_empty(), "{name} of the queues' actors is not on the page");
    }
    let labels = |name: &str, label: &str| -> Vec<String> {
        let labels = samples(&page, name).into_iter().flat_map(|sample| sample.labels);
        labels.filter(|(name, _)| name == label).map(|(_, value)| value).collect()
    };
    assert_eq!(labels("scheduler.messages_total", "worker"), ["0", "1", "2"]);
    assert_eq!(labels("actor.alive", "actor"), ["queue"]);
    let user = [("system", "queue"), ("actor", "queue"), ("mailbox", "user")];
    let enqueued = exposition::value(&page, "actor_mailbox_enqueued_total", &user).unwrap();
    assert!(messages as f64 <= enqueued, "{enqueued} of at least {messages}");
    let alive = [("system", "queue"), ("actor", "queue")];
    assert_eq!(exposition::value(&page, "actor_alive", &alive), Some(QUEUES.len() as f64));
}

#[test]
fn a_reload_turns_the_tracing_of_actors_on_and_off() {
    let dir = TestDir::new("actors-traces");
    let write = |filter: &str| {
        let text = format!("[queue]\nstore = 'memory'\n[telemetry]\nlog = '{filter}'\n");
        dir.write("evenkeel.toml", &text);
    };
    write("info");
    let server = ServerProcess::start(&dir, &[]);
    ["before", "during", "after"].iter().for_each(|queue| create(&server, queue));
    send_and_receive(&server, "before");
    let filter = "info,evenkeel_queue=debug,evenkeel_actor=trace";
    write(filter);
    let before = reload(&server);
    assert!(!before.iter().any(is_of_actor), "{before:?}");
    let in_force = server.get("/api/config").json()["telemetry"]["log"].take();
    assert_eq!(in_force, json!({"value": filter, "from": "evenkeel.toml:4"}), "it waits for no restart");

    send_and_receive(&server, "during");
    let traced = loop {
        let line = server.wait_log("close");
        if is_of_actor(&line) && line["span"]["name"] == "message" && line["spans"][0]["name"] == "receive" {
            break line;
        }
    };
    assert_eq!((&traced["span"]["actor"], &traced["level"]), (&json!("during"), &json!("TRACE")), "{traced}");
    let names: Vec<_> = traced["spans"].as_array().unwrap().iter().map(|span| &span["name"]).collect();
    assert_eq!(names, ["receive", "ask", "message"]);
    assert!(traced["time.busy"].is_string() && traced["time.idle"].is_string(), "{traced}");

    write("info");
    reload(&server);
    send_and_receive(&server, "after");
    let after = reload(&server);
    let is_traced = |line: &&Value| is_of_actor(line) && line.to_string().contains("after");
    assert_eq!(after.iter().find(is_traced), None);
}

/// Returns the samples of a metric of the queues' actors.
fn samples(page: &[Family], name: &str) -> Vec<Sample> {
    let name = name.replace('.', "_");
    let family = page.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("no {name}"));
    let is_of_queues = |sample: &&Sample| sample.labels[0] == ("system".to_owned(), "queue".to_owned());
    family.samples.iter().filter(is_of_queues).cloned().collect()
}

fn is_of_actor(line: &Value) -> bool {
    line["target"].as_str().is_some_and(|target| target.starts_with(SPANS))
}

/// Reloads the configuration; returns the log lines up to the report.
fn reload(server: &ServerProcess) -> Vec<Value> {
    server.signal("HUP");
    let mut lines = Vec::new();
    loop {
        let line = server.wait_log("");
        if line["message"] == "reloaded" {
            return lines;
        }
        lines.push(line);
    }
}

fn create(server: &ServerProcess, queue: &str) {
    assert_eq!(read(server.send("PUT", &path(queue, ""), "", &json!({}))).status, 201);
}

fn send_and_receive(server: &ServerProcess, queue: &str) {
    assert_eq!(server.post(&path(queue, "/messages"), &json!({"body": "x"})).status, 201);
    let received = server.post(&path(queue, "/receive"), &json!({"wait_ms": 20_000})).json();
    assert_eq!(received["messages"][0]["body"], "x", "{received}");
}

fn path(queue: &str, rest: &str) -> String {
    format!("/api/queues/{queue}{rest}")
}
