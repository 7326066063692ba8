//! Times at which the baseline is measured.
//!
//! Guarantees: probes take at most a twentieth of the time.

use super::baseline::PromptClass;
use crate::time::{Duration, Instant, scaled};

/// Time from the creation of a limit to its first probe.
const FIRST_PROBE_AFTER: Duration = Duration::from_secs(20);
/// Minimum time between two probes.
const PROBE_INTERVAL_MIN: Duration = Duration::from_secs(30);
/// Minimum time between two probes, as a multiple of the last one's duration.
const PROBE_INTERVAL_FACTOR: f64 = 20.0;
/// Idle samples that make a probe unnecessary.
const IDLE_SAMPLES_MIN: u32 = 8;

/// Times of the probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeSchedule {
    next_at: Option<Instant>,
    /// Time before which even a suspected queue starts no probe.
    allowed_at: Instant,
    idle_samples: u32,
    last_idle_at: Option<Instant>,
    /// Class whose baseline is to be measured.
    missing: Option<PromptClass>,
    random: u64,
}

impl ProbeSchedule {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            next_at: None,
            allowed_at: Instant::ORIGIN,
            idle_samples: 0,
            last_idle_at: None,
            missing: None,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// Returns the time of the last idle sample.
    pub(super) fn last_idle_at(&self) -> Option<Instant> {
        self.last_idle_at
    }

    /// Returns the class whose baseline is to be measured.
    pub(super) fn missing(&self) -> Option<PromptClass> {
        self.missing
    }

    /// Schedules the first probe when the first request is sent.
    pub(super) fn start(&mut self, now: Instant) {
        if self.next_at.is_none() {
            self.next_at = Some(now + FIRST_PROBE_AFTER);
        }
    }

    pub(super) fn on_idle_sample(&mut self, now: Instant) {
        self.idle_samples = self.idle_samples.saturating_add(1);
        self.last_idle_at = Some(now);
    }

    /// Reports whether a probe is due; idle samples that came without one postpone it.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.next_at.is_none_or(|next_at| now < next_at) {
            return false;
        }
        if self.idle_samples < IDLE_SAMPLES_MIN {
            return true;
        }
        self.postpone(now, PROBE_INTERVAL_MIN);
        false
    }

    /// Brings the next probe forward as far as the interval allows, because a baseline is missing.
    pub(super) fn hasten(&mut self, now: Instant, missing: PromptClass) {
        self.missing = Some(missing);
        self.next_at = self.next_at.min(Some(self.allowed_at.max(now)));
        self.idle_samples = 0;
    }

    /// Reports whether a suspected queue should first be confirmed by a probe.
    pub(super) fn should_confirm(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.since(at) < PROBE_INTERVAL_MIN;
        self.allowed_at <= now && !self.last_idle_at.is_some_and(is_recent)
    }

    pub(super) fn on_probe_start(&mut self) {
        self.idle_samples = 0;
    }

    pub(super) fn on_probe_end(&mut self, now: Instant, took: Duration) {
        let interval = scaled(took, PROBE_INTERVAL_FACTOR).max(PROBE_INTERVAL_MIN);
        self.allowed_at = now + interval;
        self.postpone(now, interval);
    }

    /// Schedules the next probe after 1 to 1.5 times the interval.
    fn postpone(&mut self, now: Instant, interval: Duration) {
        self.idle_samples = 0;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let jitter = (self.random >> 40) as f64 / (1_u64 << 24) as f64;
        self.next_at = Some(now + scaled(interval, 1.0 + 0.5 * jitter));
    }
}
