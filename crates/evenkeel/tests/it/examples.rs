//! The example configs of `examples/llm`: each is started, and serves, with its nodes replaced by one at hand.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::raw::{Node, chat, fast, read};
use crate::server_process::Served;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/llm");

/// Every example, by its file name.
fn examples() -> Vec<(String, String)> {
    let files = fs::read_dir(Path::new(EXAMPLES)).unwrap().map(|file| file.unwrap());
    let named =
        files.map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap()));
    named.collect()
}

/// The same config with every node where `node` is.
fn pointed_at(example: &str, node: &Node) -> String {
    let mut parts = example.split("\"http://");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (_elsewhere, rest) = part.split_once('"').unwrap();
        format!("{text}\"http://{}\"{rest}", node.address())
    })
}

#[test]
fn every_example_starts_and_serves() {
    let node = Node::start(fast());
    let examples = examples();
    assert!(4 <= examples.len(), "{examples:?}");
    for (name, text) in examples {
        let folder = Folder::new(&format!("example-{name}"));
        folder.write("evenkeel.toml", &pointed_at(&text, &node));
        let served = Served::start(&folder, &[]);
        // Models are asked for; a node is in use once it has told them.
        let key = if name == "tenants.toml" { "authorization: Bearer ek-example-research\r\n" } else { "" };
        let models = || read(served.send("GET", "/v1/models", key, &Value::Null));
        while !models().body.contains("\"sim\"") {
            assert_eq!(models().status, 200, "{name}");
            std::thread::yield_now();
        }
        let reply = read(served.send("POST", "/v1/chat/completions", key, &chat(json!({}))));
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
    }
}

#[test]
fn the_tenants_of_the_example_are_told_apart_by_their_keys() {
    let folder = Folder::new("example-tenants");
    let node = Node::start(fast());
    let text = fs::read_to_string(Path::new(EXAMPLES).join("tenants.toml")).unwrap();
    folder.write("evenkeel.toml", &pointed_at(&text, &node));
    let served = Served::start(&folder, &[]);
    let status = |key: &str| {
        let key = format!("authorization: Bearer {key}\r\n");
        read(served.send("POST", "/v1/chat/completions", &key, &chat(json!({})))).status
    };
    assert_eq!(status("ek-example-batch"), 403, "it may use one model, and this is another");
    assert_eq!(status("ek-example-nobody"), 401);
}
