//! What the writer does beside: generations come and go, what was purged is removed.

use std::time::Instant;

use fjall::{Keyspace, PersistMode};

use super::Writer;
use crate::id::Seq;
use crate::message::MessageMeta;
use crate::store::StoreError;
use crate::store::disk::keyspaces::{PurgeCursor, io};
use crate::store::disk::layout;
use crate::store::disk::segments::{Segment, generation_name, old_name};

/// At most so many messages are looked at in one go.
const LOOK_MAX: usize = 1_024;

impl Writer {
    pub(super) fn has_chores(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| !ledger.swept.is_empty())
    }

    /// Removes some of what was purged.
    pub(super) fn run_maintenance(&mut self) {
        self.tidied_at = Instant::now();
        let Some(sweep) = self.ledger.as_mut().and_then(|ledger| ledger.swept.pop()) else { return };
        let queue = sweep.queue;
        match self.purge_some(sweep) {
            Ok(Some(rest)) => {
                if let Some(ledger) = self.ledger.as_mut() {
                    ledger.swept.push(rest);
                }
            }
            Ok(None) => {}
            Err(why) => tracing::warn!(queue = queue.0, %why, "purged messages stay until the next start"),
        }
    }

    /// Goes on where it ended: from the beginning it would wade through the tombstones of what it removed before.
    fn purge_some(&mut self, mut sweep: PurgeCursor) -> Result<Option<PurgeCursor>, StoreError> {
        let mut opened = self.opened.write();
        let Some(opened) = opened.as_mut() else { return Ok(None) };
        let later = |shelf: &&mut Segment| sweep.shelf <= shelf.first;
        let Some(shelf) = opened.shelves.all_mut().find(later) else { return Ok(None) };
        if sweep.shelf < shelf.first {
            (sweep.shelf, sweep.from) = (shelf.first, sweep.queue.0.to_be_bytes().to_vec());
        }
        let mut batch = opened.db.batch();
        let end = sweep.queue.0.saturating_add(1).to_be_bytes().to_vec();
        let mut looked = 0;
        let mut removed = 0;
        for entry in shelf.keyspace.range(sweep.from.clone()..end).take(LOOK_MAX) {
            looked += 1;
            let place = entry.key().map_err(io)?;
            sweep.from = [&place, [0].as_slice()].concat();
            if layout::read_message_key(&place).is_some_and(|(.., header)| header.seq < sweep.below) {
                removed += 1;
                batch.remove(&shelf.keyspace, place.clone());
                batch.remove(&opened.state, place);
            }
        }
        batch.durability(Some(PersistMode::Buffer)).commit().map_err(io)?;
        shelf.live = shelf.live.saturating_sub(removed);
        if looked < LOOK_MAX {
            (sweep.shelf.0, sweep.from) = (sweep.shelf.0 + 1, sweep.queue.0.to_be_bytes().to_vec());
        }
        Ok(Some(sweep))
    }

    /// Opens the next generation when this one is full, and lets go of those in which nothing lives.
    pub(super) fn rotate_if_full(&mut self) {
        let is_full = self.opened.write().as_mut().is_some_and(|opened| opened.shelves.current().is_full());
        if is_full {
            let turned = self.rotate().and_then(|()| self.compact_sparse()).and_then(|()| self.drop_empty());
            tell_failed("generations of messages", turned);
        }
    }

    fn rotate(&mut self) -> Result<(), StoreError> {
        let Some((shelf, next)) = self.open_next()? else { return Ok(()) };
        self.persist(PersistMode::SyncAll)?;
        if let Some(opened) = self.opened.write().as_mut() {
            opened.shelves.current().end = Some(next);
            opened.shelves.segments.push(shelf);
        }
        Ok(())
    }

    /// Makes the next generation, and writes down where this one ends.
    fn open_next(&mut self) -> Result<Option<(Segment, Seq)>, StoreError> {
        let mut opened = self.opened.write();
        let (Some(opened), Some(ledger)) = (opened.as_mut(), self.ledger.as_ref()) else { return Ok(None) };
        let next = Seq(ledger.seq);
        let shelf = Segment::open(&opened.db, &generation_name(next), next, None).map_err(io)?;
        let end = layout::of_generation(opened.shelves.current().first);
        opened.meta.insert(end, next.0.to_be_bytes()).map_err(io)?;
        Ok(Some((shelf, next)))
    }

    /// Copies what lives of generations that are nearly empty, and drops them once that is on disk.
    fn compact_sparse(&mut self) -> Result<(), StoreError> {
        while let Some(emptied) = self.empty_one()? {
            self.persist(PersistMode::SyncAll)?;
            if let Some(opened) = self.opened.write().as_mut() {
                opened.meta.remove(layout::of_generation(emptied.first)).map_err(io)?;
                opened.db.delete_keyspace(emptied.keyspace).map_err(io)?;
            }
        }
        Ok(())
    }

    fn empty_one(&mut self) -> Result<Option<Segment>, StoreError> {
        let mut opened = self.opened.write();
        let (Some(opened), Some(ledger)) = (opened.as_mut(), self.ledger.as_ref()) else { return Ok(None) };
        let sparse = |shelf: &Segment| shelf.live > 0 && shelf.is_sparse();
        let Some(at) = opened.shelves.segments.iter().position(sparse) else { return Ok(None) };
        let mut batch = opened.db.batch();
        let mut copied = 0;
        let keyspace = opened.shelves.segments[at].keyspace.clone();
        for entry in keyspace.iter() {
            let (place, value) = entry.into_inner().map_err(io)?;
            // Gone from here in the same write: in both places, a message would be counted twice after a crash,
            // and outlive its acknowledgement.
            batch.remove(&keyspace, place.clone());
            // A sweep has passed the old shelf, and would leave there what it has not come to here.
            let is_purged = |(queue, _, header): (_, _, MessageMeta)| header.seq < ledger.purged_below(queue);
            if layout::read_message_key(&place).is_some_and(is_purged) {
                batch.remove(&opened.state, place);
                continue;
            }
            batch.insert(&opened.shelves.compacted.keyspace, place, value);
            copied += 1;
        }
        batch.durability(Some(PersistMode::Buffer)).commit().map_err(io)?;
        opened.shelves.compacted.live += copied;
        opened.shelves.compacted.appended += copied;
        Ok(Some(opened.shelves.segments.remove(at)))
    }

    fn drop_empty(&mut self) -> Result<(), StoreError> {
        let mut opened = self.opened.write();
        let Some(opened) = opened.as_mut() else { return Ok(()) };
        opened.drop_emptied()?;
        if opened.shelves.compacted.live == 0 && opened.shelves.compacted.appended > 0 {
            let number = opened.shelves.compacted_number + 1;
            let fresh = Segment::open(&opened.db, &old_name(number), Seq(0), Some(Seq(0))).map_err(io)?;
            let old = core::mem::replace(&mut opened.shelves.compacted, fresh);
            opened.shelves.compacted_number = number;
            opened.db.delete_keyspace(old.keyspace).map_err(io)?;
        }
        Ok(())
    }

    /// Begins another window of names that senders gave, when it is time.
    pub(super) fn rotate_dedup(&mut self) {
        let next = self.opened.read().as_ref().map(|opened| opened.dedup.next_if_due(&opened.db));
        let turned = match next {
            None | Some(Ok(None)) => return,
            Some(Ok(Some(next))) => self.turn_dedup(next),
            Some(Err(why)) => Err(why),
        };
        tell_failed("names of messages", turned);
    }

    fn turn_dedup(&mut self, next: Keyspace) -> Result<(), StoreError> {
        self.persist(PersistMode::SyncAll)?;
        match self.opened.write().as_mut() {
            Some(opened) => opened.dedup.turn(&opened.db, next),
            None => Ok(()),
        }
    }

    /// Has the owners of queues told as before, after the folder was opened again.
    pub(super) fn restore_tails(&mut self) {
        let Some(ledger) = self.ledger.as_mut() else { return };
        for (id, tail) in self.tails.drain(..) {
            if let Some(queue) = ledger.queues.get_mut(&id) {
                queue.tail = Some(tail);
            }
        }
    }
}

/// Says that generations were not turned over; what stopped the store has been said.
fn tell_failed(what: &str, turned: Result<(), StoreError>) {
    match turned {
        Ok(()) | Err(StoreError::Unknown(_)) => {}
        Err(why) => tracing::warn!(%why, "{what} were not turned over, trying again"),
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

    /// What outlived its generation lies behind, in the order of keys, what the first generation still holds.
    #[test]
    fn a_purge_leaves_nothing_on_the_shelf_after_the_old_one() {
        let mut bench = Bench::new();
        bench.put(Where::Old, KeyId(9), 1);
        bench.put(Where::Current, KeyId(2), 2);
        bench.put(Where::Current, KeyId(9), 3);
        while bench.writer.has_chores() {
            bench.writer.run_maintenance();
        }
        assert_eq!(bench.left(), [0, 0], "purged messages are left on the old shelf, or on the one after it");
    }

    /// The sweep has come past the old shelf when the next generation is emptied onto it.
    #[test]
    fn what_was_purged_is_not_copied_to_the_old_shelf() {
        let mut bench = Bench::new();
        bench.ask(WriteOp::PutQueue(None, Box::new(QueueDescriptor::plain()), Box::new(drop)));
        bench.ask(WriteOp::Purge(QUEUE, Box::new(drop)));
        bench.writer.rotate().unwrap();
        (0..3).for_each(|seq| bench.put(Where::Current, KeyId(2), seq));
        if let Some(opened) = bench.writer.opened.write().as_mut() {
            let shelf = &mut opened.shelves.segments[0];
            (shelf.appended, shelf.live) = (10_000, 3);
        }
        bench.writer.compact_sparse().unwrap();
        assert_eq!(bench.old.iter().count(), 2, "the purge was before the second of three");
    }

    #[test]
    fn what_was_purged_is_removed_while_requests_never_pause() {
        let mut bench = Bench::new();
        (0..5_000).for_each(|seq| bench.put(Where::Current, KeyId(2), seq));
        (bench.writer.flushed, bench.writer.flush_took) = (2, Duration::from_micros(1));
        let begun = Instant::now();
        while bench.writer.has_chores() && begun.elapsed() < Duration::from_secs(20) {
            bench.writer.inbox.try_push(WriteOp::Renew(QUEUE, Epoch(0), Box::new(drop))).ok();
            match bench.writer.next() {
                WriterTask::Write => drop(bench.writer.write()),
                WriterTask::Sync => bench.writer.sync(),
                WriterTask::Tidy => bench.writer.run_maintenance(),
            }
        }
        assert_eq!(bench.left(), [0, 0], "purged messages stay while others are busy");
        assert_eq!(bench.writer.flushed, 0, "those whom one flush answered were not waited for meanwhile");
    }

    /// A writer that nobody runs, with a queue that was purged.
    struct Bench {
        writer: Writer,
        old: Keyspace,
        current: Keyspace,
        _place: tempfile::TempDir,
    }

    enum Where {
        Old,
        Current,
    }

    impl Bench {
        fn new() -> Self {
            let place = tempfile::TempDir::new().unwrap();
            let folder = place.path().join("queue");
            let Recovery { mut opened, mut ledger, .. } = Keyspaces::open(&folder, 1 << 20).unwrap();
            assert_eq!(opened.shelves.current().first, Seq(1), "it begins right after the old shelf");
            let old = opened.shelves.compacted.keyspace.clone();
            let current = opened.shelves.current().keyspace.clone();
            ledger.swept.push(PurgeCursor::new(QUEUE, Seq(10_000)));
            let opened = Arc::new(RwLock::new(Some(opened)));
            let inbox = Arc::new(WriteQueue::new(16));
            let writer = Writer::new(folder, DiskOptions::default(), inbox, opened, ledger, Arc::default());
            Self { writer, old, current, _place: place }
        }

        fn ask(&mut self, op: WriteOp) {
            assert!(self.writer.inbox.try_push(op).is_ok());
            drop(self.writer.write());
        }

        fn put(&self, shelf: Where, key: KeyId, seq: u64) {
            let sent_at = UnixMillis(1);
            let cost = Cost(1);
            let header = MessageMeta { seq: Seq(seq), sent_at, size: 4, cost, from: None, expires_at: None };
            let place = layout::message_key(QUEUE, key, &header);
            let value = layout::message_value(&Payload { headers: "".into(), body: "body".into() });
            let keyspace = match shelf {
                Where::Old => &self.old,
                Where::Current => &self.current,
            };
            keyspace.insert(place.as_slice(), value).unwrap();
        }

        /// How many messages are left, on the old shelf and on the current one.
        fn left(&self) -> [usize; 2] {
            [&self.old, &self.current].map(|keyspace| keyspace.iter().count())
        }
    }
}
