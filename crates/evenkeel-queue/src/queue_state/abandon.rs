//! How messages leave consumers' hands through nobody's failure: for later, or for good.

use core::time::Duration;

use super::{Disposition, InvisibleMessage, InvisibleState, QueueState};
use crate::receipt::DeliveryId;
use crate::rejection::Rejection;
use crate::time::UnixMillis;

/// How a delivery is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonMode {
    /// It did not count: its turn is given back, and it is to be delivered again after so long.
    Defer(Duration),
    /// It is a dead letter, however often it was tried.
    DeadLetter,
}

impl QueueState {
    /// Gives a delivery up; what is a dead letter must be moved, unless its time is over.
    pub fn abandon(
        &mut self,
        now: UnixMillis,
        claim: DeliveryId,
        how: AbandonMode,
    ) -> Result<Disposition, Rejection> {
        self.now = now;
        self.find_leased(claim)?;
        let mut out = self.take_out(claim.seq).ok_or(Rejection::NotInFlight)?;
        match how {
            AbandonMode::Defer(delay) => {
                self.refund_delivery(&mut out);
                Ok(self.requeue_or_dead_letter(now, out, delay))
            }
            AbandonMode::DeadLetter if self.is_expired(&out.handle.header) => {
                Ok(self.requeue_or_dead_letter(now, out, Duration::ZERO))
            }
            AbandonMode::DeadLetter => {
                let InvisibleMessage { lane, mut handle, .. } = out;
                self.settle_time(lane, &mut handle);
                let key = self.at(lane).key;
                let header = handle.header;
                let attempts = handle.delivered.attempts;
                self.hide(lane, handle, InvisibleState::Moving);
                Ok(Disposition::DeadLetter { key, header, attempts })
            }
        }
    }
}
