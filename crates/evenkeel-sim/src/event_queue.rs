//! What happens next: a virtual clock and the things that are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_policy::time::{Duration, Instant};

/// Hands out what is due in the order of time; of two things due at once, the one noted first.
#[derive(Debug)]
pub struct EventQueue<T> {
    due: BinaryHeap<Reverse<(Instant, u64, ScheduledItem<T>)>>,
    noted: u64,
    now: Instant,
}

impl<T> EventQueue<T> {
    /// Makes an empty event_queue at the origin of time.
    pub fn new() -> Self {
        Self { due: BinaryHeap::new(), noted: 0, now: Instant::ORIGIN }
    }

    /// The time of what was handed out last.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Notes something that happens `after` from now.
    pub fn schedule(&mut self, after: Duration, what: T) {
        self.due.push(Reverse((self.now + after, self.noted, ScheduledItem(what))));
        self.noted += 1;
    }

    /// When the next thing is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }

    /// Moves the clock on to a time at which nothing noted here is due yet.
    pub fn wait_until(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }

    /// Moves the clock to what is due next and hands it out, unless that lies past `end`.
    pub fn next_until(&mut self, end: Instant) -> Option<T> {
        if self.due.peek().is_none_or(|Reverse((at, ..))| end < *at) {
            return None;
        }
        let Reverse((at, _, ScheduledItem(what))) = self.due.pop()?;
        self.now = at;
        Some(what)
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Something due, of which only time and number decide the order.
#[derive(Debug)]
struct ScheduledItem<T>(T);

impl<T> PartialEq for ScheduledItem<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for ScheduledItem<T> {}

impl<T> PartialOrd for ScheduledItem<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for ScheduledItem<T> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_the_order_of_time_then_of_notice() {
        let mut event_queue = EventQueue::new();
        for (millis, what) in [(5, "late"), (1, "first"), (1, "second"), (9, "too late")] {
            event_queue.schedule(Duration::from_millis(millis), what);
        }
        let end = Instant::from_millis(5);
        let mut seen = vec![];
        while let Some(what) = event_queue.next_until(end) {
            seen.push((event_queue.now().as_nanos() / 1_000_000, what));
        }
        assert_eq!(seen, [(1, "first"), (1, "second"), (5, "late")]);
    }
}
