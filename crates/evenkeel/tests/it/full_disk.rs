//! The real binary on a disk that takes no more, by a layer between it and the C library that says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::folder::Folder;
use crate::raw::{Reply, read};
use crate::server_process::Served;

#[test]
fn a_full_disk_is_told_in_both_protocols_and_passes() {
    let folder = Folder::new("full-disk");
    let (served, full) = serve(&folder);
    assert_eq!(read(served.send("PUT", "/api/queues/q", "", &json!({}))).status, 201);
    let sqs = |operation: &str, body| {
        let target = format!("X-Amz-Target: AmazonSQS.{operation}\r\n");
        read(served.send("POST", "/", &target, &body))
    };
    let message = || json!({"QueueUrl": "q", "MessageBody": "x"});
    assert_eq!(sqs("SendMessage", message()).status, 200);
    fs::write(&full, "").unwrap();
    let is_told = |reply: &Reply| {
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.body.contains("disk is full: No space left on device"), "{reply:?}");
    };
    for _ in 0..3 {
        let refused = sqs("SendMessage", message());
        is_told(&refused);
        assert!(refused.head.contains("serviceunavailable;receiver"), "{refused:?}");
        is_told(&served.post("/api/queues/q/messages", &json!({"body": "x"})));
    }
    fs::remove_file(&full).unwrap();
    // The folder is tried again after a second.
    while sqs("SendMessage", message()).status != 200 {}
    let got = served.post("/api/queues/q/receive", &json!({"max": 10, "wait_ms": 20_000})).json();
    assert_eq!(got["messages"].as_array().unwrap().len(), 2, "{got}");
}

/// Starts a gateway whose disk is full while there is a file of that name.
pub(crate) fn serve(folder: &Folder) -> (Served, PathBuf) {
    let layer = build(folder);
    let full = folder.file("full");
    fs::create_dir(folder.file("kept")).unwrap();
    let mut command = folder.command(&["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"]);
    command.env("LD_PRELOAD", layer).env("POWERCUT_ROOT", folder.file("data"));
    command.env("POWERCUT_LOG", folder.file("log")).env("POWERCUT_KEEP", folder.file("kept"));
    command.env("POWERCUT_FULL", &full);
    (Served::spawn(&mut command), full)
}

fn build(folder: &Folder) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../evenkeel-queue/tests/powercut/powercut.c");
    let layer = folder.file("powercut.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&layer).arg(source).args(["-ldl", "-lpthread"]);
    assert!(compiler.status().expect("a C compiler is needed: Debian's gcc").success());
    layer
}
