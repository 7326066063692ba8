//! The unmodified openai-python against a simulated engine.

use crate::raw::{Node, fast};
use std::path::Path;
use std::process::Command;

#[test]
fn openai_python_chats_streams_calls_tools_and_embeds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/python/bin/python");
    assert!(
        python.exists(),
        "openai-python is not installed; `cargo xtask test` does it, into target/python"
    );
    let node = Node::start(fast());
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/openai_client.py"))
        .arg(format!("http://{}/v1", node.address()))
        .env("OPENAI_API_KEY", "unused")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim_end().ends_with("all as expected"), "{said}\n{complained}");
    node.wait_for(0, 0);
}
