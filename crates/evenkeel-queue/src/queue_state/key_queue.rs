//! One key's messages: redeliveries, a prefetch window of the next messages, and a count of the rest on disk.
//!
//! The window is the key's prefetch buffer. Keys have separate windows, so one key's backlog causes no head-of-line
//! blocking for the others. On a FIFO queue an unfinished message blocks the rest of its key.
//!
//! Guarantees: redeliveries and delayed messages that are due come first, then messages in the order in which they were sent;
//! on a FIFO queue all by sequence number.
//! Limits: of the messages that were neither delivered nor delayed, at most one window is in memory, however long the backlog;
//! the rest is a count and a cursor. A key without messages has no [`Backlog`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::DecayingHistogram;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::weight::Weight;

use super::DeliveryCount;
use super::cost::ServiceTime;
use super::invisible::InvisibleCounts;
use super::limiter::KeyLimiters;
use crate::id::{KeyId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::time::UnixMillis;

/// Upper limit of a window, in messages; many keys or large messages lower it.
const WINDOW_MAX: usize = 256;
const WINDOW_MIN: usize = 4;
/// Maximum number of messages in all windows; exceeded if there are so many keys that `WINDOW_MIN` for each is more.
const WINDOW_TOTAL_MAX: usize = 1 << 18;
/// Bytes of cached payloads of ready messages; other payloads are read from the store at delivery.
pub(super) const PAYLOAD_BYTES_MAX: usize = 32 << 20;

/// Returns the window length for a key whose messages have `size` bytes on average, among `keys` keys.
///
/// A window is sized so that payloads fit too: a missing payload costs one read at delivery, while a prefetch reads
/// many in sequence.
fn window_len(keys: usize, size: u32) -> usize {
    let keys = keys.max(1);
    let with_payload = PAYLOAD_BYTES_MAX / keys / size.max(1) as usize;
    (WINDOW_TOTAL_MAX / keys).min(with_payload).clamp(WINDOW_MIN, WINDOW_MAX)
}

/// A message in memory, with or without its payload.
#[derive(Clone, Debug)]
pub(super) struct MessageEntry {
    pub(super) meta: MessageMeta,
    pub(super) deliveries: DeliveryCount,
    pub(super) first_delivered_at: Option<UnixMillis>,
    /// Time from which the first delivery was possible.
    pub(super) ready_at: UnixMillis,
    /// Charge of the delivery in flight.
    pub(super) charged: Cost,
    pub(super) leased_at: UnixMillis,
    /// Cached while memory allows; otherwise read at delivery.
    pub(super) payload: Option<Payload>,
}

impl MessageEntry {
    /// Creates an entry for a message that was never delivered, without its payload.
    pub(super) fn new(meta: MessageMeta) -> Self {
        Self {
            meta,
            deliveries: DeliveryCount::default(),
            first_delivered_at: None,
            ready_at: meta.sent_at,
            charged: Cost::ZERO,
            leased_at: UnixMillis::default(),
            payload: None,
        }
    }
}

/// State of a key's prefetch from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefetchState {
    Idle,
    /// A read of the messages after this one is under way.
    Requested {
        after: Seq,
    },
}

/// Ordering state of a key on a FIFO queue.
#[derive(Debug, Default)]
pub(super) struct FifoState {
    /// Messages in flight, delayed, exhausted or being removed; each blocks the later ones.
    unfinished: BTreeSet<Seq>,
    /// The last receive that leased messages of the key; one receive may lease several, in order.
    last_receive: u64,
    /// The last message that this receive leased.
    last_leased: Seq,
}

/// The messages of a key, of which the invisible ones are only counted.
///
/// Allocated for the key's first message and dropped when the key becomes idle.
#[derive(Debug)]
struct Backlog {
    /// Prefetch window: never delivered, in order.
    window: VecDeque<MessageEntry>,
    /// To be redelivered, or delayed and due.
    redeliveries: BTreeMap<Seq, MessageEntry>,
    /// Ready messages after the cursor that are only on disk; excludes `skip`.
    on_disk: u64,
    /// The last message that entered the window or bypassed it.
    cursor: Seq,
    /// Messages after the cursor that a prefetch must skip, because they were removed or are tracked elsewhere: delayed, in
    /// flight, or recovered with a delivery state.
    skip: BTreeSet<Seq>,
    /// Members of `skip` that are deleted, but that a prefetch under way may still return.
    deleted: Vec<Seq>,
    prefetch: PrefetchState,
    /// Start of the wait for a prefetch, while no message in memory can be delivered.
    prefetch_wait_since: Option<UnixMillis>,
    invisible: InvisibleCounts,
}

/// The backlog of an idle key.
static NO_BACKLOG: Backlog = Backlog::new();

impl Backlog {
    const fn new() -> Self {
        Self {
            window: VecDeque::new(),
            redeliveries: BTreeMap::new(),
            on_disk: 0,
            cursor: Seq(0),
            skip: BTreeSet::new(),
            deleted: Vec::new(),
            prefetch: PrefetchState::Idle,
            prefetch_wait_since: None,
            invisible: InvisibleCounts::NONE,
        }
    }

    /// Moves the cursor and removes the messages that it passes from `skip`; deleted ones would stay there forever.
    fn advance_cursor(&mut self, seq: Seq) {
        self.cursor = seq;
        while self.skip.first().is_some_and(|skipped| *skipped <= seq) {
            self.skip.pop_first();
        }
    }

    fn end_prefetch(&mut self) {
        self.prefetch = PrefetchState::Idle;
        for deleted in self.deleted.drain(..) {
            self.skip.remove(&deleted);
        }
    }
}

#[derive(Debug)]
pub(super) struct KeyQueue {
    pub(super) key: KeyId,
    pub(super) name: Arc<str>,
    pub(super) tenant: TenantId,
    /// The weight in force, from a rule or from a message.
    pub(super) weight: Weight,
    pub(super) limiters: KeyLimiters,
    backlog: Option<Box<Backlog>>,
    /// Moving average of message sizes.
    size: u32,
    /// Place of the key in the expiry index: a time that is not after the `sent_at` of its oldest ready message.
    pub(super) expiry_indexed_at: Option<UnixMillis>,
    pub(super) delivered: u64,
    pub(super) redelivered: u64,
    /// Wait times until the first delivery; allocated at the first one.
    pub(super) waits: Option<Box<DecayingHistogram>>,
    /// Recent service time, for cost by time.
    pub(super) service_time: ServiceTime,
    /// Set on FIFO queues only.
    pub(super) fifo: Option<Box<FifoState>>,
    /// Set while the schedule's idle list contains the key.
    pub(super) is_listed_idle: bool,
}

impl KeyQueue {
    pub(super) fn new(key: KeyId, name: Arc<str>, tenant: TenantId, weight: Weight) -> Self {
        Self {
            key,
            name,
            tenant,
            weight,
            limiters: KeyLimiters::default(),
            backlog: None,
            size: 0,
            expiry_indexed_at: None,
            delivered: 0,
            redelivered: 0,
            waits: None,
            service_time: ServiceTime::default(),
            fifo: None,
            is_listed_idle: false,
        }
    }

    fn backlog(&self) -> &Backlog {
        self.backlog.as_deref().unwrap_or(&NO_BACKLOG)
    }

    fn backlog_mut(&mut self) -> &mut Backlog {
        self.backlog.get_or_insert_with(|| Box::new(Backlog::new()))
    }

    /// Returns how many messages the window may hold among `keys` keys.
    pub(super) fn window_len(&self, keys: usize) -> usize {
        window_len(keys, self.size)
    }

    fn record_size(&mut self, size: u32) {
        self.size = if self.size == 0 { size } else { self.size - self.size / 8 + size / 8 };
    }

    /// Appends a message; returns the entry if the window is full and the message stays on disk.
    pub(super) fn append(&mut self, entry: MessageEntry, window_len: usize) -> Option<MessageEntry> {
        self.record_size(entry.meta.size);
        let backlog = self.backlog_mut();
        if backlog.on_disk == 0 && backlog.window.len() < window_len {
            backlog.advance_cursor(entry.meta.seq);
            backlog.window.push_back(entry);
            return None;
        }
        backlog.on_disk += 1;
        Some(entry)
    }

    /// Restores the key from the store: `count` messages from `first` on; those in `skip` have a delivery state.
    pub(super) fn restore(&mut self, first: Seq, count: u64, bytes: u64, skip: BTreeSet<Seq>) {
        self.size = u32::try_from(bytes / count.max(1)).unwrap_or(u32::MAX);
        let backlog = self.backlog_mut();
        backlog.cursor = Seq(first.0.saturating_sub(1));
        backlog.on_disk = count - skip.len() as u64;
        backlog.skip = skip;
    }

    /// Passes over an appended message that does not enter the window, such as a delayed one.
    pub(super) fn pass_over(&mut self, seq: Seq) {
        let backlog = self.backlog_mut();
        if backlog.on_disk == 0 {
            backlog.advance_cursor(seq);
        } else {
            backlog.skip.insert(seq);
        }
    }

    /// Puts a message before the window, to be delivered next.
    pub(super) fn requeue(&mut self, entry: MessageEntry) {
        self.backlog_mut().redeliveries.insert(entry.meta.seq, entry);
    }

    pub(super) fn take_redelivery(&mut self, seq: Seq) -> Option<MessageEntry> {
        self.backlog.as_mut()?.redeliveries.remove(&seq)
    }

    pub(super) fn redelivery(&self, seq: Seq) -> Option<&MessageEntry> {
        self.backlog().redeliveries.get(&seq)
    }

    /// Returns the next message without removing it.
    pub(super) fn next(&self) -> Option<&MessageMeta> {
        if self.fifo.is_some() {
            let head = self.head()?;
            return self.firsts().find(|meta| meta.seq == head);
        }
        self.firsts().next()
    }

    /// Removes and returns the next message.
    pub(super) fn pop(&mut self) -> Option<MessageEntry> {
        let fifo_head = if self.fifo.is_some() { Some(self.head()?) } else { None };
        let backlog = self.backlog.as_mut()?;
        let redelivery = match fifo_head {
            Some(head) => backlog.redeliveries.remove(&head),
            None => backlog.redeliveries.pop_first().map(|(_, entry)| entry),
        };
        redelivery.or_else(|| backlog.window.pop_front())
    }

    /// Returns the next message in sending order; `None` while an earlier one may still be on disk only.
    fn head(&self) -> Option<Seq> {
        let backlog = self.backlog();
        let redelivery = backlog.redeliveries.first_key_value().map(|(seq, _)| *seq);
        let window = backlog.window.front().map(|entry| entry.meta.seq);
        let head = redelivery.into_iter().chain(window).min()?;
        (backlog.on_disk == 0 || head <= backlog.cursor).then_some(head)
    }

    /// Reports whether an earlier unfinished message of this FIFO key blocks the next one. Messages that `receive` itself
    /// leased do not block it.
    pub(super) fn is_blocked(&self, receive: u64) -> bool {
        let Some(fifo) = &self.fifo else { return false };
        // When this receive leased `last_leased`, it had leased all unfinished messages before that one too.
        let from = if fifo.last_receive == receive { Seq(fifo.last_leased.0 + 1) } else { Seq(0) };
        // If no next message is in memory, the next one is after the cursor.
        let next = self.head().unwrap_or(Seq(self.cursor().0 + 1));
        from < next && fifo.unfinished.range(from..next).next().is_some()
    }

    /// Records on a FIFO queue that a message became unfinished.
    pub(super) fn add_unfinished(&mut self, seq: Seq) {
        if let Some(fifo) = &mut self.fifo {
            fifo.unfinished.insert(seq);
        }
    }

    /// Records on a FIFO queue that a message is ready or gone.
    pub(super) fn remove_unfinished(&mut self, seq: Seq) {
        if let Some(fifo) = &mut self.fifo {
            fifo.unfinished.remove(&seq);
        }
    }

    /// Records on a FIFO queue that `receive` leases a message.
    pub(super) fn record_lease(&mut self, receive: u64, seq: Seq) {
        if let Some(fifo) = &mut self.fifo {
            fifo.last_receive = receive;
            fifo.last_leased = seq;
        }
    }

    /// Iterates over the ready messages in memory: redeliveries, then the window.
    pub(super) fn ready(&self) -> impl Iterator<Item = &MessageEntry> {
        let backlog = self.backlog();
        backlog.redeliveries.values().chain(&backlog.window)
    }

    /// Returns the first redelivery and the first message of the window. One of them is the oldest ready message, except for
    /// messages that were moved here.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &MessageMeta> {
        let backlog = self.backlog();
        let redelivery = backlog.redeliveries.first_key_value().map(|(_, entry)| entry);
        redelivery.into_iter().chain(backlog.window.front()).map(|entry| &entry.meta)
    }

    /// Adds prefetched messages to the window; returns the bytes of the payloads it keeps.
    pub(super) fn apply_prefetch(&mut self, found: impl IntoIterator<Item = MessageEntry>) -> usize {
        let mut payload_bytes = 0;
        for entry in found {
            let seq = entry.meta.seq;
            let backlog = self.backlog_mut();
            if seq <= backlog.cursor {
                continue;
            }
            let is_skipped = backlog.skip.contains(&seq);
            backlog.advance_cursor(seq);
            if !is_skipped {
                let size = entry.meta.size;
                backlog.on_disk = backlog.on_disk.saturating_sub(1);
                payload_bytes += entry.payload.as_ref().map_or(0, Payload::size);
                backlog.window.push_back(entry);
                self.record_size(size);
            }
        }
        self.end_prefetch();
        payload_bytes
    }

    /// Reports whether the prefetch after `after` is the one under way.
    pub(super) fn is_prefetching_after(&self, after: Seq) -> bool {
        self.backlog().prefetch == PrefetchState::Requested { after }
    }

    pub(super) fn begin_prefetch(&mut self) {
        let backlog = self.backlog_mut();
        backlog.prefetch = PrefetchState::Requested { after: backlog.cursor };
    }

    pub(super) fn end_prefetch(&mut self) {
        if let Some(backlog) = &mut self.backlog {
            backlog.end_prefetch();
        }
    }

    /// Returns when the key began to wait for its prefetch, with no message in memory that can be delivered.
    pub(super) fn prefetch_wait_since(&self) -> Option<UnixMillis> {
        self.backlog().prefetch_wait_since
    }

    /// Updates [`prefetch_wait_since`](Self::prefetch_wait_since); reports whether a wait begins now.
    pub(super) fn update_prefetch_wait(&mut self, now: UnixMillis) -> bool {
        let waits_for_store = !self.is_ready() && self.on_disk_len() > 0;
        let Some(backlog) = &mut self.backlog else { return false };
        let since = backlog.prefetch_wait_since.filter(|_| waits_for_store);
        backlog.prefetch_wait_since = waits_for_store.then(|| since.unwrap_or(now));
        waits_for_store && since.is_none()
    }

    /// Drops a deleted message from `skip`, once no prefetch under way can return it.
    pub(super) fn forget_deleted(&mut self, seq: Seq) {
        let Some(backlog) = &mut self.backlog else { return };
        match backlog.prefetch {
            PrefetchState::Requested { .. } if backlog.skip.contains(&seq) => backlog.deleted.push(seq),
            PrefetchState::Requested { .. } | PrefetchState::Idle => drop(backlog.skip.remove(&seq)),
        }
    }

    /// Removes a ready message from anywhere in the key. The message must be in the store.
    pub(super) fn take_by_seq(&mut self, meta: MessageMeta) -> Option<MessageEntry> {
        let seq = meta.seq;
        let backlog = self.backlog.as_mut()?;
        if let Some(entry) = backlog.redeliveries.remove(&seq) {
            return Some(entry);
        }
        if let Ok(index) = backlog.window.binary_search_by_key(&seq, |entry| entry.meta.seq) {
            return backlog.window.remove(index);
        }
        let is_on_disk = backlog.cursor < seq && backlog.on_disk > 0 && backlog.skip.insert(seq);
        is_on_disk.then(|| {
            backlog.on_disk -= 1;
            // No ready message is left on disk, so the cursor moves past all skipped ones. A prefetch under way may
            // find its messages deleted, so its result is ignored.
            if let Some(&last) = backlog.skip.last().filter(|_| backlog.on_disk == 0) {
                backlog.advance_cursor(last);
                backlog.end_prefetch();
            }
            MessageEntry::new(meta)
        })
    }

    /// Reports whether a message is ready; a message that would be on disk is assumed to exist.
    pub(super) fn holds(&self, seq: Seq) -> bool {
        let backlog = self.backlog();
        let is_on_disk = backlog.cursor < seq && backlog.on_disk > 0 && !backlog.skip.contains(&seq);
        self.position(seq).is_some() || is_on_disk
    }

    /// Removes everything; the result of a prefetch under way is ignored.
    pub(super) fn clear(&mut self) {
        self.backlog = None;
        self.expiry_indexed_at = None;
        if let Some(fifo) = &mut self.fifo {
            fifo.unfinished.clear();
        }
    }

    /// Drops the on-disk backlog because the store does not have it; returns its length.
    pub(super) fn drop_on_disk(&mut self) -> u64 {
        let Some(backlog) = &mut self.backlog else { return 0 };
        backlog.skip.clear();
        core::mem::take(&mut backlog.on_disk)
    }

    pub(super) fn cursor(&self) -> Seq {
        self.backlog().cursor
    }

    /// Reports whether a message in memory can be delivered.
    pub(super) fn is_ready(&self) -> bool {
        if self.fifo.is_some() {
            return self.head().is_some();
        }
        self.in_memory() > 0
    }

    /// Returns how many messages to prefetch, once the window is less than half full.
    pub(super) fn prefetch_len(&self, window_len: usize) -> Option<usize> {
        let Backlog { window, on_disk, skip, prefetch, .. } = self.backlog();
        let is_wanted = *prefetch == PrefetchState::Idle && *on_disk > 0 && window.len() < window_len / 2;
        // The store also returns the messages to skip.
        is_wanted.then(|| window_len - window.len() + skip.len().min(window_len))
    }

    /// Returns the number of ready messages, in memory and on disk.
    pub(super) fn pending(&self) -> u64 {
        self.in_memory() + self.on_disk_len()
    }

    pub(super) fn on_disk_len(&self) -> u64 {
        self.backlog().on_disk
    }

    pub(super) fn invisible(&self) -> InvisibleCounts {
        self.backlog().invisible
    }

    pub(super) fn invisible_mut(&mut self) -> &mut InvisibleCounts {
        &mut self.backlog_mut().invisible
    }

    /// Returns the number of messages in flight, being acknowledged or being moved.
    pub(super) fn outstanding(&self) -> u64 {
        let InvisibleCounts { in_flight, removing, .. } = self.invisible();
        in_flight + removing
    }

    /// Frees the memory of an idle key's backlog; the result of a prefetch under way is ignored.
    pub(super) fn release_memory(&mut self) {
        self.backlog = None;
    }

    /// Reports whether the key has no message in any state.
    pub(super) fn is_idle(&self) -> bool {
        self.pending() == 0 && self.invisible() == InvisibleCounts::NONE
    }

    /// Returns the number of the key's messages before this one; `None` if it is not in memory.
    pub(super) fn position(&self, seq: Seq) -> Option<u64> {
        let Backlog { redeliveries, window, .. } = self.backlog();
        let in_window = window.binary_search_by_key(&seq, |entry| entry.meta.seq);
        let is_redelivery = redeliveries.contains_key(&seq);
        let before = match in_window {
            _ if self.fifo.is_some() => {
                redeliveries.range(..seq).count() + in_window.unwrap_or_else(|index| index)
            }
            _ if is_redelivery => redeliveries.range(..seq).count(),
            Ok(index) | Err(index) => redeliveries.len() + index,
        };
        (is_redelivery || in_window.is_ok()).then_some(before as u64)
    }

    /// Returns the number of ready messages in memory.
    pub(super) fn in_memory(&self) -> u64 {
        let backlog = self.backlog();
        backlog.redeliveries.len() as u64 + backlog.window.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_outside_the_window_are_only_counted() {
        let mut queue = queue();
        for seq in 1..=1_000 {
            drop(queue.append(entry(seq), 256));
        }
        assert_eq!((queue.in_memory(), queue.on_disk_len(), queue.pending()), (256, 744, 1_000));
        assert_eq!(queue.cursor(), Seq(256));
    }

    #[test]
    fn many_keys_or_large_messages_shorten_the_window() {
        let lengths = |bytes| [1, 1_024, 4_096, 65_536, 1_000_000].map(|keys| window_len(keys, bytes));
        assert_eq!(lengths(0), [256, 256, 64, 4, 4]);
        assert_eq!(lengths(1_024), [256, 32, 8, 4, 4]);
        assert_eq!(lengths(256 << 10), [128, 4, 4, 4, 4]);
    }

    #[test]
    fn large_messages_shorten_the_window_of_their_own_key_only() {
        let mut large = queue();
        let mut small = queue();
        for seq in 1..=20 {
            let mut entry = entry(seq);
            entry.meta.size = 1 << 20;
            drop(large.append(entry, 256));
        }
        drop(small.append(entry(21), 256));
        assert_eq!((large.window_len(2), small.window_len(2)), (16, 256));
        small.restore(Seq(1), 10, 10 << 20, BTreeSet::new());
        assert_eq!(small.window_len(2), 16, "the average size is unknown after a restart");
    }

    #[test]
    fn a_prefetch_continues_after_the_window() {
        let mut queue = queue();
        for seq in 1..=300 {
            drop(queue.append(entry(seq), 256));
        }
        for seq in 1..=200 {
            assert_eq!(queue.pop().unwrap().meta.seq, Seq(seq));
        }
        assert_eq!(queue.prefetch_len(256), Some(200));
        assert_eq!(queue.apply_prefetch((257..=300).map(entry)), 0);
        let rest: Vec<u64> = core::iter::from_fn(|| queue.pop()).map(|entry| entry.meta.seq.0).collect();
        assert_eq!(rest, (201..=300).collect::<Vec<_>>());
        assert_eq!(queue.pending(), 0);
    }

    #[test]
    fn a_prefetch_skips_a_message_that_bypassed_the_window() {
        let mut queue = queue();
        for seq in 1..=300 {
            drop(queue.append(entry(seq), 256));
        }
        queue.pass_over(Seq(301));
        drop(queue.append(entry(302), 256));
        while queue.pop().is_some() {}
        assert_eq!(queue.apply_prefetch((257..=302).map(entry)), 0);
        let seqs: Vec<u64> = queue.ready().map(|entry| entry.meta.seq.0).collect();
        assert!(!seqs.contains(&301), "a delayed message is also in the window");
        assert_eq!((seqs.len(), queue.on_disk_len()), (45, 0));
    }

    #[test]
    fn deleted_messages_do_not_accumulate_in_the_skip_set() {
        let mut queue = queue();
        for seq in 1..=1_000 {
            drop(queue.append(entry(seq), 256));
        }
        for seq in (2..=1_000).step_by(2) {
            assert!(queue.take_by_seq(entry(seq).meta).is_some());
            assert!(queue.take_by_seq(entry(seq).meta).is_none(), "{seq} was taken twice");
        }
        assert_eq!(queue.pending(), 500);
        let mut odd = (1..=1_000).step_by(2).map(entry);
        while queue.pending() > 0 {
            while queue.pop().is_some() {}
            assert_eq!(queue.apply_prefetch(odd.by_ref().take(300)), 0);
        }
        drop(queue.append(entry(1_001), 256));
        let skip = &queue.backlog().skip;
        assert!(skip.is_empty(), "{} deleted messages are still listed", skip.len());
    }

    #[test]
    fn a_position_counts_the_messages_that_are_delivered_before() {
        let mut queue = queue();
        for seq in [3, 5] {
            drop(queue.append(entry(seq), 256));
        }
        for seq in [2, 4] {
            queue.requeue(entry(seq));
        }
        let positions = |queue: &KeyQueue| [2, 3, 4, 5, 6].map(|seq| queue.position(Seq(seq)));
        assert_eq!(positions(&queue), [Some(0), Some(2), Some(1), Some(3), None], "redeliveries are first");
        queue.fifo = Some(Box::default());
        assert_eq!(positions(&queue), [Some(0), Some(1), Some(2), Some(3), None], "FIFO goes by sequence");
    }

    #[test]
    fn redeliveries_come_first_and_in_order() {
        let mut queue = queue();
        drop(queue.append(entry(9), 256));
        queue.requeue(entry(4));
        queue.requeue(entry(2));
        let order: Vec<u64> = core::iter::from_fn(|| queue.pop()).map(|entry| entry.meta.seq.0).collect();
        assert_eq!(order, [2, 4, 9]);
    }

    fn queue() -> KeyQueue {
        KeyQueue::new(KeyId(0), "key".into(), TenantId(0), Weight::ONE)
    }

    fn entry(seq: u64) -> MessageEntry {
        let meta = MessageMeta {
            seq: Seq(seq),
            sent_at: UnixMillis(0),
            size: 1,
            cost: Cost::MESSAGE,
            from: None,
            expires_at: None,
        };
        MessageEntry::new(meta)
    }
}
