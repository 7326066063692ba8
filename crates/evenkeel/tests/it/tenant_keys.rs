//! Several keys per tenant: names, expiry and last use, with the binary as a process.

use std::io::Read;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::owners::sqs_client;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

/// A time in the past.
const PAST: &str = "2020-01-01T00:00:00Z";

/// Returns the keys of a tenant as the command line lists them.
fn keys(dir: &TestDir, tenant: &str) -> Value {
    let listed = dir.run(&["tenant", "key", "list", tenant, "--json"]).ok();
    serde_json::from_str::<Value>(&listed).unwrap()["keys"].take()
}

fn key_with_hash(dir: &TestDir) -> (String, String) {
    let made = dir.run(&["tenant", "key"]).ok();
    let mut lines = made.lines().map(str::to_owned);
    (lines.next().unwrap(), lines.next().unwrap())
}

#[test]
fn a_named_key_works_beside_the_others_and_is_removed_alone() {
    let dir = TestDir::new("keys-named");
    let first = dir.run(&["tenant", "add", "acme"]).ok().trim().to_owned();
    let server = ServerProcess::start(&dir, &[]);
    let status = |key: &str| server.get_with_key("/v1/models", key).status;
    let ci = dir.run(&["tenant", "key", "add", "acme", "--name", "ci", "--expires", "30d"]).ok();
    let ci = ci.trim();
    assert_eq!((status(&first), status(ci)), (200, 200));
    let listed = keys(&dir, "acme");
    assert_eq!((&listed[1]["name"], &listed[1]["state"]), (&json!("ci"), &json!("active")), "{listed}");
    assert!(listed[1]["expires_at"].as_str().unwrap().ends_with('Z'), "{listed}");
    assert_eq!(listed[0]["expires_at"], Value::Null, "{listed}");
    let again = dir.run(&["tenant", "key", "add", "acme", "--name", "ci"]).failed();
    assert!(again.contains("two keys of tenant \"acme\" are named \"ci\""), "{again}");
    let past = dir.run(&["tenant", "key", "add", "acme", "--expires", "2020-01-01"]).failed();
    assert!(past.contains("must be in the future"), "{past}");
    dir.run(&["tenant", "key", "remove", "acme", "ci"]).ok();
    assert_eq!((status(&first), status(ci)), (200, 401));
    let unknown = dir.run(&["tenant", "key", "remove", "acme", "ci"]).failed();
    assert!(unknown.contains("no key \"ci\" of tenant \"acme\""), "{unknown}");
    dir.run(&["tenant", "key", "add", "acme", "--name", "other"]).ok();
    let rotated = dir.run(&["tenant", "rotate", "acme"]).ok();
    assert_eq!(keys(&dir, "acme").as_array().unwrap().len(), 1, "rotate revokes named keys too");
    assert_eq!((status(&first), status(rotated.trim())), (401, 200));
}

#[test]
fn an_expired_key_is_rejected_by_every_api_and_says_so_only_to_its_holder() {
    let dir = TestDir::new("keys-expired");
    let (expired, expired_hash) = key_with_hash(&dir);
    let (valid, valid_hash) = key_with_hash(&dir);
    dir.write(
        "evenkeel.toml",
        &format!(
            "[[tenants]]\nname = 'acme'\nkey_hashes = ['{valid_hash}']\n\
             [[tenants.keys]]\nname = 'old'\nhash = '{expired_hash}'\nexpires_at = {PAST}\n"
        ),
    );
    let server = ServerProcess::start(&dir, &[]);
    let rejected = server.get_with_key("/v1/models", &expired);
    assert_eq!(rejected.status, 401);
    assert_eq!(rejected.json()["error"]["code"], "api_key_expired", "{rejected:?}");
    assert!(rejected.body.contains(&format!("this API key expired at {PAST}")), "{rejected:?}");
    assert_eq!(server.get_with_key("/v1/models", &valid).status, 200);
    let wrong = server.get_with_key("/v1/models", "ek-wrong");
    assert_eq!((wrong.status, &wrong.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    let neon = |password: &str| {
        let string = format!("neon-connection-string: postgresql://u:{password}@localhost/main\r\n");
        read(server.send("POST", "/sql", &string, &json!({"query": "select 1", "params": []})))
    };
    let rejected = neon(&expired);
    assert!(rejected.status >= 400 && rejected.body.contains("expired at"), "{rejected:?}");
    let admitted = neon(&valid);
    assert!(admitted.body.contains("is SQLite"), "the password is accepted: {admitted:?}");
    // The last of a tenant's AWS credentials are those of its newest key, here the expired one.
    let error = sqs_client(&dir, &server, "acme", "list_queues", "MaxResults=1");
    assert!(error["error"].as_str().unwrap().contains("ExpiredToken"), "{error}");
    let listed = keys(&dir, "acme");
    assert_eq!((&listed[1]["name"], &listed[1]["state"]), (&json!("old"), &json!("expired")), "{listed}");
    assert_eq!(listed[1]["last_used_at"], Value::Null, "a rejected key is not used: {listed}");
}

#[test]
fn a_stream_and_a_long_receive_end_when_their_key_expires_and_another_keys_go_on() {
    let dir = TestDir::new("keys-stream");
    let lasting = dir.run(&["tenant", "add", "acme"]).ok().trim().to_owned();
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(read(server.send("PUT", "/api/queues/acme%2Fjobs", "", &json!({}))).status, 201);
    let soon = Command::new("date").args(["-u", "-d", "+3 seconds", "+%Y-%m-%dT%H:%M:%SZ"]).output().unwrap();
    let soon = String::from_utf8(soon.stdout).unwrap();
    let added = dir.run(&["tenant", "key", "add", "acme", "--name", "brief", "--expires", soon.trim()]).ok();
    let bearer = |key: &str| format!("authorization: Bearer {}\r\n", key.trim());
    let stream = |key: &str| server.send("GET", "/api/queues/jobs/stream", &bearer(key), &Value::Null);
    let mut going_on = stream(&lasting);
    let mut ending = stream(&added);
    let receive =
        server.send("POST", "/api/queues/jobs/receive", &bearer(&added), &json!({"wait_ms": 20_000}));
    let mut text = String::new();
    ending.read_to_string(&mut text).unwrap();
    assert!(text.contains("invalid_api_key"), "the stream ends with an error: {text}");
    let received = read(receive);
    assert_eq!(received.json()["messages"], json!([]), "{received:?}");
    assert_eq!(server.post("/api/queues/acme%2Fjobs/messages", &json!({"body": "late"})).status, 201);
    let mut seen = Vec::new();
    while !seen.windows(4).any(|bytes| bytes == b"late") {
        let mut chunk = [0; 1_024];
        let count = going_on.read(&mut chunk).unwrap();
        assert!(count > 0, "the stream of the other key ended");
        seen.extend_from_slice(&chunk[..count]);
    }
}

#[test]
fn the_last_use_of_a_key_survives_a_restart() {
    let dir = TestDir::new("keys-last-use");
    let used = dir.run(&["tenant", "add", "acme"]).ok();
    dir.run(&["tenant", "key", "add", "acme", "--name", "idle"]).ok();
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(keys(&dir, "acme")[0]["last_used_at"], Value::Null);
    assert_eq!(server.get_with_key("/v1/models", used.trim()).status, 200);
    let listed = keys(&dir, "acme");
    let at = listed[0]["last_used_at"].as_str().unwrap().to_owned();
    assert!(at.ends_with(":00Z"), "the last use is known to the minute: {listed}");
    assert_eq!(listed[1]["last_used_at"], Value::Null, "{listed}");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert_eq!(keys(&dir, "acme")[0]["last_used_at"], at, "without a server");
    let _server = ServerProcess::start(&dir, &[]);
    assert_eq!(keys(&dir, "acme")[0]["last_used_at"], at, "after a restart");
}

#[test]
fn a_tenant_has_at_most_16_keys() {
    let dir = TestDir::new("keys-limit");
    dir.run(&["tenant", "add", "acme"]).ok();
    let server = ServerProcess::start(&dir, &[]);
    let add = |body: &Value| server.post("/api/tenants/acme/keys", body);
    for number in 1..16 {
        let added = add(&json!({"name": format!("key-{number}"), "expires_at": "1d"}));
        assert_eq!((added.status, &added.json()["key_name"]), (201, &json!(format!("key-{number}"))));
    }
    let refused = add(&json!({}));
    assert!(refused.status == 400 && refused.body.contains("more than 16 keys"), "{refused:?}");
    let unknown = add(&json!({"expiry": "1d"}));
    assert!(unknown.status == 400 && unknown.body.contains("the options are"), "{unknown:?}");
}

#[test]
fn the_keys_of_an_earlier_version_work_and_get_company() {
    let dir = TestDir::new("keys-upgrade");
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/upgrade/before-owners.tar.gz");
    assert!(
        Command::new("tar").arg("xzf").arg(archive).current_dir(dir.file("")).status().unwrap().success()
    );
    let clients: Value = serde_json::from_str(&dir.read("evenkeel-data/clients.json")).unwrap();
    let tenant = &clients["tenants"]["acme"];
    let old = tenant["key"].as_str().unwrap();
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.get_with_key("/v1/models", old).status, 200);
    let access_key = tenant["access_key_id"].as_str().unwrap();
    assert_eq!(format!("acme.{}", keys(&dir, "acme")[0]["name"].as_str().unwrap()), access_key);
    let new = dir.run(&["tenant", "key", "add", "acme", "--name", "new"]).ok();
    drop(server);
    let server = ServerProcess::start(&dir, &[]);
    for key in [old, new.trim()] {
        assert_eq!(server.get_with_key("/v1/models", key).status, 200);
    }
}

#[test]
fn a_stream_of_an_administrator_ends_when_the_admin_key_changes() {
    let dir = TestDir::new("keys-admin-stream");
    let (old, old_hash) = key_with_hash(&dir);
    let (new, new_hash) = key_with_hash(&dir);
    let configure = |hashes: &[&str]| {
        dir.write("evenkeel.toml", &format!("[server]\nadmin_key_hashes = {hashes:?}\n"));
    };
    configure(&[&old_hash, &new_hash]);
    let server = ServerProcess::start(&dir, &[]);
    let bearer = |key: &str| format!("authorization: Bearer {key}\r\n");
    assert_eq!(read(server.send("PUT", "/api/queues/jobs", &bearer(&new), &json!({}))).status, 201);
    let mut ending = server.send("GET", "/api/queues/jobs/stream", &bearer(&old), &Value::Null);
    let mut head = [0; 12];
    ending.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    configure(&[&new_hash]);
    server.signal("HUP");
    server.wait_log("reloaded");
    let mut text = String::new();
    ending.read_to_string(&mut text).unwrap();
    assert!(text.contains("invalid_api_key"), "the stream ends with an error: {text}");
    assert_eq!(server.get_with_key("/api/tenants", &old).status, 403);
    assert_eq!(server.get_with_key("/api/tenants", &new).status, 200);
}
