//! The native API of queues, and `evenkeel queue …`, before the real binary.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::raw::{Reply, read};
use crate::server_process::Served;

fn start(name: &str) -> (Folder, Served) {
    let folder = Folder::new(name);
    folder.write("evenkeel.toml", "[queue]\nstore = 'memory'\n");
    let served = Served::start(&folder, &[]);
    (folder, served)
}

fn put(served: &Served, path: &str, body: &Value) -> Reply {
    read(served.send("PUT", path, "", body))
}

#[track_caller]
fn told(status: u16, reply: &Reply) -> Value {
    assert_eq!(reply.status, status, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}

/// What an API key's request is refused with.
#[track_caller]
fn refusal(status: u16, reply: &Reply) -> String {
    told(status, reply)["error"]["message"].as_str().unwrap().to_owned()
}

fn send(served: &Served, queue: &str, messages: &[(&str, &str)]) -> Vec<Value> {
    let messages: Vec<Value> =
        messages.iter().map(|(key, body)| json!({"fairness_key": key, "body": body})).collect();
    let told =
        told(201, &served.post(&format!("/api/queues/{queue}/messages"), &json!({"messages": messages})));
    told["ids"].as_array().unwrap().clone()
}

fn receive(served: &Served, queue: &str, wish: &Value) -> Vec<Value> {
    let told = told(200, &served.post(&format!("/api/queues/{queue}/receive"), wish));
    told["messages"].as_array().unwrap().clone()
}

#[test]
fn a_message_is_sent_looked_at_explained_received_and_acknowledged() {
    let (_folder, served) = start("native-life");
    let made = told(201, &put(&served, "/api/queues/jobs", &json!({"lease_ms": 60_000})));
    assert_eq!((&made["name"], &made["settings"]["lease_ms"]), (&json!("jobs"), &json!(60_000)));
    let message =
        json!({"fairness_key": "acme/eu", "body": "héllo", "headers": {"kind": "greeting"}, "cost": 500});
    let id = told(201, &served.post("/api/queues/jobs/messages", &message))["ids"][0].clone();
    let at = format!("/api/queues/jobs/messages/{}", id.as_str().unwrap());
    assert_eq!(told(200, &served.get(&at))["state"], "waiting");
    let peeked = told(200, &served.get("/api/queues/jobs/messages?max=5"));
    assert_eq!((&peeked["messages"][0]["id"], &peeked["messages"][0]["body"]), (&id, &json!("héllo")));
    let got = receive(&served, "jobs", &json!({"wait_ms": 20_000}));
    assert_eq!((got.len(), &got[0]["id"], &got[0]["attempt"]), (1, &id, &json!(1)));
    assert_eq!(
        (&got[0]["fairness_key"], &got[0]["headers"]["kind"]),
        (&json!("acme/eu"), &json!("greeting"))
    );
    assert_eq!(told(200, &served.get(&at))["state"], "in_flight");
    let receipts = json!({"receipts": [got[0]["receipt"], "forged"]});
    let longer = json!({"receipts": [got[0]["receipt"]], "lease_ms": 90_000});
    assert_eq!(told(200, &served.post("/api/queues/jobs/extend", &longer))["done"], 1);
    let acked = told(200, &served.post("/api/queues/jobs/ack", &receipts));
    assert_eq!((&acked["done"], &acked["failed"][0]["receipt"]), (&json!(1), &json!("forged")));
    assert!(refusal(404, &served.get(&at)).contains("acknowledged, expired, or never sent"));
    let page = served.get("/metrics").body;
    assert!(page.contains("evenkeel_queue_deleted_total{queue=\"jobs\"} 1"), "{page}");
}

#[test]
fn sqs_clients_and_native_ones_see_the_same_messages() {
    let (_folder, served) = start("native-sqs");
    let sqs = |operation: &str, body: &Value| {
        let headers = format!("x-amz-target: AmazonSQS.{operation}\r\n");
        told(200, &read(served.send("POST", "/", &headers, body)))
    };
    sqs("CreateQueue", &json!({"QueueName": "q"}));
    let text = json!({"DataType": "String", "StringValue": "x"});
    let bytes = json!({"DataType": "Binary", "BinaryValue": "AAEC"});
    let message = json!({
        "QueueUrl": "q", "MessageBody": "from there", "MessageGroupId": "acme",
        "MessageAttributes": {"a": text, "b": bytes},
    });
    sqs("SendMessage", &message);
    let got = receive(&served, "q", &json!({"wait_ms": 20_000}));
    assert_eq!((&got[0]["body"], &got[0]["fairness_key"]), (&json!("from there"), &json!("acme")));
    assert_eq!(got[0]["headers"], json!({"a": "x", "b": {"base64": "AAEC"}}));
    // A delivery of one protocol ends in the other.
    sqs("DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": got[0]["receipt"]}));
    let message = json!({"body": "from here", "headers": {"c": "z"}});
    told(201, &served.post("/api/queues/q/messages", &message));
    let wish = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "MessageAttributeNames": ["All"]});
    let got = sqs("ReceiveMessage", &wish);
    let message = &got["Messages"][0];
    assert_eq!(
        (&message["Body"], &message["MessageAttributes"]["c"]["StringValue"]),
        (&json!("from here"), &json!("z"))
    );
}

#[test]
fn a_weight_that_is_set_counts_for_what_waits() {
    let (folder, served) = start("native-weights");
    told(201, &put(&served, "/api/queues/q", &json!({})));
    let many: Vec<(&str, &str)> = (0..400).map(|n| (if n % 2 == 0 { "a" } else { "b" }, "x")).collect();
    send(&served, "q", &many);
    let weighed = told(200, &put(&served, "/api/queues/q/keys/a", &json!({"weight": 3})));
    assert_eq!((&weighed["name"], &weighed["weight"]), (&json!("a"), &json!(3.0)));
    let got = receive(&served, "q", &json!({"max": 100, "wait_ms": 20_000}));
    let of_a = got.iter().filter(|message| message["fairness_key"] == "a").count();
    assert!((74..=76).contains(&of_a), "{of_a} of {}", got.len());
    let keys = told(200, &served.get("/api/queues/q/keys"));
    let a = keys["keys"].as_array().unwrap().iter().find(|key| key["name"] == "a").unwrap();
    assert_eq!((&a["weight"], &a["in_flight"], &a["delivered"]), (&json!(3.0), &json!(of_a), &json!(of_a)));
    folder.run(&["queue", "weight", "q", "a", "none"]).ok();
    let shown = folder.run(&["queue", "stats", "q"]).ok();
    let row = shown.lines().find(|line| line.starts_with("a ")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some("1.0"), "{shown}");
}

#[test]
fn a_queue_counts_turns_in_bytes_when_it_is_told_so_also_after_a_restart() {
    let folder = Folder::new("native-cost");
    let served = Served::start(&folder, &[]);
    told(201, &put(&served, "/api/queues/q", &json!({})));
    let large = "x".repeat(10_000);
    let small = "x".repeat(1_000);
    let sent: Vec<(&str, &str)> =
        (0..60).flat_map(|_| [("large", large.as_str()), ("small", small.as_str())]).collect();
    for _ in 0..2 {
        send(&served, "q", &sent);
    }
    // How many of the next 44 are large ones.
    let large_of = |served: &Served| {
        let mut got = Vec::new();
        while got.len() < 44 {
            got.extend(receive(served, "q", &json!({"max": 44 - got.len(), "wait_ms": 20_000})));
        }
        got.iter().filter(|message| message["fairness_key"] == "large").count()
    };
    let by_count = large_of(&served);
    let changed = told(200, &put(&served, "/api/queues/q", &json!({"cost_mode": "bytes"})));
    assert_eq!(changed["settings"]["cost_mode"], "bytes");
    let by_bytes = large_of(&served);
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
    let served = Served::start(&folder, &[]);
    assert_eq!(told(200, &served.get("/api/queues/q"))["settings"]["cost_mode"], "bytes");
    let after = large_of(&served);
    println!("large ones of 44: {by_count} by count, {by_bytes} by bytes, {after} after a restart");
    assert!((20..=24).contains(&by_count) && (2..=7).contains(&by_bytes) && (2..=7).contains(&after));
    let refused = refusal(400, &put(&served, "/api/queues/q", &json!({"cost_mode": "weight"})));
    assert!(refused.contains("unknown variant `weight`"), "{refused}");
}

#[test]
fn a_key_at_its_limits_is_held_back_and_says_so() {
    let (folder, served) = start("native-limits");
    told(201, &put(&served, "/api/queues/q", &json!({})));
    send(&served, "q", &[("a", "x"); 10]);
    let at = "/api/queues/q/keys/a";
    told(200, &put(&served, at, &json!({"weight": 2, "concurrency_max": 3})));
    let ruled = told(200, &put(&served, at, &json!({"rate_per_second": 0.01, "burst": 5})));
    let whole =
        json!({"name": "a", "weight": 2.0, "concurrency_max": 3, "rate_per_second": 0.01, "burst": 5});
    assert_eq!(ruled, whole, "what is not said stays");
    let got = receive(&served, "q", &json!({"max": 10, "wait_ms": 20_000}));
    assert_eq!(got.len(), 3);
    let key = || told(200, &served.get("/api/queues/q/keys"))["keys"][0].clone();
    let throttled = json!({"scope": "tenant", "reason": "concurrency", "until_ms": null});
    assert_eq!(key()["throttled"], throttled);
    let shown = folder.run(&["queue", "stats", "q"]).ok();
    assert!(shown.contains("RATE PER SECOND  BURST  THROTTLED "), "{shown}");
    let row = shown.lines().find(|line| line.starts_with("a ")).unwrap();
    assert!(row.contains(" 0.01 ") && row.contains(" 5      concurrency of tenant  "), "{shown}");
    let shown = folder.run(&["queue", "limit", "q", "a", "--concurrency", "none"]).ok();
    assert!(shown.contains("0.01"), "{shown}");
    assert_eq!(receive(&served, "q", &json!({"max": 10, "wait_ms": 20_000})).len(), 2, "five at once");
    let throttled = key()["throttled"].clone();
    assert_eq!((&throttled["reason"], throttled["until_ms"].is_u64()), (&json!("rate"), true));
    let id = served.get("/api/queues/q/messages").json()["messages"][0]["id"].as_str().unwrap().to_owned();
    let why = told(200, &served.get(&format!("/api/queues/q/messages/{id}")));
    assert!(why["explanation"].as_str().unwrap().contains("rate limit reached, next delivery in "), "{why}");
    folder.run(&["queue", "limit", "q", "a", "--rate", "none"]).ok();
    assert_eq!(receive(&served, "q", &json!({"max": 10, "wait_ms": 20_000})).len(), 5);
    for (bad, said) in [
        (json!({}), "no field is set"),
        (
            json!({"wait": 1}),
            "unknown field \"wait\", expected weight, concurrency_max, rate_per_second, burst",
        ),
        (json!({"burst": 5}), "a burst needs a rate_per_second"),
        (json!({"concurrency_max": 0}), "concurrency_max: "),
        (json!({"rate_per_second": 0}), "a rate is between 0.001 and 1000000 per second"),
    ] {
        let refused = refusal(400, &put(&served, at, &bad));
        assert!(refused.contains(said), "{bad} was told {refused:?}");
    }
}

#[test]
fn what_is_sent_again_under_its_name_is_sent_once_also_over_a_kill() {
    let folder = Folder::new("native-dedup");
    let served = Served::start(&folder, &[]);
    told(201, &put(&served, "/api/queues/q", &json!({})));
    let twice =
        json!({"messages": [{"body": "x", "dedup_id": "order-7"}, {"body": "y", "dedup_id": "order-7"}]});
    let first = told(201, &served.post("/api/queues/q/messages", &twice));
    assert_eq!(first["ids"][0], first["ids"][1]);
    served.signal("KILL");
    served.wait();
    let served = Served::start(&folder, &[]);
    let again = json!({"body": "z", "dedup_id": "order-7"});
    assert_eq!(told(201, &served.post("/api/queues/q/messages", &again))["ids"][0], first["ids"][0]);
    let got = receive(&served, "q", &json!({"max": 10, "wait_ms": 20_000}));
    assert_eq!(got.iter().map(|message| &message["body"]).collect::<Vec<_>>(), ["x"]);
    let long = json!({"body": "x", "dedup_id": "x".repeat(129)});
    assert!(refusal(400, &served.post("/api/queues/q/messages", &long)).contains("1 to 128 in length"));
}

#[test]
fn a_message_is_not_delivered_after_its_time_to_live_also_over_a_kill() {
    let folder = Folder::new("native-ttl");
    let served = Served::start(&folder, &[]);
    told(201, &put(&served, "/api/queues/q", &json!({})));
    let send = |served: &Served, body: &str, ttl_ms: u64| {
        let message = json!({"body": body, "ttl_ms": ttl_ms, "fairness_key": body});
        told(201, &served.post("/api/queues/q/messages", &message))["ids"][0].as_str().unwrap().to_owned()
    };
    let lives = send(&served, "lives", 3_600_000);
    let over = send(&served, "over", 1);
    // Nobody receives.
    while told(200, &served.get("/api/queues/q"))["expired"] != 1 {}
    let explained = |id: &str| served.get(&format!("/api/queues/q/messages/{id}"));
    let said = told(200, &explained(&lives))["explanation"].to_string();
    assert!(said.contains("; expires in "), "{said}");
    assert!(refusal(404, &explained(&over)).contains("acknowledged, expired, or never sent"));
    let page = served.get("/metrics").body;
    assert!(page.contains("evenkeel_queue_expired_total{queue=\"q\"} 1"), "{page}");
    send(&served, "over while nobody was there", 50);
    served.signal("KILL");
    served.wait();
    let served = Served::start(&folder, &[]);
    while told(200, &served.get("/api/queues/q"))["pending"] != 1 {}
    let got = receive(&served, "q", &json!({"max": 10, "wait_ms": 20_000}));
    assert_eq!(got.iter().map(|message| &message["body"]).collect::<Vec<_>>(), ["lives"]);
    assert_eq!(receive(&served, "q", &json!({"max": 10})).len(), 0);
}

#[test]
fn bad_input_is_named_and_changes_nothing() {
    let (_folder, served) = start("native-bad");
    told(201, &put(&served, "/api/queues/q", &json!({})));
    let put_refused = |body: Value| refusal(400, &put(&served, "/api/queues/q", &body));
    assert!(put_refused(json!({"leese_ms": 1})).contains("unknown setting \"leese_ms\", expected "));
    assert_eq!(put_refused(json!({"wait_ms": 20_001})), "wait_ms 20001 is not between 0 and 20000");
    assert!(put_refused(json!({"lease_ms": "long"})).starts_with("invalid settings: "));
    assert!(
        put_refused(json!({"dead_letters": {"queue": "q", "after": 3}}))
            .contains("its own dead-letter queue")
    );
    let lacking = put(&served, "/api/queues/q", &json!({"dead_letters": {"queue": "none", "after": 3}}));
    assert_eq!(refusal(404, &lacking), "there is no queue \"none\"");
    let sent = |body: Value| refusal(400, &served.post("/api/queues/q/messages", &body));
    assert!(sent(json!({"body": "x", "fairnes_key": "a"})).contains("unknown field `fairnes_key`"));
    assert!(sent(json!({"messages": []})).contains("messages is empty"));
    assert!(sent(json!({"messages": [{"body": "x"}, {"key": 1}]})).contains("unknown field `key`"));
    assert!(sent(json!({"body": "x", "weight": 0})).contains("weight"));
    assert!(sent(json!({"body": "x", "delay_ms": 900_001})).contains("not between 0 and 900000"));
    let day_ms = 86_400_000;
    for (ttl, delay) in [(json!(0), 0), (json!(4 * day_ms + 1), 0), (json!(1_000), 1_000)] {
        let told = sent(json!({"body": "x", "ttl_ms": ttl, "delay_ms": delay}));
        let range = format!("not between {} ms, past its delay, and {} ms", delay + 1, 4 * day_ms);
        assert!(told.contains(&range), "{told}");
    }
    assert!(sent(json!({"body": "x", "ttl_ms": -1})).contains("invalid value: integer `-1`"));
    assert!(sent(json!({"body": "x", "ttl_ms": 1.5})).contains("invalid type: floating point"));
    assert!(sent(json!({"body": "x", "fairness_key": ""})).contains("1 to 256 bytes"));
    assert_eq!(sent(json!(["x"])), "the body is not a JSON object");
    assert!(sent(json!({"messages": [["x"]]})).contains("messages must contain objects only"));
    assert!(refusal(400, &served.get("/api/queues/q/keys?mox=1")).contains("unknown parameter \"mox\""));
    assert!(refusal(400, &served.get("/api/queues/q/messages/7")).contains("not a message id"));
    assert_eq!(refusal(404, &served.get("/api/queues/none")), "there is no queue \"none\"");
    assert_eq!(refusal(405, &served.get("/api/queues/q/ack")), "method not allowed: this path accepts POST");
    assert_eq!(served.get("/api/queues/q/nothing").status, 404);
    assert!(refusal(400, &put(&served, "/api/queues/a%20b", &json!({}))).contains("letters, digits"));
    assert_eq!(told(200, &served.get("/api/queues/q"))["pending"], 0);
}

#[test]
fn tenants_send_and_consume_and_only_administrators_change_queues() {
    let folder = Folder::new("native-access");
    folder.write("evenkeel.toml", "[queue]\nstore = 'memory'\n");
    let key = folder.run(&["tenant", "add", "acme"]).ok();
    let served = Served::start(&folder, &[]);
    let with = |method: &str, path: &str, key: &str, body: &Value| {
        read(served.send(method, path, &format!("authorization: Bearer {}\r\n", key.trim()), body))
    };
    told(201, &put(&served, "/api/queues/q", &json!({})));
    told(201, &with("POST", "/api/queues/q/messages", &key, &json!({"body": "x"})));
    let got = told(200, &with("POST", "/api/queues/q/receive", &key, &json!({"wait_ms": 20_000})));
    assert_eq!(got["messages"][0]["sender"], "acme");
    for (method, path) in [
        ("PUT", "/api/queues/p"),
        ("DELETE", "/api/queues/q"),
        ("POST", "/api/queues/q/purge"),
        ("POST", "/api/queues/q/redrive"),
        ("PUT", "/api/queues/q/keys/a"),
    ] {
        assert_eq!(with(method, path, &key, &json!({})).status, 403, "{method} {path}");
    }
    assert_eq!(with("GET", "/api/queues", "ek-typo", &Value::Null).status, 401);
}

/// A consumer of a stream, which it reads line by line.
struct Consumer(BufReader<TcpStream>);

impl Consumer {
    fn open(served: &Served, path: &str, accept: &str) -> Self {
        let socket = served.send("GET", path, &format!("accept: {accept}\r\n"), &Value::Null);
        let mut consumer = Self(BufReader::new(socket));
        while !consumer.line().is_empty() {}
        consumer
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next message, past the lengths of chunks and what only says that the stream lives.
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
fn a_stream_hands_out_as_much_as_its_consumer_may_have_and_takes_it_back_when_it_leaves() {
    let (_folder, served) = start("native-stream");
    told(201, &put(&served, "/api/queues/q", &json!({"lease_ms": 43_200_000})));
    for accept in ["text/event-stream", "application/x-ndjson"] {
        send(&served, "q", &[("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")]);
        let mut consumer = Consumer::open(&served, "/api/queues/q/stream?max_in_flight=2", accept);
        let first = consumer.message();
        let second = consumer.message();
        assert_eq!((&first["body"], &second["body"]), (&json!("1"), &json!("2")));
        assert_eq!(told(200, &served.get("/api/queues/q"))["in_flight"], 2);
        // An acknowledgement, by whatever protocol, makes room for one more.
        told(200, &served.post("/api/queues/q/ack", &json!({"receipts": [first["receipt"]]})));
        assert_eq!(consumer.message()["body"], "3");
        let deleted = json!({"QueueUrl": "q", "ReceiptHandle": second["receipt"]});
        told(200, &read(served.send("POST", "/", "x-amz-target: AmazonSQS.DeleteMessage\r\n", &deleted)));
        assert_eq!(consumer.message()["body"], "4");
        drop(consumer);
        // Leases of half a day: only the end of the connection can have ended them.
        let mut bodies = Vec::new();
        while bodies.len() < 2 {
            for message in receive(&served, "q", &json!({"max": 10, "wait_ms": 20_000})) {
                assert_eq!(message["attempt"], 2);
                bodies.push(message["body"].as_str().unwrap().to_owned());
                told(200, &served.post("/api/queues/q/ack", &json!({"receipts": [message["receipt"]]})));
            }
        }
        assert_eq!(bodies, ["3", "4"]);
    }
}

#[test]
fn a_stream_goes_on_after_a_purge_and_hands_out_once_what_has_no_lease() {
    let (_folder, served) = start("native-stream-purge");
    told(201, &put(&served, "/api/queues/q", &json!({"lease_ms": 0})));
    send(&served, "q", &[("a", "1"), ("a", "2")]);
    let path = "/api/queues/q/stream?max_in_flight=1&lease_ms=43200000";
    let mut consumer = Consumer::open(&served, path, "application/x-ndjson");
    let first = consumer.message();
    told(200, &served.post("/api/queues/q/purge", &json!({})));
    send(&served, "q", &[("a", "3")]);
    let gone = told(200, &served.post("/api/queues/q/ack", &json!({"receipts": [first["receipt"]]})));
    assert_eq!(gone["done"], 0, "{gone}");
    let third = consumer.message();
    assert_eq!((&third["body"], &third["attempt"]), (&json!("3"), &json!(1)));
    drop(consumer);
    let mut consumer = Consumer::open(&served, "/api/queues/q/stream", "application/x-ndjson");
    let again = consumer.message();
    assert_eq!(again["body"], "3");
    assert_eq!(
        told(200, &served.post("/api/queues/q/ack", &json!({"receipts": [again["receipt"]]})))["done"],
        1
    );
}

#[test]
fn a_stream_ends_in_order_when_the_server_stops_and_its_consumer_may_still_acknowledge() {
    let folder = Folder::new("native-stream-stop");
    let served = Served::start(&folder, &[]);
    told(201, &put(&served, "/api/queues/q", &json!({})));
    send(&served, "q", &[("a", "1")]);
    let mut consumer = Consumer::open(&served, "/api/queues/q/stream", "application/x-ndjson");
    let message = consumer.message();
    served.signal("TERM");
    while consumer.line() != "0" {}
    assert_eq!(served.wait(), Some(0));
    let served = Served::start(&folder, &[]);
    let acked = told(200, &served.post("/api/queues/q/ack", &json!({"receipts": [message["receipt"]]})));
    assert_eq!(acked, json!({"done": 1}));
    assert_eq!(told(200, &served.get("/api/queues/q"))["in_flight"], 0);
}

#[test]
fn the_command_line_makes_fills_shows_redrives_and_empties_queues() {
    let (folder, served) = start("native-cli");
    assert_eq!(folder.run(&["queue", "list"]).ok(), "no queues\n");
    folder.run(&["queue", "create", "dead"]).ok();
    let letters = "dead_letters={\"queue\": \"dead\", \"after\": 1}";
    folder.run(&["queue", "create", "jobs", letters, "lease_ms=0", "durability=os"]).ok();
    let settings = told(200, &served.get("/api/queues/jobs"))["settings"].clone();
    assert_eq!((&settings["durability"], &settings["dead_letters"]["queue"]), (&json!("os"), &json!("dead")));
    let id = folder.run(&["queue", "send", "jobs", "--key", "acme", "--ttl", "3600000", "hello"]).ok();
    let said = folder.run(&["queue", "explain", "jobs", id.trim()]).ok();
    assert!(said.contains("0 messages of its key come first") && said.contains("; expires in "), "{said}");
    assert!(folder.run(&["queue", "peek", "jobs"]).ok().contains("acme"));
    // Delivered once and never acknowledged, it is a dead letter.
    receive(&served, "jobs", &json!({"wait_ms": 20_000}));
    while told(200, &served.get("/api/queues/dead"))["pending"] != 1 {
        receive(&served, "jobs", &json!({}));
    }
    let listed = folder.run(&["queue", "list"]).ok();
    assert!(listed.starts_with("NAME  PENDING") && listed.contains("\ndead  1"), "{listed}");
    assert_eq!(folder.run(&["queue", "redrive", "dead"]).ok(), "1 messages moved\n");
    let stats = folder.run(&["queue", "stats", "jobs"]).ok();
    assert!(stats.starts_with("1 pending, ") && stats.contains("; 0 expired\n"), "{stats}");
    assert!(folder.run(&["queue", "purge", "jobs"]).err.contains("1 messages removed"));
    assert_eq!(folder.run(&["queue", "purge", "gone"]).failed(), "evenkeel: there is no queue \"gone\"\n");
    folder.run(&["queue", "delete", "jobs"]).ok();
    assert_eq!(served.get("/api/queues/jobs").status, 404);
}
