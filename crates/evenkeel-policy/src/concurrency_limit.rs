//! How many requests a node should work on at once, learned from how soon it begins its answers.
//!
//! An engine that batches has a knee: up to it a first token comes about as soon as from an idle engine, past it requests
//! queue inside of the engine, where nobody's turn counts. The limit follows the knee by comparing the first tokens of a
//! window with what they take when the engine is not full. How long whole answers take is never looked at: that is the
//! client's wish, not the engine's load.
//!
//! Bounds: the limit stays within `min..=max`. It rises only at the end of a window in which three quarters of it were in
//! use and no queue was seen, by at most its square root (one at least), or by one when a used engine that nobody has
//! streamed from is seen without a queue; whatever lowers it leaves half of it at least. First tokens and refusals count
//! only for the limit their request was sent under. One window in `EASE_EVERY_MAX` runs at half the limit, to measure the
//! engine while it is not full.

use core::fmt;

use crate::setting::{SettingOutOfRange, check};
use crate::time::Duration;

/// The most first tokens that make a window.
const WINDOW_MAX: u32 = 64;
/// The fewest, also while eased off.
const WINDOW_MIN: u32 = 8;
/// After how many windows the engine is measured again, at most; at first after one, then twice as many each time.
const EASE_EVERY_MAX: u32 = 64;
/// How fast what an idle engine takes is believed to grow: a change of the engine is seen when it is eased off.
const RISE: f64 = 0.02;
/// How fast it is believed to fall.
const FALL: f64 = 0.5;
/// How far the limit moves towards where a window says it should be.
const SMOOTHING: f64 = 0.5;
/// What first tokens may be late by without being called late, in milliseconds: networks do that.
const SLACK_MS: f64 = 5.0;

/// What a limit is set up with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitConfig {
    /// The least it may be, 1 to 65 536.
    pub min: u32,
    /// The most it may be, `min` to 65 536.
    pub max: u32,
    /// Where it begins, `min` to `max`.
    pub initial: u32,
    /// How many times as long as from an idle engine a first token may take, 1 to 10.
    pub tolerance: f64,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self { min: 1, max: 256, initial: 8, tolerance: 1.5 }
    }
}

impl LimitConfig {
    /// Refuses what is out of range.
    pub fn check(&self) -> Result<(), SettingOutOfRange> {
        check("min", self.min, 1.0..=65_536.0)?;
        check("max", self.max, f64::from(self.min)..=65_536.0)?;
        check("initial", self.initial, f64::from(self.min)..=f64::from(self.max))?;
        check("tolerance", self.tolerance, 1.0..=10.0)
    }
}

/// Names the time between two changes of a limit: what a request says counts in the one it was sent in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch(u32);

/// A limit that follows an engine's knee.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyLimit {
    config: LimitConfig,
    limit: f64,
    phase: Phase,
    epoch: Epoch,
    window: Window,
    /// What a first token takes while the engine is not full, in milliseconds.
    idle_ms: Option<f64>,
    /// What it took in the last whole window.
    recent_ms: Option<f64>,
    /// Windows until the engine is measured again.
    ease_in: u32,
    ease_every: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Steady,
    /// Half of the limit, for a window.
    Eased {
        resume: f64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    samples: u32,
    sum_ms: f64,
    /// The most that were in flight at once.
    peak: u32,
    queue: EngineQueue,
}

/// Whether the engine was seen to have a queue of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EngineQueue {
    #[default]
    Unseen,
    Seen,
}

/// How a limit stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitStatus {
    /// The limit, with its fraction.
    pub limit: f64,
    /// What a first token takes while the engine is not full, in milliseconds, once that is known.
    pub idle_ms: Option<f64>,
    /// What it took lately.
    pub recent_ms: Option<f64>,
}

impl ConcurrencyLimit {
    /// Begins where it is told to; the engine is measured after the first window.
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
            ease_in: 1,
            ease_every: 1,
        })
    }

    /// How many requests may be in flight.
    pub fn limit(&self) -> u32 {
        (self.limit as u32).clamp(self.config.min, self.config.max)
    }

    /// How it stands.
    pub fn status(&self) -> LimitStatus {
        LimitStatus { limit: self.limit, idle_ms: self.idle_ms, recent_ms: self.recent_ms }
    }

    /// Notes that a request is sent, which makes `in_flight`; what it says later counts for the epoch returned.
    pub fn on_send(&mut self, in_flight: u32) -> Epoch {
        self.window.peak = self.window.peak.max(in_flight);
        self.epoch
    }

    /// Takes in how long a first token took.
    pub fn on_first_token(&mut self, sent_in: Epoch, after: Duration) {
        if sent_in != self.epoch {
            return;
        }
        self.window.samples += 1;
        self.window.sum_ms += after.as_secs_f64() * 1_000.0;
        if self.window_len() <= self.window.samples {
            self.close_window();
        }
    }

    /// Takes in that the engine refused a request for want of room, while it had `in_flight` others.
    pub fn on_refusal(&mut self, sent_in: Epoch, in_flight: u32) {
        // One refusal of many at once says it all.
        if sent_in != self.epoch {
            return;
        }
        let taken = f64::from(in_flight).min(self.limit);
        self.lower_to(taken * 0.9);
    }

    /// Takes in how many requests wait inside of the engine, while ours that are there are `in_flight`.
    ///
    /// A few wait for the next step of any engine: up to an eighth of the limit is no queue. Where nobody streams, that
    /// there is none is all that is ever heard.
    pub fn on_engine_queue(&mut self, waiting: u32, in_flight: u32) {
        if waiting == 0 && self.is_used(in_flight) && self.has_heard_nothing() {
            return self.move_to(self.limit + 1.0);
        }
        if f64::from(waiting) * 8.0 <= self.limit {
            return;
        }
        self.window.queue = EngineQueue::Seen;
        // Above the limit it still falls; far below it, the queue is not ours.
        let ours = self.is_used(in_flight) && in_flight <= self.limit();
        if ours {
            self.lower_to(self.limit - f64::from(waiting).clamp(1.0, (self.limit / 4.0).max(1.0)));
        }
    }

    /// Whether no first token has ever come.
    fn has_heard_nothing(&self) -> bool {
        self.recent_ms.is_none() && self.window.samples == 0
    }

    fn window_len(&self) -> u32 {
        match self.phase {
            Phase::Steady => self.limit().clamp(WINDOW_MIN, WINDOW_MAX),
            Phase::Eased { .. } => WINDOW_MIN,
        }
    }

    fn is_used(&self, in_flight: u32) -> bool {
        0.75 * f64::from(self.limit()) <= f64::from(in_flight)
    }

    fn close_window(&mut self) {
        let recent = self.window.sum_ms / f64::from(self.window.samples);
        self.recent_ms = Some(recent);
        match self.phase {
            Phase::Eased { resume } => {
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
        self.ease_in = self.ease_in.saturating_sub(1);
        if self.ease_in == 0 {
            self.probe_idle_latency();
        }
    }

    /// Runs at half of the limit for a window.
    fn probe_idle_latency(&mut self) {
        self.ease_every = (2 * self.ease_every).min(EASE_EVERY_MAX);
        self.ease_in = self.ease_every;
        let resume = self.limit;
        self.move_to(self.limit / 2.0);
        self.phase = Phase::Eased { resume };
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
    fn after_its_first_window_it_learns_at_half_what_an_engine_takes_that_is_not_full() {
        let mut limit = new();
        assert_eq!(limit.limit(), 8);
        window(&mut limit, 500);
        assert_eq!(limit.limit(), 4);
        window(&mut limit, 50);
        assert_eq!((limit.limit(), limit.status().idle_ms), (9, Some(50.0)));
    }

    #[test]
    fn where_nobody_streams_an_engine_without_a_queue_gets_more() {
        let mut silent = new();
        (0..20).for_each(|_| silent.on_engine_queue(0, silent.limit()));
        assert_eq!(silent.limit(), 28);
        silent.on_engine_queue(0, 5);
        assert_eq!(silent.limit(), 28, "it does not use what it has");
        let mut streaming = limit();
        streaming.on_engine_queue(0, 8);
        assert_eq!(streaming.limit(), 8, "its first tokens say more");
    }

    #[test]
    fn it_rises_while_first_tokens_come_as_soon_as_from_an_idle_engine() {
        let mut limit = limit();
        (0..40).for_each(|_| window(&mut limit, 50));
        assert!(60 < limit.limit(), "{}", limit.status());
    }

    #[test]
    fn it_does_not_rise_while_it_is_not_used() {
        let mut limit = limit();
        for _ in 0..100 {
            let epoch = limit.on_send(5);
            limit.on_first_token(epoch, Duration::from_millis(50));
        }
        assert_eq!(limit.limit(), 8);
    }

    #[test]
    fn it_falls_when_first_tokens_come_late() {
        let mut limit = limit();
        window(&mut limit, 500);
        assert_eq!(limit.limit(), 7);
        // Late only when full: eased off, it is as quick as ever.
        for _ in 0..200 {
            let millis = if 6 < limit.limit() { 500 } else { 50 };
            window(&mut limit, millis);
        }
        assert!((3..=9).contains(&limit.limit()), "{}", limit.status());
    }

    #[test]
    fn what_was_sent_before_a_change_says_nothing_about_it() {
        let mut limit = new();
        let old = limit.on_send(4);
        measured(&mut limit);
        (0..1_000).for_each(|_| limit.on_first_token(old, Duration::from_secs(9)));
        limit.on_refusal(old, 0);
        assert_eq!(limit.limit(), 8);
    }

    #[test]
    fn of_many_refusals_at_once_one_counts() {
        let mut limit = limit();
        let epoch = limit.on_send(8);
        (0..8).for_each(|_| limit.on_refusal(epoch, 6));
        assert_eq!(limit.limit(), 5);
        let epoch = limit.on_send(5);
        limit.on_refusal(epoch, 0);
        assert_eq!(limit.limit(), 2, "half of it is left at least");
    }

    #[test]
    fn a_queue_inside_of_the_engine_lowers_it_once_it_has_taken_effect() {
        let mut limit = limit();
        limit.on_engine_queue(1, 8);
        assert_eq!(limit.limit(), 8, "one of eight waits for the next step");
        limit.on_engine_queue(9, 8);
        assert_eq!(limit.limit(), 6);
        limit.on_engine_queue(9, 8);
        assert_eq!(limit.limit(), 6, "what is in flight is still more");
        limit.on_engine_queue(9, 2);
        assert_eq!(limit.limit(), 6, "somebody else's queue");
        limit.on_engine_queue(9, 6);
        assert_eq!(limit.limit(), 4);
    }

    #[test]
    fn an_engine_that_got_slower_is_not_mistaken_for_a_full_one_for_long() {
        let mut limit = limit();
        (0..20).for_each(|_| window(&mut limit, 50));
        let before = limit.limit();
        (0..200).for_each(|_| window(&mut limit, 150));
        assert!(before < limit.limit(), "{}", limit.status());
    }

    #[test]
    fn settings_out_of_range_make_no_limit() {
        let refused = |config: LimitConfig| ConcurrencyLimit::new(config).unwrap_err().to_string();
        let default = LimitConfig::default();
        assert_eq!(refused(LimitConfig { min: 0, ..default }), "min 0 is not between 1 and 65536");
        assert_eq!(refused(LimitConfig { max: 0, ..default }), "max 0 is not between 1 and 65536");
        assert_eq!(refused(LimitConfig { initial: 300, ..default }), "initial 300 is not between 1 and 256");
        assert_eq!(
            refused(LimitConfig { tolerance: 0.5, ..default }),
            "tolerance 0.5 is not between 1 and 10"
        );
    }

    #[test]
    fn how_it_stands_is_told_in_words() {
        let mut limit = new();
        assert_eq!(limit.status().to_string(), "limit 8.0");
        measured(&mut limit);
        assert_eq!(limit.status().to_string(), "limit 8.0, first tokens 50 ms, 50 ms when not full");
    }

    fn new() -> ConcurrencyLimit {
        ConcurrencyLimit::new(LimitConfig::default()).unwrap()
    }

    /// A limit of eight that knows that the engine takes 50 ms while it is not full.
    fn limit() -> ConcurrencyLimit {
        let mut limit = new();
        measured(&mut limit);
        limit
    }

    fn measured(limit: &mut ConcurrencyLimit) {
        window(limit, 50);
        window(limit, 50);
        limit.limit = 8.0;
    }

    /// A window of first tokens while all of the limit is used.
    fn window(limit: &mut ConcurrencyLimit, millis: u64) {
        let epoch = limit.on_send(limit.limit());
        let in_flight = limit.limit();
        while limit.on_send(in_flight) == epoch {
            limit.on_first_token(epoch, Duration::from_millis(millis));
        }
    }
}
