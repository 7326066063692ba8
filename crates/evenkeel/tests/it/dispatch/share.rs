//! Jobs beside each other and beside whoever waits: tenants' rules, shares, and who goes first.

use std::time::{Duration, Instant};

use evenkeel_sim_node::SimOptions;
use serde_json::{Value, json};

use super::{Bench, job, wait_for};
use crate::fleet::{CHAT, request, tenant};
use crate::raw::{Reply, fast, open, read};

/// Settings of a queue with so many jobs under way.
fn at_once(concurrency: u32) -> Value {
    json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": concurrency}})
}

#[test]
fn a_job_belongs_to_the_tenant_of_its_key_or_else_to_its_sender() {
    let config = tenant("acme", "models = ['other']") + &tenant("bolt", "");
    let bench = Bench::start("dispatch-tenants", fast(), &config, &json!({}));
    let as_tenant = |sender: &str, key: &str| {
        let message = json!({"fairness_key": key, "body": job().to_string()});
        let headers = format!("authorization: Bearer ek-{sender}\r\n");
        let sent = read(bench.served.send("POST", "/api/queues/jobs/messages", &headers, &message));
        bench.wait_result(sent.json()["ids"][0].as_str().unwrap())
    };
    let told = |result: &Value| {
        (result["status"].clone(), result["body"]["error"]["message"].as_str().map(str::to_owned))
    };
    assert_eq!(as_tenant("bolt", "bolt/eu")["status"], 200);
    let forbidden = told(&as_tenant("bolt", "acme/eu"));
    assert_eq!(forbidden, (json!(403), Some("this API key may not use model \"sim\"".to_owned())));
    assert_eq!(as_tenant("bolt", "default")["status"], 200, "its sender is a tenant");
    assert_eq!(as_tenant("acme", "default")["status"], 403, "its sender is a tenant");
    let nobody = bench.wait_result(&bench.send_one(&job()));
    let said = "neither the fairness key's \"default\" nor the sender \"admin\" is a tenant";
    assert_eq!(told(&nobody), (json!(400), Some(said.to_owned())));
}

#[test]
fn a_tenant_beyond_its_minute_has_its_jobs_wait_and_delays_nobody_elses() {
    let config = tenant("slow", "rpm = 2") + &tenant("quick", "");
    let dead = json!({"dead_letters": {"queue": "dead", "after": 1}});
    let bench = Bench::start("dispatch-rate", fast(), &config, &dead);
    let slow = bench.send(&vec![("slow", job()); 20]);
    let quick = bench.send(&vec![("quick", job()); 20]);
    for id in &quick {
        assert_eq!(bench.wait_result(id)["status"], 200);
    }
    // Deferred is not failed: with one attempt allowed, none is a dead letter.
    wait_for("deferrals", || (18 <= bench.counted("deferred")).then_some(()));
    assert_eq!(slow.iter().filter(|id| bench.result(id).status == 200).count(), 2);
    assert_eq!(bench.pending("dead"), 0);
    let waits = slow.iter().find(|id| bench.result(id).status == 404).unwrap();
    let said = bench.explained(waits)["explanation"].as_str().unwrap().to_owned();
    assert!(said.contains("429, "), "{said}");
}

#[test]
fn requests_and_jobs_of_a_tenant_count_against_one_minute() {
    let config = tenant("acme", "rpm = 3");
    let bench = Bench::start("dispatch-minute", fast(), &config, &json!({}));
    let ask = || read(open(bench.served.address, &request("acme", CHAT, &job()))).status;
    assert_eq!((ask(), ask()), (200, 200));
    let ids = bench.send(&vec![("acme", job()); 5]);
    wait_for("deferrals", || (4 <= bench.counted("deferred")).then_some(()));
    bench.wait_counted("done", 1);
    assert_eq!(ids.iter().filter(|id| bench.result(id).status == 200).count(), 1);
    assert_eq!(ask(), 429);
}

#[test]
fn jobs_of_two_tenants_share_by_weight() {
    let config = tenant("three", "weight = 3") + &tenant("one", "weight = 1");
    let engine = SimOptions { slots: 4, tokens_per_second: 2_000, ..fast() };
    let bench = Bench::start("dispatch-shares", engine, &config, &at_once(16));
    let jobs: Vec<(&str, Value)> =
        (0..2_400).map(|n| (if n % 2 == 0 { "three" } else { "one" }, job())).collect();
    bench.send(&jobs);
    let served = |name: &str| {
        let status = bench.served.get("/api/load-status").json();
        crate::fleet::of(&status, name)["served_cost"].as_u64().unwrap_or(0)
    };
    // The first few go out before the queue was told what weights there are.
    wait_for("a beginning", || (100 <= bench.counted("done")).then_some(()));
    let before = (served("three"), served("one"));
    wait_for("progress", || (900 <= bench.counted("done")).then_some(()));
    let three = served("three") - before.0;
    let one = served("one") - before.1;
    let share = three as f64 / (three + one) as f64;
    println!("{three} of weight 3, {one} of weight 1: {share:.4}");
    assert!((share - 0.75).abs() < 0.03, "{share}");
}

#[test]
fn whoever_waits_goes_before_thousands_of_jobs_and_jobs_use_what_is_idle() {
    let config = tenant("batch", "") + &tenant("person", "");
    // 40 tokens at 400 a second: a service time of about 100 ms.
    let engine = SimOptions { slots: 4, tokens_per_second: 400, batch_slowdown: 0.0, ..fast() };
    let bench = Bench::start("dispatch-yield", engine, &config, &at_once(64));
    let long = super::chat(json!({"max_tokens": 40}));
    bench.send(&vec![("batch", long.clone()); 4_000]);
    bench.node.wait_for(4, 0);
    let began = Instant::now();
    let done_before = bench.counted("done");
    let asked = request("person", CHAT, &long);
    let ask = |address| {
        let began = Instant::now();
        (read(open(address, &asked)), began.elapsed())
    };
    let address = bench.served.address;
    let answers: Vec<(Reply, Duration)> = std::thread::scope(|scope| {
        let person = || scope.spawn(|| (0..15).map(|_| ask(address)).collect::<Vec<_>>());
        let people = [person(), person()];
        people.into_iter().flat_map(|person| person.join().unwrap()).collect()
    });
    let jobs = bench.counted("done") - done_before;
    let took = began.elapsed();
    assert!(answers.iter().all(|(reply, _)| reply.status == 200), "{answers:?}");
    let waits: Vec<Duration> = answers.iter().map(|(reply, _)| queue_wait(reply)).collect();
    let mut services: Vec<Duration> =
        answers.iter().zip(&waits).map(|((_, took), waited)| took.saturating_sub(*waited)).collect();
    services.sort_unstable();
    let service = services[services.len() / 2];
    let longest = waits.iter().max().unwrap();
    println!("beside 4000 jobs, 30 requests waited for {longest:?} at most, at {service:?} each");
    println!("{jobs} jobs were done meanwhile, in {took:?}");
    assert!(*longest <= service + service / 2, "{longest:?} of {service:?}");
    // Two people hold two slots at most; the other two are the jobs', less what each change of hands takes.
    let possible = 2.0 * took.as_secs_f64() / service.as_secs_f64();
    assert!(possible * 0.8 <= jobs as f64, "{jobs} jobs of {possible:.0}");
    // With nobody there, every slot is the jobs'.
    bench.node.wait_for(4, 0);
    let status = bench.served.get("/api/load-status").json();
    assert_eq!((&status["waiting"], &status["in_flight"]), (&json!(0), &json!(4)), "{status:#}");
}

fn queue_wait(reply: &Reply) -> Duration {
    let told = reply.head.split("x-queue-wait-ms: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    Duration::from_millis(told.unwrap().parse().unwrap())
}
