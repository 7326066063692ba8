//! The JSON protocol without a client library: malformed bodies, limits, metrics, unknown operations.

use evenkeel_queue::QueueSettings;
use serde_json::{Value, json};

use crate::harness::{Reply, Setup, SqsServer, StoreKind};

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
fn no_operation_fails_internally_on_a_body_of_the_wrong_shape() {
    let setup = Setup { store: StoreKind::Disk, ..Setup::default() };
    let server = SqsServer::with("garbage", setup);
    server.ok("CreateQueue", &json!({"QueueName": "q"}));
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
            let reply = server.call(operation, body);
            assert!(matches!(reply.status, 200 | 400 | 403 | 404), "{operation} {body}: {reply:?}");
            // The operation may have deleted the queue.
            server.call("CreateQueue", &json!({"QueueName": "q"}));
        }
    }
}

#[test]
fn a_parameter_that_is_null_is_missing() {
    let server = SqsServer::start("null");
    server.ok("CreateQueue", &json!({"QueueName": "q", "Attributes": null, "tags": null}));
    let unset = json!({
        "QueueUrl": "q", "MessageBody": "x", "DelaySeconds": null, "MessageAttributes": null, "MessageGroupId": null,
        "MessageSystemAttributes": null,
    });
    server.ok("SendMessage", &unset);
    let unset = json!({
        "QueueUrl": "q", "AttributeNames": null, "MessageSystemAttributeNames": null, "MessageAttributeNames": null,
        "MaxNumberOfMessages": null, "VisibilityTimeout": null, "WaitTimeSeconds": null,
        "ReceiveRequestAttemptId": null,
    });
    assert_eq!(server.ok("ReceiveMessage", &unset)["Messages"][0]["Body"], "x");
    assert_eq!(server.ok("GetQueueAttributes", &json!({"QueueUrl": "q", "AttributeNames": null})), json!({}));
    for operation in ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        let empty = server.call(operation, &json!({"QueueUrl": "q", "Entries": null}));
        assert_eq!(empty.json()["__type"], "com.amazonaws.sqs#EmptyBatchRequest", "{operation}");
    }
    let permission = json!({"QueueUrl": "q", "Label": "a", "AWSAccountIds": null, "Actions": null});
    let missing = server.call("AddPermission", &permission);
    assert_eq!(missing.json()["message"], "The request must contain the parameter Actions.");
}

#[test]
fn a_queue_at_a_limit_rejects_requests_with_the_limit_and_keeps_its_messages() {
    let defaults = QueueSettings { messages_max: 2, in_flight_max: 1, ..QueueSettings::default() };
    let server = SqsServer::with("limits", Setup { store: StoreKind::Disk, defaults, ..Setup::default() });
    server.ok("CreateQueue", &json!({"QueueName": "q"}));
    let message = |body: &str| json!({"QueueUrl": "q", "MessageBody": body});
    server.ok("SendMessage", &message("a"));
    server.ok("SendMessage", &message("b"));
    assert_over_limit(&server.call("SendMessage", &message("c")), "queue is full: it may hold 2 messages");
    let receive = json!({"QueueUrl": "q"});
    let received = server.ok("ReceiveMessage", &receive);
    let rejected = server.call("ReceiveMessage", &receive);
    assert_over_limit(&rejected, "Too many messages have been received without being deleted.");
    assert!(
        rejected.head.contains("x-evenkeel-hint: ") && rejected.head.contains("in flight"),
        "{rejected:?}"
    );
    let handle = &received["Messages"][0]["ReceiptHandle"];
    server.ok("DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": handle}));
    server.ok("SendMessage", &message("c"));
}

#[track_caller]
fn assert_over_limit(reply: &Reply, message: &str) {
    assert_eq!(reply.status, 403, "{reply:?}");
    assert!(reply.head.contains("overlimit") && reply.body.contains(message), "{reply:?}");
}

#[test]
fn the_counts_of_a_queue_include_everything_that_was_answered_before() {
    for store in [StoreKind::Memory, StoreKind::Disk] {
        let server = SqsServer::with(&format!("counts-{store:?}"), Setup { store, ..Setup::default() });
        server.ok("CreateQueue", &json!({"QueueName": "q"}));
        let counts = json!({"QueueUrl": "q", "AttributeNames": ["All"]});
        for sent in 1..=200 {
            server.ok("SendMessage", &json!({"QueueUrl": "q", "MessageBody": "x", "DelaySeconds": 900}));
            let attributes = &server.ok("GetQueueAttributes", &counts)["Attributes"];
            assert_eq!(attributes["ApproximateNumberOfMessagesDelayed"], sent.to_string(), "{attributes}");
            assert_eq!(attributes["ApproximateNumberOfMessages"], "0", "{attributes}");
        }
        server.ok("SendMessage", &json!({"QueueUrl": "q", "MessageBody": "x"}));
        for _ in 0..200 {
            // The timeout is over before the response.
            server.ok("ReceiveMessage", &json!({"QueueUrl": "q", "VisibilityTimeout": 0}));
            let attributes = &server.ok("GetQueueAttributes", &counts)["Attributes"];
            assert_eq!(attributes["ApproximateNumberOfMessages"], "1", "{attributes}");
        }
    }
}

#[test]
fn a_receive_that_returns_nothing_has_moved_the_message_to_the_dead_letter_queue() {
    for store in [StoreKind::Memory, StoreKind::Disk] {
        let server = SqsServer::with(&format!("moved-{store:?}"), Setup { store, ..Setup::default() });
        server.ok("CreateQueue", &json!({"QueueName": "dead"}));
        let arn = "arn:aws:sqs:us-east-1:000000000000:dead";
        let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
        let attributes = json!({"RedrivePolicy": policy, "VisibilityTimeout": "0"});
        server.ok("CreateQueue", &json!({"QueueName": "q", "Attributes": attributes}));
        for n in 0..100 {
            server.ok("SendMessage", &json!({"QueueUrl": "q", "MessageBody": n.to_string()}));
            let first = server.ok("ReceiveMessage", &json!({"QueueUrl": "q"}));
            assert_eq!(first["Messages"][0]["Body"], n.to_string(), "{first}");
            assert_eq!(server.ok("ReceiveMessage", &json!({"QueueUrl": "q"})), json!({}));
            let dead = server.ok("ReceiveMessage", &json!({"QueueUrl": "dead"}));
            assert_eq!(dead["Messages"][0]["Body"], n.to_string(), "{dead}");
        }
    }
}

#[test]
fn a_move_task_moves_messages_whose_visibility_timeout_has_just_ended() {
    const MESSAGES: u64 = 4;
    for store in [StoreKind::Memory, StoreKind::Disk] {
        let server = SqsServer::with(&format!("move-due-{store:?}"), Setup { store, ..Setup::default() });
        let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
        server.ok("CreateQueue", &json!({"QueueName": "dead"}));
        let policy = json!({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1}).to_string();
        server.ok("CreateQueue", &json!({"QueueName": "q", "Attributes": {"RedrivePolicy": policy}}));
        for _ in 0..20 {
            for _ in 0..MESSAGES {
                server.ok("SendMessage", &json!({"QueueUrl": "dead", "MessageBody": "x"}));
            }
            // The timeout is over before the response.
            let receive = json!({"QueueUrl": "dead", "VisibilityTimeout": 0, "MaxNumberOfMessages": 10});
            server.ok("ReceiveMessage", &receive);
            let task = json!({"SourceArn": arn("dead"), "DestinationArn": arn("q")});
            server.ok("StartMessageMoveTask", &task);
            let task = loop {
                let tasks = server.ok("ListMessageMoveTasks", &json!({"SourceArn": arn("dead")}));
                if tasks["Results"][0]["Status"] != "RUNNING" {
                    break tasks["Results"][0].clone();
                }
            };
            assert_eq!(task["Status"], "COMPLETED", "{task}");
            assert_eq!(task["ApproximateNumberOfMessagesToMove"], MESSAGES, "{task}");
            assert_eq!(task["ApproximateNumberOfMessagesMoved"], MESSAGES, "{task}");
        }
    }
}

#[test]
fn an_entry_that_is_invalid_fails_alone_with_the_text_for_entries() {
    const MISSING: &str = "The request must contain the parameter";
    let server = SqsServer::start("entries");
    server.ok("CreateQueue", &json!({"QueueName": "q", "Attributes": {"MaximumMessageSize": "1024"}}));
    let batch = |operation: &str, second: Value| {
        let valid = match operation {
            "SendMessageBatch" => json!({"Id": "a", "MessageBody": "x"}),
            _ => {
                server.ok("SendMessage", &json!({"QueueUrl": "q", "MessageBody": "x"}));
                let received = server.ok("ReceiveMessage", &json!({"QueueUrl": "q"}));
                let handle = &received["Messages"][0]["ReceiptHandle"];
                json!({"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 60})
            }
        };
        let reply = server.ok(operation, &json!({"QueueUrl": "q", "Entries": [valid, second]}));
        assert_eq!(reply["Successful"][0]["Id"], "a", "{reply}");
        assert_eq!(reply["Failed"][0]["Id"], "b", "{reply}");
        reply["Failed"][0]["Message"].as_str().unwrap().to_owned()
    };
    let send = |entry| batch("SendMessageBatch", entry);
    let missing = |name: &str| format!("{MISSING} {name}.");
    assert_eq!(send(json!({"Id": "b"})), missing("SendMessageBatchRequestEntry.2.MessageBody"));
    let long = json!({"Id": "b", "MessageBody": "x".repeat(1_025)});
    assert_eq!(
        send(long),
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    );
    let dedup = json!({"Id": "b", "MessageBody": "x", "MessageDeduplicationId": "d"});
    assert_eq!(send(dedup), "The request include parameter that is not valid for this queue type");
    let empty = json!({"Id": "b", "MessageBody": "x", "MessageAttributes": {"a": null}});
    assert_eq!(
        send(empty),
        "The message (user) attribute 'a' must contain a non-empty message attribute value."
    );
    let delete = batch("DeleteMessageBatch", json!({"Id": "b"}));
    assert_eq!(delete, missing("DeleteMessageBatchRequestEntry.2.ReceiptHandle"));
    let change = batch("ChangeMessageVisibilityBatch", json!({"Id": "b", "ReceiptHandle": "x"}));
    assert_eq!(change, missing("ChangeMessageVisibilityBatchRequestEntry.2.VisibilityTimeout"));

    let message = |operation: &str, request: Value| {
        let reply = server.call(operation, &request);
        assert_eq!(reply.status, 400, "{reply:?}");
        reply.json()["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(message("SendMessage", json!({"QueueUrl": "q"})), missing("MessageBody"));
    let long = json!({"QueueUrl": "q", "MessageBody": "x".repeat(1_025)});
    assert_eq!(
        message("SendMessage", long),
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
    );
    assert_eq!(message("DeleteMessage", json!({"QueueUrl": "q"})), missing("MessageHandle"));
    let change = json!({"QueueUrl": "q", "VisibilityTimeout": 1});
    assert_eq!(message("ChangeMessageVisibility", change), missing("ReceiptHandle"));
}

#[test]
fn a_policy_has_at_most_twenty_statements_and_8192_bytes() {
    let server = SqsServer::start("statements");
    server.ok("CreateQueue", &json!({"QueueName": "q"}));
    let set = |statements: usize| {
        let policy = json!({"Statement": vec![json!({"Effect": "Allow"}); statements]}).to_string();
        server.call("SetQueueAttributes", &json!({"QueueUrl": "q", "Attributes": {"Policy": policy}}))
    };
    assert_eq!(set(20).status, 200);
    let message = "21 statements were found in the submitted policy, max allowed is 20";
    assert_over_limit(&set(21), message);
    let permission = |accounts: usize| {
        let accounts: Vec<String> = (0..accounts).map(|number| format!("{number:012}")).collect();
        let permission =
            json!({"QueueUrl": "q", "Label": "new", "AWSAccountIds": accounts, "Actions": ["SendMessage"]});
        server.call("AddPermission", &permission)
    };
    assert_over_limit(&permission(1), message);
    assert_eq!(set(19).status, 200);
    let too_long = permission(300);
    assert_eq!(too_long.json()["message"], "Invalid value for the parameter Policy.", "{too_long:?}");
    assert!(too_long.head.contains("at most 8192 bytes"), "{too_long:?}");
    assert_eq!(permission(1).status, 200);
}

#[test]
fn operations_and_queue_contents_are_counted() {
    let server = SqsServer::start("metrics");
    server.ok("CreateQueue", &json!({"QueueName": "q"}));
    for body in ["one", "two", "three"] {
        server.ok("SendMessage", &json!({"QueueUrl": "q", "MessageBody": body}));
    }
    let received = server.ok("ReceiveMessage", &json!({"QueueUrl": "q"}));
    let handle = &received["Messages"][0]["ReceiptHandle"];
    server.ok("DeleteMessage", &json!({"QueueUrl": "q", "ReceiptHandle": handle}));
    assert_eq!(server.call("PurgeQueue", &json!({"QueueUrl": "none"})).status, 400);
    let page = server.metrics();
    for line in [
        r#"evenkeel_queue_sent_total{queue="q",owner=""} 3"#,
        r#"evenkeel_queue_received_total{queue="q",owner=""} 1"#,
        r#"evenkeel_queue_deleted_total{queue="q",owner=""} 1"#,
        r#"evenkeel_queue_actor_restarts_total{queue="q",owner=""} 0"#,
        r#"evenkeel_queue_messages{queue="q",owner="",state="pending"} 2"#,
        r#"evenkeel_queue_messages{queue="q",owner="",state="in_flight"} 0"#,
        r#"evenkeel_sqs_requests_total{operation="SendMessage",code="OK"} 3"#,
        r#"evenkeel_sqs_requests_total{operation="PurgeQueue",code="AWS.SimpleQueueService.NonExistentQueue"} 1"#,
    ] {
        assert!(page.lines().any(|found| found == line), "no {line} in {page}");
    }
}

#[test]
fn an_unknown_operation_is_an_error_with_a_request_id() {
    let server = SqsServer::start("unknown");
    let rejected = server.call("StealQueue", &json!({}));
    assert_eq!(rejected.status, 400);
    assert_eq!(rejected.json()["__type"], "com.amazon.coral.service#UnknownOperationException");
    assert!(rejected.head.contains("x-amzn-requestid: req-"), "{}", rejected.head);
    let malformed = server.call("ListQueues", &json!([1]));
    assert!(malformed.body.contains("SerializationException"), "{malformed:?}");
}
