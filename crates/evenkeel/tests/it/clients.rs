//! The unmodified openai-python, openai-node and anthropic-python through the gateway.

use std::process::Command;

use evenkeel_sim_node::SimOptions;

use serde_json::json;

use crate::external_client::{self, node, node_packages, python};
use crate::fleet::{Backend, Fleet, tenant, tenant_status};
use evenkeel_sim_node::testing::fast;

#[test]
fn openai_python_works_through_the_gateway_and_gets_readable_errors() {
    let fleet = fleet("python");
    run(python("gateway_client.py").args([base(&fleet), engine(&fleet)]));
    // The script ends by disconnecting in the middle of a stream.
    fleet.wait_idle();
}

#[test]
fn openai_python_requests_responses_transcripts_and_speech() {
    let fleet = fleet("responses");
    run(python("responses_client.py").args([base(&fleet), engine(&fleet)]));
    fleet.wait_idle();
}

#[test]
fn anthropic_python_works_through_the_gateway() {
    let fleet = fleet("anthropic");
    let url = format!("http://{}", fleet.address);
    run(python("anthropic_client.py").args([url, engine(&fleet)]));
    fleet.wait_idle();
}

#[test]
fn a_rerank_request_is_passed_through_and_charged_the_usage_that_the_engine_reports() {
    let fleet = fleet("rerank");
    let body = json!({"model": "sim", "query": "keel", "documents": ["wind", "keel", "fish"], "top_n": 2});
    let response = fleet.post("acme", "/v1/rerank", &body);
    let reply = response.json();
    assert_eq!((response.status, &reply["results"][0]["index"]), (200, &json!(1)), "{reply}");
    let status = fleet.wait_status("charged", |status| tenant_status(status, "acme")["served_cost"] != 0);
    assert_eq!(tenant_status(&status, "acme")["served_cost"], reply["usage"]["total_tokens"], "{status:#}");
}

#[test]
fn openai_node_works_through_the_gateway() {
    let fleet = fleet("node");
    let arguments = [base(&fleet), engine(&fleet)];
    run(node("openai_client.cjs").args(arguments).arg(node_packages("openai")));
    fleet.wait_idle();
}

/// Starts a gateway with one engine and four tenants: an active, a disabled, a restricted and a rate-limited one.
fn fleet(name: &str) -> Fleet {
    let config = [
        tenant("acme", ""),
        tenant("off", "state = 'disabled'"),
        tenant("narrow", "models = ['other']"),
        tenant("slow", "rpm = 1"),
    ];
    // Slow enough that a client disconnects before a long response is complete.
    let engine = SimOptions { tokens_per_second: 1_000, ..fast() };
    Fleet::start(&format!("clients-{name}"), &config.concat(), vec![("one", Backend::Sim(engine))])
}

fn base(fleet: &Fleet) -> String {
    format!("http://{}/v1", fleet.address)
}

fn engine(fleet: &Fleet) -> String {
    format!("http://{}", fleet.sims[0].address())
}

#[track_caller]
fn run(command: &mut Command) {
    external_client::run(command.env("OPENAI_API_KEY", "ek-acme"));
}
