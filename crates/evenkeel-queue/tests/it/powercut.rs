//! A process whose machine loses power again and again: whatever was not made durable is undone.
//!
//! A killed process leaves everything it wrote to the operating system, so it cannot show a missing flush. Here a
//! layer between the process and the C library notes how to undo each write and what was made durable since; after
//! the kill, what was not durable is undone, but for a part that the disk happened to have written.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::crash::{HASTY, LAST, Ledger, ROUNDS, STOPPED, lines_of, start};

#[test]
fn twenty_power_cuts_lose_nothing_that_was_confirmed() {
    let bench = Bench::new();
    let mut ledger = Ledger::default();
    let mut undone = 0;
    for round in 0..ROUNDS {
        let mut process = bench.start(&round.to_string());
        let mut out = BufReader::new(process.stdout.take().unwrap());
        ledger.read(&mut out, lines_of(round) / 2);
        // A line is read right after a flush, when everything is durable.
        std::thread::sleep(Duration::from_micros(round * 397 % 5_000));
        process.kill().unwrap();
        ledger.read(&mut out, u64::MAX);
        process.wait().unwrap();
        undone += bench.cut(round);
        ledger.die();
    }
    bench.end(&mut ledger);
    println!("{undone} writes undone");
    assert!(undone > 0, "the layer saw no write that was not durable");
    ledger.check();
}

/// The ledger notices what a queue loses that answers before anything is on disk; so it would notice a missing flush.
#[test]
fn a_queue_that_does_not_flush_is_caught() {
    let bench = Bench::new();
    let mut ledger = Ledger::default();
    let mut process = bench.start_with("0", &[(HASTY, OsStr::new("yes"))]);
    let mut out = BufReader::new(process.stdout.take().unwrap());
    ledger.read(&mut out, 2_000);
    process.kill().unwrap();
    ledger.read(&mut out, u64::MAX);
    process.wait().unwrap();
    let undone = bench.cut(0);
    ledger.die();
    bench.end(&mut ledger);
    println!("{undone} writes undone, {} faults", ledger.faults().len());
    assert!(!ledger.faults().is_empty(), "{undone} writes were undone and nobody noticed");
}

/// A flush that fails has an unknown outcome: the process stops and says error, and nothing confirmed is lost.
#[test]
fn a_failed_flush_stops_the_process_in_words() {
    let bench = Bench::new();
    let mut ledger = Ledger::default();
    let mut process = bench.start_with("0", &[("POWERCUT_FAIL_SYNC", OsStr::new("300"))]);
    ledger.read(&mut BufReader::new(process.stdout.take().unwrap()), u64::MAX);
    assert_eq!(process.wait().unwrap().code(), Some(STOPPED));
    assert!(ledger.fatal[0].contains("the outcome of the last writes is unknown"), "{:?}", ledger.fatal);
    assert!(ledger.sent() > 0, "nothing was sent before");
    bench.cut(0);
    ledger.die();
    bench.end(&mut ledger);
    assert_eq!(ledger.faults(), [] as [String; 0]);
}

/// A full disk is told to whoever sends; when there is room again, everything goes on.
#[test]
fn a_full_disk_is_told_and_passes() {
    let bench = Bench::new();
    let mut ledger = Ledger::default();
    let full = bench.folder.path().join("full");
    let mut process = bench.start_with("0", &[("POWERCUT_FULL", full.as_os_str())]);
    let mut out = BufReader::new(process.stdout.take().unwrap());
    ledger.read(&mut out, 300);
    fs::write(&full, "").unwrap();
    while ledger.refused.len() < 20 {
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
    println!("{} requests refused, the first: {:?}", ledger.refused.len(), ledger.refused[0]);
    assert!(
        ledger.refused.iter().all(|error| error.contains("disk is full: No space left")),
        "{:?}",
        ledger.refused
    );
    ledger.die();
    bench.end(&mut ledger);
    assert_eq!(ledger.faults(), [] as [String; 0]);
}

/// What a death leaves behind the last whole batch of the journal is cut off, whatever it is.
#[test]
fn a_garbled_tail_is_cut_off() {
    type Garble = fn(&[u8]) -> Vec<u8>;
    let garbage: &[(&str, Garble)] = &[
        ("noise", |_| (0..5_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()),
        ("the beginning of a batch", |valid| valid[..valid.len().min(700)].to_vec()),
        ("ones", |_| vec![0xff; 100]),
        ("nothing, not even room", |_| Vec::new()),
    ];
    for (name, garble) in garbage {
        let bench = Bench::new();
        let mut ledger = Ledger::default();
        let mut process = bench.start("0");
        let mut out = BufReader::new(process.stdout.take().unwrap());
        ledger.read(&mut out, 300);
        process.kill().unwrap();
        ledger.read(&mut out, u64::MAX);
        process.wait().unwrap();
        ledger.die();
        let journal = newest_journal(&bench.data());
        let mut bytes = fs::read(&journal).unwrap();
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        // A batch ends with a trailer whose last byte is not zero.
        bytes.truncate(end);
        let tail = garble(&bytes);
        bytes.extend(tail);
        fs::write(&journal, bytes).unwrap();
        println!("after {name}");
        bench.end(&mut ledger);
        assert_eq!(ledger.faults(), [] as [String; 0], "after {name}");
        assert!(ledger.sent() > 50);
    }
}

pub(crate) fn newest_journal(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join("queue")).unwrap().flatten().map(|entry| entry.path());
    let journals = files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    let number = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    journals.max_by_key(number).expect("a store has a journal")
}

/// A folder, and a layer that watches it.
pub(crate) struct Bench {
    pub(crate) folder: tempfile::TempDir,
    layer: PathBuf,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let layer = folder.path().join("powercut.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/powercut/powercut.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&layer).arg(source).args(["-ldl", "-lpthread"]);
        let built = compiler.status().expect("a C compiler is needed: Debian's gcc");
        assert!(built.success(), "the layer did not compile");
        fs::create_dir(folder.path().join("kept")).unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        Self { folder, layer }
    }

    fn start(&self, round: &str) -> std::process::Child {
        self.start_with(round, &[])
    }

    fn start_with(&self, round: &str, more: &[(&str, &OsStr)]) -> std::process::Child {
        let watched = self.watched();
        let mut set: Vec<(&str, &OsStr)> =
            watched.iter().map(|(name, path)| (*name, path.as_os_str())).collect();
        set.extend_from_slice(more);
        start(&self.data(), round, &set)
    }

    /// What a process is told so that the layer watches it.
    pub(crate) fn watched(&self) -> [(&'static str, PathBuf); 4] {
        let folder = self.folder.path();
        [
            ("LD_PRELOAD", self.layer.clone()),
            ("POWERCUT_ROOT", self.data()),
            ("POWERCUT_LOG", folder.join("log")),
            ("POWERCUT_KEEP", folder.join("kept")),
        ]
    }

    /// Lets the process take out whatever is left.
    fn end(&self, ledger: &mut Ledger) {
        let mut process = self.start(LAST);
        ledger.read(&mut BufReader::new(process.stdout.take().unwrap()), u64::MAX);
        assert!(process.wait().unwrap().success(), "the queue did not come to its end");
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Undoes what was not durable, and counts it; `seed` chooses what the disk had written nevertheless.
    fn cut(&self, seed: u64) -> usize {
        let log = self.folder.path().join("log");
        let notes = read_notes(&fs::read(&log).unwrap());
        let mut synced: HashMap<u64, usize> = HashMap::new();
        let mut folders: HashMap<PathBuf, usize> = HashMap::new();
        for (at, note) in notes.iter().enumerate() {
            match note.kind {
                b'S' => drop(synced.insert(note.ino, at)),
                b'D' => drop(folders.insert(note.path.clone(), at)),
                _ => {}
            }
        }
        let is_durable = |at: usize, note: &Note| match note.kind {
            b'W' | b'T' => synced.get(&note.ino).is_some_and(|&sync| at < sync),
            _ => note.path.parent().and_then(|parent| folders.get(parent)).is_some_and(|&sync| at < sync),
        };
        let loose: Vec<&Note> = notes
            .iter()
            .enumerate()
            .filter(|(at, note)| b"WTCU".contains(&note.kind) && !is_durable(*at, note))
            .map(|(_, note)| note)
            .collect();
        // Of each file a beginning of what was loose had reached the disk.
        let mut counts: HashMap<u64, usize> = HashMap::new();
        loose.iter().for_each(|note| *counts.entry(note.ino).or_default() += 1);
        let reached = |ino: u64| {
            let random =
                (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ino.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            if seed.is_multiple_of(2) { 0 } else { (random >> 33) as usize % (counts[&ino] + 1) }
        };
        let mut seen: HashMap<u64, usize> = HashMap::new();
        let lost: Vec<&&Note> = loose
            .iter()
            .filter(|note| {
                let seen = seen.entry(note.ino).or_default();
                *seen += 1;
                reached(note.ino) < *seen
            })
            .collect();
        lost.iter().rev().for_each(|note| note.undo(&self.data()));
        fs::remove_file(log).unwrap();
        lost.len()
    }
}

/// One line of what the layer wrote.
struct Note {
    kind: u8,
    ino: u64,
    offset: u64,
    old_size: u64,
    path: PathBuf,
    old: Vec<u8>,
}

impl Note {
    fn undo(&self, root: &Path) {
        match self.kind {
            b'W' | b'T' => {
                let Some(path) = find(root, self.ino) else { return };
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
                // Its folder may be gone with it.
                if !self.path.exists() && self.path.parent().is_some_and(Path::exists) {
                    fs::rename(saved, &self.path).unwrap();
                }
            }
            kind => panic!("a note of kind {kind}"),
        }
    }
}

fn find(folder: &Path, ino: u64) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let about = entry.metadata().ok()?;
        if about.is_dir() { find(&entry.path(), ino) } else { (about.ino() == ino).then(|| entry.path()) }
    })
}

fn read_notes(mut bytes: &[u8]) -> Vec<Note> {
    let mut notes = Vec::new();
    // The last one may have been cut off by the kill.
    while let Some((meta, rest)) = bytes.split_first_chunk::<40>() {
        let word = |at: usize| u64::from_le_bytes(meta[at..at + 8].try_into().unwrap());
        let kind = meta[0];
        let path_len = word(0) >> 32;
        let path_len = path_len as usize;
        let len = word(24) as usize;
        let Some((path, rest)) = rest.split_at_checked(path_len) else { break };
        let Some((old, rest)) = rest.split_at_checked(len) else { break };
        let path = PathBuf::from(String::from_utf8(path.to_vec()).unwrap());
        notes.push(Note {
            kind,
            ino: word(8),
            offset: word(16),
            old_size: word(32),
            path,
            old: old.to_vec(),
        });
        bytes = rest;
    }
    notes
}
