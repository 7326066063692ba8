//! Consumers that disconnect while they wait, or while a response is on its way.

use std::io::Read;
use std::net::TcpStream;

use serde_json::json;

use crate::harness::{Setup, SqsServer, StoreKind};

#[test]
fn a_consumer_that_disconnects_during_a_long_poll_receives_no_message() {
    let server = on_disk("leaving");
    server.ok("CreateQueue", &json!({"QueueName": "q"}));
    let long = json!({"QueueUrl": "q", "WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
    let sockets: Vec<TcpStream> = (0..8).map(|_| server.send("ReceiveMessage", &long)).collect();
    wait_for_waiting(&server, sockets.len());
    drop(sockets);
    wait_for_waiting(&server, 0);
    server.ok("SendMessage", &json!({"QueueUrl": "q", "MessageBody": "mine"}));
    let received = server.ok("ReceiveMessage", &long);
    assert_eq!(received["Messages"][0]["Body"], "mine", "{received}");
}

#[test]
fn messages_of_a_response_that_is_cut_off_go_to_the_next_consumer() {
    let server = on_disk("middle");
    let attributes = json!({"VisibilityTimeout": "43200"});
    server.ok("CreateQueue", &json!({"QueueName": "q", "Attributes": attributes}));
    // More than the socket buffers hold while the client does not read.
    for _ in 0..10 {
        server.ok("SendMessage", &json!({"QueueUrl": "q", "MessageBody": "x".repeat(1 << 20)}));
    }
    let ten = json!({"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
    let mut socket = server.send("ReceiveMessage", &ten);
    let mut start = [0; 12];
    socket.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    drop(socket);
    let received = server.ok("ReceiveMessage", &ten);
    assert!(!received["Messages"].as_array().unwrap().is_empty());
}

fn on_disk(name: &str) -> SqsServer {
    SqsServer::with(name, Setup { store: StoreKind::Disk, ..Setup::default() })
}

/// Waits until the server's metrics report this many waiting receives.
fn wait_for_waiting(server: &SqsServer, count: usize) {
    let line = format!("evenkeel_sqs_waiting {count}");
    while !server.metrics().lines().any(|found| found == line) {
        std::thread::yield_now();
    }
}
