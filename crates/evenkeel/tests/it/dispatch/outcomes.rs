//! Outcomes of dispatched jobs: done, retried, failed, rerun after a crash.

use std::net::TcpListener;

use evenkeel_sim_node::SimOptions;
use serde_json::json;

use super::{DispatchTest, job, wait_for};
use evenkeel_sim_node::testing::{fast, read, stuck};

#[test]
fn a_job_runs_and_its_response_is_stored() {
    let test = DispatchTest::start("dispatch-done", fast(), "", &json!({}));
    let id = test.send_one(&job());
    let result = test.wait_result(&id);
    assert_eq!(
        (&result["state"], &result["status"], &result["attempt"]),
        (&json!("done"), &json!(200), &json!(1))
    );
    assert_eq!(result["body"]["object"], "chat.completion", "{result:#}");
    assert_eq!(result["body"]["usage"]["completion_tokens"], 8);
    let day = result["expires_at_ms"].as_u64().unwrap() - result["finished_at_ms"].as_u64().unwrap();
    assert!((86_400_000..86_460_000).contains(&day), "{day}");
    let text = test.dir.run(&["queue", "explain", "jobs", &id]).ok();
    assert!(text.starts_with("done with status 200 at "), "{text}");
    test.wait_counted("done", 1);
    assert_eq!(test.pending("jobs"), 0);
}

#[test]
fn a_job_under_an_alias_is_run_by_its_model() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = format!(
        "[[llm.models]]\nname = 'gpt'\nalias_of = 'gone'\nfallbacks = ['sim']\n\
         [[llm.nodes]]\nname = 'down'\nurl = 'http://{closed}'\nmodels = ['gone']\n"
    );
    let test = DispatchTest::start("dispatch-alias", fast(), &config, &json!({}));
    let result = test.wait_result(&test.send_one(&super::chat(json!({"model": "gpt"}))));
    assert_eq!((&result["state"], &result["body"]["model"]), (&json!("done"), &json!("sim")), "{result:#}");
}

#[test]
fn the_example_in_the_documentation_works() {
    let test = DispatchTest::start("dispatch-page", fast(), "", &json!({"dispatch": null}));
    let page = include_str!("../../../../../docs/queue/dispatch.md");
    let example = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_evenkeel")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-e", "-c", example]).current_dir(test.dir.file("")).env("PATH", path);
    let output = crate::test_dir::CommandOutput::new(shell.output().unwrap()).ok();
    assert!(output.contains("\"state\": \"done\"") && output.contains("\"chat.completion\""), "{output}");
}

#[test]
fn dispatch_can_be_turned_off_and_on_again_while_a_job_is_running() {
    let test = DispatchTest::start("dispatch-again", SimOptions { slots: 2, ..stuck() }, "", &json!({}));
    let first = test.send_one(&job());
    test.wait_explanation(&first, "sent to node one");
    test.put("jobs", &json!({"dispatch": null}));
    let second = test.send_one(&job());
    test.put("jobs", &json!({"dispatch": {"target": "/v1/chat/completions"}}));
    test.wait_explanation(&second, "sent to node one");
    test.wait_explanation(&first, "attempt 1: sent to node one");
}

#[test]
fn an_unfinished_job_has_a_status() {
    let slow = SimOptions { slots: 1, ..stuck() };
    let test = DispatchTest::start(
        "dispatch-where",
        slow,
        "",
        &json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 2}}),
    );
    let ids = test.send(&[("a", job()), ("a", job()), ("a", job())]);
    let explanation = |id: &String| test.explain(id)["explanation"].as_str().unwrap_or_default().to_owned();
    // Either of the first two may be sent first.
    let sent = wait_for("a job that was sent", || {
        let sent = "attempt 1: sent to node one over http://127.0.0.1:";
        ids[..2].iter().find(|id| explanation(id).contains(sent)).cloned()
    });
    let other = ids.iter().find(|id| **id != sent).unwrap();
    test.wait_explanation(other, "attempt 1: waiting for a free slot since");
    test.wait_explanation(&ids[2], "0 messages of its key come first");
    let early = test.result(&sent);
    assert_eq!(early.status, 404);
    assert!(early.body.contains("yet: in_flight, in flight: delivered once"), "{early:?}");
    let totals = test.server.get("/api/queues/jobs").json();
    assert_eq!((&totals["in_flight"], &totals["pending"]), (&json!(2), &json!(1)));
    let unknown = test.result("00000001-0000-0002-0000-000000000003");
    assert!(unknown.body.contains("expired, acknowledged by a consumer, or never sent"), "{unknown:?}");
}

#[test]
fn a_job_is_retried_after_a_fault_of_the_engine() {
    let test = DispatchTest::start("dispatch-retry", fast(), "", &json!({}));
    test.node.post("/sim/fault", &json!({"kind": "500-burst", "count": 2}));
    let id = test.send_one(&job());
    let result = test.wait_result(&id);
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(3)));
    test.wait_counted("done", 1);
    assert_eq!(test.counted("retried"), 2);
}

#[test]
fn the_status_of_a_job_between_attempts_names_the_error_and_the_next_attempt() {
    let test = DispatchTest::start(
        "dispatch-between",
        fast(),
        "",
        &json!({"backoff_ms_min": 60_000, "backoff_ms_max": 60_000}),
    );
    test.node.post("/sim/fault", &json!({"kind": "500-burst", "count": 1}));
    let id = test.send_one(&job());
    // The error is recorded before the job is nacked.
    let text = test.wait_explanation(&id, "delayed: delivered once, next delivery in ");
    assert!(text.contains("attempt 1 failed at ") && text.contains("502, "), "{text}");
}

#[test]
fn a_permanent_failure_is_dead_lettered_with_a_result() {
    let dead = json!({"dead_letters": {"queue": "dead", "after": 1_000}});
    let test = DispatchTest::start("dispatch-failed", fast(), "", &dead);
    let stream = super::chat(json!({"stream": true}));
    let unknown = super::chat(json!({"model": "none"}));
    for (body, status, message) in [
        (json!({"messages": []}), 400, "model"),
        (stream, 400, "stored whole"),
        (unknown, 404, "none"),
        (json!("text"), 400, "object"),
    ] {
        let result = test.wait_result(&test.send_one(&body));
        assert_eq!((&result["state"], &result["status"]), (&json!("failed"), &json!(status)), "{result:#}");
        assert!(result["body"]["error"]["message"].as_str().unwrap().contains(message), "{result:#}");
    }
    wait_for("dead letters", || (test.pending("dead") == 4).then_some(()));
    test.wait_counted("failed", 4);
    assert_eq!(test.pending("jobs"), 0);
}

#[test]
fn a_job_whose_only_node_is_drained_waits_and_uses_no_attempts() {
    let dead = json!({"dead_letters": {"queue": "dead", "after": 1}});
    let test = DispatchTest::start("dispatch-drained", fast(), "", &dead);
    test.dir.run(&["node", "drain", "one"]).ok();
    let id = test.send_one(&job());
    let text = wait_for("a reason", || {
        let text = test.explain(&id)["explanation"].as_str()?.to_owned();
        (text.contains("503, ") || text.contains("waiting for a free slot")).then_some(text)
    });
    test.dir.run(&["node", "resume", "one"]).ok();
    let result = test.wait_result(&id);
    assert_eq!((&result["status"], &result["attempt"]), (&json!(200), &json!(1)), "{text}");
}

#[test]
fn a_job_that_expires_in_the_queue_is_not_run() {
    let engine = SimOptions { tokens_per_second: 20, ..fast() };
    let one_at_a_time = json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 1}});
    let test = DispatchTest::start("dispatch-ttl", engine, "", &one_at_a_time);
    let slow = test.send_one(&super::chat(json!({"max_tokens": 40})));
    test.wait_explanation(&slow, "sent to node one");
    let late = json!({"body": job().to_string(), "ttl_ms": 50});
    let late = test.server.post("/api/queues/jobs/messages", &late).json()["ids"][0].clone();
    wait_for("its expiry", || (test.server.get("/api/queues/jobs").json()["expired"] == 1).then_some(()));
    test.wait_result(&slow);
    test.wait_result(&test.send_one(&job()));
    test.wait_counted("done", 2);
    assert_eq!(test.result(late.as_str().unwrap()).status, 404);
}

#[test]
fn a_job_out_of_attempts_is_dead_lettered_with_a_result() {
    let dead = json!({"dead_letters": {"queue": "dead", "after": 2}});
    let test = DispatchTest::start("dispatch-dead", fast(), "", &dead);
    test.node.post("/sim/fault", &json!({"kind": "malformed-json"}));
    let id = test.send_one(&job());
    let result = test.wait_result(&id);
    assert_eq!((&result["state"], &result["attempt"]), (&json!("failed"), &json!(2)));
    assert_eq!(result["status"], 502, "{result:#}");
    wait_for("a dead letter", || (test.pending("dead") == 1).then_some(()));
}

#[test]
fn after_crashes_every_job_has_its_result() {
    let engine = SimOptions { slots: 8, tokens_per_second: 400, ..fast() };
    let settings = json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 16}});
    let mut test = DispatchTest::start("dispatch-kill", engine, "", &settings);
    let ids = test.send(&vec![("a", job()); 300]);
    for done in [40, 60] {
        wait_for("progress", || (test.counted("done") >= done).then_some(()));
        test = test.restart("KILL").1;
    }
    for id in &ids {
        let result = test.wait_result(id);
        assert_eq!(result["status"], 200, "{result:#}");
    }
    wait_for("an empty queue", || {
        let totals = test.server.get("/api/queues/jobs").json();
        (totals["pending"] == 0 && totals["in_flight"] == 0 && totals["delayed"] == 0).then_some(())
    });
}

#[test]
fn a_job_running_at_shutdown_is_released_and_uses_no_attempt() {
    let test = DispatchTest::start(
        "dispatch-stop",
        stuck(),
        "[server]\ndrain_secs = 0.05\n",
        &json!({"lease_ms": 43_200_000}),
    );
    let id = test.send_one(&job());
    test.wait_explanation(&id, "sent to node one");
    let (code, test) = test.restart("TERM");
    assert_eq!(code, Some(0));
    // The lease lasts half a day, so only the shutdown can have released the job.
    test.wait_explanation(&id, "attempt 1: sent to node one");
}

#[test]
fn results_expire() {
    let settings = json!({"dispatch": {"target": "/v1/chat/completions", "result_ttl_ms": 1_000}});
    let test = DispatchTest::start("dispatch-expire", fast(), "", &settings);
    let id = test.send_one(&job());
    test.wait_result(&id);
    wait_for("expiry of the result", || (test.result(&id).status == 404).then_some(()));
    assert!(test.explain(&id)["error"]["message"].as_str().unwrap().contains("never sent"));
}

#[test]
fn only_the_latest_results_max_results_are_kept() {
    let settings =
        json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 1, "results_max": 2}});
    let test = DispatchTest::start("dispatch-results-max", fast(), "", &settings);
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(test.send_one(&job()));
        test.wait_result(&ids[ids.len() - 1]);
    }
    let statuses: Vec<_> = ids.iter().map(|id| test.result(id).status).collect();
    assert_eq!(statuses, [404, 404, 200, 200]);
}

#[test]
fn dispatch_can_be_turned_on_and_off() {
    let test = DispatchTest::start("dispatch-switch", fast(), "", &json!({"dispatch": null}));
    let first = test.send_one(&job());
    assert_eq!(test.explain(&first)["state"], "waiting");
    let response =
        test.put("jobs", &json!({"dispatch": {"target": "/v1/chat/completions", "concurrency": 1}}));
    let expected = json!({
        "target": "/v1/chat/completions", "concurrency": 1, "result_ttl_ms": 86_400_000, "results_max": 100_000
    });
    assert_eq!(response["settings"]["dispatch"], expected);
    test.wait_result(&first);
    test.put("jobs", &json!({"dispatch": null}));
    test.server.wait_log("dispatch stopped");
    let second = test.send_one(&job());
    assert_eq!(test.explain(&second)["state"], "waiting");
    let put_error = |dispatch: serde_json::Value| {
        let reply = read(test.server.send("PUT", "/api/queues/jobs", "", &json!({"dispatch": dispatch})));
        assert_eq!(reply.status, 400, "{reply:?}");
        reply.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let error = put_error(json!({"target": "/v1/chat"}));
    assert!(
        error.starts_with("unknown target \"/v1/chat\"; use one of /v1/chat/completions, /v1/completions, "),
        "{error}"
    );
    assert!(put_error(json!({"target": "/v1/models"})).contains("unknown target"));
    let error = put_error(json!({"target": "/v1/embeddings", "concurrency": 1_001}));
    assert_eq!(error, "concurrency 1001 is not between 1 and 1000");
    assert!(put_error(json!({"targets": "/v1/embeddings"})).contains("unknown field `targets`"));
    assert_eq!(test.explain(&second)["state"], "waiting", "nothing has changed");
}

#[test]
fn a_job_of_a_tenant_over_its_budget_is_deferred_without_an_attempt() {
    let dead = json!({"dead_letters": {"queue": "dead", "after": 1}});
    let config = crate::fleet::tenant("acme", "tokens_per_month = 1");
    let test = DispatchTest::start("dispatch-budget", fast(), &config, &dead);
    let id = test.send_as("acme", "acme", 1).remove(0);
    test.wait_counted("deferred", 1);
    let text = test.wait_explanation(&id, "first delivery in ");
    assert!(text.contains("429, budget tokens_per_month reached: 0 tokens of 1 tokens used"), "{text}");
    assert_eq!((test.pending("dead"), test.counted("failed"), test.counted("retried")), (json!(0), 0, 0));
}
