//! A disk that does not confirm what is written beside requests: when generations, or windows of names, turn over.
//!
//! Nothing asks for a flush here but the turn itself, so its failure is all that can stop the process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use evenkeel_queue::message::DedupId;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore, FatalHandler};
use evenkeel_queue::store::{Batch, QueueDescriptor, Store};
use evenkeel_queue::{Durability, NewMessage, QueueId, QueueSettings, UnixMillis};

use crate::crash::STOPPED;
use crate::powercut::{Bench, newest_journal};

const FOLDER: &str = "EVENKEEL_TURNOVER_FOLDER";
const TURNS: &str = "EVENKEEL_TURNOVER_OF";
/// While this file exists, no journal is confirmed.
const FAILS: &str = "POWERCUT_FAIL_JOURNAL";
const GENERATIONS: &str = "generations";
const NAMES: &str = "names";
/// The queue's window of names, and more.
const LATER: UnixMillis = UnixMillis(400_000);

#[test]
fn a_generation_that_the_disk_does_not_confirm_stops_the_process() {
    assert_stops(GENERATIONS);
}

#[test]
fn a_window_of_names_that_the_disk_does_not_confirm_stops_the_process() {
    assert_stops(NAMES);
}

#[track_caller]
fn assert_stops(turns: &str) {
    let bench = Bench::new();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rotation::the_process_whose_disk_fails", "--ignored", "--nocapture"])
        .envs(bench.watched())
        .env(FOLDER, bench.data().join("queue"))
        .env(TURNS, turns)
        .env(FAILS, bench.folder.path().join("fails"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said: Vec<String> =
        BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    assert_eq!(process.wait().unwrap().code(), Some(STOPPED), "{said:?}");
    assert!(said.iter().any(|line| line.contains("the outcome of the last writes is unknown")), "{said:?}");
}

#[test]
#[ignore = "run by the tests above, which break its disk"]
fn the_process_whose_disk_fails() {
    let folder = PathBuf::from(std::env::var(FOLDER).expect("run by another test"));
    let turns = std::env::var(TURNS).expect("run by another test");
    let fails = std::env::var(FAILS).expect("run by another test");
    let fatal = FatalHandler(Arc::new(|error| {
        println!("{error}");
        std::process::exit(STOPPED);
    }));
    let store =
        DiskStore::open(&folder, DiskOptions { fatal, reserve_bytes: 0, ..DiskOptions::default() }).unwrap();
    let queue = put_queue(&store);
    let named = |name: &str| NewMessage { dedup: Some(DedupId::new("", name)), ..NewMessage::new("x") };
    if turns == NAMES {
        append(&store, queue, UnixMillis(0), named("first"));
        fs::write(&fails, "").unwrap();
        append(&store, queue, LATER, named("second"));
    } else {
        // The eleventh fills the generation; a journal ends with the sixth, and none before the twelfth.
        let large = || NewMessage::new(vec![b'x'; 12 << 20]);
        (0..10).for_each(|_| append(&store, queue, UnixMillis(0), large()));
        while newest_journal(folder.parent().unwrap()).file_stem().unwrap() == "0" {}
        fs::write(&fails, "").unwrap();
        append(&store, queue, UnixMillis(0), large());
    }
    // Answered after what came before it has turned over.
    drop(store.queues());
}

fn put_queue(store: &DiskStore) -> QueueId {
    let record = QueueDescriptor {
        name: "jobs".into(),
        settings: QueueSettings::default(),
        created_at: 0,
        changed_at: 0,
        metadata: String::new(),
    };
    let (done, made) = sync_channel(1);
    store.put_queue(None, record, Box::new(move |id| drop(done.send(id))));
    made.recv().unwrap().unwrap()
}

fn append(store: &DiskStore, queue: QueueId, sent_at: UnixMillis, message: NewMessage) {
    let messages = vec![message];
    let batch = Batch { queue, messages, sent_at, delay_ms: 0, durability: Durability::Os };
    let (done, written) = sync_channel(1);
    store.append(batch, Box::new(move |sent| drop(done.send(sent))));
    written.recv().unwrap().unwrap();
}
