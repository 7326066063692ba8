//! A client that shows what is on the wire, and an engine to point it at.

use evenkeel_sim_node::{Load, SimNode, SimOptions};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::runtime::Runtime;

/// An engine in this process.
pub(crate) struct Node {
    runtime: Runtime,
    sim: SimNode,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Where it said it would.
    Whole,
    /// By a close before that.
    Early,
    /// By a reset.
    Reset,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    pub(crate) ended: Ended,
}

/// Options of an engine whose tokens take no time.
pub(crate) fn fast() -> SimOptions {
    SimOptions {
        first_token: Duration::ZERO,
        prefill_per_second: 10_000_000,
        tokens_per_second: 10_000_000,
        ..SimOptions::default()
    }
}

/// Options of an engine whose first token nobody lives to see.
pub(crate) fn stuck() -> SimOptions {
    SimOptions { first_token: Duration::from_hours(1), ..SimOptions::default() }
}

pub(crate) fn chat(change: Value) -> Value {
    let mut body = json!({
        "model": "sim", "max_tokens": 8, "ignore_eos": true, "messages": [{"role": "user", "content": "hello"}]
    });
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

impl Node {
    pub(crate) fn start(options: SimOptions) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sim = runtime.block_on(SimNode::bind(options)).unwrap();
        Self { runtime, sim }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.sim.address()
    }

    /// Waits until so many requests run and wait.
    pub(crate) fn wait_for(&self, running: u32, waiting: u32) {
        let wanted = Load { running, waiting };
        self.runtime.block_on(self.sim.load().wait_for(|load| *load == wanted)).unwrap();
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        read(self.open(&format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n")))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        read(self.send(path, body))
    }

    pub(crate) fn chat(&self, change: Value) -> Reply {
        self.post("/v1/chat/completions", &chat(change))
    }

    /// Sends a request and leaves the answer to the caller.
    pub(crate) fn send(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        self.open(&format!(
            "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Connects and sends these bytes.
    pub(crate) fn open(&self, text: &str) -> TcpStream {
        open(self.address(), text)
    }

    pub(crate) fn shutdown(self) -> SocketAddr {
        let address = self.address();
        self.runtime.block_on(self.sim.shutdown());
        address
    }
}

/// Connects and sends these bytes.
pub(crate) fn open(address: SocketAddr, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    // Nothing here takes that long; a test that would hang fails instead.
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.write_all(text.as_bytes()).unwrap();
    socket
}

/// Reads until `part` has come.
pub(crate) fn read_until(socket: &mut TcpStream, part: &str) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&read).contains(part) {
        assert_eq!(socket.read(&mut byte).unwrap(), 1, "ended before {part:?}");
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

/// Whether nothing has come, and the connection is still open.
pub(crate) fn is_silent(socket: &mut TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let silent = matches!(socket.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
    silent
}

/// Reads an answer to its end, whatever that is.
pub(crate) fn read(mut socket: TcpStream) -> Reply {
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
    let (body, whole) = match length {
        Some(length) => (body.to_owned(), length.parse() == Ok(body.len())),
        None => unchunked(body),
    };
    let ended = match (reset, whole) {
        (true, _) => Ended::Reset,
        (false, true) => Ended::Whole,
        (false, false) => Ended::Early,
    };
    Reply { status, head, body, ended }
}

/// Joins the chunks, and says whether the last one was there.
fn unchunked(mut body: &str) -> (String, bool) {
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

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The events of a stream, `[DONE]` included.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.body.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect()
    }

    /// The text of a streamed chat.
    pub(crate) fn said(&self) -> String {
        let parsed = self.events().into_iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        parsed
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect()
    }
}
