//! Adaptive concurrency limit of a node, learned from the time to first token (TTFT) and the output rate.
//!
//! An engine that batches has a knee: up to that number of requests the output rate grows with the load; above it,
//! requests queue inside the engine, where the scheduler cannot reorder them. The limit follows the knee by the method
//! of TCP Vegas: the queue inside the engine is estimated as `limit × (1 − baseline / TTFT)`, from the median of a
//! window, where the baseline is the TTFT without a queue of a prompt of that length.
//!
//! Every rise is a trial: it is kept only if the throughput rose with it and no queue formed. Falls are tried in the same
//! way, because TTFT does not show the knee of an engine that prefers prompts to output. Without streams there are only
//! these trials, unless the engine reports its queue.
//!
//! Guarantees:
//! - The limit stays within `min..=max`. It starts at `initial` and doubles until a rise fails; afterwards it changes by
//!   an eighth (at least one) at a time, without streams by a quarter. A queue lowers it by at most a quarter of what was
//!   in use; a failed trial is undone.
//! - It rises only if at least three quarters of it were in use; a limit that demand does not reach stays as it is.
//! - The baseline of a prompt class rises only by samples that were sent with at most a quarter of the limit in flight
//!   (at least one), or while the engine reported no queue. A probe runs at that load to obtain some, for at most a
//!   minute. Probes take at most 5 % of the time; their intervals are jittered, so that gateways do not probe an engine
//!   together.
//! - Refusals by the engine undo a rise, and never lower the limit otherwise.
//! - Every call is O(1) and allocates nothing.

mod baseline;
mod probes;
mod window;

use core::fmt;

use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, Instant};

use baseline::Baselines;
pub use baseline::{PromptCache, PromptClass};
use probes::ProbeSchedule;
use window::{EngineQueue, Saturation, Throughput, Window};
pub use window::{Output, ResponseDelivery};

/// Fraction of a proportional gain in output that a rise must bring, and of a proportional loss that a fall must not.
const GAIN_MIN: f64 = 0.5;
/// Speed of a stream, relative to a lone one, at which the engine is certainly below its knee.
const SPEED_MIN: f64 = 0.9;
/// Smallest report of output from which the pace is learned, in cost units.
const PACE_AMOUNT_MIN: u64 = 8;
/// Samples from which a queue inside the engine is inferred.
const LATE_SAMPLES_MIN: u32 = 3;
/// Multiple of the tolerated time to first token beyond which throughput is not asked.
const CLEARLY_LATE: f64 = 1.125;
/// Multiple of the baseline at which a queue needs no confirmation by a probe.
const CONFIRMED_RATIO: f64 = 3.0;
/// Refusals in the window after a rise that undo it.
const REFUSALS_MAX: u32 = 2;
/// Time after which a rise that is not fully used is undone.
const UNUSED_MAX: Duration = Duration::from_secs(5);
/// Maximum duration of a probe.
const PROBE_MAX: Duration = Duration::from_secs(60);
/// Windows between two trials; doubles with every failed trial.
const HOLD_MIN: u32 = 2;
/// Relative change in throughput at an unchanged limit that brings the next trial forward.
const RATE_CHANGE_MAX: f64 = 0.2;
/// Maximum number of windows between two trials.
const HOLD_MAX: u32 = 16;

/// Settings of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitConfig {
    /// Smallest limit, 1 to 65 536.
    pub min: u32,
    /// Largest limit, `min` to 65 536.
    pub max: u32,
    /// Initial limit, `min` to `max`.
    pub initial: u32,
    /// Multiple of the baseline above which the median time to first token shows a queue, 1.05 to 10.
    pub tolerance: f64,
}

/// The default tolerance allows a queue of a quarter of the limit.
impl Default for LimitConfig {
    fn default() -> Self {
        Self { min: 1, max: 256, initial: 1, tolerance: 4.0 / 3.0 }
    }
}

impl LimitConfig {
    /// Rejects settings that are out of range.
    pub fn check(&self) -> Result<(), SettingOutOfRange> {
        check("min", self.min, 1.0..=65_536.0)?;
        check("max", self.max, f64::from(self.min)..=65_536.0)?;
        check("initial", self.initial, f64::from(self.min)..=f64::from(self.max))?;
        check("tolerance", self.tolerance, 1.05..=10.0)
    }
}

/// Circumstances under which a request was sent; its results count only in the epoch of the limit that it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Departure {
    epoch: u32,
    at: Instant,
    /// Requests in flight, itself included.
    in_flight: u32,
    class: PromptClass,
}

impl Departure {
    /// Reports whether at least three quarters of `load` were in flight.
    fn is_at(&self, load: u32) -> bool {
        3 * u64::from(load) <= 4 * u64::from(self.in_flight)
    }
}

/// Adaptive concurrency limit that follows an engine's knee.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimit {
    config: LimitConfig,
    limit: u32,
    growth: Growth,
    /// The limit before the current one, while it is not decided whether that is kept.
    trial_from: Option<u32>,
    probe: Option<BaselineProbe>,
    epoch: u32,
    epoch_at: Instant,
    window: Window,
    saturation: Saturation,
    /// Output rate at the current limit, or at the limit before the trial.
    rate: Option<f64>,
    /// Windows until the next trial, and after the next failed one.
    hold: u32,
    backoff: u32,
    next_trial: Direction,
    baselines: Baselines,
    in_flight: u32,
    /// Time since which no more requests are in flight than a probe allows.
    idle_since: Option<Instant>,
    /// Start of the engine's last uninterrupted reports of an empty queue.
    engine_idle_since: Option<Instant>,
    probes: ProbeSchedule,
    recent: Option<Recent>,
}

/// Way in which the limit grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// It doubles, until a rise fails.
    SlowStart,
    /// It changes by an eighth.
    Steady,
}

/// Measurement of the baseline at a quarter of the limit.
#[derive(Clone, Copy, Debug)]
struct BaselineProbe {
    since: Instant,
    samples: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// Last time to first token at full use, and its baseline.
#[derive(Clone, Copy, Debug)]
struct Recent {
    ratio: f64,
    baseline_ms: f64,
}

/// Current limit and the latencies that it is derived from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitStatus {
    /// The limit, apart from probes.
    pub limit: u32,
    /// Time to first token without a queue of the last prompt's class, in milliseconds; `None` until it is measured.
    pub baseline_ms: Option<f64>,
    /// Median time to first token in the last window, for such a prompt, in milliseconds.
    pub recent_ms: Option<f64>,
}

impl ConcurrencyLimit {
    /// Creates a limit at `initial`; `seed` jitters the probes.
    pub fn new(config: LimitConfig, seed: u64) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self {
            config,
            limit: config.initial,
            growth: Growth::SlowStart,
            trial_from: None,
            probe: None,
            epoch: 0,
            epoch_at: Instant::ORIGIN,
            window: Window::new(),
            saturation: Saturation::default(),
            rate: None,
            hold: HOLD_MIN,
            backoff: HOLD_MIN,
            next_trial: Direction::Up,
            baselines: Baselines::new(),
            in_flight: 0,
            idle_since: Some(Instant::ORIGIN),
            engine_idle_since: None,
            probes: ProbeSchedule::new(seed),
            recent: None,
        })
    }

    /// Returns the maximum number of requests in flight.
    pub fn limit(&self) -> u32 {
        match self.probe {
            Some(_) => self.probe_limit(),
            None => self.limit,
        }
    }

    /// Changes the settings; the limit and what was learned about the engine are kept.
    pub fn set_config(&mut self, now: Instant, config: LimitConfig) -> Result<(), SettingOutOfRange> {
        config.check()?;
        self.config = config;
        self.keep(now, self.limit);
        Ok(())
    }

    /// Returns the limit and the latencies that it is derived from.
    pub fn status(&self) -> LimitStatus {
        LimitStatus {
            limit: self.limit,
            baseline_ms: self.recent.map(|recent| recent.baseline_ms),
            recent_ms: self.recent.map(|recent| recent.ratio * recent.baseline_ms),
        }
    }

    /// Returns the time to first token without a queue for prompts of a class, in milliseconds.
    pub fn baseline_ms(&self, class: PromptClass) -> Option<f64> {
        self.baselines.millis(class)
    }

    /// Records that a request was sent, with `in_flight` counting it.
    pub fn on_send(&mut self, now: Instant, in_flight: u32, class: PromptClass) -> Departure {
        self.probes.start(now);
        self.window.on_send(in_flight, self.limit);
        self.set_in_flight(now, in_flight);
        if self.limit() <= in_flight {
            self.saturation.on_full(now);
        }
        Departure { epoch: self.epoch, at: now, in_flight, class }
    }

    /// Records the first token of a streamed response.
    pub fn on_first_token(&mut self, now: Instant, sent: Departure) {
        let ttft = now.since(sent.at);
        if self.is_idle_since(sent.at) {
            self.baselines.record_idle(sent.class, ttft);
            self.on_idle_sample(now, sent);
        } else {
            self.baselines.record_loaded(sent.class, ttft);
        }
        if self.probe.is_some() {
            return;
        }
        if self.probes.is_due(now) {
            return self.start_probe(now);
        }
        if sent.epoch != self.epoch {
            return;
        }
        self.window.on_first_token(now);
        match self.baselines.millis(sent.class) {
            Some(baseline_ms) => self.observe_ttft(now, sent, baseline_ms),
            None => self.observe_unknown_class(now, sent),
        }
        self.try_close_window(now);
    }

    fn observe_ttft(&mut self, now: Instant, sent: Departure, baseline_ms: f64) {
        let ttft = now.since(sent.at).as_secs_f64();
        if sent.is_at(self.limit) {
            self.window.record_part(ttft, baseline_ms / 1_000.0);
        }
        self.observe_ratio(now, sent, baseline_ms);
    }

    /// Judges a prompt of a class without a baseline by the next class that takes longer: it can only show a queue.
    fn observe_unknown_class(&mut self, now: Instant, sent: Departure) {
        self.probes.hasten(now, sent.class);
        let longer = self.baselines.millis_at_most(sent.class);
        let shows_queue = |millis: &f64| *millis < now.since(sent.at).as_secs_f64() * 1_000.0;
        if let Some(baseline_ms) = longer.filter(shows_queue) {
            self.observe_ratio(now, sent, baseline_ms);
        }
    }

    fn observe_ratio(&mut self, now: Instant, sent: Departure, baseline_ms: f64) {
        let load = self.window.load(self.limit);
        if !sent.is_at(load) {
            return;
        }
        let ratio = now.since(sent.at).as_secs_f64() * 1_000.0 / baseline_ms.max(0.001);
        self.window.record_ratio(ratio);
        let median = self.window.median_ratio(1).unwrap_or(ratio);
        self.recent = Some(Recent { ratio: median, baseline_ms });
        let samples_min = LATE_SAMPLES_MIN.max(load / 4);
        if self.window.median_ratio(samples_min).is_some() && self.is_late(median) {
            self.on_queue(now, median);
        }
    }

    /// Records output that the engine generated.
    pub fn on_output(&mut self, now: Instant, output: &Output) {
        if output.delivery == ResponseDelivery::Stream {
            self.observe_pace(now, output);
        }
        if let Some(full_since) = self.saturation.full_since(now) {
            self.window.on_output(now, output, full_since, self.baselines.pace());
            self.try_close_window(now);
        }
    }

    /// Learns the pace of output from reports that are long enough to be precise.
    fn observe_pace(&mut self, now: Instant, output: &Output) {
        if PACE_AMOUNT_MIN <= output.amount && self.is_idle_since(output.since) {
            self.baselines.record_idle_pace(now.since(output.since).as_secs_f64() / output.amount as f64);
        }
    }

    /// Records the end of a request, after which `in_flight` remain.
    pub fn on_end(&mut self, now: Instant, sent: Departure, in_flight: u32) {
        if sent.epoch == self.epoch {
            self.window.on_end(now, self.limit);
        }
        // Without streams, no sample ends the probe.
        if let Some(probe) = self.probe.filter(|probe| PROBE_MAX <= now.since(probe.since)) {
            self.end_probe(now, probe.since);
        }
        self.set_in_flight(now, in_flight);
        self.try_close_window(now);
        if in_flight < self.limit() {
            self.saturation.on_free(now);
        }
    }

    fn set_in_flight(&mut self, now: Instant, in_flight: u32) {
        self.in_flight = in_flight;
        self.idle_since = match in_flight <= self.probe_limit() {
            true => self.idle_since.or(Some(now)),
            false => None,
        };
    }

    /// Records that the engine refused a request because of overload.
    ///
    /// A refusal may be the request's own fault, so it only counts against a rise that was just made.
    pub fn on_refusal(&mut self, sent: Departure) {
        if sent.epoch == self.epoch {
            self.window.refused += 1;
        }
    }

    /// Records the number of requests that wait inside the engine while we have `in_flight` requests there.
    ///
    /// In any engine some requests wait for the next batch step, so up to an eighth of the limit does not count as a
    /// queue.
    pub fn on_engine_queue(&mut self, now: Instant, waiting: u32, in_flight: u32) {
        let is_used = 3 * u64::from(self.limit) <= 4 * u64::from(in_flight);
        if waiting == 0 {
            self.engine_idle_since = self.engine_idle_since.or(Some(now));
            if is_used && self.has_no_streams() {
                return self.rise(now);
            }
        }
        if waiting <= self.limit / 8 {
            return;
        }
        self.engine_idle_since = None;
        self.window.engine_queue = EngineQueue::Seen;
        // With more in flight than the limit, an earlier decrease is still taking effect; with far fewer, other clients
        // cause the queue.
        if is_used && in_flight <= self.limit && self.probe.is_none() {
            self.lower_to(now, self.limit.saturating_sub(waiting.min((self.limit / 4).max(1))));
        }
    }

    /// Reports whether no first token was ever recorded.
    fn has_no_streams(&self) -> bool {
        self.probes.last_idle_at().is_none() && self.recent.is_none()
    }

    /// Raises the limit without a trial, because the engine reports that it has no queue.
    fn rise(&mut self, now: Instant) {
        let step = match self.growth {
            Growth::SlowStart => self.limit,
            Growth::Steady => (self.limit / 8).max(1),
        };
        self.limit = self.limit.saturating_add(step).min(self.config.max);
        self.trial_from = None;
        self.rate = None;
        self.begin_epoch(now);
    }

    /// Records that the engine stopped reporting its queue.
    pub fn on_engine_silent(&mut self) {
        self.engine_idle_since = None;
    }

    /// Reports whether the engine has had no queue since `since`, because we sent too little for one or it says so.
    fn is_idle_since(&self, since: Instant) -> bool {
        let is_idle = |idle_since: Option<Instant>| idle_since.is_some_and(|idle_since| idle_since <= since);
        is_idle(self.idle_since) || is_idle(self.engine_idle_since)
    }

    fn on_idle_sample(&mut self, now: Instant, sent: Departure) {
        self.probes.on_idle_sample(now);
        let Some(probe) = &mut self.probe else { return };
        if sent.epoch != self.epoch {
            return;
        }
        probe.samples += 1;
        let BaselineProbe { since, samples } = *probe;
        let is_missing = |class: PromptClass| self.baselines.millis(class).is_none();
        let samples_min = if self.probes.missing().is_some_and(is_missing) { 4 } else { 1 };
        if (self.probe_limit() / 2).clamp(samples_min, 8) <= samples {
            self.end_probe(now, since);
        }
    }

    fn end_probe(&mut self, now: Instant, since: Instant) {
        self.probe = None;
        self.probes.on_probe_end(now, now.since(since));
        self.begin_epoch(now);
    }

    /// Returns the load at which the engine certainly has no queue of ours.
    fn probe_limit(&self) -> u32 {
        (self.limit / 4).max(1)
    }

    /// Reports whether a ratio of TTFT to baseline shows a queue: more than one request, and more than the tolerance.
    fn is_late(&self, ratio: f64) -> bool {
        let load = f64::from(self.window.load(self.limit));
        let queue_max = load * (1.0 - 1.0 / self.config.tolerance);
        queue_max.max(1.0) < load * (1.0 - 1.0 / ratio.max(1.0))
    }

    /// Reacts to late first tokens: undoes a rise, or lowers the limit once the baseline is confirmed.
    fn on_queue(&mut self, now: Instant, ratio: f64) {
        let is_clear = self.is_clear(ratio);
        match self.trial_from {
            Some(from) if from < self.limit && is_clear => self.fail_trial(now, from),
            // Throughput decides.
            Some(_) => {}
            None if !is_clear => self.next_trial = Direction::Down,
            None if ratio < CONFIRMED_RATIO && self.probes.should_confirm(now) => {
                self.baselines.doubt();
                self.start_probe(now);
            }
            None => {
                let load = self.window.load(self.limit);
                let less = if ratio > 2.0 { load.div_ceil(4) } else { load.div_ceil(8) };
                self.lower_to(now, load.saturating_sub(less));
            }
        }
    }

    /// Reports whether first tokens are so late that there must be a queue. Below that, an engine with larger batches may
    /// just be slower and still generate more.
    fn is_clear(&self, ratio: f64) -> bool {
        CLEARLY_LATE * self.config.tolerance < ratio
    }

    fn lower_to(&mut self, now: Instant, limit: u32) {
        self.keep(now, limit);
        self.rate = None;
        self.hold = HOLD_MIN;
        self.next_trial = Direction::Up;
    }

    fn try_close_window(&mut self, now: Instant) {
        if self.probe.is_some() || self.cancel_unused_trial(now) {
            return;
        }
        let rises = self.trial_from.is_some_and(|from| from < self.limit);
        if rises && self.window.lacks_ratio() {
            return;
        }
        if let Some(throughput) = self.window.throughput(self.limit) {
            self.close_window(now, throughput);
        }
    }

    /// Undoes a rise that demand does not use, so that the limit stays near what was measured; reports whether it did.
    fn cancel_unused_trial(&mut self, now: Instant) -> bool {
        let Some(from) = self.trial_from.filter(|from| *from < self.limit) else { return false };
        let is_unused = self.saturation.full_since(now).is_none() && UNUSED_MAX <= now.since(self.epoch_at);
        if is_unused {
            self.limit = from;
            self.trial_from = None;
            self.begin_epoch(now);
        }
        is_unused
    }

    fn close_window(&mut self, now: Instant, throughput: Throughput) {
        let rate = throughput.rate;
        match (self.trial_from, self.rate) {
            (Some(from), Some(before)) => self.judge(now, from, before, throughput),
            (_, before) => {
                let has_changed = |before: f64| (rate - before).abs() > RATE_CHANGE_MAX * before;
                if before.is_some_and(has_changed) {
                    self.backoff = HOLD_MIN;
                    self.hold = self.hold.min(HOLD_MIN);
                }
                self.rate = Some(rate);
                self.grow(now, throughput);
            }
        }
    }

    /// Decides whether a change of the limit is kept, by the change in throughput.
    fn judge(&mut self, now: Instant, from: u32, before: f64, throughput: Throughput) {
        let rose = from < self.limit;
        let change = f64::from(self.limit) / f64::from(from) - 1.0;
        let is_worth_it = (1.0 + GAIN_MIN * change) * before <= throughput.rate;
        let is_unhindered = throughput.speed.is_some_and(|speed| SPEED_MIN <= speed);
        let is_refused = REFUSALS_MAX <= self.window.refused || self.window.engine_queue == EngineQueue::Seen;
        let is_late =
            self.window.median_ratio(1).is_some_and(|ratio| self.is_late(ratio) && self.is_clear(ratio));
        let is_kept = if rose {
            (is_worth_it || is_unhindered) && !is_refused && !is_late
        } else {
            is_worth_it || is_late
        };
        if !is_kept {
            return self.fail_trial(now, from);
        }
        self.rate = Some(throughput.rate);
        self.backoff = HOLD_MIN;
        self.next_trial = if rose { Direction::Up } else { Direction::Down };
        self.trial_from = None;
        self.hold = 0;
        self.grow(now, throughput);
    }

    /// Returns to the limit before a trial and waits before the next one.
    fn fail_trial(&mut self, now: Instant, from: u32) {
        let rose = from < self.limit;
        self.next_trial = if rose { Direction::Down } else { Direction::Up };
        self.hold = self.backoff;
        self.backoff = (2 * self.backoff).min(HOLD_MAX);
        self.keep(now, from);
    }

    /// Starts the next trial if it is due, or else another window.
    fn grow(&mut self, now: Instant, throughput: Throughput) {
        let is_unhindered = throughput.speed.is_some_and(|speed| SPEED_MIN <= speed);
        if throughput.speed.is_some() && !is_unhindered {
            self.growth = Growth::Steady;
        }
        let from = self.limit;
        let step = match (self.growth, throughput.speed) {
            (Growth::SlowStart, _) => from,
            (Growth::Steady, Some(_)) => (from / 8).max(1),
            // Output per second fluctuates too much to show the effect of a smaller step.
            (Growth::Steady, None) => (from / 4).max(1),
        };
        let to = match self.next_trial {
            Direction::Down if !is_unhindered => from.saturating_sub(step).max(self.config.min),
            Direction::Down | Direction::Up => from.saturating_add(step).min(self.config.max),
        };
        let holds = self.growth == Growth::Steady && self.hold > 0;
        if holds || to == from {
            self.hold = self.hold.saturating_sub(1);
            self.window.restart(now);
            if to == from {
                self.next_trial = Direction::Up;
            }
            return;
        }
        self.limit = to;
        self.trial_from = Some(from);
        self.begin_epoch(now);
    }

    /// Starts a probe: until enough samples arrived, only a quarter of the limit is used.
    fn start_probe(&mut self, now: Instant) {
        self.probes.on_probe_start();
        self.probe = Some(BaselineProbe { since: now, samples: 0 });
        self.begin_epoch(now);
    }

    /// Sets the limit and ends the trial and the slow start.
    fn keep(&mut self, now: Instant, limit: u32) {
        self.limit = limit.clamp(self.config.min, self.config.max);
        self.growth = Growth::Steady;
        self.trial_from = None;
        self.begin_epoch(now);
    }

    /// Begins a new epoch and window after a change of the load that is allowed.
    fn begin_epoch(&mut self, now: Instant) {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch_at = now;
        self.window = Window::new();
        self.saturation.on_free(now);
        self.set_in_flight(now, self.in_flight);
    }
}

impl fmt::Display for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {}", self.limit)?;
        match (self.baseline_ms, self.recent_ms) {
            (Some(baseline), Some(recent)) => {
                write!(f, ", first tokens {recent:.0} ms, {baseline:.0} ms without a queue")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
