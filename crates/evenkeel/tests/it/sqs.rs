//! The SQS API of the real binary: credentials from the command line, restarts, kills, a disk without space.
//!
//! The protocol itself and its clients are tested in `evenkeel-sqs`.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::external_client::{python, run};
use crate::folder::Folder;
use crate::raw::{Reply, read};
use crate::server_process::Served;

#[test]
fn the_access_key_that_the_command_line_prints_signs_until_it_is_rotated() {
    let folder = Folder::new("sqs-keys");
    folder.run(&["tenant", "add", "acme"]).ok();
    let (key, secret) = sqs_key(&folder, "acme");
    let served = Served::start(&folder, &[]);
    let url = format!("http://{}", served.address);
    let client = |expected: &[&str]| {
        let mut script = python("sqs_signed_client.py");
        script.arg(&url).args(expected).env("AWS_ACCESS_KEY_ID", &key);
        run(script.env("AWS_SECRET_ACCESS_KEY", &secret));
    };
    client(&[]);
    // A running server prints the same as the directory did.
    assert_eq!(sqs_key(&folder, "acme"), (key.clone(), secret.clone()));
    let file = folder.file("evenkeel-data/sqs-master-key");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    // The credentials derived from an API key end with it.
    folder.run(&["tenant", "rotate", "acme"]).ok();
    assert_ne!(sqs_key(&folder, "acme").0, key);
    client(&["InvalidClientTokenId"]);
}

#[test]
fn get_on_the_root_describes_the_apis_and_post_stays_the_sqs_endpoint() {
    let folder = Folder::new("sqs-root");
    // A tenant, so that a key is required everywhere but here.
    folder.run(&["tenant", "add", "acme"]).ok();
    let served = Served::start(&folder, &[]);
    let reply = served.get("/");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.head.contains("content-type: application/json"), "{reply:?}");
    let about = reply.json();
    assert_eq!((&about["name"], &about["version"]), (&json!("evenkeel"), &json!(env!("CARGO_PKG_VERSION"))));
    let names: Vec<&str> =
        about["apis"].as_array().unwrap().iter().map(|api| api["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["openai", "anthropic", "sqs", "queues", "admin"]);
    assert!(!reply.body.contains("acme"), "{reply:?}");
    assert!(call(&served, "ListQueues", &json!({})).body.contains("MissingAuthenticationToken"));
}

#[test]
fn a_server_that_stops_ends_every_long_poll_with_an_empty_response() {
    let folder = Folder::new("sqs-stopping");
    let served = Served::start(&folder, &[]);
    ok(&served, "CreateQueue", &json!({"QueueName": "q"}));
    let waiting = send(&served, "ReceiveMessage", &json!({"QueueUrl": "q", "WaitTimeSeconds": 20}));
    wait_for_waiting(&served, 1);
    served.signal("TERM");
    assert_eq!(success(&read(waiting)), json!({}));
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn queues_messages_and_tags_survive_a_restart() {
    let folder = Folder::new("sqs-restart");
    let served = Served::start(&folder, &[]);
    let queue = json!({"QueueName": "q", "Attributes": {"VisibilityTimeout": "0"}, "tags": {"team": "a"}});
    ok(&served, "CreateQueue", &queue);
    let text = json!({"DataType": "String", "StringValue": "x"});
    let message = json!({"QueueUrl": "q", "MessageBody": "stored", "MessageAttributes": {"a": text}});
    ok(&served, "SendMessage", &message);
    let receive = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "MessageAttributeNames": ["All"]});
    let before = ok(&served, "ReceiveMessage", &receive);
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
    let served = Served::start(&folder, &[]);
    let after = ok(&served, "ReceiveMessage", &receive);
    for part in ["MessageId", "Body", "MD5OfBody", "MessageAttributes", "MD5OfMessageAttributes"] {
        assert_eq!(after["Messages"][0][part], before["Messages"][0][part], "{part}");
    }
    assert_eq!(ok(&served, "ListQueueTags", &json!({"QueueUrl": "q"}))["Tags"]["team"], "a");
}

#[test]
fn a_disk_with_too_little_space_rejects_sends_and_still_delivers() {
    let folder = Folder::new("sqs-reserve");
    let served = Served::start(&folder, &[]);
    ok(&served, "CreateQueue", &json!({"QueueName": "q"}));
    let message = json!({"QueueUrl": "q", "MessageBody": "stored"});
    ok(&served, "SendMessage", &message);
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
    folder.write("evenkeel.toml", "[queue]\nreserve_bytes = 1_000_000_000_000_000\n");
    let served = Served::start(&folder, &[]);
    let rejected = call(&served, "SendMessage", &message);
    assert_eq!(rejected.status, 503, "{rejected:?}");
    assert!(rejected.body.contains("disk is full") && rejected.body.contains("in reserve"), "{rejected:?}");
    let received = ok(&served, "ReceiveMessage", &json!({"QueueUrl": "q", "WaitTimeSeconds": 20}));
    let handle = &received["Messages"][0]["ReceiptHandle"];
    ok(&served, "DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": handle}));
}

#[test]
fn a_queue_at_its_key_limit_rejects_another_group_and_restarts() {
    let folder = Folder::new("sqs-groups");
    let served = Served::start(&folder, &[]);
    assert_eq!(read(served.send("PUT", "/api/queues/q", "", &json!({"keys_max": 2}))).status, 201);
    let send_to = |served: &Served, group: &str| {
        call(served, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": group, "MessageGroupId": group}))
    };
    success(&send_to(&served, "a"));
    success(&send_to(&served, "b"));
    let rejected = send_to(&served, "c");
    assert!(rejected.status == 403 && rejected.body.contains("2 fairness keys are known"), "{rejected:?}");
    drop(served);
    let served = Served::start(&folder, &[]);
    success(&send_to(&served, "a"));
    let all = json!({"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
    let mut groups = Vec::new();
    while groups.len() < 3 {
        let received = ok(&served, "ReceiveMessage", &all);
        groups.extend(received["Messages"].as_array().unwrap().iter().map(|message| message["Body"].clone()));
    }
    groups.sort_by_key(Value::to_string);
    assert_eq!(groups, ["a", "a", "b"]);
}

#[test]
fn a_move_task_cut_short_by_a_kill_is_listed_as_failed_and_loses_nothing() {
    let folder = Folder::new("sqs-cut-short");
    let served = Served::start(&folder, &[]);
    ok(&served, "CreateQueue", &json!({"QueueName": "dead"}));
    let arn = "arn:aws:sqs:us-east-1:000000000000:dead";
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let source = json!({"QueueName": "source", "Attributes": {"RedrivePolicy": policy}});
    ok(&served, "CreateQueue", &source);
    let sent: Vec<Value> = (0..3)
        .map(|n| ok(&served, "SendMessage", &json!({"QueueUrl": "source", "MessageBody": n.to_string()})))
        .collect();
    let three = json!({"QueueUrl": "source", "MaxNumberOfMessages": 10, "VisibilityTimeout": 0});
    let mut dead = 0;
    while dead < 3 {
        ok(&served, "ReceiveMessage", &three);
        let names = json!({"QueueUrl": "dead", "AttributeNames": ["ApproximateNumberOfMessages"]});
        let reply = ok(&served, "GetQueueAttributes", &names);
        dead = reply["Attributes"]["ApproximateNumberOfMessages"].as_str().unwrap().parse().unwrap();
    }
    let slowly = json!({"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1});
    ok(&served, "StartMessageMoveTask", &slowly);
    served.signal("KILL");
    served.wait();
    let served = Served::start(&folder, &[]);
    let listed = ok(&served, "ListMessageMoveTasks", &json!({"SourceArn": arn}));
    let task = &listed["Results"][0];
    assert_eq!(
        (&task["Status"], &task["FailureReason"]),
        (&json!("FAILED"), &json!("GatewayStopped")),
        "{listed}"
    );
    assert_eq!(task["ApproximateNumberOfMessagesToMove"], 3);
    // Started again it completes, and every message is back with the id it was sent with.
    ok(&served, "StartMessageMoveTask", &json!({"SourceArn": arn}));
    let mut returned = std::collections::BTreeSet::new();
    while returned.len() < 3 {
        let wait = json!({"QueueUrl": "source", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
        let received = ok(&served, "ReceiveMessage", &wait);
        let messages = received["Messages"].as_array().unwrap().iter();
        returned.extend(messages.map(|message| message["MessageId"].to_string()));
    }
    assert_eq!(returned, sent.iter().map(|sent| sent["MessageId"].to_string()).collect());
}

/// Returns the access key id and the secret that `tenant sqs-key` prints.
fn sqs_key(folder: &Folder, name: &str) -> (String, String) {
    let output = folder.run(&["tenant", "sqs-key", name]).ok();
    let value = |line: Option<&str>| line.unwrap().split_once('=').unwrap().1.to_owned();
    let mut lines = output.lines();
    (value(lines.next()), value(lines.next()))
}

/// Sends a request on a keep-alive connection, as SDKs do, and leaves the response unread.
fn send(served: &Served, operation: &str, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(served.address).unwrap();
    let body = body.to_string();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\nx-amz-target: AmazonSQS.{operation}\r\n");
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    socket
}

/// Waits until this many receives wait, by the server's own count.
fn wait_for_waiting(served: &Served, count: usize) {
    let line = format!("evenkeel_sqs_waiting {count}");
    while !served.get("/metrics").body.lines().any(|found| found == line) {}
}

fn call(served: &Served, operation: &str, body: &Value) -> Reply {
    let headers = format!("x-amz-target: AmazonSQS.{operation}\r\n");
    read(served.send("POST", "/", &headers, body))
}

/// Calls an operation that must succeed.
#[track_caller]
fn ok(served: &Served, operation: &str, body: &Value) -> Value {
    success(&call(served, operation, body))
}

#[track_caller]
fn success(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}
