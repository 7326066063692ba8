//! The threads that read.

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

/// What a reader is asked.
pub(super) enum ReadOp {
    Fetch(Fetch, Completion<Vec<(MessageMeta, Payload)>>),
    Read(QueueId, Vec<(KeyId, MessageMeta)>, Completion<Vec<(Seq, Payload)>>),
    Result(MessageId, Completion<Option<StoredResult>>),
}

/// Reads until nobody can ask any more.
pub(super) fn run(looks: &Mutex<Receiver<ReadOp>>, opened: &RwLock<Option<Keyspaces>>) {
    loop {
        let Ok(look) = looks.lock().recv() else { return };
        // As it is now, so that the writer does not wait for the disk, and nothing moves while it is read.
        let folder = opened.read().as_ref().map(Keyspaces::still);
        match (look, folder) {
            (ReadOp::Fetch(fetch, done), Some(folder)) => done(fetch_from(&folder, fetch)),
            (ReadOp::Read(queue, which, done), Some(folder)) => done(read_from(&folder, queue, which)),
            (ReadOp::Result(of, done), Some(folder)) => done(folder.opened.result(of)),
            (ReadOp::Fetch(_, done), None) => done(Err(StoreError::Closed)),
            (ReadOp::Read(_, _, done), None) => done(Err(StoreError::Closed)),
            (ReadOp::Result(_, done), None) => done(Err(StoreError::Closed)),
        }
    }
}

fn fetch_from(folder: &StoreSnapshot, fetch: Fetch) -> Result<Vec<(MessageMeta, Payload)>, StoreError> {
    // What outlived its generation lies between the others', so both are read, and put in order.
    let StoreSnapshot { opened, snapshot } = folder;
    let old = collect(snapshot, opened.shelves.old_shelf(), &fetch)?;
    let later = collect(snapshot, opened.shelves.generations_after(fetch.after), &fetch)?;
    let complete_to = old.complete_to.min(later.complete_to);
    let mut found = old.messages;
    found.extend(later.messages);
    found.sort_by_key(|(header, _)| header.seq);
    found.retain(|(header, _)| header.seq <= complete_to);
    found.truncate(fetch.count_max);
    Ok(found)
}

/// What shelves have of a key.
struct FetchedMessages {
    messages: Vec<(MessageMeta, Payload)>,
    /// Up to here, nothing is left out.
    complete_to: Seq,
}

/// Reads shelves that follow each other, no further than was asked for.
fn collect<'a>(
    snapshot: &Snapshot,
    keyspaces: impl Iterator<Item = &'a Keyspace>,
    fetch: &Fetch,
) -> Result<FetchedMessages, StoreError> {
    let Fetch { queue, key, after, count_max, bytes_max } = *fetch;
    let from = layout::place(queue, key, Seq(after.0.saturating_add(1)));
    let to = layout::lane(queue, KeyId(key.0.saturating_add(1)));
    let mut collected = FetchedMessages { messages: Vec::new(), complete_to: Seq(u64::MAX) };
    let mut bytes = 0;
    for keyspace in keyspaces {
        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
        for entry in snapshot.range::<&[u8], _>(keyspace, range) {
            if count_max <= collected.messages.len() || bytes_max <= bytes {
                collected.complete_to = collected.messages.last().map_or(after, |(header, _)| header.seq);
                return Ok(collected);
            }
            let (place, value) = entry.into_inner().map_err(io)?;
            let Some((_, _, header)) = layout::read_message_key(&place) else { continue };
            let Some(payload) = layout::read_message_value(&value.into()) else { continue };
            bytes += payload.size();
            collected.messages.push((header, payload));
        }
    }
    Ok(collected)
}

fn read_from(
    folder: &StoreSnapshot,
    queue: QueueId,
    which: Vec<(KeyId, MessageMeta)>,
) -> Result<Vec<(Seq, Payload)>, StoreError> {
    let mut found = Vec::with_capacity(which.len());
    for (key, header) in which {
        let place = layout::message_key(queue, key, &header);
        let shelf = folder.opened.shelves.of(header.seq);
        let value = folder.snapshot.get(&shelf.keyspace, place.as_slice()).map_err(io)?;
        found.extend(value.and_then(|value| Some((header.seq, layout::read_message_value(&value.into())?))));
    }
    Ok(found)
}

/// Where requests to read wait.
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
    fn no_more_is_read_than_was_asked_for() {
        let (folder, _place) = opened(&[], 1..=1_000);
        let StoreSnapshot { opened, snapshot } = folder.still();
        let generations = || opened.shelves.generations_after(Seq(0));
        let collected = collect(&snapshot, generations(), &ask(0, 10, usize::MAX)).unwrap();
        assert_eq!((collected.messages.len(), collected.complete_to), (10, Seq(10)));
        let all = collect(&snapshot, generations(), &ask(990, 100, usize::MAX)).unwrap();
        assert_eq!((all.messages.len(), all.complete_to), (10, Seq(u64::MAX)));
    }

    #[test]
    fn what_outlived_its_generation_comes_in_its_place_and_hides_nothing() {
        let (folder, _place) = opened(&[2, 5, 1_001, 2_000], 100..=1_000);
        assert_eq!(fetched(&folder, ask(0, 4, usize::MAX)), [2, 5, 100, 101]);
        assert_eq!(fetched(&folder, ask(998, 4, usize::MAX)), [999, 1_000, 1_001, 2_000]);
        // Few bytes are wanted: what follows the last that was read may be missing, so it is not told.
        assert_eq!(fetched(&folder, ask(5, 4, 1)), [100]);
        assert_eq!(fetched(&folder, ask(1_000, 4, usize::MAX)), [1_001, 2_000]);
    }

    #[test]
    fn what_is_moved_and_removed_while_it_is_read_is_found() {
        let (folder, _place) = opened(&[], 1..=10);
        let still = folder.still();
        let from = still.opened.shelves.segments[0].keyspace.clone();
        let mut batch = folder.db.batch();
        for entry in from.iter() {
            let (place, value) = entry.into_inner().unwrap();
            batch.insert(&folder.shelves.compacted.keyspace, place.clone(), value);
            batch.remove(&from, place);
        }
        batch.commit().unwrap();
        let found = fetch_from(&still, ask(0, 100, usize::MAX)).unwrap();
        assert_eq!(found.len(), 10, "messages on their way from shelf to shelf were overlooked");
        let which = found.iter().map(|(header, _)| (KEY, *header)).collect();
        assert_eq!(read_from(&still, QUEUE, which).unwrap().len(), 10);
    }

    fn fetched(folder: &Keyspaces, fetch: Fetch) -> Vec<u64> {
        fetch_from(&folder.still(), fetch).unwrap().iter().map(|(header, _)| header.seq.0).collect()
    }

    fn ask(after: u64, count_max: usize, bytes_max: usize) -> Fetch {
        Fetch { queue: QUEUE, key: KEY, after: Seq(after), count_max, bytes_max }
    }

    fn opened(old: &[u64], current: std::ops::RangeInclusive<u64>) -> (Keyspaces, tempfile::TempDir) {
        let place = tempfile::TempDir::new().unwrap();
        let mut folder = Keyspaces::open(&place.path().join("queue"), 1 << 20).unwrap().opened;
        let payload = Payload { headers: "h".into(), body: "body".into() };
        let message = |seq: u64| {
            let header = MessageMeta {
                seq: Seq(seq),
                sent_at: UnixMillis(1),
                size: 5,
                cost: Cost(1),
                from: None,
                expires_at: None,
            };
            (layout::message_key(QUEUE, KEY, &header), layout::message_value(&payload))
        };
        for (keyspace, seqs) in [
            (folder.shelves.compacted.keyspace.clone(), old.to_vec()),
            (folder.shelves.current().keyspace.clone(), current.collect()),
        ] {
            for (at, value) in seqs.into_iter().map(message) {
                keyspace.insert(at.as_slice(), value).unwrap();
            }
        }
        folder.shelves.compacted.live = old.len() as u64;
        folder.db.persist(PersistMode::Buffer).unwrap();
        (folder, place)
    }
}
