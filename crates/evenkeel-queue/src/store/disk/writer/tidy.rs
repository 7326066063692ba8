//! What the writer does beside: generations come and go, what was purged is removed.

use fjall::PersistMode;

use super::Writer;
use crate::id::Seq;
use crate::store::StoreError;
use crate::store::disk::layout;
use crate::store::disk::opened::{Sweep, io};
use crate::store::disk::shelves::{Shelf, generation_name, old_name};

/// At most so many messages are looked at in one go.
const LOOK_MAX: usize = 1_024;

impl Writer {
    pub(super) fn has_chores(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| !ledger.swept.is_empty())
    }

    /// Removes some of what was purged.
    pub(super) fn tidy(&mut self) {
        let Some(sweep) = self.ledger.as_mut().and_then(|ledger| ledger.swept.pop()) else { return };
        let queue = sweep.queue;
        match self.sweep(sweep) {
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
    fn sweep(&mut self, mut sweep: Sweep) -> Result<Option<Sweep>, StoreError> {
        let mut opened = self.opened.write();
        let Some(opened) = opened.as_mut() else { return Ok(None) };
        let later = |shelf: &&mut Shelf| sweep.shelf <= shelf.first;
        let Some(shelf) = opened.shelves.all_mut().find(later) else { return Ok(None) };
        if sweep.shelf < shelf.first {
            (sweep.shelf, sweep.from) = (shelf.first, sweep.queue.0.to_be_bytes().to_vec());
        }
        let mut batch = opened.db.batch();
        let end = sweep.queue.0.saturating_add(1).to_be_bytes().to_vec();
        let mut looked = 0;
        for entry in shelf.keyspace.range(sweep.from.clone()..end).take(LOOK_MAX) {
            looked += 1;
            let place = entry.key().map_err(io)?;
            sweep.from = [&place, [0].as_slice()].concat();
            if layout::read_message_key(&place).is_some_and(|(.., header)| header.seq < sweep.below) {
                shelf.live = shelf.live.saturating_sub(1);
                batch.remove(&shelf.keyspace, place.clone());
                batch.remove(&opened.state, place);
            }
        }
        batch.durability(Some(PersistMode::Buffer)).commit().map_err(io)?;
        if looked < LOOK_MAX {
            sweep.shelf.0 += 1;
        }
        Ok(Some(sweep))
    }

    /// Opens the next generation when this one is full, and lets go of those in which nothing lives.
    pub(super) fn rotate_if_full(&mut self) {
        let is_full = self.opened.write().as_mut().is_some_and(|opened| opened.shelves.current().is_full());
        if !is_full {
            return;
        }
        if let Err(why) = self.rotate().and_then(|()| self.empty_sparse()).and_then(|()| self.drop_empty()) {
            tracing::warn!(%why, "generations of messages were not turned over, trying again");
        }
    }

    fn rotate(&mut self) -> Result<(), StoreError> {
        let mut opened = self.opened.write();
        let (Some(opened), Some(ledger)) = (opened.as_mut(), self.ledger.as_ref()) else { return Ok(()) };
        let next = Seq(ledger.seq);
        let shelf = Shelf::open(&opened.db, &generation_name(next), next, None).map_err(io)?;
        let end = layout::of_generation(opened.shelves.current().first);
        opened.meta.insert(end, next.0.to_be_bytes()).map_err(io)?;
        opened.db.persist(PersistMode::SyncAll).map_err(io)?;
        opened.shelves.current().end = Some(next);
        opened.shelves.generations.push(shelf);
        Ok(())
    }

    /// Copies what lives of generations that are nearly empty.
    fn empty_sparse(&mut self) -> Result<(), StoreError> {
        let mut opened = self.opened.write();
        let Some(opened) = opened.as_mut() else { return Ok(()) };
        let sparse = |shelf: &Shelf| shelf.live > 0 && shelf.is_sparse();
        while let Some(at) = opened.shelves.generations.iter().position(sparse) {
            let shelf = opened.shelves.generations[at].clone();
            let (mut batch, mut copied) = (opened.db.batch(), 0);
            for entry in shelf.keyspace.iter() {
                let (place, value) = entry.into_inner().map_err(io)?;
                // Gone from here in the same write: in both places, a message would be counted twice after a crash,
                // and outlive its acknowledgement.
                batch.remove(&shelf.keyspace, place.clone());
                batch.insert(&opened.shelves.old.keyspace, place, value);
                copied += 1;
            }
            batch.durability(Some(PersistMode::SyncAll)).commit().map_err(io)?;
            opened.shelves.old.live += copied;
            opened.shelves.old.appended += copied;
            opened.shelves.generations.remove(at);
            opened.meta.remove(layout::of_generation(shelf.first)).map_err(io)?;
            opened.db.delete_keyspace(shelf.keyspace).map_err(io)?;
        }
        Ok(())
    }

    fn drop_empty(&mut self) -> Result<(), StoreError> {
        let mut opened = self.opened.write();
        let Some(opened) = opened.as_mut() else { return Ok(()) };
        let empty = |shelf: &Shelf| shelf.live == 0 && shelf.end.is_some();
        while let Some(at) = opened.shelves.generations.iter().position(empty) {
            let shelf = opened.shelves.generations.remove(at);
            opened.meta.remove(layout::of_generation(shelf.first)).map_err(io)?;
            opened.db.delete_keyspace(shelf.keyspace).map_err(io)?;
        }
        if opened.shelves.old.live == 0 && opened.shelves.old.appended > 0 {
            let number = opened.shelves.old_number + 1;
            let fresh = Shelf::open(&opened.db, &old_name(number), Seq(0), Some(Seq(0))).map_err(io)?;
            let old = core::mem::replace(&mut opened.shelves.old, fresh);
            opened.shelves.old_number = number;
            opened.db.delete_keyspace(old.keyspace).map_err(io)?;
        }
        Ok(())
    }

    /// Begins another window of names that senders gave, when it is time.
    pub(super) fn rotate_dedup(&mut self) {
        let mut opened = self.opened.write();
        let Some(opened) = opened.as_mut() else { return };
        if let Err(why) = opened.dedup.rotate_if_due(&opened.db) {
            tracing::warn!(%why, "names of messages were not turned over, trying again");
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_policy::cost::Cost;
    use parking_lot::RwLock;

    use super::*;
    use crate::id::{KeyId, QueueId};
    use crate::message::{Header, Payload};
    use crate::store::disk::DiskOptions;
    use crate::store::disk::inbox::Inbox;
    use crate::store::disk::opened::{Opened, Opening};
    use crate::time::Wall;

    /// What outlived its generation lies behind, in the order of keys, what the first generation still holds.
    #[test]
    fn a_purge_leaves_nothing_on_the_shelf_after_the_old_one() {
        let place = tempfile::TempDir::new().unwrap();
        let folder = place.path().join("queue");
        let Opening { mut opened, mut ledger, .. } = Opened::open(&folder, 1 << 20).unwrap();
        assert_eq!(
            opened.shelves.current().first,
            Seq(1),
            "the first generation begins right after the old shelf"
        );
        let queue = QueueId(1);
        let value = layout::message_value(&Payload { headers: "".into(), body: "body".into() });
        let (old, current) = (opened.shelves.old.keyspace.clone(), opened.shelves.current().keyspace.clone());
        for (keyspace, key, seq) in [(&old, KeyId(9), 1), (&current, KeyId(2), 2), (&current, KeyId(9), 3)] {
            let (sent_at, cost) = (Wall(1), Cost(1));
            let header = Header { seq: Seq(seq), sent_at, size: 4, cost, from: None, expires_at: None };
            keyspace.insert(layout::message_key(queue, key, &header).as_slice(), value.clone()).unwrap();
        }
        ledger.swept.push(Sweep::new(queue, Seq(10)));
        let opened = Arc::new(RwLock::new(Some(opened)));
        let inbox = Arc::new(Inbox::new(1));
        let mut writer = Writer::new(folder, DiskOptions::default(), inbox, opened, ledger, Arc::default());
        while writer.has_chores() {
            writer.tidy();
        }
        let left = [&old, &current].map(|keyspace| keyspace.iter().count());
        assert_eq!(
            left,
            [0, 0],
            "messages of a purged queue are left on the old shelf, or on the one after it"
        );
    }
}
