//! Nodes that are added and drained at run time, and their state after a crash.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{TestNode, chat, fast};

const NODES_FILE: &str = "evenkeel-data/nodes.toml";

#[test]
fn an_added_node_survives_a_crash_and_a_removed_one_stays_removed() {
    let dir = TestDir::new("nodes-kill");
    let engine = TestNode::start(fast());
    let url = format!("http://{}", engine.address());
    let server = ServerProcess::start(&dir, &[]);
    let add = |name: &str| json!({"name": name, "url": url, "models": ["sim"], "max_concurrency": 3, "weight": 2.5, "api_key": "sk-secret"});
    for name in ["kept", "drained", "removed"] {
        let added = server.post("/api/nodes", &add(name));
        assert_eq!((added.status, added.json()), (201, json!({"name": name, "until_restart": false})));
        let line = server.wait_log("in rotation");
        assert_eq!(
            (&line["node"], &line["message"]),
            (&json!(name), &json!(format!("node {name:?}: in rotation")))
        );
    }
    assert_eq!(server.post("/api/nodes", &add("kept")).status, 400);
    assert_eq!(server.post("/api/nodes/drained/drain", &Value::Null).status, 200);
    assert_eq!(
        server.delete("/api/nodes/removed").json(),
        json!({"name": "removed", "until_restart": false})
    );
    assert_eq!(
        server.wait_log(": removed")["message"],
        "node \"removed\": removed",
        "the removal is logged with the name of the node"
    );
    assert_eq!(server.delete("/api/nodes/removed").status, 404);
    server.signal("KILL");
    server.wait();

    let mode = fs::metadata(dir.file(NODES_FILE)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "the file holds API keys");
    let server = ServerProcess::start(&dir, &[]);
    let listed = nodes(&server);
    assert_eq!(admin_states(&listed), [("kept", "serving"), ("drained", "draining")].map(owned));
    assert_eq!(
        (&listed[0]["slots"], &listed[0]["weight"], &listed[0]["urls"][0]),
        (&json!(3), &json!(2.5), &json!(url))
    );
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    for path in ["/api/nodes", "/api/load-status", "/api/config", "/metrics"] {
        assert!(!server.get(path).body.contains("sk-secret"), "{path}");
    }
    assert_eq!(server.post("/api/nodes/drained/resume", &Value::Null).status, 200);
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(admin_states(&nodes(&server)), [("kept", "serving"), ("drained", "serving")].map(owned));
}

#[test]
fn an_added_node_is_changed_in_place_and_the_change_survives_a_crash() {
    let dir = TestDir::new("nodes-set");
    let engine = TestNode::start(fast());
    let other = TestNode::start(fast());
    let url = |node: &TestNode| format!("http://{}", node.address());
    dir.write(
        "evenkeel.toml",
        &format!("[[llm.nodes]]\nname = 'filed'\nurl = '{}'\nmodels = ['other']\n", url(&engine)),
    );
    let server = ServerProcess::start(&dir, &[]);
    let settings = json!({"name": "a", "url": url(&engine), "models": ["sim"], "max_concurrency": 3, "weight": 2, "api_key": "sk-secret"});
    assert_eq!(server.post("/api/nodes", &settings).status, 201);
    let change = json!({"max_concurrency": 5, "weight": null, "inject_stream_options": false});
    let changed = server.patch("/api/nodes/a", &change);
    assert_eq!((changed.status, changed.json()), (200, json!({"name": "a", "until_restart": false})));
    let node = node_named(&server, "a");
    assert_eq!((&node["slots"], &node["weight"], &node["models"]), (&json!(5), &json!(1.0), &json!(["sim"])));
    assert_eq!(server.patch("/api/nodes/a", &json!({"paths": [url(&other)]})).status, 200);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    assert_eq!((engine.peak(), other.peak()), (0, 1), "the new URL serves the requests");

    let stored = dir.read(NODES_FILE);
    for (name, change, status, message) in [
        ("a", json!({"weigth": 2}), 400, "weigth"),
        ("a", json!({"weigth": null}), 400, "unknown setting \"weigth\""),
        ("a", json!({"max_concurrency": 0}), 400, "max_concurrency must be from 1 to 65536"),
        ("a", json!({"url": null}), 400, "a node needs a url or paths"),
        ("a", json!({"name": "b"}), 400, "the name of a node cannot be changed"),
        ("a", json!({"via": "nowhere"}), 400, "nowhere"),
        ("filed", json!({"weight": 2}), 400, "in the config file; change it there"),
        ("nobody", json!({"weight": 2}), 404, "nobody"),
    ] {
        let refused = server.patch(&format!("/api/nodes/{name}"), &change);
        assert_eq!(refused.status, status, "{change}: {}", refused.body);
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains(message), "{}", refused.body);
    }
    assert_eq!(dir.read(NODES_FILE), stored, "a refused change changes nothing");
    assert!(stored.contains("sk-secret"), "settings that are not named keep their value");

    let set = |args: &[&str]| dir.run(&[&["node", "set", "a"], args].concat()).code;
    assert_eq!(set(&["--max-concurrency", "7", "--default", "inject_stream_options"]), Some(0));
    assert_eq!(set(&[]), Some(2));
    assert_eq!(set(&["--weight", "2", "--default", "weight"]), Some(2));
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    let node = node_named(&server, "a");
    assert_eq!(
        (&node["slots"], &node["weight"], &node["urls"][0]),
        (&json!(7), &json!(1.0), &json!(url(&other)))
    );
}

#[test]
fn a_node_in_the_config_file_replaces_an_added_node_of_the_same_name() {
    let dir = TestDir::new("nodes-replaced");
    let one = TestNode::start(fast());
    let other = TestNode::start(fast());
    let server = ServerProcess::start(&dir, &[]);
    let add = json!({"name": "a", "url": format!("http://{}", one.address()), "models": ["sim"]});
    assert_eq!(server.post("/api/nodes", &add).status, 201);
    let configured =
        format!("[[llm.nodes]]\nname = 'a'\nurl = 'http://{}'\nmodels = ['sim']\n", other.address());
    dir.write("evenkeel.toml", &configured);
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::spawn_until(&dir, "dropped the node that was added at run time");
    assert_eq!(nodes(&server)[0]["urls"][0], format!("http://{}", other.address()));
    assert_eq!(nodes(&server).len(), 1);

    let removed = server.delete("/api/nodes/a").json();
    assert_eq!(
        removed,
        json!({"name": "a", "until_restart": true}),
        "a node of the config file returns after a restart"
    );
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(nodes(&server).len(), 1);
}

#[test]
fn a_reload_replaces_an_added_node_and_a_drained_one_stays_drained() {
    let dir = TestDir::new("nodes-reload");
    let engine = TestNode::start(fast());
    let server = ServerProcess::start(&dir, &[]);
    let url = format!("http://{}", engine.address());
    let add = json!({"name": "a", "url": url, "models": ["sim"], "max_concurrency": 1});
    assert_eq!(server.post("/api/nodes", &add).status, 201);
    assert_eq!(server.post("/api/nodes/a/drain", &Value::Null).status, 200);
    let configured =
        format!("[[llm.nodes]]\nname = 'a'\nurl = '{url}'\nmodels = ['sim']\nmax_concurrency = 2\n");
    dir.write("evenkeel.toml", &configured);
    server.signal("HUP");
    server.wait_log("reloaded");
    let listed = nodes(&server);
    assert_eq!((admin_states(&listed), &listed[0]["slots"]), (vec![owned(("a", "draining"))], &json!(2)));
    assert!(!dir.read(NODES_FILE).contains("[[nodes]]"));
}

#[test]
fn an_invalid_node_is_rejected_and_not_stored() {
    let dir = TestDir::new("nodes-wrong");
    let server = ServerProcess::start(&dir, &[]);
    for (body, message) in [
        (json!({"name": "a"}), "a node needs a url or paths"),
        (
            json!({"name": "a b", "url": "http://a"}),
            "a name must be 1 to 64 letters, digits and characters of `._-@:`",
        ),
        (json!({"nmae": "a", "url": "http://a"}), "unknown key \"nmae\" in [nodes]; did you mean \"name\"?"),
        (json!({"name": "a", "url": "http://a", "weight": 0}), "weight must be a number from 0.01 to 1000"),
    ] {
        let rejected = server.post("/api/nodes", &body);
        assert_eq!((rejected.status, rejected.json()["error"]["message"].as_str()), (400, Some(message)));
    }
    assert!(!dir.file(NODES_FILE).exists());
}

fn node_named(server: &ServerProcess, name: &str) -> Value {
    nodes(server).into_iter().find(|node| node["name"] == name).unwrap()
}

fn nodes(server: &ServerProcess) -> Vec<Value> {
    server.get("/api/nodes").json()["nodes"].as_array().unwrap().clone()
}

fn admin_states(nodes: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    nodes.iter().map(|node| (text(&node["name"]), text(&node["admin_state"]))).collect()
}

fn owned(node: (&str, &str)) -> (String, String) {
    (node.0.to_owned(), node.1.to_owned())
}
