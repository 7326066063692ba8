//! Contents of a queue, readable without asking its actor.
//!
//! Guarantees: a sent message is counted from before it is written until the actor counts it, and twice at most for
//! the moment in which it is handed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::message::AppendedMessage;
use crate::queue_state::QueueTotals;

/// Atomic copy of a queue's totals.
#[derive(Debug, Default)]
pub(crate) struct QueueGauge {
    pending: AtomicU64,
    in_flight: AtomicU64,
    delayed: AtomicU64,
    bytes: AtomicU64,
    expired: AtomicU64,
    with_ttl: AtomicU64,
    /// Messages expired under earlier actors.
    expired_before: AtomicU64,
    /// Messages that are being written.
    pub(crate) writing: AtomicTotals,
    /// Messages in the actor's mailbox; a new actor starts at zero, because it reads them from the store.
    mailbox: RwLock<Arc<AtomicTotals>>,
}

impl QueueGauge {
    /// Returns the totals; messages on their way to the actor count as pending.
    pub(crate) fn read(&self) -> QueueTotals {
        let (writing, writing_bytes) = self.writing.read();
        let (mailbox, mailbox_bytes) = self.mailbox.read().read();
        QueueTotals {
            pending: self.pending.load(Ordering::Relaxed) + writing + mailbox,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            delayed: self.delayed.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed) + writing_bytes + mailbox_bytes,
            expired: self.expired_before.load(Ordering::Relaxed) + self.expired.load(Ordering::Relaxed),
            with_ttl: self.with_ttl.load(Ordering::Relaxed) + writing + mailbox,
        }
    }

    pub(crate) fn store(&self, totals: QueueTotals) {
        self.pending.store(totals.pending, Ordering::Relaxed);
        self.in_flight.store(totals.in_flight, Ordering::Relaxed);
        self.delayed.store(totals.delayed, Ordering::Relaxed);
        self.bytes.store(totals.bytes, Ordering::Relaxed);
        self.expired.store(totals.expired, Ordering::Relaxed);
        self.with_ttl.store(totals.with_ttl, Ordering::Relaxed);
    }

    /// Continues with a new actor, whose state has these totals.
    pub(crate) fn transfer_to(&self, totals: QueueTotals, mailbox: Arc<AtomicTotals>) {
        let mut current = self.mailbox.write();
        self.expired_before.fetch_add(self.expired.load(Ordering::Relaxed), Ordering::Relaxed);
        self.store(totals);
        *current = mailbox;
    }

    /// Counts written messages as in the mailbox, and no longer as being written.
    pub(crate) fn move_to_mailbox(&self, appended: &[AppendedMessage], mailbox: &AtomicTotals) {
        let (count, bytes) = count_bytes(appended);
        mailbox.add(count, bytes);
        // Messages moved here from another queue had no reservation.
        let sent = appended.iter().filter(|message| message.meta.from.is_none());
        let (count, bytes) = count_bytes(sent);
        self.writing.subtract(count, bytes);
    }
}

/// Number of messages and their bytes.
#[derive(Debug, Default)]
pub(crate) struct AtomicTotals {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl AtomicTotals {
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

/// Returns the number of messages and their bytes.
pub(super) fn count_bytes<'a>(messages: impl IntoIterator<Item = &'a AppendedMessage>) -> (u64, u64) {
    let sizes = messages.into_iter().map(|message| u64::from(message.meta.size));
    sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size))
}
