//! Client connections, one per protocol.
//!
//! Guarantees: a call returns once the server has confirmed all of it. Bodies are 1 KiB of text. A batch is one batch
//! request (SQS) or a pipeline of requests written together (the others).

mod amqp;
mod beanstalk;
mod nats;
mod redis;
mod sqs;

use std::io;
use std::net::SocketAddr;

pub(crate) use amqp::Amqp;
pub(crate) use beanstalk::Beanstalk;
pub(crate) use nats::Nats;
pub(crate) use redis::Redis;
pub(crate) use sqs::Sqs;

/// Size of a message body.
pub(crate) const BODY_BYTES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Sqs,
    Nats,
    Redis,
    Amqp,
    Beanstalk,
}

/// A connection to one queue.
pub(crate) enum QueueClient {
    Sqs(Sqs),
    Nats(Nats),
    Redis(Redis),
    Amqp(Amqp),
    Beanstalk(Beanstalk),
}

/// Identifies a delivery in an acknowledgement.
pub(crate) type ReceiptHandle = Vec<u8>;

impl Protocol {
    /// Opens a connection for one queue; `number` distinguishes the clients.
    pub(crate) async fn connect(
        self,
        address: SocketAddr,
        queue: &str,
        number: usize,
    ) -> io::Result<QueueClient> {
        Ok(match self {
            Self::Sqs => QueueClient::Sqs(Sqs::connect(address, queue, number).await?),
            Self::Nats => QueueClient::Nats(Nats::connect(address, queue, number).await?),
            Self::Redis => QueueClient::Redis(Redis::connect(address, queue, number).await?),
            Self::Amqp => QueueClient::Amqp(Amqp::connect(address, queue).await?),
            Self::Beanstalk => QueueClient::Beanstalk(Beanstalk::connect(address, queue).await?),
        })
    }
}

impl QueueClient {
    /// Creates the queue.
    pub(crate) async fn create(&mut self) -> io::Result<()> {
        match self {
            Self::Sqs(client) => client.create().await,
            Self::Nats(client) => client.create().await,
            Self::Redis(client) => client.create().await,
            Self::Amqp(client) => client.create().await,
            // A tube is created on first use.
            Self::Beanstalk(_) => Ok(()),
        }
    }

    /// Sends `count` messages.
    pub(crate) async fn send(&mut self, count: usize) -> io::Result<()> {
        match self {
            Self::Sqs(client) => client.send(count).await,
            Self::Nats(client) => client.send(count).await,
            Self::Redis(client) => client.send(count).await,
            Self::Amqp(client) => client.send(count).await,
            Self::Beanstalk(client) => client.send(count).await,
        }
    }

    /// Receives up to `max` messages without waiting.
    pub(crate) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        match self {
            Self::Sqs(client) => client.receive(max).await,
            Self::Nats(client) => client.receive(max).await,
            Self::Redis(client) => client.receive(max).await,
            Self::Amqp(client) => client.receive(max).await,
            Self::Beanstalk(client) => client.receive(max).await,
        }
    }

    /// Acknowledges deliveries, so that they are not redelivered.
    pub(crate) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        match self {
            Self::Sqs(client) => client.acknowledge(receipts).await,
            Self::Nats(client) => client.acknowledge(receipts).await,
            Self::Redis(client) => client.acknowledge(receipts).await,
            Self::Amqp(client) => client.acknowledge(receipts).await,
            Self::Beanstalk(client) => client.acknowledge(receipts).await,
        }
    }
}

/// Returns a message body.
fn body() -> String {
    let text = "a job of some tenant, to be done once and not lost; ";
    text.chars().cycle().take(BODY_BYTES).collect()
}

fn unexpected(reply: &[u8]) -> io::Error {
    io::Error::other(format!("unexpected reply: {}", String::from_utf8_lossy(&reply[..reply.len().min(300)])))
}
