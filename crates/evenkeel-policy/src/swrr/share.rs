//! Comparison of the observed shares of the picks with the expected ones: deviation and entropy.
//!
//! Guarantees: the observed and the expected shares of a window each sum to 1, and a path's expected share counts only
//! picks for which it was eligible. A pick with the same eligible paths as the previous one is counted in O(1).

use alloc::vec::Vec;
use core::mem;

use super::config::SwrrRules;
use super::credit::Credits;
use crate::id::PathId;

/// Share of one path in a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathShare {
    /// The path.
    pub path: PathId,
    /// Fraction of the window's cost that was charged to the path.
    pub observed: f64,
    /// Expected fraction, from its weight while it was eligible.
    pub theory: f64,
}

/// Shares of the last complete window of picks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShareWindow {
    shares: Vec<PathShare>,
}

impl ShareWindow {
    /// Returns the shares of the paths that took part, in the order of their ids.
    pub fn shares(&self) -> &[PathShare] {
        &self.shares
    }

    /// Returns the mean of |observed − theory| over the paths.
    ///
    /// This is the value of the metric `nyx_wrr_weight_ratio_deviation`.
    pub fn mean_deviation(&self) -> f64 {
        let sum: f64 = self.shares.iter().map(|share| (share.observed - share.theory).abs()).sum();
        sum / self.shares.len().max(1) as f64
    }

    /// Returns D(observed‖theory), the relative entropy in nats: 0 when they agree, otherwise positive.
    pub fn relative_entropy(&self) -> f64 {
        let terms = self.shares.iter().filter(|share| share.observed > 0.0);
        let sum: f64 = terms.map(|share| share.observed * libm::log(share.observed / share.theory)).sum();
        sum.max(0.0)
    }
}

/// Returns the entropy of the weights divided by that of equal weights: 1 when all are equal, near 0 when one path has
/// almost all; `None` with fewer than two paths.
pub(super) fn normalised_entropy(credits: &Credits) -> Option<f64> {
    if credits.weights().len() < 2 {
        return None;
    }
    let shares = credits.weights().iter().map(|&weight| weight as f64 / credits.total() as f64);
    let entropy: f64 = shares.map(|share| -share * libm::log(share)).sum();
    Some(entropy / libm::log(credits.weights().len() as f64))
}

/// Counts of the current window, and the shares of the last complete one.
///
/// `pending` is the cost of the picks since the set of `eligible` paths last changed. `served` and `expected` have one
/// entry per active path and cover a segment: the picks between two changes of the weights or of the active paths.
/// `tallies` sum up the segments per path.
#[derive(Clone, Debug)]
pub(super) struct Window {
    picks_max: u32,
    picks_left: u32,
    served: Vec<u64>,
    expected: Vec<f64>,
    eligible: u128,
    pending: u64,
    tallies: Vec<PathTally>,
    last: ShareWindow,
    complete: bool,
}

#[derive(Clone, Copy, Debug)]
struct PathTally {
    path: PathId,
    served: u64,
    expected: f64,
}

impl Window {
    pub(super) fn new(picks_max: u32) -> Self {
        Self {
            picks_max,
            picks_left: picks_max,
            served: Vec::new(),
            expected: Vec::new(),
            eligible: 0,
            pending: 0,
            tallies: Vec::new(),
            last: ShareWindow::default(),
            complete: false,
        }
    }

    pub(super) fn last(&self) -> Option<&ShareWindow> {
        self.complete.then_some(&self.last)
    }

    /// Allocates memory for `paths` paths, so that no pick has to.
    pub(super) fn reserve(&mut self, paths: usize) {
        self.tallies.reserve(paths.saturating_sub(self.tallies.len()));
        self.last.shares.reserve(paths.saturating_sub(self.last.shares.len()));
    }

    /// Counts a pick of the path at `index` among the `eligible` paths, a bit set of indices.
    #[inline]
    pub(super) fn count(
        &mut self,
        index: usize,
        eligible: u128,
        cost: u64,
        credits: &Credits,
        rules: &SwrrRules,
    ) {
        if eligible != self.eligible {
            self.add_expected(credits, rules);
            self.eligible = eligible;
        }
        self.pending += cost;
        self.served[index] += cost;
        self.picks_left -= 1;
        if self.picks_left == 0 {
            self.close(credits, rules);
        }
    }

    /// Adds the pending cost to the expected cost of the eligible paths, in proportion to their weights.
    #[cold]
    fn add_expected(&mut self, credits: &Credits, rules: &SwrrRules) {
        let weights = || credits.effective(self.eligible, rules);
        let total: i64 = weights().map(|(_, weight)| weight).sum();
        let part = self.pending as f64 / total.max(1) as f64;
        for (index, weight) in weights() {
            self.expected[index] += weight as f64 * part;
        }
        self.pending = 0;
    }

    #[cold]
    fn close(&mut self, credits: &Credits, rules: &SwrrRules) {
        self.end_segment(credits, rules);
        self.picks_left = self.picks_max;
        let served: u64 = self.tallies.iter().map(|tally| tally.served).sum();
        let expected: f64 = self.tallies.iter().map(|tally| tally.expected).sum();
        self.last.shares.clear();
        self.last.shares.extend(self.tallies.drain(..).filter(|tally| tally.expected > 0.0).map(|tally| {
            PathShare {
                path: tally.path,
                observed: tally.served as f64 / served as f64,
                theory: tally.expected / expected,
            }
        }));
        self.complete = true;
    }

    /// Ends the segment; must be called before the weights or the active paths change.
    pub(super) fn end_segment(&mut self, credits: &Credits, rules: &SwrrRules) {
        self.add_expected(credits, rules);
        for ((&path, served), expected) in credits.ids().iter().zip(&mut self.served).zip(&mut self.expected)
        {
            let tally = match self.tallies.binary_search_by_key(&path, |tally| tally.path) {
                Ok(index) => &mut self.tallies[index],
                Err(index) => {
                    self.tallies.insert(index, PathTally { path, served: 0, expected: 0.0 });
                    &mut self.tallies[index]
                }
            };
            tally.served += mem::take(served);
            tally.expected += mem::take(expected);
        }
    }

    /// Begins a segment with `active` active paths.
    pub(super) fn resize(&mut self, active: usize) {
        self.served.resize(active, 0);
        self.expected.resize(active, 0.0);
    }

    /// Drops a removed path from the current window.
    pub(super) fn forget(&mut self, path: PathId) {
        self.tallies.retain(|tally| tally.path != path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::credit::ALL_PATHS;
    use super::super::weight::WeightInForce;
    use super::*;

    const A: PathId = PathId(1);
    const B: PathId = PathId(2);

    /// Creates two paths with weights 3 and 1, and a window of `picks_max` picks.
    fn three_to_one(picks_max: u32) -> (Credits, Window) {
        let mut credits = Credits::default();
        credits.join(A);
        credits.join(B);
        reweigh(&mut credits, &[3, 1]);
        let mut window = Window::new(picks_max);
        window.reserve(2);
        window.resize(2);
        (credits, window)
    }

    fn reweigh(credits: &mut Credits, weights: &[i64]) {
        let healthy = weights.iter().map(|&weight| WeightInForce { weight, is_healthy: true });
        credits.reweigh(healthy, &SwrrRules::default());
    }

    fn serve(window: &mut Window, credits: &Credits, indices: &[usize]) {
        for &index in indices {
            window.count(index, ALL_PATHS, 1, credits, &SwrrRules::default());
        }
    }

    fn pick_b_twice(window: &mut Window, credits: &mut Credits) {
        for _ in 0..2 {
            let rules = SwrrRules::default();
            let picked = credits.pick_where(1, |id| id == B, &rules).unwrap();
            window.count(picked.index, picked.eligible, 1, credits, &rules);
        }
    }

    fn shares(window: &Window) -> Vec<(u32, f64, f64)> {
        let shares = window.last().unwrap().shares().iter();
        shares.map(|share| (share.path.0, share.observed, share.theory)).collect()
    }

    #[test]
    fn a_window_reports_observed_and_expected_shares() {
        let (credits, mut window) = three_to_one(4);
        serve(&mut window, &credits, &[0, 0, 1]);
        assert_eq!(window.last(), None, "not complete yet");
        serve(&mut window, &credits, &[1]);
        assert_eq!(shares(&window), [(1, 0.5, 0.75), (2, 0.5, 0.25)]);
        assert!((window.last().unwrap().mean_deviation() - 0.25).abs() < 1e-12);
        // ½ ln(½ ÷ ¾) + ½ ln(½ ÷ ¼)
        assert!((window.last().unwrap().relative_entropy() - 0.143_841_036).abs() < 1e-9);
    }

    #[test]
    fn a_path_without_picks_still_affects_the_relative_entropy() {
        let (credits, mut window) = three_to_one(4);
        serve(&mut window, &credits, &[0; 4]);
        // ln(1 ÷ ¾)
        assert!((window.last().unwrap().relative_entropy() - 0.287_682_072).abs() < 1e-9);
    }

    #[test]
    fn a_pick_allocates_nothing() {
        let mut credits = Credits::default();
        (0..20).for_each(|id| credits.join(PathId(id)));
        reweigh(&mut credits, &[1; 20]);
        let mut window = Window::new(4);
        window.reserve(20);
        window.resize(20);
        let capacity = |window: &Window| (window.tallies.capacity(), window.last.shares.capacity());
        let before = capacity(&window);
        serve(&mut window, &credits, &[0; 9]);
        assert_eq!(capacity(&window), before);
    }

    #[test]
    fn a_window_does_not_include_the_previous_one() {
        let (credits, mut window) = three_to_one(4);
        serve(&mut window, &credits, &[1, 1, 1, 1]);
        serve(&mut window, &credits, &[0, 0, 0, 1]);
        assert!(window.last().unwrap().mean_deviation() < 1e-12);
        assert!(window.last().unwrap().relative_entropy() < 1e-12);
    }

    #[test]
    fn the_expected_share_counts_only_picks_for_which_a_path_was_eligible() {
        let (mut credits, mut window) = three_to_one(4);
        pick_b_twice(&mut window, &mut credits);
        serve(&mut window, &credits, &[0, 0]);
        assert_eq!(shares(&window), [(1, 0.5, 0.375), (2, 0.5, 0.625)]);
    }

    #[test]
    fn a_path_that_was_never_eligible_is_not_reported() {
        let (mut credits, mut window) = three_to_one(2);
        pick_b_twice(&mut window, &mut credits);
        assert_eq!(shares(&window), [(2, 1.0, 1.0)]);
    }

    #[test]
    fn the_expected_share_follows_changes_of_weight_within_a_window() {
        let (mut credits, mut window) = three_to_one(4);
        serve(&mut window, &credits, &[0, 0]);
        window.end_segment(&credits, &SwrrRules::default());
        reweigh(&mut credits, &[1, 1]);
        serve(&mut window, &credits, &[1, 1]);
        assert_eq!(shares(&window), [(1, 0.5, 0.625), (2, 0.5, 0.375)]);
    }

    #[test]
    fn a_removed_path_is_not_reported() {
        let (mut credits, mut window) = three_to_one(3);
        serve(&mut window, &credits, &[0, 1]);
        window.end_segment(&credits, &SwrrRules::default());
        credits.leave(B);
        reweigh(&mut credits, &[3]);
        window.resize(1);
        window.forget(B);
        serve(&mut window, &credits, &[0]);
        assert_eq!(shares(&window), [(1, 1.0, 1.0)]);
    }

    #[test]
    fn the_entropy_is_one_for_equal_weights_and_near_zero_for_a_dominant_one() {
        let (mut credits, _) = three_to_one(1);
        assert!((normalised_entropy(&credits).unwrap() - 0.811_278_124).abs() < 1e-9);
        reweigh(&mut credits, &[5, 5]);
        assert!((normalised_entropy(&credits).unwrap() - 1.0).abs() < 1e-12);
        reweigh(&mut credits, &[100_000, 1]);
        assert!(normalised_entropy(&credits).unwrap() < 0.001);
        credits.leave(B);
        assert_eq!(normalised_entropy(&credits), None);
    }
}
