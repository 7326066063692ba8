//! A process whose machine loses power repeatedly: writes that were not synced are undone.
//!
//! The operating system keeps the writes of a killed process, so a kill cannot reveal a missing fsync. Here a preloaded
//! library between the process and the C library, the layer, logs how to undo each write and what was synced since.
//! After the kill, unsynced writes are undone, except for some that the disk happened to have written.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::crash::{LAST, Ledger, ROUNDS, STOPPED, UNSYNCED, lines_before_kill, start};

#[test]
fn twenty_power_failures_lose_no_confirmed_write() {
    let rig = PowerRig::new();
    let mut ledger = Ledger::default();
    let mut undone = 0;
    for round in 0..ROUNDS {
        let mut process = rig.start(&round.to_string());
        let mut out = BufReader::new(process.stdout.take().unwrap());
        ledger.read(&mut out, lines_before_kill(round) / 2);
        // Right after a line was printed everything is durable, so the kill comes a little later.
        std::thread::sleep(Duration::from_micros(round * 397 % 5_000));
        process.kill().unwrap();
        ledger.read(&mut out, u64::MAX);
        process.wait().unwrap();
        undone += rig.cut_power(round);
        ledger.record_crash();
    }
    rig.drain(&mut ledger);
    println!("{undone} writes undone");
    assert!(undone > 0, "no write was undone, so the test shows nothing");
    ledger.check();
}

/// Checks the test itself: a queue that answers before it syncs is detected, so a missing fsync would be, too.
#[test]
fn a_queue_that_does_not_sync_is_detected() {
    let rig = PowerRig::new();
    let mut ledger = Ledger::default();
    let mut process = rig.start_with("0", &[(UNSYNCED, OsStr::new("yes"))]);
    let mut out = BufReader::new(process.stdout.take().unwrap());
    ledger.read(&mut out, 2_000);
    process.kill().unwrap();
    ledger.read(&mut out, u64::MAX);
    process.wait().unwrap();
    let undone = rig.cut_power(0);
    ledger.record_crash();
    rig.drain(&mut ledger);
    println!("{undone} writes undone, {} faults", ledger.faults().len());
    assert!(!ledger.faults().is_empty(), "{undone} writes were undone and no fault was detected");
}

/// After a failed fsync the outcome is unknown: the process stops with a message, and no confirmed write is lost.
#[test]
fn a_failed_fsync_stops_the_process_with_a_message() {
    let rig = PowerRig::new();
    let mut ledger = Ledger::default();
    let mut process = rig.start_with("0", &[("POWERCUT_FAIL_SYNC", OsStr::new("300"))]);
    ledger.read(&mut BufReader::new(process.stdout.take().unwrap()), u64::MAX);
    assert_eq!(process.wait().unwrap().code(), Some(STOPPED));
    assert!(ledger.fatal[0].contains("the outcome of the last writes is unknown"), "{:?}", ledger.fatal);
    assert!(ledger.sent() > 0, "nothing was sent before the fsync failed");
    rig.cut_power(0);
    ledger.record_crash();
    rig.drain(&mut ledger);
    assert_eq!(ledger.faults(), [] as [String; 0]);
}

/// A full disk rejects senders; once there is space again, everything continues.
#[test]
fn a_full_disk_rejects_writes_until_space_is_free_again() {
    let rig = PowerRig::new();
    let mut ledger = Ledger::default();
    let full = rig.dir.path().join("full");
    let mut process = rig.start_with("0", &[("POWERCUT_FULL", full.as_os_str())]);
    let mut out = BufReader::new(process.stdout.take().unwrap());
    ledger.read(&mut out, 300);
    fs::write(&full, "").unwrap();
    while ledger.rejected.len() < 20 {
        ledger.read(&mut out, 1);
    }
    fs::remove_file(&full).unwrap();
    let before = ledger.sent();
    while ledger.sent() < before + 200 {
        ledger.read(&mut out, 1);
    }
    process.kill().unwrap();
    ledger.read(&mut out, u64::MAX);
    process.wait().unwrap();
    println!("{} requests rejected, the first: {:?}", ledger.rejected.len(), ledger.rejected[0]);
    assert!(
        ledger.rejected.iter().all(|error| error.contains("disk is full: No space left")),
        "{:?}",
        ledger.rejected
    );
    ledger.record_crash();
    rig.drain(&mut ledger);
    assert_eq!(ledger.faults(), [] as [String; 0]);
}

/// Anything after the last complete batch of the journal is ignored.
#[test]
fn a_corrupt_journal_tail_is_ignored() {
    type Corrupt = fn(&[u8]) -> Vec<u8>;
    let tails: &[(&str, Corrupt)] = &[
        ("noise", |_| (0..5_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()),
        ("the start of a batch", |valid| valid[..valid.len().min(700)].to_vec()),
        ("bytes of ones", |_| vec![0xff; 100]),
        ("nothing, the file is truncated", |_| Vec::new()),
    ];
    for (name, corrupt) in tails {
        let rig = PowerRig::new();
        let mut ledger = Ledger::default();
        let mut process = rig.start("0");
        let mut out = BufReader::new(process.stdout.take().unwrap());
        ledger.read(&mut out, 300);
        process.kill().unwrap();
        ledger.read(&mut out, u64::MAX);
        process.wait().unwrap();
        ledger.record_crash();
        let journal = newest_journal(&rig.data());
        let mut bytes = fs::read(&journal).unwrap();
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        // A batch ends with a trailer whose last byte is not zero.
        bytes.truncate(end);
        let tail = corrupt(&bytes);
        bytes.extend(tail);
        fs::write(&journal, bytes).unwrap();
        println!("after {name}");
        rig.drain(&mut ledger);
        assert_eq!(ledger.faults(), [] as [String; 0], "after {name}");
        assert!(ledger.sent() > 50);
    }
}

pub(crate) fn newest_journal(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir.join("queue")).unwrap().flatten().map(|entry| entry.path());
    let journals = files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    let number = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    journals.max_by_key(number).expect("a store has a journal")
}

/// A data directory, and the layer that logs its writes.
pub(crate) struct PowerRig {
    pub(crate) dir: tempfile::TempDir,
    layer: PathBuf,
}

impl PowerRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::TempDir::new().unwrap();
        let layer = dir.path().join("powercut.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/powercut/powercut.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&layer).arg(source).args(["-ldl", "-lpthread"]);
        let built = compiler.status().expect("a C compiler is needed: Debian's gcc");
        assert!(built.success(), "the layer did not compile");
        fs::create_dir(dir.path().join("kept")).unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        Self { dir, layer }
    }

    fn start(&self, round: &str) -> std::process::Child {
        self.start_with(round, &[])
    }

    fn start_with(&self, round: &str, extra: &[(&str, &OsStr)]) -> std::process::Child {
        let observed = self.env();
        let mut set: Vec<(&str, &OsStr)> =
            observed.iter().map(|(name, path)| (*name, path.as_os_str())).collect();
        set.extend_from_slice(extra);
        start(&self.data(), round, &set)
    }

    /// Returns the environment of an observed process.
    pub(crate) fn env(&self) -> [(&'static str, PathBuf); 4] {
        let dir = self.dir.path();
        [
            ("LD_PRELOAD", self.layer.clone()),
            ("POWERCUT_ROOT", self.data()),
            ("POWERCUT_LOG", dir.join("log")),
            ("POWERCUT_KEEP", dir.join("kept")),
        ]
    }

    /// Runs the process until the queue is empty.
    fn drain(&self, ledger: &mut Ledger) {
        let mut process = self.start(LAST);
        ledger.read(&mut BufReader::new(process.stdout.take().unwrap()), u64::MAX);
        assert!(process.wait().unwrap().success(), "the queue was not emptied");
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Undoes unsynced writes; returns their number. `seed` selects those that had reached the disk nevertheless.
    fn cut_power(&self, seed: u64) -> usize {
        let log = self.dir.path().join("log");
        let records = read_log(&fs::read(&log).unwrap());
        let mut synced_files: HashMap<u64, usize> = HashMap::new();
        let mut synced_dirs: HashMap<PathBuf, usize> = HashMap::new();
        for (at, record) in records.iter().enumerate() {
            match record.kind {
                b'S' => drop(synced_files.insert(record.ino, at)),
                b'D' => drop(synced_dirs.insert(record.path.clone(), at)),
                _ => {}
            }
        }
        let is_durable = |at: usize, record: &LogRecord| match record.kind {
            b'W' | b'T' => synced_files.get(&record.ino).is_some_and(|&sync| at < sync),
            _ => {
                record.path.parent().and_then(|parent| synced_dirs.get(parent)).is_some_and(|&sync| at < sync)
            }
        };
        let unsynced: Vec<&LogRecord> = records
            .iter()
            .enumerate()
            .filter(|(at, record)| b"WTCU".contains(&record.kind) && !is_durable(*at, record))
            .map(|(_, record)| record)
            .collect();
        // A prefix of the unsynced writes of each file had reached the disk.
        let mut counts: HashMap<u64, usize> = HashMap::new();
        unsynced.iter().for_each(|record| *counts.entry(record.ino).or_default() += 1);
        let reached = |ino: u64| {
            let random =
                (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ino.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            if seed.is_multiple_of(2) { 0 } else { (random >> 33) as usize % (counts[&ino] + 1) }
        };
        let mut seen: HashMap<u64, usize> = HashMap::new();
        let lost: Vec<&&LogRecord> = unsynced
            .iter()
            .filter(|record| {
                let seen = seen.entry(record.ino).or_default();
                *seen += 1;
                reached(record.ino) < *seen
            })
            .collect();
        lost.iter().rev().for_each(|record| record.undo(&self.data()));
        fs::remove_file(log).unwrap();
        lost.len()
    }
}

/// A record of the layer's log.
struct LogRecord {
    kind: u8,
    ino: u64,
    offset: u64,
    old_size: u64,
    path: PathBuf,
    old: Vec<u8>,
}

impl LogRecord {
    fn undo(&self, root: &Path) {
        match self.kind {
            b'W' | b'T' => {
                let Some(path) = find_by_inode(root, self.ino) else { return };
                let file: File = OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(self.old_size).unwrap();
                file.write_all_at(&self.old, self.offset).unwrap();
            }
            b'C' => {
                if fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.ino) {
                    fs::remove_file(&self.path).unwrap();
                }
            }
            b'U' => {
                let saved = PathBuf::from(String::from_utf8(self.old.clone()).unwrap());
                // Its directory may have been removed as well.
                if !self.path.exists() && self.path.parent().is_some_and(Path::exists) {
                    fs::rename(saved, &self.path).unwrap();
                }
            }
            kind => panic!("unknown record kind {kind}"),
        }
    }
}

fn find_by_inode(dir: &Path, ino: u64) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.flatten().find_map(|entry| {
        let metadata = entry.metadata().ok()?;
        if metadata.is_dir() {
            find_by_inode(&entry.path(), ino)
        } else {
            (metadata.ino() == ino).then(|| entry.path())
        }
    })
}

fn read_log(mut bytes: &[u8]) -> Vec<LogRecord> {
    let mut records = Vec::new();
    // The last record may have been cut off by the kill.
    while let Some((meta, rest)) = bytes.split_first_chunk::<40>() {
        let word = |at: usize| u64::from_le_bytes(meta[at..at + 8].try_into().unwrap());
        let kind = meta[0];
        let path_len = word(0) >> 32;
        let path_len = path_len as usize;
        let len = word(24) as usize;
        let Some((path, rest)) = rest.split_at_checked(path_len) else { break };
        let Some((old, rest)) = rest.split_at_checked(len) else { break };
        let path = PathBuf::from(String::from_utf8(path.to_vec()).unwrap());
        records.push(LogRecord {
            kind,
            ino: word(8),
            offset: word(16),
            old_size: word(32),
            path,
            old: old.to_vec(),
        });
        bytes = rest;
    }
    records
}
