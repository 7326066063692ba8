//! Test support: simulated nodes in the test process, and a blocking client that returns raw responses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support may fail the test")]

use crate::{Load, SimNode, SimOptions};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::runtime::Runtime;

/// A simulated node with its own runtime.
pub struct TestNode {
    runtime: Runtime,
    sim: SimNode,
}

/// End of a response, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// Complete: the content length was reached, or the last chunk arrived.
    Complete,
    /// The connection was closed before the response was complete.
    Truncated,
    /// The connection was reset.
    Reset,
}

/// A response, read to its end.
#[derive(Debug)]
pub struct RawResponse {
    /// 0 if there was no response head.
    pub status: u16,
    pub head: String,
    pub body: String,
    pub end: ResponseEnd,
}

/// Returns the options of a node that generates without delay.
pub fn fast() -> SimOptions {
    SimOptions {
        first_token: Duration::ZERO,
        prefill_per_second: 10_000_000,
        tokens_per_second: 10_000_000,
        ..SimOptions::default()
    }
}

/// Returns the options of a node whose first token takes an hour.
pub fn stuck() -> SimOptions {
    SimOptions { first_token: Duration::from_hours(1), ..SimOptions::default() }
}

/// Returns a chat request for 8 tokens, with the given fields added.
pub fn chat(fields: Value) -> Value {
    let mut body = json!({
        "model": "sim", "max_tokens": 8, "ignore_eos": true, "messages": [{"role": "user", "content": "hello"}]
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

impl TestNode {
    pub fn start(options: SimOptions) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sim = runtime.block_on(SimNode::bind(options)).unwrap();
        Self { runtime, sim }
    }

    pub fn address(&self) -> SocketAddr {
        self.sim.address()
    }

    /// Waits for a number of running and waiting requests.
    pub fn wait_for(&self, running: u32, waiting: u32) {
        let wanted = Load { running, waiting };
        self.runtime.block_on(self.sim.load().wait_for(|load| *load == wanted)).unwrap();
    }

    /// Returns the largest number of requests that ran or waited at once.
    pub fn peak(&self) -> u32 {
        self.sim.peak()
    }

    pub fn get(&self, path: &str) -> RawResponse {
        read(self.open(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")))
    }

    pub fn post(&self, path: &str, body: &Value) -> RawResponse {
        read(self.send(path, body))
    }

    pub fn chat(&self, fields: Value) -> RawResponse {
        self.post("/v1/chat/completions", &chat(fields))
    }

    /// Sends a request without reading the response.
    pub fn send(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        self.open(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Connects and sends raw bytes.
    pub fn open(&self, text: &str) -> TcpStream {
        open(self.address(), text)
    }

    pub fn shutdown(self) -> SocketAddr {
        let address = self.address();
        self.runtime.block_on(self.sim.shutdown());
        address
    }
}

/// Connects and sends raw bytes.
pub fn open(address: SocketAddr, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    // Fails a test that would otherwise hang.
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.write_all(text.as_bytes()).unwrap();
    socket
}

/// Reads until `part` has arrived; returns everything read.
pub fn read_until(socket: &mut TcpStream, part: &str) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&read).contains(part) {
        assert_eq!(socket.read(&mut byte).unwrap(), 1, "ended before {part:?}");
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

/// Reports whether the connection is open and nothing has arrived.
pub fn is_silent(socket: &mut TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let is_silent = matches!(socket.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
    is_silent
}

/// Reads a response to its end, however it ends.
pub fn read(mut socket: TcpStream) -> RawResponse {
    let mut bytes = Vec::new();
    let reset = match socket.read_to_end(&mut bytes) {
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
    };
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1).map_or(0, |status| status.parse().unwrap());
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let (body, complete) = match length {
        Some(length) => (body.to_owned(), length.parse() == Ok(body.len())),
        None => join_chunks(body),
    };
    let end = match (reset, complete) {
        (true, _) => ResponseEnd::Reset,
        (false, true) => ResponseEnd::Complete,
        (false, false) => ResponseEnd::Truncated,
    };
    RawResponse { status, head, body, end }
}

/// Joins the chunks, and reports whether the last one arrived.
fn join_chunks(mut body: &str) -> (String, bool) {
    let mut joined = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (joined, true);
        }
        let Some(chunk) = rest.get(..size) else { break };
        joined.push_str(chunk);
        body = rest.get(size + 2..).unwrap_or("");
    }
    (joined, false)
}

impl RawResponse {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the events of a stream, including `[DONE]`.
    pub fn events(&self) -> Vec<&str> {
        self.body.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect()
    }

    /// Returns the text of a streamed chat.
    pub fn streamed_text(&self) -> String {
        let parsed = self.events().into_iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        parsed
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect()
    }
}
