//! A folder, opened: its keyspaces, and what the writer must know of them.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use ring::rand::{SecureRandom, SystemRandom};

use super::dedup::Dedup;
use super::layout::{self, FORMAT, FORMAT_MIN, KeyRecord};
use super::segments::{Segment, Segments, generation_name, old_name};
use crate::id::{Epoch, KeyId, QueueId, Seq};
use crate::message::MessageMeta;
use crate::queue_state::{StoredKey, StoredMessage};
use crate::store::result_index::ResultIndex;
use crate::store::{AppendListener, QueueDescriptor, QueueRecord, StoreError};
use crate::time::UnixMillis;

/// What a start has to read again at most: some seconds, and as much memory.
const JOURNAL_MAX: u64 = 128 << 20;
/// Sequence numbers are set aside in blocks of this many, so that none is ever given twice.
pub(super) const SEQ_BLOCK: u64 = 1 << 20;

/// The keyspaces of a folder.
#[derive(Clone)]
pub(super) struct Keyspaces {
    pub(super) db: Database,
    pub(super) meta: Keyspace,
    pub(super) keys: Keyspace,
    pub(super) state: Keyspace,
    pub(super) results: Keyspace,
    pub(super) results_due: Keyspace,
    pub(super) shelves: Segments,
    pub(super) dedup: Dedup,
}

/// What the writer knows of a folder.
pub(super) struct Catalog {
    pub(super) queues: BTreeMap<QueueId, QueueEntry>,
    /// The last queue's id.
    pub(super) made: u32,
    /// The next message's number.
    pub(super) seq: u64,
    /// Numbers from here on have not been set aside.
    pub(super) seq_end: u64,
    /// Results that expire before this are forgotten.
    pub(super) results_swept: UnixMillis,
    /// Results that are kept.
    pub(super) results: ResultIndex,
    /// Queues whose messages are to be removed.
    pub(super) swept: Vec<PurgeCursor>,
    /// Whether a write failed before: what it was to remove may be gone, and be asked to go again.
    pub(super) is_reopened: bool,
}

/// Messages to be removed, shelf by shelf.
pub(super) struct PurgeCursor {
    pub(super) queue: QueueId,
    /// Those before this one.
    pub(super) below: Seq,
    /// The first message of the shelf it has come to.
    pub(super) shelf: Seq,
    /// Where it goes on.
    pub(super) from: Vec<u8>,
}

impl PurgeCursor {
    pub(super) fn new(queue: QueueId, below: Seq) -> Self {
        Self { queue, below, shelf: Seq(0), from: queue.0.to_be_bytes().to_vec() }
    }
}

/// What the writer knows of a queue.
pub(super) struct QueueEntry {
    pub(super) body: QueueDescriptor,
    pub(super) epoch: Epoch,
    pub(super) purged_below: Seq,
    pub(super) names: HashMap<Arc<str>, KeyId>,
    pub(super) keys: HashMap<KeyId, KeyEntry>,
    pub(super) made: u32,
    pub(super) tail: Option<AppendListener>,
}

/// What the writer knows of a key.
pub(super) struct KeyEntry {
    pub(super) record: KeyRecord,
    pub(super) live: u64,
}

/// What of a key's messages is there.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyExtent {
    first: Seq,
    last: Seq,
    pub(super) messages: u64,
    bytes: u64,
    /// Those that have a time of their own.
    expiring: Vec<MessageMeta>,
}

/// What of each key's messages is there.
pub(super) type KeyExtents = HashMap<QueueId, HashMap<KeyId, KeyExtent>>;

/// A folder that was opened, and what was read of it.
pub(super) struct Recovery {
    pub(super) opened: Keyspaces,
    pub(super) ledger: Catalog,
    pub(super) counts: KeyExtents,
    pub(super) secret: [u8; 32],
}

impl Keyspaces {
    /// Opens a folder, or makes one, and reads what the writer must know: keys, never bodies.
    pub(super) fn open(folder: &Path, cache_bytes: u64) -> Result<Recovery, StoreError> {
        let settings = Database::builder(folder).cache_size(cache_bytes).max_journaling_size(JOURNAL_MAX);
        let db = settings.open().map_err(|why| unusable(folder, why))?;
        let keyspace = |name| db.keyspace(name, KeyspaceCreateOptions::default).map_err(io);
        let meta = keyspace("meta")?;
        let keys = keyspace("keys")?;
        let state = keyspace("state")?;
        let results = keyspace("results")?;
        let results_due = keyspace("results_due")?;
        let secret = check_format(&db, &meta, folder)?;
        let seq = number(&meta, b"seq")?.unwrap_or(1);
        let shelves = open_shelves(&db, &meta, Seq(seq))?;
        let dedup = Dedup::open(&db)?;
        let mut opened = Self { db, meta, keys, state, results, results_due, shelves, dedup };
        let mut ledger = opened.read_queues(seq)?;
        opened.read_keys(&mut ledger)?;
        let counts = opened.count(&mut ledger)?;
        opened.drop_emptied()?;
        for (queue, keys) in &counts {
            for (key, count) in keys {
                let kept = ledger.queues.get_mut(queue).and_then(|queue| queue.keys.get_mut(key));
                let kept = kept.ok_or_else(|| corrupt(&format!("key {} of queue {}", key.0, queue.0)))?;
                kept.live = count.messages;
            }
        }
        Ok(Recovery { opened, ledger, counts, secret })
    }

    /// Holds on to what is there now; messages may be moved from shelf to shelf and be removed afterwards.
    pub(super) fn still(&self) -> StoreSnapshot {
        StoreSnapshot { snapshot: self.db.snapshot(), opened: self.clone() }
    }

    fn read_queues(&self, seq: u64) -> Result<Catalog, StoreError> {
        let mut queues = BTreeMap::new();
        for entry in self.meta.prefix(b"q") {
            let (key, value) = entry.into_inner().map_err(io)?;
            let id = QueueId(layout::word(&key, 1).ok_or_else(|| corrupt("the id of a queue"))?);
            let body =
                serde_json::from_slice(&value).map_err(|why| corrupt(&format!("queue {}: {why}", id.0)))?;
            let epoch = number(&self.meta, &layout::of_queue(b'e', id))?.unwrap_or(0);
            let below = number(&self.meta, &layout::of_queue(b'p', id))?.unwrap_or(0);
            let queue = QueueEntry {
                body,
                epoch: Epoch(epoch),
                purged_below: Seq(below),
                names: HashMap::new(),
                keys: HashMap::new(),
                made: 0,
                tail: None,
            };
            queues.insert(id, queue);
        }
        let made = number(&self.meta, b"made")?.unwrap_or(0);
        let made = u32::try_from(made).map_err(|_| corrupt("the number of queues"))?;
        // Nothing is known of how far the last block was used, so it is not used further.
        let results_swept = UnixMillis(0);
        let results = self.read_results()?;
        Ok(Catalog {
            queues,
            made,
            seq,
            seq_end: seq,
            results_swept,
            results,
            swept: Vec::new(),
            is_reopened: false,
        })
    }

    fn read_keys(&self, ledger: &mut Catalog) -> Result<(), StoreError> {
        for entry in self.keys.iter() {
            let (key, value) = entry.into_inner().map_err(io)?;
            let (Some(queue), Some(id)) = (layout::word(&key, 0), layout::word(&key, 4)) else {
                return Err(corrupt("the id of a key"));
            };
            let record = KeyRecord::decode(&value).ok_or_else(|| corrupt("a key"))?;
            // A queue that was removed has left it.
            let Some(queue) = ledger.queues.get_mut(&QueueId(queue)) else { continue };
            queue.made = queue.made.max(id + 1);
            queue.names.insert(record.name.clone(), KeyId(id));
            queue.keys.insert(KeyId(id), KeyEntry { record, live: 0 });
        }
        Ok(())
    }

    /// Counts every message, by its key and by its shelf.
    fn count(&mut self, ledger: &mut Catalog) -> Result<KeyExtents, StoreError> {
        let mut counts = KeyExtents::new();
        let mut leftovers: BTreeMap<QueueId, Seq> = BTreeMap::new();
        for shelf in self.shelves.all_mut() {
            for entry in shelf.keyspace.iter() {
                let (queue, key, header) = message(entry)?;
                shelf.live += 1;
                shelf.bytes += u64::from(header.size);
                let below = ledger.purged_below(queue);
                if header.seq < below {
                    leftovers.insert(queue, below);
                } else {
                    counts.entry(queue).or_default().entry(key).or_default().add(&header);
                }
            }
            shelf.appended = shelf.live;
        }
        ledger.swept = leftovers.into_iter().map(|(queue, below)| PurgeCursor::new(queue, below)).collect();
        Ok(counts)
    }

    /// Drops generations in which nothing lives.
    ///
    /// One that was being emptied when the process ended would hide what was copied to the old shelf.
    pub(super) fn drop_emptied(&mut self) -> Result<(), StoreError> {
        let emptied = |shelf: &Segment| shelf.live == 0 && shelf.end.is_some();
        while let Some(at) = self.shelves.segments.iter().position(emptied) {
            let shelf = self.shelves.segments.remove(at);
            self.meta.remove(layout::of_generation(shelf.first)).map_err(io)?;
            self.db.delete_keyspace(shelf.keyspace).map_err(io)?;
        }
        Ok(())
    }
}

/// A folder as it was at one moment.
pub(super) struct StoreSnapshot {
    pub(super) opened: Keyspaces,
    pub(super) snapshot: Snapshot,
}

impl StoreSnapshot {
    /// Counts the messages of one queue.
    pub(super) fn count_queue(
        &self,
        id: QueueId,
        within: Range<Seq>,
    ) -> Result<HashMap<KeyId, KeyExtent>, StoreError> {
        let mut counts: HashMap<KeyId, KeyExtent> = HashMap::new();
        for keyspace in self.opened.shelves.after(Seq(0)) {
            for entry in self.snapshot.prefix(keyspace, id.0.to_be_bytes()) {
                let (_, key, header) = message(entry)?;
                if within.contains(&header.seq) {
                    counts.entry(key).or_default().add(&header);
                }
            }
        }
        Ok(counts)
    }

    /// Reads a queue's keys, with what of their messages is there.
    pub(super) fn kept_keys(
        &self,
        id: QueueId,
        mut counts: HashMap<KeyId, KeyExtent>,
    ) -> Result<Vec<StoredKey>, StoreError> {
        let mut kept = Vec::new();
        for entry in self.snapshot.prefix(&self.opened.keys, id.0.to_be_bytes()) {
            let (key, value) = entry.into_inner().map_err(io)?;
            let key = KeyId(layout::word(&key, 4).ok_or_else(|| corrupt("the id of a key"))?);
            let record = KeyRecord::decode(&value).ok_or_else(|| corrupt("a key"))?;
            let KeyExtent { first, last, messages: count, bytes, expiring } =
                counts.remove(&key).unwrap_or_default();
            let KeyRecord { name, rule, wished_weight } = record;
            kept.push(StoredKey { key, name, rule, wished_weight, first, last, count, bytes, expiring });
        }
        Ok(kept)
    }

    /// Reads what is written of a queue's messages that do not simply wait.
    pub(super) fn kept_states(
        &self,
        id: QueueId,
        within: Range<Seq>,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let mut kept = Vec::new();
        for entry in self.snapshot.prefix(&self.opened.state, id.0.to_be_bytes()) {
            let (place, value) = entry.into_inner().map_err(io)?;
            let (_, key, header) =
                layout::read_message_key(&place).ok_or_else(|| corrupt("a state's key"))?;
            // A state may outlive its message, when a delivery comes back that was purged meanwhile.
            let shelf = &self.opened.shelves.of(header.seq).keyspace;
            let lives = self.snapshot.contains_key(shelf, &*place).map_err(io)?;
            if lives && within.contains(&header.seq) {
                kept.push(layout::read_state(key, header, &value).ok_or_else(|| corrupt("a state"))?);
            }
        }
        Ok(kept)
    }
}

impl KeyExtent {
    fn add(&mut self, header: &MessageMeta) {
        self.first = if self.messages == 0 { header.seq } else { self.first.min(header.seq) };
        self.last = self.last.max(header.seq);
        self.messages += 1;
        self.bytes += u64::from(header.size);
        self.expiring.extend(header.expires_at.map(|_| *header));
    }
}

impl Catalog {
    /// Names the message before which all of a queue are gone, though they may still lie somewhere.
    pub(super) fn purged_below(&self, queue: QueueId) -> Seq {
        self.queues.get(&queue).map_or(Seq(u64::MAX), |kept| kept.purged_below)
    }

    /// Lists the queues.
    pub(super) fn records(&self) -> Vec<QueueRecord> {
        self.queues.iter().map(|(&id, queue)| QueueRecord { id, body: queue.body.clone() }).collect()
    }
}

fn message(entry: Guard) -> Result<(QueueId, KeyId, MessageMeta), StoreError> {
    let key = entry.key().map_err(io)?;
    layout::read_message_key(&key).ok_or_else(|| corrupt("a message's key"))
}

/// Checks whether a folder is one of ours, and reads its secret; a new folder gets both.
fn check_format(db: &Database, meta: &Keyspace, folder: &Path) -> Result<[u8; 32], StoreError> {
    match meta.get(b"format").map_err(io)?.map(|value| layout::word(&value, 0)) {
        Some(Some(found @ FORMAT_MIN..=FORMAT)) => {
            if found < FORMAT {
                // Whoever reads only the earlier one must not find what it cannot.
                meta.insert(b"format", FORMAT.to_be_bytes()).map_err(io)?;
                db.persist(PersistMode::SyncAll).map_err(io)?;
            }
            let secret = meta.get(b"secret").map_err(io)?;
            secret.and_then(|bytes| bytes.as_ref().try_into().ok()).ok_or_else(|| corrupt("the secret"))
        }
        Some(found) => Err(StoreError::Io(format!(
            "{} was written in format {}, this version reads formats {FORMAT_MIN} to {FORMAT}",
            folder.display(),
            found.map_or("unknown".into(), |found| found.to_string()),
        ))),
        None => {
            let mut secret = [0; 32];
            let drawn = SystemRandom::new().fill(&mut secret);
            drawn.map_err(|_| StoreError::Io("no random numbers from the system".into()))?;
            let mut batch = db.batch();
            batch.insert(meta, b"format".as_slice(), FORMAT.to_be_bytes().as_slice());
            batch.insert(meta, b"secret".as_slice(), secret.as_slice());
            batch.durability(Some(PersistMode::SyncAll)).commit().map_err(io)?;
            Ok(secret)
        }
    }
}

fn open_shelves(db: &Database, meta: &Keyspace, next: Seq) -> Result<Segments, StoreError> {
    let mut generations = Vec::new();
    let mut old = Vec::new();
    for name in db.list_keyspace_names() {
        let part = |prefix| name.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
        if let Some(first) = part("m_") {
            let end = number(meta, &layout::of_generation(Seq(first)))?.map(Seq);
            generations.push(Segment::open(db, &name, Seq(first), end).map_err(io)?);
        } else if let Some(number) = part("old_") {
            old.push(number);
        }
    }
    generations.sort_by_key(|shelf| shelf.first);
    // One that was appended to when the process ended goes on until where numbers begin anew.
    for shelf in generations.iter_mut().filter(|shelf| shelf.end.is_none() && shelf.first < next) {
        meta.insert(layout::of_generation(shelf.first), next.0.to_be_bytes()).map_err(io)?;
        shelf.end = Some(next);
    }
    if generations.last().is_none_or(|shelf| shelf.first != next) {
        generations.push(Segment::open(db, &generation_name(next), next, None).map_err(io)?);
    }
    let old_number = old.into_iter().max().unwrap_or(0);
    let old = Segment::open(db, &old_name(old_number), Seq(0), Some(Seq(0))).map_err(io)?;
    Ok(Segments { segments: generations, compacted: old, compacted_number: old_number })
}

pub(super) fn number(meta: &Keyspace, key: &[u8]) -> Result<Option<u64>, StoreError> {
    let Some(value) = meta.get(key).map_err(io)? else { return Ok(None) };
    layout::long(&value, 0).map(Some).ok_or_else(|| corrupt("a number"))
}

/// Says what the disk said, without the names of types around it.
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
    StoreError::Io(format!("cannot make sense of {what}"))
}

fn unusable(folder: &Path, error: fjall::Error) -> StoreError {
    if matches!(error, fjall::Error::Locked) {
        return StoreError::Io(format!("{} is used by another process", folder.display()));
    }
    match io(error) {
        StoreError::Io(why) => StoreError::Io(format!("{} cannot be opened: {why}", folder.display())),
        why => why,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::cost::Cost;

    use super::*;
    use crate::message::Payload;

    /// Killed after the copy to the old shelf and before the generation was dropped.
    #[test]
    fn a_generation_that_was_emptied_hides_nothing_after_a_start() {
        let folder = tempfile::TempDir::new().unwrap();
        let open = || Keyspaces::open(&folder.path().join("queue"), 1 << 20).unwrap().opened;
        let header = MessageMeta {
            seq: Seq(5),
            sent_at: UnixMillis(1),
            size: 4,
            cost: Cost(1),
            from: None,
            expires_at: None,
        };
        let first = open();
        let mut batch = first.db.batch();
        let body = QueueDescriptor::plain();
        batch.insert(&first.meta, layout::of_queue(b'q', QueueId(1)), serde_json::to_vec(&body).unwrap());
        let record = KeyRecord { name: "a".into(), rule: crate::KeyRule::default(), wished_weight: None };
        batch.insert(&first.keys, layout::lane(QueueId(1), KeyId(0)), record.encode());
        let value = layout::message_value(&Payload { headers: "".into(), body: "body".into() });
        let place = layout::message_key(QueueId(1), KeyId(0), &header);
        batch.insert(&first.shelves.compacted.keyspace, place.as_slice(), value);
        batch.insert(&first.meta, b"seq".as_slice(), 100_u64.to_be_bytes().as_slice());
        batch.durability(Some(PersistMode::SyncAll)).commit().unwrap();
        drop(first);
        let opened = open();
        assert_eq!(opened.shelves.of(header.seq).first, Seq(0), "it is looked for where it is no more");
        assert_eq!(opened.shelves.segments.len(), 1, "the emptied generation is still there");
    }

    #[test]
    fn a_folder_of_the_format_before_is_taken_over_and_a_later_one_is_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let open = || Keyspaces::open(&folder.path().join("queue"), 1 << 20);
        let write = |format: u32| {
            let opened = open().unwrap().opened;
            opened.meta.insert(b"format", format.to_be_bytes()).unwrap();
            opened.db.persist(PersistMode::SyncAll).unwrap();
        };
        write(FORMAT_MIN);
        let taken_over = open().unwrap().opened;
        assert_eq!(&*taken_over.meta.get(b"format").unwrap().unwrap(), FORMAT.to_be_bytes());
        drop(taken_over);
        for format in [FORMAT_MIN - 1, FORMAT + 1] {
            write(format);
            let StoreError::Io(why) = open().err().unwrap() else { panic!("it was refused otherwise") };
            let words = format!("was written in format {format}, this version reads formats {FORMAT_MIN} to");
            assert!(why.contains(&words), "{why}");
            let db = Database::builder(folder.path().join("queue")).open().unwrap();
            let meta = db.keyspace("meta", KeyspaceCreateOptions::default).unwrap();
            meta.insert(b"format", FORMAT.to_be_bytes()).unwrap();
            db.persist(PersistMode::SyncAll).unwrap();
        }
    }
}
