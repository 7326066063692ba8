//! Reader threads.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use fjall::{Keyspace, Readable, Snapshot};
use parking_lot::{Mutex, RwLock};

use super::keyspaces::{Keyspaces, StoreSnapshot, io};
use super::layout;
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::store::{Completion, Fetch, StoreError, StoredResult};

/// A read, with its completion.
pub(super) enum ReadOp {
    Fetch(Fetch, Completion<Vec<(MessageMeta, Payload)>>),
    Payloads(QueueId, Vec<(KeyId, MessageMeta)>, Completion<Vec<(Seq, Payload)>>),
    Result(MessageId, Completion<Option<StoredResult>>),
}

/// Runs reads until the store closes.
pub(super) fn run(queue: &Mutex<Receiver<ReadOp>>, keyspaces: &RwLock<Option<Keyspaces>>) {
    loop {
        let Ok(op) = queue.lock().recv() else { return };
        // A snapshot does not block the writer, and a compaction during the read cannot hide messages.
        let Some(store) = keyspaces.read().as_ref().map(Keyspaces::snapshot) else {
            op.fail(StoreError::Closed);
            continue;
        };
        match op {
            ReadOp::Fetch(fetch, done) => done(fetch_messages(&store, fetch)),
            ReadOp::Payloads(queue, messages, done) => done(read_payloads(&store, queue, messages)),
            ReadOp::Result(id, done) => done(store.keyspaces.result(id)),
        }
    }
}

impl ReadOp {
    /// Completes the read with an error.
    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Fetch(_, done) => done(Err(error)),
            Self::Payloads(_, _, done) => done(Err(error)),
            Self::Result(_, done) => done(Err(error)),
        }
    }
}

fn fetch_messages(store: &StoreSnapshot, fetch: Fetch) -> Result<Vec<(MessageMeta, Payload)>, StoreError> {
    // Sequence numbers of compacted messages lie between those of the other segments, so both are read and merged.
    let StoreSnapshot { keyspaces, snapshot } = store;
    let compacted = collect_messages(snapshot, keyspaces.segments.compacted_keyspace(), &fetch)?;
    let later = collect_messages(snapshot, keyspaces.segments.segments_after(fetch.after), &fetch)?;
    let complete_to = compacted.complete_to.min(later.complete_to);
    let mut found = compacted.messages;
    found.extend(later.messages);
    found.sort_by_key(|(meta, _)| meta.seq);
    found.retain(|(meta, _)| meta.seq <= complete_to);
    found.truncate(fetch.messages_max);
    Ok(found)
}

/// Messages of a key from some segments.
struct FetchedMessages {
    messages: Vec<(MessageMeta, Payload)>,
    /// Every message up to this sequence number is included.
    complete_to: Seq,
}

/// Reads messages from consecutive segments, up to the limits of the fetch.
fn collect_messages<'a>(
    snapshot: &Snapshot,
    keyspaces: impl Iterator<Item = &'a Keyspace>,
    fetch: &Fetch,
) -> Result<FetchedMessages, StoreError> {
    let Fetch { queue, key, after, messages_max, bytes_max } = *fetch;
    let from = layout::message_prefix(queue, key, Seq(after.0.saturating_add(1)));
    let to = layout::key_prefix(queue, KeyId(key.0.saturating_add(1)));
    let mut fetched = FetchedMessages { messages: Vec::new(), complete_to: Seq(u64::MAX) };
    let mut bytes = 0;
    for keyspace in keyspaces {
        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
        for entry in snapshot.range::<&[u8], _>(keyspace, range) {
            if messages_max <= fetched.messages.len() || bytes_max <= bytes {
                fetched.complete_to = fetched.messages.last().map_or(after, |(meta, _)| meta.seq);
                return Ok(fetched);
            }
            let (key, value) = entry.into_inner().map_err(io)?;
            let Some((_, _, meta)) = layout::read_message_key(&key) else { continue };
            let Some(payload) = layout::read_message_value(&value.into()) else { continue };
            bytes += payload.size();
            fetched.messages.push((meta, payload));
        }
    }
    Ok(fetched)
}

fn read_payloads(
    store: &StoreSnapshot,
    queue: QueueId,
    messages: Vec<(KeyId, MessageMeta)>,
) -> Result<Vec<(Seq, Payload)>, StoreError> {
    let mut found = Vec::with_capacity(messages.len());
    for (key, meta) in messages {
        let message_key = layout::message_key(queue, key, &meta);
        let segment = store.keyspaces.segments.containing(meta.seq);
        let value = store.snapshot.get(&segment.keyspace, message_key.as_slice()).map_err(io)?;
        found.extend(value.and_then(|value| Some((meta.seq, layout::read_message_value(&value.into())?))));
    }
    Ok(found)
}

pub(super) type ReadQueue = Arc<Mutex<Receiver<ReadOp>>>;

#[cfg(test)]
mod tests {
    use evenkeel_policy::cost::Cost;
    use fjall::PersistMode;

    use super::*;
    use crate::time::UnixMillis;

    const QUEUE: QueueId = QueueId(1);
    const KEY: KeyId = KeyId(2);

    #[test]
    fn a_fetch_reads_no_more_than_its_limits() {
        let (keyspaces, _dir) = keyspaces(&[], 1..=1_000);
        let StoreSnapshot { keyspaces, snapshot } = keyspaces.snapshot();
        let segments = || keyspaces.segments.segments_after(Seq(0));
        let first = collect_messages(&snapshot, segments(), &fetch(0, 10, usize::MAX)).unwrap();
        assert_eq!((first.messages.len(), first.complete_to), (10, Seq(10)));
        let all = collect_messages(&snapshot, segments(), &fetch(990, 100, usize::MAX)).unwrap();
        assert_eq!((all.messages.len(), all.complete_to), (10, Seq(u64::MAX)));
    }

    #[test]
    fn compacted_messages_are_merged_in_order() {
        let (keyspaces, _dir) = keyspaces(&[2, 5, 1_001, 2_000], 100..=1_000);
        assert_eq!(fetched(&keyspaces, fetch(0, 4, usize::MAX)), [2, 5, 100, 101]);
        assert_eq!(fetched(&keyspaces, fetch(998, 4, usize::MAX)), [999, 1_000, 1_001, 2_000]);
        // The byte limit stops the read of the other segments after 100, so later compacted messages are left out.
        assert_eq!(fetched(&keyspaces, fetch(5, 4, 1)), [100]);
        assert_eq!(fetched(&keyspaces, fetch(1_000, 4, usize::MAX)), [1_001, 2_000]);
    }

    #[test]
    fn messages_compacted_during_a_read_are_found() {
        let (keyspaces, _dir) = keyspaces(&[], 1..=10);
        let snapshot = keyspaces.snapshot();
        let from = snapshot.keyspaces.segments.segments[0].keyspace.clone();
        let mut batch = keyspaces.db.batch();
        for entry in from.iter() {
            let (key, value) = entry.into_inner().unwrap();
            batch.insert(&keyspaces.segments.compacted.keyspace, key.clone(), value);
            batch.remove(&from, key);
        }
        batch.commit().unwrap();
        let found = fetch_messages(&snapshot, fetch(0, 100, usize::MAX)).unwrap();
        assert_eq!(found.len(), 10, "messages compacted during the read are missing");
        let messages = found.iter().map(|(meta, _)| (KEY, *meta)).collect();
        assert_eq!(read_payloads(&snapshot, QUEUE, messages).unwrap().len(), 10);
    }

    fn fetched(keyspaces: &Keyspaces, fetch: Fetch) -> Vec<u64> {
        fetch_messages(&keyspaces.snapshot(), fetch).unwrap().iter().map(|(meta, _)| meta.seq.0).collect()
    }

    fn fetch(after: u64, messages_max: usize, bytes_max: usize) -> Fetch {
        Fetch { queue: QUEUE, key: KEY, after: Seq(after), messages_max, bytes_max }
    }

    fn keyspaces(
        compacted: &[u64],
        current: std::ops::RangeInclusive<u64>,
    ) -> (Keyspaces, tempfile::TempDir) {
        let dir = tempfile::TempDir::new().unwrap();
        let mut keyspaces = Keyspaces::open(&dir.path().join("queue"), 1 << 20).unwrap().keyspaces;
        let payload = Payload { headers: "h".into(), body: "body".into() };
        let message = |seq: u64| {
            let meta = MessageMeta {
                seq: Seq(seq),
                sent_at: UnixMillis(1),
                size: 5,
                cost: Cost(1),
                from: None,
                expires_at: None,
            };
            (layout::message_key(QUEUE, KEY, &meta), layout::message_value(&payload))
        };
        for (keyspace, seqs) in [
            (keyspaces.segments.compacted.keyspace.clone(), compacted.to_vec()),
            (keyspaces.segments.current().keyspace.clone(), current.collect()),
        ] {
            for (key, value) in seqs.into_iter().map(message) {
                keyspace.insert(key.as_slice(), value).unwrap();
            }
        }
        keyspaces.segments.compacted.live = compacted.len() as u64;
        keyspaces.db.persist(PersistMode::Buffer).unwrap();
        (keyspaces, dir)
    }
}
