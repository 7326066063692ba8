//! Circuit breaker: when a node is taken out of rotation, and how half-open probes bring it back.
//!
//! It trips by outlier detection (a passive health check: consecutive failures or the error rate of real requests) and
//! by failed active health checks.
//!
//! Guarantees: an open breaker lets nothing through for `backoff_min..=backoff_max`; half-open, it lets one probe at a
//! time through until one succeeds. Requests sent before it opened do not count afterwards.

use evenkeel_policy::estimate::{Outcome, RatioWindow};
use evenkeel_policy::id::RequestId;
use evenkeel_policy::outcome::{AttemptFailure, TripReason};
use evenkeel_policy::path::PathRule;
use evenkeel_policy::time::Instant;

use crate::options::BreakerOptions;

/// State of a node's circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// The node is healthy and gets traffic.
    Closed,
    /// The node gets no traffic.
    Open {
        /// End of the backoff, when the breaker becomes half-open.
        until: Instant,
        /// Reason why it opened.
        reason: TripReason,
    },
    /// The node gets one probe at a time.
    HalfOpen,
}

/// Source of a health signal.
///
/// The two are kept apart because a node may pass every health check and fail every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthSignal {
    Request,
    /// A request that could not be sent, because there was no connection.
    Connection,
    Check,
}

#[derive(Clone, Debug)]
pub(crate) struct CircuitBreaker {
    options: BreakerOptions,
    backoff: PathRule,
    state: BreakerState,
    /// The request that probes a half-open node.
    probe: Option<RequestId>,
    /// Failed requests since the last success.
    failures: u32,
    /// Failed health checks since the last success.
    failed_checks: u32,
    opened_by: HealthSignal,
    /// Times it opened since it was last closed.
    outages: u32,
    errors: RatioWindow,
}

impl CircuitBreaker {
    /// Creates a closed breaker; `backoff` determines how long it stays open.
    pub(super) fn new(options: BreakerOptions, backoff: PathRule) -> Self {
        Self {
            options,
            backoff,
            state: BreakerState::Closed,
            probe: None,
            failures: 0,
            failed_checks: 0,
            opened_by: HealthSignal::Request,
            outages: 0,
            errors: RatioWindow::default(),
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// Reports whether the last request failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    pub(crate) fn probe(&self) -> Option<RequestId> {
        self.probe
    }

    /// Reports whether one more request may be sent.
    pub(crate) fn allows(&self) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open { .. } => false,
            BreakerState::HalfOpen => self.probe.is_none(),
        }
    }

    pub(crate) fn on_send(&mut self, request: RequestId) {
        if self.state == BreakerState::HalfOpen {
            self.probe = Some(request);
        }
    }

    /// Records the outcome of a request that the node answered; returns the new state if it changed.
    pub(crate) fn on_outcome(
        &mut self,
        now: Instant,
        request: RequestId,
        outcome: Outcome,
    ) -> Option<BreakerState> {
        self.on_request(now, request, outcome, None)
    }

    /// Records an outcome in the error rate only.
    pub(crate) fn record_error(&mut self, now: Instant) {
        self.errors.record(now, Outcome::Bad);
    }

    /// Opens the breaker for a reason that it does not count itself; returns the new state.
    pub(crate) fn trip(&mut self, now: Instant, reason: TripReason) -> BreakerState {
        self.open(now, HealthSignal::Request, reason)
    }

    /// Records a failed attempt; returns the new state if it changed.
    pub(crate) fn on_failure(
        &mut self,
        now: Instant,
        request: RequestId,
        failure: AttemptFailure,
    ) -> Option<BreakerState> {
        self.on_request(now, request, Outcome::Bad, Some(failure))
    }

    fn on_request(
        &mut self,
        now: Instant,
        request: RequestId,
        outcome: Outcome,
        failure: Option<AttemptFailure>,
    ) -> Option<BreakerState> {
        self.errors.record(now, outcome);
        let signal = match failure {
            Some(AttemptFailure::Unreachable) => HealthSignal::Connection,
            _ => HealthSignal::Request,
        };
        match self.state {
            BreakerState::Closed => self.record(now, signal, outcome, failure),
            BreakerState::HalfOpen if self.probe == Some(request) => {
                Some(self.conclude(now, signal, outcome))
            }
            BreakerState::Open { .. } | BreakerState::HalfOpen => None,
        }
    }

    /// Records the first byte of a response, which is all a probe needs; returns the new state if it changed.
    pub(crate) fn on_response(&mut self, now: Instant, request: RequestId) -> Option<BreakerState> {
        let is_probe = self.state == BreakerState::HalfOpen && self.probe == Some(request);
        is_probe.then(|| self.conclude(now, HealthSignal::Request, Outcome::Good))
    }

    /// Records the result of an active health check; returns the new state if it changed.
    ///
    /// After failed requests, only a successful request closes the breaker. After failed connections or checks, a
    /// successful check ends the backoff at once.
    pub(crate) fn on_check(&mut self, now: Instant, outcome: Outcome) -> Option<BreakerState> {
        match (self.state, outcome) {
            (BreakerState::Closed, _) => self.record(now, HealthSignal::Check, outcome, None),
            (BreakerState::HalfOpen, Outcome::Good) if self.opened_by == HealthSignal::Request => None,
            (BreakerState::HalfOpen, _) => Some(self.conclude(now, HealthSignal::Check, outcome)),
            (BreakerState::Open { .. }, Outcome::Good) if self.opened_by != HealthSignal::Request => {
                Some(self.half_open())
            }
            (BreakerState::Open { .. }, _) => None,
        }
    }

    /// Lets another request be the probe if this one ended without a verdict on the node.
    pub(crate) fn on_release(&mut self, request: RequestId) {
        if self.probe == Some(request) {
            self.probe = None;
        }
    }

    /// Becomes half-open once the backoff has ended; returns the new state if it changed.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<BreakerState> {
        let has_ended = matches!(self.state, BreakerState::Open { until, .. } if until <= now);
        has_ended.then(|| self.half_open())
    }

    fn half_open(&mut self) -> BreakerState {
        // Earlier errors would keep a gate closed on the probe, or trip the breaker again at the first failure.
        self.errors = RatioWindow::default();
        self.enter(BreakerState::HalfOpen)
    }

    pub(crate) fn timeout(&self) -> Option<Instant> {
        match self.state {
            BreakerState::Open { until, .. } => Some(until),
            BreakerState::Closed | BreakerState::HalfOpen => None,
        }
    }

    /// Returns the fraction of the last minute's requests that failed; 0 while there are fewer than `samples_min`.
    pub(crate) fn error_rate(&self, now: Instant) -> f64 {
        if self.errors.total(now) < u64::from(self.options.samples_min) {
            return 0.0;
        }
        self.errors.ratio(now).unwrap_or(0.0)
    }

    fn record(
        &mut self,
        now: Instant,
        signal: HealthSignal,
        outcome: Outcome,
        last: Option<AttemptFailure>,
    ) -> Option<BreakerState> {
        let counter = match signal {
            HealthSignal::Request | HealthSignal::Connection => &mut self.failures,
            HealthSignal::Check => &mut self.failed_checks,
        };
        if outcome == Outcome::Good {
            *counter = 0;
            return None;
        }
        *counter += 1;
        let count = *counter;
        let error_rate = self.error_rate(now);
        let reason = match signal {
            HealthSignal::Check if count >= self.options.failures_max => TripReason::HealthChecks { count },
            HealthSignal::Check => return None,
            HealthSignal::Request | HealthSignal::Connection if count >= self.options.failures_max => {
                TripReason::Failures { count, last }
            }
            HealthSignal::Request | HealthSignal::Connection
                if error_rate >= self.options.error_ratio_max =>
            {
                TripReason::ErrorRate { percent: (100.0 * error_rate) as u32 }
            }
            HealthSignal::Request | HealthSignal::Connection => return None,
        };
        Some(self.open(now, signal, reason))
    }

    fn conclude(&mut self, now: Instant, signal: HealthSignal, outcome: Outcome) -> BreakerState {
        if outcome == Outcome::Bad {
            return self.open(now, signal, TripReason::ProbeFailed);
        }
        self.failures = 0;
        self.failed_checks = 0;
        self.outages = 0;
        self.enter(BreakerState::Closed)
    }

    fn open(&mut self, now: Instant, signal: HealthSignal, reason: TripReason) -> BreakerState {
        self.opened_by = signal;
        self.outages = self.outages.saturating_add(1);
        self.enter(BreakerState::Open { until: now + self.backoff.backoff(self.outages), reason })
    }

    fn enter(&mut self, state: BreakerState) -> BreakerState {
        self.probe = None;
        self.state = state;
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: RequestId = RequestId(1);
    const PROBE: RequestId = RequestId(2);

    #[test]
    fn five_consecutive_failures_open_it_and_a_success_in_between_resets_the_count() {
        let mut breaker = breaker();
        fail(&mut breaker, 0, 4);
        breaker.on_outcome(at(0), OLD, Outcome::Good);
        fail(&mut breaker, 0, 4);
        assert!(breaker.allows());
        fail(&mut breaker, 0, 1);
        let reason = TripReason::Failures { count: 5, last: None };
        assert_eq!(breaker.state(), BreakerState::Open { until: at(1), reason });
    }

    #[test]
    fn an_error_rate_of_one_half_opens_it_without_five_consecutive_failures() {
        let mut breaker = breaker();
        for _ in 0..10 {
            breaker.on_outcome(at(0), OLD, Outcome::Good);
            assert!(breaker.allows());
            fail(&mut breaker, 0, 1);
        }
        let reason = TripReason::ErrorRate { percent: 50 };
        assert_eq!(breaker.state(), BreakerState::Open { until: at(1), reason });
    }

    #[test]
    fn half_open_it_lets_one_probe_through_at_a_time_and_only_the_probe_counts() {
        let mut breaker = breaker();
        fail(&mut breaker, 0, 5);
        assert_eq!(breaker.on_time(at(1)), Some(BreakerState::HalfOpen));
        breaker.on_send(PROBE);
        assert!(!breaker.allows());
        assert_eq!(breaker.on_outcome(at(1), OLD, Outcome::Good), None);
        breaker.on_release(PROBE);
        assert!(breaker.allows(), "a probe that was cancelled is followed by another");
        breaker.on_send(PROBE);
        assert_eq!(breaker.on_outcome(at(1), PROBE, Outcome::Good), Some(BreakerState::Closed));
    }

    #[test]
    fn each_failed_probe_doubles_the_backoff_up_to_its_maximum() {
        let mut breaker = breaker();
        fail(&mut breaker, 0, 5);
        let mut now = 1;
        for backoff in [2, 4, 8, 16, 30, 30] {
            breaker.on_time(at(now));
            breaker.on_send(PROBE);
            breaker.on_outcome(at(now), PROBE, Outcome::Bad);
            let reason = TripReason::ProbeFailed;
            assert_eq!(breaker.state(), BreakerState::Open { until: at(now + backoff), reason });
            now += backoff;
        }
    }

    #[test]
    fn passed_health_checks_neither_prevent_nor_end_an_outage_of_failed_requests() {
        let mut breaker = breaker();
        for _ in 0..5 {
            breaker.on_check(at(0), Outcome::Good);
            fail(&mut breaker, 0, 1);
        }
        assert!(!breaker.allows());
        breaker.on_time(at(1));
        assert_eq!(breaker.on_check(at(1), Outcome::Good), None);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    fn breaker() -> CircuitBreaker {
        CircuitBreaker::new(BreakerOptions::default(), PathRule::default())
    }

    fn fail(breaker: &mut CircuitBreaker, second: u64, times: u32) {
        (0..times).for_each(|_| {
            breaker.on_outcome(at(second), OLD, Outcome::Bad);
        });
    }

    fn at(second: u64) -> Instant {
        Instant::from_secs(second)
    }
}
