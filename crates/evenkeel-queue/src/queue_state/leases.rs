//! Leases: how a delivery ends, by acknowledgement, release, redelivery or the visibility timeout.
//!
//! A lease hides a message from other consumers until its visibility timeout. Without an acknowledgement the message
//! is redelivered, so delivery is at-least-once.
//!
//! There are three ways to give a delivery back: [`abandon`](QueueState::abandon) (retry, defer or dead-letter),
//! [`release`](QueueState::release) (the consumer returns it unprocessed; no attempt is counted) and
//! [`release_undelivered`](QueueState::release_undelivered) (it never reached a consumer; no attempt is counted).
//!
//! A receipt outlives its lease: until the message is delivered again, it still deletes the message or leases it again.
//! On a FIFO queue it ends with the lease. After its last allowed lease, a message moves to the
//! dead-letter queue at the next receive or after [`DEAD_LETTER_DELAY`], so that a late delete can still remove it.

use core::time::Duration;

use evenkeel_policy::id::Key;

use super::invisible::{InvisibleMessage, InvisibleState, PriorState};
use super::key_queue::MessageEntry;
use super::{DeliveryCount, QueueState};
use crate::id::{Epoch, KeyId, Seq};
use crate::message::MessageMeta;
use crate::receipt::DeliveryId;
use crate::rejection::Rejection;
use crate::settings::{CostMode, DeliveryOrder};
use crate::time::UnixMillis;

/// A failed move or delete is repeated after this time.
const REMOVAL_RETRY: Duration = Duration::from_secs(1);
/// Time after the last lease's end at which a message moves to the dead-letter queue if nobody receives meanwhile.
pub const DEAD_LETTER_DELAY: Duration = Duration::from_secs(60);

/// Delivery state of a message, as the store records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedeliveryRecord {
    pub key: KeyId,
    pub meta: MessageMeta,
    pub deliveries: DeliveryCount,
    pub first_delivered_at: Option<UnixMillis>,
    pub not_before: Option<UnixMillis>,
    /// Epoch of the owner that made the last delivery.
    pub epoch: Epoch,
}

/// Outcome of a lease or delay that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The message is ready again, or delayed until `not_before`.
    Requeued(RedeliveryRecord),
    /// The message must be moved to the dead-letter queue; `confirm_removal` or `revert_removal` must follow.
    DeadLetter { key: KeyId, meta: MessageMeta, attempts: u32 },
    /// The message must be deleted: [`confirm_removal`](QueueState::confirm_removal) or
    /// [`revert_removal`](QueueState::revert_removal) must follow.
    Expired { key: KeyId, meta: MessageMeta },
}

/// State of a receipt's delivery; the message was not delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryState {
    Leased,
    /// The lease ended, or the consumer gave the delivery back.
    Ended(MessageMeta),
}

impl QueueState {
    /// Starts an acknowledgement: [`confirm_removal`](Self::confirm_removal) or
    /// [`revert_removal`](Self::revert_removal) must follow.
    ///
    /// A receipt stays valid until the message is delivered again, even after its lease ended.
    pub fn ack(&mut self, delivery: DeliveryId) -> Result<MessageMeta, Rejection> {
        if let DeliveryState::Ended(_) = self.find_delivery(delivery)? {
            self.check_late_receipt()?;
        }
        let (index, mut entry, prior) = self.take_delivered(delivery).ok_or(Rejection::MessageGone)?;
        self.settle_time(index, &mut entry);
        let meta = entry.meta;
        self.hide(index, entry, InvisibleState::Acking { prior });
        if prior == PriorState::Ready {
            self.update_schedule(index);
        }
        Ok(meta)
    }

    /// Takes out the message of a delivery that [`find_delivery`](Self::find_delivery) found.
    fn take_delivered(&mut self, delivery: DeliveryId) -> Option<(Key, MessageEntry, PriorState)> {
        if let Some(message) = self.invisible.get(delivery.seq) {
            let prior = message.state.prior()?;
            let InvisibleMessage { index, entry, .. } = self.reveal(delivery.seq)?;
            return Some((index, entry, prior));
        }
        let index = self.schedule.keys.find(delivery.key)?;
        let entry = self.schedule.take_redelivery(index, delivery.seq)?;
        Some((index, entry, PriorState::Ready))
    }

    /// Drops a message whose delete or move is stored.
    pub fn confirm_removal(&mut self, seq: Seq) {
        let Some(message) = self.reveal(seq) else { return };
        // Saturating, because `bytes` is an estimate after messages were missing from the store.
        self.bytes = self.bytes.saturating_sub(u64::from(message.entry.meta.size));
        if let InvisibleState::Expired { .. } = message.state {
            self.expiry.total += 1;
            self.schedule.key_mut(message.index).forget_deleted(seq);
            self.unpark_expiring();
        }
        self.recheck(message.index);
    }

    /// Restores a message whose delete or move was not stored; a move or an expiry is repeated after a second.
    pub fn revert_removal(&mut self, seq: Seq) {
        let Some(InvisibleMessage { index, entry, state }) = self.reveal(seq) else { return };
        let retry_at = self.now + REMOVAL_RETRY;
        match state {
            InvisibleState::Acking { prior: PriorState::Leased { until, epoch } } => {
                self.hide(index, entry, InvisibleState::Leased { until, epoch });
            }
            InvisibleState::Acking { prior: PriorState::Delayed { until } } => {
                self.hide(index, entry, InvisibleState::Delayed { until });
            }
            InvisibleState::Moving => self.hide(index, entry, InvisibleState::Delayed { until: retry_at }),
            InvisibleState::Expired { .. } => {
                self.hide(index, entry, InvisibleState::Expired { retry_at: Some(retry_at) });
            }
            InvisibleState::Acking { prior: PriorState::Exhausted { move_at } } => {
                self.hide(index, entry, InvisibleState::Exhausted { move_at });
            }
            InvisibleState::Acking { prior: PriorState::Ready } => self.requeue(index, entry),
            InvisibleState::Leased { .. }
            | InvisibleState::Delayed { .. }
            | InvisibleState::Exhausted { .. } => {
                self.hide(index, entry, state);
            }
        }
        self.recheck(index);
    }

    /// Extends or shortens a lease, to end `lease` from now.
    ///
    /// A message whose lease ended is leased again, which counts no attempt and takes no token of a rate limit.
    pub fn extend(
        &mut self,
        now: UnixMillis,
        delivery: DeliveryId,
        lease: Duration,
    ) -> Result<(RedeliveryRecord, UnixMillis), Rejection> {
        self.now = now;
        let state = self.find_delivery(delivery)?;
        if let DeliveryState::Ended(meta) = state {
            self.check_late_receipt()?;
            self.check_new_lease(delivery.key, &meta)?;
        }
        let (index, mut entry, _) = self.take_delivered(delivery).ok_or(Rejection::NotInFlight)?;
        let is_leased_again = state != DeliveryState::Leased;
        if is_leased_again && self.limits.cost_mode == CostMode::Time {
            entry.leased_at = now;
            entry.charged = self.schedule.charge(index, &entry.meta, CostMode::Time);
            self.schedule.drr.consume_deficit(index, entry.charged);
        }
        let until = now + lease;
        // The delivery keeps the epoch in its receipt, even if an earlier owner made it.
        let epoch = delivery.epoch;
        let record = RedeliveryRecord { epoch, ..self.redelivery_record(index, &entry, None) };
        self.hide(index, entry, InvisibleState::Leased { until, epoch });
        if is_leased_again {
            self.update_schedule(index);
        }
        Ok((record, until))
    }

    /// Rejects a receipt whose lease has ended on a FIFO queue.
    fn check_late_receipt(&self) -> Result<(), Rejection> {
        match self.schedule.order {
            DeliveryOrder::Fair => Ok(()),
            DeliveryOrder::Fifo => Err(Rejection::NotInFlight),
        }
    }

    /// Rejects another lease if the message has expired, or if the queue, key or tenant has too many in flight.
    fn check_new_lease(&self, key: KeyId, meta: &MessageMeta) -> Result<(), Rejection> {
        if self.is_expired(meta) {
            return Err(Rejection::MessageGone);
        }
        let max = self.limits.in_flight_max;
        if self.invisible.leased_count() >= max {
            return Err(Rejection::TooManyInFlight { max });
        }
        let index = self.schedule.keys.find(key);
        match index.and_then(|index| self.schedule.reached_concurrency(index)) {
            Some(max) => Err(Rejection::TooManyInFlight { max: u64::from(max) }),
            None => Ok(()),
        }
    }

    /// Releases a delivery that its consumer returns unprocessed: no attempt is counted, and its charge is refunded.
    pub fn release(&mut self, delivery: DeliveryId) -> Result<Option<RedeliveryRecord>, Rejection> {
        self.find_leased(delivery)?;
        Ok(self.release_undelivered(delivery.seq, delivery.attempt))
    }

    /// Releases a delivery that reached no consumer: no attempt is counted, and its charge is refunded.
    pub fn release_undelivered(&mut self, seq: Seq, number: u32) -> Option<RedeliveryRecord> {
        let is_leased = |message: &&InvisibleMessage| {
            matches!(message.state, InvisibleState::Leased { .. })
                && message.entry.deliveries.number() == number
        };
        self.invisible.get(seq).filter(is_leased)?;
        let mut message = self.reveal(seq)?;
        self.refund_delivery(&mut message);
        let record = self.redelivery_record(message.index, &message.entry, None);
        self.requeue(message.index, message.entry);
        Some(record)
    }

    /// Takes back the attempt and the charge of a delivery.
    pub(super) fn refund_delivery(&mut self, message: &mut InvisibleMessage) {
        let deliveries = &mut message.entry.deliveries;
        // A delivery that was released and leased again has no attempt left to take back.
        if let Some(attempts) = deliveries.attempts.checked_sub(1) {
            deliveries.attempts = attempts;
            deliveries.released = deliveries.released.saturating_add(1);
        }
        self.schedule.refund(message.index, &mut message.entry);
    }

    /// Ends leases and delays that are due and expires messages, at most `max` of each.
    pub fn expire_leases(&mut self, now: UnixMillis, max: usize) -> Vec<Disposition> {
        self.now = now;
        self.schedule.on_timer(now);
        let mut ended = self.end_due(max);
        self.expire_some(max, &mut ended);
        ended
    }

    /// Prepares a receive: ends leases and delays that are due, and starts to move exhausted messages to the dead-letter
    /// queue, at most `max` of each.
    pub fn prepare_receive(&mut self, now: UnixMillis, max: usize) -> Vec<Disposition> {
        self.now = now;
        let mut ended = self.end_due(max);
        for _ in 0..max {
            let Some(seq) = self.invisible.first_exhausted() else { break };
            let Some(message) = self.reveal(seq) else { break };
            ended.push(self.requeue_or_dead_letter(message, Duration::ZERO));
        }
        ended
    }

    fn end_due(&mut self, max: usize) -> Vec<Disposition> {
        let mut ended = Vec::new();
        for _ in 0..max {
            let Some(seq) = self.invisible.due_message(self.now) else { break };
            let Some(message) = self.reveal(seq) else { break };
            match message.state {
                InvisibleState::Leased { until, .. } if self.is_exhausted(&message.entry) => {
                    self.exhaust(message, until);
                }
                _ => ended.push(self.requeue_or_dead_letter(message, Duration::ZERO)),
            }
        }
        ended
    }

    /// Reports whether a message must move to the dead-letter queue instead of being delivered again.
    fn is_exhausted(&self, entry: &MessageEntry) -> bool {
        let has_attempts_left = |max| entry.deliveries.attempts < max;
        !self.is_expired(&entry.meta) && !self.limits.attempts_max.is_none_or(has_attempts_left)
    }

    fn exhaust(&mut self, message: InvisibleMessage, lease_ended: UnixMillis) {
        let InvisibleMessage { index, mut entry, .. } = message;
        self.settle_time(index, &mut entry);
        self.hide(index, entry, InvisibleState::Exhausted { move_at: lease_ended + DEAD_LETTER_DELAY });
        self.recheck(index);
    }

    /// Returns when to call [`expire_leases`](Self::expire_leases) next.
    pub fn next_due(&self) -> Option<UnixMillis> {
        let due = self.invisible.next_due_at().into_iter();
        due.chain(self.schedule.next_timer(self.now)).chain(self.next_expiry()).min()
    }

    pub(super) fn find_leased(&self, delivery: DeliveryId) -> Result<(), Rejection> {
        match self.find_delivery(delivery)? {
            DeliveryState::Leased => Ok(()),
            DeliveryState::Ended(_) => Err(Rejection::NotInFlight),
        }
    }

    /// Returns the state of a receipt's delivery; an error if the message is gone or was delivered again.
    fn find_delivery(&self, delivery: DeliveryId) -> Result<DeliveryState, Rejection> {
        let ended = |entry: &MessageEntry| {
            let is_last = entry.deliveries.number() == delivery.attempt;
            if is_last { Ok(DeliveryState::Ended(entry.meta)) } else { Err(Rejection::StaleReceipt) }
        };
        if let Some(message) = self.invisible.get(delivery.seq) {
            return match message.state {
                InvisibleState::Leased { epoch, .. } if message.matches(delivery, epoch) => {
                    Ok(DeliveryState::Leased)
                }
                InvisibleState::Leased { .. } => Err(Rejection::StaleReceipt),
                InvisibleState::Delayed { .. } | InvisibleState::Exhausted { .. } => ended(&message.entry),
                // The removal is not confirmed yet.
                InvisibleState::Acking { .. } | InvisibleState::Moving => Err(Rejection::Busy),
                InvisibleState::Expired { .. } => Err(Rejection::MessageGone),
            };
        }
        let index = self.schedule.keys.find(delivery.key).ok_or(Rejection::MessageGone)?;
        let queue = self.schedule.key(index);
        match queue.redelivery(delivery.seq) {
            Some(entry) => ended(entry),
            // A crash lost the record of the delivery.
            None if queue.holds(delivery.seq) => Err(Rejection::StaleReceipt),
            None => Err(Rejection::MessageGone),
        }
    }

    /// Returns the number of attempts of an invisible message, the current one included; 0 if there is none.
    pub fn attempts(&self, seq: Seq) -> u32 {
        self.invisible.get(seq).map_or(0, |message| message.entry.deliveries.attempts)
    }

    /// Ends a lease or delay: the message is redelivered, dead-lettered or expired.
    pub(super) fn requeue_or_dead_letter(
        &mut self,
        message: InvisibleMessage,
        delay: Duration,
    ) -> Disposition {
        let InvisibleMessage { index, mut entry, state } = message;
        let attempts = entry.deliveries.attempts;
        self.settle_time(index, &mut entry);
        if let InvisibleState::Delayed { until } = state {
            entry.ready_at = until;
        }
        if matches!(state, InvisibleState::Expired { .. }) || self.is_expired(&entry.meta) {
            let (key, meta) = self.expire(index, entry);
            self.recheck(index);
            return Disposition::Expired { key, meta };
        }
        if self.is_exhausted(&entry) {
            let key = self.schedule.key(index).key;
            let meta = entry.meta;
            self.hide(index, entry, InvisibleState::Moving);
            return Disposition::DeadLetter { key, meta, attempts };
        }
        let not_before = (!delay.is_zero()).then(|| self.now + delay);
        let record = self.redelivery_record(index, &entry, not_before);
        match not_before {
            Some(until) => {
                self.hide(index, entry, InvisibleState::Delayed { until });
                self.recheck(index);
            }
            None => self.requeue(index, entry),
        }
        Disposition::Requeued(record)
    }

    fn requeue(&mut self, index: Key, entry: MessageEntry) {
        self.expiry.insert(index, &entry.meta);
        self.schedule.requeue(index, entry);
        self.update_schedule(index);
    }

    fn redelivery_record(
        &self,
        index: Key,
        entry: &MessageEntry,
        not_before: Option<UnixMillis>,
    ) -> RedeliveryRecord {
        RedeliveryRecord {
            key: self.schedule.key(index).key,
            meta: entry.meta,
            deliveries: entry.deliveries,
            first_delivered_at: entry.first_delivered_at,
            not_before,
            epoch: self.epoch,
        }
    }
}
