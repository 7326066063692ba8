//! The credits of the active paths: who is picked, and what a pick, a change or a departure costs whom.
//!
//! Bound: credits sum to 0 (to less than one step of the fixed point per path), and after each pick
//! among the same n paths one is owed at most H(n) − 1 and ahead by at most 1 − 1/n of the largest cost.

use alloc::vec::Vec;

use crate::id::PathId;

/// Dense arrays, one entry per active path in the order of ids.
///
/// Ids, weights and credits are apart because a pick reads only the last two.
#[derive(Clone, Debug, Default)]
pub(super) struct Credits {
    ids: Vec<PathId>,
    weights: Vec<i64>,
    credits: Vec<i64>,
    total: i64,
}

/// Every place takes part.
pub(super) const EVERYONE: u128 = u128::MAX;

/// The outcome of a pick among some of the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PickResult {
    /// The winner's place.
    pub(super) slot: usize,
    /// The places that took part, a bit for each.
    pub(super) eligible: u128,
}

impl Credits {
    pub(super) fn ids(&self) -> &[PathId] {
        &self.ids
    }

    pub(super) fn weights(&self) -> &[i64] {
        &self.weights
    }

    pub(super) fn total(&self) -> i64 {
        self.total
    }

    pub(super) fn slot(&self, id: PathId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    pub(super) fn credit(&self, slot: usize) -> i64 {
        self.credits[slot]
    }

    /// Picks among all active paths, for one unit.
    #[inline]
    pub(super) fn pick(&mut self) -> Option<usize> {
        let mut best = i64::MIN;
        let mut winner = 0;
        for (slot, (credit, &weight)) in self.credits.iter_mut().zip(&self.weights).enumerate() {
            *credit += weight;
            // Strictly more: of equals the first, which has the lowest id, wins.
            if *credit > best {
                best = *credit;
                winner = slot;
            }
        }
        *self.credits.get_mut(winner)? = best - self.total;
        Some(winner)
    }

    /// Picks among the eligible active paths, for `cost` units; the others neither gain nor lose.
    pub(super) fn pick_where(&mut self, cost: i64, eligible: impl Fn(PathId) -> bool) -> Option<PickResult> {
        let mut best = i64::MIN;
        let mut total = 0;
        let mut picked = PickResult { slot: 0, eligible: 0 };
        let mut bit = 1;
        let paths = self.ids.iter().zip(&mut self.credits).zip(&self.weights);
        for (slot, ((&id, credit), &weight)) in paths.enumerate() {
            if eligible(id) {
                picked.eligible |= bit;
                total += weight;
                *credit += weight * cost;
                if *credit > best {
                    best = *credit;
                    picked.slot = slot;
                }
            }
            bit <<= 1;
        }
        if picked.eligible == 0 {
            return None;
        }
        self.credits[picked.slot] = best - total * cost;
        Some(picked)
    }

    /// Lets a path in without credit; it has no weight until the next [`reweigh`](Self::reweigh).
    pub(super) fn join(&mut self, id: PathId) {
        if let Err(slot) = self.ids.binary_search(&id) {
            self.ids.insert(slot, id);
            self.weights.insert(slot, 0);
            self.credits.insert(slot, 0);
        }
    }

    /// Takes a path out; [`reweigh`](Self::reweigh) is due after it.
    pub(super) fn leave(&mut self, id: PathId) {
        if let Some(slot) = self.slot(id) {
            self.ids.remove(slot);
            self.weights.remove(slot);
            self.credits.remove(slot);
            self.recentre();
        }
    }

    /// Tells whether [`reweigh`](Self::reweigh) with these weights would change anything.
    pub(super) fn differs(&self, weights: impl Iterator<Item = i64>) -> bool {
        let mut total = 0;
        let mut differs = false;
        for (new, &old) in weights.zip(&self.weights) {
            total += new;
            differs |= new != old;
        }
        differs || total != self.total
    }

    /// Puts new weights in force and scales the credits with their sum.
    ///
    /// What a path is owed stays the same number of picks, so a change is no burst: whoever was picked
    /// last was not behind the next path by more than one pick, and still is not.
    pub(super) fn reweigh(&mut self, weights: impl Iterator<Item = i64>) {
        for (old, new) in self.weights.iter_mut().zip(weights) {
            *old = new;
        }
        let total = self.weights.iter().sum();
        let to = i128::from(total);
        let from = i128::from(self.total);
        self.total = total;
        if from == 0 || to == from {
            return;
        }
        for credit in &mut self.credits {
            // All are rounded the same way, which keeps a difference of exactly one pick exact.
            *credit = (i128::from(*credit) * to).div_euclid(from) as i64;
        }
        self.recentre();
    }

    /// Moves all credits by the same amount so that their sum is 0 and a newcomer's 0 is neutral.
    ///
    /// Picks depend on differences only, so this takes nothing from anybody.
    fn recentre(&mut self) {
        let sum: i128 = self.credits.iter().copied().map(i128::from).sum();
        let Some(excess) = sum.checked_div_euclid(self.credits.len() as i128) else {
            return;
        };
        for credit in &mut self.credits {
            *credit -= excess as i64;
        }
    }

    pub(super) fn reset(&mut self) {
        self.credits.fill(0);
    }

    /// The number of picks after which the sequence repeats.
    pub(super) fn period(&self) -> u64 {
        let divisor = self.weights.iter().fold(0, |divisor, weight| gcd(divisor, weight.unsigned_abs()));
        self.total.unsigned_abs().checked_div(divisor).unwrap_or(1)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credits(weights: &[i64]) -> Credits {
        let mut credits = Credits::default();
        for id in 0..weights.len() {
            credits.join(PathId(id as u32));
        }
        credits.reweigh(weights.iter().copied());
        credits
    }

    fn picks(credits: &mut Credits, count: usize) -> Vec<usize> {
        (0..count).filter_map(|_| credits.pick()).collect()
    }

    #[test]
    fn picks_are_smooth() {
        assert_eq!(picks(&mut credits(&[5, 1, 1]), 7), [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn of_equals_the_lowest_id_wins() {
        assert_eq!(picks(&mut credits(&[1, 1, 1]), 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(credits(&[1, 1, 1]).pick_where(1, |id| id != PathId(0)).unwrap().slot, 1);
    }

    #[test]
    fn nobody_is_picked_from_nothing() {
        assert_eq!(credits(&[]).pick(), None);
        assert_eq!(credits(&[]).pick_where(1, |_| true), None);
        let mut two = credits(&[2, 1]);
        assert_eq!(two.pick_where(1, |_| false), None);
        assert_eq!(two.credits, [0, 0]);
    }

    #[test]
    fn who_is_not_eligible_keeps_its_credit() {
        let mut credits = credits(&[5, 3, 2]);
        picks(&mut credits, 3);
        let kept = credits.credits[1];
        for _ in 0..10 {
            let picked = credits.pick_where(1, |id| id != PathId(1)).unwrap();
            assert_ne!(picked.slot, 1);
            assert_eq!(picked.eligible, 0b101);
        }
        assert_eq!(credits.credits[1], kept);
        assert_eq!(credits.credits.iter().sum::<i64>(), 0);
    }

    #[test]
    fn a_departure_leaves_the_others_differences_and_a_neutral_zero() {
        let mut credits = credits(&[7, 2, 5]);
        picks(&mut credits, 2);
        assert_eq!(credits.credits, [0, 4, -4]);
        credits.leave(PathId(2));
        assert_eq!(credits.credits, [-2, 2], "four apart as before, around zero");
    }

    #[test]
    fn a_newcomer_starts_level_with_the_others() {
        // Path 0 leaves right after its pick, which leaves two equals, and comes back.
        let mut ours = credits(&[1_000; 3]);
        ours.pick();
        ours.leave(PathId(0));
        ours.reweigh([1_000; 2].into_iter());
        ours.join(PathId(0));
        ours.reweigh([1_000; 3].into_iter());
        assert_eq!(picks(&mut ours, 3), [0, 1, 2]);

        let mut others_untouched = credits(&[1_000; 3]);
        others_untouched.pick();
        others_untouched.credits[0] = 0;
        assert_eq!(picks(&mut others_untouched, 3), [1, 2, 0], "behind for no reason");
    }

    #[test]
    fn a_reweight_keeps_what_is_owed_in_picks() {
        let mut credits = credits(&[60, 30, 10]);
        picks(&mut credits, 1);
        assert_eq!(credits.credits, [-40, 30, 10]);
        credits.reweigh([3_000, 3_000, 4_000].into_iter());
        assert_eq!(credits.credits, [-4_000, 3_000, 1_000]);
    }

    #[test]
    fn credits_sum_to_less_than_a_step_each_after_any_number_of_changes() {
        let mut credits = credits(&[7, 11, 13]);
        for change in 0..200 {
            picks(&mut credits, 2);
            credits.reweigh([7 + change % 5, 11, 13 + change % 7].into_iter());
            let sum: i64 = credits.credits.iter().sum();
            assert!((0..3).contains(&sum), "{sum} after {change}");
        }
    }

    #[test]
    fn weights_that_change_places_are_a_change() {
        let credits = credits(&[3, 1]);
        assert!(credits.differs([1, 3].into_iter()));
        assert!(!credits.differs([3, 1].into_iter()));
    }

    #[test]
    fn the_period_is_the_sum_over_the_divisor() {
        assert_eq!(credits(&[100, 50, 10]).period(), 16);
        assert_eq!(credits(&[7, 3]).period(), 10);
        assert_eq!(credits(&[]).period(), 1);
    }
}
