//! The binary on a full disk, which a preloaded library simulates by failing writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, read};

#[test]
fn a_full_disk_is_reported_in_both_protocols_and_the_server_recovers() {
    let dir = TestDir::new("full-disk");
    let (server, full) = serve(&dir);
    assert_eq!(read(server.send("PUT", "/api/queues/q", "", &json!({}))).status, 201);
    let sqs = |operation: &str, body| {
        let target = format!("X-Amz-Target: AmazonSQS.{operation}\r\n");
        read(server.send("POST", "/", &target, &body))
    };
    let message = || json!({"QueueUrl": "q", "MessageBody": "x"});
    assert_eq!(sqs("SendMessage", message()).status, 200);
    fs::write(&full, "").unwrap();
    let check_error = |reply: &RawResponse| {
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.body.contains("disk is full: No space left on device"), "{reply:?}");
    };
    for _ in 0..3 {
        let rejected = sqs("SendMessage", message());
        check_error(&rejected);
        assert!(rejected.head.contains("serviceunavailable;receiver"), "{rejected:?}");
        check_error(&server.post("/api/queues/q/messages", &json!({"body": "x"})));
    }
    fs::remove_file(&full).unwrap();
    // The store retries after a second.
    while sqs("SendMessage", message()).status != 200 {}
    let got = server.post("/api/queues/q/receive", &json!({"max": 10, "wait_ms": 20_000})).json();
    assert_eq!(got["messages"].as_array().unwrap().len(), 2, "{got}");
}

/// Starts a gateway whose disk is full while the returned file exists.
pub(crate) fn serve(dir: &TestDir) -> (ServerProcess, PathBuf) {
    let library = build(dir);
    let full = dir.file("full");
    fs::create_dir(dir.file("kept")).unwrap();
    let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"]);
    command.env("LD_PRELOAD", library).env("POWERCUT_ROOT", dir.file("data"));
    command.env("POWERCUT_LOG", dir.file("log")).env("POWERCUT_KEEP", dir.file("kept"));
    command.env("POWERCUT_FULL", &full);
    (ServerProcess::spawn(&mut command), full)
}

fn build(dir: &TestDir) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../evenkeel-queue/tests/powercut/powercut.c");
    let library = dir.file("powercut.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(source).args(["-ldl", "-lpthread"]);
    assert!(compiler.status().expect("a C compiler is required, for example Debian's gcc").success());
    library
}
