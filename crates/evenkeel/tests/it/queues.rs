//! The native queue API and `evenkeel queue …`, with the binary as a process.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read};

fn start(name: &str) -> (TestDir, ServerProcess) {
    let dir = TestDir::new(name);
    dir.write("evenkeel.toml", "[queue]\nstore = 'memory'\n");
    let server = ServerProcess::start(&dir, &[]);
    (dir, server)
}

fn put(server: &ServerProcess, path: &str, body: &Value) -> RawResponse {
    read(server.send("PUT", path, "", body))
}

/// Checks the status and returns the JSON body.
#[track_caller]
fn json_of(status: u16, reply: &RawResponse) -> Value {
    assert_eq!(reply.status, status, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}

/// Checks the status and returns the error message.
#[track_caller]
fn error_of(status: u16, reply: &RawResponse) -> String {
    json_of(status, reply)["error"]["message"].as_str().unwrap().to_owned()
}

fn send(server: &ServerProcess, queue: &str, messages: &[(&str, &str)]) -> Vec<Value> {
    let messages: Vec<Value> =
        messages.iter().map(|(key, body)| json!({"fairness_key": key, "body": body})).collect();
    let response =
        json_of(201, &server.post(&format!("/api/queues/{queue}/messages"), &json!({"messages": messages})));
    response["ids"].as_array().unwrap().clone()
}

fn receive(server: &ServerProcess, queue: &str, options: &Value) -> Vec<Value> {
    let response = json_of(200, &server.post(&format!("/api/queues/{queue}/receive"), options));
    response["messages"].as_array().unwrap().clone()
}

#[test]
fn a_message_is_sent_peeked_explained_received_and_acknowledged() {
    let (_folder, server) = start("native-life");
    let created = json_of(201, &put(&server, "/api/queues/jobs", &json!({"lease_ms": 60_000})));
    assert_eq!((&created["name"], &created["settings"]["lease_ms"]), (&json!("jobs"), &json!(60_000)));
    let message =
        json!({"fairness_key": "acme/eu", "body": "héllo", "headers": {"kind": "greeting"}, "cost": 500});
    let id = json_of(201, &server.post("/api/queues/jobs/messages", &message))["ids"][0].clone();
    let path = format!("/api/queues/jobs/messages/{}", id.as_str().unwrap());
    assert_eq!(json_of(200, &server.get(&path))["state"], "waiting");
    let peeked = json_of(200, &server.get("/api/queues/jobs/messages?max=5"));
    assert_eq!((&peeked["messages"][0]["id"], &peeked["messages"][0]["body"]), (&id, &json!("héllo")));
    let got = receive(&server, "jobs", &json!({"wait_ms": 20_000}));
    assert_eq!((got.len(), &got[0]["id"], &got[0]["attempt"]), (1, &id, &json!(1)));
    assert_eq!(
        (&got[0]["fairness_key"], &got[0]["headers"]["kind"]),
        (&json!("acme/eu"), &json!("greeting"))
    );
    assert_eq!(json_of(200, &server.get(&path))["state"], "in_flight");
    let receipts = json!({"receipts": [got[0]["receipt"], "forged"]});
    let longer = json!({"receipts": [got[0]["receipt"]], "lease_ms": 90_000});
    assert_eq!(json_of(200, &server.post("/api/queues/jobs/extend", &longer))["done"], 1);
    let acked = json_of(200, &server.post("/api/queues/jobs/ack", &receipts));
    assert_eq!((&acked["done"], &acked["failed"][0]["receipt"]), (&json!(1), &json!("forged")));
    assert!(error_of(404, &server.get(&path)).contains("acknowledged, expired, or never sent"));
    let page = server.get("/metrics").body;
    assert!(page.contains("evenkeel_queue_deleted_total{queue=\"jobs\",owner=\"\"} 1"), "{page}");
}

#[test]
fn sqs_and_native_clients_share_messages() {
    let (_folder, server) = start("native-sqs");
    let sqs = |operation: &str, body: &Value| {
        let headers = format!("x-amz-target: AmazonSQS.{operation}\r\n");
        json_of(200, &read(server.send("POST", "/", &headers, body)))
    };
    sqs("CreateQueue", &json!({"QueueName": "q"}));
    let text = json!({"DataType": "String", "StringValue": "x"});
    let bytes = json!({"DataType": "Binary", "BinaryValue": "AAEC"});
    let message = json!({
        "QueueUrl": "q", "MessageBody": "sent by SQS", "MessageGroupId": "acme",
        "MessageAttributes": {"a": text, "b": bytes},
    });
    sqs("SendMessage", &message);
    let got = receive(&server, "q", &json!({"wait_ms": 20_000}));
    assert_eq!((&got[0]["body"], &got[0]["fairness_key"]), (&json!("sent by SQS"), &json!("acme")));
    assert_eq!(got[0]["headers"], json!({"a": "x", "b": {"base64": "AAEC"}}));
    // A message received in one protocol can be deleted in the other.
    sqs("DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": got[0]["receipt"]}));
    let message = json!({"body": "sent natively", "headers": {"c": "z"}});
    json_of(201, &server.post("/api/queues/q/messages", &message));
    let options = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "MessageAttributeNames": ["All"]});
    let got = sqs("ReceiveMessage", &options);
    let message = &got["Messages"][0];
    assert_eq!(
        (&message["Body"], &message["MessageAttributes"]["c"]["StringValue"]),
        (&json!("sent natively"), &json!("z"))
    );
}

#[test]
fn a_new_weight_applies_to_waiting_messages() {
    let (dir, server) = start("native-weights");
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    let many: Vec<(&str, &str)> = (0..400).map(|n| (if n % 2 == 0 { "a" } else { "b" }, "x")).collect();
    send(&server, "q", &many);
    let rule = json_of(200, &put(&server, "/api/queues/q/keys/a", &json!({"weight": 3})));
    assert_eq!((&rule["name"], &rule["weight"]), (&json!("a"), &json!(3.0)));
    let got = receive(&server, "q", &json!({"max": 100, "wait_ms": 20_000}));
    let of_a = got.iter().filter(|message| message["fairness_key"] == "a").count();
    assert!((74..=76).contains(&of_a), "{of_a} of {}", got.len());
    let keys = json_of(200, &server.get("/api/queues/q/keys"));
    let a = keys["keys"].as_array().unwrap().iter().find(|key| key["name"] == "a").unwrap();
    assert_eq!((&a["weight"], &a["in_flight"], &a["delivered"]), (&json!(3.0), &json!(of_a), &json!(of_a)));
    dir.run(&["queue", "weight", "q", "a", "none"]).ok();
    let shown = dir.run(&["queue", "stats", "q"]).ok();
    let row = shown.lines().find(|line| line.starts_with("a ")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some("1.0"), "{shown}");
}

#[test]
fn cost_mode_bytes_schedules_by_bytes_and_survives_a_restart() {
    let dir = TestDir::new("native-cost");
    let server = ServerProcess::start(&dir, &[]);
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    let large = "x".repeat(10_000);
    let small = "x".repeat(1_000);
    let sent: Vec<(&str, &str)> =
        (0..60).flat_map(|_| [("large", large.as_str()), ("small", small.as_str())]).collect();
    for _ in 0..2 {
        send(&server, "q", &sent);
    }
    // Counts the large messages among the next 44.
    let count_large = |server: &ServerProcess| {
        let mut got = Vec::new();
        while got.len() < 44 {
            // Small batches: right after a restart, the messages of one key may be in memory before those of the other.
            let max = (44 - got.len()).min(4);
            got.extend(receive(server, "q", &json!({"max": max, "wait_ms": 20_000})));
        }
        got.iter().filter(|message| message["fairness_key"] == "large").count()
    };
    let by_count = count_large(&server);
    let changed = json_of(200, &put(&server, "/api/queues/q", &json!({"cost_mode": "bytes"})));
    assert_eq!(changed["settings"]["cost_mode"], "bytes");
    let by_bytes = count_large(&server);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(json_of(200, &server.get("/api/queues/q"))["settings"]["cost_mode"], "bytes");
    let after = count_large(&server);
    println!("large messages of 44: {by_count} by count, {by_bytes} by bytes, {after} after a restart");
    assert!((20..=24).contains(&by_count) && (2..=7).contains(&by_bytes) && (2..=7).contains(&after));
    let error = error_of(400, &put(&server, "/api/queues/q", &json!({"cost_mode": "weight"})));
    assert!(error.contains("unknown variant `weight`"), "{error}");
}

#[test]
fn a_key_at_its_limits_is_throttled_and_explained() {
    let (dir, server) = start("native-limits");
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    send(&server, "q", &[("a", "x"); 10]);
    let path = "/api/queues/q/keys/a";
    json_of(200, &put(&server, path, &json!({"weight": 2, "concurrency_max": 3})));
    let rule = json_of(200, &put(&server, path, &json!({"rate_per_second": 0.01, "burst": 5})));
    let whole =
        json!({"name": "a", "weight": 2.0, "concurrency_max": 3, "rate_per_second": 0.01, "burst": 5});
    assert_eq!(rule, whole, "omitted fields keep their values");
    let got = receive(&server, "q", &json!({"max": 10, "wait_ms": 20_000}));
    assert_eq!(got.len(), 3);
    let key = || json_of(200, &server.get("/api/queues/q/keys"))["keys"][0].clone();
    assert_eq!(key()["throttled"], json!({"scope": "tenant", "reason": "concurrency", "until_ms": null}));
    let shown = dir.run(&["queue", "stats", "q"]).ok();
    assert!(shown.contains("RATE PER SECOND  BURST  THROTTLED "), "{shown}");
    let row = shown.lines().find(|line| line.starts_with("a ")).unwrap();
    assert!(row.contains(" 0.01 ") && row.contains(" 5      concurrency of tenant  "), "{shown}");
    let shown = dir.run(&["queue", "limit", "q", "a", "--concurrency", "none"]).ok();
    assert!(shown.contains("0.01"), "{shown}");
    assert_eq!(
        receive(&server, "q", &json!({"max": 10, "wait_ms": 20_000})).len(),
        2,
        "three of the burst of five are already delivered"
    );
    let throttled = key()["throttled"].clone();
    assert_eq!((&throttled["reason"], throttled["until_ms"].is_u64()), (&json!("rate"), true));
    let id = server.get("/api/queues/q/messages").json()["messages"][0]["id"].as_str().unwrap().to_owned();
    let message = json_of(200, &server.get(&format!("/api/queues/q/messages/{id}")));
    assert!(
        message["explanation"].as_str().unwrap().contains("rate limit reached, next delivery in "),
        "{message}"
    );
    dir.run(&["queue", "limit", "q", "a", "--rate", "none"]).ok();
    assert_eq!(receive(&server, "q", &json!({"max": 10, "wait_ms": 20_000})).len(), 5);
    for (bad, message) in [
        (json!({}), "no field is set"),
        (
            json!({"wait": 1}),
            "unknown field \"wait\", expected weight, concurrency_max, rate_per_second, burst",
        ),
        (json!({"burst": 5}), "a burst needs a rate_per_second"),
        (json!({"concurrency_max": 0}), "concurrency_max: "),
        (json!({"rate_per_second": 0}), "a rate is between 0.001 and 1000000 per second"),
    ] {
        let error = error_of(400, &put(&server, path, &bad));
        assert!(error.contains(message), "{bad}: {error:?}");
    }
}

#[test]
fn messages_with_the_same_dedup_id_are_dropped_even_after_a_crash() {
    let dir = TestDir::new("native-dedup");
    let server = ServerProcess::start(&dir, &[]);
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    let twice =
        json!({"messages": [{"body": "x", "dedup_id": "order-7"}, {"body": "y", "dedup_id": "order-7"}]});
    let first = json_of(201, &server.post("/api/queues/q/messages", &twice));
    assert_eq!(first["ids"][0], first["ids"][1]);
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    let again = json!({"body": "z", "dedup_id": "order-7"});
    assert_eq!(json_of(201, &server.post("/api/queues/q/messages", &again))["ids"][0], first["ids"][0]);
    let got = receive(&server, "q", &json!({"max": 10, "wait_ms": 20_000}));
    assert_eq!(got.iter().map(|message| &message["body"]).collect::<Vec<_>>(), ["x"]);
    let long = json!({"body": "x", "dedup_id": "x".repeat(129)});
    assert!(error_of(400, &server.post("/api/queues/q/messages", &long)).contains("1 to 128 in length"));
}

#[test]
fn an_expired_message_is_not_delivered_even_after_a_crash() {
    let dir = TestDir::new("native-ttl");
    let server = ServerProcess::start(&dir, &[]);
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    let send = |server: &ServerProcess, body: &str, ttl_ms: u64| {
        let message = json!({"body": body, "ttl_ms": ttl_ms, "fairness_key": body});
        json_of(201, &server.post("/api/queues/q/messages", &message))["ids"][0].as_str().unwrap().to_owned()
    };
    let kept = send(&server, "kept", 3_600_000);
    let expired = send(&server, "expired", 1);
    // A message expires even if no consumer receives.
    while json_of(200, &server.get("/api/queues/q"))["expired"] != 1 {}
    let explained = |id: &str| server.get(&format!("/api/queues/q/messages/{id}"));
    let text = json_of(200, &explained(&kept))["explanation"].to_string();
    assert!(text.contains("; expires in "), "{text}");
    assert!(error_of(404, &explained(&expired)).contains("acknowledged, expired, or never sent"));
    let page = server.get("/metrics").body;
    assert!(page.contains("evenkeel_queue_expired_total{queue=\"q\",owner=\"\"} 1"), "{page}");
    send(&server, "expired during the restart", 50);
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    while json_of(200, &server.get("/api/queues/q"))["pending"] != 1 {}
    let got = receive(&server, "q", &json!({"max": 10, "wait_ms": 20_000}));
    assert_eq!(got.iter().map(|message| &message["body"]).collect::<Vec<_>>(), ["kept"]);
    assert_eq!(receive(&server, "q", &json!({"max": 10})).len(), 0);
}

#[test]
fn invalid_input_is_reported_and_changes_nothing() {
    let (_folder, server) = start("native-bad");
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    let put_error = |body: Value| error_of(400, &put(&server, "/api/queues/q", &body));
    assert!(put_error(json!({"leese_ms": 1})).contains("unknown setting \"leese_ms\", expected "));
    assert_eq!(put_error(json!({"wait_ms": 20_001})), "wait_ms 20001 is not between 0 and 20000");
    assert!(put_error(json!({"lease_ms": "long"})).starts_with("invalid settings: "));
    assert!(
        put_error(json!({"dead_letters": {"queue": "q", "after": 3}})).contains("its own dead-letter queue")
    );
    let unknown = put(&server, "/api/queues/q", &json!({"dead_letters": {"queue": "none", "after": 3}}));
    assert_eq!(error_of(404, &unknown), "there is no queue \"none\"");
    let send_error = |body: Value| error_of(400, &server.post("/api/queues/q/messages", &body));
    assert!(send_error(json!({"body": "x", "fairnes_key": "a"})).contains("unknown field `fairnes_key`"));
    assert!(send_error(json!({"messages": []})).contains("messages is empty"));
    assert!(send_error(json!({"messages": [{"body": "x"}, {"key": 1}]})).contains("unknown field `key`"));
    assert!(send_error(json!({"body": "x", "weight": 0})).contains("weight"));
    assert!(send_error(json!({"body": "x", "delay_ms": 900_001})).contains("not between 0 and 900000"));
    let day_ms = 86_400_000;
    for (ttl, delay) in [(json!(0), 0), (json!(4 * day_ms + 1), 0), (json!(1_000), 1_000)] {
        let error = send_error(json!({"body": "x", "ttl_ms": ttl, "delay_ms": delay}));
        let range = format!("not between {} ms, past its delay, and {} ms", delay + 1, 4 * day_ms);
        assert!(error.contains(&range), "{error}");
    }
    assert!(send_error(json!({"body": "x", "ttl_ms": -1})).contains("invalid value: integer `-1`"));
    assert!(send_error(json!({"body": "x", "ttl_ms": 1.5})).contains("invalid type: floating point"));
    assert!(send_error(json!({"body": "x", "fairness_key": ""})).contains("1 to 256 bytes"));
    assert_eq!(send_error(json!(["x"])), "the body is not a JSON object");
    assert!(send_error(json!({"messages": [["x"]]})).contains("messages must contain objects only"));
    assert!(error_of(400, &server.get("/api/queues/q/keys?mox=1")).contains("unknown parameter \"mox\""));
    assert!(error_of(400, &server.get("/api/queues/q/messages/7")).contains("not a message id"));
    assert_eq!(error_of(404, &server.get("/api/queues/none")), "there is no queue \"none\"");
    assert_eq!(error_of(405, &server.get("/api/queues/q/ack")), "method not allowed: this path accepts POST");
    assert_eq!(server.get("/api/queues/q/nothing").status, 404);
    assert!(error_of(400, &put(&server, "/api/queues/a%20b", &json!({}))).contains("letters, digits"));
    assert_eq!(json_of(200, &server.get("/api/queues/q"))["pending"], 0);
}

#[test]
fn tenants_send_and_receive_but_only_admins_change_queues() {
    let dir = TestDir::new("native-access");
    dir.write("evenkeel.toml", "[queue]\nstore = 'memory'\n");
    let key = dir.run(&["tenant", "add", "acme"]).ok();
    let server = ServerProcess::start(&dir, &[]);
    let request = |method: &str, path: &str, key: &str, body: &Value| {
        read(server.send(method, path, &format!("authorization: Bearer {}\r\n", key.trim()), body))
    };
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    json_of(201, &request("POST", "/api/queues/q/messages", &key, &json!({"body": "x"})));
    let got = json_of(200, &request("POST", "/api/queues/q/receive", &key, &json!({"wait_ms": 20_000})));
    assert_eq!(got["messages"][0]["sender"], "acme");
    for (method, path) in [
        ("PUT", "/api/queues/p"),
        ("DELETE", "/api/queues/q"),
        ("POST", "/api/queues/q/purge"),
        ("POST", "/api/queues/q/redrive"),
        ("PUT", "/api/queues/q/keys/a"),
    ] {
        assert_eq!(request(method, path, &key, &json!({})).status, 403, "{method} {path}");
    }
    assert_eq!(request("GET", "/api/queues", "ek-typo", &Value::Null).status, 401);
}

/// A streaming consumer that reads line by line.
struct Consumer(BufReader<TcpStream>);

impl Consumer {
    fn open(server: &ServerProcess, path: &str, accept: &str) -> Self {
        let socket = server.send("GET", path, &format!("accept: {accept}\r\n"), &Value::Null);
        let mut consumer = Self(BufReader::new(socket));
        while !consumer.line().is_empty() {}
        consumer
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the next message; skips chunk lengths and keep-alive comments.
    fn message(&mut self) -> Value {
        loop {
            let line = self.line();
            let json = line.strip_prefix("data: ").unwrap_or(&line);
            if json.starts_with('{') {
                return serde_json::from_str(json).unwrap();
            }
        }
    }
}

#[test]
fn a_stream_delivers_up_to_max_in_flight_and_releases_messages_on_disconnect() {
    let (_folder, server) = start("native-stream");
    json_of(201, &put(&server, "/api/queues/q", &json!({"lease_ms": 43_200_000})));
    for accept in ["text/event-stream", "application/x-ndjson"] {
        send(&server, "q", &[("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")]);
        let mut consumer = Consumer::open(&server, "/api/queues/q/stream?max_in_flight=2", accept);
        let first = consumer.message();
        let second = consumer.message();
        assert_eq!((&first["body"], &second["body"]), (&json!("1"), &json!("2")));
        assert_eq!(json_of(200, &server.get("/api/queues/q"))["in_flight"], 2);
        // An acknowledgement in either protocol makes room for one more message.
        json_of(200, &server.post("/api/queues/q/ack", &json!({"receipts": [first["receipt"]]})));
        assert_eq!(consumer.message()["body"], "3");
        let deleted = json!({"QueueUrl": "q", "ReceiptHandle": second["receipt"]});
        json_of(200, &read(server.send("POST", "/", "x-amz-target: AmazonSQS.DeleteMessage\r\n", &deleted)));
        assert_eq!(consumer.message()["body"], "4");
        drop(consumer);
        // The leases last half a day, so only the disconnect can have released them.
        let mut bodies = Vec::new();
        while bodies.len() < 2 {
            for message in receive(&server, "q", &json!({"max": 10, "wait_ms": 20_000})) {
                assert_eq!(message["attempt"], 2);
                bodies.push(message["body"].as_str().unwrap().to_owned());
                json_of(200, &server.post("/api/queues/q/ack", &json!({"receipts": [message["receipt"]]})));
            }
        }
        assert_eq!(bodies, ["3", "4"]);
    }
}

#[test]
fn a_stream_continues_after_a_purge_and_delivers_a_message_without_a_lease_once() {
    let (_folder, server) = start("native-stream-purge");
    json_of(201, &put(&server, "/api/queues/q", &json!({"lease_ms": 0})));
    send(&server, "q", &[("a", "1"), ("a", "2")]);
    let path = "/api/queues/q/stream?max_in_flight=1&lease_ms=43200000";
    let mut consumer = Consumer::open(&server, path, "application/x-ndjson");
    let first = consumer.message();
    json_of(200, &server.post("/api/queues/q/purge", &json!({})));
    send(&server, "q", &[("a", "3")]);
    let acked = json_of(200, &server.post("/api/queues/q/ack", &json!({"receipts": [first["receipt"]]})));
    assert_eq!(acked["done"], 0, "{acked}");
    let third = consumer.message();
    assert_eq!((&third["body"], &third["attempt"]), (&json!("3"), &json!(1)));
    drop(consumer);
    let mut consumer = Consumer::open(&server, "/api/queues/q/stream", "application/x-ndjson");
    let again = consumer.message();
    assert_eq!(again["body"], "3");
    assert_eq!(
        json_of(200, &server.post("/api/queues/q/ack", &json!({"receipts": [again["receipt"]]})))["done"],
        1
    );
}

#[test]
fn a_stream_ends_cleanly_on_shutdown_and_its_consumer_can_still_acknowledge() {
    let dir = TestDir::new("native-stream-stop");
    let server = ServerProcess::start(&dir, &[]);
    json_of(201, &put(&server, "/api/queues/q", &json!({})));
    send(&server, "q", &[("a", "1")]);
    let mut consumer = Consumer::open(&server, "/api/queues/q/stream", "application/x-ndjson");
    let message = consumer.message();
    server.signal("TERM");
    while consumer.line() != "0" {}
    assert_eq!(server.wait(), Some(0));
    let server = ServerProcess::start(&dir, &[]);
    let acked = json_of(200, &server.post("/api/queues/q/ack", &json!({"receipts": [message["receipt"]]})));
    assert_eq!(acked, json!({"done": 1}));
    assert_eq!(json_of(200, &server.get("/api/queues/q"))["in_flight"], 0);
}

#[test]
fn commands_create_fill_inspect_redrive_and_empty_queues() {
    let (dir, server) = start("native-cli");
    assert_eq!(dir.run(&["queue", "list"]).ok(), "no queues\n");
    assert_eq!(dir.run(&["queue", "create", "dead"]).err, "created queue \"dead\"\n");
    let update = dir.run(&["queue", "create", "dead", "lease_ms=60000"]).err;
    assert_eq!(update, "updated queue \"dead\": lease_ms 30000 → 60000\n");
    let repeated = dir.run(&["queue", "create", "dead", "lease_ms=60000"]).err;
    assert_eq!(repeated, "queue \"dead\" already has these settings\n");
    let letters = "dead_letters={\"queue\": \"dead\", \"after\": 1}";
    dir.run(&["queue", "create", "jobs", letters, "lease_ms=0", "durability=os"]).ok();
    let settings = json_of(200, &server.get("/api/queues/jobs"))["settings"].clone();
    assert_eq!((&settings["durability"], &settings["dead_letters"]["queue"]), (&json!("os"), &json!("dead")));
    let id = dir.run(&["queue", "send", "jobs", "--key", "acme", "--ttl", "3600000", "hello"]).ok();
    let text = dir.run(&["queue", "explain", "jobs", id.trim()]).ok();
    assert!(text.contains("0 messages of its key come first") && text.contains("expires in"), "{text}");
    assert!(dir.run(&["queue", "peek", "jobs"]).ok().contains("acme"));
    // The message is delivered once and never acknowledged, so it goes to the dead-letter queue.
    receive(&server, "jobs", &json!({"wait_ms": 20_000}));
    while json_of(200, &server.get("/api/queues/dead"))["pending"] != 1 {
        receive(&server, "jobs", &json!({}));
    }
    let listed = dir.run(&["queue", "list"]).ok();
    assert!(listed.starts_with("NAME  OWNER  PENDING") && listed.contains("\ndead  -      1"), "{listed}");
    assert_eq!(dir.run(&["queue", "redrive", "dead"]).ok(), "1 messages moved\n");
    let stats = dir.run(&["queue", "stats", "jobs"]).ok();
    assert!(stats.starts_with("1 pending, ") && stats.contains("; 0 expired\n"), "{stats}");
    assert!(dir.run(&["queue", "purge", "jobs"]).err.contains("deleted 1 messages of queue \"jobs\""));
    assert_eq!(dir.run(&["queue", "purge", "gone"]).failed(), "evenkeel: there is no queue \"gone\"\n");
    dir.run(&["queue", "delete", "jobs"]).ok();
    assert_eq!(server.get("/api/queues/jobs").status, 404);
}
