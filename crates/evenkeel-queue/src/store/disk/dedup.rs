//! Deduplication: the messages of the last window, by their deduplication ID. Makes sending idempotent.
//!
//! Guarantees: an entry is found for at least the window after it was written. Entries older than two windows are
//! dropped with their keyspace, without being read.

use fjall::{Database, Keyspace, KeyspaceCreateOptions};

use super::keyspaces::io;
use super::layout;
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::message::{DEDUP_WINDOW, DedupId};
use crate::store::StoreError;
use crate::time::UnixMillis;

const PREFIX: &str = "dedup_";

/// The entries of the current window and of the previous one.
#[derive(Clone, Default)]
pub(super) struct Dedup {
    current: Option<Keyspace>,
    previous: Option<Keyspace>,
    /// Number of the current keyspace.
    number: u64,
    /// Time of the first entry in the current keyspace since it was opened.
    started_at: Option<UnixMillis>,
    /// Latest time seen.
    latest: UnixMillis,
}

/// A sent message and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DedupEntry {
    pub(super) at: UnixMillis,
    pub(super) id: MessageId,
}

impl DedupEntry {
    /// Reports whether a message sent now would be a duplicate.
    pub(super) fn is_fresh(&self, now: UnixMillis) -> bool {
        now.since(self.at) < DEDUP_WINDOW
    }
}

impl Dedup {
    /// Opens the keyspaces, and deletes those that a crash left behind.
    pub(super) fn open(db: &Database) -> Result<Self, StoreError> {
        let names = db.list_keyspace_names();
        let mut numbers: Vec<u64> =
            names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect();
        numbers.sort_unstable();
        let number = numbers.last().copied().unwrap_or_default();
        let mut keyspaces = Vec::new();
        for number in numbers.iter().rev() {
            keyspaces.push(keyspace(db, *number)?);
        }
        let left_behind = keyspaces.split_off(keyspaces.len().min(2));
        for keyspace in left_behind {
            db.delete_keyspace(keyspace).map_err(io)?;
        }
        let mut keyspaces = keyspaces.into_iter();
        Ok(Self {
            current: keyspaces.next(),
            previous: keyspaces.next(),
            number,
            started_at: None,
            latest: UnixMillis::default(),
        })
    }

    pub(super) fn find(&self, queue: QueueId, key: &[u8]) -> Result<Option<DedupEntry>, StoreError> {
        for keyspace in self.current.iter().chain(&self.previous) {
            if let Some(value) = keyspace.get(key).map_err(io)? {
                return Ok(read_entry(queue, &value));
            }
        }
        Ok(None)
    }

    /// Returns the keyspace for an entry of this time.
    pub(super) fn current(&mut self, db: &Database, now: UnixMillis) -> Result<&Keyspace, StoreError> {
        self.latest = self.latest.max(now);
        self.started_at.get_or_insert(now);
        match &mut self.current {
            Some(current) => Ok(current),
            none => Ok(none.insert(keyspace(db, self.number)?)),
        }
    }

    /// Creates the keyspace of the next window, once the current one has ended; [`rotate`](Self::rotate) follows after a sync.
    pub(super) fn next_if_due(&self, db: &Database) -> Result<Option<Keyspace>, StoreError> {
        let is_due = self.started_at.is_some_and(|started| DEDUP_WINDOW <= self.latest.since(started));
        is_due.then(|| keyspace(db, self.number + 1)).transpose()
    }

    /// Starts the next window and drops the one before the last.
    pub(super) fn rotate(&mut self, db: &Database, next: Keyspace) -> Result<(), StoreError> {
        self.number += 1;
        self.started_at = None;
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

/// Returns the key of an entry.
pub(super) fn entry_key(queue: QueueId, id: &DedupId) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..4].copy_from_slice(&queue.0.to_be_bytes());
    bytes[4..].copy_from_slice(id.as_bytes());
    bytes
}

/// Returns the value of an entry.
pub(super) fn entry_value(entry: &DedupEntry) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&entry.at.0.to_be_bytes());
    bytes[8..12].copy_from_slice(&entry.id.key.0.to_be_bytes());
    bytes[12..].copy_from_slice(&entry.id.seq.0.to_be_bytes());
    bytes
}

fn read_entry(queue: QueueId, bytes: &[u8]) -> Option<DedupEntry> {
    let at = UnixMillis(layout::read_u64(bytes, 0)?);
    let key = KeyId(layout::read_u32(bytes, 8)?);
    let seq = Seq(layout::read_u64(bytes, 12)?);
    Some(DedupEntry { at, id: MessageId { queue, key, seq } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_for_a_window_and_dropped_after_two() {
        let dir = tempfile::TempDir::new().unwrap();
        let db = Database::builder(dir.path()).open().unwrap();
        let mut dedup = Dedup::open(&db).unwrap();
        let minute = |minutes: u64| UnixMillis(minutes * 60_000);
        let id = |n: u64| DedupId::new("", &n.to_string());
        for n in 0..20 {
            let at = minute(n);
            let entry = DedupEntry { at, id: MessageId { queue: QueueId(1), key: KeyId(2), seq: Seq(n) } };
            let current = dedup.current(&db, at).unwrap();
            current.insert(entry_key(QueueId(1), &id(n)), entry_value(&entry)).unwrap();
            if let Some(next) = dedup.next_if_due(&db).unwrap() {
                dedup.rotate(&db, next).unwrap();
            }
            // Reopening changes nothing.
            if n % 7 == 3 {
                dedup = Dedup::open(&db).unwrap();
            }
            for before in 0..=n {
                let found = dedup.find(QueueId(1), &entry_key(QueueId(1), &id(before))).unwrap();
                let is_fresh = found.is_some_and(|found| found.is_fresh(at));
                assert_eq!(is_fresh, n - before < 5, "{before} at minute {n}: {found:?}");
                assert_eq!(found.map(|found| found.id.seq), found.map(|_| Seq(before)));
            }
        }
        let stored =
            (0..20).filter(|&n| dedup.find(QueueId(1), &entry_key(QueueId(1), &id(n))).unwrap().is_some());
        assert!(stored.count() < 15, "no window was dropped");
        assert!(db.list_keyspace_names().len() <= 2);
    }
}
