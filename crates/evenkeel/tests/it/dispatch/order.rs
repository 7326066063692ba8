//! Jobs of a queue that keeps the order of its groups.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use super::worker::{Worker, answer};
use super::{Bench, wait_for};
use crate::fleet::PATIENCE;
use crate::raw::fast;

/// What the worker saw.
#[derive(Default)]
struct Seen {
    /// The jobs of each group that are under way.
    under_way: HashMap<String, usize>,
    /// Those that were answered well, in their order.
    done: HashMap<String, Vec<u64>>,
    most_of_one_group: usize,
    most_at_all: usize,
}

#[test]
fn jobs_of_a_group_run_in_order_one_at_a_time_and_groups_beside_each_other() {
    let seen = Arc::new((Mutex::new(Seen::default()), Condvar::new()));
    let shared = seen.clone();
    let has_failed = AtomicBool::new(false);
    let worker = Worker::start(move |posted| {
        let job: Value = serde_json::from_str(&posted.body).unwrap();
        let group = job["group"].as_str().unwrap().to_owned();
        let number = job["number"].as_u64().unwrap();
        let mut seen = shared.0.lock().unwrap();
        *seen.under_way.entry(group.clone()).or_default() += 1;
        let of_group = seen.under_way[&group];
        let at_all = seen.under_way.values().sum();
        seen.most_of_one_group = seen.most_of_one_group.max(of_group);
        seen.most_at_all = seen.most_at_all.max(at_all);
        shared.1.notify_all();
        // The first of each group waits until all three are there.
        let lonely = |seen: &mut Seen| number == 0 && seen.most_at_all < 3;
        let (mut seen, _) = shared.1.wait_timeout_while(seen, PATIENCE, lonely).unwrap();
        *seen.under_way.get_mut(&group).unwrap() -= 1;
        if group == "a" && number == 2 && !has_failed.swap(true, Ordering::SeqCst) {
            return answer(503, "not now");
        }
        seen.done.entry(group).or_default().push(number);
        answer(200, "{}")
    });
    let bench = Bench::start("dispatch-fifo", fast(), "", &json!({"dispatch": null}));
    bench.put(
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
            let reply = bench.served.post("/api/queues/jobs.fifo/messages", &message);
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
    assert_eq!((seen.most_of_one_group, seen.most_at_all), (1, 3));
}
