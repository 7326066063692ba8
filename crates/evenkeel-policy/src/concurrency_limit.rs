//! Adaptive concurrency limit of a node, learned from the time to its first tokens.
//!
//! An engine that batches has a knee: up to it a first token comes about as soon as from an idle engine; past it requests
//! queue inside the engine, where the scheduler has no say. The limit follows the knee by comparing the first tokens of
//! a window with those of an engine that is not full. The duration of whole responses is ignored: the client chooses it
//! by what it requests, so it says nothing about the engine's load.
//!
//! Guarantees: the limit stays within `min..=max`. It rises only at the end of a window in which three quarters of it
//! were in use and no engine queue was seen, by at most its square root (at least one), or by one when a busy engine that
//! has never streamed is seen without a queue. A decrease leaves at least half of it. First tokens and rejections count
//! only for the limit under which their request was sent. One window in `PROBE_INTERVAL_MAX` runs at half the limit, to
//! measure the engine while it is not full.

use core::fmt;

use crate::setting::{SettingOutOfRange, check};
use crate::time::Duration;

/// Maximum number of first tokens in a window.
const WINDOW_MAX: u32 = 64;
/// Minimum number of first tokens in a window, also while probing.
const WINDOW_MIN: u32 = 8;
/// Maximum number of windows between two probes of the idle latency; it starts at one and doubles each time.
const PROBE_INTERVAL_MAX: u32 = 64;
/// Gain by which the idle latency rises between probes; a slower engine is recognised by the next probe.
const RISE: f64 = 0.02;
/// Gain by which the idle latency falls.
const FALL: f64 = 0.5;
/// Fraction of the way that the limit moves towards a window's target.
const SMOOTHING: f64 = 0.5;
/// Network jitter that does not count as late, in milliseconds.
const SLACK_MS: f64 = 5.0;

/// Settings of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitConfig {
    /// Smallest limit, 1 to 65 536.
    pub min: u32,
    /// Largest limit, `min` to 65 536.
    pub max: u32,
    /// Initial limit, `min` to `max`.
    pub initial: u32,
    /// Factor over the idle latency up to which a first token is not late, 1 to 10.
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

/// Period between two changes of a limit; a request's results count only for the epoch in which it was sent.
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
    /// Time to first token while the engine is not full, in milliseconds.
    idle_ms: Option<f64>,
    /// Mean time to first token in the last whole window.
    recent_ms: Option<f64>,
    /// Windows until the idle latency is probed again.
    probe_in: u32,
    probe_interval: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Steady,
    /// Runs a window at half of the limit to measure the idle latency.
    Probing {
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

/// Observation of a queue inside the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EngineQueue {
    #[default]
    Unseen,
    Seen,
}

/// Current limit and the latencies behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitStatus {
    /// Limit including its fraction.
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

    /// Returns the limit with the latencies behind it.
    pub fn status(&self) -> LimitStatus {
        LimitStatus { limit: self.limit, idle_ms: self.idle_ms, recent_ms: self.recent_ms }
    }

    /// Records a request sent, `in_flight` including it, and returns the epoch for which its results count.
    pub fn on_send(&mut self, in_flight: u32) -> Epoch {
        self.window.peak = self.window.peak.max(in_flight);
        self.epoch
    }

    /// Records the time to a first token.
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
        // Of many simultaneous rejections the first one counts.
        if sent_in != self.epoch {
            return;
        }
        let accepted = f64::from(in_flight).min(self.limit);
        self.lower_to(accepted * 0.9);
    }

    /// Records the number of requests waiting inside the engine while `in_flight` of ours are there.
    ///
    /// Some requests wait for the next step of any engine: up to an eighth of the limit is not a queue. Without streaming,
    /// the absence of a queue is the only signal that can raise the limit.
    pub fn on_engine_queue(&mut self, waiting: u32, in_flight: u32) {
        if waiting == 0 && self.is_used(in_flight) && self.has_no_first_token() {
            return self.move_to(self.limit + 1.0);
        }
        if f64::from(waiting) * 8.0 <= self.limit {
            return;
        }
        self.window.queue = EngineQueue::Seen;
        // Above the limit the number in flight is still falling; far below it, the queue is caused by other clients.
        let ours = self.is_used(in_flight) && in_flight <= self.limit();
        if ours {
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

    fn is_used(&self, in_flight: u32) -> bool {
        f64::from(in_flight) >= 0.75 * f64::from(self.limit())
    }

    fn close_window(&mut self) {
        let recent = self.window.sum_ms / f64::from(self.window.samples);
        self.recent_ms = Some(recent);
        match self.phase {
            Phase::Probing { resume } => {
                self.idle_ms = Some(recent);
                self.phase = Phase::Steady;
                self.move_to(resume);
            }
            Phase::Steady => self.adjust(recent),
        }
    }

    fn adjust(&mut self, recent: f64) {
        let idle = match self.idle_ms {
            None => recent,
            Some(idle) if recent < idle => idle + FALL * (recent - idle),
            Some(idle) => idle + RISE * (recent - idle),
        };
        self.idle_ms = Some(idle);
        if !self.is_used(self.window.peak) {
            return self.move_to(self.limit);
        }
        let late = self.config.tolerance * idle + SLACK_MS;
        let gradient = if recent <= late { 1.0 } else { (late / recent).max(0.5) };
        let headroom = match self.window.queue {
            EngineQueue::Unseen => libm::sqrt(self.limit),
            EngineQueue::Seen => 0.0,
        };
        let target = self.limit * gradient + headroom;
        self.move_to(self.limit + SMOOTHING * (target - self.limit));
        self.probe_in = self.probe_in.saturating_sub(1);
        if self.probe_in == 0 {
            self.probe_idle_latency();
        }
    }

    /// Runs the next window at half of the limit.
    fn probe_idle_latency(&mut self) {
        self.probe_interval = (2 * self.probe_interval).min(PROBE_INTERVAL_MAX);
        self.probe_in = self.probe_interval;
        let resume = self.limit;
        self.move_to(self.limit / 2.0);
        self.phase = Phase::Probing { resume };
    }

    fn lower_to(&mut self, wanted: f64) {
        self.phase = Phase::Steady;
        self.move_to(wanted.clamp(self.limit / 2.0, self.limit));
    }

    /// Changes the limit and begins a window.
    fn move_to(&mut self, wanted: f64) {
        self.limit = wanted.clamp(f64::from(self.config.min), f64::from(self.config.max));
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
        let mut limit = new();
        assert_eq!(limit.limit(), 8);
        window(&mut limit, 500);
        assert_eq!(limit.limit(), 4);
        window(&mut limit, 50);
        assert_eq!((limit.limit(), limit.status().idle_ms), (9, Some(50.0)));
    }

    #[test]
    fn without_streaming_the_limit_rises_while_the_engine_has_no_queue() {
        let mut silent = new();
        (0..20).for_each(|_| silent.on_engine_queue(0, silent.limit()));
        assert_eq!(silent.limit(), 28);
        silent.on_engine_queue(0, 5);
        assert_eq!(silent.limit(), 28, "the limit is not used up");
        let mut streaming = limit();
        streaming.on_engine_queue(0, 8);
        assert_eq!(streaming.limit(), 8, "first tokens take precedence");
    }

    #[test]
    fn the_limit_rises_while_first_tokens_are_as_fast_as_idle() {
        let mut limit = limit();
        (0..40).for_each(|_| window(&mut limit, 50));
        assert!(limit.limit() > 60, "{}", limit.status());
    }

    #[test]
    fn the_limit_does_not_rise_while_it_is_not_used() {
        let mut limit = limit();
        for _ in 0..100 {
            let epoch = limit.on_send(5);
            limit.on_first_token(epoch, Duration::from_millis(50));
        }
        assert_eq!(limit.limit(), 8);
    }

    #[test]
    fn the_limit_falls_when_first_tokens_are_late() {
        let mut limit = limit();
        window(&mut limit, 500);
        assert_eq!(limit.limit(), 7);
        // Late only when full: while probing, it is as fast as ever.
        for _ in 0..200 {
            let millis = if limit.limit() > 6 { 500 } else { 50 };
            window(&mut limit, millis);
        }
        assert!((3..=9).contains(&limit.limit()), "{}", limit.status());
    }

    #[test]
    fn results_of_requests_sent_before_a_change_are_ignored() {
        let mut limit = new();
        let old = limit.on_send(4);
        measure(&mut limit);
        (0..1_000).for_each(|_| limit.on_first_token(old, Duration::from_secs(9)));
        limit.on_rejection(old, 0);
        assert_eq!(limit.limit(), 8);
    }

    #[test]
    fn of_many_simultaneous_rejections_one_counts() {
        let mut limit = limit();
        let epoch = limit.on_send(8);
        (0..8).for_each(|_| limit.on_rejection(epoch, 6));
        assert_eq!(limit.limit(), 5);
        let epoch = limit.on_send(5);
        limit.on_rejection(epoch, 0);
        assert_eq!(limit.limit(), 2, "at least half of it is left");
    }

    #[test]
    fn an_engine_queue_lowers_the_limit_once_per_change() {
        let mut limit = limit();
        limit.on_engine_queue(1, 8);
        assert_eq!(limit.limit(), 8, "one of eight waits for the next step");
        limit.on_engine_queue(9, 8);
        assert_eq!(limit.limit(), 6);
        limit.on_engine_queue(9, 8);
        assert_eq!(limit.limit(), 6, "more are still in flight");
        limit.on_engine_queue(9, 2);
        assert_eq!(limit.limit(), 6, "the queue is caused by other clients");
        limit.on_engine_queue(9, 6);
        assert_eq!(limit.limit(), 4);
    }

    #[test]
    fn a_slower_engine_is_soon_distinguished_from_a_full_one() {
        let mut limit = limit();
        (0..20).for_each(|_| window(&mut limit, 50));
        let before = limit.limit();
        (0..200).for_each(|_| window(&mut limit, 150));
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
        let mut limit = new();
        assert_eq!(limit.status().to_string(), "limit 8.0");
        measure(&mut limit);
        assert_eq!(limit.status().to_string(), "limit 8.0, first tokens 50 ms, 50 ms when not full");
    }

    fn new() -> ConcurrencyLimit {
        ConcurrencyLimit::new(LimitConfig::default()).unwrap()
    }

    /// Creates a limit of eight with a known idle latency of 50 ms.
    fn limit() -> ConcurrencyLimit {
        let mut limit = new();
        measure(&mut limit);
        limit
    }

    fn measure(limit: &mut ConcurrencyLimit) {
        window(limit, 50);
        window(limit, 50);
        limit.limit = 8.0;
    }

    /// Completes a window of first tokens while the whole limit is used.
    fn window(limit: &mut ConcurrencyLimit, millis: u64) {
        let epoch = limit.on_send(limit.limit());
        let in_flight = limit.limit();
        while limit.on_send(in_flight) == epoch {
            limit.on_first_token(epoch, Duration::from_millis(millis));
        }
    }
}
