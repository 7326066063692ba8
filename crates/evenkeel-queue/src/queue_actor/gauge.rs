//! What a queue holds, for those who may not ask its keeper.
//!
//! Bound: a message that was sent is counted from before it is written until the keeper has counted it, never twice
//! for longer than it takes to hand it on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::message::AppendedMessage;
use crate::queue_state::QueueTotals;

/// What a queue holds, for those who may not ask its keeper.
#[derive(Debug, Default)]
pub(crate) struct QueueGauge {
    pending: AtomicU64,
    in_flight: AtomicU64,
    delayed: AtomicU64,
    bytes: AtomicU64,
    expired: AtomicU64,
    timed: AtomicU64,
    /// What expired under earlier keepers.
    expired_before: AtomicU64,
    /// Messages that are being written.
    pub(crate) coming: AtomicTotals,
    /// Messages in the keeper's mailbox; they go with the keeper, because its successor reads them from the store.
    mail: RwLock<Arc<AtomicTotals>>,
}

impl QueueGauge {
    /// Reads what the book holds, and what is on its way into it as waiting.
    pub(crate) fn read(&self) -> QueueTotals {
        let (coming, coming_bytes) = self.coming.read();
        let (mail, mail_bytes) = self.mail.read().read();
        QueueTotals {
            pending: self.pending.load(Ordering::Relaxed) + coming + mail,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            delayed: self.delayed.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed) + coming_bytes + mail_bytes,
            expired: self.expired_before.load(Ordering::Relaxed) + self.expired.load(Ordering::Relaxed),
            timed: self.timed.load(Ordering::Relaxed) + coming + mail,
        }
    }

    pub(crate) fn show(&self, totals: QueueTotals) {
        self.pending.store(totals.pending, Ordering::Relaxed);
        self.in_flight.store(totals.in_flight, Ordering::Relaxed);
        self.delayed.store(totals.delayed, Ordering::Relaxed);
        self.bytes.store(totals.bytes, Ordering::Relaxed);
        self.expired.store(totals.expired, Ordering::Relaxed);
        self.timed.store(totals.timed, Ordering::Relaxed);
    }

    /// Goes on with another keeper, whose book holds this.
    pub(crate) fn transfer_to(&self, totals: QueueTotals, mail: Arc<AtomicTotals>) {
        let mut current = self.mail.write();
        self.expired_before.fetch_add(self.expired.load(Ordering::Relaxed), Ordering::Relaxed);
        self.show(totals);
        *current = mail;
    }

    /// Counts messages that were written as in the mailbox `mail`.
    pub(crate) fn arrive(&self, appended: &[AppendedMessage], mail: &AtomicTotals) {
        let (count, bytes) = weigh(appended);
        mail.add(count, bytes);
        // What another queue moved here was not expected.
        let sent = appended.iter().filter(|message| message.header.from.is_none());
        let (count, bytes) = weigh(sent);
        self.coming.take(count, bytes);
    }
}

/// Messages and their bytes.
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

    pub(crate) fn take(&self, count: u64, bytes: u64) {
        self.count.fetch_sub(count, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Counts messages and their bytes.
pub(super) fn weigh<'a>(messages: impl IntoIterator<Item = &'a AppendedMessage>) -> (u64, u64) {
    let sizes = messages.into_iter().map(|message| u64::from(message.header.size));
    sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size))
}
