//! Owners of queues: the native API, the command line, account numbers and metrics. SQS clients are tested in `evenkeel-sqs`.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::external_client::python;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read};

/// Returns the account number of a tenant.
pub(crate) fn account(dir: &TestDir, tenant: &str) -> String {
    let listed: Value = serde_json::from_str(&dir.run(&["tenant", "list", "--json"]).ok()).unwrap();
    let tenants = listed["tenants"].as_array().unwrap();
    let found = tenants.iter().find(|found| found["name"] == tenant).unwrap();
    found["account"].as_str().unwrap().to_owned()
}

/// Calls an SQS operation as a tenant, with boto3; `parameters` are separated by spaces.
pub(crate) fn sqs_client(
    dir: &TestDir,
    server: &ServerProcess,
    tenant: &str,
    operation: &str,
    parameters: &str,
) -> Value {
    let printed = dir.run(&["tenant", "sqs-key", tenant]).ok();
    let mut script = python("sqs_call.py");
    script.arg(format!("http://{}", server.address)).arg(operation).args(parameters.split(' '));
    script.envs(printed.lines().map(|line| line.split_once('=').unwrap()));
    let output = script.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server with the tenants `acme` and `mallory`.
struct Gateway {
    dir: TestDir,
    server: ServerProcess,
    acme: String,
    mallory: String,
}

impl Gateway {
    fn start(name: &str) -> Self {
        let dir = TestDir::new(name);
        let [acme, mallory] = ["acme", "mallory"].map(|tenant| dir.run(&["tenant", "add", tenant]).ok());
        let server = ServerProcess::start(&dir, &[]);
        Self { dir, server, acme, mallory }
    }

    /// Sends a request of the native API with a tenant's key.
    fn call(&self, key: &str, method: &str, path: &str, body: &Value) -> RawResponse {
        let headers = format!("authorization: Bearer {}\r\n", key.trim());
        read(self.server.send(method, path, &headers, body))
    }

    fn get(&self, key: &str, path: &str) -> Value {
        let reply = self.call(key, "GET", path, &Value::Null);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    fn send(&self, key: &str, queue: &str, body: &str) -> u16 {
        self.call(key, "POST", &format!("/api/queues/{queue}/messages"), &json!({"body": body})).status
    }

    /// Returns the bodies of the messages that are received and not acknowledged.
    fn receive(&self, key: &str, queue: &str) -> Vec<String> {
        let options = json!({"max": 10, "wait_ms": 20_000, "lease_ms": 0});
        let reply = self.call(key, "POST", &format!("/api/queues/{queue}/receive"), &options);
        assert_eq!(reply.status, 200, "{reply:?}");
        let messages = reply.json()["messages"].as_array().unwrap().clone();
        messages.iter().map(|message| message["body"].as_str().unwrap().to_owned()).collect()
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.dir.run(args);
        assert_eq!(output.code, Some(0), "{output:?}");
        output.out + &output.err
    }

    fn refused(&self, args: &[&str]) -> String {
        self.dir.run(args).failed()
    }

    fn sqs(&self, tenant: &str, operation: &str, parameters: &str) -> Value {
        sqs_client(&self.dir, &self.server, tenant, operation, parameters)
    }
}

#[test]
fn the_native_api_shows_a_tenant_its_own_and_the_shared_queues_only() {
    let gateway = Gateway::start("owners-native");
    let Gateway { acme, mallory, .. } = &gateway;
    gateway.run(&["queue", "create", "jobs", "--owner", "acme"]);
    gateway.run(&["queue", "create", "jobs", "--owner", "mallory"]);
    gateway.run(&["queue", "create", "secret", "--owner", "acme"]);
    gateway.run(&["queue", "create", "common", "--shared"]);
    assert_eq!(gateway.send(acme, "jobs", "of acme"), 201);
    assert_eq!(gateway.send(mallory, "jobs", "of mallory"), 201);
    assert_eq!(gateway.receive(acme, "jobs"), ["of acme"]);
    assert_eq!(gateway.receive(mallory, "jobs"), ["of mallory"]);
    let names = |key: &str| {
        let listed = gateway.get(key, "/api/queues");
        let queues = listed["queues"].as_array().unwrap().clone();
        queues.iter().map(|queue| (queue["name"].clone(), queue["owner"].clone())).collect::<Vec<_>>()
    };
    let common = (json!("common"), Value::Null);
    let of = |name: &str, owner: &str| (json!(name), json!(owner));
    assert_eq!(names(acme), [common.clone(), of("jobs", "acme"), of("secret", "acme")]);
    assert_eq!(names(mallory), [common, of("jobs", "mallory")]);
    let receipts = json!({"receipts": ["x"], "lease_ms": 1});
    let account = account(&gateway.dir, "acme");
    for owner in ["acme", &account] {
        for (method, rest, body) in [
            ("GET", "", Value::Null),
            ("GET", "/messages", Value::Null),
            ("GET", "/messages/00000001-0000-0001-0000-000000000005", Value::Null),
            ("GET", "/results/00000001-0000-0001-0000-000000000005", Value::Null),
            ("GET", "/keys", Value::Null),
            ("GET", "/stream", Value::Null),
            ("POST", "/messages", json!({"body": "x"})),
            ("POST", "/receive", json!({})),
            ("POST", "/ack", json!({"receipts": ["x"]})),
            ("POST", "/nack", json!({"receipts": ["x"]})),
            ("POST", "/extend", receipts.clone()),
            ("POST", "/purge", Value::Null),
        ] {
            let error = |name: &str| {
                let reply =
                    gateway.call(mallory, method, &format!("/api/queues/{owner}%2F{name}{rest}"), &body);
                (reply.status, reply.body.replace(name, "NAME"))
            };
            let found = error("secret");
            assert_eq!(found.0, 404, "{method} {rest}: {found:?}");
            assert_eq!(found, error("absent"), "{method} {rest}");
        }
    }
    for (method, rest) in [("PUT", ""), ("DELETE", ""), ("POST", "/assign"), ("POST", "/redrive")] {
        let reply =
            gateway.call(mallory, method, &format!("/api/queues/jobs{rest}"), &json!({"owner": "mallory"}));
        assert_eq!(reply.status, 403, "{method} {rest}: {reply:?}");
    }
    assert_eq!(gateway.get(acme, "/api/queues/acme%2Fsecret")["owner"], "acme");
}

#[test]
fn the_command_line_creates_names_and_assigns_queues_of_tenants() {
    let gateway = Gateway::start("owners-cli");
    let Gateway { acme, mallory, .. } = &gateway;
    let error = gateway.refused(&["queue", "create", "jobs"]);
    assert!(error.contains("--owner TENANT, or share it with --shared"), "{error}");
    let error = gateway.refused(&["queue", "create", "999999999999/jobs"]);
    assert!(error.contains("tenant with the account number 999999999999"), "{error}");
    gateway.run(&["queue", "create", "jobs-dead", "--shared"]);
    let dead_letters = r#"dead_letters={"queue": "jobs-dead", "after": 1}"#;
    gateway.run(&["queue", "create", "jobs", "--shared", dead_letters, "lease_ms=43200000"]);
    for body in ["dead", "leased", "ready"] {
        assert_eq!(gateway.send(mallory, "jobs", body), 201);
        if body != "ready" {
            let lease_ms = if body == "dead" { 0 } else { 43_200_000 };
            let options = json!({"wait_ms": 20_000, "lease_ms": lease_ms});
            let reply = gateway.call(mallory, "POST", "/api/queues/jobs/receive", &options);
            assert_eq!(reply.json()["messages"][0]["body"], body, "{reply:?}");
        }
    }
    let stats = |queue: &str| -> Value {
        serde_json::from_str(&gateway.run(&["queue", "stats", queue, "--json"])).unwrap()
    };
    while stats("jobs-dead")["pending"] != 1 {}
    let error = gateway.refused(&["queue", "assign", "jobs", "--owner", "acme"]);
    assert!(
        error.contains("\"jobs\" and queue \"jobs-dead\" are a queue and its dead-letter queue"),
        "{error}"
    );
    let error = gateway.refused(&["queue", "assign", "jobs-dead", "--owner", "acme"]);
    assert!(error.contains("assign both at the same time"), "{error}");
    let error = gateway.refused(&["queue", "assign", "jobs", "--owner", "nobody"]);
    assert!(error.contains("nobody"), "{error}");
    gateway.run(&["queue", "assign", "jobs", "jobs-dead", "--owner", "acme"]);
    let moved = stats("acme/jobs");
    assert_eq!((&moved["pending"], &moved["in_flight"]), (&json!(1), &json!(1)), "{moved}");
    assert_eq!(moved["settings"]["dead_letters"], json!({"queue": "jobs-dead", "after": 1}));
    assert_eq!(gateway.send(mallory, "jobs", "x"), 404);
    // The redrive is still in effect.
    assert_eq!(gateway.receive(acme, "jobs"), ["ready"]);
    while stats("acme/jobs-dead")["pending"] != 2 {}
    let error = gateway.refused(&["queue", "purge", "jobs"]);
    assert!(error.contains("tenants own acme/jobs"), "{error}");
    gateway.run(&["queue", "create", "jobs", "--shared"]);
    let error = gateway.refused(&["queue", "assign", "jobs", "--owner", "acme"]);
    assert!(error.contains("the new owner has another queue \"jobs\""), "{error}");
    let listed = gateway.run(&["queue", "list"]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(rows, [["NAME", "OWNER"], ["jobs", "-"], ["jobs", "acme"], ["jobs-dead", "acme"]], "{listed}");
    let id =
        gateway.get(acme, "/api/queues/jobs-dead/messages")["messages"][0]["id"].as_str().unwrap().to_owned();
    let explained = gateway.run(&["explain", &id]);
    assert!(explained.contains("message of queue \"acme/jobs-dead\""), "{explained}");
    gateway.run(&["queue", "redrive", "acme/jobs-dead", "--to", "jobs"]);
    gateway.run(&["queue", "assign", "acme/jobs", "acme/jobs-dead", "--owner", "mallory"]);
    let waiting =
        |key: &str| gateway.get(key, "/api/queues/jobs/messages")["messages"].as_array().unwrap().len();
    assert_eq!(waiting(mallory), 2);
    gateway.run(&["queue", "delete", "jobs"]);
    gateway.run(&["queue", "assign", "mallory/jobs", "mallory/jobs-dead", "--shared"]);
    assert_eq!(waiting(acme), 2);
}

#[test]
fn a_long_poll_gets_no_message_of_a_queue_that_its_consumer_may_no_longer_use() {
    let gateway = Gateway::start("owners-poll");
    let Gateway { acme, mallory, server, .. } = &gateway;
    gateway.run(&["queue", "create", "jobs", "--shared"]);
    let headers = format!("authorization: Bearer {}\r\n", mallory.trim());
    let wait = json!({"wait_ms": 20_000});
    let waiting = server.send("POST", "/api/queues/jobs/receive", &headers, &wait);
    while !server.get("/metrics").body.lines().any(|line| line == "evenkeel_sqs_waiting 1") {}
    gateway.run(&["queue", "assign", "jobs", "--owner", "acme"]);
    assert_eq!(gateway.send(acme, "jobs", "of acme"), 201);
    let reply = read(waiting);
    assert_eq!(reply.status, 404, "{reply:?}");
    assert_eq!(gateway.receive(acme, "jobs"), ["of acme"]);
}

#[test]
fn a_stream_ends_when_its_consumer_may_no_longer_use_the_queue() {
    let gateway = Gateway::start("owners-stream");
    let Gateway { acme, mallory, server, .. } = &gateway;
    gateway.run(&["queue", "create", "jobs", "--shared"]);
    let headers = format!("authorization: Bearer {}\r\n", mallory.trim());
    let mut stream = BufReader::new(server.send("GET", "/api/queues/jobs/stream", &headers, &Value::Null));
    let mut status = String::new();
    stream.read_line(&mut status).unwrap();
    assert!(status.contains("200"), "{status}");
    gateway.run(&["queue", "assign", "jobs", "--owner", "acme"]);
    assert_eq!(gateway.send(acme, "jobs", "of acme"), 201);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("event: error") && !rest.contains("of acme"), "{rest}");
    assert_eq!(gateway.receive(acme, "jobs"), ["of acme"]);
}

/// Opens a stream and reads the status line.
fn open_stream(server: &ServerProcess, key: Option<&str>) -> BufReader<TcpStream> {
    let headers = key.map(|key| format!("authorization: Bearer {}\r\n", key.trim())).unwrap_or_default();
    let mut stream = BufReader::new(server.send_text("GET", "/api/queues/jobs/stream", &headers, ""));
    let mut status = String::new();
    stream.read_line(&mut status).unwrap();
    assert!(status.contains("200"), "{status}");
    stream
}

#[test]
fn a_stream_ends_when_its_tenant_is_removed_or_disabled_or_gets_another_key() {
    let gateway = Gateway::start("owners-revoked");
    gateway.run(&["queue", "create", "jobs", "--shared"]);
    for change in [
        &["tenant", "remove", "guest"][..],
        &["tenant", "rotate", "guest"],
        &["tenant", "set", "guest", "--state", "disabled"],
    ] {
        let key = gateway.dir.run(&["tenant", "add", "guest"]).ok();
        let mut stream = open_stream(&gateway.server, Some(&key));
        gateway.run(change);
        assert_eq!(gateway.send(&gateway.acme, "jobs", "of acme"), 201);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("event: error") && !rest.contains("of acme"), "{change:?}: {rest}");
        assert_eq!(gateway.receive(&gateway.acme, "jobs"), ["of acme"]);
        gateway.run(&["queue", "purge", "jobs"]);
        if change[1] != "remove" {
            gateway.run(&["tenant", "remove", "guest"]);
        }
    }
}

#[test]
fn a_stream_without_a_key_ends_when_the_first_tenant_is_added() {
    let dir = TestDir::new("owners-first-tenant");
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["queue", "create", "jobs"]).ok();
    let mut stream = open_stream(&server, None);
    dir.run(&["tenant", "add", "acme"]).ok();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("event: error"), "{rest}");
}

#[test]
fn the_target_of_dispatch_is_shown_to_the_owner_and_the_administrator_only() {
    let gateway = Gateway::start("owners-target");
    let Gateway { acme, mallory, .. } = &gateway;
    let dispatch = r#"dispatch={"target": "/v1/chat/completions"}"#;
    gateway.run(&["queue", "create", "common", "--shared", dispatch]);
    gateway.run(&["queue", "create", "own", "--owner", "acme", dispatch]);
    let target = |key: &str, queue: &str| {
        let shown = gateway.get(key, &format!("/api/queues/{queue}"));
        assert!(shown["settings"]["dispatch"]["concurrency"].is_u64(), "{shown}");
        shown["settings"]["dispatch"].get("target").cloned()
    };
    assert_eq!(target(mallory, "common"), None);
    assert_eq!(target(acme, "own"), Some(json!("/v1/chat/completions")));
    assert!(gateway.run(&["queue", "stats", "common", "--json"]).contains("/v1/chat/completions"));
    // The jobs of other tenants are neither read nor taken.
    assert_eq!(gateway.call(mallory, "GET", "/api/queues/common/messages", &Value::Null).status, 404);
    assert_eq!(gateway.call(mallory, "POST", "/api/queues/common/receive", &json!({})).status, 404);
    assert_eq!(gateway.call(mallory, "GET", "/api/queues/common/stream", &Value::Null).status, 404);
}

#[test]
fn the_position_in_a_list_does_not_reveal_the_names_of_tenants() {
    let gateway = Gateway::start("owners-position");
    let Gateway { mallory, .. } = &gateway;
    let list = |owner: &str| {
        let reply = gateway.call(mallory, "GET", &format!("/api/queues?after={owner}%2Fa"), &Value::Null);
        (reply.status, reply.body.replace(owner, "OWNER"))
    };
    assert_eq!(list("acme"), list("nobody"));
    assert_eq!(list("acme").0, 400);
    assert_eq!(list("mallory").0, 200);
}

#[test]
fn an_account_number_survives_a_restart_and_is_not_reused() {
    let Gateway { dir, server, acme, .. } = Gateway::start("owners-accounts");
    let first = account(&dir, "acme");
    dir.run(&["queue", "create", "jobs", "--owner", "acme"]).ok();
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(account(&dir, "acme"), first);
    let url = sqs_client(&dir, &server, "acme", "get_queue_url", "QueueName=jobs");
    assert!(url["QueueUrl"].as_str().unwrap().ends_with(&format!("/{first}/jobs")), "{url}");
    dir.run(&["tenant", "remove", "acme"]).ok();
    let other = dir.run(&["tenant", "add", "acme"]).ok();
    assert_ne!(other, acme);
    let second = account(&dir, "acme");
    assert_ne!(second, first);
    // The new tenant has not inherited the queue, whose owner is shown by its number.
    assert_eq!(server.get_with_key("/api/queues/jobs", &other).status, 404);
    let listed = dir.run(&["queue", "list"]).ok();
    assert!(
        listed.lines().any(|line| line.split_whitespace().take(2).eq(["jobs", first.as_str()])),
        "{listed}"
    );
    drop(server);
    // Offline changes follow the same rule.
    dir.run(&["tenant", "remove", "acme"]).ok();
    dir.run(&["tenant", "add", "acme"]).ok();
    let third = account(&dir, "acme");
    assert!(third != second && third != first);
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(account(&dir, "acme"), third);
    dir.run(&["queue", "assign", &format!("{first}/jobs"), "--owner", "acme"]).ok();
    let url = sqs_client(&dir, &server, "acme", "get_queue_url", "QueueName=jobs");
    assert!(url["QueueUrl"].as_str().unwrap().ends_with(&format!("/{third}/jobs")), "{url}");
}

#[test]
fn a_policy_of_the_administrator_limits_who_uses_a_shared_queue() {
    let gateway = Gateway::start("owners-policy");
    let Gateway { acme, mallory, dir, .. } = &gateway;
    let policy = json!({"Statement": [{
        "Effect": "Allow", "Principal": {"AWS": account(dir, "acme")}, "Action": ["sqs:SendMessage", "sqs:ReceiveMessage"],
        "Resource": "arn:aws:sqs:us-east-1:000000000000:common",
    }]});
    gateway.run(&["queue", "create", "common", "--shared", &format!("policy={policy}")]);
    assert_eq!(gateway.send(acme, "common", "of acme"), 201);
    assert_eq!(gateway.send(mallory, "common", "of mallory"), 404);
    assert_eq!(gateway.receive(acme, "common"), ["of acme"]);
    let created = gateway.sqs("acme", "create_queue", "QueueName=common");
    assert!(created["QueueUrl"].as_str().unwrap().ends_with("/000000000000/common"), "{created}");
    let denied = "AWS.SimpleQueueService.NonExistentQueue";
    for change in ["purge_queue", "delete_queue"] {
        assert_eq!(gateway.sqs("acme", change, "QueueUrl=common")["error"], denied, "{change}");
    }
    let own_policy = r#"Attributes={"Policy":""}"#;
    let changed = gateway.sqs("acme", "set_queue_attributes", &format!("QueueUrl=common {own_policy}"));
    assert_eq!(changed["error"], denied, "{changed}");
    // To the other tenant the name is free.
    let created = gateway.sqs("mallory", "create_queue", "QueueName=common");
    let expected = format!("/{}/common", account(dir, "mallory"));
    assert!(created["QueueUrl"].as_str().unwrap().ends_with(&expected), "{created}");
    gateway.run(&["queue", "create", "common", "policy=null"]);
    assert_eq!(gateway.send(mallory, "000000000000%2Fcommon", "of mallory"), 201);
}

#[test]
fn queue_metrics_have_the_owner_and_two_queues_of_one_name_are_counted_apart() {
    let gateway = Gateway::start("owners-metrics");
    let Gateway { acme, mallory, dir, server, .. } = &gateway;
    gateway.run(&["queue", "create", "jobs", "--shared"]);
    gateway.run(&["queue", "create", "jobs", "--owner", "acme"]);
    for _ in 0..2 {
        assert_eq!(gateway.send(acme, "jobs", "x"), 201);
    }
    assert_eq!(gateway.send(mallory, "jobs", "x"), 201);
    dir.run(&["queue", "assign", "acme/jobs", "--owner", "mallory"]).ok();
    assert_eq!(gateway.send(mallory, "jobs", "x"), 201);
    let page = server.get("/metrics").body;
    for line in [
        r#"evenkeel_queue_sent_total{queue="jobs",owner="acme"} 2"#,
        r#"evenkeel_queue_sent_total{queue="jobs",owner="mallory"} 1"#,
        r#"evenkeel_queue_sent_total{queue="jobs",owner=""} 1"#,
        r#"evenkeel_queue_messages{queue="jobs",owner="mallory",state="pending"} 3"#,
    ] {
        assert!(page.lines().any(|found| found == line), "no {line} in {page}");
    }
}

#[test]
fn queues_from_open_mode_are_shared_and_a_warning_names_queue_assign() {
    let dir = TestDir::new("owners-open");
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["queue", "create", "jobs"]).ok();
    let key = dir.run(&["tenant", "add", "acme"]).ok();
    let warning = server.wait_log("queues without an owner");
    assert!(warning["message"].as_str().unwrap().contains("evenkeel queue assign"), "{warning}");
    assert_eq!(warning["queues"], "jobs");
    assert_eq!(server.get_with_key("/api/queues/jobs", &key).status, 200);
    // Once the administrator has confirmed that it is shared, only the other queue is named.
    dir.run(&["queue", "assign", "jobs", "--shared"]).ok();
    dir.run(&["queue", "create", "other", "--owner", "acme"]).ok();
    server.signal("HUP");
    server.wait_log("reloaded");
    drop(server);
    dir.run(&["tenant", "remove", "acme"]).ok();
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["queue", "create", "second"]).ok();
    dir.run(&["tenant", "add", "beta"]).ok();
    assert_eq!(server.wait_log("queues without an owner")["queues"], "second");
}
