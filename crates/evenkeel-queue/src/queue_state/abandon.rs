//! Deliveries that a consumer gives back: to be retried, deferred, or moved to the dead-letter queue.
//!
//! A retry counts as an attempt; after `attempts_max` of them the redrive policy moves the message to the dead-letter
//! queue. A deferral does not count.

use core::time::Duration;

use super::invisible::{InvisibleMessage, InvisibleState};
use super::{Disposition, QueueState};
use crate::receipt::DeliveryId;
use crate::rejection::Rejection;
use crate::time::UnixMillis;

/// Disposition of a delivery that its consumer does not acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonMode {
    /// Negative acknowledgement: the attempt counts, and the message is redelivered after the delay.
    Retry(Duration),
    /// The attempt does not count, its charge is refunded, and the message is redelivered after the delay.
    Defer(Duration),
    /// The message is moved to the dead-letter queue, regardless of its number of attempts.
    DeadLetter,
}

impl QueueState {
    /// Ends a delivery without an acknowledgement.
    ///
    /// The caller must then carry out the returned disposition; a message that has expired is not dead-lettered.
    pub fn abandon(
        &mut self,
        now: UnixMillis,
        delivery: DeliveryId,
        mode: AbandonMode,
    ) -> Result<Disposition, Rejection> {
        self.now = now;
        self.find_leased(delivery)?;
        let mut message = self.reveal(delivery.seq).ok_or(Rejection::NotInFlight)?;
        match mode {
            AbandonMode::Retry(delay) => Ok(self.requeue_or_dead_letter(message, delay)),
            AbandonMode::Defer(delay) => {
                self.refund_delivery(&mut message);
                Ok(self.requeue_or_dead_letter(message, delay))
            }
            AbandonMode::DeadLetter if self.is_expired(&message.entry.meta) => {
                Ok(self.requeue_or_dead_letter(message, Duration::ZERO))
            }
            AbandonMode::DeadLetter => {
                let InvisibleMessage { index, mut entry, .. } = message;
                self.settle_time(index, &mut entry);
                let key = self.schedule.key(index).key;
                let meta = entry.meta;
                let attempts = entry.deliveries.attempts;
                self.hide(index, entry, InvisibleState::Moving);
                Ok(Disposition::DeadLetter { key, meta, attempts })
            }
        }
    }
}
