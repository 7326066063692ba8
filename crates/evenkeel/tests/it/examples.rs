//! The example configs of `examples/llm`: each starts and serves, with its nodes replaced by a simulated one.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{TestNode, chat, fast, read};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/llm");

/// Returns the file name and text of every example.
fn examples() -> Vec<(String, String)> {
    let files = fs::read_dir(Path::new(EXAMPLES)).unwrap().map(|file| file.unwrap());
    let named =
        files.map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap()));
    named.collect()
}

/// Replaces every node URL by that of `node`.
fn with_node(example: &str, node: &TestNode) -> String {
    let mut parts = example.split("\"http://");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (_url, rest) = part.split_once('"').unwrap();
        format!("{text}\"http://{}\"{rest}", node.address())
    })
}

#[test]
fn every_example_starts_and_serves() {
    let node = TestNode::start(fast());
    let examples = examples();
    assert!(examples.len() >= 4, "{examples:?}");
    for (name, text) in examples {
        let dir = TestDir::new(&format!("example-{name}"));
        dir.write("evenkeel.toml", &with_node(&text, &node));
        let server = ServerProcess::start(&dir, &[]);
        // A node gets requests only once its models have been discovered.
        let key = if name == "tenants.toml" { "authorization: Bearer ek-example-research\r\n" } else { "" };
        let models = || read(server.send("GET", "/v1/models", key, &Value::Null));
        while !models().body.contains("\"sim\"") {
            assert_eq!(models().status, 200, "{name}");
            std::thread::yield_now();
        }
        let reply = read(server.send("POST", "/v1/chat/completions", key, &chat(json!({}))));
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
    }
}

#[test]
fn the_tenants_of_the_example_have_separate_keys() {
    let dir = TestDir::new("example-tenants");
    let node = TestNode::start(fast());
    let text = fs::read_to_string(Path::new(EXAMPLES).join("tenants.toml")).unwrap();
    dir.write("evenkeel.toml", &with_node(&text, &node));
    let server = ServerProcess::start(&dir, &[]);
    let status = |key: &str| {
        let key = format!("authorization: Bearer {key}\r\n");
        read(server.send("POST", "/v1/chat/completions", &key, &chat(json!({})))).status
    };
    assert_eq!(status("ek-example-batch"), 403, "the tenant may use only one model, and this is another one");
    assert_eq!(status("ek-example-unknown"), 401);
}
