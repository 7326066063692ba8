//! The last few spans, for judgements that count samples rather than seconds.

use core::fmt;

use super::Quantile;
use crate::time::{Duration, nanos};

/// The last `len_max` spans, and any exact quantile of them.
///
/// Recording moves at most `len_max` numbers and allocates nothing.
#[derive(Clone, Debug)]
pub struct RecentSpans {
    len_max: usize,
    len: usize,
    /// Where the next span goes: the oldest one once all places are taken.
    next: usize,
    arrived: [u64; Self::LEN_LIMIT],
    sorted: [u64; Self::LEN_LIMIT],
}

impl RecentSpans {
    /// The most spans that can be kept.
    pub const LEN_LIMIT: usize = 32;

    /// Makes room for 1..=[`LEN_LIMIT`](Self::LEN_LIMIT) spans.
    pub fn new(len_max: usize) -> Result<Self, RecentLenOutOfRange> {
        if !(1..=Self::LEN_LIMIT).contains(&len_max) {
            return Err(RecentLenOutOfRange { len_max });
        }
        Ok(Self { len_max, len: 0, next: 0, arrived: [0; Self::LEN_LIMIT], sorted: [0; Self::LEN_LIMIT] })
    }

    /// Takes a span in, and lets the oldest go if there is no room.
    pub fn record(&mut self, span: Duration) {
        let span = nanos(span);
        if self.len == self.len_max {
            let oldest = self.place(self.arrived[self.next]);
            self.sorted.copy_within(oldest + 1..self.len, oldest);
            self.len -= 1;
        }
        let place = self.place(span);
        self.sorted.copy_within(place..self.len, place + 1);
        self.sorted[place] = span;
        self.len += 1;
        self.arrived[self.next] = span;
        self.next = (self.next + 1) % self.len_max;
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

    /// Forgets every span.
    pub const fn clear(&mut self) {
        self.len = 0;
        self.next = 0;
    }
}

/// A number of spans that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentLenOutOfRange {
    /// The number as given.
    pub len_max: usize,
}

impl fmt::Display for RecentLenOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} recent spans is not between 1 and {}", self.len_max, RecentSpans::LEN_LIMIT)
    }
}

impl core::error::Error for RecentLenOutOfRange {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_oldest_span_makes_room() {
        let mut spans = RecentSpans::new(3).unwrap();
        assert_eq!(largest(&spans), None);
        record(&mut spans, &[9, 1, 2]);
        assert_eq!(largest(&spans), Some(9));
        record(&mut spans, &[3]);
        assert_eq!(largest(&spans), Some(3));
        assert_eq!(spans.samples(), 3);
    }

    #[test]
    fn one_spike_in_twenty_is_not_the_p95() {
        let mut spans = RecentSpans::new(20).unwrap();
        record(&mut spans, &[10; 19]);
        record(&mut spans, &[900]);
        assert_eq!(spans.quantile(Quantile::P95), Some(Duration::from_millis(10)));
        record(&mut spans, &[900]);
        assert_eq!(spans.quantile(Quantile::P95), Some(Duration::from_millis(900)));
    }

    #[test]
    fn cleared_spans_are_gone() {
        let mut spans = RecentSpans::new(2).unwrap();
        record(&mut spans, &[5, 6, 7]);
        spans.clear();
        assert_eq!((spans.samples(), largest(&spans)), (0, None));
        record(&mut spans, &[1]);
        assert_eq!(largest(&spans), Some(1));
    }

    #[test]
    fn keeping_none_or_too_many_is_refused() {
        assert!(RecentSpans::new(RecentSpans::LEN_LIMIT).is_ok());
        assert!(RecentSpans::new(RecentSpans::LEN_LIMIT + 1).is_err());
        let refused = RecentSpans::new(0).unwrap_err();
        assert_eq!(refused.to_string(), "0 recent spans is not between 1 and 32");
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
