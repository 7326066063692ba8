//! Replacement of a slow path by a faster one that is not in use.

use super::rule::{RUNS, SPANS};
use crate::id::PathId;
use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, Instant, scaled};

/// Settings of the prune rule; [`PruneRule::new`] validates them.
///
/// The interval is a millisecond to a day, `margin` 0..=100, `samples` 1..=1 000 000.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PruneConfig {
    /// Shortest interval between two replacements (default 30 s).
    pub prune_interval: Duration,
    /// Fraction of the alternative's p95 by which a path must be worse (default 0.15).
    pub margin: f64,
    /// Number of consecutive samples in which a path must be worse, and of answers that the alternative must have
    /// (default 10).
    pub samples: u32,
}

impl Default for PruneConfig {
    fn default() -> Self {
        Self { prune_interval: Duration::from_secs(30), margin: 0.15, samples: 10 }
    }
}

/// Path that is not in use but has been probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// The path's id.
    pub path: PathId,
    /// 95th percentile of its probes.
    pub p95: Duration,
    /// Number of its probes that were answered, as in [`PathStats::answered`](super::PathStats::answered).
    pub answered: u32,
}

/// Path in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivePath {
    /// The path's id.
    pub path: PathId,
    /// 95th percentile of its round trips.
    pub p95: Duration,
    /// Result of [`PruneRule::on_sample`] for its samples so far.
    pub streak: Streak,
}

/// Number of consecutive samples in which a path in use was worse than one particular alternative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streak {
    against: Option<PathId>,
    samples: u32,
}

/// Replacement of a path in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Path to stop using.
    pub prune: PathId,
    /// Alternative to use instead.
    pub add: PathId,
}

/// Validated [`PruneConfig`].
///
/// A path is compared only with alternatives that are not in use. If it were compared with the best path in use, every
/// slower path would be dropped without a replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PruneRule {
    config: PruneConfig,
}

impl PruneRule {
    /// Validates the settings; the error names the first one out of range.
    pub fn new(config: PruneConfig) -> Result<Self, SettingOutOfRange> {
        check("prune_interval", config.prune_interval.as_secs_f64(), SPANS)?;
        check("margin", config.margin, 0.0..=100.0)?;
        check("samples", config.samples, RUNS)?;
        Ok(Self { config })
    }

    /// Returns a path's streak after one more sample, with which its p95 is `p95`.
    ///
    /// A streak refers to the same alternative as long as the path is worse than it, so that two alternatives that take
    /// turns as the best do not interrupt the streak.
    pub fn on_sample(&self, streak: Streak, p95: Duration, alternatives: &[Alternative]) -> Streak {
        if let Some(alternative) = self.streak_alternative(streak, p95, alternatives) {
            return Streak { against: Some(alternative.path), samples: streak.samples.saturating_add(1) };
        }
        let better = alternatives.iter().filter(|alternative| self.is_better(alternative, p95));
        match better.min_by_key(|alternative| (alternative.p95, alternative.path)) {
            Some(best) => Streak { against: Some(best.path), samples: 1 },
            None => Streak::default(),
        }
    }

    /// Reports whether `prune_interval` has passed since `last`.
    pub fn is_due(&self, last: Instant, now: Instant) -> bool {
        now.since(last) >= self.config.prune_interval
    }

    /// Returns the slowest path in use whose streak is long enough, with the alternative to replace it.
    ///
    /// It returns at most one swap and should be called once per interval; ties go to the lowest id.
    pub fn swap(&self, used: &[ActivePath], alternatives: &[Alternative]) -> Option<Swap> {
        used.iter()
            .filter(|path| path.streak.samples >= self.config.samples)
            .filter_map(|path| Some((path, self.streak_alternative(path.streak, path.p95, alternatives)?)))
            .min_by_key(|(path, _)| (core::cmp::Reverse(path.p95), path.path))
            .map(|(path, alternative)| Swap { prune: path.path, add: alternative.path })
    }

    /// Returns the alternative of a streak if a path with `p95` is still worse than it.
    fn streak_alternative<'a>(
        &self,
        streak: Streak,
        p95: Duration,
        alternatives: &'a [Alternative],
    ) -> Option<&'a Alternative> {
        let against = streak.against?;
        alternatives
            .iter()
            .find(|alternative| alternative.path == against && self.is_better(alternative, p95))
    }

    fn is_better(&self, alternative: &Alternative, p95: Duration) -> bool {
        let is_probed = alternative.answered >= self.config.samples;
        is_probed && p95 > scaled(alternative.p95, 1.0 + self.config.margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: PathId = PathId(40);
    const MIDDLING: PathId = PathId(20);
    const IDLE: PathId = PathId(99);

    #[test]
    fn a_slower_path_stays_while_no_unused_path_is_better() {
        let count_pruned = |compared_with: Alternative| {
            let others = [compared_with];
            let is_pruned = |&ms: &u32| {
                let used = [after(20, PathId(ms), u64::from(ms), &others)];
                PruneRule::default().swap(&used, &others).is_some()
            };
            [10, 20, 40].iter().filter(|ms| is_pruned(ms)).count()
        };
        let best_in_use = alternative(PathId(10), 10);
        assert_eq!(
            count_pruned(best_in_use),
            2,
            "compared with the best path in use, every slower one is pruned"
        );
        assert_eq!(count_pruned(alternative(IDLE, 36)), 0);
    }

    #[test]
    fn a_path_worse_by_the_margin_for_ten_samples_is_replaced() {
        let idle = [alternative(IDLE, 30)];
        let swap = Swap { prune: SLOW, add: IDLE };
        assert_eq!(PruneRule::default().swap(&[after(10, SLOW, 40, &idle)], &idle), Some(swap));
        assert_eq!(PruneRule::default().swap(&[after(9, SLOW, 40, &idle)], &idle), None);
    }

    #[test]
    fn worse_by_exactly_the_margin_is_not_worse() {
        let rule = PruneRule::default();
        for p95_ms in (20..2_000).step_by(20) {
            let idle = [alternative(IDLE, p95_ms)];
            assert_eq!(rule.swap(&[after(10, SLOW, p95_ms * 23 / 20, &idle)], &idle), None);
            assert!(rule.swap(&[after(10, SLOW, p95_ms * 23 / 20 + 1, &idle)], &idle).is_some());
        }
    }

    #[test]
    fn a_good_sample_ends_the_streak() {
        let idle = [alternative(IDLE, 30)];
        let rule = PruneRule::default();
        let mut path = after(9, SLOW, 40, &idle);
        for p95_ms in [31, 40] {
            path.streak = rule.on_sample(path.streak, Duration::from_millis(p95_ms), &idle);
        }
        assert_eq!(rule.swap(&[path], &idle), None);
    }

    #[test]
    fn an_alternative_with_too_few_probes_replaces_nothing() {
        let idle = [Alternative { answered: 9, ..alternative(IDLE, 1) }];
        assert_eq!(PruneRule::default().swap(&[after(20, SLOW, 40, &idle)], &idle), None);
    }

    #[test]
    fn one_alternative_replaces_only_the_slowest_path() {
        let idle = [alternative(IDLE, 10)];
        let used = [after(10, MIDDLING, 20, &idle), after(10, SLOW, 40, &idle)];
        let swap = Swap { prune: SLOW, add: IDLE };
        assert_eq!(PruneRule::default().swap(&used, &idle), Some(swap));
    }

    #[test]
    fn alternatives_that_take_turns_as_the_best_do_not_end_a_streak() {
        let rule = PruneRule::default();
        let streak = (0..10).fold(Streak::default(), |streak, turn| {
            let idle = [alternative(IDLE, 20 + turn % 2), alternative(MIDDLING, 21 - turn % 2)];
            rule.on_sample(streak, Duration::from_millis(40), &idle)
        });
        let used = [ActivePath { path: SLOW, p95: Duration::from_millis(40), streak }];
        let swap = Swap { prune: SLOW, add: IDLE };
        assert_eq!(rule.swap(&used, &[alternative(IDLE, 20), alternative(MIDDLING, 20)]), Some(swap));
    }

    #[test]
    fn a_streak_ends_when_its_alternative_is_taken_into_use() {
        let idle = [alternative(IDLE, 10)];
        let path = after(10, SLOW, 40, &idle);
        assert_eq!(PruneRule::default().swap(&[path], &[alternative(MIDDLING, 10)]), None);
    }

    #[test]
    fn a_swap_is_due_after_the_interval() {
        let rule = PruneRule::default();
        assert!(!rule.is_due(Instant::ORIGIN, Instant::from_millis(29_999)));
        assert!(rule.is_due(Instant::ORIGIN, Instant::from_secs(30)));
    }

    #[test]
    fn an_invalid_setting_is_named_in_the_error() {
        let rejected = |change: fn(&mut PruneConfig)| {
            let mut config = PruneConfig::default();
            change(&mut config);
            PruneRule::new(config).unwrap_err().setting
        };
        assert_eq!(rejected(|c| c.prune_interval = Duration::ZERO), "prune_interval");
        assert_eq!(rejected(|c| c.margin = f64::NAN), "margin");
        assert_eq!(rejected(|c| c.margin = -0.1), "margin");
        assert_eq!(rejected(|c| c.samples = 0), "samples");
        assert_eq!(PruneRule::new(PruneConfig::default()), Ok(PruneRule::default()));
    }

    fn alternative(path: PathId, p95_ms: u64) -> Alternative {
        Alternative { path, p95: Duration::from_millis(p95_ms), answered: 10 }
    }

    fn after(samples: u32, path: PathId, p95_ms: u64, alternatives: &[Alternative]) -> ActivePath {
        let p95 = Duration::from_millis(p95_ms);
        let sampled = |streak, _| PruneRule::default().on_sample(streak, p95, alternatives);
        ActivePath { path, p95, streak: (0..samples).fold(Streak::default(), sampled) }
    }
}
