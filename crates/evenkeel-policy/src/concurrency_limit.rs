//! Adaptive concurrency limit of a node, learned from the time to first token (TTFT).
//!
//! An engine that batches has a knee: up to that number of requests the TTFT is about that of an idle engine; above it,
//! requests queue inside the engine, where the scheduler cannot reorder them. The limit follows the knee by comparing
//! the mean TTFT of a window with the idle latency, the TTFT while the engine is not full. The duration of whole
//! responses is ignored, because it depends on what the client requests and not on the engine's load.
//!
//! Guarantees:
//! - The limit stays within `min..=max`.
//! - Apart from the end of a probe, it rises only at the end of a window in which at least three quarters of it were in
//!   use and no engine queue was observed, by at most its square root. Before the first streamed response it also rises
//!   by one whenever the engine reports no queue while at least three quarters of the limit are in use.
//! - A single decrease leaves at least half of it.
//! - First tokens and rejections count only for the limit under which their request was sent.
//! - At least every `PROBE_INTERVAL_MAX` such windows, a probe measures the idle latency: one window runs at half the
//!   limit, which is restored afterwards unless the engine turned out to be overloaded meanwhile.

use core::fmt;

use crate::setting::{SettingOutOfRange, check};
use crate::time::Duration;

/// Maximum number of first tokens in a window.
const WINDOW_MAX: u32 = 64;
/// Minimum number of first tokens in a window, also while probing.
const WINDOW_MIN: u32 = 8;
/// Maximum number of windows between two probes of the idle latency; the interval starts at one and doubles.
const PROBE_INTERVAL_MAX: u32 = 64;
/// Gain with which the idle latency follows slower windows; small, because only a probe distinguishes a slower engine
/// from a full one.
const IDLE_RISE_GAIN: f64 = 0.02;
/// Gain with which the idle latency follows faster windows.
const IDLE_FALL_GAIN: f64 = 0.5;
/// Fraction of the way that the limit moves towards a window's target.
const SMOOTHING: f64 = 0.5;
/// Delay of a first token that is attributed to network jitter, in milliseconds.
const JITTER_MS: f64 = 5.0;

/// Settings of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitConfig {
    /// Smallest limit, 1 to 65 536.
    pub min: u32,
    /// Largest limit, `min` to 65 536.
    pub max: u32,
    /// Initial limit, `min` to `max`.
    pub initial: u32,
    /// Multiple of the idle latency above which the mean time to first token counts as late, 1 to 10.
    pub tolerance: f64,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self { min: 1, max: 256, initial: 8, tolerance: 1.5 }
    }
}

impl LimitConfig {
    /// Rejects settings that are out of range.
    pub fn check(&self) -> Result<(), SettingOutOfRange> {
        check("min", self.min, 1.0..=65_536.0)?;
        check("max", self.max, f64::from(self.min)..=65_536.0)?;
        check("initial", self.initial, f64::from(self.min)..=f64::from(self.max))?;
        check("tolerance", self.tolerance, 1.0..=10.0)
    }
}

/// Period between two updates of a limit; a request's results count only in the epoch in which it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch(u32);

/// Adaptive concurrency limit that follows an engine's knee.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyLimit {
    config: LimitConfig,
    limit: f64,
    phase: Phase,
    epoch: Epoch,
    window: Window,
    /// Idle latency: time to first token while the engine is not full, in milliseconds.
    idle_ms: Option<f64>,
    /// Mean time to first token in the last whole window.
    recent_ms: Option<f64>,
    /// Number of windows until the idle latency is probed again.
    probe_in: u32,
    probe_interval: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Steady,
    /// A window at half of the limit measures the idle latency.
    Probing {
        /// Limit to restore afterwards.
        resume: f64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    samples: u32,
    sum_ms: f64,
    /// Maximum number of requests in flight at once.
    peak: u32,
    queue: EngineQueue,
}

/// Observation of a queue inside the engine during a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EngineQueue {
    #[default]
    Unseen,
    Seen,
}

/// Current limit and the latencies that it is derived from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitStatus {
    /// Limit before rounding down.
    pub limit: f64,
    /// Time to first token while the engine is not full, in milliseconds; `None` until it is measured.
    pub idle_ms: Option<f64>,
    /// Mean time to first token in the last whole window, in milliseconds.
    pub recent_ms: Option<f64>,
}

impl ConcurrencyLimit {
    /// Creates a limit at `initial`; the idle latency is probed after the first window.
    pub fn new(config: LimitConfig) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self {
            config,
            limit: f64::from(config.initial),
            phase: Phase::Steady,
            epoch: Epoch::default(),
            window: Window::default(),
            idle_ms: None,
            recent_ms: None,
            probe_in: 1,
            probe_interval: 1,
        })
    }

    /// Returns the maximum number of requests in flight.
    pub fn limit(&self) -> u32 {
        (self.limit as u32).clamp(self.config.min, self.config.max)
    }

    /// Returns the limit and the latencies that it is derived from.
    pub fn status(&self) -> LimitStatus {
        LimitStatus { limit: self.limit, idle_ms: self.idle_ms, recent_ms: self.recent_ms }
    }

    /// Records that a request was sent, with `in_flight` counting it, and returns the epoch in which its results count.
    pub fn on_send(&mut self, in_flight: u32) -> Epoch {
        self.window.peak = self.window.peak.max(in_flight);
        self.epoch
    }

    /// Records the time to first token of a request sent in epoch `sent_in`.
    pub fn on_first_token(&mut self, sent_in: Epoch, after: Duration) {
        if sent_in != self.epoch {
            return;
        }
        self.window.samples += 1;
        self.window.sum_ms += after.as_secs_f64() * 1_000.0;
        if self.window.samples >= self.window_len() {
            self.close_window();
        }
    }

    /// Records that the engine rejected a request as overloaded while `in_flight` others were in flight.
    pub fn on_rejection(&mut self, sent_in: Epoch, in_flight: u32) {
        // The first of several simultaneous rejections ends the epoch, so the others are ignored.
        if sent_in != self.epoch {
            return;
        }
        let accepted = f64::from(in_flight).min(self.limit);
        self.lower_to(accepted * 0.9);
    }

    /// Records the number of requests that wait inside the engine while we have `in_flight` requests there.
    ///
    /// In any engine some requests wait for the next batch step, so up to an eighth of the limit does not count as a
    /// queue. Without streaming, the absence of a queue is the only signal that can raise the limit.
    pub fn on_engine_queue(&mut self, waiting: u32, in_flight: u32) {
        if waiting == 0 && self.is_mostly_used(in_flight) && self.has_no_first_token() {
            return self.set_limit(self.limit + 1.0);
        }
        if f64::from(waiting) * 8.0 <= self.limit {
            return;
        }
        self.window.queue = EngineQueue::Seen;
        // With more in flight than the limit, an earlier decrease is still taking effect; with far fewer, other clients
        // cause the queue.
        let caused_by_us = self.is_mostly_used(in_flight) && in_flight <= self.limit();
        if caused_by_us {
            self.lower_to(self.limit - f64::from(waiting).clamp(1.0, (self.limit / 4.0).max(1.0)));
        }
    }

    /// Reports whether no first token was ever recorded.
    fn has_no_first_token(&self) -> bool {
        self.recent_ms.is_none() && self.window.samples == 0
    }

    fn window_len(&self) -> u32 {
        match self.phase {
            Phase::Steady => self.limit().clamp(WINDOW_MIN, WINDOW_MAX),
            Phase::Probing { .. } => WINDOW_MIN,
        }
    }

    fn is_mostly_used(&self, in_flight: u32) -> bool {
        f64::from(in_flight) >= 0.75 * f64::from(self.limit())
    }

    fn close_window(&mut self) {
        let recent = self.window.sum_ms / f64::from(self.window.samples);
        self.recent_ms = Some(recent);
        match self.phase {
            Phase::Probing { resume } => {
                self.idle_ms = Some(recent);
                self.phase = Phase::Steady;
                self.set_limit(resume);
            }
            Phase::Steady => self.adjust(recent),
        }
    }

    fn adjust(&mut self, recent: f64) {
        let idle = match self.idle_ms {
            None => recent,
            Some(idle) if recent < idle => idle + IDLE_FALL_GAIN * (recent - idle),
            Some(idle) => idle + IDLE_RISE_GAIN * (recent - idle),
        };
        self.idle_ms = Some(idle);
        if !self.is_mostly_used(self.window.peak) {
            return self.set_limit(self.limit);
        }
        let late_above_ms = self.config.tolerance * idle + JITTER_MS;
        let gradient = if recent <= late_above_ms { 1.0 } else { (late_above_ms / recent).max(0.5) };
        let headroom = match self.window.queue {
            EngineQueue::Unseen => libm::sqrt(self.limit),
            EngineQueue::Seen => 0.0,
        };
        let target = self.limit * gradient + headroom;
        self.set_limit(self.limit + SMOOTHING * (target - self.limit));
        self.probe_in = self.probe_in.saturating_sub(1);
        if self.probe_in == 0 {
            self.probe_idle_latency();
        }
    }

    /// Starts a probe: the next window runs at half of the limit.
    fn probe_idle_latency(&mut self) {
        self.probe_interval = (2 * self.probe_interval).min(PROBE_INTERVAL_MAX);
        self.probe_in = self.probe_interval;
        let resume = self.limit;
        self.set_limit(self.limit / 2.0);
        self.phase = Phase::Probing { resume };
    }

    fn lower_to(&mut self, new_limit: f64) {
        self.phase = Phase::Steady;
        self.set_limit(new_limit.clamp(self.limit / 2.0, self.limit));
    }

    /// Sets the limit and begins a new epoch and window.
    fn set_limit(&mut self, new_limit: f64) {
        self.limit = new_limit.clamp(f64::from(self.config.min), f64::from(self.config.max));
        self.epoch = Epoch(self.epoch.0.wrapping_add(1));
        self.window = Window::default();
    }
}

impl fmt::Display for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {:.1}", self.limit)?;
        match (self.idle_ms, self.recent_ms) {
            (Some(idle), Some(recent)) => {
                write!(f, ", first tokens {recent:.0} ms, {idle:.0} ms when not full")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn after_the_first_window_the_idle_latency_is_measured_at_half_the_limit() {
        let mut limit = new_limit();
        assert_eq!(limit.limit(), 8);
        complete_window(&mut limit, 500);
        assert_eq!(limit.limit(), 4);
        complete_window(&mut limit, 50);
        assert_eq!((limit.limit(), limit.status().idle_ms), (9, Some(50.0)));
    }

    #[test]
    fn without_streaming_the_limit_rises_while_the_engine_has_no_queue() {
        let mut silent = new_limit();
        (0..20).for_each(|_| silent.on_engine_queue(0, silent.limit()));
        assert_eq!(silent.limit(), 28);
        silent.on_engine_queue(0, 5);
        assert_eq!(silent.limit(), 28, "too little of the limit is in use");
        let mut streaming = measured_limit();
        streaming.on_engine_queue(0, 8);
        assert_eq!(
            streaming.limit(),
            8,
            "once there are first tokens, the absence of a queue does not raise the limit"
        );
    }

    #[test]
    fn the_limit_rises_while_first_tokens_are_as_fast_as_idle() {
        let mut limit = measured_limit();
        (0..40).for_each(|_| complete_window(&mut limit, 50));
        assert!(limit.limit() > 60, "{}", limit.status());
    }

    #[test]
    fn the_limit_does_not_rise_while_little_of_it_is_used() {
        let mut limit = measured_limit();
        for _ in 0..100 {
            let epoch = limit.on_send(5);
            limit.on_first_token(epoch, Duration::from_millis(50));
        }
        assert_eq!(limit.limit(), 8);
    }

    #[test]
    fn the_limit_falls_when_first_tokens_are_late() {
        let mut limit = measured_limit();
        complete_window(&mut limit, 500);
        assert_eq!(limit.limit(), 7);
        // The engine is slow only with more than six requests; during a probe it is as fast as before.
        for _ in 0..200 {
            let millis = if limit.limit() > 6 { 500 } else { 50 };
            complete_window(&mut limit, millis);
        }
        assert!((3..=9).contains(&limit.limit()), "{}", limit.status());
    }

    #[test]
    fn results_of_requests_sent_in_an_earlier_epoch_are_ignored() {
        let mut limit = new_limit();
        let old = limit.on_send(4);
        measure_idle_latency(&mut limit);
        (0..1_000).for_each(|_| limit.on_first_token(old, Duration::from_secs(9)));
        limit.on_rejection(old, 0);
        assert_eq!(limit.limit(), 8);
    }

    #[test]
    fn only_the_first_of_several_simultaneous_rejections_counts() {
        let mut limit = measured_limit();
        let epoch = limit.on_send(8);
        (0..8).for_each(|_| limit.on_rejection(epoch, 6));
        assert_eq!(limit.limit(), 5);
        let epoch = limit.on_send(5);
        limit.on_rejection(epoch, 0);
        assert_eq!(limit.limit(), 2, "at least half of it is left");
    }

    #[test]
    fn an_engine_queue_does_not_lower_the_limit_again_before_the_decrease_took_effect() {
        let mut limit = measured_limit();
        limit.on_engine_queue(1, 8);
        assert_eq!(limit.limit(), 8, "one of eight may wait for the next batch step");
        limit.on_engine_queue(9, 8);
        assert_eq!(limit.limit(), 6);
        limit.on_engine_queue(9, 8);
        assert_eq!(limit.limit(), 6, "more than the new limit are still in flight");
        limit.on_engine_queue(9, 2);
        assert_eq!(limit.limit(), 6, "the queue is caused by other clients");
        limit.on_engine_queue(9, 6);
        assert_eq!(limit.limit(), 4);
    }

    #[test]
    fn a_slower_engine_is_soon_distinguished_from_a_full_one() {
        let mut limit = measured_limit();
        (0..20).for_each(|_| complete_window(&mut limit, 50));
        let before = limit.limit();
        (0..200).for_each(|_| complete_window(&mut limit, 150));
        assert!(limit.limit() > before, "{}", limit.status());
    }

    #[test]
    fn settings_out_of_range_are_rejected() {
        let error = |config: LimitConfig| ConcurrencyLimit::new(config).unwrap_err().to_string();
        let default = LimitConfig::default();
        assert_eq!(error(LimitConfig { min: 0, ..default }), "min 0 is not between 1 and 65536");
        assert_eq!(error(LimitConfig { max: 0, ..default }), "max 0 is not between 1 and 65536");
        assert_eq!(error(LimitConfig { initial: 300, ..default }), "initial 300 is not between 1 and 256");
        assert_eq!(error(LimitConfig { tolerance: 0.5, ..default }), "tolerance 0.5 is not between 1 and 10");
    }

    #[test]
    fn the_status_displays_the_latencies_once_known() {
        let mut limit = new_limit();
        assert_eq!(limit.status().to_string(), "limit 8.0");
        measure_idle_latency(&mut limit);
        assert_eq!(limit.status().to_string(), "limit 8.0, first tokens 50 ms, 50 ms when not full");
    }

    fn new_limit() -> ConcurrencyLimit {
        ConcurrencyLimit::new(LimitConfig::default()).unwrap()
    }

    /// Creates a limit of eight with a known idle latency of 50 ms.
    fn measured_limit() -> ConcurrencyLimit {
        let mut limit = new_limit();
        measure_idle_latency(&mut limit);
        limit
    }

    /// Completes a window and a probe at 50 ms, then sets the limit to eight.
    fn measure_idle_latency(limit: &mut ConcurrencyLimit) {
        complete_window(limit, 50);
        complete_window(limit, 50);
        limit.limit = 8.0;
    }

    /// Completes a window in which the whole limit is used and every first token takes `millis`.
    fn complete_window(limit: &mut ConcurrencyLimit, millis: u64) {
        let epoch = limit.on_send(limit.limit());
        let in_flight = limit.limit();
        while limit.on_send(in_flight) == epoch {
            limit.on_first_token(epoch, Duration::from_millis(millis));
        }
    }
}
