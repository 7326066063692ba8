//! Deduplication index: maps the deduplication IDs of the last [`DEDUP_WINDOW`] to the messages sent with them, which
//! makes sends idempotent.
//!
//! Guarantees: an entry is found for at least [`DEDUP_WINDOW`] after it was written. Keyspaces rotate when an entry is
//! written at least one window after the keyspace's first; entries are dropped with their keyspace, two rotations
//! later, without being read.

use fjall::{Database, Keyspace, KeyspaceCreateOptions};

use super::keyspaces::{drop_keyspace, io};
use super::layout;
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::message::{DEDUP_WINDOW, DedupId};
use crate::store::StoreError;
use crate::time::UnixMillis;

const PREFIX: &str = "dedup_";

/// The current and the previous keyspace of entries; each spans at least one window.
#[derive(Clone, Default)]
pub(super) struct Dedup {
    current: Option<Keyspace>,
    previous: Option<Keyspace>,
    current_number: u64,
    /// Time of the first entry that this process wrote to the current keyspace; a restart postpones the rotation.
    started_at: Option<UnixMillis>,
    /// Latest time of a written entry.
    latest: UnixMillis,
}

/// The ID of a sent message and when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DedupEntry {
    pub(super) at: UnixMillis,
    pub(super) id: MessageId,
}

impl DedupEntry {
    /// Reports whether a message sent at `now` with the same deduplication ID is a duplicate.
    pub(super) fn is_within_window(&self, now: UnixMillis) -> bool {
        now.since(self.at) < DEDUP_WINDOW
    }
}

impl Dedup {
    /// Opens the two newest keyspaces and deletes older ones, which only a crash leaves behind.
    pub(super) fn open(db: &Database) -> Result<Self, StoreError> {
        let names = db.list_keyspace_names();
        let mut numbers: Vec<u64> =
            names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect();
        numbers.sort_unstable();
        let current_number = numbers.last().copied().unwrap_or_default();
        let mut keyspaces = Vec::new();
        for number in numbers.iter().rev() {
            keyspaces.push(open_keyspace(db, *number)?);
        }
        let outdated = keyspaces.split_off(keyspaces.len().min(2));
        for keyspace in outdated {
            drop_keyspace(db, keyspace)?;
        }
        let mut keyspaces = keyspaces.into_iter();
        Ok(Self {
            current: keyspaces.next(),
            previous: keyspaces.next(),
            current_number,
            started_at: None,
            latest: UnixMillis::default(),
        })
    }

    pub(super) fn keyspaces(&self) -> impl Iterator<Item = &Keyspace> {
        self.current.iter().chain(&self.previous)
    }

    pub(super) fn find(&self, queue: QueueId, key: &[u8]) -> Result<Option<DedupEntry>, StoreError> {
        for keyspace in self.keyspaces() {
            if let Some(value) = keyspace.get(key).map_err(io)? {
                return Ok(read_entry(queue, &value));
            }
        }
        Ok(None)
    }

    /// Returns the current keyspace, creating it if needed, and records `now` for the rotation.
    pub(super) fn current_for_write(
        &mut self,
        db: &Database,
        now: UnixMillis,
    ) -> Result<&Keyspace, StoreError> {
        self.latest = self.latest.max(now);
        self.started_at.get_or_insert(now);
        match &mut self.current {
            Some(current) => Ok(current),
            none => Ok(none.insert(open_keyspace(db, self.current_number)?)),
        }
    }

    /// Creates the next keyspace once the current one spans a window. The caller syncs it to disk and then calls
    /// [`rotate`](Self::rotate).
    pub(super) fn create_next_if_due(&self, db: &Database) -> Result<Option<Keyspace>, StoreError> {
        let is_due = self.started_at.is_some_and(|started| self.latest.since(started) >= DEDUP_WINDOW);
        is_due.then(|| open_keyspace(db, self.current_number + 1)).transpose()
    }

    /// Makes `next` the current keyspace and the current keyspace the previous one; deletes the old previous one.
    pub(super) fn rotate(&mut self, db: &Database, next: Keyspace) -> Result<(), StoreError> {
        self.current_number += 1;
        self.started_at = None;
        let oldest = core::mem::replace(&mut self.previous, self.current.replace(next));
        match oldest {
            Some(oldest) => drop_keyspace(db, oldest),
            None => Ok(()),
        }
    }
}

fn open_keyspace(db: &Database, number: u64) -> Result<Keyspace, StoreError> {
    db.keyspace(&format!("{PREFIX}{number}"), KeyspaceCreateOptions::default).map_err(io)
}

/// Encodes an entry's key: the queue (4 bytes, big-endian) and the deduplication ID (32 bytes).
pub(super) fn entry_key(queue: QueueId, id: &DedupId) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..4].copy_from_slice(&queue.0.to_be_bytes());
    bytes[4..].copy_from_slice(id.as_bytes());
    bytes
}

/// Encodes an entry's value: time (8 bytes), key (4) and sequence number (8), all big-endian.
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
    fn an_entry_is_found_for_a_window_and_old_keyspaces_are_dropped() {
        let dir = tempfile::TempDir::new().unwrap();
        let db = Database::builder(dir.path()).open().unwrap();
        let mut dedup = Dedup::open(&db).unwrap();
        let minute = |minutes: u64| UnixMillis(minutes * 60_000);
        let id = |n: u64| DedupId::new("", &n.to_string());
        for n in 0..20 {
            let at = minute(n);
            let entry = DedupEntry { at, id: MessageId { queue: QueueId(1), key: KeyId(2), seq: Seq(n) } };
            let current = dedup.current_for_write(&db, at).unwrap();
            current.insert(entry_key(QueueId(1), &id(n)), entry_value(&entry)).unwrap();
            if let Some(next) = dedup.create_next_if_due(&db).unwrap() {
                dedup.rotate(&db, next).unwrap();
            }
            // A restart must not lose an entry.
            if n % 7 == 3 {
                dedup = Dedup::open(&db).unwrap();
            }
            for sent in 0..=n {
                let found = dedup.find(QueueId(1), &entry_key(QueueId(1), &id(sent))).unwrap();
                let is_duplicate = found.is_some_and(|found| found.is_within_window(at));
                assert_eq!(is_duplicate, n - sent < 5, "message {sent} at minute {n}: {found:?}");
                assert_eq!(found.map(|found| found.id.seq), found.map(|_| Seq(sent)));
            }
        }
        let stored =
            (0..20).filter(|&n| dedup.find(QueueId(1), &entry_key(QueueId(1), &id(n))).unwrap().is_some());
        assert!(stored.count() < 15, "no keyspace was dropped");
        assert!(db.list_keyspace_names().len() <= 2);
    }
}
