//! Samples of one path and the state machine they drive.

use super::{Cause, IntervalSample, Loss, PathRule, PathState, QueueTrend, Transition};
use crate::estimate::{Ewma, MinWindow, Outcome, Quantile, RecentSpans};
use crate::time::{Duration, Instant, fractional_millis};

/// Outcome of a probe, or of a request that the path carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It was answered after `rtt`.
    Answered {
        /// Round-trip time.
        rtt: Duration,
    },
    /// It was answered, but how long that took says nothing about the path: most of it was spent in the node.
    Reached,
    /// It was not answered in time.
    Lost,
    /// It failed hard: connection refused or reset, network unreachable.
    Failed,
}

impl Probe {
    /// Returns `Good` if there was an answer.
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Answered { .. } | Self::Reached => Outcome::Good,
            Self::Lost | Self::Failed => Outcome::Bad,
        }
    }
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
/// Median and p95 are computed from the last `rtt_samples` samples rather than from the last minute: the rules count
/// samples, and on a busy path five samples would not change a minute's p95. Until that many samples have arrived, p95
/// is the longest round trip or close to it.
///
/// The last usable path is at worst degraded; if it keeps failing, the next failure after another path has become
/// usable deactivates it.
#[derive(Clone, Debug)]
pub struct PathStats {
    rule: PathRule,
    state: PathState,
    rtt: Ewma,
    /// Fraction of lost packets; each packet counts, so a sample with many of them outweighs those before it.
    loss: Ewma,
    recent: RecentSpans,
    /// Medians of `recent`. They outlive an outage: a path is compared with itself.
    medians: MinWindow,
    answered: u32,
    /// One bit per probe since probing began, the newest in the lowest bit; 1 is an answer.
    answers: u32,
    /// Number of consecutive samples that favour the next transition.
    run: u32,
    /// Losses since the last answer that do not yet make up a failure.
    losses: u32,
    /// Hard failures since the last answer.
    failures: u32,
    /// Set if a hard failure occurred since the last sample, whose acknowledgements may be older than the failure.
    failed_since_sample: bool,
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
            medians: MinWindow::new(rule.config.baseline_window),
            answered: 0,
            answers: 0,
            run: 0,
            losses: 0,
            failures: 0,
            failed_since_sample: false,
            outages: 0,
            retry_at: Instant::ORIGIN,
        }
    }

    /// Starts probing an inactive path whose backoff has elapsed; of its previous samples only the baseline is kept.
    pub fn on_time(&mut self, now: Instant) -> Option<Transition> {
        if self.retry_at()? > now {
            return None;
        }
        Some(self.start_probing(Cause::BackoffElapsed))
    }

    /// Starts probing an inactive path at once, because a new connection to the peer was established.
    pub fn on_connection(&mut self) -> Option<Transition> {
        self.retry_at()?;
        Some(self.start_probing(Cause::Connected))
    }

    fn start_probing(&mut self, cause: Cause) -> Transition {
        *self = Self { outages: self.outages, medians: self.medians.clone(), ..Self::new(self.rule) };
        // A path counts as lossless until something is lost; otherwise a first loss would count as total loss.
        self.loss.record_outcome(Outcome::Good);
        self.enter(PathState::Probing, cause)
    }

    /// Records the outcome of a probe.
    ///
    /// While the path is probing, enough answers activate it. In any state but INACTIVE, repeated hard failures
    /// deactivate it, and an answer resets their count. Apart from that, the probes of a usable path count only through
    /// an [`IntervalCollector`](super::IntervalCollector) and [`on_interval`](Self::on_interval).
    pub fn on_probe(&mut self, now: Instant, probe: Probe, role: Role) -> Option<Transition> {
        if self.state == PathState::Inactive {
            return None;
        }
        if self.state == PathState::Probing {
            self.record_answer(now, probe);
        }
        match probe {
            Probe::Answered { .. } | Probe::Reached => self.reset_failures(),
            Probe::Lost if self.state == PathState::Probing => self.count_loss(),
            Probe::Lost => {}
            Probe::Failed => {
                self.failures = self.failures.saturating_add(1);
                self.failed_since_sample = true;
            }
        }
        if let Some(deactivation) = self.deactivate_if_failed(now, role) {
            return Some(deactivation);
        }
        let is_activated = self.state == PathState::Probing && self.has_enough_answers();
        is_activated.then(|| self.enter(PathState::Active, Cause::ProbesAnswered))
    }

    /// Records the sample of an interval; ignored unless the path is usable.
    ///
    /// `best_rtt` is the smoothed round trip of the set's best usable path, which may be this one. In RECOVERY a single
    /// unhealthy sample leads back to DEGRADED.
    pub fn on_interval(
        &mut self,
        now: Instant,
        sample: IntervalSample,
        best_rtt: Option<Duration>,
        role: Role,
    ) -> Option<Transition> {
        if !self.state.is_usable() {
            return None;
        }
        self.record_sample(now, sample);
        if let Some(deactivation) = self.deactivate_if_failed(now, role) {
            return Some(deactivation);
        }
        let config = &self.rule.config;
        let (to, cause, run_needed) = match (self.state, self.condition(now, best_rtt)) {
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

    /// Records that packets are in flight but none was acknowledged for too long; ignored unless the path is usable.
    ///
    /// Degrades the path at once, even if acknowledgements come later. Each call counts as a lost probe, so a caller
    /// that reports silence repeatedly (once per two probe timeouts, say) has the path deactivated.
    pub fn on_silence(&mut self, now: Instant, role: Role) -> Option<Transition> {
        if !self.state.is_usable() {
            return None;
        }
        self.count_loss();
        self.run = 0;
        if let Some(deactivation) = self.deactivate_if_failed(now, role) {
            return Some(deactivation);
        }
        (self.state != PathState::Degraded).then(|| self.enter(PathState::Degraded, Cause::Silent))
    }

    /// Records a probe of a probing path.
    fn record_answer(&mut self, now: Instant, probe: Probe) {
        let outcome = probe.outcome();
        self.loss.record_outcome(outcome);
        self.answers = self.answers << 1 | u32::from(outcome == Outcome::Good);
        if let Probe::Answered { rtt } = probe {
            self.record_rtt(now, rtt);
        }
    }

    fn record_sample(&mut self, now: Instant, sample: IntervalSample) {
        if let Some(rtt) = sample.rtt {
            self.record_rtt(now, rtt);
        }
        if sample.queue == QueueTrend::Steady {
            self.loss.record_ratio(sample.lost, sample.acked.saturating_add(sample.lost));
        }
        let has_failed = core::mem::take(&mut self.failed_since_sample);
        if sample.acked == 0 && sample.lost > 0 {
            self.count_loss();
        } else if sample.acked > 0 && !has_failed {
            self.reset_failures();
        }
    }

    fn record_rtt(&mut self, now: Instant, rtt: Duration) {
        self.answered = self.answered.saturating_add(1);
        self.rtt.record_millis(rtt);
        self.recent.record(rtt);
        if let Some(median) = self.recent.quantile(Quantile::P50) {
            self.medians.record(now, median);
        }
    }

    fn count_loss(&mut self) {
        self.losses += 1;
        if self.losses == self.rule.config.losses_per_failure {
            self.losses = 0;
            self.failures = self.failures.saturating_add(1);
        }
    }

    fn reset_failures(&mut self) {
        self.losses = 0;
        self.failures = 0;
    }

    fn deactivate_if_failed(&mut self, now: Instant, role: Role) -> Option<Transition> {
        let is_dispensable = role == Role::OneOfMany || !self.state.is_usable();
        if self.failures < self.rule.config.failures_max || !is_dispensable {
            return None;
        }
        self.outages = self.outages.saturating_add(1);
        self.retry_at = now + self.rule.backoff(self.outages);
        Some(self.enter(PathState::Inactive, Cause::RepeatedFailures))
    }

    fn has_enough_answers(&self) -> bool {
        let config = &self.rule.config;
        let last_probes = self.answers << (u32::BITS - config.activate_probes);
        last_probes.count_ones() >= config.activate_answers
    }

    fn condition(&self, now: Instant, best_rtt: Option<Duration>) -> Condition {
        let loss = self.loss();
        if let Some(cause) = self.slowness(now, best_rtt) {
            Condition::Unhealthy(cause)
        } else if loss.as_f64() > self.rule.config.degrade_loss {
            Condition::Unhealthy(Cause::Lossy { loss })
        } else if loss.as_f64() < self.rule.config.recover_loss {
            Condition::Healthy
        } else {
            Condition::Marginal
        }
    }

    /// Returns the reason why the path is slow, if it is.
    fn slowness(&self, now: Instant, best_rtt: Option<Duration>) -> Option<Cause> {
        let rtt = self.rtt()?;
        let ceiling = self.rule.ceiling(best_rtt.unwrap_or(rtt).min(rtt));
        if rtt > ceiling {
            return Some(Cause::AboveCeiling { rtt, ceiling });
        }
        let p95 = self.p95()?;
        let baseline = self.baseline(now)?;
        (p95 > self.rule.p95_max(baseline)).then_some(Cause::Slow { p95, baseline })
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

    /// Returns the smoothed round trip; `None` before the first answer.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt.mean().map(fractional_millis)
    }

    /// Returns the smoothed deviation of the round trip; `None` before the first answer.
    pub fn rtt_deviation(&self) -> Option<Duration> {
        self.rtt.deviation().map(fractional_millis)
    }

    /// Returns the p95 of the last samples' round trips; `None` before the first answer.
    pub fn p95(&self) -> Option<Duration> {
        self.recent.quantile(Quantile::P95)
    }

    /// Returns the lowest median round trip of the last `baseline_window`; `None` without one.
    pub fn baseline(&self, now: Instant) -> Option<Duration> {
        self.medians.min(now)
    }

    /// Returns the number of answered probes and of samples with a round trip since probing began.
    pub const fn answered(&self) -> u32 {
        self.answered
    }

    /// Returns the recent fraction of lost packets, apart from losses while the queue grew.
    pub fn loss(&self) -> Loss {
        // Rounding may move an average of zeros and ones slightly outside 0..=1.
        self.loss.mean().map_or(Loss::NONE, |loss| Loss(loss.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests;
