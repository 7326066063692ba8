//! Samples of one path and the state machine they drive.

use super::{Cause, Loss, PathRule, PathState, Transition};
use crate::estimate::{Ewma, Outcome, Quantile, RecentSpans};
use crate::time::{Duration, Instant, scaled};

/// Outcome of a probe, or of a request that the path carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It was answered after `rtt`.
    Answered {
        /// Round-trip time.
        rtt: Duration,
    },
    /// It was not answered in time.
    Lost,
    /// It failed hard: connection refused or reset, network unreachable.
    Failed,
}

/// Role of a path within its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// No other path of the set is usable.
    Last,
    /// Another path of the set is usable.
    OneOfMany,
}

/// Recent samples of a path and its state, in less than a kilobyte.
///
/// p95 is computed from the last `rtt_samples` round trips rather than from the last minute: the rules count samples,
/// and on a busy path five samples would not change a minute's p95. Until that many samples have arrived, p95 is the
/// longest round trip or close to it.
#[derive(Clone, Debug)]
pub struct PathStats {
    rule: PathRule,
    state: PathState,
    rtt: Ewma,
    loss: Ewma,
    recent: RecentSpans,
    answered: u32,
    /// One bit per probe since probing began, the newest in the lowest bit; 1 is an answer.
    answers: u32,
    /// Number of consecutive samples that favour the next transition.
    run: u32,
    /// Losses since the last answer that do not yet make up a failure.
    losses: u32,
    /// Hard failures since the last answer.
    failures: u32,
    /// Number of times this path was deactivated since it was last active.
    outages: u32,
    retry_at: Instant,
}

/// Condition of a path compared with its limits.
enum Condition {
    Healthy,
    /// Between the limits: not good enough to recover, not bad enough to be degraded.
    Marginal,
    Unhealthy(Cause),
}

impl PathStats {
    /// Creates an inactive path that is due for probing at once.
    pub fn new(rule: PathRule) -> Self {
        Self {
            rule,
            state: PathState::Inactive,
            rtt: Ewma::new(rule.config.rtt_gains),
            loss: Ewma::new(rule.config.loss_gains),
            recent: RecentSpans::new(rule.config.rtt_samples),
            answered: 0,
            answers: 0,
            run: 0,
            losses: 0,
            failures: 0,
            outages: 0,
            retry_at: Instant::ORIGIN,
        }
    }

    /// Starts probing an inactive path whose backoff has elapsed; its previous samples are dropped.
    pub fn on_time(&mut self, now: Instant) -> Option<Transition> {
        if self.retry_at()? > now {
            return None;
        }
        *self = Self { outages: self.outages, ..Self::new(self.rule) };
        // A path counts as lossless until something is lost; otherwise a first loss would count as total loss.
        self.loss.record_outcome(Outcome::Good);
        Some(self.enter(PathState::Probing, Cause::BackoffElapsed))
    }

    /// Records the outcome of a probe or a request; causes at most one change of state.
    ///
    /// `slo` is [`PathRule::slo`] of the set's best p95. While the path is inactive, outcomes are ignored. In RECOVERY
    /// a single unhealthy sample leads back to DEGRADED. The last usable path is at worst degraded; if it keeps
    /// failing, the next failure or loss after another path has become usable deactivates it.
    pub fn on_probe(&mut self, now: Instant, probe: Probe, slo: Duration, role: Role) -> Option<Transition> {
        if self.state == PathState::Inactive {
            return None;
        }
        self.sample(probe);
        if self.failures >= self.rule.config.failures_max && self.is_dispensable(role) {
            return Some(self.deactivate(now));
        }
        let config = &self.rule.config;
        let (to, cause, run_needed) = match (self.state, self.condition(slo)) {
            (PathState::Probing, _) if self.has_enough_answers() => {
                (PathState::Active, Cause::ProbesAnswered, 1)
            }
            (PathState::Active, Condition::Unhealthy(cause)) => {
                (PathState::Degraded, cause, config.degrade_samples)
            }
            (PathState::Degraded, Condition::Healthy) => {
                (PathState::Recovery, Cause::Improved, config.recover_samples)
            }
            (PathState::Recovery, Condition::Healthy) => {
                (PathState::Active, Cause::StayedHealthy, config.settle_samples)
            }
            (PathState::Recovery, Condition::Unhealthy(cause)) => (PathState::Degraded, cause, 1),
            _ => {
                self.run = 0;
                return None;
            }
        };
        self.run += 1;
        if self.run < run_needed {
            return None;
        }
        Some(self.enter(to, cause))
    }

    fn sample(&mut self, probe: Probe) {
        self.answers <<= 1;
        match probe {
            Probe::Answered { rtt } => {
                self.answers |= 1;
                self.answered = self.answered.saturating_add(1);
                self.losses = 0;
                self.failures = 0;
                self.rtt.record_millis(rtt);
                self.recent.record(rtt);
                self.loss.record_outcome(Outcome::Good);
            }
            Probe::Lost => {
                self.losses += 1;
                if self.losses == self.rule.config.losses_per_failure {
                    self.losses = 0;
                    self.failures = self.failures.saturating_add(1);
                }
                self.loss.record_outcome(Outcome::Bad);
            }
            Probe::Failed => {
                self.failures = self.failures.saturating_add(1);
                self.loss.record_outcome(Outcome::Bad);
            }
        }
    }

    fn is_dispensable(&self, role: Role) -> bool {
        match role {
            Role::OneOfMany => true,
            Role::Last => !self.state.is_usable(),
        }
    }

    fn deactivate(&mut self, now: Instant) -> Transition {
        self.outages = self.outages.saturating_add(1);
        self.retry_at = now + self.rule.backoff(self.outages);
        self.enter(PathState::Inactive, Cause::RepeatedFailures)
    }

    fn has_enough_answers(&self) -> bool {
        let config = &self.rule.config;
        let last_probes = self.answers << (u32::BITS - config.activate_probes);
        last_probes.count_ones() >= config.activate_answers
    }

    fn condition(&self, slo: Duration) -> Condition {
        let config = &self.rule.config;
        let loss = self.loss();
        let p95 = self.p95();
        if let Some(p95) = p95.filter(|&p95| p95 > slo) {
            return Condition::Unhealthy(Cause::Slow { p95, slo });
        }
        if loss.as_f64() > config.degrade_loss {
            return Condition::Unhealthy(Cause::Lossy { loss });
        }
        let is_fast = p95.is_some_and(|p95| p95 < scaled(slo, config.recover_slo_part));
        if is_fast && loss.as_f64() < config.recover_loss { Condition::Healthy } else { Condition::Marginal }
    }

    fn enter(&mut self, to: PathState, cause: Cause) -> Transition {
        let from = core::mem::replace(&mut self.state, to);
        self.run = 0;
        if to == PathState::Active {
            self.outages = 0;
        }
        Transition { from, to, cause }
    }

    /// Returns the path's state.
    pub const fn state(&self) -> PathState {
        self.state
    }

    /// Returns the time at which an inactive path is due for probing; `None` in every other state.
    pub fn retry_at(&self) -> Option<Instant> {
        (self.state == PathState::Inactive).then_some(self.retry_at)
    }

    /// Returns the mean round trip in fractional milliseconds; `None` before the first answer.
    pub fn rtt_ms(&self) -> Option<f64> {
        self.rtt.mean()
    }

    /// Returns the mean deviation of the round trip, in fractional milliseconds.
    pub fn rtt_deviation_ms(&self) -> Option<f64> {
        self.rtt.deviation()
    }

    /// Returns the p95 of the last round trips; `None` before the first answer.
    pub fn p95(&self) -> Option<Duration> {
        self.recent.quantile(Quantile::P95)
    }

    /// Returns the number of answers since probing began.
    pub const fn answered(&self) -> u32 {
        self.answered
    }

    /// Returns the recent fraction of probes that were lost or failed.
    pub fn loss(&self) -> Loss {
        // Rounding may move an average of zeros and ones slightly outside 0..=1.
        self.loss.mean().map_or(Loss::NONE, |loss| Loss(loss.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Gains;
    use crate::path::PathConfig;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    const SLO: Duration = Duration::from_millis(100);
    const FAST: Probe = answered(10);
    const SLOW: Probe = answered(101);

    #[test]
    fn a_new_path_is_probed_at_once_and_active_after_three_answers() {
        let mut path = PathStats::new(PathRule::default());
        assert_eq!(path.retry_at(), Some(Instant::ORIGIN));
        let probing = path.on_time(Instant::ORIGIN).unwrap();
        assert_eq!(probing.to_string(), "INACTIVE to PROBING: backoff has elapsed");
        assert_eq!(states(&mut path, &[FAST; 2]), []);
        assert_eq!(states(&mut path, &[FAST]), [PathState::Active]);
    }

    #[test]
    fn three_answers_to_the_last_four_probes_activate_a_path() {
        assert_eq!(states(&mut probing(), &[FAST, Probe::Lost, FAST, FAST]), [PathState::Active]);
        assert_eq!(states(&mut probing(), &[FAST, Probe::Lost, FAST, Probe::Lost, FAST]), []);
        let alternating = [Probe::Lost, FAST, FAST, Probe::Lost, FAST, FAST];
        assert_eq!(states(&mut probing(), &alternating), [PathState::Active]);
    }

    #[test]
    fn one_early_loss_does_not_count_as_total_loss() {
        let mut path = probing();
        assert_eq!(states(&mut path, &[Probe::Lost]), []);
        assert_eq!(states(&mut path, &[FAST; 20]), [PathState::Active]);
    }

    #[test]
    fn a_slow_p95_in_five_consecutive_samples_degrades_a_path() {
        let mut path = active();
        assert_eq!(states(&mut path, &[SLOW]), [], "one of twenty is not the p95");
        assert_eq!(states(&mut path, &[SLOW; 4]), []);
        let degraded = record(&mut path, SLOW).unwrap();
        assert_eq!(degraded.to_string(), "ACTIVE to DEGRADED: p95 of 101ms is above 100ms");
    }

    #[test]
    fn a_round_trip_of_exactly_the_slo_is_not_slow() {
        assert_eq!(states(&mut active(), &[answered(100); 50]), []);
    }

    #[test]
    fn a_path_reports_the_mean_and_deviation_of_its_round_trips() {
        let mut path = probing();
        assert_eq!((path.rtt_ms(), path.rtt_deviation_ms()), (None, None));
        states(&mut path, &[answered(10), answered(18)]);
        assert_eq!((path.rtt_ms(), path.rtt_deviation_ms()), (Some(11.0), Some(5.75)));
    }

    #[test]
    fn a_loss_of_exactly_the_limit_neither_degrades_a_path_nor_lets_it_recover() {
        // Each probe moves the loss halfway: one lost makes it 0.5, one answered after that 0.25.
        let gains = Gains::new(0.5, 0.5).unwrap();
        let limits =
            PathConfig { loss_gains: gains, degrade_samples: 1, recover_samples: 1, ..PathConfig::default() };
        let path = |degrade_loss, recover_loss| {
            let rule = PathRule::new(PathConfig { degrade_loss, recover_loss, ..limits }).unwrap();
            let mut path = PathStats::new(rule);
            path.on_time(Instant::ORIGIN);
            assert_eq!(states(&mut path, &[FAST; 3]), [PathState::Active]);
            path
        };
        assert_eq!(states(&mut path(0.5, 0.1), &[Probe::Lost]), []);
        assert_eq!(states(&mut path(0.499, 0.1), &[Probe::Lost]), [PathState::Degraded]);
        assert_eq!(states(&mut path(0.3, 0.25), &[Probe::Lost, FAST]), [PathState::Degraded]);
        let recovered = [PathState::Degraded, PathState::Recovery];
        assert_eq!(states(&mut path(0.3, 0.251), &[Probe::Lost, FAST]), recovered);
    }

    #[test]
    fn one_outlier_in_twenty_changes_nothing() {
        let mut path = active();
        for _ in 0..10 {
            assert_eq!(states(&mut path, &[FAST; 19]), []);
            assert_eq!(states(&mut path, &[SLOW]), []);
        }
    }

    #[test]
    fn one_loss_is_tolerated_and_two_at_once_are_not() {
        let mut path = active();
        for _ in 0..3 {
            assert_eq!(states(&mut path, &[Probe::Lost]), []);
            assert_eq!(states(&mut path, &[FAST; 20]), [], "three unhealthy samples, then healthy ones");
        }
        let mut path = active();
        assert_eq!(states(&mut path, &[Probe::Lost, Probe::Lost, FAST, FAST]), []);
        let degraded = record(&mut path, FAST).unwrap();
        assert_eq!(degraded.to_string(), "ACTIVE to DEGRADED: loss of 13.9 % is too high");
    }

    #[test]
    fn a_degraded_path_recovers_after_three_good_samples_and_is_active_after_two_more() {
        let mut path = degraded();
        assert_eq!(states(&mut path, &[FAST; 18]), [], "p95 is slow until 19 of the last twenty are fast");
        assert_eq!(states(&mut path, &[FAST; 2]), []);
        assert_eq!(states(&mut path, &[FAST]), [PathState::Recovery]);
        assert_eq!(states(&mut path, &[FAST]), []);
        assert_eq!(states(&mut path, &[FAST]), [PathState::Active]);
    }

    #[test]
    fn between_the_limits_a_degraded_path_stays_degraded() {
        assert_eq!(states(&mut degraded(), &[answered(95); 50]), []);
        assert_eq!(states(&mut degraded(), &[answered(90); 50]), []);
        assert_ne!(states(&mut degraded(), &[answered(89); 50]), []);
    }

    #[test]
    fn one_unhealthy_sample_ends_a_recovery() {
        assert_eq!(states(&mut recovering(), &[Probe::Lost]), [PathState::Degraded]);
        assert_eq!(states(&mut recovering(), &[FAST, Probe::Lost]), [PathState::Degraded]);
    }

    #[test]
    fn two_hard_failures_deactivate_a_path_in_any_state() {
        for mut path in [probing(), active(), degraded(), recovering()] {
            record(&mut path, Probe::Failed);
            assert_ne!(path.state(), PathState::Inactive);
            let deactivation = record(&mut path, Probe::Failed).unwrap();
            assert_eq!((deactivation.to, deactivation.cause), (PathState::Inactive, Cause::RepeatedFailures));
        }
    }

    #[test]
    fn an_answer_resets_the_count_of_hard_failures() {
        let mut path = active();
        let probes = [Probe::Failed, FAST, Probe::Failed, FAST, Probe::Failed];
        assert!(!states(&mut path, &probes).contains(&PathState::Inactive));
    }

    #[test]
    fn a_path_that_only_loses_packets_is_deactivated() {
        let mut path = active();
        states(&mut path, &[Probe::Lost, Probe::Lost, FAST]);
        assert!(!states(&mut path, &[Probe::Lost; 5]).contains(&PathState::Inactive));
        assert_eq!(states(&mut path, &[Probe::Lost]), [PathState::Inactive]);
    }

    #[test]
    fn the_last_usable_path_is_never_deactivated() {
        let mut path = active();
        let mut fail = |role| path.on_probe(Instant::ORIGIN, Probe::Failed, SLO, role);
        let to: Vec<PathState> = (0..50).filter_map(|_| fail(Role::Last)).map(|t| t.to).collect();
        assert_eq!(to, [PathState::Degraded]);
        assert_eq!(fail(Role::OneOfMany).map(|t| t.to), Some(PathState::Inactive));
    }

    #[test]
    fn a_probing_path_is_deactivated_even_if_no_other_is_usable() {
        let mut path = probing();
        let mut fail = || path.on_probe(Instant::ORIGIN, Probe::Failed, SLO, Role::Last);
        assert_eq!(fail(), None);
        assert_eq!(fail().map(|t| t.to), Some(PathState::Inactive));
    }

    #[test]
    fn the_backoff_grows_with_each_consecutive_outage() {
        let mut path = probing();
        let mut now = Instant::ORIGIN;
        let mut backoffs = Vec::new();
        for _ in 0..7 {
            for _ in 0..2 {
                path.on_probe(now, Probe::Failed, SLO, Role::OneOfMany);
            }
            let retry_at = path.retry_at().unwrap();
            assert_eq!(path.on_time(Instant::from_nanos(retry_at.as_nanos() - 1)), None);
            assert!(path.on_time(retry_at).is_some());
            backoffs.push(retry_at.since(now).as_secs());
            now = retry_at;
        }
        assert_eq!(backoffs, [1, 2, 4, 8, 16, 30, 30]);
        states(&mut path, &[FAST, FAST, FAST, Probe::Failed, Probe::Failed]);
        assert_eq!(path.retry_at(), Some(Instant::from_secs(1)));
    }

    #[test]
    fn a_late_answer_does_not_shorten_a_backoff() {
        let mut path = PathStats::new(PathRule::default());
        assert_eq!(states(&mut path, &[FAST; 10]), []);
        assert_eq!((path.p95(), path.rtt_ms()), (None, None));
    }

    #[test]
    fn a_path_probed_again_starts_without_its_old_samples() {
        let mut path = degraded();
        states(&mut path, &[Probe::Failed, Probe::Failed]);
        path.on_time(Instant::FAR_FUTURE).unwrap();
        assert_eq!((path.p95(), path.loss()), (None, Loss::NONE));
        assert_eq!(states(&mut path, &[FAST; 30]), [PathState::Active]);
        assert_eq!((path.p95(), path.answered()), (Some(Duration::from_millis(10)), 30));
        assert!(path.rtt_deviation_ms().is_some_and(|deviation| deviation < 0.01));
    }

    #[test]
    fn a_path_takes_less_than_a_kilobyte() {
        assert!(size_of::<PathStats>() < 1_000, "{} bytes", size_of::<PathStats>());
    }

    const fn answered(millis: u64) -> Probe {
        Probe::Answered { rtt: Duration::from_millis(millis) }
    }

    fn record(path: &mut PathStats, probe: Probe) -> Option<Transition> {
        path.on_probe(Instant::ORIGIN, probe, SLO, Role::OneOfMany)
    }

    fn states(path: &mut PathStats, probes: &[Probe]) -> Vec<PathState> {
        probes.iter().filter_map(|&probe| record(path, probe)).map(|transition| transition.to).collect()
    }

    fn probing() -> PathStats {
        let mut path = PathStats::new(PathRule::default());
        path.on_time(Instant::ORIGIN);
        path
    }

    fn active() -> PathStats {
        let mut path = probing();
        assert_eq!(states(&mut path, &[FAST; 20]), [PathState::Active]);
        path
    }

    fn degraded() -> PathStats {
        let mut path = active();
        assert_eq!(states(&mut path, &[SLOW; 6]), [PathState::Degraded]);
        path
    }

    fn recovering() -> PathStats {
        let mut path = degraded();
        assert_eq!(states(&mut path, &[FAST; 21]), [PathState::Recovery]);
        path
    }
}
