//! The queue state: a sans-I/O state machine that holds the messages of one queue and decides which is next.
//!
//! Time is an argument; changes to be stored are returned to the caller. The state has three parts with invariants
//! of their own: `invisible` holds messages that cannot be delivered now, `schedule` picks the next key, and
//! `expiry` finds messages whose TTL or retention has ended. [`QueueState`] moves messages between them.
//!
//! Guarantees: an appended message is in exactly one state (ready, delayed, in flight, exhausted, being acknowledged,
//! being moved, expired) until it is removed; it is delivered to one consumer at a time; over any interval, the deliveries
//! of two keys with ready messages differ by at most a quantum and a message each.

mod abandon;
mod cost;
mod expiry;
mod invisible;
mod key_queue;
mod key_table;
mod leases;
mod limiter;
mod moves;
mod recovery;
mod schedule;
mod stats;

use std::sync::Arc;

use core::time::Duration;

use evenkeel_policy::id::Key;
use evenkeel_policy::setting::SettingOutOfRange;

use crate::id::{Epoch, KeyId, Seq};
use crate::message::{AppendedMessage, MessageMeta, Payload};
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::settings::{CostMode, QueueSettings};
use crate::time::UnixMillis;
use expiry::ExpiryIndex;
use invisible::{InvisibleCounts, InvisibleMessage, InvisibleMessages, InvisibleState};
use key_queue::{KeyQueue, MessageEntry};
use schedule::Schedule;
use stats::DeliveryStats;

pub use abandon::AbandonMode;
pub use leases::{DEAD_LETTER_DELAY, Disposition, RedeliveryRecord};
pub use limiter::{Throttle, ThrottleReason, ThrottleScope};
pub use moves::{MoveCursor, MoveStep};
pub use recovery::{StoredKey, StoredMessage, StoredState};
pub use stats::{Explanation, KeyStats, QueueStats, QueueTotals, WaitPercentiles};

/// The messages of one queue, and the order of their delivery.
#[derive(Debug)]
pub struct QueueState {
    epoch: Epoch,
    limits: Limits,
    invisible: InvisibleMessages,
    schedule: Schedule,
    expiry: ExpiryIndex,
    /// Bytes of all messages.
    bytes: u64,
    stats: DeliveryStats,
    /// The time of the last call.
    now: UnixMillis,
    /// The last message appended to this state; the store may already have later ones.
    last_seq: Seq,
}

/// The queue settings that apply to deliveries.
#[derive(Clone, Copy, Debug)]
struct Limits {
    retention: Duration,
    in_flight_max: u64,
    attempts_max: Option<u32>,
    cost_mode: CostMode,
}

/// Number of deliveries of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCount {
    /// Deliveries that count towards `attempts_max`.
    pub attempts: u32,
    /// Deliveries that were released and do not count.
    pub released: u32,
}

impl DeliveryCount {
    /// Returns the number of the last delivery, unique per message.
    pub const fn number(self) -> u32 {
        self.attempts.saturating_add(self.released)
    }
}

/// A message leased to a consumer.
#[derive(Clone, Debug)]
pub struct LeasedMessage {
    pub key: KeyId,
    pub name: Arc<str>,
    pub meta: MessageMeta,
    /// Deliveries so far, this one included.
    pub deliveries: DeliveryCount,
    pub first_delivered_at: UnixMillis,
    /// End of the lease.
    pub until: UnixMillis,
    /// `None` if the payload must be read from the store.
    pub payload: Option<Payload>,
}

/// Result of [`QueueState::lease_messages`].
#[derive(Debug, Default)]
pub struct LeaseBatch {
    pub leased: Vec<LeasedMessage>,
    /// Messages to delete: [`confirm_removal`](QueueState::confirm_removal) or
    /// [`revert_removal`](QueueState::revert_removal) must follow.
    pub expired: Vec<(KeyId, MessageMeta)>,
}

/// A read of a key's next messages from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchRequest {
    pub key: KeyId,
    pub after: Seq,
    pub count: usize,
}

impl QueueState {
    /// Creates an empty state; `secret` keys the hash of tenants' names.
    pub fn new(
        epoch: Epoch,
        settings: &QueueSettings,
        secret: (u64, u64),
    ) -> Result<Self, SettingOutOfRange> {
        Ok(Self {
            epoch,
            limits: Limits::from_settings(settings),
            invisible: InvisibleMessages::default(),
            schedule: Schedule::new(settings, secret)?,
            expiry: ExpiryIndex::default(),
            bytes: 0,
            stats: DeliveryStats::default(),
            now: UnixMillis::default(),
            last_seq: Seq(0),
        })
    }

    /// Applies changed settings, except for the quantum.
    pub fn set_limits(&mut self, settings: &QueueSettings) {
        self.limits = Limits::from_settings(settings);
    }

    /// Sets the current time for calls that do not take it as an argument.
    pub fn set_now(&mut self, now: UnixMillis) {
        self.now = now;
    }

    /// Sets the rule of a key, or of a tenant if the name has no `/`; applies to waiting messages too.
    pub fn set_rule(&mut self, now: UnixMillis, key: KeyId, name: &Arc<str>, rule: KeyRule) {
        self.now = now;
        self.schedule.set_rule(now, key, name, rule);
    }

    /// Returns the rule of a key or tenant.
    pub fn rule(&self, name: &str) -> KeyRule {
        self.schedule.rule(name)
    }

    /// Adds a stored message; messages must be appended in order.
    pub fn append(&mut self, now: UnixMillis, message: AppendedMessage) -> Result<(), Rejection> {
        self.now = now;
        let index = self.schedule.intern(message.key, &message.name)?;
        if let Some(weight) = message.weight.filter(|_| self.rule(&message.name).weight.is_none()) {
            self.schedule.set_key_weight(index, weight);
        }
        let AppendedMessage { meta, payload, not_before, .. } = message;
        self.last_seq = meta.seq;
        self.bytes += u64::from(meta.size);
        let entry = MessageEntry::new(meta);
        if let Some(until) = not_before.filter(|&until| now < until) {
            self.schedule.key_mut(index).pass_over(meta.seq);
            self.hide(index, entry, InvisibleState::Delayed { until });
        } else {
            self.expiry.insert(index, &meta);
            self.schedule.append(index, entry, payload);
        }
        self.update_schedule(index);
        Ok(())
    }

    /// Leases up to `max` messages in scheduling order, until `lease` from now.
    pub fn lease_messages(
        &mut self,
        now: UnixMillis,
        max: usize,
        lease: Duration,
    ) -> Result<LeaseBatch, Rejection> {
        self.now = now;
        let room = self.limits.in_flight_max.saturating_sub(self.invisible.leased_count());
        if room == 0 {
            return Err(Rejection::TooManyInFlight { max: self.limits.in_flight_max });
        }
        let max = usize::try_from(room).unwrap_or(usize::MAX).min(max);
        let mut batch = LeaseBatch::default();
        let mut last = None;
        while batch.leased.len() < max {
            let Some(index) = self.schedule.next_to_lease(last, now) else { break };
            // Without a next message, the key's prefetch is under way.
            let Some(meta) = self.schedule.key(index).next() else { break };
            let is_expired = self.is_expired(meta);
            if is_expired && self.expiry_room() == 0 {
                self.park_until_expiry_room(index);
                last = None;
                continue;
            }
            let Some((mut entry, payload)) = self.schedule.pop(index) else { break };
            if is_expired {
                batch.expired.push(self.expire(index, entry));
                self.update_schedule(index);
                continue;
            }
            entry.charged = self.schedule.charge(index, &entry.meta, self.limits.cost_mode);
            entry.leased_at = now;
            self.schedule.drr.consume_deficit(index, entry.charged);
            self.schedule.take_token(index, now);
            batch.leased.push(self.lease(index, entry, payload, lease));
            self.update_schedule(index);
            last = Some(index);
        }
        self.schedule.end_receive(&batch.leased, now);
        Ok(batch)
    }

    fn lease(
        &mut self,
        index: Key,
        mut entry: MessageEntry,
        payload: Option<Payload>,
        lease: Duration,
    ) -> LeasedMessage {
        entry.deliveries.attempts = entry.deliveries.attempts.saturating_add(1);
        self.count_delivery(index, &entry);
        let first_delivered_at = *entry.first_delivered_at.get_or_insert(self.now);
        let until = self.now + lease;
        let receive = self.schedule.receives;
        let queue = self.schedule.key_mut(index);
        queue.record_lease(receive, entry.meta.seq);
        let leased = LeasedMessage {
            key: queue.key,
            name: queue.name.clone(),
            meta: entry.meta,
            deliveries: entry.deliveries,
            first_delivered_at,
            until,
            payload,
        };
        self.hide(index, entry, InvisibleState::Leased { until, epoch: self.epoch });
        leased
    }

    fn count_delivery(&mut self, index: Key, entry: &MessageEntry) {
        let redelivered = u64::from(entry.deliveries.attempts > 1);
        self.stats.delivered += 1;
        self.stats.redelivered += redelivered;
        // A moved message has no wait time, because the time of the move is unknown.
        let has_wait = entry.first_delivered_at.is_none() && entry.meta.from.is_none();
        let wait = has_wait.then(|| self.now.since(entry.ready_at));
        let queue = self.schedule.key_mut(index);
        queue.delivered += 1;
        queue.redelivered += redelivered;
        if let Some(wait) = wait {
            queue.waits.get_or_insert_default().record(wait);
            self.stats.waits.record(wait);
        }
    }

    /// Returns the next prefetch to request from the store.
    pub fn poll_prefetch(&mut self) -> Option<PrefetchRequest> {
        self.schedule.poll_prefetch()
    }

    /// Adds prefetched messages; returns the number of messages that were counted but are missing from the store.
    pub fn apply_prefetch(&mut self, request: PrefetchRequest, found: Vec<(MessageMeta, Payload)>) -> u64 {
        let Some(index) = self.schedule.awaiting(request) else { return 0 };
        let is_empty = found.is_empty();
        // Messages after `last_seq` are added when the store's listener reports them.
        let last_seq = self.last_seq;
        self.schedule.apply_prefetch(index, found.into_iter().filter(|(meta, _)| meta.seq <= last_seq));
        let missing = if is_empty { self.schedule.key_mut(index).drop_on_disk() } else { 0 };
        if missing > 0 {
            // The sizes of the missing messages are unknown.
            self.bytes -= missing * self.mean_bytes();
            self.schedule.pending -= missing;
            self.remove_missing(index);
        }
        self.update_schedule(index);
        missing
    }

    fn mean_bytes(&self) -> u64 {
        let QueueTotals { pending, in_flight, delayed, bytes, .. } = self.totals();
        bytes / (pending + in_flight + delayed + self.invisible.expired_count() as u64).max(1)
    }

    /// Records a failed prefetch; it is repeated by [`expire_leases`](Self::expire_leases).
    pub fn fail_prefetch(&mut self, request: PrefetchRequest) {
        if let Some(index) = self.schedule.awaiting(request) {
            self.schedule.fail_prefetch(index);
        }
    }

    /// Reports whether a message can be delivered now.
    pub fn has_ready(&self) -> bool {
        self.schedule.next_key().is_some_and(KeyQueue::is_ready)
    }

    /// Reports whether the next key waits for its prefetch, which takes a few milliseconds at most.
    pub fn is_prefetching(&self) -> bool {
        self.schedule.next_key().is_some_and(|queue| !queue.is_ready())
    }

    /// Removes keys that have been idle for a minute, and returns them.
    pub fn forget_idle(&mut self, now: UnixMillis) -> Vec<KeyId> {
        let forgotten = self.schedule.forget_idle(now);
        forgotten.iter().for_each(|(index, queue)| self.expiry.remove_key(*index, queue));
        forgotten.into_iter().map(|(_, queue)| queue.key).collect()
    }

    /// Reports whether [`forget_idle`](Self::forget_idle) has more keys to remove.
    pub fn has_idle(&self, now: UnixMillis) -> bool {
        self.schedule.has_idle(now)
    }

    /// Drops every message; rules stay.
    pub fn clear(&mut self, now: UnixMillis) {
        self.now = now;
        self.invisible.clear();
        self.expiry.clear();
        self.bytes = 0;
        self.schedule.clear(now);
    }

    /// Updates the key's scheduling state and its entry in the expiry index, after its ready messages changed.
    fn update_schedule(&mut self, index: Key) {
        self.schedule.update(index, self.now);
        self.expiry.index_first(index, self.schedule.key_mut(index));
    }

    fn recheck(&mut self, index: Key) {
        self.schedule.recheck(index, self.now);
    }

    fn settle_time(&mut self, index: Key, entry: &mut MessageEntry) {
        self.schedule.settle_time(index, entry, self.limits.cost_mode, self.now);
    }

    /// Adds a message to the invisible ones and updates the counters of its key.
    fn hide(&mut self, index: Key, entry: MessageEntry, state: InvisibleState) {
        let queue = self.schedule.key_mut(index);
        *queue.invisible_mut().of_mut(state) += 1;
        if state.is_unfinished() {
            queue.add_unfinished(entry.meta.seq);
        }
        if state.has_ttl_in_force() {
            self.expiry.insert(index, &entry.meta);
        } else {
            self.expiry.remove(&entry.meta);
        }
        if state.is_outstanding() {
            self.schedule.count_outstanding(index, 1);
        }
        self.invisible.insert(InvisibleMessage { index, entry, state });
    }

    /// Removes a message from the invisible ones; the caller must put it into its next state or drop it.
    fn reveal(&mut self, seq: Seq) -> Option<InvisibleMessage> {
        let message = self.invisible.remove(seq)?;
        let queue = self.schedule.key_mut(message.index);
        *queue.invisible_mut().of_mut(message.state) -= 1;
        queue.remove_unfinished(seq);
        if message.state.is_outstanding() {
            self.schedule.count_outstanding(message.index, -1);
        }
        Some(message)
    }

    /// Checks the invariants of each part and between them; for tests.
    pub fn audit(&self) -> Result<(), String> {
        self.invisible.audit()?;
        self.schedule.audit()?;
        self.audit_expiry()?;
        for (index, queue) in self.schedule.keys.iter() {
            let states = self.invisible.iter().filter(|message| message.index == index);
            let mut counts = InvisibleCounts::NONE;
            for message in states {
                *counts.of_mut(message.state) += 1;
                if queue.ready().any(|entry| entry.meta.seq == message.entry.meta.seq) {
                    return Err(format!("{:?} is ready and {:?}", message.entry.meta, message.state));
                }
            }
            let counters = queue.invisible();
            if counts != counters {
                return Err(format!("{}: counters are {counters:?}, counted {counts:?}", queue.name));
            }
        }
        Ok(())
    }
}

impl Limits {
    fn from_settings(settings: &QueueSettings) -> Self {
        Self {
            retention: Duration::from_millis(settings.retention_ms),
            in_flight_max: settings.in_flight_max,
            attempts_max: settings.redrive.map(|redrive| redrive.attempts_max),
            cost_mode: settings.cost_mode,
        }
    }
}
