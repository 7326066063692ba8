//! How messages leave consumers' hands through nobody's failure: for later, or for good.

use core::time::Duration;

use super::{Book, Ended, How, Out};
use crate::receipt::Claim;
use crate::rejection::Rejection;
use crate::time::Wall;

/// How a delivery is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It did not count: its turn is given back, and it is to be delivered again after so long.
    For(Duration),
    /// It is a dead letter, however often it was tried.
    ForGood,
}

impl Book {
    /// Gives a delivery up; what is a dead letter must be moved, unless its time is over.
    pub fn give_up(&mut self, now: Wall, claim: Claim, how: GivenUp) -> Result<Ended, Rejection> {
        self.now = now;
        self.find_leased(claim)?;
        let mut out = self.take_out(claim.seq).ok_or(Rejection::NotInFlight)?;
        match how {
            GivenUp::For(delay) => {
                self.uncount(&mut out);
                Ok(self.bring_back(now, out, delay))
            }
            GivenUp::ForGood if self.is_over(&out.handle.header) => {
                Ok(self.bring_back(now, out, Duration::ZERO))
            }
            GivenUp::ForGood => {
                let Out { lane, mut handle, .. } = out;
                self.settle_time(lane, &mut handle);
                let (key, header, attempts) = (self.at(lane).key, handle.header, handle.delivered.attempts);
                self.set_out(lane, handle, How::Moving);
                Ok(Ended::Dead { key, header, attempts })
            }
        }
    }
}
