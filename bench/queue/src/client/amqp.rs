//! RabbitMQ in AMQP 0-9-1: one channel with publisher confirms, a quorum queue, and a consumer that acknowledges.
//!
//! An acknowledgement has no answer. But the server lets a consumer have no more messages in hand than it receives at
//! once, and takes one for acknowledged when its log has that on disk: what comes next is the confirmation.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bench_support::HttpConnection;
use tokio::time::timeout;

use super::{ReceiptHandle, body, refused};

/// How long a consumer waits for what the server sends by itself, before it has found nothing.
const DELIVERY_WAIT: Duration = Duration::from_millis(5);
const FRAME_MAX: usize = 128 * 1024;
const FRAME_END: u8 = 0xCE;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const CHANNEL: u16 = 1;

/// A method by its class and its own number.
type Method = (u16, u16);

const START: Method = (10, 10);
const START_OK: Method = (10, 11);
const TUNE: Method = (10, 30);
const TUNE_OK: Method = (10, 31);
const OPEN: Method = (10, 40);
const OPEN_OK: Method = (10, 41);
const CHANNEL_OPEN: Method = (20, 10);
const CHANNEL_OPEN_OK: Method = (20, 11);
const DECLARE: Method = (50, 10);
const DECLARE_OK: Method = (50, 11);
const QOS: Method = (60, 10);
const QOS_OK: Method = (60, 11);
const CONSUME: Method = (60, 20);
const CONSUME_OK: Method = (60, 21);
const PUBLISH: Method = (60, 40);
const DELIVER: Method = (60, 60);
const ACK: Method = (60, 80);
const CONFIRM_SELECT: Method = (85, 10);
const CONFIRM_SELECT_OK: Method = (85, 11);

pub(crate) struct Amqp {
    wire: HttpConnection,
    queue: String,
    publish: Vec<u8>,
    /// How many messages were sent, which is also the number of the last one.
    sent: u64,
    consumer: Consumer,
}

/// Whether the server sends messages to this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consumer {
    Absent,
    Present,
}

impl Amqp {
    pub(super) async fn connect(address: SocketAddr, queue: &str) -> io::Result<Self> {
        let mut wire = HttpConnection::connect(address).await?;
        wire.write(b"AMQP\0\0\x09\x01").await?;
        let publish = publish(queue);
        let mut client = Self { wire, queue: queue.to_owned(), publish, sent: 0, consumer: Consumer::Absent };
        client.expect(START).await?;
        let no_table = 0u32.to_be_bytes();
        let plain = b"\0guest\0guest";
        let login = [&no_table[..], &short(b"PLAIN"), &long(plain), &short(b"en_US")].concat();
        client.wire.write(&method(0, START_OK, &login)).await?;
        let tune = client.expect(TUNE).await?;
        // Channels and the frame's length as the server likes them, and no heartbeats.
        let kept = tune.get(..6).ok_or_else(|| refused(&tune))?;
        client.wire.write(&method(0, TUNE_OK, &[kept, &0u16.to_be_bytes()].concat())).await?;
        client.ask(0, OPEN, &[&short(b"/")[..], &short(b""), &[0]].concat(), OPEN_OK).await?;
        client.ask(CHANNEL, CHANNEL_OPEN, &short(b""), CHANNEL_OPEN_OK).await?;
        client.ask(CHANNEL, CONFIRM_SELECT, &[0], CONFIRM_SELECT_OK).await?;
        Ok(client)
    }

    pub(super) async fn create(&mut self) -> io::Result<()> {
        const DURABLE: u8 = 2;
        let kind = [&short(b"x-queue-type")[..], b"S", &long(b"quorum")].concat();
        let declare = [&[0, 0], &short(self.queue.as_bytes())[..], &[DURABLE], &long(&kind)].concat();
        self.ask(CHANNEL, DECLARE, &declare, DECLARE_OK).await
    }

    pub(super) async fn send(&mut self, count: usize) -> io::Result<()> {
        self.wire.write(&self.publish.repeat(count)).await?;
        let last = self.sent + count as u64;
        let mut open: Vec<u64> = (self.sent + 1..=last).collect();
        self.sent = last;
        while !open.is_empty() {
            let (number, multiple) = confirmation(&self.expect(ACK).await?)?;
            open.retain(|one| if multiple { number < *one } else { number != *one });
        }
        Ok(())
    }

    pub(super) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        if self.consumer == Consumer::Absent {
            self.consume(max).await?;
        }
        let mut receipts = Vec::with_capacity(max);
        while receipts.len() < max {
            if !self.wire.has_unread() {
                let Ok(arrived) = timeout(DELIVERY_WAIT, self.wire.arrival()).await else { break };
                arrived?;
            }
            receipts.push(self.delivery().await?);
        }
        Ok(receipts)
    }

    /// Lets the server send messages, up to so many that are not acknowledged.
    async fn consume(&mut self, max: usize) -> io::Result<()> {
        let in_hand_max = u16::try_from(max).map_err(io::Error::other)?;
        let qos = [&[0; 4], &in_hand_max.to_be_bytes()[..], &[0]].concat();
        self.ask(CHANNEL, QOS, &qos, QOS_OK).await?;
        let consume =
            [&[0, 0], &short(self.queue.as_bytes())[..], &short(b"c"), &[0], &0u32.to_be_bytes()].concat();
        self.ask(CHANNEL, CONSUME, &consume, CONSUME_OK).await?;
        self.consumer = Consumer::Present;
        Ok(())
    }

    async fn delivery(&mut self) -> io::Result<ReceiptHandle> {
        let arguments = self.expect(DELIVER).await?;
        let tag_length = usize::from(arguments.first().copied().unwrap_or_default());
        let receipt =
            arguments.get(1 + tag_length..9 + tag_length).ok_or_else(|| refused(&arguments))?.to_vec();
        let header = self.frame(HEADER).await?;
        let length = header.get(4..12).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let mut left = length.ok_or_else(|| refused(header))?;
        while 0 < left {
            left = left.saturating_sub(self.frame(BODY).await?.len() as u64);
        }
        Ok(receipt)
    }

    /// Acknowledges everything up to the last of these, which are all that this connection has in hand.
    pub(super) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        const MULTIPLE: u8 = 1;
        let Some(last) = receipts.last() else { return Ok(()) };
        self.wire.write(&method(CHANNEL, ACK, &[last, &[MULTIPLE][..]].concat())).await
    }

    async fn ask(&mut self, channel: u16, asked: Method, arguments: &[u8], answer: Method) -> io::Result<()> {
        self.wire.write(&method(channel, asked, arguments)).await?;
        self.expect(answer).await.map(drop)
    }

    /// Reads a method's arguments; another method, such as one that closes the connection, is an error.
    async fn expect(&mut self, wanted: Method) -> io::Result<Vec<u8>> {
        let payload = self.frame(METHOD).await?;
        let (numbers, arguments) = payload.split_at_checked(4).ok_or_else(|| refused(payload))?;
        if numbers != numbers_of(wanted) {
            return Err(refused(payload));
        }
        Ok(arguments.to_vec())
    }

    async fn frame(&mut self, wanted: u8) -> io::Result<&[u8]> {
        let head: [u8; 7] = self.wire.exact(7).await?.try_into().map_err(io::Error::other)?;
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if head[0] != wanted || FRAME_MAX < length {
            return Err(refused(&head));
        }
        let frame = self.wire.exact(length + 1).await?;
        match frame.split_last() {
            Some((&FRAME_END, payload)) => Ok(payload),
            _ => Err(refused(frame)),
        }
    }
}

/// Writes everything that publishes a message: a method, its header and its body.
fn publish(queue: &str) -> Vec<u8> {
    const BASIC: u16 = 60;
    const HAS_DELIVERY_MODE: u16 = 1 << 12;
    const PERSISTENT: u8 = 2;
    let body = body();
    let target = [&[0, 0], &short(b"")[..], &short(queue.as_bytes()), &[0]].concat();
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
    frame(METHOD, channel, &[&numbers_of(method)[..], arguments].concat())
}

fn numbers_of((class, method): Method) -> [u8; 4] {
    let [a, b] = class.to_be_bytes();
    let [c, d] = method.to_be_bytes();
    [a, b, c, d]
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    [&[kind], &channel.to_be_bytes()[..], &long(payload), &[FRAME_END]].concat()
}

/// Text with its length in one byte; nothing here has more than 255.
fn short(text: &[u8]) -> Vec<u8> {
    [&[text.len() as u8], text].concat()
}

/// Bytes with their length in four.
fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// Reads which message a confirmation is for, and whether for all before it, too.
fn confirmation(arguments: &[u8]) -> io::Result<(u64, bool)> {
    let number = arguments.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    let multiple = arguments.get(8).map(|bits| bits & 1 == 1);
    number.zip(multiple).ok_or_else(|| refused(arguments))
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
    fn a_confirmation_may_be_for_all_before_it() {
        assert_eq!(confirmation(&[0, 0, 0, 0, 0, 0, 1, 2, 1]).unwrap(), (258, true));
        assert_eq!(confirmation(&[0, 0, 0, 0, 0, 0, 1, 2, 0]).unwrap(), (258, false));
        assert!(confirmation(&[0, 0, 0, 0, 0, 0, 1, 2]).is_err());
    }
}
