//! The gateway as its own process, with what it logs and the signals it gets.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::raw::{Reply, read};

/// How long a line of the log, or an end, may take before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `evenkeel serve`; ended with the test.
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Receiver<Value>,
}

impl Served {
    /// Starts it on a free port and waits until it says where.
    pub(crate) fn start(folder: &Folder, args: &[&str]) -> Self {
        Self::spawn(&mut folder.command(&[&["serve", "--listen", "127.0.0.1:0"], args].concat()))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::launch(command).reached()
    }

    fn launch(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (told, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| json!({"message": line}));
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), log }
    }

    /// Starts it, and waits for a line that comes before it says where it is.
    pub(crate) fn spawn_until(folder: &Folder, said: &str) -> Self {
        let served = Self::launch(&mut folder.command(&["serve", "--listen", "127.0.0.1:0"]));
        served.wait_log(said);
        served.reached()
    }

    fn reached(mut self) -> Self {
        let started = self.wait_log("started");
        let url = started["url"].as_str().unwrap();
        self.address = url.split("://").nth(1).unwrap().parse().unwrap();
        self
    }

    /// Waits for a line of the log with this message.
    #[track_caller]
    pub(crate) fn wait_log(&self, message: &str) -> Value {
        let mut before = Vec::new();
        loop {
            let Ok(line) = self.log.recv_timeout(PATIENCE) else { panic!("no {message:?} after {before:?}") };
            if line["message"].as_str().is_some_and(|said| said.contains(message)) {
                return line;
            }
            before.push(line);
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits until the process ends.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        read(self.send("GET", path, "", &Value::Null))
    }

    pub(crate) fn get_with_key(&self, path: &str, key: &str) -> Reply {
        read(self.send("GET", path, &bearer(key), &Value::Null))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        read(self.send("POST", path, "", body))
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) -> Reply {
        read(self.send("PATCH", path, "", body))
    }

    pub(crate) fn delete(&self, path: &str) -> Reply {
        read(self.send("DELETE", path, "", &Value::Null))
    }

    /// Sends a request and leaves the answer to the caller.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &Value) -> TcpStream {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}");
        write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        socket
    }
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {}\r\n", key.trim())
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
