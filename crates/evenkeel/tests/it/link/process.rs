//! A process with its log.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Set to a filter of log lines, such as `evenkeel_link=debug`, to see them also if a test passes.
const LOG_VARIABLE: &str = "EVENKEEL_TEST_LOG";

/// Turns a test that would hang into one that fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts of [`wait_for`].
const POLL: Duration = Duration::from_millis(20);

/// Calls `poll` until it returns a value; panics after [`TIMEOUT`].
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    poll_until_timeout(poll).unwrap_or_else(|| panic!("no {what} within {TIMEOUT:?}"))
}

/// Calls `poll` until it returns a value or [`TIMEOUT`] has passed.
pub(crate) fn poll_until_timeout<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        let value = poll();
        if value.is_some() {
            return value;
        }
        thread::sleep(POLL);
    }
    None
}

/// A process with its output, a line each: JSON as it is, other text as a message. Killed on drop.
pub(crate) struct LoggedProcess {
    child: Child,
    name: &'static str,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl LoggedProcess {
    pub(crate) fn spawn(name: &'static str, command: &mut Command) -> Self {
        if let Some(filter) = env::var_os(LOG_VARIABLE) {
            command.env("RUST_LOG", filter);
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = Arc::default();
        collect(child.stdout.take().unwrap(), &lines);
        collect(child.stderr.take().unwrap(), &lines);
        Self { child, name, lines }
    }

    /// Returns the lines whose message contains this text.
    pub(crate) fn logged(&self, message: &str) -> Vec<Value> {
        let contains = |line: &&Value| line["message"].as_str().is_some_and(|text| text.contains(message));
        self.lines.lock().unwrap().iter().filter(contains).cloned().collect()
    }

    /// Waits for a line whose message contains this text; returns the first.
    #[track_caller]
    pub(crate) fn wait_log(&self, message: &str) -> Value {
        wait_for(message, || self.logged(message).into_iter().next())
    }

    /// Waits for this number of lines whose message contains this text.
    #[track_caller]
    pub(crate) fn wait_logs(&self, message: &str, count: usize) -> Vec<Value> {
        wait_for(message, || Some(self.logged(message)).filter(|lines| count <= lines.len()))
    }

    /// Sends SIGTERM.
    pub(crate) fn signal(&self) {
        self.send_signal("TERM");
    }

    pub(crate) fn send_signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Sends SIGTERM to a process with open connections, and again while it waits for them; returns the exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal();
        self.wait_log("waiting for open connections to end");
        self.signal();
        self.wait()
    }

    /// Waits for the exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() || env::var_os(LOG_VARIABLE).is_some() {
            for line in self.lines.lock().unwrap().iter() {
                eprintln!("{}: {line}", self.name);
            }
        }
    }
}

fn collect(output: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<Value>>>) {
    let lines = lines.clone();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap_or_else(|_| json!({"message": line}));
            lines.lock().unwrap().push(line);
        }
    });
}
