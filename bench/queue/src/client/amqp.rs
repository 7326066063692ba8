//! RabbitMQ over AMQP 0-9-1: one channel with publisher confirms, a quorum queue, and a consumer with manual acks.
//!
//! AMQP does not reply to an acknowledgement. But the prefetch limit equals the batch size, and RabbitMQ counts a
//! message as acknowledged only once the acknowledgement is in its log on disk, so the next delivery confirms it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bench_support::HttpConnection;
use tokio::time::timeout;

use super::{ReceiptHandle, body, unexpected};

/// Time that a consumer waits for a pushed delivery before it reports an empty queue.
const DELIVERY_WAIT: Duration = Duration::from_millis(5);
const FRAME_MAX: usize = 128 * 1024;
const FRAME_END: u8 = 0xCE;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const CHANNEL: u16 = 1;

/// Class ID and method ID.
#[derive(Clone, Copy)]
struct Method(u16, u16);

const START: Method = Method(10, 10);
const START_OK: Method = Method(10, 11);
const TUNE: Method = Method(10, 30);
const TUNE_OK: Method = Method(10, 31);
const OPEN: Method = Method(10, 40);
const OPEN_OK: Method = Method(10, 41);
const CHANNEL_OPEN: Method = Method(20, 10);
const CHANNEL_OPEN_OK: Method = Method(20, 11);
const DECLARE: Method = Method(50, 10);
const DECLARE_OK: Method = Method(50, 11);
const QOS: Method = Method(60, 10);
const QOS_OK: Method = Method(60, 11);
const CONSUME: Method = Method(60, 20);
const CONSUME_OK: Method = Method(60, 21);
const PUBLISH: Method = Method(60, 40);
const DELIVER: Method = Method(60, 60);
const ACK: Method = Method(60, 80);
const CONFIRM_SELECT: Method = Method(85, 10);
const CONFIRM_SELECT_OK: Method = Method(85, 11);

pub(crate) struct Amqp {
    connection: HttpConnection,
    queue: String,
    publish: Vec<u8>,
    /// Number of messages sent, which is also the delivery tag of the last one.
    sent: u64,
    consumer: Consumer,
}

/// Subscription state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consumer {
    Absent,
    Present,
}

impl Amqp {
    pub(super) async fn connect(address: SocketAddr, queue: &str) -> io::Result<Self> {
        let mut connection = HttpConnection::connect(address).await?;
        connection.write(b"AMQP\0\0\x09\x01").await?;
        let publish = publish(queue);
        let mut client =
            Self { connection, queue: queue.to_owned(), publish, sent: 0, consumer: Consumer::Absent };
        client.expect(START).await?;
        let no_table = 0u32.to_be_bytes();
        let plain = b"\0guest\0guest";
        let login =
            [&no_table[..], &short_string(b"PLAIN"), &long_string(plain), &short_string(b"en_US")].concat();
        client.connection.write(&method(0, START_OK, &login)).await?;
        let tune = client.expect(TUNE).await?;
        // Accepts the server's limits on channels and frame size; no heartbeats.
        let limits = tune.get(..6).ok_or_else(|| unexpected(&tune))?;
        client.connection.write(&method(0, TUNE_OK, &[limits, &0u16.to_be_bytes()].concat())).await?;
        client.call(0, OPEN, &[&short_string(b"/")[..], &short_string(b""), &[0]].concat(), OPEN_OK).await?;
        client.call(CHANNEL, CHANNEL_OPEN, &short_string(b""), CHANNEL_OPEN_OK).await?;
        client.call(CHANNEL, CONFIRM_SELECT, &[0], CONFIRM_SELECT_OK).await?;
        Ok(client)
    }

    pub(super) async fn create(&mut self) -> io::Result<()> {
        const DURABLE: u8 = 2;
        let kind = [&short_string(b"x-queue-type")[..], b"S", &long_string(b"quorum")].concat();
        let declare =
            [&[0, 0], &short_string(self.queue.as_bytes())[..], &[DURABLE], &long_string(&kind)].concat();
        self.call(CHANNEL, DECLARE, &declare, DECLARE_OK).await
    }

    pub(super) async fn send(&mut self, count: usize) -> io::Result<()> {
        self.connection.write(&self.publish.repeat(count)).await?;
        let last = self.sent + count as u64;
        let mut unconfirmed: Vec<u64> = (self.sent + 1..=last).collect();
        self.sent = last;
        while !unconfirmed.is_empty() {
            let (number, multiple) = parse_confirm(&self.expect(ACK).await?)?;
            unconfirmed.retain(|tag| if multiple { number < *tag } else { number != *tag });
        }
        Ok(())
    }

    pub(super) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        if self.consumer == Consumer::Absent {
            self.consume(max).await?;
        }
        let mut receipts = Vec::with_capacity(max);
        while receipts.len() < max {
            if !self.connection.has_unread() {
                let Ok(readable) = timeout(DELIVERY_WAIT, self.connection.readable()).await else { break };
                readable?;
            }
            receipts.push(self.delivery().await?);
        }
        Ok(receipts)
    }

    /// Subscribes with a prefetch limit of `max` unacknowledged messages.
    async fn consume(&mut self, max: usize) -> io::Result<()> {
        let prefetch = u16::try_from(max).map_err(io::Error::other)?;
        let qos = [&[0; 4], &prefetch.to_be_bytes()[..], &[0]].concat();
        self.call(CHANNEL, QOS, &qos, QOS_OK).await?;
        let consume = [
            &[0, 0],
            &short_string(self.queue.as_bytes())[..],
            &short_string(b"c"),
            &[0],
            &0u32.to_be_bytes(),
        ]
        .concat();
        self.call(CHANNEL, CONSUME, &consume, CONSUME_OK).await?;
        self.consumer = Consumer::Present;
        Ok(())
    }

    async fn delivery(&mut self) -> io::Result<ReceiptHandle> {
        let arguments = self.expect(DELIVER).await?;
        let tag_length = usize::from(arguments.first().copied().unwrap_or_default());
        let receipt =
            arguments.get(1 + tag_length..9 + tag_length).ok_or_else(|| unexpected(&arguments))?.to_vec();
        let header = self.frame(HEADER).await?;
        let length = header.get(4..12).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let mut left = length.ok_or_else(|| unexpected(header))?;
        while left > 0 {
            left = left.saturating_sub(self.frame(BODY).await?.len() as u64);
        }
        Ok(receipt)
    }

    /// Acknowledges all deliveries up to the last one; the connection has no others in flight.
    pub(super) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        const MULTIPLE: u8 = 1;
        let Some(last) = receipts.last() else { return Ok(()) };
        self.connection.write(&method(CHANNEL, ACK, &[last, &[MULTIPLE][..]].concat())).await
    }

    async fn call(
        &mut self,
        channel: u16,
        request: Method,
        arguments: &[u8],
        reply: Method,
    ) -> io::Result<()> {
        self.connection.write(&method(channel, request, arguments)).await?;
        self.expect(reply).await.map(drop)
    }

    /// Reads a method and returns its arguments; any other method, such as `connection.close`, is an error.
    async fn expect(&mut self, expected: Method) -> io::Result<Vec<u8>> {
        let payload = self.frame(METHOD).await?;
        let (id, arguments) = payload.split_at_checked(4).ok_or_else(|| unexpected(payload))?;
        if id != method_id(expected) {
            return Err(unexpected(payload));
        }
        Ok(arguments.to_vec())
    }

    async fn frame(&mut self, expected: u8) -> io::Result<&[u8]> {
        let head: [u8; 7] = self.connection.read_exact(7).await?.try_into().map_err(io::Error::other)?;
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if head[0] != expected || length > FRAME_MAX {
            return Err(unexpected(&head));
        }
        let frame = self.connection.read_exact(length + 1).await?;
        match frame.split_last() {
            Some((&FRAME_END, payload)) => Ok(payload),
            _ => Err(unexpected(frame)),
        }
    }
}

/// Encodes the frames that publish a message: method, header and body.
fn publish(queue: &str) -> Vec<u8> {
    const BASIC: u16 = 60;
    const HAS_DELIVERY_MODE: u16 = 1 << 12;
    const PERSISTENT: u8 = 2;
    let body = body();
    let target = [&[0, 0], &short_string(b"")[..], &short_string(queue.as_bytes()), &[0]].concat();
    let header = [
        &BASIC.to_be_bytes()[..],
        &[0, 0],
        &(body.len() as u64).to_be_bytes(),
        &HAS_DELIVERY_MODE.to_be_bytes(),
        &[PERSISTENT],
    ]
    .concat();
    let method = method(CHANNEL, PUBLISH, &target);
    [method, frame(HEADER, CHANNEL, &header), frame(BODY, CHANNEL, body.as_bytes())].concat()
}

fn method(channel: u16, method: Method, arguments: &[u8]) -> Vec<u8> {
    frame(METHOD, channel, &[&method_id(method)[..], arguments].concat())
}

fn method_id(Method(class, method): Method) -> [u8; 4] {
    let [a, b] = class.to_be_bytes();
    let [c, d] = method.to_be_bytes();
    [a, b, c, d]
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    [&[kind], &channel.to_be_bytes()[..], &long_string(payload), &[FRAME_END]].concat()
}

/// Encodes a short string: a length byte, then at most 255 bytes.
fn short_string(text: &[u8]) -> Vec<u8> {
    [&[text.len() as u8], text].concat()
}

/// Encodes a long string: a four-byte length, then the bytes.
fn long_string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// Parses a publisher confirm: the delivery tag, and whether it covers all earlier messages as well.
fn parse_confirm(arguments: &[u8]) -> io::Result<(u64, bool)> {
    let number = arguments.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    let multiple = arguments.get(8).map(|bits| bits & 1 == 1);
    number.zip(multiple).ok_or_else(|| unexpected(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_framed_with_its_channel_and_length() {
        let framed = method(CHANNEL, ACK, &[0, 0, 0, 0, 0, 0, 0, 7, 1]);
        assert_eq!(framed, b"\x01\0\x01\0\0\0\x0d\0\x3c\0\x50\0\0\0\0\0\0\0\x07\x01\xce");
    }

    #[test]
    fn a_confirm_may_cover_all_earlier_messages() {
        assert_eq!(parse_confirm(&[0, 0, 0, 0, 0, 0, 1, 2, 1]).unwrap(), (258, true));
        assert_eq!(parse_confirm(&[0, 0, 0, 0, 0, 0, 1, 2, 0]).unwrap(), (258, false));
        assert!(parse_confirm(&[0, 0, 0, 0, 0, 0, 1, 2]).is_err());
    }
}
