//! Clients of the crash test. Each repeats one operation until a request gets no response.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::Instant;

use serde_json::{Value, json};

use super::TIMEOUT;
use super::ledger::{Body, Delivery, Ledger};
use evenkeel_sim_node::testing::{RawResponse, ResponseEnd, read};

pub(super) const QUEUE: &str = "jobs";
/// Dead-letter queue of `QUEUE`.
pub(super) const DEAD: &str = "dead";
/// Deliveries before a message moves to the dead-letter queue.
pub(super) const RECEIVES_MAX: u32 = 3;
/// Lease of consumers that delete; once it expires, another consumer may receive the message.
const LEASE_SECS: u64 = 5;
const GROUPS: u64 = 5;
const BATCH: u64 = 10;

/// Operation that a client repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    SendBatch,
    Delete,
    DeleteBatch,
    /// Receives with a lease of one second and lets it expire.
    Abandon,
    /// Receives and makes the messages visible again.
    Release,
    /// Deletes messages of the dead-letter queue.
    DeleteDead,
}

impl Operation {
    pub(super) const ALL: [Self; 11] = [
        Self::Send,
        Self::Send,
        Self::SendBatch,
        Self::SendBatch,
        Self::Delete,
        Self::Delete,
        Self::DeleteBatch,
        Self::DeleteBatch,
        Self::Abandon,
        Self::Release,
        Self::DeleteDead,
    ];

    pub(super) const fn queue(self) -> &'static str {
        match self {
            Self::DeleteDead => DEAD,
            _ => QUEUE,
        }
    }
}

/// Error of a request that got no response or that a stopping gateway rejected.
#[derive(Debug)]
pub(super) struct Stopped;

pub(super) struct Client {
    address: SocketAddr,
    name: usize,
    round: u64,
    ledger: Ledger,
    done: Sender<()>,
}

impl Client {
    pub(super) fn new(
        address: SocketAddr,
        name: usize,
        round: u64,
        ledger: Ledger,
        done: Sender<()>,
    ) -> Self {
        Self { address, name, round, ledger, done }
    }

    /// Repeats an operation until the gateway has stopped.
    pub(super) fn run(self, operation: Operation) {
        let mut numbers = 0..;
        let run_once = |number| match operation {
            Operation::Send => self.produce(operation, number..number + 1),
            Operation::SendBatch => self.produce(operation, number * BATCH..(number + 1) * BATCH),
            Operation::Delete
            | Operation::DeleteBatch
            | Operation::Abandon
            | Operation::Release
            | Operation::DeleteDead => self.consume(operation),
        };
        let Err(Stopped) = numbers.try_for_each(run_once) else { unreachable!("the range has no end") };
    }

    fn produce(&self, operation: Operation, numbers: Range<u64>) -> Result<(), Stopped> {
        let body = |number| Body { producer: self.name, group: number % GROUPS, round: self.round, number };
        let bodies: Vec<Body> = numbers.map(body).collect();
        self.ledger.record_send_attempt(&bodies);
        self.ledger.record_sent(&self.send(operation, &bodies)?);
        Ok(())
    }

    /// Sends messages; returns the accepted ones.
    fn send(&self, operation: Operation, bodies: &[Body]) -> Result<Vec<Body>, Stopped> {
        if operation == Operation::Send {
            let body = bodies[0];
            self.call("SendMessage", &with_queue(message(body)))?;
            return Ok(vec![body]);
        }
        let entries: Vec<Value> = bodies
            .iter()
            .enumerate()
            .map(|(id, body)| {
                let mut entry = message(*body);
                entry["Id"] = json!(id.to_string());
                entry
            })
            .collect();
        let response = self.call("SendMessageBatch", &json!({"QueueUrl": QUEUE, "Entries": entries}))?;
        Ok(successful(&response).into_iter().map(|id| bodies[id]).collect())
    }

    /// Receives once and applies the operation to the messages.
    pub(super) fn consume(&self, operation: Operation) -> Result<(), Stopped> {
        let (max, lease_secs) = match operation {
            Operation::Abandon => (3, 1),
            Operation::Release => (3, LEASE_SECS),
            _ => (BATCH, LEASE_SECS),
        };
        let request = json!({
            "QueueUrl": operation.queue(), "MaxNumberOfMessages": max, "VisibilityTimeout": lease_secs, "WaitTimeSeconds": 1,
            "MessageSystemAttributeNames": ["ApproximateReceiveCount", "MessageGroupId"],
        });
        let snapshot = self.ledger.begin_receive();
        let started = Instant::now();
        let response = self.call("ReceiveMessage", &request)?;
        let messages = response["Messages"].as_array().cloned().unwrap_or_default();
        let received: Vec<(Delivery, &Value)> = messages
            .iter()
            .map(|message| (delivery(operation, message), &message["ReceiptHandle"]))
            .collect();
        self.ledger.record_received(&snapshot, received.iter().map(|(delivery, _)| *delivery));
        match operation {
            Operation::Delete => received.chunks(1).try_for_each(|one| self.delete(operation, one, started)),
            Operation::DeleteBatch | Operation::DeleteDead if !received.is_empty() => {
                self.delete(operation, &received, started)
            }
            Operation::Release => self.release(&received),
            _ => Ok(()),
        }
    }

    fn delete(
        &self,
        operation: Operation,
        received: &[(Delivery, &Value)],
        started: Instant,
    ) -> Result<(), Stopped> {
        let deliveries: Vec<Delivery> = received.iter().map(|(delivery, _)| *delivery).collect();
        self.ledger.record_deleting(&deliveries);
        let deleted: Vec<Delivery> = if operation == Operation::Delete {
            self.call("DeleteMessage", &json!({"QueueUrl": QUEUE, "ReceiptHandle": received[0].1}))?;
            deliveries
        } else {
            let response = self.call("DeleteMessageBatch", &entries(operation, received, None))?;
            successful(&response).into_iter().map(|id| deliveries[id]).collect()
        };
        // After the lease has ended, a delete succeeds without effect.
        if started.elapsed().as_secs() < LEASE_SECS {
            self.ledger.record_deleted(&deleted);
        }
        Ok(())
    }

    /// Makes the first message visible at once, the others in a second.
    fn release(&self, received: &[(Delivery, &Value)]) -> Result<(), Stopped> {
        let Some(((_, handle), rest)) = received.split_first() else { return Ok(()) };
        let at_once = json!({"QueueUrl": QUEUE, "ReceiptHandle": handle, "VisibilityTimeout": 0});
        self.call("ChangeMessageVisibility", &at_once)?;
        if !rest.is_empty() {
            let batch = entries(Operation::Release, rest, Some(1));
            self.call("ChangeMessageVisibilityBatch", &batch)?;
        }
        Ok(())
    }

    /// Calls an SQS operation and waits for the complete response.
    pub(super) fn call(&self, operation: &str, body: &Value) -> Result<Value, Stopped> {
        let Ok(socket) = TcpStream::connect(self.address) else {
            self.ledger.record_unreached(operation);
            return Err(Stopped);
        };
        let Some(reply) = exchange(socket, operation, &body.to_string()) else {
            self.ledger.record_unanswered(operation);
            return Err(Stopped);
        };
        let _ = self.done.send(());
        if reply.status != 200 {
            self.ledger.record_rejected(operation, &reply);
            return Err(Stopped);
        }
        Ok(reply.json())
    }
}

/// Sends a request; returns the response if it is complete.
fn exchange(mut socket: TcpStream, operation: &str, body: &str) -> Option<RawResponse> {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-amz-target: AmazonSQS.{operation}\r\n"
    );
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).ok()?;
    let reply = read(socket);
    (reply.end == ResponseEnd::Complete).then_some(reply)
}

fn message(body: Body) -> Value {
    json!({"MessageBody": body.to_string(), "MessageGroupId": body.group()})
}

fn with_queue(mut message: Value) -> Value {
    message["QueueUrl"] = json!(QUEUE);
    message
}

fn delivery(operation: Operation, message: &Value) -> Delivery {
    let body: Body = message["Body"].as_str().unwrap().parse().unwrap();
    assert_eq!(message["Attributes"]["MessageGroupId"], json!(body.group()));
    let count = message["Attributes"]["ApproximateReceiveCount"].as_str().unwrap();
    // The dead-letter queue counts from 1 again.
    let before = if operation == Operation::DeleteDead { RECEIVES_MAX } else { 0 };
    Delivery { body, attempt: before + count.parse::<u32>().unwrap() }
}

/// Returns the entries of a batch request; the ID of each is its index.
fn entries(operation: Operation, received: &[(Delivery, &Value)], visibility_secs: Option<u64>) -> Value {
    let entries: Vec<Value> = received
        .iter()
        .enumerate()
        .map(|(id, (_, handle))| {
            let mut entry = json!({"Id": id.to_string(), "ReceiptHandle": handle});
            if let Some(secs) = visibility_secs {
                entry["VisibilityTimeout"] = json!(secs);
            }
            entry
        })
        .collect();
    json!({"QueueUrl": operation.queue(), "Entries": entries})
}

/// Returns the indexes of the successful entries of a batch.
fn successful(response: &Value) -> Vec<usize> {
    let entries = response["Successful"].as_array().cloned().unwrap_or_default();
    entries.iter().map(|entry| entry["Id"].as_str().unwrap().parse().unwrap()).collect()
}
