//! What the clock holds for cells: timers, receive timeouts, ends of suspensions, deadlines of asks.

use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::cell::CellRef;
use crate::raw::oneshot::DeadlineHandle;
use crate::timing_wheel::TimerKey;

/// Names one timer of one actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerId(pub u64);

/// Whether a timer fires again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Once.
    Once,
    /// Again after each span, counted from when it was due; a late one is not made up for.
    Every(Duration),
}

/// An entry of the clock.
///
/// What comes of it says when it was due, so that one under way when its entry was cancelled or
/// replaced is known for what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimerEntry {
    pub(crate) key: TimerKey,
    pub(crate) due: Instant,
}

/// What is due at some time.
#[derive(Debug)]
pub(crate) enum TimerEvent {
    /// A timer of an actor's own.
    Timer { cell: CellRef, id: TimerId },
    /// An actor may have been idle for as long as it asked.
    ReceiveTimeout(CellRef),
    /// End a suspension, or try a failed actor again.
    Resume(CellRef),
    /// Something in the future a cell waits for may have expired.
    Expire(CellRef),
    /// An answer that should have come.
    Ask(DeadlineHandle),
}

/// When a periodic timer is due next: the first time after `now` that it would have been.
pub(crate) fn next_due(due: Instant, every: Duration, now: Instant) -> Instant {
    let every = every.max(Duration::from_nanos(1));
    let late = now.since(due).as_nanos() / every.as_nanos();
    let steps = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
    due + every.saturating_mul(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_is_late_keeps_its_beat_and_skips_what_it_missed() {
        let due =
            |now| next_due(Instant::from_millis(100), Duration::from_millis(10), Instant::from_millis(now));
        assert_eq!(due(100), Instant::from_millis(110));
        assert_eq!(due(137), Instant::from_millis(140));
    }
}
