//! Results of messages on disk, with an index by expiry.

use super::keyspaces::{Keyspaces, corrupt, io};
use super::layout;
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::store::result_index::ResultIndex;
use crate::store::{StoreError, StoredResult};
use crate::time::UnixMillis;

/// Approximate maximum number of bytes of results that are read at a time to expire results.
const EXPIRE_BYTES: usize = 8 << 20;

/// Returns the key of a result.
pub(super) fn result_key(id: MessageId) -> [u8; 16] {
    layout::message_prefix(id.queue, id.key, id.seq)
}

/// Returns the key of a result's entry in the expiry index.
pub(super) fn due_key(expires_at: UnixMillis, id: MessageId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&expires_at.0.to_be_bytes());
    bytes[8..].copy_from_slice(&result_key(id));
    bytes
}

/// Returns the value of a result.
pub(super) fn result_value(result: &StoredResult) -> Vec<u8> {
    [&result.expires_at.0.to_be_bytes(), result.bytes.as_ref()].concat()
}

/// A due entry of the expiry index.
pub(super) struct ExpiredResult {
    /// Key of the entry.
    pub(super) due_key: [u8; 24],
    /// Key of the result; `None` if the result was deleted, or replaced by one that expires later.
    pub(super) result_key: Option<[u8; 16]>,
}

impl ExpiredResult {
    pub(super) fn expired_at(&self) -> UnixMillis {
        UnixMillis(layout::read_u64(&self.due_key, 0).unwrap_or_default())
    }

    pub(super) fn id(&self) -> Option<MessageId> {
        read_due_key(&self.due_key).map(|(_, id)| id)
    }
}

/// Parses a key of the expiry index.
fn read_due_key(bytes: &[u8]) -> Option<(UnixMillis, MessageId)> {
    let expires_at = UnixMillis(layout::read_u64(bytes, 0)?);
    let queue = QueueId(layout::read_u32(bytes, 8)?);
    let key = KeyId(layout::read_u32(bytes, 12)?);
    Some((expires_at, MessageId { queue, key, seq: Seq(layout::read_u64(bytes, 16)?) }))
}

impl Keyspaces {
    /// Builds the index of stored results; reads no bodies.
    pub(super) fn read_results(&self) -> Result<ResultIndex, StoreError> {
        let mut index = ResultIndex::default();
        for entry in self.results_due.iter() {
            let due_key = entry.key().map_err(io)?;
            let (expires_at, id) = read_due_key(&due_key).ok_or_else(|| corrupt("the expiry of a result"))?;
            index.insert(id, expires_at);
        }
        Ok(index)
    }

    pub(super) fn result(&self, id: MessageId) -> Result<Option<StoredResult>, StoreError> {
        let Some(value) = self.results.get(result_key(id)).map_err(io)? else { return Ok(None) };
        let expires_at = UnixMillis(layout::read_u64(&value, 0).ok_or_else(|| corrupt("a result"))?);
        Ok(Some(StoredResult { expires_at, bytes: bytes::Bytes::from(value).slice(8..) }))
    }

    /// Returns at most `max` entries of the expiry index that are due from `from` to `until`.
    ///
    /// Stops after reading about [`EXPIRE_BYTES`] of results, because other writes wait meanwhile.
    pub(super) fn expired_results(
        &self,
        from: UnixMillis,
        until: UnixMillis,
        max: usize,
    ) -> Result<Vec<ExpiredResult>, StoreError> {
        let range = from.0.to_be_bytes()..until.0.saturating_add(1).to_be_bytes();
        let mut expired = Vec::new();
        let mut read = 0;
        for entry in self.results_due.range(range).take(max) {
            let key = entry.key().map_err(io)?;
            let due_key: [u8; 24] = key.as_ref().try_into().map_err(|_| corrupt("the expiry of a result"))?;
            let result_key: [u8; 16] =
                due_key[8..].try_into().map_err(|_| corrupt("the expiry of a result"))?;
            if EXPIRE_BYTES <= read {
                break;
            }
            let stored = self.results.get(result_key).map_err(io)?;
            read += stored.as_ref().map_or(0, |value| value.len());
            let expires_at = stored.and_then(|value| layout::read_u64(&value, 0));
            let result_key = expires_at.filter(|&at| at <= until.0).map(|_| result_key);
            expired.push(ExpiredResult { due_key, result_key });
        }
        Ok(expired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::QueueDescriptor;
    use crate::store::disk::writer::WriteOp;
    use crate::store::disk::{DiskOptions, DiskStore};

    #[test]
    fn expired_results_are_deleted_from_disk() {
        let dir = tempfile::TempDir::new().unwrap();
        let store = DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap();
        let queue = queue(&store);
        for seq in 0..10 {
            let id = MessageId { queue, key: KeyId(1), seq: Seq(seq) };
            let result = StoredResult { expires_at: UnixMillis(100 + seq / 4), bytes: "x".into() };
            store.submit_and_wait(|done| WriteOp::PutResult(id, result, 100, done)).unwrap();
        }
        let expire = |now, max| {
            store.submit_and_wait(|done| WriteOp::ExpireResults(UnixMillis(now), max, done)).unwrap()
        };
        let left = || {
            let keyspaces = store.snapshot().unwrap().keyspaces;
            (keyspaces.results.iter().count(), keyspaces.results_due.iter().count())
        };
        assert_eq!((expire(99, 10), left()), (0, (10, 10)));
        assert_eq!((expire(101, 3), left()), (3, (7, 7)), "three of the four that expire at 100");
        assert_eq!((expire(101, 10), left()), (5, (2, 2)), "the fourth, and all that expire at 101");
        assert_eq!((expire(102, 10), left()), (2, (0, 0)));
    }

    #[test]
    fn a_queue_over_its_limit_keeps_the_latest_results_across_a_restart_and_other_queues_keep_theirs() {
        let dir = tempfile::TempDir::new().unwrap();
        let open = || DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap();
        let store = open();
        let few = queue(&store);
        let many = queue(&store);
        let put = |store: &DiskStore, queue, seq: u64, at: u64| {
            let id = MessageId { queue, key: KeyId(1), seq: Seq(seq) };
            let result = StoredResult { expires_at: UnixMillis(at), bytes: "x".into() };
            let max = if queue == few { 3 } else { 100 };
            store.submit_and_wait(|done| WriteOp::PutResult(id, result, max, done)).unwrap();
        };
        let left = |store: &DiskStore, queue| -> Vec<u64> {
            let keyspaces = store.snapshot().unwrap().keyspaces;
            let ids = keyspaces.results_due.iter().map(|due| read_due_key(&due.key().unwrap()).unwrap().1);
            let is_stored = |id: &MessageId| keyspaces.results.get(result_key(*id)).unwrap().is_some();
            ids.filter(|id| id.queue == queue && is_stored(id)).map(|id| id.seq.0).collect()
        };
        for seq in 0..5 {
            put(&store, few, seq, 100 + seq);
            put(&store, many, seq, 100 + seq);
        }
        assert_eq!((left(&store, few), left(&store, many).len()), (vec![2, 3, 4], 5));
        // The new result replaces the old one, so the queue is not over its limit.
        put(&store, few, 2, 200);
        assert_eq!(left(&store, few), [3, 4, 2]);
        drop(store);
        let store = open();
        put(&store, few, 9, 201);
        assert_eq!((left(&store, few), left(&store, many).len()), (vec![4, 2, 9], 5));
        let keyspaces = store.snapshot().unwrap().keyspaces;
        assert_eq!((keyspaces.results.iter().count(), keyspaces.results_due.iter().count()), (8, 8));
    }

    fn queue(store: &DiskStore) -> QueueId {
        store
            .submit_and_wait(|done| WriteOp::PutQueue(None, Box::new(QueueDescriptor::for_test()), done))
            .unwrap()
    }
}
