//! `/api/openapi.json`: what it says is so, as schemathesis finds out by asking everything that it describes.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::raw::read;
use crate::server_process::Served;

fn start(name: &str) -> (Folder, Served) {
    let folder = Folder::new(name);
    folder.write("evenkeel.toml", "[queue]\nstore = 'memory'\n");
    let served = Served::start(&folder, &[]);
    (folder, served)
}

#[test]
fn every_path_that_is_described_is_answered_by_every_method_that_is() {
    let (_folder, served) = start("openapi-paths");
    let described = served.get("/api/openapi.json").json();
    assert_eq!(described["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut count = 0;
    // A stream is answered without end; it has tests of its own.
    let paths = described["paths"].as_object().unwrap().iter().filter(|(path, _)| !path.ends_with("/stream"));
    for (path, item) in paths {
        let path = path.replace(['{', '}'], "");
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let reply = read(served.send(&method.to_uppercase(), &path, "", &json!({})));
            // What it names may not be there; the route is.
            let code = serde_json::from_str::<Value>(&reply.body).unwrap()["error"]["code"].clone();
            assert!(code != "unknown_url" && code != "method_not_allowed", "{method} {path}: {reply:?}");
            count += 1;
        }
    }
    assert!(28 <= count, "{count} operations");
}

#[test]
fn schemathesis_finds_nothing_but_what_is_described() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join("target/schemathesis/bin/schemathesis");
    assert!(program.exists(), "schemathesis is not installed; `cargo xtask test` does it");
    let (folder, served) = start("openapi-asked");
    assert_eq!(read(served.send("PUT", "/api/queues/q", "", &json!({}))).status, 201);
    folder.write("schemathesis.toml", "[parameters]\n\"path.queue\" = \"q\"\n");
    let mut command = Command::new(program);
    command
        .current_dir(folder.file(""))
        .args(["run", &format!("http://{}/api/openapi.json", served.address)]);
    command.args(["--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "7", "--checks", "all"]);
    // Here nobody needs a key, and what is right may still be refused: a queue that is not there, a header that SQS
    // would not take.
    command.args(["--exclude-checks", "ignored_auth,positive_data_acceptance"]);
    command.args(["--exclude-path-regex", "/api/(nodes|tenants)"]);
    // One never ends, one waits, and two would take the queue away from the others.
    for left_out in ["streamMessages", "receiveMessages", "putQueue", "deleteQueue"] {
        command.args(["--exclude-operation-id", left_out]);
    }
    let output = command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("Tested: "), "{said}");
}
