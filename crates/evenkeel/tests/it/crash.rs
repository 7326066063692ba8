//! Crash test: the gateway is killed repeatedly while SQS clients send, receive, delete and release messages, some of
//! which move to a dead-letter queue. Every confirmation is recorded here, outside the gateway, and must still hold after
//! all crashes.

mod client;
mod ledger;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::json;

use self::client::{Client, Operation};
use self::ledger::{Ledger, StopKind};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const KILLS: u64 = 20;
const STOPS: u64 = 5;
/// Turns a test that would hang into one that fails.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn twenty_crashes_lose_no_confirmed_message_and_redeliver_no_deleted_one() {
    let ledger = stop_repeatedly(&TestDir::new("killed"), KILLS, StopKind::Kill);
    assert!(ledger.unanswered_requests() > 0, "no request was in flight when the gateway was killed");
}

#[test]
fn a_graceful_shutdown_answers_every_request_that_it_executed() {
    stop_repeatedly(&TestDir::new("stopped"), STOPS, StopKind::Graceful);
}

/// Stops the gateway repeatedly under load, then drains the queue and checks the ledger.
fn stop_repeatedly(dir: &TestDir, stops: u64, kind: StopKind) -> Ledger {
    dir.write("evenkeel.toml", "[queue]\ndurability = 'fsync'\n");
    let ledger = Ledger::default();
    for round in 0..stops {
        let server = ServerProcess::start(dir, &[]);
        let (done, responses) = channel();
        if round == 0 {
            let first = Client::new(server.address, 0, round, ledger.clone(), done.clone());
            create_queues(&first);
        }
        let clients: Vec<_> = Operation::ALL
            .into_iter()
            .enumerate()
            .map(|(name, operation)| {
                let client = Client::new(server.address, name, round, ledger.clone(), done.clone());
                std::thread::spawn(move || client.run(operation))
            })
            .collect();
        drop(done);
        wait_for_responses(&responses, responses_before_stop(round));
        ledger.record_stop(kind);
        server.signal(match kind {
            StopKind::Kill => "KILL",
            StopKind::Graceful => "TERM",
        });
        for client in clients {
            client.join().unwrap();
        }
        let code = server.wait();
        if kind == StopKind::Graceful {
            assert_eq!(code, Some(0), "in round {round}");
        }
        ledger.record_stopped();
    }
    drain(dir, &ledger);
    ledger.check(stops);
    ledger
}

fn create_queues(client: &Client) {
    client.call("CreateQueue", &json!({"QueueName": client::DEAD})).expect("a running gateway");
    let arn = format!("arn:aws:sqs:us-east-1:000000000000:{}", client::DEAD);
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": client::RECEIVES_MAX}).to_string();
    let attributes = json!({"RedrivePolicy": policy});
    let request = json!({"QueueName": client::QUEUE, "Attributes": attributes});
    client.call("CreateQueue", &request).expect("a running gateway");
}

/// Returns the number of responses to wait for before a stop. It takes some hundred milliseconds and differs per round.
fn responses_before_stop(round: u64) -> u64 {
    100 + (round * 7_919) % 900
}

fn wait_for_responses(responses: &Receiver<()>, count: u64) {
    for _ in 0..count {
        responses.recv_timeout(TIMEOUT).expect("clients get responses");
    }
}

/// Receives and deletes until both queues are empty, including invisible messages.
fn drain(dir: &TestDir, ledger: &Ledger) {
    let server = ServerProcess::start(dir, &[]);
    ledger.record_draining();
    let (done, _responses) = channel();
    let client = Client::new(server.address, 0, KILLS, ledger.clone(), done);
    let names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
    // The dead-letter queue comes last: an exhausted message moves there when the other queue is received from.
    for operation in [Operation::DeleteBatch, Operation::DeleteDead] {
        let is_empty = || {
            let request = json!({"QueueUrl": operation.queue(), "AttributeNames": names});
            let response = client.call("GetQueueAttributes", &request).expect("a running gateway");
            names.iter().all(|name| response["Attributes"][name] == "0")
        };
        while !is_empty() {
            client.consume(operation).expect("a running gateway");
        }
    }
}
