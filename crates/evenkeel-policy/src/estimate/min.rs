//! Shortest time span of a sliding window.

use super::slices::{SliceCounter, Slices};
use crate::time::{Duration, Instant, nanos};

const SLICES: usize = 10;

/// Sliding window of time spans from which the shortest can be read, in less than 200 bytes.
#[derive(Clone, Debug)]
pub struct MinWindow {
    slices: Slices<Shortest, SLICES>,
}

impl MinWindow {
    /// Creates an empty window of ten equal slices, each at least a nanosecond long.
    pub fn new(window: Duration) -> Self {
        Self { slices: Slices::with_slice(window / SLICES as u32) }
    }

    /// Records a span measured at `now`.
    pub fn record(&mut self, now: Instant, span: Duration) {
        let span = nanos(span);
        self.slices.record(now, |shortest| shortest.0 = shortest.0.min(span));
    }

    /// Returns the shortest span of the window that ends at `now`; `None` while the window is empty.
    pub fn min(&self, now: Instant) -> Option<Duration> {
        // The total is of no use here: an expired minimum cannot be subtracted.
        let shortest = self.slices.each(now).map(|shortest| shortest.0).min()?;
        (shortest < Shortest::NONE.0).then_some(Duration::from_nanos(shortest))
    }
}

/// Shortest span of a slice, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Shortest(u64);

impl Shortest {
    const NONE: Self = Self(u64::MAX);
}

impl Default for Shortest {
    fn default() -> Self {
        Self::NONE
    }
}

impl SliceCounter for Shortest {
    fn subtract(&mut self, _other: &Self) {}

    fn clear(&mut self) {
        *self = Self::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_is_forgotten_after_the_window() {
        let mut window = MinWindow::new(Duration::from_secs(10));
        assert_eq!(at(&window, 0), None);
        record(&mut window, 500, 3);
        record(&mut window, 900, 7);
        record(&mut window, 4_000, 5);
        assert_eq!(at(&window, 9_999), Some(3));
        assert_eq!(at(&window, 10_000), Some(5));
        assert_eq!(at(&window, 13_999), Some(5));
        assert_eq!(at(&window, 14_000), None);
        record(&mut window, 30_000, 9);
        assert_eq!(at(&window, 30_000), Some(9), "slices that expired during the pause are cleared");
    }

    #[test]
    fn a_window_takes_less_than_200_bytes() {
        assert!(size_of::<MinWindow>() < 200, "{} bytes", size_of::<MinWindow>());
    }

    fn record(window: &mut MinWindow, at_ms: u64, span_ms: u64) {
        window.record(Instant::from_millis(at_ms), Duration::from_millis(span_ms));
    }

    fn at(window: &MinWindow, at_ms: u64) -> Option<u64> {
        window.min(Instant::from_millis(at_ms)).map(|span| span.as_millis() as u64)
    }
}
