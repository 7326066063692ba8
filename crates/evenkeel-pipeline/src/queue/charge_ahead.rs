//! How far ahead of its answer a request is charged.
//!
//! Bound: between [`AHEAD_MIN`] and the whole rest; at most what the shortest of the last requests still had to come
//! when it was sent, and sixty-four longer ones forget a short one to within a third.

use evenkeel_policy::cost::Cost;

/// The least that is charged ahead: without any, whoever is behind is given every slot that comes free until its
/// answers have caught up, which is far too many by then.
const AHEAD_MIN: Cost = Cost(128);

/// How many longer requests it takes until a short one counts for a third.
const FORGETS_IN: u64 = 64;

/// As far as the shortest of the requests that compete for one model's slots.
///
/// Charged in full when it is sent, a long answer counts as service long before it is: its tenant gets that much less
/// than one with short answers. Charged only as it is said, it counts too late: its tenant is given slots until it has
/// caught up, and then keeps them all. What matters is how soon the next slots come free to put things right, and that
/// is when the shortest of those that compete are done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChargeAhead {
    shortest: Option<Cost>,
}

impl ChargeAhead {
    /// Takes in what a request that is sent has still to come; one that says nothing until its end tells nothing.
    pub(crate) fn note(&mut self, to_come: Cost) {
        if to_come == Cost::ZERO {
            return;
        }
        self.shortest = Some(match self.shortest {
            Some(shortest) if shortest < to_come => {
                shortest + Cost((to_come - shortest).0.div_ceil(FORGETS_IN))
            }
            _ => to_come,
        });
    }

    /// What is charged of a request that is thought to cost `cost` and has cost `spent`.
    pub(crate) fn charge(&self, spent: Cost, cost: Cost) -> Cost {
        let ahead = self.shortest.map_or(cost, |shortest| shortest.max(AHEAD_MIN));
        spent.max(cost.min(spent + ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_request_shortens_it_at_once_and_long_ones_forget_it_slowly() {
        let mut horizon = ChargeAhead::default();
        horizon.note(Cost(1_000));
        assert_eq!(horizon.charge(Cost(30), Cost(1_030)), Cost(1_030));
        horizon.note(Cost(200));
        assert_eq!(horizon.charge(Cost(30), Cost(1_030)), Cost(230));
        (0..64).for_each(|_| horizon.note(Cost(1_000)));
        let charged = horizon.charge(Cost(30), Cost(1_030));
        assert!((Cost(650)..Cost(800)).contains(&charged), "{charged}");
    }

    #[test]
    fn what_was_spent_is_charged_and_never_more_than_is_thought_to_come() {
        let mut horizon = ChargeAhead::default();
        assert_eq!(horizon.charge(Cost(0), Cost(500)), Cost(500));
        horizon.note(Cost(2));
        assert_eq!(horizon.charge(Cost(100), Cost(500)), Cost(100) + AHEAD_MIN);
        assert_eq!(horizon.charge(Cost(490), Cost(500)), Cost(500));
        assert_eq!(horizon.charge(Cost(700), Cost(500)), Cost(700));
    }
}
