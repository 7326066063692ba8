//! What came of messages, on disk: by message, and by when it expires.

use super::keyspaces::{Keyspaces, corrupt, io};
use super::layout;
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::store::result_index::ResultIndex;
use crate::store::{StoreError, StoredResult};
use crate::time::UnixMillis;

/// A sweep reads about so much at once.
const SWEEP_BYTES: usize = 8 << 20;

/// Where a result is.
pub(super) fn place(of: MessageId) -> [u8; 16] {
    layout::place(of.queue, of.key, of.seq)
}

/// Where it is said that a result expires.
pub(super) fn due(at: UnixMillis, of: MessageId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&at.0.to_be_bytes());
    bytes[8..].copy_from_slice(&place(of));
    bytes
}

/// What a result is written as.
pub(super) fn value(kept: &StoredResult) -> Vec<u8> {
    [&kept.expires_at.0.to_be_bytes(), kept.bytes.as_ref()].concat()
}

/// A result that has expired.
pub(super) struct ExpiredResult {
    /// Where that is said.
    pub(super) due: [u8; 24],
    /// Where the result is, unless it was kept anew.
    pub(super) result: Option<[u8; 16]>,
}

impl ExpiredResult {
    /// When it expired.
    pub(super) fn at(&self) -> UnixMillis {
        UnixMillis(layout::long(&self.due, 0).unwrap_or_default())
    }

    /// Whose it was.
    pub(super) fn of(&self) -> Option<MessageId> {
        read_due(&self.due).map(|(_, of)| of)
    }
}

/// Reads which result expires when.
fn read_due(due: &[u8]) -> Option<(UnixMillis, MessageId)> {
    let queue = QueueId(layout::word(due, 8)?);
    let key = KeyId(layout::word(due, 12)?);
    Some((UnixMillis(layout::long(due, 0)?), MessageId { queue, key, seq: Seq(layout::long(due, 16)?) }))
}

impl Keyspaces {
    /// Reads which results are kept, and no more of them.
    pub(super) fn read_results(&self) -> Result<ResultIndex, StoreError> {
        let mut book = ResultIndex::default();
        for entry in self.results_due.iter() {
            let due = entry.key().map_err(io)?;
            let (until, of) = read_due(&due).ok_or_else(|| corrupt("when a result expires"))?;
            book.keep(of, until);
        }
        Ok(book)
    }

    /// Reads what came of a message, if that is kept.
    pub(super) fn result(&self, of: MessageId) -> Result<Option<StoredResult>, StoreError> {
        let Some(value) = self.results.get(place(of)).map_err(io)? else { return Ok(None) };
        let expires_at = UnixMillis(layout::long(&value, 0).ok_or_else(|| corrupt("a result"))?);
        Ok(Some(StoredResult { expires_at, bytes: bytes::Bytes::from(value).slice(8..) }))
    }

    /// Finds results that expire from `from` to `until`, at most `max` and as many as are soon read: nobody else is
    /// answered meanwhile.
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
            let due: [u8; 24] = key.as_ref().try_into().map_err(|_| corrupt("when a result expires"))?;
            let place: [u8; 16] = due[8..].try_into().map_err(|_| corrupt("when a result expires"))?;
            if SWEEP_BYTES <= read {
                break;
            }
            let kept = self.results.get(place).map_err(io)?;
            read += kept.as_ref().map_or(0, |value| value.len());
            let expires_at = kept.and_then(|value| layout::long(&value, 0));
            let result = expires_at.filter(|&at| at <= until.0).map(|_| place);
            expired.push(ExpiredResult { due, result });
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
    fn what_is_swept_leaves_the_disk() {
        let folder = tempfile::TempDir::new().unwrap();
        let store = DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap();
        let queue = queue(&store);
        for seq in 0..10 {
            let of = MessageId { queue, key: KeyId(1), seq: Seq(seq) };
            let kept = StoredResult { expires_at: UnixMillis(100 + seq / 4), bytes: "x".into() };
            store.wait(|done| WriteOp::PutResult(of, kept, 100, done)).unwrap();
        }
        let sweep = |now, max| store.wait(|done| WriteOp::ExpireResults(UnixMillis(now), max, done)).unwrap();
        let left = || {
            let opened = store.snapshot().unwrap().opened;
            (opened.results.iter().count(), opened.results_due.iter().count())
        };
        assert_eq!((sweep(99, 10), left()), (0, (10, 10)));
        assert_eq!((sweep(101, 3), left()), (3, (7, 7)), "some of a moment");
        assert_eq!((sweep(101, 10), left()), (5, (2, 2)), "and the rest of it");
        assert_eq!((sweep(102, 10), left()), (2, (0, 0)));
    }

    #[test]
    fn beyond_its_limit_a_queue_keeps_the_latest_also_after_a_start_and_leaves_others_alone() {
        let folder = tempfile::TempDir::new().unwrap();
        let open = || DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap();
        let store = open();
        let few = queue(&store);
        let many = queue(&store);
        let put = |store: &DiskStore, queue, seq: u64, at: u64| {
            let of = MessageId { queue, key: KeyId(1), seq: Seq(seq) };
            let kept = StoredResult { expires_at: UnixMillis(at), bytes: "x".into() };
            let max = if queue == few { 3 } else { 100 };
            store.wait(|done| WriteOp::PutResult(of, kept, max, done)).unwrap();
        };
        let left = |store: &DiskStore, queue| -> Vec<u64> {
            let opened = store.snapshot().unwrap().opened;
            let found = opened.results_due.iter().map(|due| read_due(&due.key().unwrap()).unwrap().1);
            let found =
                found.filter(|of| of.queue == queue && opened.results.get(place(*of)).unwrap().is_some());
            found.map(|of| of.seq.0).collect()
        };
        for seq in 0..5 {
            put(&store, few, seq, 100 + seq);
            put(&store, many, seq, 100 + seq);
        }
        assert_eq!((left(&store, few), left(&store, many).len()), (vec![2, 3, 4], 5));
        // One that is kept anew is the latest, and counts once.
        put(&store, few, 2, 200);
        assert_eq!(left(&store, few), [3, 4, 2]);
        drop(store);
        let store = open();
        put(&store, few, 9, 201);
        assert_eq!((left(&store, few), left(&store, many).len()), (vec![4, 2, 9], 5));
        let opened = store.snapshot().unwrap().opened;
        assert_eq!((opened.results.iter().count(), opened.results_due.iter().count()), (8, 8));
    }

    fn queue(store: &DiskStore) -> QueueId {
        store.wait(|done| WriteOp::PutQueue(None, Box::new(QueueDescriptor::plain()), done)).unwrap()
    }
}
