//! NATS JetStream over its text protocol: publishes with a reply, a pull consumer, acknowledgements with a reply.
//!
//! The stream is a work queue with file storage: acknowledging a message removes it.

use std::io;
use std::net::SocketAddr;

use bench_support::HttpConnection;
use memchr::memmem;

use super::{ReceiptHandle, body, unexpected};

const CONSUMER: &str = "c";
/// More messages than any consumer has in flight here.
const PENDING_MAX: u32 = 10_000;

pub(crate) struct Nats {
    connection: HttpConnection,
    queue: String,
    /// Reply subject.
    inbox: String,
    publish: Vec<u8>,
}

/// A message from the server.
struct Message {
    reply: Vec<u8>,
    /// Present if this is a status about a request instead of a message.
    status: Option<Vec<u8>>,
    body: Vec<u8>,
}

impl Nats {
    pub(super) async fn connect(address: SocketAddr, queue: &str, number: usize) -> io::Result<Self> {
        let mut connection = HttpConnection::connect(address).await?;
        let info = connection.line().await?;
        if !info.starts_with(b"INFO ") {
            return Err(unexpected(info));
        }
        let inbox = format!("_INBOX.{queue}.{number}");
        let hello = format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,\"protocol\":1}}\r\n\
             SUB {inbox} 1\r\nPING\r\n"
        );
        connection.write(hello.as_bytes()).await?;
        let publish = publish(&format!("s.{queue}"), &inbox, &body());
        let mut nats = Self { connection, queue: queue.to_owned(), inbox, publish };
        let pong = nats.connection.line().await?;
        if pong != b"PONG" {
            return Err(unexpected(pong));
        }
        Ok(nats)
    }

    pub(super) async fn create(&mut self) -> io::Result<()> {
        let queue = &self.queue;
        let stream = format!(
            "{{\"name\":\"{queue}\",\"subjects\":[\"s.{queue}\"],\"retention\":\"workqueue\",\"storage\":\"file\",\
             \"num_replicas\":1}}"
        );
        let consumer = format!(
            "{{\"stream_name\":\"{queue}\",\"config\":{{\"durable_name\":\"{CONSUMER}\",\"ack_policy\":\"explicit\",\
             \"max_ack_pending\":{PENDING_MAX}}}}}"
        );
        let create_stream = publish(&format!("$JS.API.STREAM.CREATE.{queue}"), &self.inbox, &stream);
        let create_consumer =
            publish(&format!("$JS.API.CONSUMER.DURABLE.CREATE.{queue}.{CONSUMER}"), &self.inbox, &consumer);
        self.connection.write(&create_stream).await?;
        self.expect_ok().await?;
        self.connection.write(&create_consumer).await?;
        self.expect_ok().await
    }

    pub(super) async fn send(&mut self, count: usize) -> io::Result<()> {
        self.connection.write(&self.publish.repeat(count)).await?;
        for _ in 0..count {
            self.expect_ok().await?;
        }
        Ok(())
    }

    pub(super) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        let request = format!("{{\"batch\":{max},\"no_wait\":true}}");
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{CONSUMER}", self.queue);
        self.connection.write(&publish(&next, &self.inbox, &request)).await?;
        let mut receipts = Vec::with_capacity(max);
        while receipts.len() < max {
            let Message { reply, status, .. } = self.message().await?;
            match status {
                // The queue is empty.
                Some(status)
                    if [b"408", b"404"].iter().any(|code| memmem::find(&status, *code).is_some()) =>
                {
                    break;
                }
                Some(status) => return Err(unexpected(&status)),
                None => receipts.push(reply),
            }
        }
        Ok(receipts)
    }

    pub(super) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        let mut all = Vec::new();
        for receipt in receipts {
            all.extend(publish(&String::from_utf8_lossy(receipt), &self.inbox, "+ACK"));
        }
        self.connection.write(&all).await?;
        for _ in receipts {
            let message = self.message().await?;
            if message.status.is_some() || !message.body.is_empty() {
                return Err(unexpected(&message.body));
            }
        }
        Ok(())
    }

    /// Reads a JSON reply; a reply with an `error` is an error.
    async fn expect_ok(&mut self) -> io::Result<()> {
        let Message { status, body, .. } = self.message().await?;
        if status.is_some() || memmem::find(&body, b"\"error\"").is_some() {
            return Err(unexpected(status.as_deref().unwrap_or(&body)));
        }
        Ok(())
    }

    async fn message(&mut self) -> io::Result<Message> {
        loop {
            let line = self.connection.line().await?;
            let words: Vec<Vec<u8>> = line
                .split(|byte| *byte == b' ')
                .map(<[u8]>::to_vec)
                .filter(|word| !word.is_empty())
                .collect();
            let number = |index: usize| std::str::from_utf8(words.get(index)?).ok()?.parse::<usize>().ok();
            let last = words.len().saturating_sub(1);
            match (words.first().map(Vec::as_slice), number(last)) {
                (Some(b"PING"), _) => self.connection.write(b"PONG\r\n").await?,
                (Some(b"MSG"), Some(count)) => {
                    let reply = if last == 4 { words[3].clone() } else { Vec::new() };
                    let body = self.connection.read_exact(count + 2).await?[..count].to_vec();
                    return Ok(Message { reply, status: None, body });
                }
                (Some(b"HMSG"), Some(count)) => {
                    let head = number(last - 1).filter(|head| *head <= count);
                    let head = head.ok_or_else(|| unexpected(b"header is longer than the message"))?;
                    let all = self.connection.read_exact(count + 2).await?;
                    let status = all[..head].split(|byte| *byte == b'\r').next().unwrap_or_default().to_vec();
                    return Ok(Message {
                        reply: Vec::new(),
                        status: Some(status),
                        body: all[head..count].to_vec(),
                    });
                }
                (Some(b"INFO" | b"+OK"), _) => {}
                _ => return Err(unexpected(&words.join(&b' '))),
            }
        }
    }
}

fn publish(subject: &str, reply: &str, body: &str) -> Vec<u8> {
    format!("PUB {subject} {reply} {}\r\n{body}\r\n", body.len()).into_bytes()
}
