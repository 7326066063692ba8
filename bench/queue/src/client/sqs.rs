//! SQS over its JSON protocol: HTTP/1.1 with keep-alive, unsigned requests.

use std::io;
use std::net::SocketAddr;

use bench_support::{Body, HttpConnection};
use memchr::memmem;

use super::{ReceiptHandle, body, unexpected};

const RECEIPT: &[u8] = b"\"ReceiptHandle\":\"";

pub(crate) struct Sqs {
    connection: HttpConnection,
    queue: String,
    url: String,
    /// Each client is a separate tenant.
    tenant: usize,
    body: String,
    /// Reusable requests by operation and number of messages.
    prepared: Vec<(&'static str, usize, Vec<u8>)>,
    response: Vec<u8>,
}

impl Sqs {
    pub(super) async fn connect(address: SocketAddr, queue: &str, number: usize) -> io::Result<Self> {
        Ok(Self {
            connection: HttpConnection::connect(address).await?,
            queue: queue.to_owned(),
            url: format!("http://{address}/000000000000/{queue}"),
            tenant: number,
            body: body(),
            prepared: Vec::new(),
            response: Vec::new(),
        })
    }

    pub(super) async fn create(&mut self) -> io::Result<()> {
        let request = request("CreateQueue", &format!("{{\"QueueName\":\"{}\"}}", self.queue));
        self.call(&request).await
    }

    pub(super) async fn send(&mut self, count: usize) -> io::Result<()> {
        let operation = if count == 1 { "SendMessage" } else { "SendMessageBatch" };
        self.send_prepared(operation, count).await?;
        let sent = memmem::find_iter(&self.response, b"\"MessageId\":").count();
        if sent == count { Ok(()) } else { Err(unexpected(&self.response)) }
    }

    pub(super) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        self.send_prepared("ReceiveMessage", max).await?;
        let receipt = |start: usize| {
            let rest = &self.response[start + RECEIPT.len()..];
            rest.split(|byte| *byte == b'"').next().unwrap_or_default().to_vec()
        };
        Ok(memmem::find_iter(&self.response, RECEIPT).map(receipt).collect())
    }

    pub(super) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        let text = |receipt: &ReceiptHandle| String::from_utf8_lossy(receipt).into_owned();
        if let [receipt] = receipts {
            let body = format!("{{\"QueueUrl\":\"{}\",\"ReceiptHandle\":\"{}\"}}", self.url, text(receipt));
            return self.call(&request("DeleteMessage", &body)).await;
        }
        let entries: Vec<_> = (receipts.iter().enumerate())
            .map(|(index, receipt)| format!("{{\"Id\":\"{index}\",\"ReceiptHandle\":\"{}\"}}", text(receipt)))
            .collect();
        let body = format!("{{\"QueueUrl\":\"{}\",\"Entries\":[{}]}}", self.url, entries.join(","));
        self.call(&request("DeleteMessageBatch", &body)).await?;
        let failed = memmem::find(&self.response, b"SenderFault").is_some();
        if failed { Err(unexpected(&self.response)) } else { Ok(()) }
    }

    async fn send_prepared(&mut self, operation: &'static str, count: usize) -> io::Result<()> {
        let known = self.prepared.iter().position(|(name, size, _)| (*name, *size) == (operation, count));
        let (_, _, request) = match known {
            Some(index) => self.prepared.swap_remove(index),
            None => (operation, count, request(operation, &self.parameters(operation, count))),
        };
        let result = self.call(&request).await;
        self.prepared.push((operation, count, request));
        result
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
                let entry = |index: usize| {
                    format!(
                        "{{\"Id\":\"{index}\",\"MessageBody\":\"{body}\",\"MessageGroupId\":\"t{tenant}\"}}"
                    )
                };
                let entries: Vec<_> = (0..count).map(entry).collect();
                format!("{{\"QueueUrl\":\"{url}\",\"Entries\":[{}]}}", entries.join(","))
            }
            _ => format!("{{\"QueueUrl\":\"{url}\",\"MaxNumberOfMessages\":{count}}}"),
        }
    }

    /// Sends a request and stores the response body.
    async fn call(&mut self, request: &[u8]) -> io::Result<()> {
        self.connection.write(request).await?;
        let head = self.connection.head().await?;
        let mut head = head.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        self.response.clear();
        while head.body != Body::Done {
            self.response.extend_from_slice(self.connection.part(&mut head.body).await?);
        }
        if head.line.get(9..12) == Some(b"200") { Ok(()) } else { Err(unexpected(&self.response)) }
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
