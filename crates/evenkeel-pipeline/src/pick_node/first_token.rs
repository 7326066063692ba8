//! First-token estimates of a node, per model and mode of the response.
//!
//! Streams and whole responses are estimated apart, and so are requests that find a warm prompt cache and those that do
//! not. Guarantees: an estimate that is [`ESTIMATE_AGE_MAX`] old is replaced by the next sample; at most one request at a
//! time is sent only to measure. Limits: one entry per model of the node and mode.

pub(crate) use evenkeel_policy::concurrency_limit::PromptCache;
use evenkeel_policy::estimate::{Ewma, Gains};
use evenkeel_policy::id::RequestId;
use evenkeel_policy::score::{Comparison, LatencyEstimate, Measurement};
use evenkeel_policy::time::{Duration, Instant};

use crate::accept::Arrival;

/// Age from which an estimate is measured again.
pub(crate) const ESTIMATE_AGE_MAX: Duration = Duration::from_secs(30);

/// Age from which an estimate is measured again even by a request that then misses its warm prompt cache.
pub(crate) const ESTIMATE_AGE_LIMIT: Duration = Duration::from_secs(45);

/// Requests per slower node that pass before one of them measures it, so that rare requests go to the best node, too.
const PASSES_MIN: u32 = 12;

/// Requests per node that pass before one of them measures a node without an estimate, in case that all of them belong
/// to conversations on other nodes.
const FIRST_PASSES_MIN: u32 = 8;

/// Mode of a response: its first byte comes with the first token, or after all of it was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseForm {
    Stream,
    Whole,
}

impl ResponseForm {
    pub(crate) fn of(arrival: &Arrival) -> Self {
        if arrival.is_streamed() { Self::Stream } else { Self::Whole }
    }
}

/// Estimate by which a node is compared with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EstimateBasis {
    Warm,
    Cold,
    /// The slower one, for a node that was refused although it is warm.
    Slower,
}

/// Estimates of one model on one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelEstimates {
    stream: FirstToken,
    whole: FirstToken,
}

impl ModelEstimates {
    pub(super) fn new() -> Self {
        Self { stream: FirstToken::new(), whole: FirstToken::new() }
    }

    pub(super) fn get(&self, mode: ResponseForm) -> &FirstToken {
        match mode {
            ResponseForm::Stream => &self.stream,
            ResponseForm::Whole => &self.whole,
        }
    }

    pub(super) fn get_mut(&mut self, mode: ResponseForm) -> &mut FirstToken {
        match mode {
            ResponseForm::Stream => &mut self.stream,
            ResponseForm::Whole => &mut self.whole,
        }
    }
}

/// Estimates of one model and mode on one node, and the node's place among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstToken {
    warm: Estimate,
    cold: Estimate,
    comparable: bool,
    credit: i64,
    /// Requests sent to other nodes since this one was last measured or chosen for measuring.
    passes: u32,
    /// Request in flight that measures the node.
    measured_by: Option<RequestId>,
}

impl FirstToken {
    fn new() -> Self {
        let Comparison { comparable, credit, .. } = Comparison::default();
        let unmeasured = Estimate { ewma: Ewma::new(Gains::RTT), at: None };
        Self { warm: unmeasured, cold: unmeasured, comparable, credit, passes: 0, measured_by: None }
    }

    /// Returns the comparison for a request, with which `others` nodes compete; without load and capacity.
    pub(super) fn comparison(
        &self,
        now: Instant,
        basis: EstimateBasis,
        age_max: Duration,
        others: u32,
    ) -> Comparison {
        let estimate = match basis {
            EstimateBasis::Warm => self.estimate(PromptCache::Warm),
            EstimateBasis::Cold => self.estimate(PromptCache::Cold),
            EstimateBasis::Slower if self.cold.ewma.mean() < self.warm.ewma.mean() => &self.warm,
            EstimateBasis::Slower => self.estimate(PromptCache::Cold),
        };
        let passes_min = match estimate.at {
            Some(at) if now.since(at) < age_max => u32::MAX,
            Some(_) => PASSES_MIN.saturating_mul(others),
            None => FIRST_PASSES_MIN.saturating_mul(others),
        };
        let measurement = match self.measured_by {
            Some(_) => Measurement::Pending,
            None if passes_min <= self.passes => Measurement::Due,
            None => Measurement::Settled,
        };
        Comparison {
            estimate: estimate.latency(),
            measurement,
            comparable: self.comparable,
            credit: self.credit,
            ..Comparison::default()
        }
    }

    /// Returns the estimate for a prompt cache, or the other one if there is only that.
    fn estimate(&self, cache: PromptCache) -> &Estimate {
        let (wanted, other) = match cache {
            PromptCache::Warm => (&self.warm, &self.cold),
            PromptCache::Cold => (&self.cold, &self.warm),
        };
        if wanted.at.is_some() { wanted } else { other }
    }

    /// Takes over the outcome of a pick.
    pub(super) fn on_pick(&mut self, comparison: &Comparison) {
        self.comparable = comparison.comparable;
        self.credit = comparison.credit;
        self.on_pass();
    }

    /// Counts a request that was sent to another node without comparing both.
    pub(super) fn on_pass(&mut self) {
        self.passes = self.passes.saturating_add(1);
    }

    /// Records that a request is sent; it measures the node if there is no recent estimate.
    pub(super) fn on_send(&mut self, now: Instant, request: RequestId, cache: PromptCache) {
        self.passes = 0;
        let measured_at = self.estimate(cache).at;
        if self.measured_by.is_none() && measured_at.is_none_or(|at| ESTIMATE_AGE_MAX <= now.since(at)) {
            self.measured_by = Some(request);
        }
    }

    pub(super) fn on_release(&mut self, request: RequestId) {
        if self.measured_by == Some(request) {
            self.measured_by = None;
        }
    }

    pub(super) fn record(&mut self, now: Instant, cache: PromptCache, latency: Duration) {
        self.measured_by = None;
        match cache {
            PromptCache::Warm => self.warm.record(now, latency),
            PromptCache::Cold => self.cold.record(now, latency),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    ewma: Ewma,
    /// Time of the last sample.
    at: Option<Instant>,
}

impl Estimate {
    fn record(&mut self, now: Instant, latency: Duration) {
        if self.at.is_some_and(|at| ESTIMATE_AGE_MAX <= now.since(at)) {
            self.ewma = Ewma::new(Gains::RTT);
        }
        self.ewma.record_millis(latency);
        self.at = Some(now);
    }

    fn latency(&self) -> Option<LatencyEstimate> {
        let mean_ms = self.ewma.mean()?;
        Some(LatencyEstimate { mean_ms, deviation_ms: self.ewma.deviation()? })
    }
}
