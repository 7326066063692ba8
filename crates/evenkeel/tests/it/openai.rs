//! The unmodified openai-python client against a simulated node.

use evenkeel_sim_node::testing::{TestNode, fast};
use std::path::Path;
use std::process::Command;

#[test]
fn openai_python_chats_streams_calls_tools_and_embeds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/python/bin/python");
    assert!(python.exists(), "openai-python is not installed in target/python; run `cargo xtask test`");
    let node = TestNode::start(fast());
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/openai_client.py"))
        .arg(format!("http://{}/v1", node.address()))
        .env("OPENAI_API_KEY", "unused")
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && output_text.trim_end().ends_with("all as expected"),
        "{output_text}\n{errors}"
    );
    node.wait_for(0, 0);
}
