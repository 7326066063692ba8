//! What becomes of a job: done, tried again, failed for good, run again after a crash.

use evenkeel_sim_node::SimOptions;
use serde_json::json;

use super::{Bench, job, wait_for};
use crate::raw::{fast, read, stuck};

#[test]
fn a_job_is_run_and_its_answer_kept() {
    let bench = Bench::start("dispatch-done", fast(), "", &json!({}));
    let id = bench.send_one(&job());
    let result = bench.wait_result(&id);
    assert_eq!(
        (&result["state"], &result["status"], &result["attempt"]),
        (&json!("done"), &json!(200), &json!(1))
    );
    assert_eq!(result["body"]["object"], "chat.completion", "{result:#}");
    assert_eq!(result["body"]["usage"]["completion_tokens"], 8);
    let day = result["expires_at_ms"].as_u64().unwrap() - result["finished_at_ms"].as_u64().unwrap();
    assert!((86_400_000..86_460_000).contains(&day), "{day}");
    let said = bench.folder.run(&["queue", "explain", "jobs", &id]).ok();
    assert!(said.starts_with("done with status 200 at "), "{said}");
    bench.wait_counted("done", 1);
    assert_eq!(bench.pending("jobs"), 0);
}

#[test]
fn the_example_of_the_page_does_what_it_says() {
    let bench = Bench::start("dispatch-page", fast(), "", &json!({"dispatch": null}));
    let page = include_str!("../../../../../docs/queue/dispatch.md");
    let example = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_evenkeel")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    // As any command of the folder, but for what is run.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-e", "-c", example]).current_dir(bench.folder.file("")).env("PATH", path);
    let said = crate::folder::Ran::of(shell.output().unwrap()).ok();
    assert!(said.contains("\"state\": \"done\"") && said.contains("\"chat.completion\""), "{said}");
}

#[test]
fn dispatch_that_is_taken_away_and_set_again_goes_on_beside_a_job_under_way() {
    let bench = Bench::start("dispatch-again", SimOptions { slots: 2, ..stuck() }, "", &json!({}));
    let first = bench.send_one(&job());
    bench.wait_explained(&first, "sent to node one");
    bench.put("jobs", &json!({"dispatch": null}));
    let second = bench.send_one(&job());
    bench.put("jobs", &json!({"dispatch": {"target": "/v1/chat/completions"}}));
    bench.wait_explained(&second, "sent to node one");
    bench.wait_explained(&first, "attempt 1: sent to node one");
}

#[test]
fn until_a_job_is_done_one_is_told_where_it_is() {
    let slow = SimOptions { slots: 1, ..stuck() };
    let bench = Bench::start(
        "dispatch-where",
        slow,
        "",
        &json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 2}}),
    );
    let ids = bench.send(&[("a", job()), ("a", job()), ("a", job())]);
    let said = |id: &String| bench.explained(id)["explanation"].as_str().unwrap_or_default().to_owned();
    // Which of two goes first, nobody says.
    let sent = wait_for("one that was sent", || {
        let sent = "attempt 1: sent to node one over http://127.0.0.1:";
        ids[..2].iter().find(|id| said(id).contains(sent)).cloned()
    });
    let other = ids.iter().find(|id| **id != sent).unwrap();
    bench.wait_explained(other, "attempt 1: waiting for a free slot since");
    bench.wait_explained(&ids[2], "0 messages of its key come first");
    let early = bench.result(&sent);
    assert_eq!(early.status, 404);
    assert!(early.body.contains("in flight: delivered once"), "{early:?}");
    let at_first = bench.served.get("/api/queues/jobs").json();
    assert_eq!((&at_first["in_flight"], &at_first["pending"]), (&json!(2), &json!(1)));
    let unknown = bench.result("00000001-0000-0002-0000-000000000003");
    assert!(unknown.body.contains("expired, acknowledged by a consumer, or never sent"), "{unknown:?}");
}

#[test]
fn a_job_is_tried_again_after_an_engines_fault() {
    let bench = Bench::start("dispatch-retry", fast(), "", &json!({}));
    bench.node.post("/sim/fault", &json!({"kind": "500-burst", "count": 2}));
    let id = bench.send_one(&job());
    let result = bench.wait_result(&id);
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(3)));
    bench.wait_counted("done", 1);
    assert_eq!(bench.counted("retried"), 2);
}

#[test]
fn between_two_attempts_one_is_told_what_failed_and_when_it_is_tried_again() {
    let bench = Bench::start(
        "dispatch-between",
        fast(),
        "",
        &json!({"backoff_ms_min": 60_000, "backoff_ms_max": 60_000}),
    );
    bench.node.post("/sim/fault", &json!({"kind": "500-burst", "count": 1}));
    let id = bench.send_one(&job());
    // Why it failed is noted before it is given back.
    let said = bench.wait_explained(&id, "delayed: delivered once, next delivery ");
    assert!(said.contains("attempt 1 failed at ") && said.contains("502, "), "{said}");
}

#[test]
fn what_cannot_get_better_fails_for_good_and_is_a_dead_letter() {
    let dead = json!({"dead_letters": {"queue": "dead", "after": 1_000}});
    let bench = Bench::start("dispatch-failed", fast(), "", &dead);
    let stream = super::chat(json!({"stream": true}));
    let unknown = super::chat(json!({"model": "none"}));
    for (body, status, said) in [
        (json!({"messages": []}), 400, "model"),
        (stream, 400, "stored whole"),
        (unknown, 404, "none"),
        (json!("text"), 400, "object"),
    ] {
        let result = bench.wait_result(&bench.send_one(&body));
        assert_eq!((&result["state"], &result["status"]), (&json!("failed"), &json!(status)), "{result:#}");
        assert!(result["body"]["error"]["message"].as_str().unwrap().contains(said), "{result:#}");
    }
    wait_for("dead letters", || (bench.pending("dead") == 4).then_some(()));
    bench.wait_counted("failed", 4);
    assert_eq!(bench.pending("jobs"), 0);
}

#[test]
fn while_its_only_node_is_drained_a_job_waits_uncounted() {
    let dead = json!({"dead_letters": {"queue": "dead", "after": 1}});
    let bench = Bench::start("dispatch-drained", fast(), "", &dead);
    bench.folder.run(&["node", "drain", "one"]).ok();
    let id = bench.send_one(&job());
    let said = wait_for("a reason", || {
        let said = bench.explained(&id)["explanation"].as_str()?.to_owned();
        (said.contains("503, ") || said.contains("waiting for a free slot")).then_some(said)
    });
    bench.folder.run(&["node", "resume", "one"]).ok();
    let result = bench.wait_result(&id);
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(1)), "{said}");
}

#[test]
fn a_job_whose_time_is_over_before_its_turn_is_not_run() {
    let engine = SimOptions { tokens_per_second: 20, ..fast() };
    let one_at_a_time = json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 1}});
    let bench = Bench::start("dispatch-ttl", engine, "", &one_at_a_time);
    let slow = bench.send_one(&super::chat(json!({"max_tokens": 40})));
    bench.wait_explained(&slow, "sent to node one");
    let late = json!({"body": job().to_string(), "ttl_ms": 50});
    let late = bench.served.post("/api/queues/jobs/messages", &late).json()["ids"][0].clone();
    wait_for("its end", || (bench.served.get("/api/queues/jobs").json()["expired"] == 1).then_some(()));
    bench.wait_result(&slow);
    bench.wait_result(&bench.send_one(&job()));
    bench.wait_counted("done", 2);
    assert_eq!(bench.result(late.as_str().unwrap()).status, 404);
}

#[test]
fn a_job_that_fails_too_often_is_a_dead_letter_with_a_result() {
    let dead = json!({"dead_letters": {"queue": "dead", "after": 2}});
    let bench = Bench::start("dispatch-dead", fast(), "", &dead);
    bench.node.post("/sim/fault", &json!({"kind": "malformed-json"}));
    let id = bench.send_one(&job());
    let result = bench.wait_result(&id);
    assert_eq!((&result["state"], &result["attempt"]), (&json!("failed"), &json!(2)));
    assert_eq!(result["status"], 502, "{result:#}");
    wait_for("a dead letter", || (bench.pending("dead") == 1).then_some(()));
}

#[test]
fn after_a_kill_in_the_middle_every_job_has_its_result() {
    let engine = SimOptions { slots: 8, tokens_per_second: 400, ..fast() };
    let settings = json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 16}});
    let mut bench = Bench::start("dispatch-kill", engine, "", &settings);
    let ids = bench.send(&vec![("a", job()); 300]);
    for done in [40, 60] {
        wait_for("progress", || (done <= bench.counted("done")).then_some(()));
        bench = bench.restart("KILL").1;
    }
    for id in &ids {
        let result = bench.wait_result(id);
        assert_eq!(result["status"], 200, "{result:#}");
    }
    wait_for("an empty queue", || {
        let told = bench.served.get("/api/queues/jobs").json();
        (told["pending"] == 0 && told["in_flight"] == 0 && told["delayed"] == 0).then_some(())
    });
}

#[test]
fn a_job_under_way_when_the_server_stops_is_handed_back_uncounted() {
    let bench = Bench::start(
        "dispatch-stop",
        stuck(),
        "[server]\ndrain_secs = 0.05\n",
        &json!({"lease_ms": 43_200_000}),
    );
    let id = bench.send_one(&job());
    bench.wait_explained(&id, "sent to node one");
    let (code, bench) = bench.restart("TERM");
    assert_eq!(code, Some(0));
    // A lease of half a day: only the end can have ended it.
    bench.wait_explained(&id, "attempt 1: sent to node one");
}

#[test]
fn results_expire() {
    let settings = json!({"dispatch": {"target": "/v1/chat/completions", "result_ttl_ms": 1_000}});
    let bench = Bench::start("dispatch-expire", fast(), "", &settings);
    let id = bench.send_one(&job());
    bench.wait_result(&id);
    wait_for("an end of the result", || (bench.result(&id).status == 404).then_some(()));
    assert!(bench.explained(&id)["error"]["message"].as_str().unwrap().contains("never sent"));
}

#[test]
fn of_more_results_than_a_queue_keeps_the_latest_stay() {
    let settings =
        json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 1, "results_max": 2}});
    let bench = Bench::start("dispatch-results-max", fast(), "", &settings);
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(bench.send_one(&job()));
        bench.wait_result(&ids[ids.len() - 1]);
    }
    let kept: Vec<_> = ids.iter().map(|id| bench.result(id).status).collect();
    assert_eq!(kept, [404, 404, 200, 200]);
}

#[test]
fn a_queue_is_dispatched_from_when_it_is_told_until_it_is_told_otherwise() {
    let bench = Bench::start("dispatch-told", fast(), "", &json!({"dispatch": null}));
    let first = bench.send_one(&job());
    assert_eq!(bench.explained(&first)["state"], "waiting");
    let told = bench.put("jobs", &json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 1}}));
    let expected = json!({
        "target": "/v1/chat/completions", "concurrency": 1, "result_ttl_ms": 86_400_000, "results_max": 100_000
    });
    assert_eq!(told["settings"]["dispatch"], expected);
    bench.wait_result(&first);
    bench.put("jobs", &json!({"dispatch": null}));
    bench.served.wait_log("dispatch ends");
    let second = bench.send_one(&job());
    assert_eq!(bench.explained(&second)["state"], "waiting");
    let refused = |dispatch: serde_json::Value| {
        let reply = read(bench.served.send("PUT", "/api/queues/jobs", "", &json!({"dispatch": dispatch})));
        assert_eq!(reply.status, 400, "{reply:?}");
        reply.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let said = refused(json!({"target": "/v1/chat"}));
    assert!(
        said.starts_with("no target \"/v1/chat\"; there is /v1/chat/completions, /v1/completions, "),
        "{said}"
    );
    assert!(refused(json!({"target": "/v1/models"})).contains("no target"));
    let said = refused(json!({"target": "/v1/embeddings", "concurrency": 1_001}));
    assert_eq!(said, "concurrency 1001 is not between 1 and 1000");
    assert!(refused(json!({"targets": "/v1/embeddings"})).contains("unknown field `targets`"));
    assert_eq!(bench.explained(&second)["state"], "waiting", "nothing has changed");
}
