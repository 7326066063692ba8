//! The audit log: every route and operation that changes something leaves a record, refused or not.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use evenkeel_server::api_key::KeyHash;
use serde_json::{Value, json};

use super::{Caller, Gateway, routes};
use crate::bodies::wait_metric;
use crate::fleet::tenant;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

/// Operations on messages, and those that read: too many to be recorded.
const DATA: [&str; 18] = [
    "POST /api/queues/{queue}/ack",
    "POST /api/queues/{queue}/extend",
    "POST /api/queues/{queue}/messages",
    "POST /api/queues/{queue}/nack",
    "POST /api/queues/{queue}/receive",
    "SQS ChangeMessageVisibility",
    "SQS ChangeMessageVisibilityBatch",
    "SQS DeleteMessage",
    "SQS DeleteMessageBatch",
    "SQS GetQueueAttributes",
    "SQS GetQueueUrl",
    "SQS ListDeadLetterSourceQueues",
    "SQS ListMessageMoveTasks",
    "SQS ListQueueTags",
    "SQS ListQueues",
    "SQS ReceiveMessage",
    "SQS SendMessage",
    "SQS SendMessageBatch",
];

fn records(dir: &TestDir) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.file("evenkeel-data/audit.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the records of an action.
fn of_action(dir: &TestDir, action: &str) -> Vec<Value> {
    records(dir).into_iter().filter(|record| record["action"] == action).collect()
}

#[test]
fn every_route_and_operation_that_changes_something_leaves_a_record() {
    let gateway = Gateway::with_tenants();
    let acme = gateway.acme.as_ref().unwrap();
    let mut checked = 0;
    for row in routes(&gateway) {
        let (method, path) = row.split_once(' ').unwrap();
        if method != "SQS" && (method == "GET" || !path.starts_with("/api/")) {
            continue;
        }
        let path = path.replace("{queue}", gateway.queue).replace(['{', '}'], "");
        let action = format!("{method} {path}");
        // The queue exists before the records are counted.
        gateway.create_queue();
        let before = of_action(&gateway.dir, &action).len();
        let caller = if method == "SQS" { Caller::Tenant(acme) } else { Caller::Admin };
        gateway.call(&row, caller, "");
        let after = of_action(&gateway.dir, &action);
        if DATA.contains(&row.as_str()) {
            assert_eq!(after.len(), 0, "{row}");
            continue;
        }
        checked += 1;
        assert!(before < after.len(), "{row} left no record");
        let actor = if method == "SQS" { "tenant" } else { "admin" };
        let last = after.last().unwrap();
        assert_eq!((&last["actor"], &last["address"]), (&json!(actor), &json!("127.0.0.1")), "{last}");
        assert!(last["request_id"].is_string() && last["time"].as_str().unwrap().ends_with('Z'), "{last}");
        let refused = of_action(&gateway.dir, &action).len();
        gateway.call(&row, Caller::Wrong, "");
        let after = of_action(&gateway.dir, &action);
        assert!(refused < after.len(), "{row}: a refusal left no record");
        let last = after.last().unwrap();
        assert_eq!((&last["actor"], &last["result"]), (&json!("unknown"), &json!("refused")), "{last}");
    }
    assert!(checked >= 25, "{checked} rows");
}

#[test]
fn a_change_in_the_query_protocol_leaves_the_same_record_and_a_refused_request_one_without_an_operation() {
    let gateway = Gateway::with_tenants();
    let acme = gateway.acme.as_ref().unwrap();
    gateway.call("QUERY SetQueueAttributes", Caller::Tenant(acme), "");
    gateway.call("QUERY SendMessage", Caller::Tenant(acme), "");
    let record = &of_action(&gateway.dir, "SQS SetQueueAttributes")[0];
    assert_eq!((&record["actor"], &record["tenant"]), (&json!("tenant"), &json!("acme")), "{record}");
    assert_eq!((&record["result"], &record["status"]), (&json!("done"), &json!(200)), "{record}");
    assert_eq!(record["request"]["Attributes"], json!({"DelaySeconds": "0"}), "{record}");
    assert!(of_action(&gateway.dir, "SQS SendMessage").is_empty());
    gateway.call("QUERY SetQueueAttributes", Caller::Wrong, "");
    let refused = of_action(&gateway.dir, "SQS").pop().unwrap();
    assert_eq!((&refused["actor"], &refused["result"]), (&json!("unknown"), &json!("refused")), "{refused}");
}

#[test]
fn a_record_says_who_changed_what_from_where_and_contains_no_secret() {
    let dir = TestDir::new("audit-content");
    dir.write("evenkeel.toml", "");
    let server = ServerProcess::start(&dir, &[]);
    let made = server.post("/api/tenants", &json!({"name": "acme", "rpm": 60})).json();
    let key = made["key"].as_str().unwrap();
    server.patch("/api/tenants/acme", &json!({"rpm": 10}));
    let node =
        json!({"name": "n", "url": "http://127.0.0.1:9", "models": ["m"], "api_key": "sk-very-secret"});
    assert_eq!(server.post("/api/nodes", &node).status, 201);
    let refused = server.send("POST", "/api/nodes/n/drain", &format!("x-api-key: {key}\r\n"), &Value::Null);
    assert_eq!(read(refused).status, 403);
    server.signal("HUP");
    server.wait_log("reloaded");
    let log = dir.read("evenkeel-data/audit.log");
    assert!(!log.contains(key) && !log.contains("sk-very-secret"), "{log}");
    assert!(!log.contains(&server.admin_key().unwrap()), "{log}");
    let set = &of_action(&dir, "PATCH /api/tenants/acme")[0];
    assert_eq!((&set["request"], &set["before"]["rpm"]), (&json!({"rpm": 10}), &json!(60)), "{set}");
    assert_eq!((&set["actor"], &set["status"]), (&json!("admin"), &json!(200)), "{set}");
    let added = &of_action(&dir, "POST /api/nodes")[0];
    assert_eq!(added["request"]["api_key"], "[hidden]", "{added}");
    let drain = &of_action(&dir, "POST /api/nodes/n/drain")[0];
    assert_eq!((&drain["actor"], &drain["tenant"]), (&json!("tenant"), &json!("acme")), "{drain}");
    assert_eq!((&drain["result"], &drain["status"]), (&json!("refused"), &json!(403)), "{drain}");
    let reload = &of_action(&dir, "reload")[0];
    assert_eq!((&reload["actor"], &reload["result"]), (&json!("signal"), &json!("done")), "{reload}");
    let mode = std::fs::metadata(dir.file("evenkeel-data/audit.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    dir.write("evenkeel.toml", "wrong = 1\n");
    server.signal("HUP");
    server.wait_log("reload rejected");
    assert_eq!(of_action(&dir, "reload")[1]["result"], "refused");
    drop(server);
    dir.write("evenkeel.toml", "");
    let lines = records(&dir).len();
    dir.run(&["tenant", "key", "add", "acme", "--name", "ci"]).ok();
    dir.run(&["tenant", "remove", "nobody"]).failed();
    let local = &records(&dir)[lines..];
    assert_eq!(local.len(), 2, "{local:?}");
    assert!(local[0]["actor"].as_str().unwrap().starts_with("command line, uid "), "{local:?}");
    assert_eq!(
        (&local[0]["action"], &local[1]["result"]),
        (&json!("add key"), &json!("refused")),
        "{local:?}"
    );
}

#[test]
fn a_change_is_made_although_its_record_cannot_be_written() {
    let dir = TestDir::new("audit-error");
    dir.write("evenkeel.toml", "[telemetry]\nmetrics = 'public'\n");
    std::fs::create_dir_all(dir.file("evenkeel-data/audit.log")).unwrap();
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.post("/api/tenants", &json!({"name": "acme"})).status, 201);
    server.wait_log("could not write an audit record");
    wait_metric(&server, "evenkeel_audit_errors_total", |errors| errors >= 1.0);
}

#[test]
fn the_record_of_a_reload_names_the_tenants_and_nodes_that_changed() {
    let dir = TestDir::new("audit-reload");
    let node = |weight| format!("[[llm.nodes]]\nname = 'n'\nurl = 'http://127.0.0.1:9'\nweight = {weight}\n");
    dir.write(
        "evenkeel.toml",
        &(node(1) + &tenant("kept", "") + &tenant("changed", "") + &tenant("gone", "")),
    );
    let server = ServerProcess::start(&dir, &[]);
    let admin = KeyHash::of("ek-root");
    let config = format!("[server]\nadmin_key_hashes = ['{admin}']\n{}", node(2));
    dir.write(
        "evenkeel.toml",
        &(config + &tenant("kept", "") + &tenant("changed", "rpm = 1") + &tenant("new", "")),
    );
    server.signal("HUP");
    server.wait_log("reloaded");
    let record = &of_action(&dir, "reload")[0];
    let changes =
        ["tenants_added", "tenants_changed", "tenants_removed", "nodes_changed", "admin_keys_changed"]
            .map(|field| &record["request"][field]);
    let expected = [json!(["new"]), json!(["changed"]), json!(["gone"]), json!(["n"]), json!(true)];
    assert_eq!(changes, expected.each_ref(), "{record}");
}

#[test]
fn a_full_disk_leaves_no_partial_record() {
    let dir = TestDir::new("audit-full");
    dir.write("evenkeel.toml", "[telemetry]\nmetrics = 'public'\n");
    std::fs::create_dir_all(dir.file("evenkeel-data")).unwrap();
    std::fs::create_dir_all(dir.file("small")).unwrap();
    dir.write("evenkeel-data/audit.log", "");
    let serve = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    // Only this process sees the small disk.
    let mut command = Command::new("unshare");
    let mount = "mount -t tmpfs -o size=8k tmpfs small && touch small/audit.log && \
                 mount --bind small/audit.log evenkeel-data/audit.log && exec \"$0\" \"$@\"";
    command.args(["--mount", "sh", "-c", mount]);
    command.arg(serve.get_program()).args(serve.get_args()).current_dir(dir.file(""));
    let server = ServerProcess::spawn(&mut command);
    assert_eq!(server.post("/api/tenants", &json!({"name": "acme"})).status, 201);
    let change = |rpm: u32| assert_eq!(server.patch("/api/tenants/acme", &json!({"rpm": rpm})).status, 200);
    (1..100).for_each(change);
    wait_metric(&server, "evenkeel_audit_errors_total", |errors| errors >= 2.0);
    let enlarge =
        ["-m", "-t", &server.pid().to_string(), "mount", "-o", "remount,size=64k"].map(str::to_owned);
    let enlarged = Command::new("nsenter").args(enlarge).arg(dir.file("small")).status();
    assert!(enlarged.unwrap().success());
    change(1_000);
    let path = format!("/proc/{}/root{}", server.pid(), dir.file("small/audit.log").display());
    let text = std::fs::read_to_string(path).unwrap();
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert_eq!(records.last().unwrap()["request"]["rpm"], 1_000, "{text}");
}

#[test]
fn a_long_path_is_cut_and_a_key_in_a_path_is_replaced() {
    let dir = TestDir::new("audit-long");
    let server = ServerProcess::start(&dir, &[]);
    let path = format!("/api/tenants/{}", "x".repeat(60_000));
    let refused = read(server.send("DELETE", &path, "x-api-key: ek-wrong\r\n", &Value::Null));
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(dir.read("evenkeel-data/audit.log").len() < 2_000);
    assert!(records(&dir)[0]["action"].as_str().unwrap().ends_with('…'));
    // Somebody may pass a key where its name is expected.
    let key =
        server.post("/api/tenants", &json!({"name": "acme"})).json()["key"].as_str().unwrap().to_owned();
    dir.run(&["tenant", "key", "remove", "acme", &key]).failed();
    assert!(!dir.read("evenkeel-data/audit.log").contains(&key));
}

#[test]
fn callers_without_a_key_cannot_fill_the_log() {
    let dir = TestDir::new("audit-flood");
    let server = ServerProcess::start(&dir, &[]);
    for _ in 0..300 {
        let refused = server.send("POST", "/api/tenants", "x-api-key: ek-wrong\r\n", &json!({"name": "a"}));
        assert_eq!(read(refused).status, 403);
    }
    // The flood may last more than a minute on a slow machine, but not five.
    let written = of_action(&dir, "POST /api/tenants").len();
    assert!((60..300).contains(&written), "{written}");
    assert_eq!(server.post("/api/tenants", &json!({"name": "a"})).status, 201);
    let last = records(&dir).pop().unwrap();
    assert_eq!((&last["actor"], &last["result"]), (&json!("admin"), &json!("done")), "{last}");
}
