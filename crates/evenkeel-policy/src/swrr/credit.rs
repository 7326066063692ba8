//! Credits of the active paths: picks the next path, and updates credits when weights change or a path leaves.
//!
//! Guarantees: credits sum to 0, up to a rounding error of less than 1 per path. After each pick among the same n
//! paths, a path is owed at most H(n) − 1 times the largest cost and is ahead by at most 1 − 1/n times the largest
//! cost.

use alloc::vec::Vec;

use super::config::SwrrRules;
use super::weight::{UnhealthyCap, WeightInForce};
use crate::id::PathId;

/// Dense arrays with one entry per active path, sorted by id.
///
/// They are separate arrays because a pick reads only weights and credits.
#[derive(Clone, Debug, Default)]
pub(super) struct Credits {
    ids: Vec<PathId>,
    in_force: Vec<WeightInForce>,
    /// Effective weights if all paths take part.
    weights: Vec<i64>,
    credits: Vec<i64>,
    total: i64,
    /// Paths that took part in the last pick by [`pick_where`](Self::pick_where); 0 if the weights changed since.
    eligible: u128,
    /// Credit that each path gains in a pick among `eligible`.
    gains: Vec<i64>,
}

/// Fractional bits of the factor by which gains are scaled.
const SCALE_BITS: u32 = 32;

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
    pub(super) fn pick_where(
        &mut self,
        cost: i64,
        eligible: impl Fn(PathId) -> bool,
        rules: &SwrrRules,
    ) -> Option<PickResult> {
        let bits = self.ids.iter().rev().fold(0, |bits, &id| bits << 1 | u128::from(eligible(id)));
        if bits == 0 {
            return None;
        }
        if bits != self.eligible {
            self.set_gains(bits, rules);
        }
        let mut best = i64::MIN;
        let mut paid = 0;
        let mut winner = 0;
        for (index, (credit, &gain)) in self.credits.iter_mut().zip(&self.gains).enumerate() {
            // Only a path that takes part gains credit.
            if gain > 0 {
                paid += gain;
                *credit = credit.saturating_add(gain * cost);
                if *credit > best {
                    best = *credit;
                    winner = index;
                }
            }
        }
        self.credits[winner] = best.saturating_sub(paid * cost);
        Some(PickResult { index: winner, eligible: bits })
    }

    /// Computes the credits that the `eligible` paths gain per pick: their effective weights, scaled to the sum of all
    /// weights.
    ///
    /// Credit must be worth as much in one set of paths as in another. Unscaled, a path could earn credit beside a large
    /// weight and spend it beside a small one, where a pick costs less.
    #[cold]
    fn set_gains(&mut self, eligible: u128, rules: &SwrrRules) {
        self.eligible = eligible;
        let total: i64 = self.effective(eligible, rules).map(|(_, weight)| weight).sum();
        let mut gains = core::mem::take(&mut self.gains);
        gains.fill(0);
        if total == self.total {
            self.effective(eligible, rules).for_each(|(index, weight)| gains[index] = weight);
        } else {
            let scale = (i128::from(self.total) << SCALE_BITS) / i128::from(total.max(1));
            for (index, weight) in self.effective(eligible, rules) {
                gains[index] = (((i128::from(weight) * scale) >> SCALE_BITS) as i64).max(1);
            }
        }
        self.gains = gains;
    }

    /// Returns the paths of a set with their effective weights in it.
    pub(super) fn effective(&self, set: u128, rules: &SwrrRules) -> impl Iterator<Item = (usize, i64)> {
        let members =
            || self.in_force.iter().copied().enumerate().filter(move |(index, _)| set & (1 << index) != 0);
        let cap = UnhealthyCap::over(members().map(|(_, path)| path), rules);
        members().map(move |(index, path)| (index, cap.apply(path)))
    }

    /// Adds a path with credit 0; its weight is 0 until the next [`reweigh`](Self::reweigh).
    pub(super) fn join(&mut self, id: PathId) {
        if let Err(index) = self.ids.binary_search(&id) {
            self.ids.insert(index, id);
            self.in_force.insert(index, WeightInForce::default());
            self.weights.insert(index, 0);
            self.credits.insert(index, 0);
            self.gains.push(0);
            self.eligible = 0;
        }
    }

    /// Removes a path; [`reweigh`](Self::reweigh) must follow.
    pub(super) fn leave(&mut self, id: PathId) {
        if let Some(index) = self.index_of(id) {
            self.ids.remove(index);
            self.in_force.remove(index);
            self.weights.remove(index);
            self.credits.remove(index);
            self.gains.pop();
            self.eligible = 0;
            self.recentre();
        }
    }

    /// Reports whether [`reweigh`](Self::reweigh) with these weights would change anything.
    pub(super) fn differs(&self, weights: impl Iterator<Item = WeightInForce>) -> bool {
        let has_left = self.weights.iter().sum::<i64>() != self.total;
        has_left || !weights.eq(self.in_force.iter().copied())
    }

    /// Applies new weights and scales the credits in proportion to the sum of the weights.
    ///
    /// So the number of picks that a path is owed stays the same, and a change causes no burst of picks of one path.
    pub(super) fn reweigh(&mut self, weights: impl Iterator<Item = WeightInForce>, rules: &SwrrRules) {
        for (old, new) in self.in_force.iter_mut().zip(weights) {
            *old = new;
        }
        let mut effective = core::mem::take(&mut self.weights);
        self.effective(ALL_PATHS, rules).for_each(|(index, weight)| effective[index] = weight);
        let total = effective.iter().sum();
        self.weights = effective;
        self.eligible = 0;
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
    use super::super::weight::UNIT;
    use super::*;

    fn credits(weights: &[i64]) -> Credits {
        let mut credits = Credits::default();
        for id in 0..weights.len() {
            credits.join(PathId(id as u32));
        }
        reweigh(&mut credits, weights);
        credits
    }

    /// Applies weights of healthy paths; a negative weight is that of an unhealthy one.
    fn reweigh(credits: &mut Credits, weights: &[i64]) {
        credits.reweigh(in_force(weights), &SwrrRules::default());
    }

    fn in_force(weights: &[i64]) -> impl Iterator<Item = WeightInForce> {
        weights.iter().map(|&weight| WeightInForce { weight: weight.abs(), is_healthy: weight > 0 })
    }

    fn pick_where(credits: &mut Credits, eligible: impl Fn(PathId) -> bool) -> Option<PickResult> {
        credits.pick_where(1, eligible, &SwrrRules::default())
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
        assert_eq!(pick_where(&mut credits(&[1, 1, 1]), |id| id != PathId(0)).unwrap().index, 1);
    }

    #[test]
    fn without_eligible_paths_there_is_no_pick() {
        assert_eq!(credits(&[]).pick(), None);
        assert_eq!(pick_where(&mut credits(&[]), |_| true), None);
        let mut two = credits(&[2, 1]);
        assert_eq!(pick_where(&mut two, |_| false), None);
        assert_eq!(two.credits, [0, 0]);
    }

    #[test]
    fn an_ineligible_path_keeps_its_credit() {
        let mut credits = credits(&[5, 3, 2]);
        picks(&mut credits, 3);
        let kept = credits.credits[1];
        for _ in 0..10 {
            let picked = pick_where(&mut credits, |id| id != PathId(1)).unwrap();
            assert_ne!(picked.index, 1);
            assert_eq!(picked.eligible, 0b101);
        }
        assert_eq!(credits.credits[1], kept);
        assert_eq!(credits.credits.iter().sum::<i64>(), 0);
    }

    #[test]
    fn a_pick_among_some_paths_is_worth_as_much_as_a_pick_among_all() {
        let mut credits = credits(&[600, 300, 100]);
        pick_where(&mut credits, |id| id != PathId(0)).unwrap();
        assert_eq!(credits.credits, [0, -250, 250], "a quarter of a pick, not of the two paths' weights");
    }

    #[test]
    fn the_cap_on_unhealthy_paths_follows_the_eligible_ones() {
        let units = |weights: [i64; 3]| weights.map(|weight| weight * UNIT);
        let mut credits = credits(&units([1_000, 10, -100]));
        let share = |credits: &mut Credits, eligible: [bool; 3]| {
            pick_where(credits, |id| eligible[id.index()]).unwrap();
            credits.gains[2] as f64 / credits.gains.iter().sum::<i64>() as f64
        };
        assert!((share(&mut credits, [true, true, true]) - 100.0 / 1_110.0).abs() < 1e-6);
        let beside_small = share(&mut credits, [false, true, true]);
        assert!(beside_small < 0.1 && beside_small > 0.0999, "{beside_small}");
        assert!(share(&mut credits, [false, false, true]) > 0.999_999);
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
        reweigh(&mut recentred, &[1_000; 2]);
        recentred.join(PathId(0));
        reweigh(&mut recentred, &[1_000; 3]);
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
        reweigh(&mut credits, &[3_000, 3_000, 4_000]);
        assert_eq!(credits.credits, [-4_000, 3_000, 1_000]);
    }

    #[test]
    fn after_any_number_of_changes_credits_sum_to_less_than_one_per_path() {
        let mut credits = credits(&[7, 11, 13]);
        for change in 0..200 {
            picks(&mut credits, 2);
            reweigh(&mut credits, &[7 + change % 5, 11, 13 + change % 7]);
            let sum: i64 = credits.credits.iter().sum();
            assert!((0..3).contains(&sum), "{sum} after {change}");
        }
    }

    #[test]
    fn swapping_two_weights_counts_as_a_change() {
        let credits = credits(&[3, 1]);
        assert!(credits.differs(in_force(&[1, 3])));
        assert!(!credits.differs(in_force(&[3, 1])));
    }

    #[test]
    fn the_period_is_the_sum_of_the_weights_divided_by_their_gcd() {
        assert_eq!(credits(&[100, 50, 10]).period(), 16);
        assert_eq!(credits(&[7, 3]).period(), 10);
        assert_eq!(credits(&[]).period(), 1);
    }
}
