//! Keyspaces of an open data directory, and their recovery at start.
//!
//! Recovery replays fjall's journal (its write-ahead log), then scans the keys of all messages to count them. Readers
//! work on a snapshot.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use fjall::{
    AbstractTree, Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot,
};
use ring::rand::{SecureRandom, SystemRandom};

use super::catalog::{Catalog, PurgeCursor, QueueEntry};
use super::dedup::Dedup;
use super::layout::{self, FORMAT, FORMAT_MIN, KeyRecord};
use super::segments::{Segment, Segments, compacted_name, segment_name};
use crate::id::{Epoch, KeyId, QueueId, Seq};
use crate::message::MessageMeta;
use crate::queue_state::{StoredKey, StoredMessage};
use crate::store::StoreError;

/// Maximum size of the journal. A start replays it, which takes a few seconds and as much memory.
const JOURNAL_MAX: u64 = 128 << 20;
/// Key of the sequence number of the first message whose id is encrypted.
const PLAIN_IDS_BEFORE: &[u8] = b"plain_ids_before";
/// Sequence numbers are reserved on disk in blocks of this size, so that none is used twice.
pub(super) const SEQ_BLOCK: u64 = 1 << 20;

/// The keyspaces of a data directory.
#[derive(Clone)]
pub(super) struct Keyspaces {
    pub(super) db: Database,
    pub(super) meta: Keyspace,
    pub(super) keys: Keyspace,
    pub(super) state: Keyspace,
    pub(super) results: Keyspace,
    pub(super) results_due: Keyspace,
    pub(super) segments: Segments,
    pub(super) dedup: Dedup,
}

/// Number, size and range of a key's messages.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyExtent {
    first: Seq,
    last: Seq,
    pub(super) messages: u64,
    bytes: u64,
    /// Messages that have a TTL.
    expiring: Vec<MessageMeta>,
}

pub(super) type KeyExtents = HashMap<QueueId, HashMap<KeyId, KeyExtent>>;

/// Result of opening a data directory.
pub(super) struct Recovery {
    pub(super) keyspaces: Keyspaces,
    pub(super) catalog: Catalog,
    pub(super) extents: KeyExtents,
    pub(super) secret: [u8; 32],
    /// First message whose id is encrypted.
    pub(super) plain_ids_before: Seq,
}

impl Keyspaces {
    /// Opens or creates a data directory and recovers the catalog; reads keys, never bodies.
    pub(super) fn open(dir: &Path, cache_bytes: u64) -> Result<Recovery, StoreError> {
        let settings = Database::builder(dir).cache_size(cache_bytes).max_journaling_size(JOURNAL_MAX);
        let db = settings.open().map_err(|error| open_error(dir, error))?;
        let keyspace = |name| db.keyspace(name, KeyspaceCreateOptions::default).map_err(io);
        let meta = keyspace("meta")?;
        let keys = keyspace("keys")?;
        let state = keyspace("state")?;
        let results = keyspace("results")?;
        let results_due = keyspace("results_due")?;
        let secret = check_format(&db, &meta, dir)?;
        let seq = read_number(&meta, b"seq")?.unwrap_or(1);
        let plain_ids_before = read_or_init_bound(&db, &meta, seq)?;
        let segments = open_segments(&db, &meta, Seq(seq))?;
        let dedup = Dedup::open(&db)?;
        let mut keyspaces = Self { db, meta, keys, state, results, results_due, segments, dedup };
        let mut catalog = keyspaces.read_queues(seq)?;
        keyspaces.read_keys(&mut catalog)?;
        let extents = keyspaces.count(&mut catalog)?;
        // A segment whose compaction was interrupted would otherwise hide the messages in the compacted segment.
        keyspaces.drop_segments(Segment::is_empty)?;
        for (queue, keys) in &extents {
            for (key, extent) in keys {
                let entry = catalog.queues.get_mut(queue).and_then(|queue| queue.keys.get_mut(key));
                let entry = entry.ok_or_else(|| corrupt(&format!("key {} of queue {}", key.0, queue.0)))?;
                entry.live = extent.messages;
            }
        }
        Ok(Recovery { keyspaces, catalog, extents, secret, plain_ids_before })
    }

    /// Takes a snapshot, which later compactions and deletes do not affect.
    pub(super) fn snapshot(&self) -> StoreSnapshot {
        StoreSnapshot { snapshot: self.db.snapshot(), keyspaces: self.clone() }
    }

    /// Returns every keyspace in use.
    pub(super) fn all(&self) -> impl Iterator<Item = &Keyspace> {
        let fixed = [&self.meta, &self.keys, &self.state, &self.results, &self.results_due];
        let segments = self.segments.iter().map(|segment| &segment.keyspace);
        fixed.into_iter().chain(segments).chain(self.dedup.keyspaces())
    }

    fn read_queues(&self, seq: u64) -> Result<Catalog, StoreError> {
        let last_queue_id = read_number(&self.meta, b"made")?.unwrap_or(0);
        let last_queue_id = u32::try_from(last_queue_id).map_err(|_| corrupt("the last queue id"))?;
        let mut catalog = Catalog::new(last_queue_id, seq, self.read_results()?);
        for entry in self.meta.prefix(b"q") {
            let (key, value) = entry.into_inner().map_err(io)?;
            let id = QueueId(layout::read_u32(&key, 1).ok_or_else(|| corrupt("a queue's id"))?);
            let descriptor = serde_json::from_slice(&value)
                .map_err(|error| corrupt(&format!("queue {}: {error}", id.0)))?;
            let epoch = read_number(&self.meta, &layout::queue_meta_key(b'e', id))?.unwrap_or(0);
            let below = read_number(&self.meta, &layout::queue_meta_key(b'p', id))?.unwrap_or(0);
            catalog.queues.insert(id, QueueEntry::new(descriptor, Epoch(epoch), Seq(below)));
        }
        Ok(catalog)
    }

    fn read_keys(&self, catalog: &mut Catalog) -> Result<(), StoreError> {
        for entry in self.keys.iter() {
            let (key, value) = entry.into_inner().map_err(io)?;
            let (Some(queue), Some(id)) = (layout::read_u32(&key, 0), layout::read_u32(&key, 4)) else {
                return Err(corrupt("a key's id"));
            };
            let record = KeyRecord::decode(&value).ok_or_else(|| corrupt("a key's record"))?;
            catalog.insert_key(QueueId(queue), KeyId(id), record);
        }
        Ok(())
    }

    /// Counts all messages by key and by segment, and finds the purges to continue.
    fn count(&mut self, catalog: &mut Catalog) -> Result<KeyExtents, StoreError> {
        let mut extents = KeyExtents::new();
        let mut leftovers: BTreeMap<QueueId, Seq> = BTreeMap::new();
        for segment in self.segments.all_mut() {
            for entry in segment.keyspace.iter() {
                let (queue, key, meta) = message(entry)?;
                segment.live += 1;
                segment.bytes += u64::from(meta.size);
                let below = catalog.purged_below(queue);
                if meta.seq < below {
                    leftovers.insert(queue, below);
                } else {
                    extents.entry(queue).or_default().entry(key).or_default().add(&meta);
                }
            }
            segment.appended = segment.live;
        }
        catalog.purges = leftovers.into_iter().map(|(queue, below)| PurgeCursor::new(queue, below)).collect();
        Ok(extents)
    }

    /// Drops closed segments without a live message.
    pub(super) fn drop_segments(&mut self, is_dropped: impl Fn(&Segment) -> bool) -> Result<(), StoreError> {
        while let Some(index) = self.segments.segments.iter().position(&is_dropped) {
            let segment = &self.segments.segments[index];
            drop_keyspace(&self.db, segment.keyspace.clone())?;
            self.meta.remove(layout::segment_end_key(segment.first)).map_err(io)?;
            self.segments.segments.remove(index);
        }
        Ok(())
    }
}

/// A consistent view of the store.
pub(super) struct StoreSnapshot {
    pub(super) keyspaces: Keyspaces,
    pub(super) snapshot: Snapshot,
}

impl StoreSnapshot {
    pub(super) fn count_queue(
        &self,
        id: QueueId,
        seqs: Range<Seq>,
    ) -> Result<HashMap<KeyId, KeyExtent>, StoreError> {
        let mut extents: HashMap<KeyId, KeyExtent> = HashMap::new();
        for keyspace in self.keyspaces.segments.after(Seq(0)) {
            for entry in self.snapshot.prefix(keyspace, id.0.to_be_bytes()) {
                let (_, key, meta) = message(entry)?;
                if seqs.contains(&meta.seq) {
                    extents.entry(key).or_default().add(&meta);
                }
            }
        }
        Ok(extents)
    }

    /// Returns the keys of a queue, with the extents of their messages.
    pub(super) fn stored_keys(
        &self,
        id: QueueId,
        mut extents: HashMap<KeyId, KeyExtent>,
    ) -> Result<Vec<StoredKey>, StoreError> {
        let mut stored = Vec::new();
        for entry in self.snapshot.prefix(&self.keyspaces.keys, id.0.to_be_bytes()) {
            let (key, value) = entry.into_inner().map_err(io)?;
            let key = KeyId(layout::read_u32(&key, 4).ok_or_else(|| corrupt("a key's id"))?);
            let record = KeyRecord::decode(&value).ok_or_else(|| corrupt("a key's record"))?;
            let KeyExtent { first, last, messages: count, bytes, expiring } =
                extents.remove(&key).unwrap_or_default();
            let KeyRecord { name, rule, requested_weight } = record;
            stored.push(StoredKey { key, name, rule, requested_weight, first, last, count, bytes, expiring });
        }
        Ok(stored)
    }

    /// Returns the delivery states of a queue's messages.
    pub(super) fn stored_messages(
        &self,
        id: QueueId,
        seqs: Range<Seq>,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let mut stored = Vec::new();
        for entry in self.snapshot.prefix(&self.keyspaces.state, id.0.to_be_bytes()) {
            let (message_key, value) = entry.into_inner().map_err(io)?;
            let (_, key, meta) =
                layout::read_message_key(&message_key).ok_or_else(|| corrupt("a state's key"))?;
            // A state may outlive its message: a delivery may be released after a purge.
            let segment = &self.keyspaces.segments.containing(meta.seq).keyspace;
            let is_live = self.snapshot.contains_key(segment, &*message_key).map_err(io)?;
            if is_live && seqs.contains(&meta.seq) {
                stored.push(layout::read_state(key, meta, &value).ok_or_else(|| corrupt("a state"))?);
            }
        }
        Ok(stored)
    }
}

impl KeyExtent {
    fn add(&mut self, meta: &MessageMeta) {
        self.first = if self.messages == 0 { meta.seq } else { self.first.min(meta.seq) };
        self.last = self.last.max(meta.seq);
        self.messages += 1;
        self.bytes += u64::from(meta.size);
        self.expiring.extend(meta.expires_at.map(|_| *meta));
    }
}

fn message(entry: Guard) -> Result<(QueueId, KeyId, MessageMeta), StoreError> {
    let key = entry.key().map_err(io)?;
    layout::read_message_key(&key).ok_or_else(|| corrupt("a message's key"))
}

/// Reads the sequence number of the first message whose id is encrypted; in a directory of an earlier version, which does
/// not have it, and in a new one, it is the next.
fn read_or_init_bound(db: &Database, meta: &Keyspace, next: u64) -> Result<Seq, StoreError> {
    if let Some(bound) = read_number(meta, PLAIN_IDS_BEFORE)? {
        return Ok(Seq(bound));
    }
    meta.insert(PLAIN_IDS_BEFORE, next.to_be_bytes()).map_err(io)?;
    db.persist(PersistMode::SyncAll).map_err(io)?;
    Ok(Seq(next))
}

/// Checks the format of a data directory and returns its secret; initializes a new directory.
fn check_format(db: &Database, meta: &Keyspace, dir: &Path) -> Result<[u8; 32], StoreError> {
    match meta.get(b"format").map_err(io)?.map(|value| layout::read_u32(&value, 0)) {
        Some(Some(found @ FORMAT_MIN..=FORMAT)) => {
            if found < FORMAT {
                // An older version must not open the upgraded store.
                meta.insert(b"format", FORMAT.to_be_bytes()).map_err(io)?;
                db.persist(PersistMode::SyncAll).map_err(io)?;
            }
            let secret = meta.get(b"secret").map_err(io)?;
            secret.and_then(|bytes| bytes.as_ref().try_into().ok()).ok_or_else(|| corrupt("the secret"))
        }
        Some(found) => Err(StoreError::Io(format!(
            "{} was written in format {}, this version reads formats {FORMAT_MIN} to {FORMAT}",
            dir.display(),
            found.map_or("unknown".into(), |found| found.to_string()),
        ))),
        None => {
            let mut secret = [0; 32];
            let filled = SystemRandom::new().fill(&mut secret);
            filled.map_err(|_| StoreError::Io("the system provides no random numbers".into()))?;
            let mut batch = db.batch();
            batch.insert(meta, b"format".as_slice(), FORMAT.to_be_bytes().as_slice());
            batch.insert(meta, b"secret".as_slice(), secret.as_slice());
            batch.durability(Some(PersistMode::SyncAll)).commit().map_err(io)?;
            Ok(secret)
        }
    }
}

fn open_segments(db: &Database, meta: &Keyspace, next: Seq) -> Result<Segments, StoreError> {
    let mut segments = Vec::new();
    let mut compacted_numbers = Vec::new();
    for name in db.list_keyspace_names() {
        let number_after = |prefix| name.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
        if let Some(first) = number_after("m_") {
            let end = read_number(meta, &layout::segment_end_key(Seq(first)))?.map(Seq);
            segments.push(Segment::open(db, &name, Seq(first), end).map_err(io)?);
        } else if let Some(number) = number_after("old_") {
            compacted_numbers.push(number);
        }
    }
    segments.sort_by_key(|segment| segment.first);
    // A segment that was open when the store stopped ends where the next block of sequence numbers starts.
    for segment in segments.iter_mut().filter(|segment| segment.end.is_none() && segment.first < next) {
        meta.insert(layout::segment_end_key(segment.first), next.0.to_be_bytes()).map_err(io)?;
        segment.end = Some(next);
    }
    if segments.last().is_none_or(|segment| segment.first != next) {
        segments.push(Segment::open(db, &segment_name(next), next, None).map_err(io)?);
    }
    let compacted_number = compacted_numbers.into_iter().max().unwrap_or(0);
    let compacted = Segment::open(db, &compacted_name(compacted_number), Seq(0), Some(Seq(0))).map_err(io)?;
    Ok(Segments { segments, compacted, compacted_number })
}

pub(super) fn read_number(meta: &Keyspace, key: &[u8]) -> Result<Option<u64>, StoreError> {
    let Some(value) = meta.get(key).map_err(io)? else { return Ok(None) };
    layout::read_u64(&value, 0).map(Some).ok_or_else(|| corrupt("a number"))
}

/// Deletes a keyspace.
///
/// fjall keeps the files of a deleted keyspace open, and so their disk space, unless its tables were dropped before.
pub(super) fn drop_keyspace(db: &Database, keyspace: Keyspace) -> Result<(), StoreError> {
    keyspace.tree.drop_range::<&[u8], _>(..).map_err(|error| io(fjall::Error::Storage(error)))?;
    db.delete_keyspace(keyspace).map_err(io)
}

/// Converts a fjall error; of an I/O error only the cause is kept, without fjall's wrapper.
pub(super) fn io(error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::NoRoom(error.to_string()),
            _ => StoreError::Io(error.to_string()),
        },
        error => StoreError::Io(error.to_string()),
    }
}

pub(super) fn corrupt(what: &str) -> StoreError {
    StoreError::Io(format!("{what} is corrupt"))
}

fn open_error(dir: &Path, error: fjall::Error) -> StoreError {
    if matches!(error, fjall::Error::Locked) {
        return StoreError::Io(format!("{} is used by another process", dir.display()));
    }
    match io(error) {
        StoreError::Io(error) => StoreError::Io(format!("{} cannot be opened: {error}", dir.display())),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::cost::Cost;

    use super::*;
    use crate::message::Payload;
    use crate::store::QueueDescriptor;
    use crate::time::UnixMillis;

    /// Simulates a crash after the copy to the compacted segment and before the segment was dropped.
    #[test]
    fn a_segment_emptied_before_a_crash_hides_no_message() {
        let dir = tempfile::TempDir::new().unwrap();
        let open = || Keyspaces::open(&dir.path().join("queue"), 1 << 20).unwrap().keyspaces;
        let meta = MessageMeta {
            seq: Seq(5),
            sent_at: UnixMillis(1),
            size: 4,
            cost: Cost(1),
            from: None,
            expires_at: None,
        };
        let first = open();
        let mut batch = first.db.batch();
        let descriptor = QueueDescriptor::for_test();
        batch.insert(
            &first.meta,
            layout::queue_meta_key(b'q', QueueId(1)),
            serde_json::to_vec(&descriptor).unwrap(),
        );
        let record = KeyRecord { name: "a".into(), rule: crate::KeyRule::default(), requested_weight: None };
        batch.insert(&first.keys, layout::key_prefix(QueueId(1), KeyId(0)), record.encode());
        let value = layout::message_value(&Payload { headers: "".into(), body: "body".into() });
        let key = layout::message_key(QueueId(1), KeyId(0), &meta);
        batch.insert(&first.segments.compacted.keyspace, key.as_slice(), value);
        batch.insert(&first.meta, b"seq".as_slice(), 100_u64.to_be_bytes().as_slice());
        batch.durability(Some(PersistMode::SyncAll)).commit().unwrap();
        drop(first);
        let keyspaces = open();
        assert_eq!(
            keyspaces.segments.containing(meta.seq).first,
            Seq(0),
            "the message is looked up in the empty segment"
        );
        assert_eq!(keyspaces.segments.segments.len(), 1, "the empty segment was not dropped");
    }

    #[test]
    fn a_store_of_the_earlier_format_is_upgraded_and_one_of_a_later_format_is_rejected() {
        let dir = tempfile::TempDir::new().unwrap();
        let open = || Keyspaces::open(&dir.path().join("queue"), 1 << 20);
        let write = |format: u32| {
            let keyspaces = open().unwrap().keyspaces;
            keyspaces.meta.insert(b"format", format.to_be_bytes()).unwrap();
            keyspaces.db.persist(PersistMode::SyncAll).unwrap();
        };
        write(FORMAT_MIN);
        let upgraded = open().unwrap().keyspaces;
        assert_eq!(&*upgraded.meta.get(b"format").unwrap().unwrap(), FORMAT.to_be_bytes());
        drop(upgraded);
        for format in [FORMAT_MIN - 1, FORMAT + 1] {
            write(format);
            let StoreError::Io(error) = open().err().unwrap() else { panic!("another error was returned") };
            let text = format!("was written in format {format}, this version reads formats {FORMAT_MIN} to");
            assert!(error.contains(&text), "{error}");
            let db = Database::builder(dir.path().join("queue")).open().unwrap();
            let meta = db.keyspace("meta", KeyspaceCreateOptions::default).unwrap();
            meta.insert(b"format", FORMAT.to_be_bytes()).unwrap();
            db.persist(PersistMode::SyncAll).unwrap();
        }
    }
}
