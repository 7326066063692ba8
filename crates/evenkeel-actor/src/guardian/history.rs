//! When an actor was restarted.
//!
//! Bound: one time per restart in the window, so at most `max_restarts` of them; an actor that never
//! failed allocates nothing.

use alloc::vec::Vec;
use core::time::Duration;

use evenkeel_policy::time::Instant;

/// What supervision remembers of one actor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartHistory {
    /// The failures that restarts answered, as long as they lie in the window.
    times: Vec<Instant>,
    /// When the last restart's delay ends; what the actor does until then is wait, not run.
    back_at: Instant,
    consecutive: u32,
}

impl RestartHistory {
    /// Makes the history of an actor that never failed.
    pub const fn new() -> Self {
        Self { times: Vec::new(), back_at: Instant::ORIGIN, consecutive: 0 }
    }

    /// Counts the restarts that lay in the window at the last decision, one granted then included.
    pub fn restarts(&self) -> u32 {
        // Never more than `max_restarts`, which is a u32.
        self.times.len() as u32
    }

    /// Counts the restarts in a row: those since the actor last ran for a whole window without failing.
    pub fn consecutive(&self) -> u32 {
        self.consecutive
    }

    pub(super) fn forget_old(&mut self, now: Instant, within: Duration) {
        self.times.retain(|restart| now.since(*restart) < within);
        // From the end of the delay: a delay as long as the window must not count as a quiet one.
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
