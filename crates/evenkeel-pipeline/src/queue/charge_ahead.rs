//! Charge-ahead: the amount by which a running request is charged ahead of its progress.
//!
//! Guarantees: the charge runs ahead by the remaining cost that the shortest recent request had when it was sent, at
//! least by [`AHEAD_MIN`], and never beyond the request's estimate. After 64 longer requests, a short one counts for
//! about a third.

use evenkeel_policy::cost::Cost;

/// Minimum charged ahead. Without it, a tenant that is behind would get every free slot until its charges catch up,
/// which is far too many slots.
const AHEAD_MIN: Cost = Cost(128);

/// Number of longer requests after which a short one counts for about a third.
const FORGET_AFTER: u64 = 64;

/// Tracks the shortest of the requests that compete for one model's slots.
///
/// Charged in full at send time, a long response counts as service long before it is delivered, and its tenant gets that
/// much less than one with short responses. Charged only as it is produced, it counts too late: its tenant keeps getting
/// slots until the responses catch up, and then holds them all. The right distance is the time until the next slot
/// becomes free, which is when the shortest competing request ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChargeAhead {
    shortest: Option<Cost>,
}

impl ChargeAhead {
    /// Records the remaining cost of a request that is sent; one without progress reports is ignored.
    pub(crate) fn record(&mut self, remaining: Cost) {
        if remaining == Cost::ZERO {
            return;
        }
        self.shortest = Some(match self.shortest {
            Some(shortest) if shortest < remaining => {
                shortest + Cost((remaining - shortest).0.div_ceil(FORGET_AFTER))
            }
            _ => remaining,
        });
    }

    /// Returns the charge of a request with the estimate `cost` that has cost `spent` so far.
    pub(crate) fn charge(&self, spent: Cost, cost: Cost) -> Cost {
        let ahead = self.shortest.map_or(cost, |shortest| shortest.max(AHEAD_MIN));
        spent.max(cost.min(spent + ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_request_lowers_the_charge_at_once_and_longer_ones_raise_it_slowly() {
        let mut charge_ahead = ChargeAhead::default();
        charge_ahead.record(Cost(1_000));
        assert_eq!(charge_ahead.charge(Cost(30), Cost(1_030)), Cost(1_030));
        charge_ahead.record(Cost(200));
        assert_eq!(charge_ahead.charge(Cost(30), Cost(1_030)), Cost(230));
        (0..64).for_each(|_| charge_ahead.record(Cost(1_000)));
        let charged = charge_ahead.charge(Cost(30), Cost(1_030));
        assert!((Cost(650)..Cost(800)).contains(&charged), "{charged}");
    }

    #[test]
    fn at_least_the_spent_cost_is_charged_and_never_ahead_of_the_estimate() {
        let mut charge_ahead = ChargeAhead::default();
        assert_eq!(charge_ahead.charge(Cost(0), Cost(500)), Cost(500));
        charge_ahead.record(Cost(2));
        assert_eq!(charge_ahead.charge(Cost(100), Cost(500)), Cost(100) + AHEAD_MIN);
        assert_eq!(charge_ahead.charge(Cost(490), Cost(500)), Cost(500));
        assert_eq!(charge_ahead.charge(Cost(700), Cost(500)), Cost(700));
    }
}
