//! The unmodified openai-python, openai-node and anthropic-python through the gateway.

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_sim_node::SimOptions;

use serde_json::json;

use crate::fleet::{Backend, Fleet, tenant, tenant_status};
use evenkeel_sim_node::testing::fast;

#[test]
fn openai_python_does_through_the_gateway_what_it_does_with_an_engine_and_hears_why_it_cannot() {
    let fleet = fleet("python");
    run(python().arg(script("gateway_client.py")).args([base(&fleet), engine(&fleet)]));
    // The last it did was to leave a stream.
    fleet.wait_idle();
}

#[test]
fn openai_python_asks_for_responses_transcripts_and_speech() {
    let fleet = fleet("responses");
    run(python().arg(script("responses_client.py")).args([base(&fleet), engine(&fleet)]));
    fleet.wait_idle();
}

#[test]
fn anthropic_python_does_through_the_gateway_what_it_does_with_anthropic() {
    let fleet = fleet("anthropic");
    let url = format!("http://{}", fleet.address);
    run(python().arg(script("anthropic_client.py")).args([url, engine(&fleet)]));
    fleet.wait_idle();
}

#[test]
fn a_rerank_goes_through_the_gateway_and_is_charged_what_the_engine_says() {
    let fleet = fleet("rerank");
    let body = json!({"model": "sim", "query": "keel", "documents": ["wind", "keel", "fish"], "top_n": 2});
    let answer = fleet.post("acme", "/v1/rerank", &body);
    let told = answer.json();
    assert_eq!((answer.status, &told["results"][0]["index"]), (200, &json!(1)), "{told}");
    let status = fleet.wait_status("charged", |status| tenant_status(status, "acme")["served_cost"] != 0);
    assert_eq!(tenant_status(&status, "acme")["served_cost"], told["usage"]["total_tokens"], "{status:#}");
}

#[test]
fn openai_node_does_so_too() {
    let fleet = fleet("node");
    let installed = root().join("target/node");
    assert!(
        installed.join("node_modules/openai").exists(),
        "openai-node is not installed; `cargo xtask test` does it, into target/node"
    );
    let mut node = Command::new("node");
    run(node.arg(script("openai_client.cjs")).args([base(&fleet), engine(&fleet)]).arg(installed));
    fleet.wait_idle();
}

fn python() -> Command {
    let python = root().join("target/python/bin/python");
    assert!(
        python.exists(),
        "openai-python and anthropic are not installed; `cargo xtask test` does it, into target/python"
    );
    Command::new(python)
}

/// A gateway with one engine, and tenants of every kind.
fn fleet(name: &str) -> Fleet {
    let config = [
        tenant("acme", ""),
        tenant("off", "state = 'disabled'"),
        tenant("narrow", "models = ['other']"),
        tenant("slow", "rpm = 1"),
    ];
    // Too slow to reach the end of a long answer before somebody leaves it.
    let engine = SimOptions { tokens_per_second: 1_000, ..fast() };
    Fleet::start(&format!("clients-{name}"), &config.concat(), vec![("one", Backend::Sim(engine))])
}

fn base(fleet: &Fleet) -> String {
    format!("http://{}/v1", fleet.address)
}

fn engine(fleet: &Fleet) -> String {
    format!("http://{}", fleet.sims[0].address())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(name)
}

#[track_caller]
fn run(command: &mut Command) {
    // A proxy between this process and itself would be the one that is tested.
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").env("OPENAI_API_KEY", "ek-acme");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim_end().ends_with("all as expected"), "{said}\n{complained}");
}
