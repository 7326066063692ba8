//! A minimal HTTP/1.1 connection: only the parts of the protocol that a fast backend and a cheap load generator need.
//!
//! Limits: a message head has at most 64 KiB. The programs under test have already validated the traffic, so only
//! framing is checked; bad framing is an error.

use std::io;
use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_MAX: usize = 64 * 1024;
const READ_CHUNK: usize = 16 * 1024;

/// A connection with its read buffer.
pub struct HttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
}

/// The parts of a message head that callers use.
pub struct Head {
    /// The request line or the status line.
    pub line: Vec<u8>,
    /// Framing of the body that follows.
    pub body: Body,
}

/// The unread rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Remaining bytes of a body with a `Content-Length`.
    Bytes(usize),
    /// Everything until the peer closes the connection.
    UntilClose,
    /// A chunk size line comes next.
    ChunkHead,
    /// Remaining bytes of a chunk.
    Chunk(usize),
    /// The line break after a chunk.
    ChunkEnd,
    /// Trailer fields after the last chunk.
    Trailer,
    /// The body has been read to its end.
    Done,
}

impl HttpConnection {
    /// Opens a connection.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect(address).await?)
    }

    /// Wraps a connected socket and sets TCP_NODELAY.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(READ_CHUNK), start: 0 })
    }

    /// Writes all of `bytes`.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads a message head; `None` if the peer closed the connection before the first byte.
    pub async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(length) = memmem::find(self.unused(), b"\r\n\r\n") {
                let head = parse(&self.unused()[..length])?;
                self.start += length + 4;
                return Ok(Some(head));
            }
            if self.unused().len() > HEAD_MAX {
                return Err(invalid("message head is too long"));
            }
            if self.read().await? == 0 {
                return if self.unused().is_empty() { Ok(None) } else { Err(closed_early()) };
            }
        }
    }

    /// Reads the next part of a body as soon as it arrives; empty at the end of the body.
    pub async fn part(&mut self, body: &mut Body) -> io::Result<&[u8]> {
        let length = loop {
            match *body {
                Body::Done => break 0,
                Body::Bytes(0) => *body = Body::Done,
                Body::Chunk(0) => *body = Body::ChunkEnd,
                Body::Bytes(left) | Body::Chunk(left) => {
                    if self.unused().is_empty() && self.read().await? == 0 {
                        return Err(closed_early());
                    }
                    let available = left.min(self.unused().len());
                    *body = if *body == Body::Bytes(left) {
                        Body::Bytes(left - available)
                    } else {
                        Body::Chunk(left - available)
                    };
                    break available;
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
                Body::ChunkEnd => return Err(invalid("chunk is longer than its size")),
                Body::Trailer if self.line().await?.is_empty() => *body = Body::Done,
                Body::Trailer => {}
            }
        };
        let from = self.start;
        self.start += length;
        Ok(&self.buffer[from..from + length])
    }

    /// Reads a line without its line break.
    pub async fn line(&mut self) -> io::Result<&[u8]> {
        loop {
            if let Some(length) = memmem::find(self.unused(), b"\r\n") {
                let from = self.start;
                self.start += length + 2;
                return Ok(&self.buffer[from..from + length]);
            }
            if self.unused().len() > HEAD_MAX {
                return Err(invalid("line is too long"));
            }
            if self.read().await? == 0 {
                return Err(closed_early());
            }
        }
    }

    /// Waits until data can be read. Cancel-safe.
    pub async fn readable(&mut self) -> io::Result<()> {
        if self.unused().is_empty() && self.read().await? == 0 { Err(closed_early()) } else { Ok(()) }
    }

    /// Reports whether the buffer holds unread data.
    pub fn has_unread(&self) -> bool {
        !self.unused().is_empty()
    }

    /// Reads exactly `count` bytes.
    pub async fn read_exact(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.unused().len() < count {
            if self.read().await? == 0 {
                return Err(closed_early());
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
        self.buffer.reserve(READ_CHUNK);
        self.stream.read_buf(&mut self.buffer).await
    }
}

fn parse(head: &[u8]) -> io::Result<Head> {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let line = lines.next().unwrap_or_default().to_vec();
    // A request without a length has no body; a response without one ends with the connection.
    let mut body = if line.starts_with(b"HTTP/") { Body::UntilClose } else { Body::Done };
    for field in lines {
        let Some(colon) = memchr::memchr(b':', field) else {
            return Err(invalid("header field without a colon"));
        };
        let name = &field[..colon];
        let value = field[colon + 1..].trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            body = Body::Bytes(length.ok_or_else(|| invalid("Content-Length is not a number"))?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            body = Body::ChunkHead;
        }
    }
    Ok(Head { line, body })
}

fn chunk_length(line: &[u8]) -> io::Result<usize> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let length = std::str::from_utf8(digits).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
    length.ok_or_else(|| invalid("chunk size is not a number"))
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn closed_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed in the middle of a message")
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
    fn truncated_and_malformed_messages_are_errors() {
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
    fn received_data_is_readable_and_a_close_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut sender = HttpConnection::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut reader = HttpConnection::new(listener.accept().await.unwrap().0).unwrap();
            assert!(!reader.has_unread());
            sender.write(b"ab").await.unwrap();
            reader.readable().await.unwrap();
            assert!(reader.has_unread());
            assert_eq!(reader.read_exact(2).await.unwrap(), b"ab");
            drop(sender);
            assert!(reader.readable().await.is_err());
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
