//! A failed fsync during the rotation of segments or deduplication windows stops the process.
//!
//! No request asks for an fsync here, so only the rotation's own failure can stop the process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use evenkeel_queue::message::DedupId;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore, FatalHandler};
use evenkeel_queue::store::{AppendBatch, QueueDescriptor, Store};
use evenkeel_queue::{Durability, Namespace, NewMessage, QueueId, QueueSettings, UnixMillis};

use crate::crash::STOPPED;
use crate::powercut::{PowerRig, newest_journal};

const DIR: &str = "EVENKEEL_ROTATION_DIR";
const ROTATION: &str = "EVENKEEL_ROTATION_OF";
/// Names a file; while it exists, fsync of a journal fails.
const FAIL_FILE: &str = "POWERCUT_FAIL_JOURNAL";
const SEGMENTS: &str = "segments";
const DEDUP: &str = "dedup";
/// Later than the deduplication window.
const LATER: UnixMillis = UnixMillis(400_000);

#[test]
fn a_failed_fsync_at_segment_rotation_stops_the_process() {
    assert_stops(SEGMENTS);
}

#[test]
fn a_failed_fsync_at_dedup_rotation_stops_the_process() {
    assert_stops(DEDUP);
}

#[track_caller]
fn assert_stops(rotation: &str) {
    let rig = PowerRig::new();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rotation::the_process_whose_disk_fails", "--ignored", "--nocapture"])
        .envs(rig.env())
        .env(DIR, rig.data().join("queue"))
        .env(ROTATION, rotation)
        .env(FAIL_FILE, rig.dir.path().join("fail-fsync"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let text: Vec<String> =
        BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    assert_eq!(process.wait().unwrap().code(), Some(STOPPED), "{text:?}");
    assert!(text.iter().any(|line| line.contains("the outcome of the last writes is unknown")), "{text:?}");
}

#[test]
#[ignore = "run by the tests above, which break its disk"]
fn the_process_whose_disk_fails() {
    let dir = PathBuf::from(std::env::var(DIR).expect("run by another test"));
    let rotation = std::env::var(ROTATION).expect("run by another test");
    let fail_file = std::env::var(FAIL_FILE).expect("run by another test");
    let fatal = FatalHandler(Arc::new(|error| {
        println!("{error}");
        std::process::exit(STOPPED);
    }));
    let store =
        DiskStore::open(&dir, DiskOptions { fatal, reserve_bytes: 0, ..DiskOptions::default() }).unwrap();
    let queue = put_queue(&store);
    let named = |name: &str| NewMessage { dedup: Some(DedupId::new("", name)), ..NewMessage::new("x") };
    if rotation == DEDUP {
        append(&store, queue, UnixMillis(0), named("first"));
        fs::write(&fail_file, "").unwrap();
        append(&store, queue, LATER, named("second"));
    } else {
        // The eleventh message fills the segment. A journal is closed by the sixth message and by the twelfth.
        let large = || NewMessage::new(vec![b'x'; 12 << 20]);
        (0..10).for_each(|_| append(&store, queue, UnixMillis(0), large()));
        while newest_journal(dir.parent().unwrap()).file_stem().unwrap() == "0" {}
        fs::write(&fail_file, "").unwrap();
        append(&store, queue, UnixMillis(0), large());
    }
    // The writer answers after the rotation.
    drop(store.queues());
}

fn put_queue(store: &DiskStore) -> QueueId {
    let record = QueueDescriptor {
        name: "jobs".into(),
        namespace: Namespace::Shared,
        settings: QueueSettings::default(),
        created_at: 0,
        changed_at: 0,
        metadata: String::new(),
    };
    let (done, created) = sync_channel(1);
    store.put_queue(None, record, Box::new(move |id| drop(done.send(id))));
    created.recv().unwrap().unwrap()
}

fn append(store: &DiskStore, queue: QueueId, sent_at: UnixMillis, message: NewMessage) {
    let messages = vec![message];
    let batch = AppendBatch { queue, messages, sent_at, delay_ms: 0, durability: Durability::Os };
    let (done, written) = sync_channel(1);
    store.append(batch, Box::new(move |sent| drop(done.send(sent))));
    written.recv().unwrap().unwrap();
}
