//! Jobs that are posted to a URL.

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar};
use std::time::Duration;

use serde_json::{Value, json};

use super::worker::{Answered, Worker, answer};
use super::{Bench, wait_for};
use crate::fleet::{PATIENCE, tenant};
use crate::folder::Folder;
use crate::raw::{fast, read};

/// Settings of a queue whose jobs go there, so many at once.
fn to(worker: &Worker, concurrency: u32) -> Value {
    json!({"dispatch": {"target": worker.url("/jobs"), "concurrency": concurrency}})
}

#[test]
fn a_job_is_posted_as_it_was_sent_and_its_answer_kept() {
    let worker =
        Worker::start(|_| Answered { headers: "content-type: text/plain\r\n", ..answer(201, "it is done") });
    let settings = json!({"dispatch": {"target": worker.url("/v1/to?kind=a&b=c")}});
    let bench = Bench::start("dispatch-url", fast(), "", &settings);
    let message =
        json!({"fairness_key": "acme/eü", "body": "<job/>", "headers": {"Content-Type": "text/xml"}});
    let sent = bench.served.post("/api/queues/jobs/messages", &message).json();
    let id = sent["ids"][0].as_str().unwrap();
    let result = bench.wait_result(id);
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
    let plain = bench.send_one(&json!({"a": 1}));
    bench.wait_result(&plain);
    let posted = worker.posted().remove(1);
    assert_eq!(
        (posted.header("content-type"), posted.body.as_str()),
        (Some("application/json"), "{\"a\":1}")
    );
    bench.wait_counted("done", 2);
}

#[test]
fn a_job_is_tried_again_when_the_answer_says_so() {
    let tries = AtomicUsize::new(0);
    let worker = Worker::start(move |_| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => Answered { headers: "retry-after: 0\r\n", ..answer(503, "busy") },
        1 => Answered { headers: "retry-after-ms: 30\r\n", ..answer(429, "too many") },
        2 => Answered { headers: "retry-after: 0.01\r\n", ..answer(408, "late") },
        _ => answer(200, "{}"),
    });
    // By its own backoff the queue would take an hour.
    let mut settings = to(&worker, 1);
    (settings["backoff_ms_min"], settings["backoff_ms_max"]) = (json!(3_600_000), json!(3_600_000));
    let bench = Bench::start("dispatch-url-retry", fast(), "", &settings);
    let result = bench.wait_result(&bench.send_one(&json!({})));
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(4)));
    let attempts: Vec<_> = worker
        .posted()
        .iter()
        .map(|posted| posted.header("x-evenkeel-attempt").unwrap().to_owned())
        .collect();
    assert_eq!(attempts, ["1", "2", "3", "4"]);
    bench.wait_counted("retried", 3);
}

#[test]
fn what_fails_for_good_or_too_often_is_a_dead_letter_with_a_result() {
    let worker = Worker::start(|posted| match posted.body.trim_matches('"') {
        "large" => answer(200, &"x".repeat((16 << 20) + 1)),
        "moved" => Answered { headers: "location: http://127.0.0.1:1/\r\n", ..answer(302, "") },
        status => answer(status.parse().unwrap(), "no"),
    });
    let mut settings = to(&worker, 4);
    settings["dead_letters"] = json!({"queue": "dead", "after": 3});
    let bench = Bench::start("dispatch-url-dead", fast(), "", &settings);
    for (body, status, attempt) in [
        ("400", 400, 1),
        ("404", 404, 1),
        ("422", 422, 1),
        ("moved", 302, 1),
        ("large", 502, 1),
        ("500", 500, 3),
    ] {
        let result = bench.wait_result(&bench.send_one(&json!(body)));
        assert_eq!(
            (&result["state"], &result["status"], &result["attempt"]),
            (&json!("failed"), &json!(status), &json!(attempt)),
            "{body}: {result:#}"
        );
    }
    wait_for("dead letters", || (bench.pending("dead") == 6).then_some(()));
    assert_eq!(bench.pending("jobs"), 0);
}

#[test]
fn a_job_whose_server_dies_under_it_is_done_by_the_next_one() {
    let stuck = Worker::start(|_| {
        std::thread::sleep(PATIENCE);
        answer(200, "too late")
    });
    let address = stuck.address;
    let bench = Bench::start("dispatch-url-dies", fast(), "", &to(&stuck, 1));
    let id = bench.send_one(&json!({}));
    let said = bench.wait_explained(&id, "attempt 1: posted to ");
    assert!(said.contains(&format!("posted to http://{address}/jobs, since ")), "{said}");
    wait_for("the job", || (!stuck.posted().is_empty()).then_some(()));
    drop(stuck);
    bench.wait_explained(&id, "/jobs: ");
    // With nobody there it goes on failing, and is not lost.
    bench.wait_explained(&id, "host not reached");
    let next = Worker::start(|_| answer(200, "\"done\""));
    let told = read(bench.served.send("PUT", "/api/queues/jobs", "", &to(&next, 1)));
    assert_eq!(told.status, 200);
    let result = bench.wait_result(&id);
    assert_eq!((&result["state"], &result["body"]), (&json!("done"), &json!("done")));
    assert!(3 <= result["attempt"].as_u64().unwrap(), "{result:#}");
    assert_eq!(next.posted().len(), 1);
}

#[test]
fn after_a_kill_of_the_gateway_every_job_was_posted_and_has_its_result() {
    let worker = Worker::start(|posted| {
        std::thread::sleep(Duration::from_millis(5));
        answer(200, &posted.body)
    });
    let mut bench = Bench::start("dispatch-url-kill", fast(), "", &to(&worker, 8));
    let jobs: Vec<_> = (0..200).map(|number| ("a", json!({"number": number}))).collect();
    let ids = bench.send(&jobs);
    for done in [30, 40] {
        wait_for("progress", || (done <= bench.counted("done")).then_some(()));
        bench = bench.restart("KILL").1;
    }
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(bench.wait_result(id)["body"], json!({"number": number}));
    }
    let mut times = HashMap::<String, usize>::new();
    for posted in worker.posted() {
        *times.entry(posted.header("x-evenkeel-message-id").unwrap().to_owned()).or_default() += 1;
    }
    assert!(ids.iter().all(|id| times.contains_key(id)), "{times:?}");
    wait_for("an empty queue", || {
        let told = bench.served.get("/api/queues/jobs").json();
        (told["pending"] == 0 && told["in_flight"] == 0 && told["delayed"] == 0).then_some(())
    });
}

#[test]
fn tenants_take_turns_and_no_more_jobs_are_posted_at_once_than_the_queue_says() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let under_way = AtomicUsize::new(0);
    let most = Arc::new(AtomicUsize::new(0));
    let opened = gate.clone();
    let seen = most.clone();
    let worker = Worker::start(move |_| {
        seen.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let open = opened.1.wait_timeout_while(opened.0.lock().unwrap(), PATIENCE, |open| !*open).unwrap();
        drop(open);
        under_way.fetch_sub(1, Ordering::SeqCst);
        answer(200, "{}")
    });
    let bench = Bench::start("dispatch-url-turns", fast(), "", &to(&worker, 2));
    let mut ids = bench.send(&vec![("flood", json!({})); 60]);
    wait_for("two jobs", || (worker.posted().len() == 2).then_some(()));
    ids.extend(bench.send(&vec![("quiet", json!({})); 10]));
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    for id in &ids {
        assert_eq!(bench.wait_result(id)["status"], 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
    let last =
        worker.posted().iter().rposition(|posted| posted.header("x-evenkeel-fairness-key") == Some("quiet"));
    // One of each at a time, give or take a round and what was under way.
    assert!((10..=26).contains(&last.unwrap()), "the quiet tenant's last job came as {last:?} of 70");
}

#[test]
fn a_job_that_takes_longer_than_its_lease_is_posted_once() {
    let worker = Worker::start(|_| {
        std::thread::sleep(Duration::from_millis(2_500));
        answer(200, "{}")
    });
    let mut settings = to(&worker, 4);
    settings["lease_ms"] = json!(1_000);
    let bench = Bench::start("dispatch-url-long", fast(), "", &settings);
    let result = bench.wait_result(&bench.send_one(&json!({})));
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(1)));
    assert_eq!(worker.posted().len(), 1);
}

#[test]
fn a_tenants_limit_of_jobs_at_once_holds_from_its_first_jobs_on() {
    let under_way = AtomicUsize::new(0);
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let worker = Worker::start(move |_| {
        seen.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        under_way.fetch_sub(1, Ordering::SeqCst);
        answer(200, "{}")
    });
    let bench = Bench::start(
        "dispatch-url-limit",
        fast(),
        &tenant("acme", "concurrency_max = 2"),
        &json!({"dispatch": null}),
    );
    let ids = bench.send(&vec![("acme", json!({})); 30]);
    // Told its target now, the queue hands out as many jobs as it may, before it was told the tenant's limit.
    let told = read(bench.served.send("PUT", "/api/queues/jobs", "", &to(&worker, 20)));
    assert_eq!(told.status, 200);
    for id in &ids {
        assert_eq!(bench.wait_result(id)["status"], 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[test]
fn a_job_whose_answer_finds_the_disk_full_is_posted_once() {
    let folder = Folder::new("dispatch-url-full");
    let (served, full) = crate::full_disk::serve(&folder);
    let fills = full.clone();
    let worker = Worker::start(move |_| {
        fs::write(&fills, "").unwrap();
        answer(200, "\"done\"")
    });
    assert_eq!(read(served.send("PUT", "/api/queues/jobs", "", &to(&worker, 1))).status, 201);
    let sent = served.post("/api/queues/jobs/messages", &json!({"body": "x"})).json();
    let id = sent["ids"][0].as_str().unwrap();
    wait_for("the job", || (!worker.posted().is_empty()).then_some(()));
    // Two tries to keep its answer.
    std::thread::sleep(Duration::from_secs(7));
    fs::remove_file(&full).unwrap();
    wait_for("its result", || {
        let result = served.get(&format!("/api/queues/jobs/results/{id}"));
        (result.status == 200 && result.json()["state"] == "done").then_some(())
    });
    assert_eq!(worker.posted().len(), 1, "it was run again while its answer could not be kept");
}

#[test]
fn a_url_that_nothing_can_be_posted_to_is_refused() {
    let bench = Bench::start("dispatch-url-bad", fast(), "", &json!({}));
    for (target, said) in [
        ("ftp://worker/x", "target \"ftp://worker/x\": URL begins with neither http:// nor https://"),
        ("http://worker:99999/", "target \"http://worker:99999/\": URL's port is not between 1 and 65535"),
        ("http://me:secret@worker/", "target: URL carries credentials"),
    ] {
        let wish = json!({"dispatch": {"target": target}});
        let reply = read(bench.served.send("PUT", "/api/queues/jobs", "", &wish));
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (400, &json!(said)));
    }
}
