//! Message counts and bytes of a queue, readable without asking its actor.
//!
//! Guarantees: a message is counted from before it is written until it is removed; while it is handed over to the actor
//! it may briefly be counted twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::message::AppendedMessage;
use crate::queue_state::QueueTotals;
use crate::store::StoreError;

/// A queue's totals as atomics; a read is not a consistent snapshot.
#[derive(Debug, Default)]
pub(crate) struct SharedQueueTotals {
    pending: AtomicU64,
    in_flight: AtomicU64,
    delayed: AtomicU64,
    bytes: AtomicU64,
    expired: AtomicU64,
    with_ttl: AtomicU64,
    /// Messages that expired while earlier actors ran the queue.
    expired_by_earlier_actors: AtomicU64,
    /// Error of the last read of messages from the store, if it failed.
    read_error: Mutex<Option<StoreError>>,
    /// Messages that are being written.
    pub(crate) writing: AtomicCountAndBytes,
    /// Messages in the actor's mailbox. Replaced with the actor: a new actor reads its messages from the store.
    mailbox: RwLock<Arc<AtomicCountAndBytes>>,
}

impl SharedQueueTotals {
    /// Returns the totals; messages that the actor has not handled yet count as pending and, to be safe, as with a TTL.
    pub(crate) fn read(&self) -> QueueTotals {
        let (writing, writing_bytes) = self.writing.read();
        let (mailbox, mailbox_bytes) = self.mailbox.read().read();
        QueueTotals {
            pending: self.pending.load(Ordering::Relaxed) + writing + mailbox,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            delayed: self.delayed.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed) + writing_bytes + mailbox_bytes,
            expired: self.expired_by_earlier_actors.load(Ordering::Relaxed)
                + self.expired.load(Ordering::Relaxed),
            with_ttl: self.with_ttl.load(Ordering::Relaxed) + writing + mailbox,
        }
    }

    pub(crate) fn set_actor_totals(&self, totals: QueueTotals) {
        self.pending.store(totals.pending, Ordering::Relaxed);
        self.in_flight.store(totals.in_flight, Ordering::Relaxed);
        self.delayed.store(totals.delayed, Ordering::Relaxed);
        self.bytes.store(totals.bytes, Ordering::Relaxed);
        self.expired.store(totals.expired, Ordering::Relaxed);
        self.with_ttl.store(totals.with_ttl, Ordering::Relaxed);
    }

    pub(super) fn set_read_error(&self, error: Option<StoreError>) {
        *self.read_error.lock() = error;
    }

    /// Returns why the queue is not empty although no message can be delivered, if the store could not be read.
    pub(crate) fn unreadable(&self) -> Option<StoreError> {
        self.read_error.lock().clone().filter(|_| self.pending.load(Ordering::Relaxed) > 0)
    }

    /// Switches to a new actor, with the totals of its state and the counts of its mailbox.
    pub(crate) fn replace_actor(&self, totals: QueueTotals, mailbox: Arc<AtomicCountAndBytes>) {
        let mut current = self.mailbox.write();
        self.expired_by_earlier_actors.fetch_add(self.expired.load(Ordering::Relaxed), Ordering::Relaxed);
        self.set_actor_totals(totals);
        *current = mailbox;
    }

    /// Moves written messages from the count of `writing` to that of the mailbox.
    pub(crate) fn move_to_mailbox(&self, appended: &[AppendedMessage], mailbox: &AtomicCountAndBytes) {
        let (count, bytes) = count_and_bytes(appended);
        mailbox.add(count, bytes);
        // Messages moved here from another queue were never counted in `writing`.
        let sent = appended.iter().filter(|message| message.meta.from.is_none());
        let (count, bytes) = count_and_bytes(sent);
        self.writing.subtract(count, bytes);
    }
}

/// A number of messages and their total size, as atomics.
#[derive(Debug, Default)]
pub(crate) struct AtomicCountAndBytes {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl AtomicCountAndBytes {
    pub(crate) fn add(&self, count: u64, bytes: u64) {
        self.count.fetch_add(count, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, count: u64, bytes: u64) {
        self.count.fetch_sub(count, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Returns the number of messages and their total size in bytes.
pub(super) fn count_and_bytes<'a>(messages: impl IntoIterator<Item = &'a AppendedMessage>) -> (u64, u64) {
    let sizes = messages.into_iter().map(|message| u64::from(message.meta.size));
    sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size))
}
