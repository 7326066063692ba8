//! Jobs posted to a webhook.

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar};
use std::time::Duration;

use serde_json::{Value, json};

use super::worker::{Response, Worker, respond};
use super::{DispatchTest, wait_for};
use crate::fleet::{TIMEOUT, tenant};
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{fast, read};

/// Returns queue settings that dispatch to a worker.
fn dispatch_to(worker: &Worker, concurrency: u32) -> Value {
    json!({"dispatch": {"target": worker.url("/jobs"), "concurrency": concurrency}})
}

#[test]
fn a_job_is_posted_unchanged_and_its_response_is_stored() {
    let worker =
        Worker::start(|_| Response { headers: "content-type: text/plain\r\n", ..respond(201, "it is done") });
    let settings = json!({"dispatch": {"target": worker.url("/v1/to?kind=a&b=c")}});
    let test = DispatchTest::start("dispatch-url", fast(), "", &settings);
    let message =
        json!({"fairness_key": "acme/eü", "body": "<job/>", "headers": {"Content-Type": "text/xml"}});
    let sent = test.server.post("/api/queues/jobs/messages", &message).json();
    let id = sent["ids"][0].as_str().unwrap();
    let result = test.wait_result(id);
    assert_eq!((&result["state"], &result["status"]), (&json!("done"), &json!(201)), "{result:#}");
    assert_eq!((&result["body"], &result["content_type"]), (&json!("it is done"), &json!("text/plain")));
    let posted = worker.posted().remove(0);
    assert_eq!((posted.line.as_str(), posted.body.as_str()), ("POST /v1/to?kind=a&b=c HTTP/1.1", "<job/>"));
    for (name, value) in [
        ("content-type", "text/xml"),
        ("x-evenkeel-queue", "jobs"),
        ("x-evenkeel-message-id", id),
        ("x-evenkeel-attempt", "1"),
        ("x-evenkeel-fairness-key", "acme/eü"),
    ] {
        assert_eq!(posted.header(name), Some(value), "{posted:?}");
    }
    let plain = test.send_one(&json!({"a": 1}));
    test.wait_result(&plain);
    let posted = worker.posted().remove(1);
    assert_eq!(
        (posted.header("content-type"), posted.body.as_str()),
        (Some("application/json"), "{\"a\":1}")
    );
    test.wait_counted("done", 2);
}

#[test]
fn a_job_is_retried_after_the_delay_that_the_response_asks_for() {
    let tries = AtomicUsize::new(0);
    let worker = Worker::start(move |_| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => Response { headers: "retry-after: 0\r\n", ..respond(503, "busy") },
        1 => Response { headers: "retry-after-ms: 30\r\n", ..respond(429, "too many") },
        2 => Response { headers: "retry-after: 0.01\r\n", ..respond(408, "late") },
        _ => respond(200, "{}"),
    });
    // The queue's own backoff would take an hour.
    let mut settings = dispatch_to(&worker, 1);
    settings["backoff_ms_min"] = json!(3_600_000);
    settings["backoff_ms_max"] = json!(3_600_000);
    let test = DispatchTest::start("dispatch-url-retry", fast(), "", &settings);
    let result = test.wait_result(&test.send_one(&json!({})));
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(4)));
    let attempts: Vec<_> = worker
        .posted()
        .iter()
        .map(|posted| posted.header("x-evenkeel-attempt").unwrap().to_owned())
        .collect();
    assert_eq!(attempts, ["1", "2", "3", "4"]);
    test.wait_counted("retried", 3);
}

#[test]
fn a_job_that_fails_permanently_or_too_often_is_dead_lettered_with_a_result() {
    let worker = Worker::start(|posted| match posted.body.trim_matches('"') {
        "large" => respond(200, &"x".repeat((16 << 20) + 1)),
        "moved" => Response { headers: "location: http://127.0.0.1:1/\r\n", ..respond(302, "") },
        status => respond(status.parse().unwrap(), "no"),
    });
    let mut settings = dispatch_to(&worker, 4);
    settings["dead_letters"] = json!({"queue": "dead", "after": 3});
    let test = DispatchTest::start("dispatch-url-dead", fast(), "", &settings);
    for (body, status, attempt) in [
        ("400", 400, 1),
        ("404", 404, 1),
        ("422", 422, 1),
        ("moved", 302, 1),
        ("large", 502, 1),
        ("500", 500, 3),
    ] {
        let result = test.wait_result(&test.send_one(&json!(body)));
        assert_eq!(
            (&result["state"], &result["status"], &result["attempt"]),
            (&json!("failed"), &json!(status), &json!(attempt)),
            "{body}: {result:#}"
        );
    }
    wait_for("dead letters", || (test.pending("dead") == 6).then_some(()));
    assert_eq!(test.pending("jobs"), 0);
}

#[test]
fn a_job_is_retried_on_a_new_worker_after_its_worker_dies() {
    let stuck = Worker::start(|_| {
        std::thread::sleep(TIMEOUT);
        respond(200, "too late")
    });
    let address = stuck.address;
    let test = DispatchTest::start("dispatch-url-dies", fast(), "", &dispatch_to(&stuck, 1));
    let id = test.send_one(&json!({}));
    let text = test.wait_explanation(&id, "attempt 1: posted to ");
    assert!(text.contains(&format!("posted to http://{address}/jobs, since ")), "{text}");
    wait_for("the job", || (!stuck.posted().is_empty()).then_some(()));
    drop(stuck);
    test.wait_explanation(&id, "/jobs: ");
    // Without a worker, every attempt fails, but the job is not lost.
    test.wait_explanation(&id, "could not connect");
    let next = Worker::start(|_| respond(200, "\"done\""));
    let reply = read(test.server.send("PUT", "/api/queues/jobs", "", &dispatch_to(&next, 1)));
    assert_eq!(reply.status, 200);
    let result = test.wait_result(&id);
    assert_eq!((&result["state"], &result["body"]), (&json!("done"), &json!("done")));
    assert!(result["attempt"].as_u64().unwrap() >= 3, "{result:#}");
    assert_eq!(next.posted().len(), 1);
}

#[test]
fn after_crashes_of_the_gateway_every_job_was_posted_and_has_its_result() {
    let worker = Worker::start(|posted| {
        std::thread::sleep(Duration::from_millis(5));
        respond(200, &posted.body)
    });
    let mut test = DispatchTest::start("dispatch-url-kill", fast(), "", &dispatch_to(&worker, 8));
    let jobs: Vec<_> = (0..200).map(|number| ("a", json!({"number": number}))).collect();
    let ids = test.send(&jobs);
    for done in [30, 40] {
        wait_for("progress", || (test.counted("done") >= done).then_some(()));
        test = test.restart("KILL").1;
    }
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(test.wait_result(id)["body"], json!({"number": number}));
    }
    let mut posts_by_id = HashMap::<String, usize>::new();
    for posted in worker.posted() {
        *posts_by_id.entry(posted.header("x-evenkeel-message-id").unwrap().to_owned()).or_default() += 1;
    }
    assert!(ids.iter().all(|id| posts_by_id.contains_key(id)), "{posts_by_id:?}");
    wait_for("an empty queue", || {
        let totals = test.server.get("/api/queues/jobs").json();
        (totals["pending"] == 0 && totals["in_flight"] == 0 && totals["delayed"] == 0).then_some(())
    });
}

#[test]
fn tenants_share_the_worker_fairly_and_the_concurrency_limit_holds() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let running = AtomicUsize::new(0);
    let running_max = Arc::new(AtomicUsize::new(0));
    let worker_gate = gate.clone();
    let worker_running_max = running_max.clone();
    let worker = Worker::start(move |_| {
        worker_running_max.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let open =
            worker_gate.1.wait_timeout_while(worker_gate.0.lock().unwrap(), TIMEOUT, |open| !*open).unwrap();
        drop(open);
        running.fetch_sub(1, Ordering::SeqCst);
        respond(200, "{}")
    });
    let test = DispatchTest::start("dispatch-url-turns", fast(), "", &dispatch_to(&worker, 2));
    let mut ids = test.send(&vec![("flood", json!({})); 60]);
    wait_for("two jobs", || (worker.posted().len() == 2).then_some(()));
    ids.extend(test.send(&vec![("quiet", json!({})); 10]));
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    for id in &ids {
        assert_eq!(test.wait_result(id)["status"], 200);
    }
    assert_eq!(running_max.load(Ordering::SeqCst), 2);
    let last =
        worker.posted().iter().rposition(|posted| posted.header("x-evenkeel-fairness-key") == Some("quiet"));
    // The tenants alternate, give or take a round and the jobs already running.
    assert!(
        (10..=26).contains(&last.unwrap()),
        "index of the quiet tenant's last job among 70 jobs: {last:?}"
    );
}

#[test]
fn a_job_that_takes_longer_than_its_lease_is_posted_once() {
    let worker = Worker::start(|_| {
        std::thread::sleep(Duration::from_millis(2_500));
        respond(200, "{}")
    });
    let mut settings = dispatch_to(&worker, 4);
    settings["lease_ms"] = json!(1_000);
    let test = DispatchTest::start("dispatch-url-long", fast(), "", &settings);
    let result = test.wait_result(&test.send_one(&json!({})));
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(1)));
    assert_eq!(worker.posted().len(), 1);
}

#[test]
fn a_tenants_concurrency_limit_applies_to_its_first_jobs_too() {
    let running = AtomicUsize::new(0);
    let running_max = Arc::new(AtomicUsize::new(0));
    let worker_running_max = running_max.clone();
    let worker = Worker::start(move |_| {
        worker_running_max.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        running.fetch_sub(1, Ordering::SeqCst);
        respond(200, "{}")
    });
    let test = DispatchTest::start(
        "dispatch-url-limit",
        fast(),
        &tenant("acme", "concurrency_max = 2"),
        &json!({"dispatch": null}),
    );
    let ids = test.send(&vec![("acme", json!({})); 30]);
    // Dispatch starts now, so the queue delivers a full batch before the tenant's limit is written to it.
    let reply = read(test.server.send("PUT", "/api/queues/jobs", "", &dispatch_to(&worker, 20)));
    assert_eq!(reply.status, 200);
    for id in &ids {
        assert_eq!(test.wait_result(id)["status"], 200);
    }
    assert_eq!(running_max.load(Ordering::SeqCst), 2);
}

#[test]
fn a_job_whose_result_cannot_be_stored_is_posted_once() {
    let dir = TestDir::new("dispatch-url-full");
    let (server, full_disk_marker) = crate::full_disk::serve(&dir);
    let marker = full_disk_marker.clone();
    let worker = Worker::start(move |_| {
        fs::write(&marker, "").unwrap();
        respond(200, "\"done\"")
    });
    assert_eq!(read(server.send("PUT", "/api/queues/jobs", "", &dispatch_to(&worker, 1))).status, 201);
    let sent = server.post("/api/queues/jobs/messages", &json!({"body": "x"})).json();
    let id = sent["ids"][0].as_str().unwrap();
    wait_for("the job", || (!worker.posted().is_empty()).then_some(()));
    // The gateway retries every 5 s (STORE_RETRY), so this covers two attempts to store the result.
    std::thread::sleep(Duration::from_secs(7));
    fs::remove_file(&full_disk_marker).unwrap();
    wait_for("its result", || {
        let result = server.get(&format!("/api/queues/jobs/results/{id}"));
        (result.status == 200 && result.json()["state"] == "done").then_some(())
    });
    assert_eq!(worker.posted().len(), 1, "the job ran again because its result could not be stored");
}

#[test]
fn an_invalid_url_is_rejected() {
    let test = DispatchTest::start("dispatch-url-bad", fast(), "", &json!({}));
    for (target, message) in [
        ("ftp://worker/x", "target \"ftp://worker/x\": URL begins with neither http:// nor https://"),
        ("http://worker:99999/", "target \"http://worker:99999/\": URL's port is not between 1 and 65535"),
        ("http://me:secret@worker/", "target: URL carries credentials"),
    ] {
        let settings = json!({"dispatch": {"target": target}});
        let reply = read(test.server.send("PUT", "/api/queues/jobs", "", &settings));
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (400, &json!(message)));
    }
}
