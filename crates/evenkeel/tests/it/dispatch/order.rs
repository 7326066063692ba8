//! Dispatch of a FIFO queue.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use super::worker::{Worker, respond};
use super::{DispatchTest, wait_for};
use crate::fleet::TIMEOUT;
use evenkeel_sim_node::testing::fast;

/// Observations of the worker.
#[derive(Default)]
struct Observed {
    /// Running jobs of each group.
    running: HashMap<String, usize>,
    /// Completed jobs of each group, in order.
    done: HashMap<String, Vec<u64>>,
    group_max: usize,
    total_max: usize,
}

#[test]
fn jobs_of_a_group_run_in_order_one_at_a_time_and_groups_run_concurrently() {
    let seen = Arc::new((Mutex::new(Observed::default()), Condvar::new()));
    let shared = seen.clone();
    let has_failed = AtomicBool::new(false);
    let worker = Worker::start(move |posted| {
        let job: Value = serde_json::from_str(&posted.body).unwrap();
        let group = job["group"].as_str().unwrap().to_owned();
        let number = job["number"].as_u64().unwrap();
        let mut seen = shared.0.lock().unwrap();
        *seen.running.entry(group.clone()).or_default() += 1;
        let group_running = seen.running[&group];
        let total = seen.running.values().sum();
        seen.group_max = seen.group_max.max(group_running);
        seen.total_max = seen.total_max.max(total);
        shared.1.notify_all();
        // The first job of each group waits until jobs of all three groups run.
        let must_wait = |seen: &mut Observed| number == 0 && seen.total_max < 3;
        let (mut seen, _) = shared.1.wait_timeout_while(seen, TIMEOUT, must_wait).unwrap();
        *seen.running.get_mut(&group).unwrap() -= 1;
        if group == "a" && number == 2 && !has_failed.swap(true, Ordering::SeqCst) {
            return respond(503, "overloaded");
        }
        seen.done.entry(group).or_default().push(number);
        respond(200, "{}")
    });
    let test = DispatchTest::start("dispatch-fifo", fast(), "", &json!({"dispatch": null}));
    test.put(
        "jobs.fifo",
        &json!({
            "order": "fifo", "backoff_ms_min": 20, "backoff_ms_max": 100,
            "dispatch": {"target": worker.url("/jobs"), "concurrency": 8},
        }),
    );
    for number in 0..8 {
        for group in ["a", "b", "c"] {
            let body = json!({"group": group, "number": number}).to_string();
            let message =
                json!({"fairness_key": group, "dedup_id": format!("{group}{number}"), "body": body});
            let reply = test.server.post("/api/queues/jobs.fifo/messages", &message);
            assert_eq!(reply.status, 201, "{reply:?}");
        }
    }
    wait_for("all jobs", || {
        let done = seen.0.lock().unwrap().done.values().map(Vec::len).sum::<usize>();
        (done == 24).then_some(())
    });
    let seen = seen.0.lock().unwrap();
    let in_order: Vec<u64> = (0..8).collect();
    assert!(["a", "b", "c"].into_iter().all(|group| seen.done[group] == in_order), "{:?}", seen.done);
    assert_eq!((seen.group_max, seen.total_max), (1, 3));
}
