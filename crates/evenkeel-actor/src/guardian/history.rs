//! The restart history of an actor.
//!
//! Limits: one timestamp per restart in the window, so at most `max_restarts`; an actor that never failed allocates
//! nothing.

use alloc::vec::Vec;
use core::time::Duration;

use evenkeel_policy::time::Instant;

/// The restart history of one actor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartHistory {
    /// The times of the failures that led to a restart within the window.
    times: Vec<Instant>,
    /// The end of the last restart's delay.
    back_at: Instant,
    consecutive: u32,
}

impl RestartHistory {
    /// Returns the history of an actor that never failed.
    pub const fn new() -> Self {
        Self { times: Vec::new(), back_at: Instant::ORIGIN, consecutive: 0 }
    }

    /// Returns the number of restarts in the window at the last decision, one granted by it included.
    pub fn restarts(&self) -> u32 {
        // Never more than `max_restarts`, which is a u32.
        self.times.len() as u32
    }

    /// Returns the number of restarts since the actor last ran for a whole window without a failure.
    pub fn consecutive(&self) -> u32 {
        self.consecutive
    }

    pub(super) fn forget_old(&mut self, now: Instant, within: Duration) {
        self.times.retain(|restart| now.since(*restart) < within);
        // Measured from the end of the delay, because an actor that waits for its restart does not run.
        if within <= now.since(self.back_at) {
            self.consecutive = 0;
        }
    }

    pub(super) fn restart(&mut self, now: Instant, after: Duration) {
        self.times.push(now);
        self.back_at = now + after;
        self.consecutive = self.consecutive.saturating_add(1);
    }
}
