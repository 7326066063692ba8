//! Names of models: slashes, aliases and fallbacks, with unmodified clients and simulated engines.

use evenkeel_sim_node::testing::{RawResponse, TestNode, chat, fast, open, read, read_until, stuck};
use evenkeel_sim_node::{SimNode, SimOptions};
use serde_json::{Value, json};

use crate::external_client::{self, node, node_packages, python};
use crate::fleet::{Backend, CHAT, Fleet, tenant};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

#[test]
fn openai_python_uses_names_with_a_slash_and_aliases() {
    let fleet = slash_fleet("models-python");
    let base = format!("http://{}/v1", fleet.address);
    external_client::run(python("models_client.py").arg(base).env("OPENAI_API_KEY", "ek-acme"));
    fleet.wait_idle();
}

#[test]
fn openai_node_uses_names_with_a_slash_and_aliases() {
    let fleet = slash_fleet("models-node");
    let base = format!("http://{}/v1", fleet.address);
    external_client::run(node("models_client.cjs").arg(base).arg(node_packages("openai")));
    fleet.wait_idle();
}

#[test]
fn a_slash_in_a_name_may_be_percent_encoded_or_not() {
    let fleet = slash_fleet("models-slash");
    let get = |name: &str| {
        let head = "host: localhost\r\nconnection: close\r\nauthorization: Bearer ek-acme\r\n\r\n";
        read(open(fleet.address, &format!("GET /v1/models/{name} HTTP/1.1\r\n{head}")))
    };
    for name in ["org/name", "org%2Fname", "org%2fname", "%6frg/name"] {
        assert_eq!(get(name).json()["id"], "org/name", "{name}");
    }
    for name in ["org%2Fother", "org%252Fname", "org%2", "org%ffname", ""] {
        let reply = get(name);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (404, &json!("model_not_found")),
            "{name}"
        );
    }
}

#[test]
fn a_model_whose_node_fails_is_served_by_the_first_fallback_that_the_tenant_may_use() {
    let fleet = fallback_fleet("fallback-outage", "[llm.retry]\nretries_min = 100\n", fast());
    set_fault(&fleet.sims[0], "reset");
    assert_eq!(served_by(&fleet.post("acme", CHAT, &chat(json!({"model": "gpt"})))), "second");
    assert_eq!(served_by(&fleet.post("acme", CHAT, &chat(json!({"model": "first"})))), "second");
    assert_eq!(served_by(&fleet.post("third", CHAT, &chat(json!({"model": "gpt"})))), "third");
    let refused = fleet.post("narrow", CHAT, &chat(json!({"model": "gpt"})));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (502, &json!("bad_upstream")),
        "{refused:?}"
    );
    set_fault(&fleet.sims[0], "500-burst");
    let streamed = fleet.post("acme", CHAT, &chat(json!({"model": "gpt", "stream": true})));
    assert_eq!(header(&streamed, "x-evenkeel-model").as_deref(), Some("second"), "{streamed:?}");
    fleet.wait_idle();
    let metrics = fleet.get("/metrics").body;
    assert!(metrics.contains("evenkeel_fallbacks_total{pool=\"llm\",reason=\"failed\"} "), "{metrics}");
}

#[test]
fn a_fallback_after_a_failed_attempt_spends_a_retry() {
    let config = "[llm.retry]\nbudget = 0.0\nretries_min = 1\n";
    let fleet = fallback_fleet("fallback-budget", config, fast());
    set_fault(&fleet.sims[0], "reset");
    assert_eq!(served_by(&fleet.post("acme", CHAT, &chat(json!({"model": "gpt"})))), "second");
    let failed = fleet.post("acme", CHAT, &chat(json!({"model": "gpt"})));
    assert_eq!((failed.status, &failed.json()["error"]["code"]), (502, &json!("bad_upstream")), "{failed:?}");
    fleet.wait_idle();
}

#[test]
fn a_request_falls_back_at_once_while_the_breaker_is_open_and_returns_when_the_node_is_well() {
    let breaker = "[llm.breaker]\nfailures_max = 1\nbackoff_min_secs = 0.5\nbackoff_max_secs = 0.5\n";
    let fleet = fallback_fleet("fallback-breaker", breaker, fast());
    set_fault(&fleet.sims[0], "reset");
    let by = |fleet: &Fleet| served_by(&fleet.post("acme", CHAT, &chat(json!({"model": "gpt"}))));
    assert_eq!(by(&fleet), "second");
    fleet.wait_status("open", |status| status["nodes"][0]["breaker"] != "closed");
    // More requests than the retry budget allows: none of them is sent to the node that fails.
    for _ in 0..20 {
        assert_eq!(by(&fleet), "second");
    }
    set_fault(&fleet.sims[0], "");
    while by(&fleet) != "first" {}
    fleet.wait_idle();
}

#[test]
fn a_response_that_has_begun_does_not_fall_back() {
    let fleet = fallback_fleet("fallback-late", "", fast());
    set_fault(&fleet.sims[0], "mid-stream-cut");
    let reply = fleet.post("acme", CHAT, &chat(json!({"model": "gpt", "stream": true})));
    assert_eq!(header(&reply, "x-evenkeel-model").as_deref(), Some("first"), "{reply:?}");
    assert!(reply.body.contains("bad_upstream") && !reply.body.contains("[DONE]"), "{reply:?}");
    fleet.wait_idle();
}

#[test]
fn a_full_queue_falls_back_only_if_configured() {
    let config = "[load_manager]\nmax_waiting = 1\n";
    let fleet = fallback_fleet("fallback-capacity", config, SimOptions { slots: 1, ..stuck() });
    let body = |model: &str| chat(json!({"model": model}));
    let running = fleet.send("acme", CHAT, &body("first"));
    fleet.wait_status("running", |status| status["in_flight"] == 1);
    let waiting = fleet.send("acme", CHAT, &body("first"));
    fleet.wait_status("waiting", |status| status["waiting"] == 1);
    let full = fleet.post("acme", CHAT, &body("first"));
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("queue_full")), "{full:?}");
    assert_eq!(served_by(&fleet.post("acme", CHAT, &body("eager"))), "second");
    drop((running, waiting));
    fleet.wait_idle();
}

#[test]
fn a_request_that_falls_back_is_explained_and_a_reload_changes_the_aliases() {
    let dir = TestDir::new("fallback-explain");
    let nodes = [SimOptions { models: vec!["first".to_owned()], ..fast() }, second()].map(TestNode::start);
    let config = nodes.iter().zip(["first", "second"]).map(|(node, model)| {
        format!("[[llm.nodes]]\nname = '{model}'\nurl = 'http://{}'\nmodels = ['{model}']\n", node.address())
    });
    let names = |alias: &str| {
        format!("[[llm.models]]\nname = '{alias}'\nalias_of = 'first'\nfallbacks = ['second']\n")
    };
    let config: String = config.collect();
    dir.write("evenkeel.toml", &format!("{config}{}", names("gpt")));
    let server = ServerProcess::start(&dir, &[]);
    // The node's connections are refused from here on.
    let [first, _second] = nodes;
    first.shutdown();
    let body = chat(json!({"model": "gpt"}));
    let reply = read(server.send("POST", CHAT, "x-request-id: mine\r\n", &body));
    assert_eq!(served_by(&reply), "second");
    let text = || dir.run(&["explain", "mine"]).ok();
    while !text().contains("finished on node \"second\"") {}
    let shown = text();
    for part in [
        "accepted for \"first\"",
        "falls back to \"second\": no node can serve the model before it",
        "accepted for \"second\"",
        "dispatched to node \"second\"",
    ] {
        assert!(shown.contains(part), "no {part:?}: {shown}");
    }
    dir.write("evenkeel.toml", &format!("{config}{}", names("chat")));
    server.signal("HUP");
    server.wait_log("reloaded");
    assert_eq!(server.post(CHAT, &body).status, 404, "the alias is gone");
    assert_eq!(served_by(&server.post(CHAT, &chat(json!({"model": "chat"})))), "second");
    let shown = server.get("/api/config").body;
    assert!(shown.contains("\"chat\"") && !shown.contains("\"gpt\""), "{shown}");
}

/// Starts an engine with `org/name` and `sim`, of which `gpt` is an alias of the first.
fn slash_fleet(name: &str) -> Fleet {
    let models = vec!["org/name".to_owned(), "sim".to_owned()];
    let alias = "[[llm.models]]\nname = 'gpt'\nalias_of = 'org/name'\n";
    let config = [alias.to_owned(), tenant("acme", ""), tenant("narrow", "models = ['gpt']")].concat();
    Fleet::start(name, &config, vec![("one", Backend::Sim(SimOptions { models, ..fast() }))])
}

/// Starts an engine for each of the models `first`, `second` and `third`, which are the models of `gpt` in this order.
///
/// `eager` is `gpt` with a fallback for lack of capacity, too.
fn fallback_fleet(name: &str, config: &str, first: SimOptions) -> Fleet {
    let models = |name: &str, more: &str| {
        format!("[[llm.models]]\nname = '{name}'\nfallbacks = ['second', 'third']\n{more}\n")
    };
    let config = [
        config.to_owned(),
        "[[llm.models]]\nname = 'gpt'\nalias_of = 'first'\n".to_owned(),
        models("first", ""),
        models("eager", "alias_of = 'first'\nfallback_on = 'capacity'"),
        tenant("acme", ""),
        tenant("third", "models = ['first', 'third']"),
        tenant("narrow", "models = ['gpt']"),
    ];
    let sim = |model: &str, options| SimOptions { models: vec![model.to_owned()], ..options };
    let nodes = vec![
        ("one", Backend::Sim(sim("first", first))),
        ("two", Backend::Sim(second())),
        ("three", Backend::Sim(sim("third", fast()))),
    ];
    Fleet::start(name, &config.concat(), nodes)
}

fn second() -> SimOptions {
    SimOptions { models: vec!["second".to_owned()], ..fast() }
}

/// Returns the model that served a chat, after checking that header and body agree.
#[track_caller]
fn served_by(reply: &RawResponse) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    let model = reply.json()["model"].as_str().unwrap().to_owned();
    let named = header(reply, "x-evenkeel-model");
    assert_eq!(named.as_deref(), Some(model.as_str()), "{reply:?}");
    model
}

fn header(reply: &RawResponse, name: &str) -> Option<String> {
    let prefix = format!("{name}: ");
    reply.head.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
}

/// Sets the fault of an engine; an empty kind ends it.
fn set_fault(sim: &SimNode, kind: &str) {
    let kind = if kind.is_empty() { Value::Null } else { json!(kind) };
    let body = json!({"kind": kind}).to_string();
    let length = body.len();
    let head = format!("POST /sim/fault HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    read_until(&mut open(sim.address(), &format!("{head}{body}")), "200 OK");
}
