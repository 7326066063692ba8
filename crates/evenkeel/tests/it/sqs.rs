//! The SQS door of the real binary, before unmodified clients: boto3, a Celery worker, the AWS SDK for JavaScript and
//! sqs-consumer.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read, read_until};

const OPERATIONS: [&str; 23] = [
    "AddPermission",
    "CancelMessageMoveTask",
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    "CreateQueue",
    "DeleteMessage",
    "DeleteMessageBatch",
    "DeleteQueue",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
    "PurgeQueue",
    "ReceiveMessage",
    "RemovePermission",
    "SendMessage",
    "SendMessageBatch",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
];

#[test]
fn boto3_keeps_order_and_sends_once_on_fifo_queues() {
    for store in ["memory", "fjall"] {
        let dir = TestDir::new(&format!("sqs-fifo-{store}"));
        dir.write("evenkeel.toml", &format!("[queue]\nstore = '{store}'\n"));
        let server = ServerProcess::start(&dir, &[]);
        run(python("sqs_fifo_client.py")
            .arg(url(&server))
            .env("AWS_ACCESS_KEY_ID", "any")
            .env("AWS_SECRET_ACCESS_KEY", "any"));
    }
}

#[test]
fn boto3_does_every_operation_and_hears_why_it_cannot() {
    let dir = TestDir::new("sqs-boto3");
    dir.write("evenkeel.toml", "[queue]\nstore = 'memory'\n");
    let server = ServerProcess::start(&dir, &[]);
    run(python("sqs_client.py")
        .arg(url(&server))
        .env("AWS_ACCESS_KEY_ID", "any")
        .env("AWS_SECRET_ACCESS_KEY", "any"));
}

#[test]
fn boto3_does_so_too_on_disk_and_signed_as_a_tenant() {
    let dir = TestDir::new("sqs-signed");
    dir.run(&["tenant", "add", "acme"]).ok();
    let (key, secret) = sqs_key(&dir, "acme");
    let server = ServerProcess::start(&dir, &[]);
    // A server tells what the directory told.
    assert_eq!(sqs_key(&dir, "acme"), (key.clone(), secret.clone()));
    let mut client = python("sqs_client.py");
    run(client
        .args([&url(&server), "acme"])
        .env("AWS_ACCESS_KEY_ID", key)
        .env("AWS_SECRET_ACCESS_KEY", secret));
}

#[test]
fn only_who_signs_as_an_active_tenant_in_time_is_served() {
    let dir = TestDir::new("sqs-keys");
    for name in ["acme", "off"] {
        dir.run(&["tenant", "add", name]).ok();
    }
    dir.run(&["tenant", "set", "off", "--state", "disabled"]).ok();
    dir.run(&["tenant", "add", "slow", "--rpm", "1"]).ok();
    let server = ServerProcess::start(&dir, &[]);
    let (key, secret) = sqs_key(&dir, "acme");
    let (off, off_secret) = sqs_key(&dir, "off");
    let (slow, slow_secret) = sqs_key(&dir, "slow");
    let all = [url(&server), key.clone(), secret, off, off_secret, slow, slow_secret];
    run(python("sqs_keys_client.py").args(all));
    let file = dir.file("evenkeel-data/sqs-master-key");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    // With the API key ends what was derived beside it.
    dir.run(&["tenant", "rotate", "acme"]).ok();
    assert_ne!(sqs_key(&dir, "acme").0, key);
}

#[test]
fn a_celery_worker_runs_what_is_sent_to_it() {
    let dir = TestDir::new("sqs-celery");
    dir.run(&["tenant", "add", "acme"]).ok();
    let (key, secret) = sqs_key(&dir, "acme");
    let server = ServerProcess::start(&dir, &[]);
    let mut client = python("celery_client.py");
    client.args([server.address.to_string(), key, secret]);
    run(client.env("CELERY_RESULTS", dir.file("results")));
}

#[test]
fn the_aws_sdk_for_javascript_sends_receives_and_deletes_and_names_what_is_wrong() {
    run_node("sqs_client.cjs");
}

#[test]
fn sqs_consumer_handles_each_once_gives_up_on_what_fails_and_stops_with_grace() {
    run_node("sqs_consumer_client.cjs");
}

#[test]
fn who_leaves_while_waiting_takes_nothing_along() {
    let dir = TestDir::new("sqs-leaving");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(&server, "CreateQueue", &json!({"QueueName": "q"})));
    let long = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
    let left: Vec<TcpStream> = (0..8).map(|_| send_and_stay(&server, "ReceiveMessage", &long)).collect();
    wait_for_waiting(&server, left.len());
    drop(left);
    wait_for_waiting(&server, 0);
    done(&ask(&server, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": "mine"})));
    let got = done(&ask(&server, "ReceiveMessage", &long));
    assert_eq!(got["Messages"][0]["Body"], "mine", "{got}");
}

#[test]
fn who_leaves_in_the_middle_of_an_answer_gives_its_messages_to_the_next() {
    let dir = TestDir::new("sqs-middle");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(
        &server,
        "CreateQueue",
        &json!({"QueueName": "q", "Attributes": {"VisibilityTimeout": "43200"}}),
    ));
    // More than sockets hold that nobody reads.
    for _ in 0..10 {
        done(&ask(&server, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": "x".repeat(1 << 20)})));
    }
    let ten = json!({"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
    let mut left = send_and_stay(&server, "ReceiveMessage", &ten);
    read_until(&mut left, "HTTP/1.1 200");
    drop(left);
    let got = done(&ask(&server, "ReceiveMessage", &ten));
    assert!(!got["Messages"].as_array().unwrap().is_empty());
}

#[test]
fn a_server_that_stops_ends_every_wait_with_an_answer() {
    let dir = TestDir::new("sqs-stopping");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(&server, "CreateQueue", &json!({"QueueName": "q"})));
    let waiting = send_and_stay(&server, "ReceiveMessage", &json!({"QueueUrl": "q", "WaitTimeSeconds": 20}));
    wait_for_waiting(&server, 1);
    server.signal("TERM");
    assert_eq!(done(&read(waiting)), json!({}));
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn no_operation_fails_on_a_body_that_is_none_of_its() {
    let dir = TestDir::new("sqs-garbage");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(&server, "CreateQueue", &json!({"QueueName": "q"})));
    let lists =
        json!({"QueueUrl": "q", "Entries": [{}, {"Id": null}], "AttributeNames": [1], "Attributes": []});
    let texts = json!({"QueueUrl": "q", "ReceiptHandle": "\u{0}", "TaskHandle": "AA==", "SourceArn": ":::::", "Label": "ä"});
    let numbers = json!({"QueueUrl": "q", "MaxResults": i64::MIN, "VisibilityTimeout": i64::MAX, "DelaySeconds": 1e300});
    let bodies = [
        json!({}),
        json!([]),
        json!("x"),
        json!({"QueueUrl": {}}),
        json!({"QueueUrl": "q"}),
        lists,
        texts,
        numbers,
    ];
    for operation in OPERATIONS {
        for body in &bodies {
            let reply = ask(&server, operation, body);
            assert!(matches!(reply.status, 200 | 400 | 403 | 404), "{operation} {body}: {reply:?}");
            // It may have been deleted by then.
            ask(&server, "CreateQueue", &json!({"QueueName": "q"}));
        }
    }
}

#[test]
fn what_is_on_disk_is_there_after_a_restart() {
    let dir = TestDir::new("sqs-restart");
    let server = ServerProcess::start(&dir, &[]);
    let made = json!({"QueueName": "q", "Attributes": {"VisibilityTimeout": "0"}, "tags": {"team": "a"}});
    done(&ask(&server, "CreateQueue", &made));
    let text = json!({"DataType": "String", "StringValue": "x"});
    let message = json!({"QueueUrl": "q", "MessageBody": "kept", "MessageAttributes": {"a": text}});
    done(&ask(&server, "SendMessage", &message));
    let receive = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "MessageAttributeNames": ["All"]});
    let before = done(&ask(&server, "ReceiveMessage", &receive));
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = ServerProcess::start(&dir, &[]);
    let after = done(&ask(&server, "ReceiveMessage", &receive));
    for part in ["MessageId", "Body", "MD5OfBody", "MessageAttributes", "MD5OfMessageAttributes"] {
        assert_eq!(after["Messages"][0][part], before["Messages"][0][part], "{part}");
    }
    assert_eq!(done(&ask(&server, "ListQueueTags", &json!({"QueueUrl": "q"})))["Tags"]["team"], "a");
}

#[test]
fn a_disk_with_too_little_room_takes_nothing_more_and_gives_what_it_has() {
    let dir = TestDir::new("sqs-reserve");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(&server, "CreateQueue", &json!({"QueueName": "q"})));
    let message = json!({"QueueUrl": "q", "MessageBody": "kept"});
    done(&ask(&server, "SendMessage", &message));
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    dir.write("evenkeel.toml", "[queue]\nreserve_bytes = 1_000_000_000_000_000\n");
    let server = ServerProcess::start(&dir, &[]);
    let refused = ask(&server, "SendMessage", &message);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("disk is full") && refused.body.contains("in reserve"), "{refused:?}");
    let got = done(&ask(&server, "ReceiveMessage", &json!({"QueueUrl": "q", "WaitTimeSeconds": 20})));
    let handle = &got["Messages"][0]["ReceiptHandle"];
    done(&ask(&server, "DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": handle})));
}

#[test]
fn a_queue_at_its_limits_says_which_and_keeps_what_it_has() {
    let dir = TestDir::new("sqs-limits");
    dir.write("evenkeel.toml", "[queue]\nmessages_max = 2\nin_flight_max = 1\n");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(&server, "CreateQueue", &json!({"QueueName": "q"})));
    let send = |body| ask(&server, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": body}));
    let over = |reply: RawResponse, says: &str| {
        assert_eq!(reply.status, 403, "{reply:?}");
        assert!(reply.head.contains("overlimit") && reply.body.contains(says), "{reply:?}");
    };
    done(&send("a"));
    done(&send("b"));
    over(send("c"), "queue is full: it may hold 2 messages");
    let receive = json!({"QueueUrl": "q"});
    let got = done(&ask(&server, "ReceiveMessage", &receive));
    over(ask(&server, "ReceiveMessage", &receive), "1 messages are in flight");
    let handle = &got["Messages"][0]["ReceiptHandle"];
    done(&ask(&server, "DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": handle})));
    done(&send("c"));
}

#[test]
fn a_queue_with_as_many_groups_as_it_may_know_takes_no_other_and_starts_again() {
    let dir = TestDir::new("sqs-groups");
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(read(server.send("PUT", "/api/queues/q", "", &json!({"keys_max": 2}))).status, 201);
    let send = |server: &ServerProcess, group: &str| {
        ask(server, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": group, "MessageGroupId": group}))
    };
    done(&send(&server, "a"));
    done(&send(&server, "b"));
    let refused = send(&server, "c");
    assert!(refused.status == 403 && refused.body.contains("2 fairness keys are known"), "{refused:?}");
    drop(server);
    let server = ServerProcess::start(&dir, &[]);
    done(&send(&server, "a"));
    let all = json!({"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
    let mut groups = Vec::new();
    while groups.len() < 3 {
        let got = done(&ask(&server, "ReceiveMessage", &all));
        groups.extend(got["Messages"].as_array().unwrap().iter().map(|message| message["Body"].clone()));
    }
    groups.sort_by_key(Value::to_string);
    assert_eq!(groups, ["a", "a", "b"]);
}

#[test]
fn a_move_that_a_kill_cuts_short_is_shown_as_failed_and_loses_nothing() {
    let dir = TestDir::new("sqs-cut-short");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(&server, "CreateQueue", &json!({"QueueName": "dead"})));
    let arn = "arn:aws:sqs:us-east-1:000000000000:dead";
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let source = json!({"QueueName": "source", "Attributes": {"RedrivePolicy": policy}});
    done(&ask(&server, "CreateQueue", &source));
    let sent: Vec<Value> = (0..3)
        .map(|n| {
            done(&ask(&server, "SendMessage", &json!({"QueueUrl": "source", "MessageBody": n.to_string()})))
        })
        .collect();
    let three = json!({"QueueUrl": "source", "MaxNumberOfMessages": 10, "VisibilityTimeout": 0});
    let mut dead = 0;
    while dead < 3 {
        done(&ask(&server, "ReceiveMessage", &three));
        let names = json!({"QueueUrl": "dead", "AttributeNames": ["ApproximateNumberOfMessages"]});
        let told = done(&ask(&server, "GetQueueAttributes", &names));
        dead = told["Attributes"]["ApproximateNumberOfMessages"].as_str().unwrap().parse().unwrap();
    }
    let slowly = json!({"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1});
    done(&ask(&server, "StartMessageMoveTask", &slowly));
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    let listed = done(&ask(&server, "ListMessageMoveTasks", &json!({"SourceArn": arn})));
    let task = &listed["Results"][0];
    assert_eq!(
        (&task["Status"], &task["FailureReason"]),
        (&json!("FAILED"), &json!("GatewayStopped")),
        "{listed}"
    );
    assert_eq!(task["ApproximateNumberOfMessagesToMove"], 3);
    // Begun again it comes to its end, and every message is home under the name it was sent under.
    done(&ask(&server, "StartMessageMoveTask", &json!({"SourceArn": arn})));
    let mut home = std::collections::BTreeSet::new();
    while home.len() < 3 {
        let wait = json!({"QueueUrl": "source", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
        let got = done(&ask(&server, "ReceiveMessage", &wait));
        let messages = got["Messages"].as_array().unwrap().iter();
        home.extend(messages.map(|message| message["MessageId"].to_string()));
    }
    assert_eq!(home, sent.iter().map(|sent| sent["MessageId"].to_string()).collect());
}

#[test]
fn the_door_counts_what_it_does_and_what_queues_hold() {
    let dir = TestDir::new("sqs-metrics");
    let server = ServerProcess::start(&dir, &[]);
    done(&ask(&server, "CreateQueue", &json!({"QueueName": "q"})));
    for body in ["one", "two", "three"] {
        done(&ask(&server, "SendMessage", &json!({"QueueUrl": "q", "MessageBody": body})));
    }
    let got = done(&ask(&server, "ReceiveMessage", &json!({"QueueUrl": "q"})));
    let handle = &got["Messages"][0]["ReceiptHandle"];
    done(&ask(&server, "DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": handle})));
    assert_eq!(ask(&server, "PurgeQueue", &json!({"QueueUrl": "none"})).status, 400);
    let page = server.get("/metrics").body;
    for line in [
        r#"evenkeel_queue_sent_total{queue="q"} 3"#,
        r#"evenkeel_queue_received_total{queue="q"} 1"#,
        r#"evenkeel_queue_deleted_total{queue="q"} 1"#,
        r#"evenkeel_queue_messages{queue="q",state="pending"} 2"#,
        r#"evenkeel_queue_messages{queue="q",state="in_flight"} 0"#,
        r#"evenkeel_sqs_requests_total{operation="SendMessage",code="OK"} 3"#,
        r#"evenkeel_sqs_requests_total{operation="PurgeQueue",code="AWS.SimpleQueueService.NonExistentQueue"} 1"#,
    ] {
        assert!(page.lines().any(|found| found == line), "no {line} in {page}");
    }
}

#[test]
fn what_is_no_operation_is_told_so_and_the_header_names_the_request() {
    let dir = TestDir::new("sqs-unknown");
    let server = ServerProcess::start(&dir, &[]);
    let refused = ask(&server, "StealQueue", &json!({}));
    let told: Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(
        (refused.status, &told["__type"]),
        (400, &json!("com.amazon.coral.service#UnknownOperationException"))
    );
    assert!(refused.head.to_lowercase().contains("x-amzn-requestid: req-"), "{}", refused.head);
    let broken = read(server.send("POST", "/", "x-amz-target: AmazonSQS.ListQueues\r\n", &json!([1])));
    assert!(broken.body.contains("SerializationException"), "{broken:?}");
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let older = read(server.send("POST", "/", form, &json!("Action=ListQueues")));
    assert!(
        older.body.contains("UnsupportedOperation") && older.body.contains("query protocol"),
        "{older:?}"
    );
}

fn python(script: &str) -> Command {
    let python = root().join("target/python/bin/python");
    assert!(python.exists(), "boto3 is not installed; `cargo xtask test` does it, into target/python");
    let mut command = Command::new(python);
    command.arg(path(script));
    command
}

/// Runs a script that signs as a tenant, on a gateway of its own.
#[track_caller]
fn run_node(script: &str) {
    let installed = root().join("target/node");
    assert!(
        installed.join("node_modules/sqs-consumer").exists(),
        "sqs-consumer is not installed; `cargo xtask test` does it, into target/node"
    );
    let dir = TestDir::new(script);
    dir.run(&["tenant", "add", "acme"]).ok();
    let (key, secret) = sqs_key(&dir, "acme");
    let server = ServerProcess::start(&dir, &[]);
    run(Command::new("node").arg(path(script)).args([url(&server), key, secret]).arg(installed));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(script)
}

#[track_caller]
fn run(command: &mut Command) {
    // A proxy between this process and itself would be the one that is tested.
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim_end().ends_with("all as expected"), "{said}\n{complained}");
}

fn url(server: &ServerProcess) -> String {
    format!("http://{}", server.address)
}

/// What a tenant's clients sign with.
fn sqs_key(dir: &TestDir, name: &str) -> (String, String) {
    let said = dir.run(&["tenant", "sqs-key", name]).ok();
    let value = |line: Option<&str>| line.unwrap().split_once('=').unwrap().1.to_owned();
    let mut lines = said.lines();
    (value(lines.next()), value(lines.next()))
}

fn send(server: &ServerProcess, operation: &str, body: &Value) -> TcpStream {
    let headers =
        format!("x-amz-target: AmazonSQS.{operation}\r\ncontent-type: application/x-amz-json-1.0\r\n");
    server.send("POST", "/", &headers, body)
}

/// Sends on a connection that shall be kept, as SDKs do: that is how it is noticed that they left.
fn send_and_stay(server: &ServerProcess, operation: &str, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).unwrap();
    let body = body.to_string();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\nx-amz-target: AmazonSQS.{operation}\r\n");
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    socket
}

/// Waits until so many receives wait, as the server counts them.
fn wait_for_waiting(server: &ServerProcess, count: usize) {
    let line = format!("evenkeel_sqs_waiting {count}");
    while !server.get("/metrics").body.lines().any(|found| found == line) {}
}

fn ask(server: &ServerProcess, operation: &str, body: &Value) -> RawResponse {
    read(send(server, operation, body))
}

#[track_caller]
fn done(reply: &RawResponse) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}
