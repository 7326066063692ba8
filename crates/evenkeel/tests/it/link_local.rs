//! URLs of link-local and cloud metadata addresses are refused, however they are spelled or resolved.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

/// Spellings of such addresses that the system's resolver accepts.
const LITERALS: [&str; 7] = [
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "[::ffff:169.254.169.254]",
    "[fe80::1]",
    "100.100.100.200",
];

/// Configurations with a URL of this host.
fn configs(host: &str) -> [String; 3] {
    [
        format!("[[llm.nodes]]\nname = 'imds'\nurl = 'http://{host}:8000'\n"),
        format!("[telemetry]\notlp_endpoint = 'http://{host}:4318'\n"),
        format!(
            "[cluster]\nsecret = '0123456789abcdef'\n[[cluster.peers]]\nname = 'b'\nurl = 'http://{host}:7070'\n"
        ),
    ]
}

#[test]
fn check_rejects_a_literal_in_every_setting_unless_it_is_allowed() {
    let dir = TestDir::new("link-local-check");
    for host in LITERALS {
        for config in configs(host) {
            dir.write("a.toml", &config);
            let error = dir.run(&["check", "a.toml"]).failed();
            assert!(
                error.contains("a.toml:") && error.contains("allow_link_local = true"),
                "{config}{error}"
            );
            dir.write("a.toml", &format!("[server]\nallow_link_local = true\n{config}"));
            dir.run(&["check", "a.toml"]).ok();
        }
    }
    for config in configs("10.0.0.5") {
        dir.write("a.toml", &config);
        dir.run(&["check", "a.toml"]).ok();
    }
}

#[test]
fn the_api_and_the_command_line_reject_a_literal_at_run_time() {
    let dir = TestDir::new("link-local-api");
    let server = ServerProcess::start(&dir, &[]);
    for host in LITERALS {
        let node = server.post("/api/nodes", &json!({"name": "imds", "url": format!("http://{host}")}));
        assert!(node.status == 400 && node.body.contains("allow_link_local"), "{host}: {node:?}");
        let target = json!({"dispatch": {"target": format!("http://{host}/latest/meta-data")}});
        let queue = read(server.send("PUT", "/api/queues/hooks", "", &target));
        assert!(queue.status == 400 && queue.body.contains("allow_link_local"), "{host}: {queue:?}");
    }
    let refused = dir.run(&["node", "add", "imds", "http://169.254.169.254"]).failed();
    assert!(refused.contains("allow_link_local"), "{refused}");
    assert_eq!(server.get("/api/nodes").json()["nodes"], json!([]));
}

#[test]
fn a_name_is_checked_by_the_addresses_it_resolves_to() {
    let dir = TestDir::new("link-local-name");
    dir.write(
        "hosts",
        "127.0.0.1 localhost\n169.254.169.254 metadata.test\n::ffff:169.254.169.254 mapped.test\n",
    );
    let serve = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    // Only this process sees the hosts file.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind hosts /etc/hosts && exec \"$0\" \"$@\""]);
    command.arg(serve.get_program()).args(serve.get_args()).current_dir(dir.file(""));
    let server = ServerProcess::spawn(&mut command);
    for name in ["metadata.test", "mapped.test"] {
        let node = json!({"name": name, "url": format!("http://{name}:9"), "models": ["sim"]});
        assert_eq!(server.post("/api/nodes", &node).status, 201, "a name is checked when it is resolved");
        let error = wait_for(|| {
            let nodes = server.get("/api/nodes").json();
            let found = nodes["nodes"].as_array().unwrap().iter().find(|node| node["name"] == name).cloned();
            found.and_then(|node| node["health_error"].as_str().map(str::to_owned))
        });
        assert!(error.contains("169.254.169.254") && error.contains("allow_link_local"), "{name}: {error}");
    }
    let target = json!({"dispatch": {"target": "http://metadata.test:9/latest"}});
    assert_eq!(read(server.send("PUT", "/api/queues/hooks", "", &target)).status, 201);
    let sent = server.post("/api/queues/hooks/messages", &json!({"body": "{}"}));
    let id = sent.json()["ids"][0].as_str().unwrap().to_owned();
    let explanation = wait_for(|| {
        let explained: Value = server.get(&format!("/api/queues/hooks/messages/{id}")).json();
        let text = explained["explanation"].as_str().unwrap_or_default().to_owned();
        text.contains("allow_link_local").then_some(text)
    });
    assert!(explanation.contains("169.254.169.254"), "{explanation}");
}

fn wait_for<T>(mut find: impl FnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = find() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the condition was not met in time");
}
