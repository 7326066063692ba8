//! The unmodified openai-python, openai-node and anthropic-python through the gateway.

use std::process::Command;

use evenkeel_sim_node::SimOptions;

use serde_json::json;

use crate::external_client::{self, node, node_packages, python};
use crate::fleet::{Behind, Fleet, of, tenant};
use crate::raw::fast;

#[test]
fn openai_python_does_through_the_gateway_what_it_does_with_an_engine_and_hears_why_it_cannot() {
    let fleet = fleet("python");
    run(python("gateway_client.py").args([base(&fleet), engine(&fleet)]));
    // The last it did was to leave a stream.
    fleet.wait_idle();
}

#[test]
fn openai_python_asks_for_responses_transcripts_and_speech() {
    let fleet = fleet("responses");
    run(python("responses_client.py").args([base(&fleet), engine(&fleet)]));
    fleet.wait_idle();
}

#[test]
fn anthropic_python_does_through_the_gateway_what_it_does_with_anthropic() {
    let fleet = fleet("anthropic");
    let url = format!("http://{}", fleet.address);
    run(python("anthropic_client.py").args([url, engine(&fleet)]));
    fleet.wait_idle();
}

#[test]
fn a_rerank_goes_through_the_gateway_and_is_charged_what_the_engine_says() {
    let fleet = fleet("rerank");
    let body = json!({"model": "sim", "query": "keel", "documents": ["wind", "keel", "fish"], "top_n": 2});
    let answer = fleet.post("acme", "/v1/rerank", &body);
    let told = answer.json();
    assert_eq!((answer.status, &told["results"][0]["index"]), (200, &json!(1)), "{told}");
    let status = fleet.wait_status("charged", |status| of(status, "acme")["served_cost"] != 0);
    assert_eq!(of(&status, "acme")["served_cost"], told["usage"]["total_tokens"], "{status:#}");
}

#[test]
fn openai_node_does_so_too() {
    let fleet = fleet("node");
    let arguments = [base(&fleet), engine(&fleet)];
    run(node("openai_client.cjs").args(arguments).arg(node_packages("openai")));
    fleet.wait_idle();
}

/// A gateway with one engine, and tenants of every kind.
fn fleet(name: &str) -> Fleet {
    let config = [
        tenant("acme", ""),
        tenant("off", "standing = 'disabled'"),
        tenant("narrow", "models = ['other']"),
        tenant("slow", "rpm = 1"),
    ];
    // Too slow to reach the end of a long answer before somebody leaves it.
    let engine = SimOptions { tokens_per_second: 1_000, ..fast() };
    Fleet::start(&format!("clients-{name}"), &config.concat(), vec![("one", Behind::Sim(engine))])
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
