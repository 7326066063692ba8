//! Timers of the runtime: actor timers, receive timeouts, ends of suspensions, and ask deadlines.

use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::cell::CellRef;
use crate::raw::oneshot::DeadlineHandle;
use crate::timing_wheel::TimerKey;

/// Identifier of a timer, chosen by its actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerId(pub u64);

/// Repetition of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Fires once.
    Once,
    /// Fires at this interval, counted from the due time; missed firings are skipped.
    Every(Duration),
}

/// A pending timer of the timer driver.
///
/// The event carries its due time, so that a firing of a timer that has since been cancelled or replaced is
/// recognized and ignored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimerEntry {
    pub(crate) key: TimerKey,
    pub(crate) due: Instant,
}

/// Event that a timer delivers.
#[derive(Debug)]
pub(crate) enum TimerEvent {
    /// A timer set by an actor.
    Timer { cell: CellRef, id: TimerId },
    /// The receive timeout of an actor may have elapsed.
    ReceiveTimeout(CellRef),
    /// A suspension or a restart backoff ends.
    Resume(CellRef),
    /// An ask in a cell's future may have timed out.
    Repoll(CellRef),
    /// The deadline of an ask has passed.
    Ask(DeadlineHandle),
}

/// Returns the next due time of a periodic timer: the first one after `now`.
pub(crate) fn next_due(due: Instant, interval: Duration, now: Instant) -> Instant {
    let interval = interval.max(Duration::from_nanos(1));
    let missed = now.since(due).as_nanos() / interval.as_nanos();
    let steps = u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1);
    due + interval.saturating_mul(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_periodic_timer_keeps_its_phase_and_skips_missed_firings() {
        let due =
            |now| next_due(Instant::from_millis(100), Duration::from_millis(10), Instant::from_millis(now));
        assert_eq!(due(100), Instant::from_millis(110));
        assert_eq!(due(137), Instant::from_millis(140));
    }
}
