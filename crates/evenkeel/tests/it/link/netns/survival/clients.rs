//! Clients in the edge that notice every lost, repeated or changed byte.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use evenkeel_sim_node::testing::{RawResponse, TestNode, chat, fast, open, read};
use evenkeel_test_network::Namespace;
use serde_json::json;

use crate::link::process::TIMEOUT;
use crate::link::test_link::{Connection, TestLink};

/// A `psql` process.
pub(super) struct PsqlSession {
    /// Process id of the server's backend.
    pub(super) backend: u32,
    child: Child,
    input: ChildStdin,
    rows: Receiver<String>,
}

impl PsqlSession {
    /// Connects through `forward` to the database of `url`.
    pub(super) fn start(link: &TestLink, forward: SocketAddr, url: &str) -> Self {
        let url = url.replace(&host_and_port(url), &forward.to_string());
        let mut command = Command::new("psql");
        command
            .args(["-XAtqw", "-v", "ON_ERROR_STOP=1", "-d", &url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = link.network().edge().run(|| command.spawn().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, rows) = channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let input = child.stdin.take().unwrap();
        let mut session = Self { backend: 0, child, input, rows };
        session.backend = session.query("select pg_backend_pid();").unwrap().parse().unwrap();
        session
    }

    /// Sends a statement that returns no rows.
    pub(super) fn run(&mut self, sql: &str) {
        writeln!(self.input, "{sql}").unwrap();
    }

    /// Runs a statement and returns its first row; `None` if the connection has ended.
    pub(super) fn query(&mut self, sql: &str) -> Option<String> {
        self.run(sql);
        self.rows.recv_timeout(TIMEOUT).ok()
    }
}

impl Drop for PsqlSession {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Relays connections of the core to the PostgreSQL server of `url`, which listens outside of the namespaces.
pub(super) fn relay_to_postgres(core: &Namespace, url: &str) -> SocketAddr {
    let server: SocketAddr = host_and_port(url).parse().unwrap();
    let listener = core.run(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let upstream = TcpStream::connect(server).unwrap();
            copy(client.try_clone().unwrap(), upstream.try_clone().unwrap());
            copy(upstream, client);
        }
    });
    address
}

fn host_and_port(url: &str) -> String {
    url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned()
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        // Either end may be closed while the other one still sends.
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// A streamed response of a simulated model server.
pub(super) struct ChatStream {
    response: Option<JoinHandle<RawResponse>>,
    tokens: u64,
}

impl ChatStream {
    /// Requests this many tokens through `forward`.
    pub(super) fn start(link: &TestLink, forward: SocketAddr, tokens: u64) -> Self {
        let body = chat(json!({"max_tokens": tokens, "stream": true})).to_string();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let response = link.network().edge().spawn(move || read(open(forward, &request)));
        Self { response: Some(response), tokens }
    }

    /// Returns the response, and the text that a server without delays sends.
    pub(super) fn finish(&mut self) -> (RawResponse, String) {
        let node = TestNode::start(fast());
        let expected = node.chat(json!({"max_tokens": self.tokens, "stream": true})).streamed_text();
        (self.response.take().unwrap().join().unwrap(), expected)
    }
}

/// A connection whose core end sends everything back.
pub(super) struct EchoSession {
    edge: TcpStream,
}

impl EchoSession {
    pub(super) fn start(connection: Connection) -> Self {
        let core = connection.core;
        copy(core.try_clone().unwrap(), core);
        Self { edge: connection.edge }
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        &mut self.edge
    }

    /// Sends a text and waits until it comes back.
    pub(super) fn exchange(&mut self, text: &str) {
        self.edge.write_all(text.as_bytes()).unwrap();
        self.expect(text);
    }

    pub(super) fn expect(&mut self, text: &str) {
        let mut bytes = vec![0; text.len()];
        self.edge.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }

    pub(super) fn expect_reset(&mut self) {
        assert_eq!(self.edge.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
