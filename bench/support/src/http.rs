//! One socket, and as little of HTTP/1.1 as a fast backend and a cheap load generator need.
//!
//! Bound: a head has at most 64 KiB. Nothing is checked that the programs under test have not already checked; what
//! makes no sense is an error, never a guess.

use std::io;
use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_MAX: usize = 64 * 1024;
const READ_AT_ONCE: usize = 16 * 1024;

/// One connection, and what was read from it and not yet used.
pub struct HttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
}

/// The first lines of a message.
pub struct Head {
    /// The request line or the status line.
    pub line: Vec<u8>,
    /// What follows.
    pub body: Body,
}

/// What is left of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Bytes(usize),
    /// Everything until the connection ends.
    UntilClose,
    /// A chunk begins.
    ChunkHead,
    /// So many bytes of a chunk.
    Chunk(usize),
    /// The end of a chunk.
    ChunkEnd,
    /// Fields after the last chunk.
    Trailer,
    /// Nothing.
    Done,
}

impl HttpConnection {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect(address).await?)
    }

    /// Takes a socket that is connected.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(READ_AT_ONCE), start: 0 })
    }

    /// Writes everything.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads a head; `None` if the other end closed instead of beginning one.
    pub async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(length) = memmem::find(self.unused(), b"\r\n\r\n") {
                let head = parse(&self.unused()[..length])?;
                self.start += length + 4;
                return Ok(Some(head));
            }
            if HEAD_MAX < self.unused().len() {
                return Err(garbled("a head that does not end"));
            }
            if self.read().await? == 0 {
                return if self.unused().is_empty() { Ok(None) } else { Err(cut()) };
            }
        }
    }

    /// Reads the next part of a body as soon as there is any; empty at its end.
    pub async fn part(&mut self, body: &mut Body) -> io::Result<&[u8]> {
        let wanted = loop {
            match *body {
                Body::Done => break 0,
                Body::Bytes(0) => *body = Body::Done,
                Body::Chunk(0) => *body = Body::ChunkEnd,
                Body::Bytes(left) | Body::Chunk(left) => {
                    if self.unused().is_empty() && self.read().await? == 0 {
                        return Err(cut());
                    }
                    let here = left.min(self.unused().len());
                    *body = if *body == Body::Bytes(left) {
                        Body::Bytes(left - here)
                    } else {
                        Body::Chunk(left - here)
                    };
                    break here;
                }
                Body::UntilClose => {
                    if self.unused().is_empty() && self.read().await? == 0 {
                        *body = Body::Done;
                    }
                    break self.unused().len();
                }
                Body::ChunkHead => {
                    *body = match chunk_length(self.line().await?)? {
                        0 => Body::Trailer,
                        length => Body::Chunk(length),
                    };
                }
                Body::ChunkEnd if self.line().await?.is_empty() => *body = Body::ChunkHead,
                Body::ChunkEnd => return Err(garbled("a chunk longer than it says")),
                Body::Trailer if self.line().await?.is_empty() => *body = Body::Done,
                Body::Trailer => {}
            }
        };
        let from = self.start;
        self.start += wanted;
        Ok(&self.buffer[from..from + wanted])
    }

    /// Reads a line, without its end.
    pub async fn line(&mut self) -> io::Result<&[u8]> {
        loop {
            if let Some(length) = memmem::find(self.unused(), b"\r\n") {
                let from = self.start;
                self.start += length + 2;
                return Ok(&self.buffer[from..from + length]);
            }
            if HEAD_MAX < self.unused().len() {
                return Err(garbled("a line that does not end"));
            }
            if self.read().await? == 0 {
                return Err(cut());
            }
        }
    }

    /// Waits until there is something to read; nothing is lost if nobody waits to the end.
    pub async fn arrival(&mut self) -> io::Result<()> {
        if self.unused().is_empty() && self.read().await? == 0 { Err(cut()) } else { Ok(()) }
    }

    /// Whether something arrived that was not read yet.
    pub fn has_unread(&self) -> bool {
        !self.unused().is_empty()
    }

    /// Reads so many bytes.
    pub async fn exact(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.unused().len() < count {
            if self.read().await? == 0 {
                return Err(cut());
            }
        }
        let from = self.start;
        self.start += count;
        Ok(&self.buffer[from..from + count])
    }

    fn unused(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.reserve(READ_AT_ONCE);
        self.stream.read_buf(&mut self.buffer).await
    }
}

fn parse(head: &[u8]) -> io::Result<Head> {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let line = lines.next().unwrap_or_default().to_vec();
    // A request without a length has no body; an answer without one lasts until the connection ends.
    let mut body = if line.starts_with(b"HTTP/") { Body::UntilClose } else { Body::Done };
    for field in lines {
        let Some(colon) = memchr::memchr(b':', field) else { return Err(garbled("a field without a colon")) };
        let name = &field[..colon];
        let value = field[colon + 1..].trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            body = Body::Bytes(length.ok_or_else(|| garbled("a length that is no number"))?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            body = Body::ChunkHead;
        }
    }
    Ok(Head { line, body })
}

fn chunk_length(line: &[u8]) -> io::Result<usize> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let length = std::str::from_utf8(digits).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
    length.ok_or_else(|| garbled("a chunk without a length"))
}

fn garbled(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended within a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn bodies_of_every_kind_are_read_to_their_end() {
        let sized = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\na: b\r\n\r\n";
        let open = "HTTP/1.1 200 OK\r\n\r\nhello";
        for text in [sized, chunked, open] {
            assert_eq!(read(text).unwrap(), [("HTTP/1.1 200 OK".to_owned(), "hello".to_owned())], "{text}");
        }
        assert_eq!(read(&format!("{sized}{chunked}")).unwrap().len(), 2);
    }

    #[test]
    fn a_request_without_a_length_has_no_body() {
        let requests = read("GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(requests[1], ("GET /b HTTP/1.1".to_owned(), String::new()));
    }

    #[test]
    fn what_is_cut_or_garbled_is_an_error() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhello\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nz\r\n",
            "HTTP/1.1 200",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_arrived_is_there_to_be_read_and_an_end_is_no_arrival() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut sender = HttpConnection::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut reader = HttpConnection::new(listener.accept().await.unwrap().0).unwrap();
            assert!(!reader.has_unread());
            sender.write(b"ab").await.unwrap();
            reader.arrival().await.unwrap();
            assert!(reader.has_unread());
            assert_eq!(reader.exact(2).await.unwrap(), b"ab");
            drop(sender);
            assert!(reader.arrival().await.is_err());
        });
    }

    /// Sends `text` byte by byte and reads messages until the end.
    fn read(text: &str) -> io::Result<Vec<(String, String)>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let mut sender = HttpConnection::connect(listener.local_addr()?).await?;
            let mut reader = HttpConnection::new(listener.accept().await?.0)?;
            let text = text.to_owned();
            tokio::spawn(async move {
                for byte in text.bytes() {
                    sender.write(&[byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
            });
            messages(&mut reader).await
        })
    }

    async fn messages(reader: &mut HttpConnection) -> io::Result<Vec<(String, String)>> {
        let mut messages = Vec::new();
        while let Some(mut head) = reader.head().await? {
            let mut body = Vec::new();
            loop {
                let part = reader.part(&mut head.body).await?;
                if part.is_empty() {
                    break;
                }
                body.extend_from_slice(part);
            }
            let text = |bytes| String::from_utf8(bytes).unwrap();
            messages.push((text(head.line), text(body)));
        }
        Ok(messages)
    }
}
