//! Tenants in dispatch: ownership of jobs, rate limits, weights, and priority of interactive requests over jobs.

use std::time::{Duration, Instant};

use evenkeel_sim_node::SimOptions;
use serde_json::{Value, json};

use super::{DispatchTest, job, wait_for};
use crate::fleet::{CHAT, request, tenant};
use evenkeel_sim_node::testing::{RawResponse, fast, open, read};

/// Returns queue settings with a dispatch concurrency.
fn with_concurrency(concurrency: u32) -> Value {
    json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": concurrency}})
}

#[test]
fn a_job_runs_as_its_sender_unless_that_may_act_for_the_tenant_of_the_key() {
    let config = tenant("acme", "models = ['other']")
        + &tenant("bolt", "")
        + &tenant("broker", "act_for = ['acme', 'customer']");
    let test = DispatchTest::start("dispatch-tenants", fast(), &config, &json!({}));
    let outcome = |result: &Value| {
        (result["status"].clone(), result["body"]["error"]["message"].as_str().map(str::to_owned))
    };
    let forbidden = (json!(403), Some("this API key may not use model \"sim\"".to_owned()));
    // Sender, key, tenant that the job runs as: acme may not use the model.
    for (sender, key, tenant) in [
        ("bolt", "bolt/eu", "bolt"),
        ("bolt", "acme/eu", "bolt"),
        ("bolt", "default", "bolt"),
        ("acme", "bolt", "acme"),
        ("acme", "default", "acme"),
        ("broker", "acme/eu", "acme"),
        ("broker", "customer", "broker"),
        ("broker", "bolt", "broker"),
    ] {
        let id = test.send_as(sender, key, 1).remove(0);
        let result = outcome(&test.wait_result(&id));
        assert_eq!(result == forbidden, tenant == "acme", "{sender} sent {key}: {result:?}");
        // Other tenants get the response for a message that was never sent.
        for reader in ["acme", "bolt", "broker"] {
            let status = test.result_as(reader, &id).status;
            assert_eq!(status, if reader == tenant { 200 } else { 404 }, "{sender} sent {key}: {reader}");
        }
    }
    let admin = test.wait_result(&test.send(&[("acme", job())])[0]);
    assert_eq!(outcome(&admin), forbidden, "the administrator may act for every tenant");
    let unowned = test.wait_result(&test.send_one(&job()));
    let message = "no tenant to run the job as: its sender is not a tenant, the queue has no owner, and the fairness key \
         \"default\" names no tenant that the sender may act for";
    assert_eq!(outcome(&unowned), (json!(400), Some(message.to_owned())));
}

#[test]
fn jobs_filed_under_their_sender_are_limited_and_charged_as_the_senders() {
    // Sending is the first of mallory's three requests.
    let config = tenant("mallory", "rpm = 3") + &tenant("victim", "rpm = 100");
    let test = DispatchTest::start("dispatch-filed", fast(), &config, &json!({}));
    let ids = test.send_as("mallory", "victim", 10);
    wait_for("deferrals", || (test.counted("deferred") >= 8).then_some(()));
    test.wait_counted("done", 2);
    let status = test.server.get("/api/load-status").json();
    let served = |name: &str| crate::fleet::tenant_status(&status, name)["served_cost"].as_u64();
    assert!(served("mallory") > Some(0), "{status:#}");
    assert_eq!(served("victim").unwrap_or(0), 0, "{status:#}");
    // The progress of a job is as private as its result.
    let deferred = ids.iter().find(|id| test.result(id).status == 404).unwrap();
    assert!(test.result(deferred).body.contains("429, "), "administrators see it");
    let hidden = test.result_as("victim", deferred);
    assert!(
        hidden.status == 404 && !hidden.body.contains("429") && !hidden.body.contains("attempt"),
        "{hidden:?}"
    );
    let id = test.send_as("victim", "victim", 1).remove(0);
    assert_eq!(test.wait_result(&id)["status"], 200);
}

#[test]
fn a_job_of_a_removed_tenant_does_not_run_as_a_new_tenant_of_its_name() {
    let test = DispatchTest::start("dispatch-readded", fast(), "", &json!({}));
    let old_key = test.dir.run(&["tenant", "add", "acme"]).ok();
    test.put("jobs", &json!({"dispatch": null}));
    let headers = format!("authorization: Bearer {}\r\n", old_key.trim());
    let sent = read(test.server.send(
        "POST",
        "/api/queues/jobs/messages",
        &headers,
        &json!({"body": job().to_string()}),
    ));
    let id = sent.json()["ids"][0].as_str().unwrap().to_owned();
    test.dir.run(&["tenant", "remove", "acme"]).ok();
    let new_key = test.dir.run(&["tenant", "add", "acme"]).ok();
    test.put("jobs", &with_concurrency(4));
    let result = test.wait_result(&id);
    assert_eq!(result["status"], 400, "{result}");
    assert!(result["body"]["error"]["message"].as_str().unwrap().starts_with("no tenant to run the job as"));
    assert_eq!(test.server.get_with_key(&format!("/api/queues/jobs/results/{id}"), &new_key).status, 404);
}

#[test]
fn jobs_of_a_rate_limited_tenant_wait_and_do_not_delay_other_jobs() {
    let config = tenant("slow", "rpm = 2") + &tenant("quick", "");
    let settings = json!({"dead_letters": {"queue": "dead", "after": 1}});
    let test = DispatchTest::start("dispatch-rate", fast(), &config, &settings);
    let slow = test.send(&vec![("slow", job()); 20]);
    let quick = test.send(&vec![("quick", job()); 20]);
    for id in &quick {
        assert_eq!(test.wait_result(id)["status"], 200);
    }
    // A deferral is not a failed attempt: with one attempt allowed, no job is dead-lettered.
    wait_for("deferrals", || (test.counted("deferred") >= 18).then_some(()));
    assert_eq!(slow.iter().filter(|id| test.result(id).status == 200).count(), 2);
    assert_eq!(test.pending("dead"), 0);
    let deferred = slow.iter().find(|id| test.result(id).status == 404).unwrap();
    let text = test.explain(deferred)["explanation"].as_str().unwrap().to_owned();
    assert!(text.contains("429, "), "{text}");
}

#[test]
fn requests_and_jobs_of_a_tenant_share_one_rate_limit() {
    let config = tenant("acme", "rpm = 3");
    let test = DispatchTest::start("dispatch-minute", fast(), &config, &json!({}));
    let send = || read(open(test.server.address, &request("acme", CHAT, &job()))).status;
    assert_eq!((send(), send()), (200, 200));
    let ids = test.send(&vec![("acme", job()); 5]);
    wait_for("deferrals", || (test.counted("deferred") >= 4).then_some(()));
    test.wait_counted("done", 1);
    assert_eq!(ids.iter().filter(|id| test.result(id).status == 200).count(), 1);
    assert_eq!(send(), 429);
}

#[test]
fn jobs_of_two_tenants_share_the_node_by_weight() {
    let config = tenant("heavy", "weight = 3") + &tenant("light", "weight = 1");
    let engine = SimOptions { slots: 4, tokens_per_second: 2_000, ..fast() };
    let test = DispatchTest::start("dispatch-shares", engine, &config, &with_concurrency(16));
    let jobs: Vec<(&str, Value)> =
        (0..2_400).map(|n| (if n % 2 == 0 { "heavy" } else { "light" }, job())).collect();
    test.send(&jobs);
    let served = |name: &str| {
        let status = test.server.get("/api/load-status").json();
        crate::fleet::tenant_status(&status, name)["served_cost"].as_u64().unwrap_or(0)
    };
    // The first jobs are delivered before the weights are written to the queue.
    wait_for("100 jobs", || (test.counted("done") >= 100).then_some(()));
    let heavy_before = served("heavy");
    let light_before = served("light");
    wait_for("900 jobs", || (test.counted("done") >= 900).then_some(()));
    let heavy = served("heavy") - heavy_before;
    let light = served("light") - light_before;
    let share = heavy as f64 / (heavy + light) as f64;
    println!("{heavy} of weight 3, {light} of weight 1: {share:.4}");
    assert!((share - 0.75).abs() < 0.03, "{share}");
}

#[test]
fn interactive_requests_go_before_thousands_of_jobs_and_jobs_use_idle_slots() {
    let config = tenant("batch", "") + &tenant("interactive", "");
    // 40 tokens at 400 a second: a service time of about 100 ms.
    let engine = SimOptions { slots: 4, tokens_per_second: 400, batch_slowdown: 0.0, ..fast() };
    let test = DispatchTest::start("dispatch-yield", engine, &config, &with_concurrency(64));
    let long = super::chat(json!({"max_tokens": 40}));
    test.send(&vec![("batch", long.clone()); 4_000]);
    test.node.wait_for(4, 0);
    let started = Instant::now();
    let done_before = test.counted("done");
    let body = request("interactive", CHAT, &long);
    let send = |address| {
        let started = Instant::now();
        (read(open(address, &body)), started.elapsed())
    };
    let address = test.server.address;
    let responses: Vec<(RawResponse, Duration)> = std::thread::scope(|scope| {
        let client = || scope.spawn(|| (0..15).map(|_| send(address)).collect::<Vec<_>>());
        let clients = [client(), client()];
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let jobs = test.counted("done") - done_before;
    let took = started.elapsed();
    assert!(responses.iter().all(|(reply, _)| reply.status == 200), "{responses:?}");
    let waits: Vec<Duration> = responses.iter().map(|(reply, _)| queue_wait(reply)).collect();
    let mut services: Vec<Duration> =
        responses.iter().zip(&waits).map(|((_, latency), waited)| latency.saturating_sub(*waited)).collect();
    services.sort_unstable();
    let service = services[services.len() / 2];
    let longest = waits.iter().max().unwrap();
    println!(
        "with 4000 jobs queued, 30 requests waited at most {longest:?}; median service time {service:?}"
    );
    println!("{jobs} jobs finished in the same {took:?}");
    assert!(*longest <= service + service / 2, "waited {longest:?}, service time {service:?}");
    // The two clients use at most two slots. Jobs use the other two, with a short gap between two jobs on a slot.
    let possible = 2.0 * took.as_secs_f64() / service.as_secs_f64();
    assert!(jobs as f64 >= possible * 0.8, "{jobs} jobs finished, {possible:.0} were possible");
    // Without interactive requests, jobs use every slot.
    test.node.wait_for(4, 0);
    let status = test.server.get("/api/load-status").json();
    assert_eq!((&status["waiting"], &status["in_flight"]), (&json!(0), &json!(4)), "{status:#}");
}

fn queue_wait(reply: &RawResponse) -> Duration {
    let header = reply.head.split("x-queue-wait-ms: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    Duration::from_millis(header.unwrap().parse().unwrap())
}
