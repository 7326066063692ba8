//! Which path next: smooth weighted round robin over paths weighed by inverse RTT and loss.
//!
//! Every path that takes part in a pick gains its weight in credit; the one with the most credit wins
//! (of equals the lowest id) and pays the sum of the weights. O(n) per pick, no allocation, the same
//! inputs give the same picks.
//!
//! Bounds, with `w` the weights in force, `W` their sum and `n` active paths:
//!
//! - any `W / gcd(w)` picks in a row under unchanged weights, counted from a reset, give each path
//!   exactly its share;
//! - after every pick, however often the weights changed, a path is behind its share by at most
//!   H(n) − 1 picks (H the harmonic number) and ahead by at most 1 − 1/n; charged by size, that many
//!   times the largest size; after departures, H(n) either way;
//! - no path is picked more than ⌈w / w_min⌉ times in a row, after a change of weights neither, except
//!   that rounding over many changes may turn a tie around: then ⌊w / w_min⌋ + 1;
//! - credits sum to 0, so a path that joins with 0 is neither ahead nor behind;
//! - unhealthy paths together have strictly less than their share of `W` unless all are unhealthy, and
//!   no active path has none.
//!
//! The second bound is that of the cup game: if the k fullest of n cups hold on average at most
//! 1/(k+1) + … + 1/n, so they do after pouring in one unit and emptying one from the fullest. The third
//! holds because whoever was picked last before a run was then not behind by more than one pick. Both
//! are about picks in which all active paths take part, and the third about runs in which none leaves.

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
pub use weight::{Health, Reweight, path_weight};

use credit::{Credits, EVERYONE};
use path::Path;
use share::Window;
use weight::{UnhealthyCap, checked_loss, checked_rtt};

use crate::cost::Cost;
use crate::id::PathId;
use crate::time::Instant;

/// The most a single pick is charged; larger sizes count as this much, so that credits fit an `i64`.
pub const PICK_COST_MAX: Cost = Cost(1 << 20);

/// The most picks a phase skips; with more, resetting would take longer than it is worth.
const PHASE_MAX: u64 = 4_096;

/// Spreads picks over the active paths of one destination in proportion to their weights.
///
/// Charge one scheduler in one currency: [`pick`](Self::pick) and [`pick_where`](Self::pick_where)
/// charge 1, [`pick_sized`](Self::pick_sized) what it is told.
#[derive(Clone, Debug)]
pub struct SwrrScheduler {
    rules: SwrrRules,
    paths: Vec<Path>,
    credits: Credits,
    window: Window,
}

impl SwrrScheduler {
    /// Makes a scheduler without paths.
    pub fn new(rules: SwrrRules) -> Self {
        let window = Window::new(rules.window_picks);
        Self { rules, paths: Vec::new(), credits: Credits::default(), window }
    }

    /// Adds an inactive path; its samples count from here on.
    pub fn add_path(&mut self, path: PathId) -> Result<(), SwrrError> {
        let Err(at) = self.place(path) else {
            return Err(SwrrError::DuplicatePath { path });
        };
        if self.rules.paths_max <= self.paths.len() {
            return Err(SwrrError::TooManyPaths { paths_max: self.rules.paths_max });
        }
        self.paths.insert(at, Path::new(path, &self.rules));
        self.window.make_room(self.paths.len());
        Ok(())
    }

    /// Removes a path and everything known about it.
    pub fn remove_path(&mut self, path: PathId) -> Result<(), SwrrError> {
        self.deactivate(path)?;
        self.paths.retain(|known| known.id != path);
        self.window.forget(path);
        Ok(())
    }

    /// Lets a path take part, without credit and from the start of its ramp; nothing if it does.
    pub fn activate(&mut self, path: PathId, now: Instant) -> Result<(), SwrrError> {
        let at = self.index(path)?;
        if self.paths[at].active {
            return Ok(());
        }
        self.paths[at].active = true;
        self.paths[at].weight.start(now, &self.rules);
        self.window.fold(&self.credits);
        self.credits.join(path);
        self.window.resize(self.credits.ids().len());
        self.reweigh();
        Ok(())
    }

    /// Takes a path out until it is activated again; nothing if it is out.
    pub fn deactivate(&mut self, path: PathId) -> Result<(), SwrrError> {
        let at = self.index(path)?;
        if !self.paths[at].active {
            return Ok(());
        }
        self.paths[at].active = false;
        self.window.fold(&self.credits);
        self.credits.leave(path);
        self.window.resize(self.credits.ids().len());
        self.reweigh();
        Ok(())
    }

    /// Says how well a path does; worse acts at once, better by the steps of a raise.
    pub fn set_health(&mut self, path: PathId, now: Instant, health: Health) -> Result<Reweight, SwrrError> {
        let at = self.index(path)?;
        let counted = self.credits.slot(path).map(|slot| self.credits.weights()[slot]);
        self.paths[at].weight.set_health(health, counted, &self.rules);
        Ok(self.settle(at, now))
    }

    /// Gives a path its weight by hand, from then on in place of the measured one.
    ///
    /// A given weight is taken as meant, however small the change; raises still come in steps.
    pub fn set_weight(&mut self, path: PathId, now: Instant, weight: u32) -> Result<Reweight, SwrrError> {
        let at = self.index(path)?;
        if !(1..=self.rules.weight_cap).contains(&weight) {
            return Err(SwrrError::BadWeight { weight, weight_cap: self.rules.weight_cap });
        }
        self.paths[at].weight.give(weight, &self.rules);
        Ok(self.settle(at, now))
    }

    /// Takes in an RTT sample.
    pub fn update_path_rtt(
        &mut self,
        path: PathId,
        now: Instant,
        rtt_ms: f64,
    ) -> Result<Reweight, SwrrError> {
        let at = self.index(path)?;
        self.paths[at].rtt_sample(checked_rtt(rtt_ms)?);
        Ok(self.remeasure(at, now))
    }

    /// Takes in a loss sample: the part lost of what was sent since the last one.
    pub fn update_path_loss(
        &mut self,
        path: PathId,
        now: Instant,
        loss_rate: f64,
    ) -> Result<Reweight, SwrrError> {
        let at = self.index(path)?;
        self.paths[at].loss_sample(checked_loss(loss_rate)?);
        Ok(self.remeasure(at, now))
    }

    /// Lets raises and ramps go on where no sample does.
    pub fn refresh(&mut self, now: Instant) -> Reweight {
        let mut outcome = Reweight::Settled;
        for path in self.paths.iter_mut().filter(|path| path.active) {
            outcome = outcome.max(path.slew(now, &self.rules));
        }
        outcome.max(self.reweigh())
    }

    fn remeasure(&mut self, at: usize, now: Instant) -> Reweight {
        let goal = self.paths[at].measure(&self.rules);
        goal.max(self.settle(at, now))
    }

    /// Moves one path's weight as far as it may go.
    fn settle(&mut self, at: usize, now: Instant) -> Reweight {
        let path = &mut self.paths[at];
        if !path.active {
            return Reweight::Settled;
        }
        let outcome = path.slew(now, &self.rules);
        outcome.max(self.reweigh())
    }

    /// Puts the weights in force into the credits, if they differ.
    fn reweigh(&mut self) -> Reweight {
        let active = || self.paths.iter().filter(|path| path.active).map(|path| &path.weight);
        let cap = UnhealthyCap::over(active(), &self.rules);
        let weights = || active().map(|weight| cap.apply(weight));
        if !self.credits.differs(weights()) {
            return Reweight::Settled;
        }
        self.window.fold(&self.credits);
        self.credits.reweigh(weights());
        Reweight::Applied
    }

    /// Picks the next path among all active ones; `None` when there is none.
    #[inline]
    pub fn pick(&mut self) -> Option<PathId> {
        let slot = self.credits.pick()?;
        self.window.count(slot, EVERYONE, 1, &self.credits);
        Some(self.credits.ids()[slot])
    }

    /// Picks the next path among the eligible active ones; the others keep their credit as it is.
    #[inline]
    pub fn pick_where(&mut self, eligible: impl Fn(PathId) -> bool) -> Option<PathId> {
        self.pick_sized(Cost(1), eligible)
    }

    /// Picks as [`pick_where`](Self::pick_where) does and charges `cost`: shares are then of cost.
    ///
    /// A cost counts as at least 1 and at most [`PICK_COST_MAX`].
    #[inline]
    pub fn pick_sized(&mut self, cost: Cost, eligible: impl Fn(PathId) -> bool) -> Option<PathId> {
        let cost = cost.0.clamp(1, PICK_COST_MAX.0);
        let picked = self.credits.pick_where(cost as i64, eligible)?;
        self.window.count(picked.slot, picked.eligible, cost, &self.credits);
        Some(self.credits.ids()[picked.slot])
    }

    /// Sets every credit to 0: the next pick is the first.
    pub fn reset_weights(&mut self) {
        self.credits.reset();
    }

    /// Resets, then starts at a random place of the sequence.
    ///
    /// After a plain reset every gateway's first pick is the same path; with a random `phase` each, their
    /// first picks follow the weights.
    pub fn reset_weights_at(&mut self, phase: u64) {
        self.credits.reset();
        for _ in 0..phase % self.credits.period().min(PHASE_MAX) {
            self.credits.pick();
        }
    }

    fn index(&self, path: PathId) -> Result<usize, SwrrError> {
        self.place(path).map_err(|_| SwrrError::UnknownPath { path })
    }

    fn place(&self, path: PathId) -> Result<usize, usize> {
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

    /// Active paths with one RTT sample each.
    fn scheduler(rtts_ms: &[(PathId, f64)]) -> SwrrScheduler {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        for &(path, rtt_ms) in rtts_ms {
            swrr.add_path(path).unwrap();
            swrr.update_path_rtt(path, START, rtt_ms).unwrap();
            swrr.activate(path, START).unwrap();
        }
        swrr
    }

    /// Refreshes for four seconds, in which every ramp ends.
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
        assert_eq!(swrr.health(B), Some(Health::Healthy), "by the formula alone");
        let share = share_of(&mut swrr, B, 1_000);
        assert!(share > 0.0 && share < 0.10, "{share}");
    }

    #[test]
    fn whole_weights_are_the_view() {
        let swrr = ramped(scheduler(&[(A, 10.0), (B, 700.0), (C, 5_000.0)]));
        assert_eq!([A, B, C].map(|path| swrr.weight(path)), [Some(100), Some(1), Some(1)]);
        assert!(swrr.share(B) > swrr.share(C), "what is the same in view may differ inside");
        assert_eq!(swrr.weight(PathId(9)), None);
    }

    #[test]
    fn a_path_that_is_not_active_is_not_picked() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 10.0)]);
        swrr.deactivate(A).unwrap();
        assert_eq!((swrr.pick(), swrr.pick(), swrr.active()), (Some(B), Some(B), &[B][..]));
        swrr.remove_path(B).unwrap();
        assert_eq!((swrr.pick(), swrr.rtt(B)), (None, None));
    }

    #[test]
    fn a_path_shows_what_its_samples_came_to() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        assert_eq!(swrr.loss_rate(A), Some(0.0));
        swrr.update_path_loss(A, START, 0.5).unwrap();
        let rtt = Duration::from_millis(10);
        let deviation = Duration::from_millis(5);
        assert_eq!((swrr.rtt(A), swrr.rtt_deviation(A)), (Some(rtt), Some(deviation)));
        assert_eq!((swrr.loss_rate(A), swrr.loss_rate(B)), (Some(0.5), None));
    }

    #[test]
    fn a_path_shows_the_health_it_was_said_to_have() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        for health in [Health::Degraded, Health::Recovery, Health::Healthy] {
            swrr.set_health(A, START, health).unwrap();
            assert_eq!((swrr.health(A), swrr.health(B)), (Some(health), None));
        }
    }

    #[test]
    fn the_entropy_tells_how_even_the_weights_are() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        assert_eq!(swrr.weight_entropy(), None);
        swrr = scheduler(&[(A, 10.0), (B, 30.0)]);
        assert!((swrr.weight_entropy().unwrap() - 0.811_278).abs() < 1e-4, "that of 3 to 1");
    }

    #[test]
    fn a_pick_among_some_goes_to_one_of_them_for_one() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 10.0), (C, 10.0)]);
        assert_eq!(swrr.pick_where(|path| path != A), Some(B));
        assert_eq!([A, B, C].map(|path| swrr.owed(path)), [Some(0.0), Some(-1.0 / 3.0), Some(1.0 / 3.0)]);
        assert_eq!(swrr.pick_where(|_| false), None);
    }

    #[test]
    fn activating_what_is_active_changes_nothing() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 20.0)]);
        swrr.pick();
        let owed = swrr.owed(A);
        swrr.activate(A, START).unwrap();
        assert_eq!(swrr.owed(A), owed);
    }

    #[test]
    fn first_picks_follow_the_weights_only_with_a_phase() {
        let swrr = scheduler(&[(A, 10.0), (B, 20.0), (C, 100.0)]);
        let firsts = |reset: fn(&mut SwrrScheduler, u64)| {
            let mut counts = [0; 4];
            for gateway in 0_u64..100 {
                let mut swrr = swrr.clone();
                // Any spread of numbers does; this one is the golden ratio's.
                reset(&mut swrr, gateway.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8);
                counts[swrr.pick().unwrap().index()] += 1;
            }
            counts
        };
        assert_eq!(firsts(|swrr, _| swrr.reset_weights()), [0, 100, 0, 0]);
        let [_, a, b, c] = firsts(SwrrScheduler::reset_weights_at);
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
    fn a_window_follows_every_change_within_it() {
        let rules = SwrrRules::new(&SwrrConfig { window_picks: 11, ..SwrrConfig::default() }).unwrap();
        let mut swrr = SwrrScheduler::new(rules);
        for path in [A, B, C] {
            swrr.add_path(path).unwrap();
            swrr.set_weight(path, START, 10).unwrap();
        }
        let picks = |swrr: &mut SwrrScheduler, count: u32| (0..count).for_each(|_| _ = swrr.pick());
        swrr.activate(C, START).unwrap();
        picks(&mut swrr, 1); // the removed path's
        swrr.remove_path(C).unwrap();
        swrr.activate(B, START).unwrap();
        picks(&mut swrr, 2); // B's
        swrr.activate(A, START).unwrap();
        picks(&mut swrr, 4); // two each
        swrr.deactivate(A).unwrap();
        picks(&mut swrr, 1); // B's
        swrr.activate(A, START).unwrap();
        picks(&mut swrr, 2); // one each
        assert_eq!(swrr.set_health(B, START, Health::Degraded), Ok(Reweight::Applied));
        picks(&mut swrr, 1); // A's, by nine tenths
        let shares = swrr.last_window().unwrap().shares();
        let picks = |share: f64| libm::round(share * 100.0) / 10.0;
        let seen: Vec<_> =
            shares.iter().map(|share| (share.path, picks(share.observed), picks(share.theory))).collect();
        assert_eq!(seen, [(A, 4.0, 3.9), (B, 6.0, 6.1)], "of the ten picks that count");
    }

    #[test]
    fn a_charge_is_bounded() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 10.0)]);
        swrr.pick_sized(Cost(u64::MAX), |_| true);
        assert_eq!(swrr.owed(B), Some(PICK_COST_MAX.0 as f64 / 2.0));
        swrr.reset_weights();
        swrr.pick_sized(Cost::ZERO, |_| true);
        assert_eq!(swrr.owed(B), Some(0.5));
    }

    #[test]
    fn the_largest_set_at_the_largest_charge_stays_within_an_i64() {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        // 128 take over four minutes under Miri, which is there for the code and not for the sums.
        let paths = if cfg!(miri) { 8 } else { 128 };
        for path in (0..paths).map(PathId) {
            swrr.add_path(path).unwrap();
            swrr.activate(path, START).unwrap();
            swrr.set_weight(path, START, WEIGHT_CAP).unwrap();
        }
        let mut swrr = ramped(swrr);
        for round in 0..2_000_u32 {
            // An overflow would panic here, as tests check arithmetic.
            swrr.pick_sized(PICK_COST_MAX, |path| !(path.0 ^ round).is_multiple_of(3)).unwrap();
        }
        let owed_max = 5.5 * PICK_COST_MAX.0 as f64;
        assert!((0..paths).all(|id| swrr.owed(PathId(id)).unwrap().abs() < owed_max));
    }

    #[test]
    fn a_refresh_tells_whether_any_weight_moved() {
        let mut swrr = scheduler(&[(A, 10.0), (B, 400.0)]);
        assert_eq!(swrr.refresh(Instant::from_millis(50)), Reweight::Suppressed);
        assert_eq!(swrr.refresh(Instant::from_millis(100)), Reweight::Applied, "A moves, B waits");
    }

    #[test]
    fn a_given_weight_stays_whatever_is_measured() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        assert_eq!(swrr.set_weight(A, START, 5), Ok(Reweight::Applied));
        swrr.update_path_rtt(A, START, 1.0).unwrap();
        assert_eq!(ramped(swrr).weight(A), Some(5));
    }

    #[test]
    fn refusals_say_what_and_change_nothing() {
        let mut swrr = scheduler(&[(A, 10.0)]);
        let said = |refusal: Result<Reweight, SwrrError>| refusal.unwrap_err().to_string();
        assert_eq!(said(swrr.update_path_rtt(B, START, 1.0)), "path 2 is unknown");
        assert_eq!(
            said(swrr.update_path_rtt(A, START, -1.0)),
            "rtt of -1 ms is not a finite number of at least 0"
        );
        assert_eq!(said(swrr.update_path_loss(A, START, 1.5)), "loss rate 1.5 is not between 0 and 1");
        assert_eq!(said(swrr.set_weight(A, START, 0)), "weight 0 is not between 1 and 10000");
        assert_eq!(swrr.add_path(A), Err(SwrrError::DuplicatePath { path: A }));
        assert_eq!(swrr.rtt(A), Some(Duration::from_millis(10)));
    }

    #[test]
    fn the_set_is_limited() {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        for id in 0..128 {
            swrr.add_path(PathId(id)).unwrap();
        }
        assert_eq!(swrr.add_path(PathId(128)), Err(SwrrError::TooManyPaths { paths_max: 128 }));
    }
}
