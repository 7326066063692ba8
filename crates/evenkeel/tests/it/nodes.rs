//! Nodes that were added at run time, and those that were drained, after the server was killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::raw::{Node, chat, fast};
use crate::server_process::Served;

const BOOK: &str = "evenkeel-data/nodes.toml";

#[test]
fn a_node_that_was_added_is_there_after_a_kill_and_a_removed_one_is_not() {
    let folder = Folder::new("nodes-kill");
    let engine = Node::start(fast());
    let url = format!("http://{}", engine.address());
    let served = Served::start(&folder, &[]);
    let add = |name: &str| json!({"name": name, "url": url, "models": ["sim"], "max_concurrency": 3, "weight": 2.5, "api_key": "sk-secret"});
    for name in ["stays", "rests", "goes"] {
        let added = served.post("/api/nodes", &add(name));
        assert_eq!((added.status, added.json()), (201, json!({"name": name, "until_restart": false})));
        let line = served.wait_log("takes work");
        assert_eq!(
            (&line["node"], &line["message"]),
            (&json!(name), &json!(format!("node {name} takes work")))
        );
    }
    assert_eq!(served.post("/api/nodes", &add("stays")).status, 400);
    assert_eq!(served.post("/api/nodes/rests/drain", &Value::Null).status, 200);
    assert_eq!(served.delete("/api/nodes/goes").json(), json!({"name": "goes", "until_restart": false}));
    assert_eq!(served.wait_log("is gone")["message"], "node goes is gone", "by name to the end");
    assert_eq!(served.delete("/api/nodes/goes").status, 404);
    served.signal("KILL");
    served.wait();

    let mode = fs::metadata(folder.file(BOOK)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "keys of nodes are in it");
    let served = Served::start(&folder, &[]);
    let listed = nodes(&served);
    assert_eq!(duties(&listed), [("stays", "serving"), ("rests", "draining")].map(owned));
    assert_eq!(
        (&listed[0]["slots"], &listed[0]["weight"], &listed[0]["urls"][0]),
        (&json!(3), &json!(2.5), &json!(url))
    );
    assert_eq!(served.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    for path in ["/api/nodes", "/api/load-status", "/api/config", "/metrics"] {
        assert!(!served.get(path).body.contains("sk-secret"), "{path}");
    }
    assert_eq!(served.post("/api/nodes/rests/resume", &Value::Null).status, 200);
    served.signal("KILL");
    served.wait();
    let served = Served::start(&folder, &[]);
    assert_eq!(duties(&nodes(&served)), [("stays", "serving"), ("rests", "serving")].map(owned));
}

#[test]
fn a_node_of_the_config_file_wins_over_one_of_its_name_and_that_is_said() {
    let folder = Folder::new("nodes-wins");
    let one = Node::start(fast());
    let other = Node::start(fast());
    let served = Served::start(&folder, &[]);
    let add = json!({"name": "a", "url": format!("http://{}", one.address()), "models": ["sim"]});
    assert_eq!(served.post("/api/nodes", &add).status, 201);
    let filed = format!("[[llm.nodes]]\nname = 'a'\nurl = 'http://{}'\nmodels = ['sim']\n", other.address());
    folder.write("evenkeel.toml", &filed);
    served.signal("KILL");
    served.wait();
    let served = Served::spawn_until(&folder, "it wins over the one that was added");
    assert_eq!(nodes(&served)[0]["urls"][0], format!("http://{}", other.address()));
    assert_eq!(nodes(&served).len(), 1);

    let removed = served.delete("/api/nodes/a").json();
    assert_eq!(removed, json!({"name": "a", "until_restart": true}), "the file brings it back");
    served.signal("KILL");
    served.wait();
    let served = Served::start(&folder, &[]);
    assert_eq!(nodes(&served).len(), 1);
}

/// A reload that names an added node in the file makes it the file's.
#[test]
fn a_reload_wins_over_an_added_node_and_a_drained_one_stays_drained() {
    let folder = Folder::new("nodes-reload");
    let engine = Node::start(fast());
    let served = Served::start(&folder, &[]);
    let url = format!("http://{}", engine.address());
    let add = json!({"name": "a", "url": url, "models": ["sim"], "max_concurrency": 1});
    assert_eq!(served.post("/api/nodes", &add).status, 201);
    assert_eq!(served.post("/api/nodes/a/drain", &Value::Null).status, 200);
    let filed = format!("[[llm.nodes]]\nname = 'a'\nurl = '{url}'\nmodels = ['sim']\nmax_concurrency = 2\n");
    folder.write("evenkeel.toml", &filed);
    served.signal("HUP");
    served.wait_log("reloaded");
    let listed = nodes(&served);
    assert_eq!((duties(&listed), &listed[0]["slots"]), (vec![owned(("a", "draining"))], &json!(2)));
    assert!(!folder.read(BOOK).contains("[[nodes]]"));
}

#[test]
fn what_no_node_can_be_is_refused_and_not_kept() {
    let folder = Folder::new("nodes-wrong");
    let served = Served::start(&folder, &[]);
    for (body, told) in [
        (json!({"name": "a"}), "a node needs a url, or paths"),
        (
            json!({"name": "a b", "url": "http://a"}),
            "a name must be 1 to 64 letters, digits and signs of `._-@:`",
        ),
        (json!({"nmae": "a", "url": "http://a"}), "unknown key \"nmae\" in [nodes]; did you mean \"name\"?"),
        (json!({"name": "a", "url": "http://a", "weight": 0}), "weight must be a number from 0.01 to 1000"),
    ] {
        let refused = served.post("/api/nodes", &body);
        assert_eq!((refused.status, refused.json()["error"]["message"].as_str()), (400, Some(told)));
    }
    assert!(!folder.file(BOOK).exists());
}

fn nodes(served: &Served) -> Vec<Value> {
    served.get("/api/nodes").json()["nodes"].as_array().unwrap().clone()
}

fn duties(nodes: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    nodes.iter().map(|node| (text(&node["name"]), text(&node["admin_state"]))).collect()
}

fn owned((name, admin_state): (&str, &str)) -> (String, String) {
    (name.to_owned(), admin_state.to_owned())
}
