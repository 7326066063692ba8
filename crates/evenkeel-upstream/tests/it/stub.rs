//! A server that sends the exact bytes a test writes.

use evenkeel_upstream::Origin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Stub(TcpListener);

impl Stub {
    pub(crate) async fn start() -> Self {
        Self(TcpListener::bind(("127.0.0.1", 0)).await.unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin::parse(&self.url()).unwrap()
    }

    pub(crate) async fn accept(&self) -> Peer {
        Peer { stream: self.0.accept().await.unwrap().0, unread: Vec::new() }
    }
}

/// The server's end of one connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl Peer {
    /// Reads one request, head and body, as text.
    pub(crate) async fn request(&mut self) -> String {
        self.next_request().await.expect("the client is connected")
    }

    /// Reads one request; `None` once the client has disconnected.
    pub(crate) async fn next_request(&mut self) -> Option<String> {
        loop {
            if let Some(len) = request_len(&self.unread) {
                let request = self.unread.drain(..len).collect();
                return Some(String::from_utf8(request).unwrap());
            }
            match self.stream.read_buf(&mut self.unread).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            }
        }
    }

    pub(crate) async fn write(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Writes to a client that may have disconnected.
    pub(crate) async fn try_write(&mut self, bytes: &str) {
        let _ = self.stream.write_all(bytes.as_bytes()).await;
    }

    /// Responds to a client that may have disconnected; returns false if it has.
    pub(crate) async fn try_respond(&mut self, body: &str) -> bool {
        let mut request = [0; 4096];
        let read = self.stream.read(&mut request).await;
        matches!(read, Ok(1..)) && self.stream.write_all(ok_response(body).as_bytes()).await.is_ok()
    }

    /// Reads one request and responds with a body of known length.
    pub(crate) async fn respond(&mut self, body: &str) -> String {
        let request = self.request().await;
        self.write(&ok_response(body)).await;
        request
    }

    /// Waits until the client closes the connection.
    pub(crate) async fn closed(mut self) {
        let mut rest = Vec::new();
        // A reset counts as a close: the client did not read the whole response.
        let _ = self.stream.read_to_end(&mut rest).await;
    }
}

pub(crate) fn ok_response(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn request_len(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).unwrap();
    let body = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let len = head + body.map_or(0, |len| len.parse::<usize>().unwrap());
    (len <= bytes.len()).then_some(len)
}
