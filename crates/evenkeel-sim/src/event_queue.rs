//! Event queue of the discrete-event simulation: a virtual clock and scheduled events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_policy::time::{Duration, Instant};

/// The next step of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// The timer is due, at this time.
    Timer(Instant),
    Event(T),
}

/// Returns events by time, and those at the same time in the order in which they were scheduled.
#[derive(Debug)]
pub struct EventQueue<T> {
    scheduled: BinaryHeap<Reverse<(Instant, u64, ScheduledItem<T>)>>,
    next_number: u64,
    now: Instant,
}

impl<T> EventQueue<T> {
    /// Creates an empty queue at the origin of time.
    pub fn new() -> Self {
        Self { scheduled: BinaryHeap::new(), next_number: 0, now: Instant::ORIGIN }
    }

    /// Returns the virtual time, which is that of the last step.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Schedules an event `after` from now.
    pub fn schedule(&mut self, after: Duration, event: T) {
        self.scheduled.push(Reverse((self.now + after, self.next_number, ScheduledItem(event))));
        self.next_number += 1;
    }

    /// Advances the clock to the next event or to `timer`, whichever is earlier, unless that is after `end`. If both are due
    /// at the same time, the timer is first.
    pub fn next_step(&mut self, timer: Option<Instant>, end: Instant) -> Option<Step<T>> {
        let next = self.scheduled.peek().map(|Reverse((at, ..))| *at);
        match timer.filter(|due| *due <= end && next.is_none_or(|next| *due <= next)) {
            Some(due) => {
                self.now = self.now.max(due);
                Some(Step::Timer(due))
            }
            None => self.next_until(end).map(Step::Event),
        }
    }

    /// Advances the clock to the next event and returns it, unless it is after `end`.
    pub fn next_until(&mut self, end: Instant) -> Option<T> {
        if self.scheduled.peek().is_none_or(|Reverse((at, ..))| end < *at) {
            return None;
        }
        let Reverse((at, _, ScheduledItem(event))) = self.scheduled.pop()?;
        self.now = at;
        Some(event)
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// An event that compares equal to every other, so that only time and sequence number order the heap.
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
    fn events_are_returned_by_time_and_then_in_the_order_they_were_scheduled() {
        let mut queue = EventQueue::new();
        for (millis, event) in [(5, "late"), (1, "first"), (1, "second"), (9, "too late")] {
            queue.schedule(Duration::from_millis(millis), event);
        }
        let end = Instant::from_millis(5);
        let mut seen = vec![];
        while let Some(event) = queue.next_until(end) {
            seen.push((queue.now().as_nanos() / 1_000_000, event));
        }
        assert_eq!(seen, [(1, "first"), (1, "second"), (5, "late")]);
    }

    #[test]
    fn a_timer_is_due_before_an_event_at_the_same_time_and_not_after_the_end() {
        let mut queue = EventQueue::new();
        queue.schedule(Duration::from_millis(2), "event");
        let end = Instant::from_millis(4);
        let [early, same, last, late] = [1, 2, 4, 5].map(Instant::from_millis);
        assert_eq!(queue.next_step(Some(early), end), Some(Step::Timer(early)));
        assert_eq!(queue.next_step(Some(same), end), Some(Step::Timer(same)));
        assert_eq!(queue.next_step(Some(last), end), Some(Step::Event("event")));
        assert_eq!((queue.next_step(Some(last), end), queue.now()), (Some(Step::Timer(last)), last));
        assert_eq!(queue.next_step(Some(early), end), Some(Step::Timer(early)));
        assert_eq!(queue.now(), last, "the clock never goes back");
        assert_eq!(queue.next_step(Some(late), end), None);
    }
}
