//! `/api/openapi.json` matches the server: schemathesis tests every operation that it describes.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

fn start(name: &str) -> (TestDir, ServerProcess) {
    let dir = TestDir::new(name);
    // Abandoned transactions must not block the writer of SQLite for long.
    dir.write("evenkeel.toml", "[queue]\nstore = 'memory'\n[sql]\ntransaction_idle_secs = 0.1\n");
    let server = ServerProcess::start(&dir, &[]);
    (dir, server)
}

#[test]
fn every_described_operation_has_a_route() {
    let (_folder, server) = start("openapi-paths");
    let described = server.get("/api/openapi.json").json();
    assert_eq!(described["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut count = 0;
    // Streaming paths never end; they have their own tests.
    let paths = described["paths"].as_object().unwrap().iter().filter(|(path, _)| !path.ends_with("/stream"));
    for (path, item) in paths {
        let path = path.replace(['{', '}'], "");
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let reply = read(server.send(&method.to_uppercase(), &path, "", &json!({})));
            // The resource may not exist, but the route does.
            let reply_json = serde_json::from_str::<Value>(&reply.body).unwrap();
            let code =
                [&reply_json["code"], &reply_json["error"]["code"]].into_iter().find(|code| !code.is_null());
            let code = code.and_then(Value::as_str).unwrap_or_default();
            assert!(code != "unknown_url" && code != "method_not_allowed", "{method} {path}: {reply:?}");
            count += 1;
        }
    }
    assert!(count >= 35, "{count} operations");
}

#[test]
fn every_route_of_the_native_api_is_described() {
    let (_folder, server) = start("openapi-routes");
    let described = server.get("/api/openapi.json").json();
    let listed = server.get("/api/routes").json();
    let mut missing = Vec::new();
    for route in listed["routes"].as_array().unwrap() {
        let path = route["path"].as_str().unwrap();
        let method = route["method"].as_str().unwrap().to_ascii_lowercase();
        let is_native = path.starts_with("/api/") && path != "/api/openapi.json";
        if is_native && described["paths"][path].get(&method).is_none() {
            missing.push(format!("{method} {path}"));
        }
    }
    assert!(missing.is_empty(), "not in openapi.json: {missing:?}");
}

#[test]
fn schemathesis_finds_no_difference_from_the_description() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join("target/schemathesis/bin/schemathesis");
    assert!(program.exists(), "schemathesis is not installed; run `cargo xtask test`");
    let (dir, server) = start("openapi-schemathesis");
    assert_eq!(read(server.send("PUT", "/api/queues/q", "", &json!({}))).status, 201);
    // A request whose time limit is some milliseconds may reach it while it waits for SQLite's writer.
    let expected = "[\"2xx\", \"3xx\", \"4xx\", \"504\"]";
    let sql = format!(
        "[[operations]]\ninclude-path-regex = \"^/(query|execute|tx/.*)$\"\n\
         checks.not_a_server_error.expected-statuses = {expected}\n"
    );
    dir.write("schemathesis.toml", &format!("[parameters]\n\"path.queue\" = \"q\"\n{sql}"));
    let mut command = Command::new(program);
    command.current_dir(dir.file("")).args(["run", &format!("http://{}/api/openapi.json", server.address)]);
    command.args([
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        "10",
        "--seed",
        "7",
        "--checks",
        "all",
    ]);
    let key = format!("Authorization: Bearer {}", server.admin_key().unwrap());
    command.args(["--header", &key]);
    // The server has no tenants, so it ignores credentials. It may reject valid data, such as an unknown queue.
    command.args(["--exclude-checks", "ignored_auth,positive_data_acceptance"]);
    command.args(["--exclude-path-regex", "/api/(nodes|tenants)"]);
    // The first never ends, the second waits, and the other two would change or delete the queue under test.
    for excluded in ["streamMessages", "receiveMessages", "putQueue", "deleteQueue"] {
        command.args(["--exclude-operation-id", excluded]);
    }
    let output = command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains("Tested: "), "{report}");
}
