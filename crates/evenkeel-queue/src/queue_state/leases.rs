//! How messages leave consumers' hands: acknowledged, given back, or out of time.

use core::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::Settlement;
use evenkeel_policy::id::Key;

use super::key_queue::MessageEntry;
use super::{DeliveryCount, IDLE_KEY, InvisibleMessage, InvisibleState, PriorState, QueueState};
use crate::id::{Epoch, KeyId, Seq};
use crate::message::MessageMeta;
use crate::receipt::DeliveryId;
use crate::rejection::Rejection;
use crate::time::UnixMillis;

/// At most so many lanes are forgotten per tick.
const FORGET_MAX: usize = 1_024;

/// A message that is to be delivered again, as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedeliveryRecord {
    /// Its key.
    pub key: KeyId,
    /// Which message.
    pub header: MessageMeta,
    /// How often it was delivered.
    pub delivered: DeliveryCount,
    /// When it was first delivered.
    pub first_delivered_at: Option<UnixMillis>,
    /// Not before then.
    pub not_before: Option<UnixMillis>,
    /// Who delivered it last.
    pub epoch: Epoch,
}

/// What became of a message whose lease or delay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It waits for its turn again.
    Requeued(RedeliveryRecord),
    /// It was delivered too often: it is to be moved to the dead-letter queue.
    DeadLetter {
        /// Its key.
        key: KeyId,
        /// Which message.
        header: MessageMeta,
        /// How often it was delivered.
        attempts: u32,
    },
    /// Its time is over: it is to be removed, and [`acked`](Book::acked) or [`undo_ack`](Book::undo_ack) must follow.
    Expired {
        /// Its key.
        key: KeyId,
        /// Which message.
        header: MessageMeta,
    },
}

impl QueueState {
    /// Begins to acknowledge a delivery: [`acked`](Self::acked) or [`undo_ack`](Self::undo_ack) must follow.
    ///
    /// A receipt is good until the message is delivered again, also when its lease has ended.
    pub fn ack(&mut self, claim: DeliveryId) -> Result<MessageMeta, Rejection> {
        let Some(&at) = self.keys.get(&claim.key) else { return Err(Rejection::MessageGone) };
        if let Some(out) = self.out.get(&claim.seq) {
            let is_last = out.handle.delivered.number() == claim.attempt;
            let was = match out.how {
                InvisibleState::Leased { until, epoch } if out.is_of(claim, epoch) => {
                    PriorState::Leased { until, epoch }
                }
                InvisibleState::Delayed { until } if is_last => PriorState::Delayed { until },
                InvisibleState::Leased { .. } | InvisibleState::Delayed { .. } => {
                    return Err(Rejection::StaleReceipt);
                }
                // Whether it is gone is not written down yet.
                InvisibleState::Acking { .. } | InvisibleState::Moving => return Err(Rejection::Busy),
                InvisibleState::Expired { .. } => return Err(Rejection::MessageGone),
            };
            let InvisibleMessage { lane, mut handle, .. } =
                self.take_out(claim.seq).ok_or(Rejection::MessageGone)?;
            self.settle_time(lane, &mut handle);
            let header = handle.header;
            self.hide(lane, handle, InvisibleState::Acking { was });
            return Ok(header);
        }
        let is_of =
            |handle: &MessageEntry| handle.delivered.number() == claim.attempt && claim.epoch == self.epoch;
        if !self.lane(at).back(claim.seq).is_some_and(is_of) {
            let waits = self.lane(at).holds(claim.seq);
            return Err(if waits { Rejection::StaleReceipt } else { Rejection::MessageGone });
        }
        let handle = self.at(at).take_back(claim.seq).ok_or(Rejection::MessageGone)?;
        let header = handle.header;
        self.totals.pending -= 1;
        self.hide(at, handle, InvisibleState::Acking { was: PriorState::Waiting });
        self.update_schedule(at);
        Ok(header)
    }

    /// Forgets a message whose end, here or by a move, was written down.
    pub fn confirm_removal(&mut self, seq: Seq) {
        let Some(out) = self.take_out(seq) else { return };
        // If the store lost messages, this is not exact.
        self.totals.bytes = self.totals.bytes.saturating_sub(u64::from(out.handle.header.size));
        if let InvisibleState::Expired { .. } = out.how {
            self.totals.expired += 1;
            self.at(out.lane).forget_gone(seq);
            self.go_on_after_ends();
        }
        self.recheck(out.lane);
    }

    /// Takes back an end that was not written down: the message is what it was, or is removed a second later.
    pub fn revert_removal(&mut self, seq: Seq) {
        let Some(InvisibleMessage { lane, handle, how }) = self.take_out(seq) else { return };
        match how {
            InvisibleState::Acking { was: PriorState::Leased { until, epoch } } => {
                self.hide(lane, handle, InvisibleState::Leased { until, epoch });
            }
            InvisibleState::Acking { was: PriorState::Delayed { until } } => {
                self.hide(lane, handle, InvisibleState::Delayed { until })
            }
            // Tried again when a second has passed.
            InvisibleState::Moving => {
                let until = self.now + Duration::from_secs(1);
                self.hide(lane, handle, InvisibleState::Delayed { until });
            }
            InvisibleState::Expired { .. } => {
                let again = Some(self.now + Duration::from_secs(1));
                self.hide(lane, handle, InvisibleState::Expired { again });
            }
            InvisibleState::Acking { was: PriorState::Waiting } => self.wait_again(lane, handle),
            InvisibleState::Leased { .. } | InvisibleState::Delayed { .. } => self.hide(lane, handle, how),
        }
        self.recheck(lane);
    }

    /// Gives a delivery back, to be delivered again after `delay`, or moved if it was delivered too often.
    pub fn nack(
        &mut self,
        now: UnixMillis,
        claim: DeliveryId,
        delay: Duration,
    ) -> Result<Disposition, Rejection> {
        self.now = now;
        self.find_leased(claim)?;
        let out = self.take_out(claim.seq).ok_or(Rejection::NotInFlight)?;
        Ok(self.requeue_or_dead_letter(now, out, delay))
    }

    /// Prolongs or shortens a delivery's lease: it ends `lease` from now.
    pub fn extend(
        &mut self,
        now: UnixMillis,
        claim: DeliveryId,
        lease: Duration,
    ) -> Result<(RedeliveryRecord, UnixMillis), Rejection> {
        self.now = now;
        self.find_leased(claim)?;
        let InvisibleMessage { lane, handle, .. } = self.take_out(claim.seq).ok_or(Rejection::NotInFlight)?;
        let until = now + lease;
        // It is still the delivery of whoever made it, and its receipt says so.
        let epoch = claim.epoch;
        let returned = RedeliveryRecord { epoch, ..self.returned(lane, &handle, None) };
        self.hide(lane, handle, InvisibleState::Leased { until, epoch });
        Ok((returned, until))
    }

    /// Takes back a delivery whose consumer did not want it: it does not count, and its turn is given back.
    pub fn release(&mut self, claim: DeliveryId) -> Result<Option<RedeliveryRecord>, Rejection> {
        self.find_leased(claim)?;
        Ok(self.release_undelivered(claim.seq, claim.attempt))
    }

    /// Takes back a delivery that reached nobody: it does not count, and its turn is given back.
    pub fn release_undelivered(&mut self, seq: Seq, number: u32) -> Option<RedeliveryRecord> {
        let is_this = |out: &InvisibleMessage| out.handle.delivered.number() == number;
        self.out.get(&seq).filter(|out| matches!(out.how, InvisibleState::Leased { .. }) && is_this(out))?;
        let mut out = self.take_out(seq)?;
        self.refund_delivery(&mut out);
        let returned = self.returned(out.lane, &out.handle, None);
        self.wait_again(out.lane, out.handle);
        Some(returned)
    }

    /// Has a delivery not count, and gives its turn back.
    pub(super) fn refund_delivery(&mut self, out: &mut InvisibleMessage) {
        let DeliveryCount { attempts, taken_back } = out.handle.delivered;
        out.handle.delivered =
            DeliveryCount { attempts: attempts.saturating_sub(1), taken_back: taken_back.saturating_add(1) };
        let charged = core::mem::take(&mut out.handle.charged);
        self.drr.settle(out.lane, charged, Cost::ZERO, Settlement::Final);
    }

    /// Ends what has lasted until `now`: at most `max` leases and delays, and as many messages that wait.
    pub fn expire_leases(&mut self, now: UnixMillis, max: usize) -> Vec<Disposition> {
        self.now = now;
        for at in core::mem::take(&mut self.starved) {
            if let Some(lane) = self.lanes[at.index()].as_mut() {
                lane.end_prefetch();
                self.update_schedule(at);
            }
        }
        while let Some(&(_, at)) = self.starving.front().filter(|(until, _)| *until <= now) {
            self.starving.pop_front();
            if self.lanes[at.index()].is_some() {
                self.update_schedule(at);
            }
        }
        self.open_gates();
        let mut ended = Vec::new();
        while ended.len() < max {
            let Some(&(until, seq)) = self.due.first().filter(|(until, _)| *until <= now) else { break };
            let Some(out) = self.take_out(seq) else {
                debug_assert!(false, "{seq:?} is due and nowhere");
                self.due.remove(&(until, seq));
                continue;
            };
            ended.push(self.requeue_or_dead_letter(now, out, Duration::ZERO));
        }
        self.expire_some(max, &mut ended);
        ended
    }

    /// Names the moment of the next [`tick`](Self::tick).
    pub fn next_due(&self) -> Option<UnixMillis> {
        let first = self.due.first().map(|(until, _)| *until);
        let patience = self.starving.front().map(|(until, _)| *until);
        let retry = (!self.starved.is_empty()).then(|| self.now + Duration::from_secs(1));
        first
            .into_iter()
            .chain(patience)
            .chain(retry)
            .chain(self.gates.next_wake())
            .chain(self.next_end())
            .min()
    }

    /// Forgets keys that have held nothing for a minute, and names them.
    pub fn forget_idle(&mut self, now: UnixMillis) -> Vec<KeyId> {
        let mut forgotten = Vec::new();
        let rounds = self.idle.len().min(FORGET_MAX);
        for _ in 0..rounds {
            let Some(&(since, at)) = self.idle.front().filter(|(since, _)| IDLE_KEY <= now.since(*since))
            else {
                break;
            };
            self.idle.pop_front();
            let Some(lane) = self.lanes[at.index()].as_mut() else { continue };
            lane.is_listed_idle = false;
            if !lane.is_idle() {
                continue;
            }
            // A key in debt is remembered until its debt has decayed.
            if !self.drr.forget_key(at) {
                lane.is_listed_idle = true;
                self.idle.push_back((since.max(now), at));
                continue;
            }
            forgotten.extend(self.forget(at));
        }
        forgotten
    }

    /// Tells whether keys are left that have held nothing for a minute.
    pub fn has_idle(&self, now: UnixMillis) -> bool {
        self.idle.front().is_some_and(|(since, _)| IDLE_KEY <= now.since(*since))
    }

    /// Lets every message before `below` go, which is every message that was told, and keeps the rules.
    pub fn clear(&mut self, now: UnixMillis, below: Seq) {
        self.now = now;
        self.out.clear();
        self.due.clear();
        self.ends.clear();
        self.refills.clear();
        self.starved.clear();
        self.starving.clear();
        self.gates.clear();
        self.payload_bytes = 0;
        self.totals = super::QueueTotals { expired: self.totals.expired, ..super::QueueTotals::default() };
        for number in 0..self.lanes.len() {
            if let Some(lane) = &mut self.lanes[number] {
                lane.clear(below);
                self.update_schedule(Key(number as u32));
            }
        }
    }

    fn forget(&mut self, at: Key) -> Option<KeyId> {
        let lane = self.lanes[at.index()].take()?;
        self.free.push(at);
        self.keys.remove(&lane.key);
        if let Some(listed) = lane.listed_since {
            self.ends.unlist_lane(at, listed);
        }
        let lanes = &mut self.tenant_lanes[lane.tenant.index()];
        *lanes -= 1;
        if *lanes == 0 && self.drr.forget_tenant(lane.tenant) {
            self.tenants.release(lane.tenant);
        }
        Some(lane.key)
    }

    pub(super) fn find_leased(&self, claim: DeliveryId) -> Result<(), Rejection> {
        match self.out.get(&claim.seq).map(|out| (out, out.how)) {
            Some((out, InvisibleState::Leased { epoch, .. })) if out.is_of(claim, epoch) => Ok(()),
            Some((_, InvisibleState::Leased { .. })) => Err(Rejection::StaleReceipt),
            Some((_, InvisibleState::Delayed { .. })) => Err(Rejection::NotInFlight),
            Some((_, InvisibleState::Acking { .. } | InvisibleState::Moving)) => Err(Rejection::Busy),
            Some((_, InvisibleState::Expired { .. })) => Err(Rejection::MessageGone),
            None => {
                let lane = self.keys.get(&claim.key).map(|&at| self.lane(at));
                let waits = lane.is_some_and(|lane| lane.holds(claim.seq));
                Err(if waits { Rejection::NotInFlight } else { Rejection::MessageGone })
            }
        }
    }

    /// Counts the attempts of a delivery that is under way.
    pub fn attempts(&self, seq: Seq) -> u32 {
        self.out.get(&seq).map_or(0, |out| out.handle.delivered.attempts)
    }

    /// A message is to be delivered again: now, later, or never.
    pub(super) fn requeue_or_dead_letter(
        &mut self,
        now: UnixMillis,
        out: InvisibleMessage,
        delay: Duration,
    ) -> Disposition {
        let InvisibleMessage { lane, mut handle, how } = out;
        let attempts = handle.delivered.attempts;
        self.settle_time(lane, &mut handle);
        if let InvisibleState::Delayed { until } = how {
            handle.ready_at = until;
        }
        if matches!(how, InvisibleState::Expired { .. }) || self.is_expired(&handle.header) {
            let (key, header) = self.expire(lane, handle);
            self.recheck(lane);
            return Disposition::Expired { key, header };
        }
        if self.limits.attempts_max.is_some_and(|max| max <= attempts) {
            let key = self.at(lane).key;
            let header = handle.header;
            self.hide(lane, handle, InvisibleState::Moving);
            return Disposition::DeadLetter { key, header, attempts };
        }
        let not_before = (!delay.is_zero()).then(|| now + delay);
        let returned = self.returned(lane, &handle, not_before);
        match not_before {
            Some(until) => {
                self.hide(lane, handle, InvisibleState::Delayed { until });
                self.recheck(lane);
            }
            None => self.wait_again(lane, handle),
        }
        Disposition::Requeued(returned)
    }

    fn wait_again(&mut self, lane: Key, handle: MessageEntry) {
        self.totals.pending += 1;
        self.ends.list(lane, &handle.header);
        self.at(lane).requeue(handle);
        self.update_schedule(lane);
    }

    fn returned(
        &mut self,
        lane: Key,
        handle: &MessageEntry,
        not_before: Option<UnixMillis>,
    ) -> RedeliveryRecord {
        RedeliveryRecord {
            key: self.at(lane).key,
            header: handle.header,
            delivered: handle.delivered,
            first_delivered_at: handle.first_delivered_at,
            not_before,
            epoch: self.epoch,
        }
    }
}

impl InvisibleMessage {
    /// Whether a receipt is of this delivery.
    fn is_of(&self, claim: DeliveryId, epoch: Epoch) -> bool {
        self.handle.delivered.number() == claim.attempt && epoch == claim.epoch
    }
}
