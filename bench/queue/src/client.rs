//! A connection to a queue, in the words of each.
//!
//! Every call returns once the server has confirmed all of it. Bodies are text of 1 KB; a batch is what the protocol has
//! for one: a batch request (SQS), or requests written together whose answers are read together (the others).

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

/// How long every message's body is.
pub(crate) const BODY_BYTES: usize = 1024;

/// Which protocol a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Sqs,
    Nats,
    Redis,
    Amqp,
    Beanstalk,
}

/// One connection.
pub(crate) enum QueueClient {
    Sqs(Sqs),
    Nats(Nats),
    Redis(Redis),
    Amqp(Amqp),
    Beanstalk(Beanstalk),
}

/// What acknowledges a message.
pub(crate) type ReceiptHandle = Vec<u8>;

impl Protocol {
    /// Connects, to one queue.
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
    /// Makes the queue.
    pub(crate) async fn create(&mut self) -> io::Result<()> {
        match self {
            Self::Sqs(client) => client.create().await,
            Self::Nats(client) => client.create().await,
            Self::Redis(client) => client.create().await,
            Self::Amqp(client) => client.create().await,
            // Whoever uses a tube makes it.
            Self::Beanstalk(_) => Ok(()),
        }
    }

    /// Sends so many messages.
    pub(crate) async fn send(&mut self, count: usize) -> io::Result<()> {
        match self {
            Self::Sqs(client) => client.send(count).await,
            Self::Nats(client) => client.send(count).await,
            Self::Redis(client) => client.send(count).await,
            Self::Amqp(client) => client.send(count).await,
            Self::Beanstalk(client) => client.send(count).await,
        }
    }

    /// Receives up to so many messages, without waiting for any.
    pub(crate) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        match self {
            Self::Sqs(client) => client.receive(max).await,
            Self::Nats(client) => client.receive(max).await,
            Self::Redis(client) => client.receive(max).await,
            Self::Amqp(client) => client.receive(max).await,
            Self::Beanstalk(client) => client.receive(max).await,
        }
    }

    /// Acknowledges, so that none of these is delivered again.
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

/// Text of so many bytes.
fn body() -> String {
    let text = "a job of some tenant, to be done once and not lost; ";
    text.chars().cycle().take(BODY_BYTES).collect()
}

fn refused(what: &[u8]) -> io::Error {
    io::Error::other(format!("refused: {}", String::from_utf8_lossy(&what[..what.len().min(300)])))
}
