//! The SQS API of the binary: credentials from the command line, restarts, crashes, a full disk.
//!
//! The protocol itself and its clients are tested in `evenkeel-sqs`.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::external_client::{python, run};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read};

#[test]
fn printed_sqs_credentials_are_valid_until_the_api_key_is_rotated() {
    let dir = TestDir::new("sqs-keys");
    dir.run(&["tenant", "add", "acme"]).ok();
    let (key, secret) = sqs_key(&dir, "acme");
    let server = ServerProcess::start(&dir, &[]);
    let url = format!("http://{}", server.address);
    let client = |expected: &[&str]| {
        let mut script = python("sqs_signed_client.py");
        script.arg(&url).args(expected).env("AWS_ACCESS_KEY_ID", &key);
        run(script.env("AWS_SECRET_ACCESS_KEY", &secret));
    };
    client(&[]);
    // With a running server, the command prints the same credentials as without one.
    assert_eq!(sqs_key(&dir, "acme"), (key.clone(), secret.clone()));
    let file = dir.file("evenkeel-data/sqs-master-key");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    // Rotating an API key invalidates the credentials derived from it.
    dir.run(&["tenant", "rotate", "acme"]).ok();
    assert_ne!(sqs_key(&dir, "acme").0, key);
    client(&["InvalidClientTokenId"]);
}

#[test]
fn get_on_the_root_path_describes_the_apis_and_post_is_the_sqs_endpoint() {
    let dir = TestDir::new("sqs-root");
    // With a tenant, all other routes require a key.
    dir.run(&["tenant", "add", "acme"]).ok();
    let server = ServerProcess::start(&dir, &[]);
    let reply = server.get("/");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.head.contains("content-type: application/json"), "{reply:?}");
    let about = reply.json();
    assert_eq!((&about["name"], &about["version"]), (&json!("evenkeel"), &json!(env!("CARGO_PKG_VERSION"))));
    let names: Vec<&str> =
        about["apis"].as_array().unwrap().iter().map(|api| api["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["openai", "anthropic", "sqs", "queues", "sql", "admin"]);
    assert!(!reply.body.contains("acme"), "{reply:?}");
    assert!(call(&server, "ListQueues", &json!({})).body.contains("MissingAuthenticationToken"));
}

#[test]
fn a_stopping_server_answers_every_long_poll_with_an_empty_response() {
    let dir = TestDir::new("sqs-stopping");
    let server = ServerProcess::start(&dir, &[]);
    ok(&server, "CreateQueue", &json!({"QueueName": "q"}));
    let waiting = send(&server, "ReceiveMessage", &json!({"QueueUrl": "q", "WaitTimeSeconds": 20}));
    wait_for_waiting_receives(&server, 1);
    server.signal("TERM");
    assert_eq!(success(&read(waiting)), json!({}));
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn queues_messages_and_tags_survive_a_restart() {
    let dir = TestDir::new("sqs-restart");
    let server = ServerProcess::start(&dir, &[]);
    let queue = json!({"QueueName": "q", "Attributes": {"VisibilityTimeout": "0"}, "tags": {"team": "a"}});
    ok(&server, "CreateQueue", &queue);
    let text = json!({"DataType": "String", "StringValue": "x"});
    let message = json!({"QueueUrl": "q", "MessageBody": "stored", "MessageAttributes": {"a": text}});
    ok(&server, "SendMessage", &message);
    let receive = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "MessageAttributeNames": ["All"]});
    let before = ok(&server, "ReceiveMessage", &receive);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = ServerProcess::start(&dir, &[]);
    let after = ok(&server, "ReceiveMessage", &receive);
    for part in ["MessageId", "Body", "MD5OfBody", "MessageAttributes", "MD5OfMessageAttributes"] {
        assert_eq!(after["Messages"][0][part], before["Messages"][0][part], "{part}");
    }
    assert_eq!(ok(&server, "ListQueueTags", &json!({"QueueUrl": "q"}))["Tags"]["team"], "a");
}

#[test]
fn a_disk_with_too_little_space_rejects_sends_and_still_delivers() {
    let dir = TestDir::new("sqs-reserve");
    let server = ServerProcess::start(&dir, &[]);
    ok(&server, "CreateQueue", &json!({"QueueName": "q"}));
    let message = json!({"QueueUrl": "q", "MessageBody": "stored"});
    ok(&server, "SendMessage", &message);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    dir.write("evenkeel.toml", "[queue]\nreserve_bytes = 1_000_000_000_000_000\n");
    let server = ServerProcess::start(&dir, &[]);
    let rejected = call(&server, "SendMessage", &message);
    assert_eq!(rejected.status, 503, "{rejected:?}");
    assert!(rejected.body.contains("disk is full") && rejected.body.contains("in reserve"), "{rejected:?}");
    let received = ok(&server, "ReceiveMessage", &json!({"QueueUrl": "q", "WaitTimeSeconds": 20}));
    let handle = &received["Messages"][0]["ReceiptHandle"];
    ok(&server, "DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": handle}));
}

#[test]
fn a_queue_at_its_key_limit_rejects_a_new_group_and_survives_a_restart() {
    let dir = TestDir::new("sqs-groups");
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(read(server.send("PUT", "/api/queues/q", "", &json!({"keys_max": 2}))).status, 201);
    let send_to = |server: &ServerProcess, group: &str| {
        call(server, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": group, "MessageGroupId": group}))
    };
    success(&send_to(&server, "a"));
    success(&send_to(&server, "b"));
    let rejected = send_to(&server, "c");
    assert!(rejected.status == 403 && rejected.body.contains("2 fairness keys are in use"), "{rejected:?}");
    drop(server);
    let server = ServerProcess::start(&dir, &[]);
    success(&send_to(&server, "a"));
    let all = json!({"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
    let mut groups = Vec::new();
    while groups.len() < 3 {
        let received = ok(&server, "ReceiveMessage", &all);
        groups.extend(received["Messages"].as_array().unwrap().iter().map(|message| message["Body"].clone()));
    }
    groups.sort_by_key(Value::to_string);
    assert_eq!(groups, ["a", "a", "b"]);
}

#[test]
fn a_move_task_interrupted_by_a_crash_is_listed_as_failed_and_loses_no_message() {
    let dir = TestDir::new("sqs-cut-short");
    let server = ServerProcess::start(&dir, &[]);
    ok(&server, "CreateQueue", &json!({"QueueName": "dead"}));
    let arn = "arn:aws:sqs:us-east-1:000000000000:dead";
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let source = json!({"QueueName": "source", "Attributes": {"RedrivePolicy": policy}});
    ok(&server, "CreateQueue", &source);
    let sent: Vec<Value> = (0..3)
        .map(|n| ok(&server, "SendMessage", &json!({"QueueUrl": "source", "MessageBody": n.to_string()})))
        .collect();
    let three = json!({"QueueUrl": "source", "MaxNumberOfMessages": 10, "VisibilityTimeout": 0});
    let mut dead = 0;
    while dead < 3 {
        ok(&server, "ReceiveMessage", &three);
        let names = json!({"QueueUrl": "dead", "AttributeNames": ["ApproximateNumberOfMessages"]});
        let reply = ok(&server, "GetQueueAttributes", &names);
        dead = reply["Attributes"]["ApproximateNumberOfMessages"].as_str().unwrap().parse().unwrap();
    }
    let slow_move = json!({"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1});
    ok(&server, "StartMessageMoveTask", &slow_move);
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    let listed = ok(&server, "ListMessageMoveTasks", &json!({"SourceArn": arn}));
    let task = &listed["Results"][0];
    assert_eq!(
        (&task["Status"], &task["FailureReason"]),
        (&json!("FAILED"), &json!("GatewayStopped")),
        "{listed}"
    );
    assert_eq!(task["ApproximateNumberOfMessagesToMove"], 3);
    // A second task completes, and every message returns to its source queue with its original ID.
    ok(&server, "StartMessageMoveTask", &json!({"SourceArn": arn}));
    let mut returned = std::collections::BTreeSet::new();
    while returned.len() < 3 {
        let wait = json!({"QueueUrl": "source", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
        let received = ok(&server, "ReceiveMessage", &wait);
        let messages = received["Messages"].as_array().unwrap().iter();
        returned.extend(messages.map(|message| message["MessageId"].to_string()));
    }
    assert_eq!(returned, sent.iter().map(|sent| sent["MessageId"].to_string()).collect());
}

#[test]
fn a_purge_forgets_deduplication_ids_across_a_crash() {
    let dir = TestDir::new("sqs-purged");
    let server = ServerProcess::start(&dir, &[]);
    let attributes = json!({"FifoQueue": "true", "ContentBasedDeduplication": "true"});
    ok(&server, "CreateQueue", &json!({"QueueName": "purged.fifo", "Attributes": attributes}));
    let message = json!({"QueueUrl": "purged.fifo", "MessageBody": "x", "MessageGroupId": "g"});
    let first = ok(&server, "SendMessage", &message);
    ok(&server, "PurgeQueue", &json!({"QueueUrl": "purged.fifo"}));
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    let second = ok(&server, "SendMessage", &message);
    assert_ne!(second["MessageId"], first["MessageId"]);
    assert_eq!(ok(&server, "SendMessage", &message)["MessageId"], second["MessageId"]);
    let received = ok(&server, "ReceiveMessage", &json!({"QueueUrl": "purged.fifo", "WaitTimeSeconds": 20}));
    assert_eq!(received["Messages"][0]["MessageId"], second["MessageId"]);
}

/// Returns the access key id and the secret that `tenant sqs-key` prints.
pub(crate) fn sqs_key(dir: &TestDir, name: &str) -> (String, String) {
    let output = dir.run(&["tenant", "sqs-key", name]).ok();
    let value = |line: Option<&str>| line.unwrap().split_once('=').unwrap().1.to_owned();
    let mut lines = output.lines();
    (value(lines.next()), value(lines.next()))
}

/// Sends a request on a keep-alive connection, as SDKs do, and leaves the response unread.
fn send(server: &ServerProcess, operation: &str, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).unwrap();
    let body = body.to_string();
    let head = format!("POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-target: AmazonSQS.{operation}\r\n");
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    socket
}

/// Waits until the metrics report this many waiting receives.
fn wait_for_waiting_receives(server: &ServerProcess, count: usize) {
    let line = format!("evenkeel_sqs_waiting {count}");
    while !server.get("/metrics").body.lines().any(|found| found == line) {}
}

fn call(server: &ServerProcess, operation: &str, body: &Value) -> RawResponse {
    let headers = format!("x-amz-target: AmazonSQS.{operation}\r\n");
    read(server.send("POST", "/", &headers, body))
}

/// Calls an operation that must succeed.
#[track_caller]
fn ok(server: &ServerProcess, operation: &str, body: &Value) -> Value {
    success(&call(server, operation, body))
}

#[track_caller]
fn success(reply: &RawResponse) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}
