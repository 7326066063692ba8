//! Leases: how a delivery ends, by acknowledgement, release, redelivery or the visibility timeout.
//!
//! A lease hides a message from other consumers until its visibility timeout. Without an acknowledgement the message
//! is redelivered, so delivery is at-least-once.
//!
//! There are three ways to give a delivery back: [`abandon`](QueueState::abandon) (retry, defer or dead-letter),
//! [`release`](QueueState::release) (the consumer returns it unprocessed; no attempt is counted) and
//! [`release_undelivered`](QueueState::release_undelivered) (it never reached a consumer; no attempt is counted).

use core::time::Duration;

use evenkeel_policy::id::Key;

use super::invisible::{InvisibleMessage, InvisibleState, PriorState};
use super::key_queue::MessageEntry;
use super::{DeliveryCount, QueueState};
use crate::id::{Epoch, KeyId, Seq};
use crate::message::MessageMeta;
use crate::receipt::DeliveryId;
use crate::rejection::Rejection;
use crate::time::UnixMillis;

/// A failed move or delete is repeated after this time.
const REMOVAL_RETRY: Duration = Duration::from_secs(1);

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
    /// The message must be moved to the dead-letter queue.
    DeadLetter { key: KeyId, meta: MessageMeta, attempts: u32 },
    /// The message must be deleted: [`confirm_removal`](QueueState::confirm_removal) or
    /// [`revert_removal`](QueueState::revert_removal) must follow.
    Expired { key: KeyId, meta: MessageMeta },
}

impl QueueState {
    /// Starts an acknowledgement: [`confirm_removal`](Self::confirm_removal) or
    /// [`revert_removal`](Self::revert_removal) must follow.
    ///
    /// A receipt stays valid until the message is delivered again, even after its lease ended.
    pub fn ack(&mut self, delivery: DeliveryId) -> Result<MessageMeta, Rejection> {
        let Some(index) = self.schedule.keys.find(delivery.key) else { return Err(Rejection::MessageGone) };
        if let Some(message) = self.invisible.get(delivery.seq) {
            let is_last = message.entry.deliveries.number() == delivery.attempt;
            let prior = match message.state {
                InvisibleState::Leased { until, epoch } if message.matches(delivery, epoch) => {
                    PriorState::Leased { until, epoch }
                }
                InvisibleState::Delayed { until } if is_last => PriorState::Delayed { until },
                InvisibleState::Leased { .. } | InvisibleState::Delayed { .. } => {
                    return Err(Rejection::StaleReceipt);
                }
                // The removal is not confirmed yet.
                InvisibleState::Acking { .. } | InvisibleState::Moving => return Err(Rejection::Busy),
                InvisibleState::Expired { .. } => return Err(Rejection::MessageGone),
            };
            let InvisibleMessage { index, mut entry, .. } =
                self.reveal(delivery.seq).ok_or(Rejection::MessageGone)?;
            self.settle_time(index, &mut entry);
            let meta = entry.meta;
            self.hide(index, entry, InvisibleState::Acking { prior });
            return Ok(meta);
        }
        let is_last = |entry: &MessageEntry| {
            entry.deliveries.number() == delivery.attempt && delivery.epoch == self.epoch
        };
        let queue = self.schedule.key(index);
        if !queue.redelivery(delivery.seq).is_some_and(is_last) {
            let is_ready = queue.holds(delivery.seq);
            return Err(if is_ready { Rejection::StaleReceipt } else { Rejection::MessageGone });
        }
        let entry = self.schedule.take_redelivery(index, delivery.seq).ok_or(Rejection::MessageGone)?;
        let meta = entry.meta;
        self.hide(index, entry, InvisibleState::Acking { prior: PriorState::Ready });
        self.update_schedule(index);
        Ok(meta)
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
            InvisibleState::Acking { prior: PriorState::Ready } => self.requeue(index, entry),
            InvisibleState::Leased { .. } | InvisibleState::Delayed { .. } => self.hide(index, entry, state),
        }
        self.recheck(index);
    }

    /// Extends or shortens a lease, to end `lease` from now.
    pub fn extend(
        &mut self,
        now: UnixMillis,
        delivery: DeliveryId,
        lease: Duration,
    ) -> Result<(RedeliveryRecord, UnixMillis), Rejection> {
        self.now = now;
        self.find_leased(delivery)?;
        let InvisibleMessage { index, entry, .. } =
            self.reveal(delivery.seq).ok_or(Rejection::NotInFlight)?;
        let until = now + lease;
        // The delivery keeps the epoch in its receipt, even if an earlier owner made it.
        let epoch = delivery.epoch;
        let record = RedeliveryRecord { epoch, ..self.redelivery_record(index, &entry, None) };
        self.hide(index, entry, InvisibleState::Leased { until, epoch });
        Ok((record, until))
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
        deliveries.attempts = deliveries.attempts.saturating_sub(1);
        deliveries.released = deliveries.released.saturating_add(1);
        self.schedule.refund(message.index, &mut message.entry);
    }

    /// Ends leases and delays that are due and expires messages, at most `max` of each.
    pub fn expire_leases(&mut self, now: UnixMillis, max: usize) -> Vec<Disposition> {
        self.now = now;
        self.schedule.on_timer(now);
        let mut ended = Vec::new();
        while ended.len() < max {
            let Some(seq) = self.invisible.due_message(now) else { break };
            let Some(message) = self.reveal(seq) else { break };
            ended.push(self.requeue_or_dead_letter(message, Duration::ZERO));
        }
        self.expire_some(max, &mut ended);
        ended
    }

    /// Returns when to call [`expire_leases`](Self::expire_leases) next.
    pub fn next_due(&self) -> Option<UnixMillis> {
        let due = self.invisible.next_due_at().into_iter();
        due.chain(self.schedule.next_timer(self.now)).chain(self.next_expiry()).min()
    }

    pub(super) fn find_leased(&self, delivery: DeliveryId) -> Result<(), Rejection> {
        match self.invisible.get(delivery.seq).map(|message| (message, message.state)) {
            Some((message, InvisibleState::Leased { epoch, .. })) if message.matches(delivery, epoch) => {
                Ok(())
            }
            Some((_, InvisibleState::Leased { .. })) => Err(Rejection::StaleReceipt),
            Some((_, InvisibleState::Delayed { .. })) => Err(Rejection::NotInFlight),
            Some((_, InvisibleState::Acking { .. } | InvisibleState::Moving)) => Err(Rejection::Busy),
            Some((_, InvisibleState::Expired { .. })) => Err(Rejection::MessageGone),
            None => {
                let queue = self.schedule.keys.find(delivery.key).map(|index| self.schedule.key(index));
                let is_ready = queue.is_some_and(|queue| queue.holds(delivery.seq));
                Err(if is_ready { Rejection::NotInFlight } else { Rejection::MessageGone })
            }
        }
    }

    /// Returns the attempts of a message in flight, this one included.
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
        if self.limits.attempts_max.is_some_and(|max| attempts >= max) {
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
