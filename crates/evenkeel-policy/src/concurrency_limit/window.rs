//! One observation window of a concurrency limit.

use crate::estimate::{Quantile, RecentLen, RecentSpans};
use crate::time::{Duration, Instant};

/// Number of times to first token that the median of a window is taken from.
const RATIOS_MAX: usize = 16;
/// Number of times to first token that decide whether a rise is kept.
const RISE_RATIOS_MIN: usize = 2;
/// Observed parts of streams that make the progress of a window comparable; at least two per slot.
const PARTS_MIN: u32 = 8;
/// Completed responses that make the throughput of a window without streams comparable; at least eight per slot.
const ENDED_MIN: u32 = 32;

/// Output that an engine generated for one request since `since`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Output {
    /// Amount, in cost units.
    pub amount: u64,
    /// Time of the request's previous report, of its first token, or, for a whole response, of its dispatch.
    pub since: Instant,
    /// Way in which the response is delivered.
    pub delivery: ResponseDelivery,
}

/// Way in which a response is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseDelivery {
    /// Token by token.
    Stream,
    /// All at once, at its end.
    Whole,
}

/// Observations since the limit last changed or was last judged.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Largest number of requests in flight.
    peak: u32,
    /// Requests sent in this epoch whose first token arrived.
    first_tokens: u32,
    /// Requests sent in this epoch.
    sent: u32,
    /// First tokens after which the engine's load matches the limit: those of all requests sent to reach it.
    settle_after: Option<u32>,
    /// Requests sent in this epoch that ended.
    ended: u32,
    /// Time from which output counts, because the engine's load matches the limit.
    settled_at: Option<Instant>,
    ended_before: u32,
    /// Times to first token at the peak, as multiples of their baselines; one second stands for a multiple of one.
    ratios: RecentSpans,
    /// Parts of streams at full use of the limit: the time that they took, and the time without other requests.
    parts: u32,
    seconds: f64,
    seconds_alone: f64,
    /// Whole responses at full use of the limit: their output, and the time in which it was generated.
    output: f64,
    output_time: Duration,
    counted_until: Instant,
    pub(super) refused: u32,
    pub(super) engine_queue: EngineQueue,
}

/// Observation of a queue inside the engine during a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EngineQueue {
    #[default]
    Unseen,
    Seen,
}

impl Window {
    /// Creates a window whose output counts once the engine's load matches a changed limit.
    pub(super) fn new() -> Self {
        Self {
            peak: 0,
            first_tokens: 0,
            sent: 0,
            settle_after: None,
            ended: 0,
            settled_at: None,
            ended_before: 0,
            ratios: RecentSpans::new(RecentLen::new(RATIOS_MAX).unwrap_or_default()),
            parts: 0,
            seconds: 0.0,
            seconds_alone: 0.0,
            output: 0.0,
            output_time: Duration::ZERO,
            counted_until: Instant::ORIGIN,
            refused: 0,
            engine_queue: EngineQueue::Unseen,
        }
    }

    /// Starts the next window at an unchanged limit; the times to first token are kept.
    pub(super) fn restart(&mut self, now: Instant) {
        let fresh = Self::new();
        *self = Self {
            peak: self.peak,
            ratios: self.ratios.clone(),
            settled_at: Some(now),
            settle_after: Some(0),
            ..fresh
        };
    }

    pub(super) fn on_send(&mut self, in_flight: u32, limit: u32) {
        self.peak = self.peak.max(in_flight);
        self.sent = self.sent.saturating_add(1);
        if limit <= in_flight {
            self.settle_after = self.settle_after.or(Some(self.sent));
        }
    }

    /// Returns the largest number of requests in flight, at most `limit`.
    pub(super) fn load(&self, limit: u32) -> u32 {
        self.peak.clamp(1, limit)
    }

    pub(super) fn on_first_token(&mut self, now: Instant) {
        self.first_tokens = self.first_tokens.saturating_add(1);
        if self.settle_after.is_some_and(|settle_after| settle_after <= self.first_tokens) {
            self.settled_at = self.settled_at.or(Some(now));
        }
    }

    /// Records a time to first token at the peak, as a multiple of its baseline.
    pub(super) fn record_ratio(&mut self, ratio: f64) {
        self.ratios.record(Duration::try_from_secs_f64(ratio).unwrap_or(Duration::MAX));
    }

    /// Records the end of a request; without streams, ended requests show that the load matches the limit.
    pub(super) fn on_end(&mut self, now: Instant, limit: u32) {
        self.ended = self.ended.saturating_add(1);
        if self.first_tokens == 0 && self.settled_at.is_none() && limit.max(2) <= self.ended {
            self.settled_at = Some(now);
            self.ended_before = self.ended;
        }
    }

    /// Records a part of a stream, with its duration if the engine had served no other request.
    pub(super) fn record_part(&mut self, seconds: f64, seconds_alone: f64) {
        self.parts = self.parts.saturating_add(1);
        self.seconds += seconds;
        self.seconds_alone += seconds_alone;
    }

    /// Records output; only the share that was generated since `full_since`, at full use of the limit, counts.
    ///
    /// `pace` is the time per unit of output without other requests, in seconds.
    pub(super) fn on_output(
        &mut self,
        now: Instant,
        output: &Output,
        full_since: Instant,
        pace: Option<f64>,
    ) {
        let Some(settled_at) = self.settled_at else { return };
        let counts_from = full_since.max(settled_at);
        let total = now.since(output.since).as_secs_f64();
        let counted = now.since(output.since.max(counts_from)).as_secs_f64();
        let share = if total > 0.0 { counted / total } else { 1.0 };
        let amount = output.amount as f64 * share;
        match (output.delivery, pace) {
            (ResponseDelivery::Stream, Some(pace)) if counted > 0.0 => {
                self.record_part(counted, amount * pace);
            }
            (ResponseDelivery::Stream, _) => {}
            (ResponseDelivery::Whole, _) => {
                self.output += amount;
                self.output_time += now.since(self.counted_until.max(counts_from));
                self.counted_until = now;
            }
        }
    }

    /// Returns the median time to first token as a multiple of the baseline, from at least `samples_min` samples.
    pub(super) fn median_ratio(&self, samples_min: u32) -> Option<f64> {
        if self.ratios.samples() < (samples_min as usize).min(RATIOS_MAX) {
            return None;
        }
        self.ratios.quantile(Quantile::P50).map(|ratio| ratio.as_secs_f64())
    }

    /// Reports whether there are streams, but too few whose time to first token can be judged.
    pub(super) fn lacks_ratio(&self) -> bool {
        self.first_tokens > 0 && self.ratios.samples() < RISE_RATIOS_MIN
    }

    /// Returns the engine's throughput at this limit, once enough of it was observed.
    pub(super) fn throughput(&self, limit: u32) -> Option<Throughput> {
        self.settled_at?;
        if self.first_tokens > 0 {
            let is_enough = limit.saturating_mul(2).max(PARTS_MIN) <= self.parts;
            let speed = self.seconds_alone / self.seconds;
            return is_enough.then(|| Throughput { rate: f64::from(limit) * speed, speed: Some(speed) });
        }
        let is_enough = limit.saturating_mul(8).max(ENDED_MIN) <= self.ended - self.ended_before;
        let is_measured = is_enough && !self.output_time.is_zero();
        is_measured.then(|| Throughput { rate: self.output / self.output_time.as_secs_f64(), speed: None })
    }
}

/// Throughput of an engine at full use of the limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throughput {
    /// With streams, the number of requests that the engine serves at the speed of a lone request: unlike output per
    /// second, that does not fluctuate with the lengths of prompts and responses. Otherwise output per second.
    pub(super) rate: f64,
    /// Speed of a stream, relative to that of a lone one.
    pub(super) speed: Option<f64>,
}

/// Time since which the whole limit is in use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saturation {
    full_since: Option<Instant>,
    /// Time at which a slot became free; unless it is reused at once, the limit is not fully used.
    freed_at: Option<Instant>,
}

impl Saturation {
    /// Records that a request took the last free slot.
    pub(super) fn on_full(&mut self, now: Instant) {
        self.expire(now);
        self.freed_at = None;
        self.full_since = self.full_since.or(Some(now));
    }

    /// Records that a slot is free.
    pub(super) fn on_free(&mut self, now: Instant) {
        self.expire(now);
        self.freed_at = self.freed_at.or(Some(now));
    }

    /// Returns the time since which the whole limit is in use; `None` if a slot is free.
    pub(super) fn full_since(&mut self, now: Instant) -> Option<Instant> {
        self.expire(now);
        self.full_since
    }

    fn expire(&mut self, now: Instant) {
        if self.freed_at.is_some_and(|freed_at| freed_at < now) {
            *self = Self::default();
        }
    }
}
