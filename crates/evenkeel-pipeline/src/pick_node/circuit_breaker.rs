//! The breaker: when a node is left alone, and how it is tried again.
//!
//! Bounds: a broken node takes nothing for `backoff_min..=backoff_max`, then one request at a time until one succeeds;
//! what was sent before it broke decides nothing afterwards.

use evenkeel_policy::estimate::{Outcome, RatioWindow};
use evenkeel_policy::path::PathRule;
use evenkeel_policy::time::Instant;

use crate::accept::RequestId;
use crate::options::BreakerOptions;

/// Whether a node may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It is well.
    Closed,
    /// It is left alone.
    Open {
        /// Until when.
        until: Instant,
    },
    /// It is tried with one request at a time.
    HalfOpen,
}

/// Who says how a node does.
///
/// They are told apart because a node may answer every check and fail every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthSignal {
    Request,
    Check,
}

#[derive(Clone, Debug)]
pub(crate) struct CircuitBreaker {
    options: BreakerOptions,
    backoff: PathRule,
    state: BreakerState,
    /// The request that tries a half-open node out.
    probe: Option<RequestId>,
    /// Failed requests since the last that succeeded.
    failures: u32,
    /// Failed checks since the last that succeeded.
    misses: u32,
    /// By what it opened last.
    opened_by: HealthSignal,
    /// Times it opened since it was last closed.
    outages: u32,
    errors: RatioWindow,
}

impl CircuitBreaker {
    /// Makes a closed breaker; `backoff` says how long it stays open.
    pub(super) fn new(options: BreakerOptions, backoff: PathRule) -> Self {
        Self {
            options,
            backoff,
            state: BreakerState::Closed,
            probe: None,
            failures: 0,
            misses: 0,
            opened_by: HealthSignal::Request,
            outages: 0,
            errors: RatioWindow::default(),
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    pub(crate) fn probe(&self) -> Option<RequestId> {
        self.probe
    }

    /// Tells whether one more request may be sent.
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

    /// Takes in how a request went; the new state, if that changed it.
    pub(crate) fn on_outcome(
        &mut self,
        now: Instant,
        request: RequestId,
        outcome: Outcome,
    ) -> Option<BreakerState> {
        self.errors.record(now, outcome);
        match self.state {
            BreakerState::Closed => self.record(now, HealthSignal::Request, outcome),
            BreakerState::HalfOpen if self.probe == Some(request) => {
                Some(self.conclude(now, HealthSignal::Request, outcome))
            }
            BreakerState::Open { .. } | BreakerState::HalfOpen => None,
        }
    }

    /// Takes in that a request is being answered, which is all a trial needs; the new state, if that changed it.
    pub(crate) fn on_answer(&mut self, now: Instant, request: RequestId) -> Option<BreakerState> {
        let tried = self.state == BreakerState::HalfOpen && self.probe == Some(request);
        tried.then(|| self.conclude(now, HealthSignal::Request, Outcome::Good))
    }

    /// Takes in how an active check went; the new state, if that changed it.
    ///
    /// A node that failed its requests is mended by a request only.
    pub(crate) fn on_check(&mut self, now: Instant, outcome: Outcome) -> Option<BreakerState> {
        match (self.state, outcome) {
            (BreakerState::Closed, _) => self.record(now, HealthSignal::Check, outcome),
            (BreakerState::HalfOpen, Outcome::Good) if self.opened_by == HealthSignal::Request => None,
            (BreakerState::HalfOpen, _) => Some(self.conclude(now, HealthSignal::Check, outcome)),
            (BreakerState::Open { .. }, _) => None,
        }
    }

    /// Notes that a request gave its slot back without saying anything about the node.
    pub(crate) fn on_release(&mut self, request: RequestId) {
        if self.probe == Some(request) {
            self.probe = None;
        }
    }

    /// Starts trying a node whose backoff is over; the new state, if it was.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<BreakerState> {
        let over = matches!(self.state, BreakerState::Open { until } if until <= now);
        // What went wrong before would keep a gate closed on the trial, or break the node again at the first mishap.
        over.then(|| {
            self.errors = RatioWindow::default();
            self.enter(BreakerState::HalfOpen)
        })
    }

    pub(crate) fn timeout(&self) -> Option<Instant> {
        match self.state {
            BreakerState::Open { until } => Some(until),
            BreakerState::Closed | BreakerState::HalfOpen => None,
        }
    }

    /// The part of the last minute's requests that went wrong; 0 until there are enough to say.
    pub(crate) fn error_rate(&self, now: Instant) -> f64 {
        if self.errors.total(now) < u64::from(self.options.samples_min) {
            return 0.0;
        }
        self.errors.ratio(now).unwrap_or(0.0)
    }

    fn record(&mut self, now: Instant, witness: HealthSignal, outcome: Outcome) -> Option<BreakerState> {
        let running = match witness {
            HealthSignal::Request => &mut self.failures,
            HealthSignal::Check => &mut self.misses,
        };
        if outcome == Outcome::Good {
            *running = 0;
            return None;
        }
        *running += 1;
        let broken = self.options.failures_max <= *running
            || (witness == HealthSignal::Request && self.options.error_ratio_max <= self.error_rate(now));
        broken.then(|| self.open(now, witness))
    }

    fn conclude(&mut self, now: Instant, witness: HealthSignal, outcome: Outcome) -> BreakerState {
        if outcome == Outcome::Bad {
            return self.open(now, witness);
        }
        (self.failures, self.misses, self.outages) = (0, 0, 0);
        self.enter(BreakerState::Closed)
    }

    fn open(&mut self, now: Instant, witness: HealthSignal) -> BreakerState {
        self.opened_by = witness;
        self.outages = self.outages.saturating_add(1);
        self.enter(BreakerState::Open { until: now + self.backoff.backoff(self.outages) })
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
    fn five_failures_running_open_it_and_a_success_in_between_does_not() {
        let mut breaker = breaker();
        fail(&mut breaker, 0, 4);
        breaker.on_outcome(at(0), OLD, Outcome::Good);
        fail(&mut breaker, 0, 4);
        assert!(breaker.allows());
        fail(&mut breaker, 0, 1);
        assert_eq!(breaker.state(), BreakerState::Open { until: at(1) });
    }

    #[test]
    fn half_of_many_failures_open_it_though_never_five_running() {
        let mut breaker = breaker();
        for _ in 0..10 {
            breaker.on_outcome(at(0), OLD, Outcome::Good);
            assert!(breaker.allows());
            fail(&mut breaker, 0, 1);
        }
        assert!(!breaker.allows());
    }

    #[test]
    fn it_is_tried_with_one_request_at_a_time_and_only_that_one_counts() {
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
    fn each_failed_trial_doubles_the_backoff_up_to_its_longest() {
        let mut breaker = breaker();
        fail(&mut breaker, 0, 5);
        let mut now = 1;
        for backoff in [2, 4, 8, 16, 30, 30] {
            breaker.on_time(at(now));
            breaker.on_send(PROBE);
            breaker.on_outcome(at(now), PROBE, Outcome::Bad);
            assert_eq!(breaker.state(), BreakerState::Open { until: at(now + backoff) });
            now += backoff;
        }
    }

    /// Its health page is fine, its answers are not.
    #[test]
    fn a_node_that_answers_checks_and_fails_requests_is_broken_and_stays_so() {
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
