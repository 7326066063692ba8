//! Receipts used after their lease has ended.

use std::time::Duration;

use evenkeel_queue::queue_state::AbandonMode;
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::{DeliveryOrder, Rejection, UnixMillis};

use super::{ATTEMPTS_MAX, LEASE, Model, pick};

impl Model {
    /// On a standard queue, the last receipt of a message still deletes it, whatever happened to the delivery.
    pub(super) fn ack_late(&mut self, which: usize) {
        let ended: Vec<DeliveryId> = self.ended.values().copied().collect();
        let Some(&delivery) = pick(&ended, which) else { return };
        let acked = self.state.ack(delivery);
        if self.expiring.contains(&delivery.seq) {
            return assert_eq!(acked, Err(Rejection::MessageGone));
        }
        if self.order == DeliveryOrder::Fifo {
            return assert_eq!(acked, Err(Rejection::NotInFlight));
        }
        assert!(acked.is_ok(), "{acked:?}");
        if which.is_multiple_of(2) {
            self.state.revert_removal(delivery.seq);
        } else {
            self.state.confirm_removal(delivery.seq);
            self.forget(delivery.seq);
            self.stale.push(delivery);
        }
    }

    /// On a standard queue, the last receipt of a message leases it again, within the limits of its key and tenant.
    pub(super) fn extend_late(&mut self, which: usize) {
        let ended: Vec<DeliveryId> = self.ended.values().copied().collect();
        let Some(&delivery) = pick(&ended, which) else { return };
        let DeliveryId { key, seq, .. } = delivery;
        let extended = self.state.extend(UnixMillis(self.now), delivery, LEASE);
        if self.expiring.contains(&seq) {
            return assert_eq!(extended, Err(Rejection::MessageGone));
        }
        if self.order == DeliveryOrder::Fifo {
            return assert_eq!(extended, Err(Rejection::NotInFlight));
        }
        if self.is_expired(&self.stored[&(key.0, seq.0)]) {
            return assert_eq!(extended, Err(Rejection::MessageGone));
        }
        let name = format!("tenant{}/{}", key.0 % 2, key.0);
        let is_at_limit = self.rules.iter().any(|(ruled, (rule, _))| {
            name.starts_with(ruled) && self.concurrency_left(ruled, rule) == Some(0)
        });
        if is_at_limit {
            assert!(matches!(extended, Err(Rejection::TooManyInFlight { .. })), "{extended:?}");
            return;
        }
        let (record, until) = extended.unwrap();
        self.ended.remove(&seq);
        self.exhausted.remove(&seq);
        self.leases.insert(seq, (until.0, record.deliveries.attempts));
        self.in_flight.push(delivery);
    }

    /// A receipt of an earlier delivery changes nothing.
    pub(super) fn use_outdated(&mut self, which: usize) {
        let Some(&delivery) = pick(&self.outdated, which) else { return };
        let now = UnixMillis(self.now);
        let results = [
            self.state.ack(delivery).err(),
            self.state.extend(now, delivery, 10 * LEASE).err(),
            self.state.abandon(now, delivery, AbandonMode::Retry(Duration::ZERO)).err(),
            self.state.release(delivery).err(),
        ];
        let is_gone = !self.stored.contains_key(&(delivery.key.0, delivery.seq.0))
            || self.expiring.contains(&delivery.seq);
        let expected = if is_gone { Rejection::MessageGone } else { Rejection::StaleReceipt };
        assert_eq!(results, [(); 4].map(|()| Some(expected.clone())), "{delivery:?} is outdated");
    }

    /// Records which leases of last allowed deliveries have ended.
    pub(super) fn record_exhausted(&mut self) {
        let is_over = |model: &Self, delivery: &DeliveryId| {
            let (until, attempts) = model.leases[&delivery.seq];
            let meta = &model.stored[&(delivery.key.0, delivery.seq.0)];
            until <= model.now && attempts >= ATTEMPTS_MAX && !model.is_expired(meta)
        };
        let over: Vec<DeliveryId> =
            self.in_flight.iter().filter(|delivery| is_over(self, delivery)).copied().collect();
        for delivery in over {
            self.in_flight.retain(|held| held.seq != delivery.seq);
            self.ended.insert(delivery.seq, delivery);
            self.exhausted.insert(delivery.seq, self.leases[&delivery.seq].0 + 60_000);
        }
    }
}
