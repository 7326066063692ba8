//! What a delivery costs its key: a number it was sent with, its bytes, or the time it takes.

use core::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::Settlement;
use evenkeel_policy::id::Key;

use super::QueueState;
use super::key_queue::MessageEntry;
use crate::message::MessageMeta;
use crate::settings::CostMode;

/// What a millisecond of a consumer's time costs.
const PER_MS: u64 = 100;

/// How long messages took lately: an eighth of it is the last one's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceTime(Option<Cost>);

impl ServiceTime {
    fn record(&mut self, cost: Cost) {
        let before = self.0.unwrap_or(cost);
        self.0 = Some(Cost((7 * before.0 + cost.0).div_ceil(8)));
    }
}

fn cost_of_time(took: Duration) -> Cost {
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    Cost(ms.saturating_mul(PER_MS).clamp(1, Cost::MAX.0))
}

impl QueueState {
    /// Says what a delivery is charged now.
    pub(super) fn charge(&self, at: Key, header: &MessageMeta) -> Cost {
        match self.limits.cost_mode {
            CostMode::Count => header.cost,
            CostMode::Bytes => Cost(u64::from(header.size).max(1)),
            // A key of which nothing is known takes as long as others do.
            CostMode::Time => self.lane(at).took.0.or(self.took.0).unwrap_or(Cost::MESSAGE),
        }
    }

    /// Sets right what a delivery that is over was charged by the time it took.
    pub(super) fn settle_time(&mut self, at: Key, handle: &mut MessageEntry) {
        let charged = core::mem::take(&mut handle.charged);
        if self.limits.cost_mode != CostMode::Time || charged == Cost::ZERO {
            return;
        }
        let actual = cost_of_time(self.now.since(handle.leased_at));
        self.drr.settle(at, charged, actual, Settlement::Final);
        self.at(at).took.record(actual);
        self.took.record(actual);
    }
}
