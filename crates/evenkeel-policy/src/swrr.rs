//! Smooth weighted round robin (SWRR) over the paths to a node, weighted by inverse RTT and loss.
//!
//! In each pick, every path that takes part gains credit equal to its weight; the path with the most credit is picked
//! (ties go to the lowest id) and pays the sum of the weights. A pick is O(n) without allocation, and the same inputs
//! give the same picks.
//!
//! Guarantees, with `w` the weights in force, `W` their sum and `n` active paths:
//!
//! - any `W / gcd(w)` consecutive picks after a reset, under unchanged weights, give each path exactly its share;
//! - after every pick, however often the weights changed, a path is behind its share by at most H(n) − 1 picks (H is
//!   the harmonic number) and ahead by at most 1 − 1/n picks. When picks are charged by size, both bounds are
//!   multiplied by the largest size; after paths have left, both are H(n);
//! - no path is picked more than ⌈w / w_min⌉ times in a row, also after a change of weights. Rounding over many changes
//!   may reverse a tie; then the bound is ⌊w / w_min⌋ + 1;
//! - credits sum to 0, so a path that joins with credit 0 is neither ahead nor behind;
//! - in picks in which a healthy path is eligible, the unhealthy ones together earn strictly less than
//!   `unhealthy_share_max` of the cost, whichever others are eligible; every active path has a share above 0.
//!
//! The second guarantee follows from the cup game, in which paths are cups: each pick pours one unit into the cups in
//! total and takes one unit out of the fullest. If, for every k, the k fullest of n cups hold at most 1/(k+1) + … + 1/n
//! on average, they still do after the pick. The third holds because the path that is picked just before a run is then
//! behind the path of the run by at most one pick. Both apply to picks in which all active paths take part, the third
//! only while no path leaves.

mod config;
mod credit;
mod error;
mod observe;
mod path;
mod share;
mod weight;

use alloc::vec::Vec;

pub use config::{PATHS_MAX, SwrrConfig, SwrrRules, WEIGHT_CAP};
pub use error::SwrrError;
pub use share::{PathShare, ShareWindow};
pub use weight::{Health, Reweight, ReweightCounts, path_weight};

use credit::{ALL_PATHS, Credits};
use path::Path;
use share::Window;
use weight::{checked_loss, checked_rtt};

use crate::cost::Cost;
use crate::id::PathId;
use crate::time::Instant;

/// Maximum cost of a single pick; a larger cost counts as this much, so that credits fit in an `i64`.
pub const PICK_COST_MAX: Cost = Cost(1 << 20);

/// Maximum number of picks that a phase skips, which bounds the duration of a reset.
const PHASE_MAX: u64 = 4_096;

/// Smooth weighted round robin over the active paths of one destination.
///
/// Do not mix units of cost in one scheduler: [`pick`](Self::pick) and [`pick_where`](Self::pick_where) charge 1,
/// [`pick_sized`](Self::pick_sized) charges the given cost.
#[derive(Clone, Debug)]
pub struct SwrrScheduler {
    rules: SwrrRules,
    paths: Vec<Path>,
    credits: Credits,
    window: Window,
    reweights: ReweightCounts,
}

impl SwrrScheduler {
    /// Creates a scheduler without paths.
    pub fn new(rules: SwrrRules) -> Self {
        let window = Window::new(rules.window_picks);
        let reweights = ReweightCounts::default();
        Self { rules, paths: Vec::new(), credits: Credits::default(), window, reweights }
    }

    /// Adds an inactive path, for which samples can be recorded.
    pub fn add_path(&mut self, path: PathId) -> Result<(), SwrrError> {
        let Err(index) = self.find(path) else {
            return Err(SwrrError::DuplicatePath { path });
        };
        if self.paths.len() >= self.rules.paths_max {
            return Err(SwrrError::TooManyPaths { paths_max: self.rules.paths_max });
        }
        self.paths.insert(index, Path::new(path, &self.rules));
        self.window.reserve(self.paths.len());
        Ok(())
    }

    /// Removes a path and its measurements.
    pub fn remove_path(&mut self, path: PathId) -> Result<(), SwrrError> {
        self.deactivate(path)?;
        self.paths.retain(|known| known.id != path);
        self.window.forget(path);
        Ok(())
    }

    /// Activates a path with credit 0 and at the start of its ramp; does nothing if it is active.
    pub fn activate(&mut self, path: PathId, now: Instant) -> Result<(), SwrrError> {
        let index = self.index_of(path)?;
        if self.paths[index].active {
            return Ok(());
        }
        self.paths[index].active = true;
        self.paths[index].weight.start(now, &self.rules);
        self.window.end_segment(&self.credits, &self.rules);
        self.credits.join(path);
        self.window.resize(self.credits.ids().len());
        self.reweigh();
        Ok(())
    }

    /// Deactivates a path; does nothing if it is inactive.
    pub fn deactivate(&mut self, path: PathId) -> Result<(), SwrrError> {
        let index = self.index_of(path)?;
        if !self.paths[index].active {
            return Ok(());
        }
        self.paths[index].active = false;
        self.window.end_segment(&self.credits, &self.rules);
        self.credits.leave(path);
        self.window.resize(self.credits.ids().len());
        self.reweigh();
        Ok(())
    }

    /// Sets the health of a path; a decline takes effect at once, an improvement in steps.
    pub fn set_health(&mut self, path: PathId, now: Instant, health: Health) -> Result<Reweight, SwrrError> {
        let index = self.index_of(path)?;
        let effective = self.credits.index_of(path).map(|index| self.credits.weights()[index]);
        self.paths[index].weight.set_health(health, effective, &self.rules);
        Ok(self.step_path(index, now))
    }

    /// Pins the weight of a path, which from then on ignores its measurements.
    ///
    /// A pinned weight is applied even if the change is small; an increase still happens in steps.
    pub fn set_weight(&mut self, path: PathId, now: Instant, weight: u32) -> Result<Reweight, SwrrError> {
        let index = self.index_of(path)?;
        if !(1..=self.rules.weight_cap).contains(&weight) {
            return Err(SwrrError::BadWeight { weight, weight_cap: self.rules.weight_cap });
        }
        self.paths[index].weight.pin(weight, &self.rules);
        Ok(self.step_path(index, now))
    }

    /// Records an RTT sample.
    pub fn update_path_rtt(
        &mut self,
        path: PathId,
        now: Instant,
        rtt_ms: f64,
    ) -> Result<Reweight, SwrrError> {
        let index = self.index_of(path)?;
        self.paths[index].record_rtt(checked_rtt(rtt_ms)?);
        Ok(self.remeasure(index, now))
    }

    /// Records a loss sample: the fraction of packets lost since the last sample.
    pub fn update_path_loss(
        &mut self,
        path: PathId,
        now: Instant,
        loss_rate: f64,
    ) -> Result<Reweight, SwrrError> {
        let index = self.index_of(path)?;
        self.paths[index].record_loss(checked_loss(loss_rate)?);
        Ok(self.remeasure(index, now))
    }

    /// Continues the stepwise increases of weights while there are no samples.
    pub fn refresh(&mut self, now: Instant) -> Reweight {
        let mut outcome = Reweight::Settled;
        for path in self.paths.iter_mut().filter(|path| path.active) {
            outcome = outcome.max(path.step(now, &self.rules));
        }
        outcome.max(self.reweigh())
    }

    /// Updates the target weight of a path after a sample, and moves the weight towards it.
    fn remeasure(&mut self, index: usize, now: Instant) -> Reweight {
        let measured = self.paths[index].measure(&self.rules);
        let outcome = measured.max(self.step_path(index, now));
        self.reweights.suppressed += u64::from(outcome == Reweight::Suppressed);
        outcome
    }

    /// Moves one path's weight towards its target as far as the limits on increases allow.
    fn step_path(&mut self, index: usize, now: Instant) -> Reweight {
        let path = &mut self.paths[index];
        if !path.active {
            return Reweight::Settled;
        }
        let outcome = path.step(now, &self.rules);
        outcome.max(self.reweigh())
    }

    /// Applies the paths' current weights to the credits, if they differ.
    fn reweigh(&mut self) -> Reweight {
        let weights = || self.paths.iter().filter(|path| path.active).map(|path| path.weight.in_force());
        if !self.credits.differs(weights()) {
            return Reweight::Settled;
        }
        self.window.end_segment(&self.credits, &self.rules);
        self.credits.reweigh(weights(), &self.rules);
        self.reweights.applied += 1;
        Reweight::Applied
    }

    /// Picks the next path among all active ones; `None` if there is none.
    #[inline]
    pub fn pick(&mut self) -> Option<PathId> {
        let index = self.credits.pick()?;
        self.window.count(index, ALL_PATHS, 1, &self.credits, &self.rules);
        Some(self.credits.ids()[index])
    }

    /// Picks the next path among the eligible active ones; the others neither gain nor lose credit.
    #[inline]
    pub fn pick_where(&mut self, eligible: impl Fn(PathId) -> bool) -> Option<PathId> {
        self.pick_sized(Cost(1), eligible)
    }

    /// Picks like [`pick_where`](Self::pick_where) and charges `cost`, so that shares are shares of cost.
    ///
    /// A cost counts as at least 1 and at most [`PICK_COST_MAX`].
    #[inline]
    pub fn pick_sized(&mut self, cost: Cost, eligible: impl Fn(PathId) -> bool) -> Option<PathId> {
        let cost = cost.0.clamp(1, PICK_COST_MAX.0);
        let picked = self.credits.pick_where(cost as i64, eligible, &self.rules)?;
        self.window.count(picked.index, picked.eligible, cost, &self.credits, &self.rules);
        Some(self.credits.ids()[picked.index])
    }

    /// Resets every credit to 0, which restarts the sequence.
    pub fn reset_weights(&mut self) {
        self.credits.reset();
    }

    /// Resets the credits and starts at the position of the sequence that `phase` selects.
    ///
    /// After a plain reset every gateway picks the same path first. If each gateway uses a random `phase`, their first
    /// picks are distributed by weight.
    pub fn reset_weights_at(&mut self, phase: u64) {
        self.credits.reset();
        for _ in 0..phase % self.credits.period().min(PHASE_MAX) {
            self.credits.pick();
        }
    }

    fn index_of(&self, path: PathId) -> Result<usize, SwrrError> {
        self.find(path).map_err(|_| SwrrError::UnknownPath { path })
    }

    fn find(&self, path: PathId) -> Result<usize, usize> {
        self.paths.binary_search_by_key(&path, |known| known.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use alloc::string::ToString;

    const START: Instant = Instant::ORIGIN;
    const A: PathId = PathId(1);
    const B: PathId = PathId(2);
    const C: PathId = PathId(3);

    /// Creates a scheduler of active paths with one RTT sample each.
    fn scheduler(rtts_ms: &[(PathId, f64)]) -> SwrrScheduler {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        for &(path, rtt_ms) in rtts_ms {
            swrr.add_path(path).unwrap();
            swrr.update_path_rtt(path, START, rtt_ms).unwrap();
            swrr.activate(path, START).unwrap();
        }
        swrr
    }

    /// Refreshes for four seconds, after which every ramp has ended.
    fn ramped(mut swrr: SwrrScheduler) -> SwrrScheduler {
        for step in 1..=40 {
            swrr.refresh(Instant::from_millis(step * 100));
        }
        swrr
    }

    fn share_of(swrr: &mut SwrrScheduler, path: PathId, picks: u32) -> f64 {
        f64::from((0..picks).filter(|_| swrr.pick() == Some(path)).count() as u32) / f64::from(picks)
    }

    #[test]
    fn shares_follow_inverse_rtt_from_the_first_pick() {
        for mut swrr in [
            scheduler(&[(A, 10.0), (B, 20.0), (C, 100.0)]),
            ramped(scheduler(&[(C, 100.0), (A, 10.0), (B, 20.0)])),
        ] {
            let mut counts = [0; 4];
            (0..1_600).for_each(|_| counts[swrr.pick().unwrap().index()] += 1);
            assert_eq!(counts, [0, 1_000, 500, 100]);
            let a = counts[1] / 16;
            let b = counts[2] / 16;
            let c = counts[3] / 16;
            assert!((58..=67).contains(&a) && (28..=35).contains(&b) && (4..=9).contains(&c));
        }
    }

    #[test]
    fn a_slow_and_lossy_path_is_explored_but_hardly_used() {
        let mut swrr = ramped(scheduler(&[(A, 20.0), (B, 200.0)]));
        swrr.update_path_loss(B, START, 0.5).unwrap();
        assert_eq!(swrr.health(B), Some(Health::Healthy), "only its weight is reduced");
        let share = share_of(&mut swrr, B, 1_000);
        assert!(share > 0.0 && share < 0.10, "{share}");
    }

    #[test]
    fn the_weight_is_reported_in_whole_numbers() {
        let swrr = ramped(scheduler(&[(A, 10.0), (B, 700.0), (C, 5_000.0)]));
        assert_eq!([A, B, C].map(|path| swrr.weight(path)), [Some(100), Some(1), Some(1)]);
        assert!(swrr.share(B) > swrr.share(C), "equal whole weights may differ in fixed point");
        assert_eq!(swrr.weight(PathId(9)), None);
    }

    #[test]
    fn an_inactive_path_is_not_picked() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 10.0)]);
        swrr.deactivate(A).unwrap();
        assert_eq!((swrr.pick(), swrr.pick(), swrr.active()), (Some(B), Some(B), &[B][..]));
        swrr.remove_path(B).unwrap();
        assert_eq!((swrr.pick(), swrr.rtt(B)), (None, None));
    }

    #[test]
    fn a_path_reports_its_smoothed_samples() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        assert_eq!(swrr.loss_rate(A), Some(0.0));
        swrr.update_path_loss(A, START, 0.5).unwrap();
        let rtt = Duration::from_millis(10);
        let deviation = Duration::from_millis(5);
        assert_eq!((swrr.rtt(A), swrr.rtt_deviation(A)), (Some(rtt), Some(deviation)));
        assert_eq!((swrr.loss_rate(A), swrr.loss_rate(B)), (Some(0.5), None));
    }

    #[test]
    fn a_path_reports_the_health_that_was_set() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        for health in [Health::Degraded, Health::Recovery, Health::Healthy] {
            swrr.set_health(A, START, health).unwrap();
            assert_eq!((swrr.health(A), swrr.health(B)), (Some(health), None));
        }
    }

    #[test]
    fn the_entropy_measures_how_even_the_weights_are() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        assert_eq!(swrr.weight_entropy(), None);
        swrr = scheduler(&[(A, 10.0), (B, 30.0)]);
        assert!((swrr.weight_entropy().unwrap() - 0.811_278).abs() < 1e-4, "the entropy of weights 3 to 1");
    }

    #[test]
    fn a_pick_among_eligible_paths_charges_one_unit() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 10.0), (C, 10.0)]);
        assert_eq!(swrr.pick_where(|path| path != A), Some(B));
        assert_eq!([A, B, C].map(|path| swrr.owed(path)), [Some(0.0), Some(-0.5), Some(0.5)]);
        assert_eq!(swrr.pick_where(|_| false), None);
    }

    #[test]
    fn activating_an_active_path_changes_nothing() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 20.0)]);
        swrr.pick();
        let owed = swrr.owed(A);
        swrr.activate(A, START).unwrap();
        assert_eq!(swrr.owed(A), owed);
    }

    #[test]
    fn first_picks_follow_the_weights_only_with_a_phase() {
        let swrr = scheduler(&[(A, 10.0), (B, 20.0), (C, 100.0)]);
        let first_picks = |reset: fn(&mut SwrrScheduler, u64)| {
            let mut counts = [0; 4];
            for gateway in 0_u64..100 {
                let mut swrr = swrr.clone();
                // Multiples of the golden ratio are well spread.
                reset(&mut swrr, gateway.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8);
                counts[swrr.pick().unwrap().index()] += 1;
            }
            counts
        };
        assert_eq!(first_picks(|swrr, _| swrr.reset_weights()), [0, 100, 0, 0]);
        let [_, a, b, c] = first_picks(SwrrScheduler::reset_weights_at);
        assert!((50..=75).contains(&a) && (20..=42).contains(&b) && (1..=15).contains(&c), "{a} {b} {c}");
    }

    #[test]
    fn a_phase_skips_a_bounded_number_of_picks() {
        let mut phased = scheduler(&[(A, 7.3), (B, 11.1), (C, 23.7)]);
        let mut plain = phased.clone();
        phased.reset_weights_at(5_000);
        (0..5_000 - PHASE_MAX).for_each(|_| _ = plain.pick());
        assert_eq!([A, B, C].map(|path| phased.owed(path)), [A, B, C].map(|path| plain.owed(path)));
    }

    #[test]
    fn a_window_accounts_for_every_change_within_it() {
        let rules = SwrrRules::new(&SwrrConfig { window_picks: 11, ..SwrrConfig::default() }).unwrap();
        let mut swrr = SwrrScheduler::new(rules);
        for path in [A, B, C] {
            swrr.add_path(path).unwrap();
            swrr.set_weight(path, START, 10).unwrap();
        }
        let picks = |swrr: &mut SwrrScheduler, count: u32| (0..count).for_each(|_| _ = swrr.pick());
        swrr.activate(C, START).unwrap();
        picks(&mut swrr, 1); // C, which is removed
        swrr.remove_path(C).unwrap();
        swrr.activate(B, START).unwrap();
        picks(&mut swrr, 2); // B
        swrr.activate(A, START).unwrap();
        picks(&mut swrr, 4); // two each
        swrr.deactivate(A).unwrap();
        picks(&mut swrr, 1); // B
        swrr.activate(A, START).unwrap();
        picks(&mut swrr, 2); // one each
        assert_eq!(swrr.set_health(B, START, Health::Degraded), Ok(Reweight::Applied));
        picks(&mut swrr, 1); // A, which is due nine tenths of it
        let shares = swrr.last_window().unwrap().shares();
        let picks = |share: f64| libm::round(share * 100.0) / 10.0;
        let seen: Vec<_> =
            shares.iter().map(|share| (share.path, picks(share.observed), picks(share.theory))).collect();
        assert_eq!(seen, [(A, 4.0, 3.9), (B, 6.0, 6.1)], "of ten picks, without that of the removed path");
    }

    #[test]
    fn the_cost_of_a_pick_is_bounded() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 10.0)]);
        swrr.pick_sized(Cost(u64::MAX), |_| true);
        assert_eq!(swrr.owed(B), Some(PICK_COST_MAX.0 as f64 / 2.0));
        swrr.reset_weights();
        swrr.pick_sized(Cost::ZERO, |_| true);
        assert_eq!(swrr.owed(B), Some(0.5));
    }

    #[test]
    fn credits_of_the_largest_set_at_the_largest_cost_fit_in_an_i64() {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        // 128 paths take over four minutes under Miri; eight run the same code.
        let paths = if cfg!(miri) { 8 } else { 128 };
        for path in (0..paths).map(PathId) {
            swrr.add_path(path).unwrap();
            swrr.activate(path, START).unwrap();
            swrr.set_weight(path, START, WEIGHT_CAP).unwrap();
        }
        let mut swrr = ramped(swrr);
        for round in 0..2_000_u32 {
            // An overflow panics, because tests run with overflow checks.
            swrr.pick_sized(PICK_COST_MAX, |path| !(path.0 ^ round).is_multiple_of(3)).unwrap();
        }
        let owed_max = 5.5 * PICK_COST_MAX.0 as f64;
        assert!((0..paths).all(|id| swrr.owed(PathId(id)).unwrap().abs() < owed_max));
    }

    #[test]
    fn a_refresh_reports_whether_any_weight_moved() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 400.0)]);
        assert_eq!(swrr.refresh(Instant::from_millis(50)), Reweight::Suppressed);
        assert_eq!(
            swrr.refresh(Instant::from_millis(100)),
            Reweight::Applied,
            "the weight of A moves, that of B waits"
        );
    }

    #[test]
    fn a_pinned_weight_ignores_measurements() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        assert_eq!(swrr.set_weight(A, START, 5), Ok(Reweight::Applied));
        swrr.update_path_rtt(A, START, 1.0).unwrap();
        assert_eq!(ramped(swrr).weight(A), Some(5));
    }

    #[test]
    fn an_error_names_the_cause_and_changes_nothing() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        let error = |result: Result<Reweight, SwrrError>| result.unwrap_err().to_string();
        assert_eq!(error(swrr.update_path_rtt(B, START, 1.0)), "path 2 is unknown");
        assert_eq!(
            error(swrr.update_path_rtt(A, START, -1.0)),
            "rtt of -1 ms is not a finite number of at least 0"
        );
        assert_eq!(error(swrr.update_path_loss(A, START, 1.5)), "loss rate 1.5 is not between 0 and 1");
        assert_eq!(error(swrr.set_weight(A, START, 0)), "weight 0 is not between 1 and 10000");
        assert_eq!(swrr.add_path(A), Err(SwrrError::DuplicatePath { path: A }));
        assert_eq!(swrr.rtt(A), Some(Duration::from_millis(10)));
    }

    #[test]
    fn the_number_of_paths_is_limited() {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        for id in 0..128 {
            swrr.add_path(PathId(id)).unwrap();
        }
        assert_eq!(swrr.add_path(PathId(128)), Err(SwrrError::TooManyPaths { paths_max: 128 }));
    }
}
