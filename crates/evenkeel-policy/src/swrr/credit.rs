//! Credits of the active paths: picks the next path, and updates credits when weights change or a path leaves.
//!
//! Guarantees: credits sum to 0, up to a rounding error of less than 1 per path. After each pick among the same n
//! paths, a path is owed at most H(n) − 1 times the largest cost and is ahead by at most 1 − 1/n times the largest
//! cost.

use alloc::vec::Vec;

use crate::id::PathId;

/// Dense arrays with one entry per active path, sorted by id.
///
/// They are separate arrays because a pick reads only weights and credits.
#[derive(Clone, Debug, Default)]
pub(super) struct Credits {
    ids: Vec<PathId>,
    weights: Vec<i64>,
    credits: Vec<i64>,
    total: i64,
}

/// Bit set of all paths.
pub(super) const ALL_PATHS: u128 = u128::MAX;

/// Result of a pick among some of the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PickResult {
    /// Index of the winner.
    pub(super) index: usize,
    /// Bit set of the indices that took part.
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

    pub(super) fn index_of(&self, id: PathId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    pub(super) fn credit(&self, index: usize) -> i64 {
        self.credits[index]
    }

    /// Picks among all active paths and charges one unit.
    #[inline]
    pub(super) fn pick(&mut self) -> Option<usize> {
        let mut best = i64::MIN;
        let mut winner = 0;
        for (index, (credit, &weight)) in self.credits.iter_mut().zip(&self.weights).enumerate() {
            *credit += weight;
            // Compared with `>`, so that the lowest id wins a tie.
            if *credit > best {
                best = *credit;
                winner = index;
            }
        }
        *self.credits.get_mut(winner)? = best - self.total;
        Some(winner)
    }

    /// Picks among the eligible active paths and charges `cost` units; the others neither gain nor lose credit.
    pub(super) fn pick_where(&mut self, cost: i64, eligible: impl Fn(PathId) -> bool) -> Option<PickResult> {
        let mut best = i64::MIN;
        let mut total = 0;
        let mut picked = PickResult { index: 0, eligible: 0 };
        let mut bit = 1;
        let paths = self.ids.iter().zip(&mut self.credits).zip(&self.weights);
        for (index, ((&id, credit), &weight)) in paths.enumerate() {
            if eligible(id) {
                picked.eligible |= bit;
                total += weight;
                *credit += weight * cost;
                if *credit > best {
                    best = *credit;
                    picked.index = index;
                }
            }
            bit <<= 1;
        }
        if picked.eligible == 0 {
            return None;
        }
        self.credits[picked.index] = best - total * cost;
        Some(picked)
    }

    /// Adds a path with credit 0; its weight is 0 until the next [`reweigh`](Self::reweigh).
    pub(super) fn join(&mut self, id: PathId) {
        if let Err(index) = self.ids.binary_search(&id) {
            self.ids.insert(index, id);
            self.weights.insert(index, 0);
            self.credits.insert(index, 0);
        }
    }

    /// Removes a path; [`reweigh`](Self::reweigh) must follow.
    pub(super) fn leave(&mut self, id: PathId) {
        if let Some(index) = self.index_of(id) {
            self.ids.remove(index);
            self.weights.remove(index);
            self.credits.remove(index);
            self.recentre();
        }
    }

    /// Reports whether [`reweigh`](Self::reweigh) with these weights would change anything.
    pub(super) fn differs(&self, weights: impl Iterator<Item = i64>) -> bool {
        let mut total = 0;
        let mut differs = false;
        for (new, &old) in weights.zip(&self.weights) {
            total += new;
            differs |= new != old;
        }
        differs || total != self.total
    }

    /// Applies new weights and scales the credits in proportion to the sum of the weights.
    ///
    /// So the number of picks that a path is owed stays the same, and a change causes no burst of picks of one path.
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
            // All credits are rounded in the same direction, so a difference of exactly one pick stays exact.
            *credit = (i128::from(*credit) * to).div_euclid(from) as i64;
        }
        self.recentre();
    }

    /// Shifts all credits by the same amount so that their sum is 0, up to rounding.
    ///
    /// Picks depend only on differences, so this favours no path; a path that joins with credit 0 is then neither ahead
    /// nor behind.
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

    /// Returns the number of picks after which the sequence repeats.
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
    fn picks_of_a_heavy_path_are_spread_out() {
        assert_eq!(picks(&mut credits(&[5, 1, 1]), 7), [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn a_tie_goes_to_the_lowest_id() {
        assert_eq!(picks(&mut credits(&[1, 1, 1]), 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(credits(&[1, 1, 1]).pick_where(1, |id| id != PathId(0)).unwrap().index, 1);
    }

    #[test]
    fn without_eligible_paths_there_is_no_pick() {
        assert_eq!(credits(&[]).pick(), None);
        assert_eq!(credits(&[]).pick_where(1, |_| true), None);
        let mut two = credits(&[2, 1]);
        assert_eq!(two.pick_where(1, |_| false), None);
        assert_eq!(two.credits, [0, 0]);
    }

    #[test]
    fn an_ineligible_path_keeps_its_credit() {
        let mut credits = credits(&[5, 3, 2]);
        picks(&mut credits, 3);
        let kept = credits.credits[1];
        for _ in 0..10 {
            let picked = credits.pick_where(1, |id| id != PathId(1)).unwrap();
            assert_ne!(picked.index, 1);
            assert_eq!(picked.eligible, 0b101);
        }
        assert_eq!(credits.credits[1], kept);
        assert_eq!(credits.credits.iter().sum::<i64>(), 0);
    }

    #[test]
    fn a_departure_keeps_the_differences_of_the_others_and_centres_them_on_zero() {
        let mut credits = credits(&[7, 2, 5]);
        picks(&mut credits, 2);
        assert_eq!(credits.credits, [0, 4, -4]);
        credits.leave(PathId(2));
        assert_eq!(credits.credits, [-2, 2], "still four apart, centred on zero");
    }

    #[test]
    fn a_path_that_joins_is_neither_ahead_nor_behind() {
        // Path 0 leaves right after its pick, which leaves two equal paths, and comes back.
        let mut recentred = credits(&[1_000; 3]);
        recentred.pick();
        recentred.leave(PathId(0));
        recentred.reweigh([1_000; 2].into_iter());
        recentred.join(PathId(0));
        recentred.reweigh([1_000; 3].into_iter());
        assert_eq!(picks(&mut recentred, 3), [0, 1, 2]);

        let mut not_recentred = credits(&[1_000; 3]);
        not_recentred.pick();
        not_recentred.credits[0] = 0;
        assert_eq!(
            picks(&mut not_recentred, 3),
            [1, 2, 0],
            "the path that joined is picked last for no reason"
        );
    }

    #[test]
    fn a_reweight_keeps_the_number_of_picks_owed() {
        let mut credits = credits(&[60, 30, 10]);
        picks(&mut credits, 1);
        assert_eq!(credits.credits, [-40, 30, 10]);
        credits.reweigh([3_000, 3_000, 4_000].into_iter());
        assert_eq!(credits.credits, [-4_000, 3_000, 1_000]);
    }

    #[test]
    fn after_any_number_of_changes_credits_sum_to_less_than_one_per_path() {
        let mut credits = credits(&[7, 11, 13]);
        for change in 0..200 {
            picks(&mut credits, 2);
            credits.reweigh([7 + change % 5, 11, 13 + change % 7].into_iter());
            let sum: i64 = credits.credits.iter().sum();
            assert!((0..3).contains(&sum), "{sum} after {change}");
        }
    }

    #[test]
    fn swapping_two_weights_counts_as_a_change() {
        let credits = credits(&[3, 1]);
        assert!(credits.differs([1, 3].into_iter()));
        assert!(!credits.differs([3, 1].into_iter()));
    }

    #[test]
    fn the_period_is_the_sum_of_the_weights_divided_by_their_gcd() {
        assert_eq!(credits(&[100, 50, 10]).period(), 16);
        assert_eq!(credits(&[7, 3]).period(), 10);
        assert_eq!(credits(&[]).period(), 1);
    }
}
