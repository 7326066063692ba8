//! Redis Streams over RESP: `XADD`, `XREADGROUP`, and `XACK` with `XDEL`.

use std::io;
use std::net::SocketAddr;

use bench_support::HttpConnection;

use super::{ReceiptHandle, body, unexpected};

const GROUP: &str = "g";

pub(crate) struct Redis {
    connection: HttpConnection,
    queue: String,
    consumer: String,
    add: Vec<u8>,
}

/// A RESP reply; only the parts that the benchmark uses.
enum Reply {
    Nothing,
    Number,
    Text(Vec<u8>),
    List(Vec<Reply>),
}

impl Redis {
    pub(super) async fn connect(address: SocketAddr, queue: &str, number: usize) -> io::Result<Self> {
        Ok(Self {
            connection: HttpConnection::connect(address).await?,
            queue: queue.to_owned(),
            consumer: format!("c{number}"),
            add: command(&[b"XADD", queue.as_bytes(), b"*", b"b", body().as_bytes()]),
        })
    }

    pub(super) async fn create(&mut self) -> io::Result<()> {
        let create =
            command(&[b"XGROUP", b"CREATE", self.queue.as_bytes(), GROUP.as_bytes(), b"0", b"MKSTREAM"]);
        self.connection.write(&create).await?;
        self.reply().await.map(drop)
    }

    pub(super) async fn send(&mut self, count: usize) -> io::Result<()> {
        self.connection.write(&self.add.repeat(count)).await?;
        for _ in 0..count {
            self.reply().await?;
        }
        Ok(())
    }

    pub(super) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        let count = max.to_string();
        let read = command(&[
            b"XREADGROUP",
            b"GROUP",
            GROUP.as_bytes(),
            self.consumer.as_bytes(),
            b"COUNT",
            count.as_bytes(),
            b"STREAMS",
            self.queue.as_bytes(),
            b">",
        ]);
        self.connection.write(&read).await?;
        // [[stream, [[id, [field, value]], ...]]]
        let Reply::List(streams) = self.reply().await? else { return Ok(Vec::new()) };
        let entries = streams.into_iter().filter_map(|stream| stream.list()?.into_iter().nth(1)?.list());
        let id = |entry: Reply| match entry.list()?.into_iter().next()? {
            Reply::Text(id) => Some(id),
            Reply::Nothing | Reply::Number | Reply::List(_) => None,
        };
        Ok(entries.flatten().filter_map(id).collect())
    }

    pub(super) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        let ids = receipts.iter().map(Vec::as_slice);
        let ack: [&[u8]; 3] = [b"XACK", self.queue.as_bytes(), GROUP.as_bytes()];
        let delete: [&[u8]; 2] = [b"XDEL", self.queue.as_bytes()];
        let mut both = command(&ack.into_iter().chain(ids.clone()).collect::<Vec<_>>());
        both.extend(command(&delete.into_iter().chain(ids).collect::<Vec<_>>()));
        self.connection.write(&both).await?;
        self.reply().await?;
        self.reply().await.map(drop)
    }

    /// Reads one reply; nested lists are built on an explicit stack.
    async fn reply(&mut self) -> io::Result<Reply> {
        let mut open: Vec<(Vec<Reply>, usize)> = Vec::new();
        loop {
            let mut reply = match self.item().await? {
                Item::Whole(reply) => reply,
                Item::List(0) => Reply::List(Vec::new()),
                Item::List(count) => {
                    open.push((Vec::with_capacity(count), count));
                    continue;
                }
            };
            loop {
                let Some((list, count)) = open.last_mut() else { return Ok(reply) };
                list.push(reply);
                if list.len() < *count {
                    break;
                }
                reply = Reply::List(std::mem::take(list));
                open.pop();
            }
        }
    }

    async fn item(&mut self) -> io::Result<Item> {
        let line = self.connection.line().await?;
        let length = || std::str::from_utf8(line.get(1..)?).ok()?.parse::<i64>().ok();
        let count = match (line.first(), length()) {
            (Some(b'+'), _) => return Ok(Item::Whole(Reply::Nothing)),
            (Some(b':'), Some(_)) => return Ok(Item::Whole(Reply::Number)),
            (Some(b'$' | b'*'), Some(-1)) => return Ok(Item::Whole(Reply::Nothing)),
            (Some(b'*'), Some(count)) => return Ok(Item::List(count.unsigned_abs() as usize)),
            (Some(b'$'), Some(count)) => count.unsigned_abs() as usize,
            _ => return Err(unexpected(line)),
        };
        let text = self.connection.read_exact(count + 2).await?;
        Ok(Item::Whole(Reply::Text(text[..count].to_vec())))
    }
}

enum Item {
    Whole(Reply),
    List(usize),
}

impl Reply {
    fn list(self) -> Option<Vec<Self>> {
        match self {
            Self::List(list) => Some(list),
            Self::Nothing | Self::Number | Self::Text(_) => None,
        }
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
