//! Resident memory of the real binary, after work is done.

use std::fs;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Block cache and cached payloads.
const CACHES: u64 = (64 + 32) * MIB;
/// Free parts of pages that mimalloc keeps.
const FRAGMENTATION: u64 = 24 * MIB;
/// Turns a test that would hang into one that fails.
const ATTEMPTS_MAX: usize = 30;
const BATCH: usize = 50;
const KEYS_AT_ONCE: usize = 1_000;
const READINGS: usize = 8;

#[test]
fn an_idle_fairness_key_takes_at_most_a_kilobyte() {
    let server = Server::start("memory-keys");
    let before = server.resident();
    // Hash tables have just doubled, so they are half empty.
    let keys = 58_000;
    let after = server.add_idle_keys(keys);
    assert!(server.knows_keys(keys), "idle keys were removed before the measurement");
    let per_key = (after - before) / keys as u64;
    assert!(per_key <= KIB, "an idle key takes {per_key} bytes");
}

#[test]
fn memory_returns_after_a_backlog_of_large_messages_was_drained() {
    let server = Server::start("memory-drained");
    let start = server.resident();
    let body = "x".repeat(12_000);
    server.work(40_000, |_| json!({"body": body}));
    server.assert_falls_to(start * 3 / 2 + CACHES + FRAGMENTATION, "after 40 000 messages");
}

struct Server {
    process: ServerProcess,
    _dir: TestDir,
}

impl Server {
    fn start(name: &str) -> Self {
        let dir = TestDir::new(name);
        let process = ServerProcess::start(&dir, &[]);
        let queue = json!({"durability": "os"});
        assert_eq!(read(process.send("PUT", "/api/queues/q", "", &queue)).status, 201);
        Self { process, _dir: dir }
    }

    /// Sends, receives and acknowledges a message of each key, and returns the resident memory.
    fn add_idle_keys(&self, keys: usize) -> u64 {
        for first in (0..keys).step_by(KEYS_AT_ONCE) {
            self.work(
                KEYS_AT_ONCE,
                |number| json!({"body": "x", "fairness_key": format!("key-{}", first + number)}),
            );
        }
        // The store writes its memtables to disk, and the allocator returns memory, after a few seconds without messages.
        let readings = (0..READINGS).map(|_| {
            let wait = json!({"max": 1, "wait_ms": 1_000});
            assert_eq!(self.process.post("/api/queues/q/receive", &wait).status, 200);
            self.resident()
        });
        readings.min().unwrap_or_default()
    }

    fn knows_keys(&self, count: usize) -> bool {
        let last = self.process.get(&format!("/api/queues/q/keys?skip={}&max=1", count - 1)).json();
        last["keys"].as_array().is_some_and(|keys| keys.len() == 1)
    }

    /// Sends messages, then receives and acknowledges all of them.
    fn work(&self, messages: usize, message: impl Fn(usize) -> Value) {
        let numbers: Vec<usize> = (0..messages).collect();
        for chunk in numbers.chunks(BATCH) {
            let batch: Value = chunk.iter().map(|&number| message(number)).collect();
            let sent = self.process.post("/api/queues/q/messages", &json!({"messages": batch}));
            assert_eq!(sent.status, 201, "{sent:?}");
        }
        let mut left = messages;
        while left > 0 {
            let receive = json!({"max": BATCH, "wait_ms": 20_000});
            let received = self.process.post("/api/queues/q/receive", &receive).json();
            let messages = received["messages"].as_array().unwrap();
            assert!(!messages.is_empty(), "{left} messages are left");
            let receipts: Value = messages.iter().map(|message| message["receipt"].clone()).collect();
            let acked = self.process.post("/api/queues/q/ack", &json!({"receipts": receipts}));
            assert_eq!(acked.status, 200, "{acked:?}");
            left -= messages.len();
        }
    }

    fn assert_falls_to(&self, limit: u64, what: &str) {
        let mut resident = Vec::new();
        let falls = (0..ATTEMPTS_MAX).any(|_| {
            let now = self.resident();
            resident.push(now / MIB);
            let wait = json!({"max": 1, "wait_ms": 1_000});
            now <= limit || self.process.post("/api/queues/q/receive", &wait).status != 200
        });
        assert!(falls, "{what}: {resident:?} MiB are resident, the limit is {}", limit / MIB);
    }

    /// Returns the resident memory, without files.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * KIB
    }
}
