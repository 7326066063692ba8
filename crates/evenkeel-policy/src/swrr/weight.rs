//! Weight of a path: the formula, the threshold for changes, the rate limit on increases, and the effect of health.
//!
//! The formula or a pin gives the goal; the health reduces the goal to the target; the weight in force moves towards
//! the target, down at once and up in steps; the cap on unhealthy paths reduces the weight in force to the effective
//! weight.
//!
//! Guarantees: a weight in force never exceeds its target, increases by at most the factor `raise_max` per interval,
//! and is never 0; the unhealthy paths of a set with a healthy one together stay strictly below `unhealthy_share_max` of
//! its sum.

use super::SwrrError;
use super::config::SwrrRules;
use crate::time::{Duration, Instant};

/// Weight 1 in fixed point; with whole weights, RTTs of 700 ms and 990 ms would get the same weight.
pub(super) const UNIT: i64 = 1 << 16;

/// Returns the weight of a path: the inverse of its RTT, reduced by its loss.
///
/// A measurement that is NaN, infinite, negative or (loss) above 1 is rejected.
pub fn path_weight(rtt_ms: f64, loss_rate: f64, rules: &SwrrRules) -> Result<u32, SwrrError> {
    let weight = exact_weight(checked_rtt(rtt_ms)?, checked_loss(loss_rate)?, rules);
    // Between 1 and the cap, so the cast is exact.
    Ok(libm::round(weight) as u32)
}

/// Computes the weight before rounding; both limits are integers, so rounding after clamping stays within them.
fn exact_weight(rtt_ms: f64, loss_rate: f64, rules: &SwrrRules) -> f64 {
    let base = rules.weight_scale / rtt_ms.max(1.0);
    let loss_penalty = (1.0 - loss_rate).clamp(rules.loss_floor, 1.0);
    (base * loss_penalty).clamp(1.0, f64::from(rules.weight_cap))
}

pub(super) fn checked_rtt(rtt_ms: f64) -> Result<f64, SwrrError> {
    if (0.0..=f64::MAX).contains(&rtt_ms) { Ok(rtt_ms) } else { Err(SwrrError::BadRtt { rtt_ms }) }
}

pub(super) fn checked_loss(loss_rate: f64) -> Result<f64, SwrrError> {
    if (0.0..=1.0).contains(&loss_rate) { Ok(loss_rate) } else { Err(SwrrError::BadLoss { loss_rate }) }
}

pub(super) fn whole_weight(weight: i64) -> u32 {
    // The cap bounds a weight far below `u32::MAX`.
    ((weight + UNIT / 2) / UNIT).max(1) as u32
}

/// Health of an active path, as far as its weight is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// The path gets the weight that its measurements give.
    #[default]
    Healthy,
    /// The path gets `degraded_factor` of that, at least 1.
    Degraded,
    /// The path gets `recovery_factor` of that, at least 1.
    Recovery,
}

/// Effect of a measurement, a change of health or the passage of time on a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reweight {
    /// The weight in force is at its target, or the path is inactive.
    Settled,
    /// The weight differs from its target, but by too little or too soon after the last change.
    Suppressed,
    /// The weight moved.
    Applied,
}

/// Numbers of changes of weights, since the scheduler was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReweightCounts {
    /// Times the weights in force changed.
    pub applied: u64,
    /// Measurements that changed no weight because the change was too small or came too soon.
    pub suppressed: u64,
}

/// Weight of a path that its measurements or a pin give, before its health is taken into account.
#[derive(Clone, Copy, Debug)]
enum Goal {
    Unknown,
    Measured(i64),
    Pinned(i64),
}

/// Weight in force of one path, before the cap on unhealthy paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WeightInForce {
    pub(super) weight: i64,
    pub(super) is_healthy: bool,
}

/// Weight of one path, with its goal and its health.
#[derive(Clone, Debug)]
pub(super) struct PathWeight {
    goal: Goal,
    health: Health,
    in_force: i64,
    changed_at: Instant,
}

impl PathWeight {
    /// Creates the weight of a path without measurements: the smallest.
    pub(super) fn unknown() -> Self {
        Self { goal: Goal::Unknown, health: Health::Healthy, in_force: UNIT, changed_at: Instant::ORIGIN }
    }

    pub(super) fn health(&self) -> Health {
        self.health
    }

    pub(super) fn in_force(&self) -> WeightInForce {
        WeightInForce { weight: self.in_force, is_healthy: self.health == Health::Healthy }
    }

    /// Sets the path's health; `effective` is its effective weight if it is active.
    ///
    /// A path that becomes healthy continues from its effective weight, or from the start of a ramp if that is more; if
    /// it continued from its uncapped weight, its share would jump.
    pub(super) fn set_health(&mut self, health: Health, effective: Option<i64>, rules: &SwrrRules) {
        self.health = health;
        if let (Health::Healthy, Some(effective)) = (health, effective) {
            self.in_force = self.in_force.min(effective.max(self.ramp_start(rules)));
        }
    }

    /// Pins the goal, which from then on ignores measurements.
    pub(super) fn pin(&mut self, weight: u32, rules: &SwrrRules) {
        let was_unknown = matches!(self.goal, Goal::Unknown);
        self.goal = Goal::Pinned(i64::from(weight) * UNIT);
        if was_unknown {
            self.raise_to_ramp_start(rules);
        }
    }

    /// Updates the goal from the measurements, unless it is pinned or the change is below `change_min`.
    pub(super) fn measure(&mut self, rtt_ms: f64, loss_rate: f64, rules: &SwrrRules) -> Reweight {
        let weight = libm::round(exact_weight(rtt_ms, loss_rate, rules) * UNIT as f64) as i64;
        match self.goal {
            Goal::Pinned(_) => return Reweight::Settled,
            Goal::Measured(goal) if weight == goal => return Reweight::Settled,
            Goal::Measured(goal) if (weight - goal).abs() < rules.change_min.scale(goal) => {
                return Reweight::Suppressed;
            }
            Goal::Measured(_) => self.goal = Goal::Measured(weight),
            Goal::Unknown => {
                self.goal = Goal::Measured(weight);
                self.raise_to_ramp_start(rules);
            }
        }
        Reweight::Settled
    }

    /// Starts the ramp, so that a path that was inactive does not get its whole share at once.
    pub(super) fn start(&mut self, now: Instant, rules: &SwrrRules) {
        self.in_force = 1;
        self.raise_to_ramp_start(rules);
        self.changed_at = now;
    }

    /// Raises the weight in force at least to the start of the ramp.
    fn raise_to_ramp_start(&mut self, rules: &SwrrRules) {
        self.in_force = self.in_force.max(self.ramp_start(rules));
    }

    fn ramp_start(&self, rules: &SwrrRules) -> i64 {
        rules.ramp_start.scale(self.target(rules))
    }

    /// Moves the weight in force towards its target: down at once, up one step per interval.
    pub(super) fn step_towards_target(
        &mut self,
        now: Instant,
        rtt: Option<Duration>,
        rules: &SwrrRules,
    ) -> Reweight {
        let target = self.target(rules);
        if target == self.in_force {
            return Reweight::Settled;
        }
        if target > self.in_force {
            let interval = rtt.unwrap_or_default().max(rules.raise_interval_min);
            if now.since(self.changed_at) < interval {
                return Reweight::Suppressed;
            }
        }
        self.in_force = target.min(rules.raise_max.scale(self.in_force));
        self.changed_at = now;
        Reweight::Applied
    }

    fn target(&self, rules: &SwrrRules) -> i64 {
        let goal = match self.goal {
            Goal::Unknown => UNIT,
            Goal::Measured(goal) | Goal::Pinned(goal) => goal,
        };
        match self.health {
            Health::Healthy => goal,
            Health::Degraded => rules.degraded_factor.scale(goal).max(UNIT),
            Health::Recovery => rules.recovery_factor.scale(goal).max(UNIT),
        }
    }
}

/// Limit on the sum of the unhealthy weights of one set.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnhealthyCap {
    sum: i64,
    sum_max: i64,
    count: i64,
}

impl UnhealthyCap {
    /// Creates the limit for a set of weights; a set without a healthy path is not capped.
    pub(super) fn over(set: impl Iterator<Item = WeightInForce>, rules: &SwrrRules) -> Self {
        let mut healthy = 0;
        let mut sum = 0;
        let mut count = 0;
        for path in set {
            if path.is_healthy {
                healthy += path.weight;
            } else {
                sum += path.weight;
                count += 1;
            }
        }
        let sum_max = if healthy == 0 { i64::MAX } else { rules.unhealthy_sum_max(healthy) };
        Self { sum, sum_max, count }
    }

    /// Returns the effective weight of a path in this set.
    pub(super) fn apply(self, path: WeightInForce) -> i64 {
        if path.is_healthy || self.sum <= self.sum_max {
            return path.weight;
        }
        // Each gets 1 and a proportional part of the rest, so no path gets 0 and the sum is at most `sum_max`.
        let rest = i128::from(self.sum_max - self.count);
        1 + (i128::from(path.weight) * rest / i128::from(self.sum)) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::super::SwrrConfig;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn measured(rtt_ms: f64) -> PathWeight {
        let mut weight = PathWeight::unknown();
        weight.measure(rtt_ms, 0.0, &SwrrRules::default());
        weight
    }

    /// Moves the weight at time `at` as far as allowed and returns the weight in force, in hundredths.
    fn stepped(weight: &mut PathWeight, at: Duration) -> i64 {
        weight.step_towards_target(Instant::ORIGIN + at, None, &SwrrRules::default());
        (weight.in_force * 100 + UNIT / 2) / UNIT
    }

    fn ramping(weight: u32) -> PathWeight {
        let mut path = PathWeight::unknown();
        path.pin(weight, &SwrrRules::default());
        path.start(Instant::ORIGIN, &SwrrRules::default());
        path
    }

    #[test]
    fn the_formula_gives_the_specified_weights() {
        let weigh = |rtt_ms, loss| path_weight(rtt_ms, loss, &SwrrRules::default());
        assert_eq!(weigh(10.0, 0.0), Ok(100));
        assert_eq!(weigh(20.0, 0.0), Ok(50));
        assert_eq!(weigh(100.0, 0.0), Ok(10));
        assert_eq!(weigh(0.0, 0.0), Ok(1_000), "an RTT below 1 ms counts as 1 ms");
        assert_eq!(weigh(7.3, 0.0), Ok(137), "fractions of a millisecond count");
        assert_eq!(weigh(10.0, 0.5), Ok(50));
        assert_eq!(weigh(10.0, 1.0), Ok(5), "a lossy path keeps at least a twentieth");
        assert_eq!(weigh(5_000.0, 1.0), Ok(1), "never 0");
        assert_eq!(weigh(f64::MAX, 0.0), Ok(1));
    }

    #[test]
    fn no_weight_exceeds_the_cap() {
        let config = SwrrConfig { weight_scale: 1e6, weight_cap: 2_000, ..Default::default() };
        let rules = SwrrRules::new(&config).unwrap();
        assert_eq!(path_weight(1.0, 0.0, &rules), Ok(2_000));
    }

    #[test]
    fn an_invalid_measurement_is_rejected() {
        let rules = SwrrRules::default();
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.001] {
            assert!(path_weight(bad, 0.0, &rules).is_err(), "rtt {bad}");
            assert!(path_weight(1.0, bad, &rules).is_err(), "loss {bad}");
        }
        assert_eq!(path_weight(1.0, 1.001, &rules), Err(SwrrError::BadLoss { loss_rate: 1.001 }));
    }

    #[test]
    fn seven_hundred_and_nine_hundred_ninety_ms_differ() {
        let target = |rtt_ms| measured(rtt_ms).target(&SwrrRules::default());
        assert!(target(700.0) > target(990.0));
    }

    #[test]
    fn a_change_below_five_percent_is_ignored() {
        let rules = SwrrRules::default();
        let mut weight = measured(10.0);
        for close_ms in [10.4, 9.6] {
            assert_eq!(weight.measure(close_ms, 0.0, &rules), Reweight::Suppressed);
            assert_eq!(weight.target(&rules), 100 * UNIT);
        }
        weight.measure(10.6, 0.0, &rules);
        assert!(weight.target(&rules) < 95 * UNIT);
    }

    #[test]
    fn a_change_of_exactly_the_threshold_counts() {
        let config = SwrrConfig { change_min: 0.5, ..SwrrConfig::default() };
        let rules = SwrrRules::new(&config).unwrap();
        let mut weight = measured(10.0);
        assert_eq!(weight.measure(19.99, 0.0, &rules), Reweight::Suppressed);
        assert_eq!(weight.measure(20.0, 0.0, &rules), Reweight::Settled);
        assert_eq!(weight.target(&rules), 50 * UNIT);
    }

    #[test]
    fn many_small_changes_in_one_direction_take_effect() {
        let rules = SwrrRules::default();
        let mut weight = measured(100.0);
        for step in 1..=40 {
            weight.measure(100.0 + f64::from(step), 0.0, &rules);
        }
        let target = weight.target(&rules) as f64 / UNIT as f64;
        assert!((target - 1_000.0 / 140.0).abs() < 0.05 * target, "{target} did not follow the changes");
    }

    #[test]
    fn a_weight_falls_at_once_and_rises_by_a_quarter_per_interval() {
        let mut weight = ramping(100);
        assert_eq!(stepped(&mut weight, 99 * MS), 1_000, "the ramp starts at a tenth");
        assert_eq!(stepped(&mut weight, 100 * MS), 1_250);
        assert_eq!(stepped(&mut weight, 199 * MS), 1_250, "too soon");
        assert_eq!(stepped(&mut weight, 9_000 * MS), 1_563, "only one step, even after a long pause");
        weight.pin(3, &SwrrRules::default());
        assert_eq!(stepped(&mut weight, 9_001 * MS), 300, "a decrease is immediate");
        weight.pin(100, &SwrrRules::default());
        assert_eq!(stepped(&mut weight, 9_100 * MS), 300, "the decrease started an interval");
        assert_eq!(stepped(&mut weight, 9_101 * MS), 375);
    }

    #[test]
    fn a_ramp_ends_exactly_at_the_target() {
        let mut weight = ramping(100);
        let steps = (1..100).find(|&step| {
            stepped(&mut weight, 100 * step * MS);
            weight.in_force == 100 * UNIT
        });
        assert_eq!(steps, Some(11), "0.1 × 1.25^11 > 1 > 0.1 × 1.25^10");
    }

    #[test]
    fn the_first_interval_begins_when_the_ramp_starts() {
        let mut weight = ramping(100);
        weight.start(Instant::from_secs(1), &SwrrRules::default());
        assert_eq!(stepped(&mut weight, 1_099 * MS), 1_000);
        assert_eq!(stepped(&mut weight, 1_100 * MS), 1_250);
    }

    #[test]
    fn a_recovered_path_continues_from_its_effective_weight_or_from_a_tenth() {
        let recovered = |effective| {
            let mut weight = PathWeight::unknown();
            weight.pin(100, &SwrrRules::default());
            weight.in_force = 40 * UNIT;
            weight.set_health(Health::Healthy, Some(effective), &SwrrRules::default());
            stepped(&mut weight, MS)
        };
        assert_eq!(recovered(11 * UNIT), 1_100);
        assert_eq!(recovered(1), 1_000, "a quarter of 1 in fixed point would round to nothing");
        assert_eq!(recovered(40 * UNIT), 4_000);
    }

    #[test]
    fn a_weight_set_during_a_ramp_begins_at_the_ramps_start() {
        let rules = SwrrRules::default();
        let mut pinned = PathWeight::unknown();
        let mut measured = PathWeight::unknown();
        pinned.start(Instant::ORIGIN, &rules);
        pinned.pin(100, &rules);
        assert_eq!(stepped(&mut pinned, MS), 1_000);

        measured.start(Instant::ORIGIN, &rules);
        measured.measure(10.0, 0.0, &rules);
        assert_eq!(stepped(&mut measured, MS), 1_000);
    }

    #[test]
    fn a_slow_path_waits_a_round_trip_between_increases() {
        let rules = SwrrRules::default();
        let mut weight = measured(400.0);
        weight.start(Instant::ORIGIN, &rules);
        let mut step = |ms| weight.step_towards_target(Instant::from_millis(ms), Some(400 * MS), &rules);
        assert_eq!((step(399), step(400)), (Reweight::Suppressed, Reweight::Applied));
    }

    #[test]
    fn an_unhealthy_path_keeps_a_fraction_of_its_weight_and_at_least_one() {
        let rules = SwrrRules::default();
        let target = |weight: u32, health| {
            let mut path = PathWeight::unknown();
            path.pin(weight, &rules);
            path.set_health(health, None, &rules);
            (path.target(&rules) * 10 + UNIT / 2) / UNIT
        };
        assert_eq!(target(100, Health::Healthy), 1_000);
        assert_eq!(target(100, Health::Degraded), 400);
        assert_eq!(target(100, Health::Recovery), 700);
        assert_eq!(target(2, Health::Degraded), 10, "1, not 0.8");
        assert_eq!(target(1, Health::Recovery), 10, "1, not 0.7");
    }
}
