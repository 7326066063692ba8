//! SQS in its JSON protocol, over HTTP/1.1 with the connection kept open; unsigned.

use std::io;
use std::net::SocketAddr;

use bench_support::{Body, HttpConnection};
use memchr::memmem;

use super::{ReceiptHandle, body, refused};

const RECEIPT: &[u8] = b"\"ReceiptHandle\":\"";

pub(crate) struct Sqs {
    wire: HttpConnection,
    queue: String,
    url: String,
    /// Every producer is a tenant of its own.
    tenant: usize,
    body: String,
    /// The requests that are the same every time, by how many messages are sent, or wanted.
    prepared: Vec<(&'static str, usize, Vec<u8>)>,
    answer: Vec<u8>,
}

impl Sqs {
    pub(super) async fn connect(address: SocketAddr, queue: &str, number: usize) -> io::Result<Self> {
        Ok(Self {
            wire: HttpConnection::connect(address).await?,
            queue: queue.to_owned(),
            url: format!("http://{address}/000000000000/{queue}"),
            tenant: number,
            body: body(),
            prepared: Vec::new(),
            answer: Vec::new(),
        })
    }

    pub(super) async fn create(&mut self) -> io::Result<()> {
        let request = request("CreateQueue", &format!("{{\"QueueName\":\"{}\"}}", self.queue));
        self.ask(&request).await
    }

    pub(super) async fn send(&mut self, count: usize) -> io::Result<()> {
        let operation = if count == 1 { "SendMessage" } else { "SendMessageBatch" };
        self.ask_prepared(operation, count).await?;
        let sent = memmem::find_iter(&self.answer, b"\"MessageId\":").count();
        if sent == count { Ok(()) } else { Err(refused(&self.answer)) }
    }

    pub(super) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        self.ask_prepared("ReceiveMessage", max).await?;
        let receipt = |at: usize| {
            let rest = &self.answer[at + RECEIPT.len()..];
            rest.split(|byte| *byte == b'"').next().unwrap_or_default().to_vec()
        };
        Ok(memmem::find_iter(&self.answer, RECEIPT).map(receipt).collect())
    }

    pub(super) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        let text = |receipt: &ReceiptHandle| String::from_utf8_lossy(receipt).into_owned();
        if let [receipt] = receipts {
            let body = format!("{{\"QueueUrl\":\"{}\",\"ReceiptHandle\":\"{}\"}}", self.url, text(receipt));
            return self.ask(&request("DeleteMessage", &body)).await;
        }
        let entries: Vec<_> = (receipts.iter().enumerate())
            .map(|(at, receipt)| format!("{{\"Id\":\"{at}\",\"ReceiptHandle\":\"{}\"}}", text(receipt)))
            .collect();
        let body = format!("{{\"QueueUrl\":\"{}\",\"Entries\":[{}]}}", self.url, entries.join(","));
        self.ask(&request("DeleteMessageBatch", &body)).await?;
        let failed = memmem::find(&self.answer, b"SenderFault").is_some();
        if failed { Err(refused(&self.answer)) } else { Ok(()) }
    }

    async fn ask_prepared(&mut self, operation: &'static str, count: usize) -> io::Result<()> {
        let known = self.prepared.iter().position(|(of, at, _)| (*of, *at) == (operation, count));
        let (_, _, request) = match known {
            Some(at) => self.prepared.swap_remove(at),
            None => (operation, count, request(operation, &self.parameters(operation, count))),
        };
        let asked = self.ask(&request).await;
        self.prepared.push((operation, count, request));
        asked
    }

    fn parameters(&self, operation: &str, count: usize) -> String {
        let url = &self.url;
        let tenant = self.tenant;
        let body = &self.body;
        match operation {
            "SendMessage" => {
                format!(
                    "{{\"QueueUrl\":\"{url}\",\"MessageBody\":\"{body}\",\"MessageGroupId\":\"t{tenant}\"}}"
                )
            }
            "SendMessageBatch" => {
                let entry = |at: usize| {
                    format!("{{\"Id\":\"{at}\",\"MessageBody\":\"{body}\",\"MessageGroupId\":\"t{tenant}\"}}")
                };
                let entries: Vec<_> = (0..count).map(entry).collect();
                format!("{{\"QueueUrl\":\"{url}\",\"Entries\":[{}]}}", entries.join(","))
            }
            _ => format!("{{\"QueueUrl\":\"{url}\",\"MaxNumberOfMessages\":{count}}}"),
        }
    }

    /// Asks, and keeps the answer's body.
    async fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        self.wire.write(request).await?;
        let head = self.wire.head().await?;
        let mut head = head.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        self.answer.clear();
        while head.body != Body::Done {
            self.answer.extend_from_slice(self.wire.part(&mut head.body).await?);
        }
        if head.line.get(9..12) == Some(b"200") { Ok(()) } else { Err(refused(&self.answer)) }
    }
}

fn request(operation: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-amz-json-1.0\r\n\
         x-amz-target: AmazonSQS.{operation}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}
