//! `evenkeel serve` as a process, with its log and signals.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read};

/// Turns a test that would hang into one that fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Part of the message of a server whose address is in use.
const IN_USE: &str = "Address already in use";
/// Starts of a server whose address is in use.
const STARTS_MAX: usize = 20;

/// A running `evenkeel serve`; killed on drop.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Receiver<Value>,
    /// Log lines before the startup line.
    early_log: Vec<Value>,
    data_dir: PathBuf,
}

impl ServerProcess {
    /// Starts a server on a free port and waits for the startup log line.
    pub(crate) fn start(dir: &TestDir, args: &[&str]) -> Self {
        Self::spawn(&mut dir.command(&[&["serve", "--listen", "127.0.0.1:0"], args].concat()))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::launch(command).wait_started()
    }

    /// Starts a server with this command and waits for a log line that precedes the startup line.
    pub(crate) fn spawn_after(command: &mut Command, message: &str) -> Self {
        let server = Self::launch(command);
        server.wait_log(message);
        server.wait_started()
    }

    fn launch(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (sender, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| json!({"message": line}));
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { child, address, log, early_log: Vec::new(), data_dir: data_dir(command) }
    }

    /// Starts a server and waits for a log line that precedes the startup line.
    pub(crate) fn spawn_until(dir: &TestDir, message: &str) -> Self {
        Self::spawn_after(&mut dir.command(&["serve", "--listen", "127.0.0.1:0"]), message)
    }

    /// Starts a server on an address that is known beforehand, once no other process uses it.
    ///
    /// A process that another thread starts has a copy of the sockets of this one until it runs its own program.
    pub(crate) fn start_at(dir: &TestDir, address: SocketAddr) -> Self {
        for _ in 0..STARTS_MAX {
            let mut server = Self::launch(&mut dir.command(&["serve", "--listen", &address.to_string()]));
            let mut is_starting = true;
            while is_starting {
                let line = server.wait_log_of(&["started", IN_USE]);
                if line["url"].is_string() {
                    server.address = address;
                    return server;
                }
                is_starting = !line["message"].as_str().unwrap().contains(IN_USE);
            }
        }
        panic!("{address} is in use");
    }

    fn wait_started(mut self) -> Self {
        loop {
            let line = self.wait_log("");
            // The dispatch of a queue may start before the listener, and logs "started" too.
            let url = line["url"].as_str().filter(|_| line["message"] == "started");
            let Some(url) = url else {
                self.early_log.push(line);
                continue;
            };
            self.address = url.split("://").nth(1).unwrap().parse().unwrap();
            return self;
        }
    }

    /// Waits for a log line whose message contains this text; it may precede the startup line.
    #[track_caller]
    pub(crate) fn wait_early_log(&self, message: &str) -> Value {
        let is_wanted = |line: &&Value| line["message"].as_str().is_some_and(|text| text.contains(message));
        self.early_log.iter().find(is_wanted).cloned().unwrap_or_else(|| self.wait_log(message))
    }

    /// Waits for a log line whose message contains this text.
    #[track_caller]
    pub(crate) fn wait_log(&self, message: &str) -> Value {
        self.wait_log_of(&[message])
    }

    /// Waits for a log line whose message contains one of these texts.
    #[track_caller]
    fn wait_log_of(&self, messages: &[&str]) -> Value {
        let mut before = Vec::new();
        loop {
            let Ok(line) = self.log.recv_timeout(TIMEOUT) else { panic!("no {messages:?} after {before:?}") };
            let is_wanted = |text: &str| messages.iter().any(|message| text.contains(message));
            if line["message"].as_str().is_some_and(is_wanted) {
                return line;
            }
            before.push(line);
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to exit; returns its exit code.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub(crate) fn get(&self, path: &str) -> RawResponse {
        read(self.send("GET", path, "", &Value::Null))
    }

    pub(crate) fn get_with_key(&self, path: &str, key: &str) -> RawResponse {
        read(self.send("GET", path, &bearer(key), &Value::Null))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RawResponse {
        read(self.send("POST", path, "", body))
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) -> RawResponse {
        read(self.send("PATCH", path, "", body))
    }

    pub(crate) fn delete(&self, path: &str) -> RawResponse {
        read(self.send("DELETE", path, "", &Value::Null))
    }

    /// Returns the admin key that the server created in its data directory.
    pub(crate) fn admin_key(&self) -> Option<String> {
        let file = self.data_dir.join("admin.key");
        std::fs::read_to_string(file).ok().map(|key| key.trim().to_owned())
    }

    /// Sends a request without reading the response. On admin paths it adds the admin key, unless `headers` has a key.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &Value) -> TcpStream {
        let mut headers = headers.to_owned();
        let needs_key = path.starts_with("/api/") || path == "/metrics";
        let has_key = headers.contains("authorization:") || headers.contains("x-api-key:");
        if let Some(key) = self.admin_key().filter(|_| needs_key && !has_key) {
            headers.push_str(&bearer(&key));
        }
        if !body.is_null() {
            headers.push_str("content-type: application/json\r\n");
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send_text(method, path, &headers, &body)
    }

    /// Sends a request with these headers and no others but `Host`, without reading the response.
    pub(crate) fn send_text(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
        write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        socket
    }
}

/// Returns the data directory of a server that is started by this command.
fn data_dir(command: &Command) -> PathBuf {
    let given = command.get_args().skip_while(|arg| *arg != "--data-dir").nth(1);
    let directory = command.get_current_dir().unwrap();
    directory.join(given.unwrap_or("evenkeel-data".as_ref()))
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {}\r\n", key.trim())
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
