//! Clients of a gateway that dies: each has a habit, and gives up at the first request that stays unanswered.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::Instant;

use serde_json::{Value, json};

use super::PATIENCE;
use super::ledger::{Body, Book, Delivery};
use crate::raw::{Ended, Reply, read};

pub(super) const QUEUE: &str = "jobs";
/// How long a consumer that means to delete has for it. Whatever it deletes later may be another's by then.
const LEASE_SECS: u64 = 5;
const GROUPS: u64 = 5;
const BATCH: u64 = 10;

/// What a client does all its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    Send,
    SendBatch,
    Delete,
    DeleteBatch,
    /// Receives for a second and does nothing.
    Forget,
    /// Receives and gives back.
    GiveBack,
}

impl Habit {
    pub(super) const ALL: [Self; 10] = [
        Self::Send,
        Self::Send,
        Self::SendBatch,
        Self::SendBatch,
        Self::Delete,
        Self::Delete,
        Self::DeleteBatch,
        Self::DeleteBatch,
        Self::Forget,
        Self::GiveBack,
    ];
}

/// A request stayed unanswered, or was refused by a gateway that stops.
#[derive(Debug)]
pub(super) struct Gone;

pub(super) struct Client {
    address: SocketAddr,
    name: usize,
    round: u64,
    book: Book,
    done: Sender<()>,
}

impl Client {
    pub(super) fn new(address: SocketAddr, name: usize, round: u64, book: Book, done: Sender<()>) -> Self {
        Self { address, name, round, book, done }
    }

    /// Does what its habit is until the gateway is gone.
    pub(super) fn live(self, habit: Habit) {
        let mut turns = 0..;
        let once = |turn| match habit {
            Habit::Send => self.produce(habit, turn..turn + 1),
            Habit::SendBatch => self.produce(habit, turn * BATCH..(turn + 1) * BATCH),
            Habit::Delete | Habit::DeleteBatch | Habit::Forget | Habit::GiveBack => self.consume(habit),
        };
        let Err(Gone) = turns.try_for_each(once) else { unreachable!("there is no last turn") };
    }

    fn produce(&self, habit: Habit, numbers: Range<u64>) -> Result<(), Gone> {
        let body = |number| Body { producer: self.name, group: number % GROUPS, round: self.round, number };
        let bodies: Vec<Body> = numbers.map(body).collect();
        self.book.record_trying(&bodies);
        self.book.record_sent(&self.send(habit, &bodies)?);
        Ok(())
    }

    /// Sends, and says which were taken.
    fn send(&self, habit: Habit, bodies: &[Body]) -> Result<Vec<Body>, Gone> {
        if habit == Habit::Send {
            let body = bodies[0];
            self.ask("SendMessage", &with_queue(message(body)))?;
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
        let told = self.ask("SendMessageBatch", &json!({"QueueUrl": QUEUE, "Entries": entries}))?;
        Ok(successful(&told).into_iter().map(|id| bodies[id]).collect())
    }

    /// Receives once, and does with it what the habit is.
    pub(super) fn consume(&self, habit: Habit) -> Result<(), Gone> {
        let (max, lease_secs) = match habit {
            Habit::Forget => (3, 1),
            Habit::GiveBack => (3, LEASE_SECS),
            _ => (BATCH, LEASE_SECS),
        };
        let asked = json!({
            "QueueUrl": QUEUE, "MaxNumberOfMessages": max, "VisibilityTimeout": lease_secs, "WaitTimeSeconds": 1,
            "MessageSystemAttributeNames": ["ApproximateReceiveCount", "MessageGroupId"],
        });
        let begun = self.book.begin_receive();
        let started = Instant::now();
        let told = self.ask("ReceiveMessage", &asked)?;
        let messages = told["Messages"].as_array().cloned().unwrap_or_default();
        let taken: Vec<(Delivery, &Value)> =
            messages.iter().map(|message| (delivery(message), &message["ReceiptHandle"])).collect();
        self.book.record_received(&begun, taken.iter().map(|(delivery, _)| *delivery));
        match habit {
            Habit::Delete => taken.chunks(1).try_for_each(|one| self.delete(habit, one, started)),
            Habit::DeleteBatch if !taken.is_empty() => self.delete(habit, &taken, started),
            Habit::GiveBack => self.give_back(&taken),
            _ => Ok(()),
        }
    }

    fn delete(&self, habit: Habit, taken: &[(Delivery, &Value)], started: Instant) -> Result<(), Gone> {
        let deliveries: Vec<Delivery> = taken.iter().map(|(delivery, _)| *delivery).collect();
        self.book.record_deleting(&deliveries);
        let deleted: Vec<Delivery> = if habit == Habit::Delete {
            self.ask("DeleteMessage", &json!({"QueueUrl": QUEUE, "ReceiptHandle": taken[0].1}))?;
            deliveries
        } else {
            let told = self.ask("DeleteMessageBatch", &entries(taken, None))?;
            successful(&told).into_iter().map(|id| deliveries[id]).collect()
        };
        // A handle whose lease has ended is answered alike.
        if started.elapsed().as_secs() < LEASE_SECS {
            self.book.record_deleted(&deleted);
        }
        Ok(())
    }

    /// Gives back the first at once, the others in a second.
    fn give_back(&self, taken: &[(Delivery, &Value)]) -> Result<(), Gone> {
        let Some(((_, handle), rest)) = taken.split_first() else { return Ok(()) };
        let at_once = json!({"QueueUrl": QUEUE, "ReceiptHandle": handle, "VisibilityTimeout": 0});
        self.ask("ChangeMessageVisibility", &at_once)?;
        if !rest.is_empty() {
            self.ask("ChangeMessageVisibilityBatch", &entries(rest, Some(1)))?;
        }
        Ok(())
    }

    /// Asks and waits for the whole of an answer.
    pub(super) fn ask(&self, operation: &str, body: &Value) -> Result<Value, Gone> {
        let Ok(socket) = TcpStream::connect(self.address) else {
            self.book.record_unreached(operation);
            return Err(Gone);
        };
        let Some(reply) = exchange(socket, operation, &body.to_string()) else {
            self.book.record_unanswered(operation);
            return Err(Gone);
        };
        let _ = self.done.send(());
        if reply.status != 200 {
            self.book.record_rejected(operation, &reply);
            return Err(Gone);
        }
        Ok(reply.json())
    }
}

/// Has a request answered, if it is answered to its end.
fn exchange(mut socket: TcpStream, operation: &str, body: &str) -> Option<Reply> {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let head =
        format!("POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-amz-target: AmazonSQS.{operation}\r\n");
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).ok()?;
    let reply = read(socket);
    (reply.ended == Ended::Whole).then_some(reply)
}

fn message(body: Body) -> Value {
    json!({"MessageBody": body.to_string(), "MessageGroupId": body.group()})
}

fn with_queue(mut message: Value) -> Value {
    message["QueueUrl"] = json!(QUEUE);
    message
}

fn delivery(message: &Value) -> Delivery {
    let body: Body = message["Body"].as_str().unwrap().parse().unwrap();
    assert_eq!(message["Attributes"]["MessageGroupId"], json!(body.group()));
    let count = message["Attributes"]["ApproximateReceiveCount"].as_str().unwrap();
    Delivery { body, attempt: count.parse().unwrap() }
}

/// The entries of a batch that names deliveries, each with its place as its id.
fn entries(taken: &[(Delivery, &Value)], visibility_secs: Option<u64>) -> Value {
    let entries: Vec<Value> = taken
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
    json!({"QueueUrl": QUEUE, "Entries": entries})
}

/// The places of those entries of a batch that were done.
fn successful(told: &Value) -> Vec<usize> {
    let entries = told["Successful"].as_array().cloned().unwrap_or_default();
    entries.iter().map(|entry| entry["Id"].as_str().unwrap().parse().unwrap()).collect()
}
