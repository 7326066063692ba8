//! Cost of a delivery, charged to its key: the message's cost, its bytes, or the consumer's processing time.

use core::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::Settlement;
use evenkeel_policy::id::Key;

use super::key_queue::MessageEntry;
use super::schedule::Schedule;
use crate::message::MessageMeta;
use crate::settings::CostMode;
use crate::time::UnixMillis;

/// Cost of a millisecond of a consumer's time.
const PER_MS: u64 = 100;

/// Exponential moving average of service times, as costs; a new sample has a weight of 1/8.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceTime(Option<Cost>);

impl ServiceTime {
    fn record(&mut self, cost: Cost) {
        let average = self.0.unwrap_or(cost);
        self.0 = Some(Cost((7 * average.0 + cost.0).div_ceil(8)));
    }
}

fn cost_of_time(service_time: Duration) -> Cost {
    let ms = u64::try_from(service_time.as_millis()).unwrap_or(u64::MAX);
    Cost(ms.saturating_mul(PER_MS).clamp(1, Cost::MAX.0))
}

impl Schedule {
    /// Returns the charge of a delivery; an estimate if cost is by time.
    pub(super) fn charge(&self, index: Key, meta: &MessageMeta, mode: CostMode) -> Cost {
        match mode {
            CostMode::Count => meta.cost,
            CostMode::Bytes => Cost(u64::from(meta.size).max(1)),
            // Before a key's first delivery has ended, the average of all keys is the estimate.
            CostMode::Time => self.key(index).service_time.0.or(self.service_time.0).unwrap_or(Cost::MESSAGE),
        }
    }

    /// Replaces the estimated charge of a finished delivery with the actual one, if cost is by time.
    pub(super) fn settle_time(
        &mut self,
        index: Key,
        entry: &mut MessageEntry,
        mode: CostMode,
        now: UnixMillis,
    ) {
        let charged = core::mem::take(&mut entry.charged);
        if mode != CostMode::Time || charged == Cost::ZERO {
            return;
        }
        let actual = cost_of_time(now.since(entry.leased_at));
        self.drr.settle(index, charged, actual, Settlement::Final);
        self.key_mut(index).service_time.record(actual);
        self.service_time.record(actual);
    }

    /// Refunds the charge of a delivery that was released without counting as an attempt.
    pub(super) fn refund(&mut self, index: Key, entry: &mut MessageEntry) {
        let charged = core::mem::take(&mut entry.charged);
        self.drr.settle(index, charged, Cost::ZERO, Settlement::Final);
    }
}
