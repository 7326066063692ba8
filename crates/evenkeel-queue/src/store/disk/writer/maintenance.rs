//! Maintenance by the writer: rotation and compaction of segments, deletion of purged messages.
//!
//! A scan has to skip the tombstone of every deleted message, so each run of a purge starts where the last one stopped.

use std::time::Instant;

use fjall::{Keyspace, PersistMode};

use super::Writer;
use crate::id::Seq;
use crate::message::MessageMeta;
use crate::store::StoreError;
use crate::store::disk::catalog::PurgeCursor;
use crate::store::disk::keyspaces::{drop_keyspace, io};
use crate::store::disk::layout;
use crate::store::disk::segments::{Segment, compacted_name, segment_name};

/// Maximum number of messages visited per run.
const VISIT_MAX: usize = 1_024;

impl Writer {
    pub(super) fn has_maintenance(&self) -> bool {
        self.catalog.as_ref().is_some_and(|catalog| !catalog.purges.is_empty())
    }

    /// Deletes purged messages of one queue, at most [`VISIT_MAX`].
    pub(super) fn run_maintenance(&mut self) {
        self.maintained_at = Instant::now();
        let Some(purge) = self.catalog.as_mut().and_then(|catalog| catalog.purges.pop()) else { return };
        let queue = purge.queue;
        match self.purge_some(purge) {
            Ok(Some(rest)) => {
                if let Some(catalog) = self.catalog.as_mut() {
                    catalog.purges.push(rest);
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(queue = queue.0, %error, "could not delete purged messages; they stay on disk until the next start");
            }
        }
    }

    /// Deletes the next messages of a purge; returns where to continue, or `None` when the purge is complete.
    fn purge_some(&mut self, mut purge: PurgeCursor) -> Result<Option<PurgeCursor>, StoreError> {
        let mut keyspaces = self.keyspaces.write();
        let Some(keyspaces) = keyspaces.as_mut() else { return Ok(None) };
        let is_next = |segment: &&mut Segment| purge.segment <= segment.first;
        let Some(segment) = keyspaces.segments.all_mut().find(is_next) else { return Ok(None) };
        if purge.segment < segment.first {
            purge.segment = segment.first;
            purge.from = purge.queue.0.to_be_bytes().to_vec();
        }
        let mut batch = keyspaces.db.batch();
        let end = purge.queue.0.saturating_add(1).to_be_bytes().to_vec();
        let mut visited = 0;
        let mut removed = 0;
        for entry in segment.keyspace.range(purge.from.clone()..end).take(VISIT_MAX) {
            visited += 1;
            let key = entry.key().map_err(io)?;
            purge.from = [&key, [0].as_slice()].concat();
            if layout::read_message_key(&key).is_some_and(|(.., meta)| meta.seq < purge.below) {
                removed += 1;
                batch.remove(&segment.keyspace, key.clone());
                batch.remove(&keyspaces.state, key);
            }
        }
        batch.durability(Some(PersistMode::Buffer)).commit().map_err(io)?;
        segment.live = segment.live.saturating_sub(removed);
        self.reclaim.record(0, visited);
        if visited < VISIT_MAX {
            purge.segment.0 += 1;
            purge.from = purge.queue.0.to_be_bytes().to_vec();
        }
        Ok(Some(purge))
    }

    /// Starts a new segment if the current one is full; compacts sparse segments and drops empty ones.
    pub(super) fn rotate_if_full(&mut self) {
        let is_full =
            self.keyspaces.write().as_mut().is_some_and(|keyspaces| keyspaces.segments.current().is_full());
        if is_full {
            let rotated = self.rotate().and_then(|()| self.compact_sparse()).and_then(|()| self.drop_empty());
            log_failure("rotate message segments", rotated);
        }
    }

    pub(super) fn rotate(&mut self) -> Result<(), StoreError> {
        let Some((segment, next)) = self.open_next()? else { return Ok(()) };
        self.persist(PersistMode::SyncAll)?;
        if let Some(keyspaces) = self.keyspaces.write().as_mut() {
            keyspaces.segments.current().end = Some(next);
            keyspaces.segments.segments.push(segment);
        }
        Ok(())
    }

    /// Creates the next segment and records where the current one ends.
    fn open_next(&mut self) -> Result<Option<(Segment, Seq)>, StoreError> {
        let mut keyspaces = self.keyspaces.write();
        let (Some(keyspaces), Some(catalog)) = (keyspaces.as_mut(), self.catalog.as_ref()) else {
            return Ok(None);
        };
        let next = Seq(catalog.seq);
        let segment = Segment::open(&keyspaces.db, &segment_name(next), next, None).map_err(io)?;
        let end = layout::segment_end_key(keyspaces.segments.current().first);
        keyspaces.meta.insert(end, next.0.to_be_bytes()).map_err(io)?;
        Ok(Some((segment, next)))
    }

    /// Compacts sparse segments: copies their live messages, and drops them after a sync.
    pub(super) fn compact_sparse(&mut self) -> Result<(), StoreError> {
        while let Some(compacted) = self.compact_one()? {
            self.persist(PersistMode::SyncAll)?;
            if let Some(keyspaces) = self.keyspaces.write().as_mut() {
                keyspaces.meta.remove(layout::segment_end_key(compacted.first)).map_err(io)?;
                drop_keyspace(&keyspaces.db, compacted.keyspace)?;
            }
        }
        Ok(())
    }

    fn compact_one(&mut self) -> Result<Option<Segment>, StoreError> {
        let mut keyspaces = self.keyspaces.write();
        let (Some(keyspaces), Some(catalog)) = (keyspaces.as_mut(), self.catalog.as_ref()) else {
            return Ok(None);
        };
        let is_sparse = |segment: &Segment| segment.live > 0 && segment.is_sparse();
        let Some(index) = keyspaces.segments.segments.iter().position(is_sparse) else { return Ok(None) };
        let mut batch = keyspaces.db.batch();
        let mut copied = 0;
        let keyspace = keyspaces.segments.segments[index].keyspace.clone();
        for entry in keyspace.iter() {
            let (key, value) = entry.into_inner().map_err(io)?;
            // Deleted in the same write: a message in both segments would be counted twice after a crash, and would
            // survive its acknowledgement.
            batch.remove(&keyspace, key.clone());
            // A purge may have passed the compacted segment already: it would not find a purged message there.
            let is_purged = |(queue, _, meta): (_, _, MessageMeta)| meta.seq < catalog.purged_below(queue);
            if layout::read_message_key(&key).is_some_and(is_purged) {
                batch.remove(&keyspaces.state, key);
                continue;
            }
            batch.insert(&keyspaces.segments.compacted.keyspace, key, value);
            copied += 1;
        }
        batch.durability(Some(PersistMode::Buffer)).commit().map_err(io)?;
        keyspaces.segments.compacted.live += copied;
        keyspaces.segments.compacted.appended += copied;
        Ok(Some(keyspaces.segments.segments.remove(index)))
    }

    pub(super) fn drop_empty(&mut self) -> Result<(), StoreError> {
        let mut keyspaces = self.keyspaces.write();
        let Some(keyspaces) = keyspaces.as_mut() else { return Ok(()) };
        keyspaces.drop_segments(|segment| segment.is_empty() && segment.is_flushed())?;
        if keyspaces.segments.compacted.live == 0 && keyspaces.segments.compacted.appended > 0 {
            let number = keyspaces.segments.compacted_number + 1;
            let fresh =
                Segment::open(&keyspaces.db, &compacted_name(number), Seq(0), Some(Seq(0))).map_err(io)?;
            let old = core::mem::replace(&mut keyspaces.segments.compacted, fresh);
            keyspaces.segments.compacted_number = number;
            drop_keyspace(&keyspaces.db, old.keyspace)?;
        }
        Ok(())
    }

    /// Rotates the deduplication keyspaces if the current one spans a window.
    pub(super) fn rotate_dedup(&mut self) {
        let next =
            self.keyspaces.read().as_ref().map(|keyspaces| keyspaces.dedup.create_next_if_due(&keyspaces.db));
        let rotated = match next {
            None | Some(Ok(None)) => return,
            Some(Ok(Some(next))) => self.rotate_dedup_to(next),
            Some(Err(error)) => Err(error),
        };
        log_failure("rotate deduplication windows", rotated);
    }

    fn rotate_dedup_to(&mut self, next: Keyspace) -> Result<(), StoreError> {
        self.persist(PersistMode::SyncAll)?;
        match self.keyspaces.write().as_mut() {
            Some(keyspaces) => keyspaces.dedup.rotate(&keyspaces.db, next),
            None => Ok(()),
        }
    }

    /// Restores the append listeners after the database was reopened.
    pub(super) fn restore_listeners(&mut self) {
        let Some(catalog) = self.catalog.as_mut() else { return };
        for (id, listener) in self.listeners.drain(..) {
            if let Some(queue) = catalog.queues.get_mut(&id) {
                queue.listener = Some(listener);
            }
        }
    }
}

/// Logs a failed task; a failed fsync was already reported to the fatal handler.
fn log_failure(task: &str, result: Result<(), StoreError>) {
    match result {
        Ok(()) | Err(StoreError::Unknown(_)) => {}
        Err(error) => tracing::warn!(%error, "could not {task}, retrying"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use core::time::Duration;

    use evenkeel_policy::cost::Cost;
    use parking_lot::RwLock;

    use super::*;
    use crate::id::{Epoch, KeyId, QueueId};
    use crate::message::Payload;
    use crate::store::QueueDescriptor;
    use crate::store::disk::DiskOptions;
    use crate::store::disk::keyspaces::{Keyspaces, Recovery};
    use crate::store::disk::write_queue::WriteQueue;
    use crate::store::disk::writer::{WriteOp, WriterTask};
    use crate::time::UnixMillis;

    const QUEUE: QueueId = QueueId(1);

    /// The compacted message sorts after a message of the current segment, so the cursor must restart per segment.
    #[test]
    fn a_purge_covers_the_segment_after_the_compacted_one() {
        let mut rig = Rig::new();
        rig.put(Target::Compacted, KeyId(9), 1);
        rig.put(Target::Current, KeyId(2), 2);
        rig.put(Target::Current, KeyId(9), 3);
        while rig.writer.has_maintenance() {
            rig.writer.run_maintenance();
        }
        assert_eq!(rig.left(), [0, 0], "purged messages are left in the compacted or the current segment");
    }

    /// The purge has passed the compacted segment when the next segment is compacted into it.
    #[test]
    fn purged_messages_are_not_compacted() {
        let mut rig = Rig::new();
        rig.write(WriteOp::PutQueue(None, Box::new(QueueDescriptor::for_test()), Box::new(drop)));
        rig.write(WriteOp::Purge(QUEUE, Box::new(drop)));
        rig.writer.rotate().unwrap();
        (0..3).for_each(|seq| rig.put(Target::Current, KeyId(2), seq));
        if let Some(keyspaces) = rig.writer.keyspaces.write().as_mut() {
            let segment = &mut keyspaces.segments.segments[0];
            segment.appended = 10_000;
            segment.live = 3;
        }
        rig.writer.compact_sparse().unwrap();
        assert_eq!(rig.compacted.iter().count(), 2, "only the first of the three messages was purged");
    }

    #[test]
    fn purged_messages_are_deleted_under_a_constant_stream_of_writes() {
        let mut rig = Rig::new();
        (0..5_000).for_each(|seq| rig.put(Target::Current, KeyId(2), seq));
        rig.writer.synced_requests = 2;
        rig.writer.sync_duration = Duration::from_micros(1);
        let started = Instant::now();
        while rig.writer.has_maintenance() && started.elapsed() < Duration::from_secs(20) {
            rig.writer.write_queue.try_push(WriteOp::IsOwner(QUEUE, Epoch(0), Box::new(drop))).ok();
            match rig.writer.next() {
                WriterTask::Write => drop(rig.writer.write()),
                WriterTask::Sync => rig.writer.sync(),
                WriterTask::Maintain => rig.writer.run_maintenance(),
                WriterTask::Reclaim => rig.writer.run_reclaim(),
            }
        }
        assert_eq!(rig.left(), [0, 0], "purged messages are not deleted while writes keep arriving");
        assert_eq!(rig.writer.synced_requests, 0, "the writer never waited for a group");
    }

    /// A writer without its thread, with a purged queue.
    struct Rig {
        writer: Writer,
        compacted: Keyspace,
        current: Keyspace,
        _dir: tempfile::TempDir,
    }

    enum Target {
        Compacted,
        Current,
    }

    impl Rig {
        fn new() -> Self {
            let temp_dir = tempfile::TempDir::new().unwrap();
            let dir = temp_dir.path().join("queue");
            let Recovery { mut keyspaces, mut catalog, .. } = Keyspaces::open(&dir, 1 << 20).unwrap();
            assert_eq!(
                keyspaces.segments.current().first,
                Seq(1),
                "the first segment starts right after the compacted one"
            );
            let compacted = keyspaces.segments.compacted.keyspace.clone();
            let current = keyspaces.segments.current().keyspace.clone();
            catalog.purges.push(PurgeCursor::new(QUEUE, Seq(10_000)));
            let keyspaces = Arc::new(RwLock::new(Some(keyspaces)));
            let write_queue = Arc::new(WriteQueue::new(16));
            let writer =
                Writer::new(dir, DiskOptions::default(), write_queue, keyspaces, catalog, Arc::default());
            Self { writer, compacted, current, _dir: temp_dir }
        }

        fn write(&mut self, op: WriteOp) {
            assert!(self.writer.write_queue.try_push(op).is_ok());
            drop(self.writer.write());
        }

        fn put(&self, target: Target, key: KeyId, seq: u64) {
            let sent_at = UnixMillis(1);
            let cost = Cost(1);
            let meta = MessageMeta { seq: Seq(seq), sent_at, size: 4, cost, from: None, expires_at: None };
            let message_key = layout::message_key(QUEUE, key, &meta);
            let value = layout::message_value(&Payload { headers: "".into(), body: "body".into() });
            let keyspace = match target {
                Target::Compacted => &self.compacted,
                Target::Current => &self.current,
            };
            keyspace.insert(message_key.as_slice(), value).unwrap();
        }

        /// Returns the numbers of messages left in the compacted and in the current segment.
        fn left(&self) -> [usize; 2] {
            [&self.compacted, &self.current].map(|keyspace| keyspace.iter().count())
        }
    }
}
