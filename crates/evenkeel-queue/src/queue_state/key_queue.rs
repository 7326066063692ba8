//! One key's messages: a window of the next ones, those that came back, and a count of the rest.
//!
//! Bound: a lane holds at most a window of messages that were never delivered, however many there are; the rest
//! are a count and a cursor. Messages come out in the order they were sent, those that came back first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::weight::Weight;

use super::DeliveryCount;
use super::cost::ServiceTime;
use super::limiter::KeyLimiters;
use super::wait_histogram::WaitHistogram;
use crate::id::{KeyId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::time::UnixMillis;

/// At most this many handles of a lane are in memory, less when there are many lanes.
const WINDOW_MAX: usize = 256;
/// At least so many.
const WINDOW_MIN: usize = 4;
/// What all lanes' windows hold together, unless there are so many lanes that the least is more.
const WINDOWS_MAX: usize = 1 << 18;
/// At most this much of the messages that wait is in memory; the rest is read when it is delivered.
pub(super) const PAYLOAD_BYTES_MAX: usize = 32 << 20;

/// How many messages a lane's window holds when there are so many lanes and its messages are so large.
///
/// What waits in a window is to have its payload there too: one that has not is read by itself when it is
/// delivered, and what a refill brings is read in a row.
fn window_len(lanes: usize, size: u32) -> usize {
    let lanes = lanes.max(1);
    let with_payload = PAYLOAD_BYTES_MAX / lanes / size.max(1) as usize;
    (WINDOWS_MAX / lanes).min(with_payload).clamp(WINDOW_MIN, WINDOW_MAX)
}

/// A message as the book holds it.
#[derive(Clone, Debug)]
pub(super) struct MessageEntry {
    pub(super) header: MessageMeta,
    pub(super) delivered: DeliveryCount,
    pub(super) first_delivered_at: Option<UnixMillis>,
    /// Since when it could be delivered for the first time.
    pub(super) ready_at: UnixMillis,
    /// What its delivery under way was charged, and when that began.
    pub(super) charged: Cost,
    pub(super) leased_at: UnixMillis,
    /// Kept while there is room; else it is read when it is delivered.
    pub(super) payload: Option<Payload>,
}

impl MessageEntry {
    /// Makes a handle on a message that was never delivered and has no payload here.
    pub(super) fn new(header: MessageMeta) -> Self {
        let delivered = DeliveryCount::default();
        Self {
            header,
            delivered,
            first_delivered_at: None,
            ready_at: header.sent_at,
            charged: Cost::ZERO,
            leased_at: UnixMillis::default(),
            payload: None,
        }
    }
}

/// Whether more of a lane has been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefetchState {
    /// Nothing is under way.
    Idle,
    /// The store has been asked for what follows this one.
    Asked { after: Seq },
}

/// What keeps a lane's messages in order when one comes back.
#[derive(Debug, Default)]
pub(super) struct FifoState {
    /// Messages that are not to be delivered yet.
    delayed: BTreeSet<Seq>,
    /// The take in which its messages that are out were leased; one take may lease several.
    pub(super) taken_in: u64,
}

#[derive(Debug)]
pub(super) struct KeyQueue {
    pub(super) key: KeyId,
    pub(super) name: Arc<str>,
    pub(super) tenant: TenantId,
    /// The weight it has, whoever gave it.
    pub(super) weight: Weight,
    /// What may hold it back.
    pub(super) gates: KeyLimiters,
    /// Never delivered, in order.
    window: VecDeque<MessageEntry>,
    /// To be delivered again, or delayed and due.
    back: BTreeMap<Seq, MessageEntry>,
    /// How many follow the cursor in the store, those ahead apart.
    beyond: u64,
    /// How large its messages are, of late.
    size: u32,
    /// The last message that was put into the window, or went around it.
    cursor: Seq,
    /// Behind the cursor in order, but taken out of turn: delayed, or known from before a restart.
    ahead: BTreeSet<Seq>,
    /// Of those ahead, what is gone from the store, though an answer that is under way may still name it.
    gone: Vec<Seq>,
    refill: PrefetchState,
    /// When the message was sent by which it is listed to be looked at; none of those that wait is older.
    pub(super) listed_since: Option<UnixMillis>,
    /// Since when its turn waits for the store.
    pub(super) starved_since: Option<UnixMillis>,
    pub(super) in_flight: u64,
    pub(super) delayed: u64,
    /// Being acknowledged or moved.
    pub(super) leaving: u64,
    /// Over, and not gone yet.
    pub(super) over: u64,
    pub(super) delivered: u64,
    pub(super) redelivered: u64,
    /// How long its messages waited; kept from its first delivery on.
    pub(super) waits: Option<Box<WaitHistogram>>,
    /// How long its messages took lately, where that is what they cost.
    pub(super) took: ServiceTime,
    /// Of a FIFO queue's lane, what its order needs to know.
    pub(super) in_order: Option<Box<FifoState>>,
    /// Whether it is listed as holding nothing.
    pub(super) is_listed_idle: bool,
}

impl KeyQueue {
    pub(super) fn new(key: KeyId, name: Arc<str>, tenant: TenantId, weight: Weight) -> Self {
        Self {
            key,
            name,
            tenant,
            weight,
            gates: KeyLimiters::default(),
            window: VecDeque::new(),
            back: BTreeMap::new(),
            beyond: 0,
            size: 0,
            cursor: Seq(0),
            ahead: BTreeSet::new(),
            gone: Vec::new(),
            refill: PrefetchState::Idle,
            listed_since: None,
            starved_since: None,
            in_flight: 0,
            delayed: 0,
            leaving: 0,
            over: 0,
            delivered: 0,
            redelivered: 0,
            waits: None,
            took: ServiceTime::default(),
            in_order: None,
            is_listed_idle: false,
        }
    }

    /// How many messages its window holds when there are so many lanes.
    pub(super) fn window_len(&self, lanes: usize) -> usize {
        window_len(lanes, self.size)
    }

    fn record_size(&mut self, size: u32) {
        self.size = if self.size == 0 { size } else { self.size - self.size / 8 + size / 8 };
    }

    /// Takes in a message at the end; gives back a handle that has no place in the window.
    pub(super) fn append(&mut self, handle: MessageEntry, window_len: usize) -> Option<MessageEntry> {
        self.record_size(handle.header.size);
        if self.beyond == 0 && self.window.len() < window_len {
            self.advance_cursor(handle.header.seq);
            self.window.push_back(handle);
            return None;
        }
        self.beyond += 1;
        Some(handle)
    }

    /// Goes on where the store stands: so many messages and bytes from `first` on, of which those `ahead` are out of turn.
    pub(super) fn resume(&mut self, first: Seq, count: u64, bytes: u64, ahead: BTreeSet<Seq>) {
        self.size = u32::try_from(bytes / count.max(1)).unwrap_or(u32::MAX);
        self.cursor = Seq(first.0.saturating_sub(1));
        self.beyond = count - ahead.len() as u64;
        self.ahead = ahead;
    }

    /// Notes a message at the end that does not wait in the window.
    pub(super) fn pass_over(&mut self, seq: Seq) {
        if self.beyond == 0 {
            self.advance_cursor(seq);
        } else {
            self.ahead.insert(seq);
        }
    }

    /// Takes a message in that is to be delivered before the window.
    pub(super) fn requeue(&mut self, handle: MessageEntry) {
        self.back.insert(handle.header.seq, handle);
    }

    /// Takes out one that waits to be delivered again.
    pub(super) fn take_back(&mut self, seq: Seq) -> Option<MessageEntry> {
        self.back.remove(&seq)
    }

    /// Reads one that waits to be delivered again.
    pub(super) fn back(&self, seq: Seq) -> Option<&MessageEntry> {
        self.back.get(&seq)
    }

    /// Reads the next message.
    pub(super) fn next(&self) -> Option<&MessageMeta> {
        if self.in_order.is_some() {
            let head = self.head()?;
            return self.firsts().find(|header| header.seq == head);
        }
        self.firsts().next()
    }

    /// Takes the next message.
    pub(super) fn pop(&mut self) -> Option<MessageEntry> {
        if self.in_order.is_some() {
            let head = self.head()?;
            return self.back.remove(&head).or_else(|| self.window.pop_front());
        }
        self.back.pop_first().map(|(_, handle)| handle).or_else(|| self.window.pop_front())
    }

    /// Names the next message in the order they were sent in; none while an earlier one may be in the store only.
    fn head(&self) -> Option<Seq> {
        let back = self.back.first_key_value().map(|(seq, _)| *seq);
        let window = self.window.front().map(|handle| handle.header.seq);
        let head = back.into_iter().chain(window).min()?;
        (self.beyond == 0 || head <= self.cursor).then_some(head)
    }

    /// Whether an earlier message is to be done with before the next, in the take of this number.
    pub(super) fn waits_for_earlier(&self, take: u64) -> bool {
        let Some(in_order) = &self.in_order else { return false };
        let is_out = self.out() > 0 && in_order.taken_in != take;
        let is_delayed =
            in_order.delayed.first().zip(self.head()).is_some_and(|(delayed, head)| *delayed < head);
        is_out || is_delayed
    }

    /// Counts a message as not to be delivered yet.
    pub(super) fn delay(&mut self, seq: Seq) {
        self.delayed += 1;
        if let Some(in_order) = &mut self.in_order {
            in_order.delayed.insert(seq);
        }
    }

    /// Counts it as that no longer.
    pub(super) fn end_delay(&mut self, seq: Seq) {
        self.delayed -= 1;
        if let Some(in_order) = &mut self.in_order {
            in_order.delayed.remove(&seq);
        }
    }

    /// Looks at the next messages.
    pub(super) fn ready(&self) -> impl Iterator<Item = &MessageEntry> {
        self.back.values().chain(&self.window)
    }

    /// Reads the first of those that came back and the first of the window: none that was sent here and waits is older.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &MessageMeta> {
        let back = self.back.first_key_value().map(|(_, handle)| handle);
        back.into_iter().chain(self.window.front()).map(|handle| &handle.header)
    }

    /// Takes in what the store found after the cursor, and counts the bytes of payloads that it keeps.
    pub(super) fn apply_prefetch(&mut self, found: impl IntoIterator<Item = MessageEntry>) -> usize {
        let mut kept = 0;
        for handle in found {
            let seq = handle.header.seq;
            if seq <= self.cursor {
                continue;
            }
            let is_ahead = self.ahead.contains(&seq);
            self.advance_cursor(seq);
            if !is_ahead {
                self.record_size(handle.header.size);
                self.beyond = self.beyond.saturating_sub(1);
                kept += handle.payload.as_ref().map_or(0, Payload::size);
                self.window.push_back(handle);
            }
        }
        self.end_prefetch();
        kept
    }

    /// Whether an answer to this is awaited.
    pub(super) fn awaits(&self, after: Seq) -> bool {
        self.refill == PrefetchState::Asked { after }
    }

    /// Notes that the store is asked for what follows the cursor.
    pub(super) fn begin_prefetch(&mut self) {
        self.refill = PrefetchState::Asked { after: self.cursor };
    }

    /// Awaits no answer any more.
    pub(super) fn end_prefetch(&mut self) {
        self.refill = PrefetchState::Idle;
        for gone in self.gone.drain(..) {
            self.ahead.remove(&gone);
        }
    }

    /// Forgets a message that is gone from the store, as soon as no answer can name it.
    pub(super) fn forget_gone(&mut self, seq: Seq) {
        match self.refill {
            PrefetchState::Asked { .. } if self.ahead.contains(&seq) => self.gone.push(seq),
            PrefetchState::Asked { .. } | PrefetchState::Idle => drop(self.ahead.remove(&seq)),
        }
    }

    /// Moves the cursor, and forgets what was ahead of it: some of that is gone and would never be found.
    fn advance_cursor(&mut self, seq: Seq) {
        self.cursor = seq;
        while self.ahead.first().is_some_and(|ahead| *ahead <= seq) {
            self.ahead.pop_first();
        }
    }

    /// Takes out a message that waits, wherever it does; the store says that it is there.
    pub(super) fn take_by_seq(&mut self, header: MessageMeta) -> Option<MessageEntry> {
        let seq = header.seq;
        if let Some(handle) = self.back.remove(&seq) {
            return Some(handle);
        }
        if let Ok(at) = self.window.binary_search_by_key(&seq, |handle| handle.header.seq) {
            return self.window.remove(at);
        }
        let is_beyond = self.cursor < seq && self.beyond > 0 && self.ahead.insert(seq);
        is_beyond.then(|| {
            self.beyond -= 1;
            // Nothing that waits is behind the cursor: what is need not be remembered one by one, and what the store
            // is being asked for, it may find gone.
            if let Some(&last) = self.ahead.last().filter(|_| self.beyond == 0) {
                self.advance_cursor(last);
                self.end_prefetch();
            }
            MessageEntry::new(header)
        })
    }

    /// Whether a message waits here, as far as is known.
    pub(super) fn holds(&self, seq: Seq) -> bool {
        let is_beyond = self.cursor < seq && self.beyond > 0 && !self.ahead.contains(&seq);
        self.position(seq).is_some() || is_beyond
    }

    /// Lets everything go; what the store still finds before `below` is not taken in.
    pub(super) fn clear(&mut self, below: Seq) {
        self.cursor = self.cursor.max(Seq(below.0.saturating_sub(1)));
        self.back.clear();
        self.window.clear();
        self.ahead.clear();
        self.beyond = 0;
        self.end_prefetch();
        self.listed_since = None;
        (self.in_flight, self.delayed, self.leaving, self.over) = (0, 0, 0, 0);
        if let Some(in_order) = &mut self.in_order {
            in_order.delayed.clear();
        }
    }

    /// Gives up on messages that were counted and are not in the store.
    pub(super) fn forget_beyond(&mut self) -> u64 {
        self.ahead.clear();
        core::mem::take(&mut self.beyond)
    }

    pub(super) fn cursor(&self) -> Seq {
        self.cursor
    }

    /// Whether something can be delivered now.
    pub(super) fn is_ready(&self) -> bool {
        if self.in_order.is_some() {
            return self.head().is_some();
        }
        !self.back.is_empty() || !self.window.is_empty()
    }

    /// How many messages the store should be asked for, once less than half a window is left.
    pub(super) fn refill_len(&self, window_len: usize) -> Option<usize> {
        let wanted =
            self.refill == PrefetchState::Idle && self.beyond > 0 && self.window.len() < window_len / 2;
        // Those ahead are found too, and skipped.
        wanted.then(|| window_len - self.window.len() + self.ahead.len().min(window_len))
    }

    /// Counts what waits to be delivered: in memory and beyond.
    pub(super) fn pending(&self) -> u64 {
        self.back.len() as u64 + self.window.len() as u64 + self.beyond
    }

    /// Counts what waits in the store only.
    pub(super) fn on_disk_len(&self) -> u64 {
        self.beyond
    }

    /// Counts what is out: in consumers' hands, or with its end being written down.
    pub(super) fn out(&self) -> u64 {
        self.in_flight + self.leaving
    }

    /// Whether it holds nothing: neither waiting, delayed, out nor over.
    pub(super) fn is_idle(&self) -> bool {
        self.pending() == 0 && self.out() == 0 && self.delayed == 0 && self.over == 0
    }

    /// Says where a message stands: how many of its key come before it; `None` when it is not known exactly.
    pub(super) fn position(&self, seq: Seq) -> Option<u64> {
        if self.back.contains_key(&seq) {
            return Some(self.back.range(..seq).count() as u64);
        }
        let at = self.window.iter().position(|handle| handle.header.seq == seq)?;
        Some(self.back.len() as u64 + at as u64)
    }

    /// Says how many come before a message that is in the store only, at least.
    pub(super) fn in_memory(&self) -> u64 {
        self.back.len() as u64 + self.window.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_window_messages_are_only_counted() {
        let mut lane = lane();
        for seq in 1..=1_000 {
            drop(lane.append(handle(seq), 256));
        }
        assert_eq!((lane.in_memory(), lane.on_disk_len(), lane.pending()), (256, 744, 1_000));
        assert_eq!(lane.cursor(), Seq(256));
    }

    #[test]
    fn many_lanes_and_large_messages_have_short_windows() {
        let of_bytes = |bytes| [1, 1_024, 4_096, 65_536, 1_000_000].map(|lanes| window_len(lanes, bytes));
        assert_eq!(of_bytes(0), [256, 256, 64, 4, 4]);
        assert_eq!(of_bytes(1_024), [256, 32, 8, 4, 4]);
        assert_eq!(of_bytes(256 << 10), [128, 4, 4, 4, 4]);
    }

    #[test]
    fn large_messages_shorten_the_window_of_their_own_key_only() {
        let mut large = lane();
        let mut small = lane();
        for seq in 1..=20 {
            let mut handle = handle(seq);
            handle.header.size = 1 << 20;
            drop(large.append(handle, 256));
        }
        drop(small.append(handle(21), 256));
        assert_eq!((large.window_len(2), small.window_len(2)), (16, 256));
        small.resume(Seq(1), 10, 10 << 20, BTreeSet::new());
        assert_eq!(small.window_len(2), 16, "after a start, the size is not known");
    }

    #[test]
    fn a_refill_continues_where_the_window_ended() {
        let mut lane = lane();
        for seq in 1..=300 {
            drop(lane.append(handle(seq), 256));
        }
        for seq in 1..=200 {
            assert_eq!(lane.pop().unwrap().header.seq, Seq(seq));
        }
        assert_eq!(lane.refill_len(256), Some(200));
        assert_eq!(lane.apply_prefetch((257..=300).map(handle)), 0);
        let rest: Vec<u64> = core::iter::from_fn(|| lane.pop()).map(|handle| handle.header.seq.0).collect();
        assert_eq!(rest, (201..=300).collect::<Vec<_>>());
        assert_eq!(lane.pending(), 0);
    }

    #[test]
    fn a_message_taken_out_of_turn_is_not_found_again() {
        let mut lane = lane();
        for seq in 1..=300 {
            drop(lane.append(handle(seq), 256));
        }
        lane.pass_over(Seq(301));
        drop(lane.append(handle(302), 256));
        while lane.pop().is_some() {}
        assert_eq!(lane.apply_prefetch((257..=302).map(handle)), 0);
        let seqs: Vec<u64> = lane.ready().map(|handle| handle.header.seq.0).collect();
        assert!(!seqs.contains(&301), "a delayed message is in the window too");
        assert_eq!((seqs.len(), lane.on_disk_len()), (45, 0));
    }

    #[test]
    fn what_was_taken_out_of_turn_and_is_gone_is_forgotten() {
        let mut lane = lane();
        for seq in 1..=1_000 {
            drop(lane.append(handle(seq), 256));
        }
        for seq in (2..=1_000).step_by(2) {
            assert!(lane.take_by_seq(handle(seq).header).is_some());
            assert!(lane.take_by_seq(handle(seq).header).is_none(), "{seq} was taken out twice");
        }
        assert_eq!(lane.pending(), 500);
        let mut odd = (1..=1_000).step_by(2).map(handle);
        while lane.pending() > 0 {
            while lane.pop().is_some() {}
            assert_eq!(lane.apply_prefetch(odd.by_ref().take(300)), 0);
        }
        drop(lane.append(handle(1_001), 256));
        assert!(lane.ahead.is_empty(), "{} messages that are gone are remembered", lane.ahead.len());
    }

    #[test]
    fn what_came_back_goes_first_and_in_order() {
        let mut lane = lane();
        drop(lane.append(handle(9), 256));
        lane.requeue(handle(4));
        lane.requeue(handle(2));
        let order: Vec<u64> = core::iter::from_fn(|| lane.pop()).map(|handle| handle.header.seq.0).collect();
        assert_eq!(order, [2, 4, 9]);
    }

    fn lane() -> KeyQueue {
        KeyQueue::new(KeyId(0), "key".into(), TenantId(0), Weight::ONE)
    }

    fn handle(seq: u64) -> MessageEntry {
        let header = MessageMeta {
            seq: Seq(seq),
            sent_at: UnixMillis(0),
            size: 1,
            cost: Cost::MESSAGE,
            from: None,
            expires_at: None,
        };
        MessageEntry::new(header)
    }
}
