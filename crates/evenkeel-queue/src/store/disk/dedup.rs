//! Which messages were sent lately, by what their senders called them.
//!
//! Bound: an entry is found for at least the window after it was written, and what is older than two windows of use
//! is dropped whole, without a look at it.

use fjall::{Database, Keyspace, KeyspaceCreateOptions};

use super::keyspaces::io;
use super::layout;
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::message::{DEDUP_WINDOW, DedupId};
use crate::store::StoreError;
use crate::time::UnixMillis;

const PREFIX: &str = "dedup_";

/// The entries of this window and of the one before.
#[derive(Clone, Default)]
pub(super) struct Dedup {
    current: Option<Keyspace>,
    previous: Option<Keyspace>,
    /// The current one's number.
    number: u64,
    /// When the first entry was written to the current one since it was opened.
    began: Option<UnixMillis>,
    /// The latest time it was handed.
    latest: UnixMillis,
}

/// A message that was sent, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DedupEntry {
    pub(super) at: UnixMillis,
    pub(super) id: MessageId,
}

impl DedupEntry {
    /// Whether a message sent at this time is the same.
    pub(super) fn is_fresh(&self, now: UnixMillis) -> bool {
        now.since(self.at) < DEDUP_WINDOW
    }
}

impl Dedup {
    /// Finds what there is in a folder, and drops what a death has left.
    pub(super) fn open(db: &Database) -> Result<Self, StoreError> {
        let names = db.list_keyspace_names();
        let mut numbers: Vec<u64> =
            names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect();
        numbers.sort_unstable();
        let number = numbers.last().copied().unwrap_or_default();
        let mut opened = Vec::new();
        for number in numbers.iter().rev() {
            opened.push(keyspace(db, *number)?);
        }
        let left_behind = opened.split_off(opened.len().min(2));
        for keyspace in left_behind {
            db.delete_keyspace(keyspace).map_err(io)?;
        }
        let mut opened = opened.into_iter();
        Ok(Self {
            current: opened.next(),
            previous: opened.next(),
            number,
            began: None,
            latest: UnixMillis::default(),
        })
    }

    pub(super) fn find(&self, queue: QueueId, place: &[u8]) -> Result<Option<DedupEntry>, StoreError> {
        for keyspace in self.current.iter().chain(&self.previous) {
            if let Some(value) = keyspace.get(place).map_err(io)? {
                return Ok(read_entry(queue, &value));
            }
        }
        Ok(None)
    }

    /// Says where an entry of this time is to be written.
    pub(super) fn current(&mut self, db: &Database, now: UnixMillis) -> Result<&Keyspace, StoreError> {
        self.latest = self.latest.max(now);
        self.began.get_or_insert(now);
        match &mut self.current {
            Some(current) => Ok(current),
            none => Ok(none.insert(keyspace(db, self.number)?)),
        }
    }

    /// Makes a place for another window once the current one has lasted; on disk, it is to be turned to.
    pub(super) fn next_if_due(&self, db: &Database) -> Result<Option<Keyspace>, StoreError> {
        let is_due = self.began.is_some_and(|began| DEDUP_WINDOW <= self.latest.since(began));
        is_due.then(|| keyspace(db, self.number + 1)).transpose()
    }

    /// Begins another window; what was before the last is dropped.
    pub(super) fn turn(&mut self, db: &Database, next: Keyspace) -> Result<(), StoreError> {
        self.number += 1;
        self.began = None;
        let before = core::mem::replace(&mut self.previous, self.current.replace(next));
        match before {
            Some(before) => db.delete_keyspace(before).map_err(io),
            None => Ok(()),
        }
    }
}

fn keyspace(db: &Database, number: u64) -> Result<Keyspace, StoreError> {
    db.keyspace(&format!("{PREFIX}{number}"), KeyspaceCreateOptions::default).map_err(io)
}

/// The key of an entry.
pub(super) fn place(queue: QueueId, id: &DedupId) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..4].copy_from_slice(&queue.0.to_be_bytes());
    bytes[4..].copy_from_slice(id.as_bytes());
    bytes
}

/// The value of an entry.
pub(super) fn entry_value(entry: &DedupEntry) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&entry.at.0.to_be_bytes());
    bytes[8..12].copy_from_slice(&entry.id.key.0.to_be_bytes());
    bytes[12..].copy_from_slice(&entry.id.seq.0.to_be_bytes());
    bytes
}

fn read_entry(queue: QueueId, bytes: &[u8]) -> Option<DedupEntry> {
    let at = UnixMillis(layout::long(bytes, 0)?);
    let key = KeyId(layout::word(bytes, 8)?);
    let seq = Seq(layout::long(bytes, 12)?);
    Some(DedupEntry { at, id: MessageId { queue, key, seq } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_for_a_window_and_dropped_after_two() {
        let folder = tempfile::TempDir::new().unwrap();
        let db = Database::builder(folder.path()).open().unwrap();
        let mut dedup = Dedup::open(&db).unwrap();
        let minute = |minutes: u64| UnixMillis(minutes * 60_000);
        let id = |n: u64| DedupId::new("", &n.to_string());
        for n in 0..20 {
            let at = minute(n);
            let entry = DedupEntry { at, id: MessageId { queue: QueueId(1), key: KeyId(2), seq: Seq(n) } };
            let current = dedup.current(&db, at).unwrap();
            current.insert(place(QueueId(1), &id(n)), entry_value(&entry)).unwrap();
            if let Some(next) = dedup.next_if_due(&db).unwrap() {
                dedup.turn(&db, next).unwrap();
            }
            // Opened again it is the same.
            if n % 7 == 3 {
                dedup = Dedup::open(&db).unwrap();
            }
            for before in 0..=n {
                let found = dedup.find(QueueId(1), &place(QueueId(1), &id(before))).unwrap();
                let counts = found.is_some_and(|found| found.is_fresh(at));
                assert_eq!(counts, n - before < 5, "{before} at minute {n}: {found:?}");
                assert_eq!(found.map(|found| found.id.seq), found.map(|_| Seq(before)));
            }
        }
        let kept = (0..20).filter(|&n| dedup.find(QueueId(1), &place(QueueId(1), &id(n))).unwrap().is_some());
        assert!(kept.count() < 15, "nothing was dropped");
        assert!(db.list_keyspace_names().len() <= 2);
    }
}
