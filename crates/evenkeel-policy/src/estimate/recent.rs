//! The last few spans, for judgements that count samples rather than seconds.

use super::Quantile;
use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, nanos};

/// How many spans to keep, 1..=32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentLen(usize);

impl RecentLen {
    /// The most spans that can be kept.
    pub const MAX: Self = Self(32);

    /// Takes a number from 1 to 32.
    pub fn new(len: usize) -> Result<Self, SettingOutOfRange> {
        check("number of recent spans", len as f64, 1.0..=Self::MAX.0 as f64)?;
        Ok(Self(len))
    }
}

/// Twenty, the fewest of which one may stray without being the p95.
impl Default for RecentLen {
    fn default() -> Self {
        Self(20)
    }
}

/// The last few spans, and any exact quantile of them.
///
/// Recording moves at most as many numbers as are kept, and allocates nothing.
#[derive(Clone, Debug)]
pub struct RecentSpans {
    len_max: RecentLen,
    len: usize,
    /// Where the next span goes: the oldest one once all places are taken.
    next: usize,
    arrived: [u64; RecentLen::MAX.0],
    sorted: [u64; RecentLen::MAX.0],
}

impl RecentSpans {
    /// Makes room for `len_max` spans.
    pub const fn new(len_max: RecentLen) -> Self {
        let empty = [0; RecentLen::MAX.0];
        Self { len_max, len: 0, next: 0, arrived: empty, sorted: empty }
    }

    /// Takes a span in, and lets the oldest go if there is no room.
    pub fn record(&mut self, span: Duration) {
        let span = nanos(span);
        if self.len == self.len_max.0 {
            let oldest = self.place(self.arrived[self.next]);
            self.sorted.copy_within(oldest + 1..self.len, oldest);
            self.len -= 1;
        }
        let place = self.place(span);
        self.sorted.copy_within(place..self.len, place + 1);
        self.sorted[place] = span;
        self.len += 1;
        self.arrived[self.next] = span;
        self.next = (self.next + 1) % self.len_max.0;
    }

    fn place(&self, span: u64) -> usize {
        self.sorted[..self.len].partition_point(|&smaller| smaller < span)
    }

    /// Names the span at `quantile`, `None` before the first one.
    pub fn quantile(&self, quantile: Quantile) -> Option<Duration> {
        let rank = quantile.rank(self.len as u64)?;
        Some(Duration::from_nanos(self.sorted[rank as usize - 1]))
    }

    /// Counts the spans kept.
    pub const fn samples(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_oldest_span_makes_room() {
        let mut spans = RecentSpans::new(RecentLen::new(3).unwrap());
        assert_eq!(largest(&spans), None);
        record(&mut spans, &[9, 1, 2]);
        assert_eq!(largest(&spans), Some(9));
        record(&mut spans, &[3]);
        assert_eq!(largest(&spans), Some(3));
        assert_eq!(spans.samples(), 3);
    }

    #[test]
    fn one_spike_in_twenty_is_not_the_p95() {
        let mut spans = RecentSpans::new(RecentLen::default());
        record(&mut spans, &[10; 19]);
        record(&mut spans, &[900]);
        assert_eq!(spans.quantile(Quantile::P95), Some(Duration::from_millis(10)));
        record(&mut spans, &[900]);
        assert_eq!(spans.quantile(Quantile::P95), Some(Duration::from_millis(900)));
    }

    #[test]
    fn keeping_none_or_too_many_is_refused() {
        assert_eq!(RecentLen::new(32), Ok(RecentLen::MAX));
        assert_eq!(RecentLen::new(20), Ok(RecentLen::default()));
        assert!(RecentLen::new(33).is_err());
        let refused = RecentLen::new(0).unwrap_err();
        assert_eq!(refused.to_string(), "number of recent spans 0 is not between 1 and 32");
    }

    fn record(spans: &mut RecentSpans, millis: &[u64]) {
        for &millis in millis {
            spans.record(Duration::from_millis(millis));
        }
    }

    fn largest(spans: &RecentSpans) -> Option<u64> {
        let largest = spans.quantile(Quantile::new(1.0).unwrap())?;
        Some(largest.as_millis() as u64)
    }
}
