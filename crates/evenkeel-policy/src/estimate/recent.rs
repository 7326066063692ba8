//! The most recent time spans, for decisions that count samples rather than seconds.

use super::Quantile;
use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, nanos};

/// Number of spans to keep, 1..=32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentLen(usize);

impl RecentLen {
    /// Maximum number of spans.
    pub const MAX: Self = Self(32);

    /// Creates a length from 1 to 32.
    pub fn new(len: usize) -> Result<Self, SettingOutOfRange> {
        check("number of recent spans", len as f64, 1.0..=Self::MAX.0 as f64)?;
        Ok(Self(len))
    }

    /// Returns the number of spans.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// Twenty is the smallest number of samples whose p95 ignores a single outlier.
impl Default for RecentLen {
    fn default() -> Self {
        Self(20)
    }
}

/// The most recent spans, from which any quantile can be read exactly.
///
/// Recording takes O(spans kept) and allocates nothing.
#[derive(Clone, Debug)]
pub struct RecentSpans {
    len_max: RecentLen,
    len: usize,
    /// Index in `arrived` of the next span to write; once the buffer is full, that of the oldest span.
    next: usize,
    arrived: [u64; RecentLen::MAX.0],
    sorted: [u64; RecentLen::MAX.0],
}

impl RecentSpans {
    /// Creates an empty buffer of at most `len_max` spans.
    pub const fn new(len_max: RecentLen) -> Self {
        let empty = [0; RecentLen::MAX.0];
        Self { len_max, len: 0, next: 0, arrived: empty, sorted: empty }
    }

    /// Records a span and drops the oldest one if the buffer is full.
    pub fn record(&mut self, span: Duration) {
        let span = nanos(span);
        if self.len == self.len_max.0 {
            let oldest = self.sorted_index(self.arrived[self.next]);
            self.sorted.copy_within(oldest + 1..self.len, oldest);
            self.len -= 1;
        }
        let index = self.sorted_index(span);
        self.sorted.copy_within(index..self.len, index + 1);
        self.sorted[index] = span;
        self.len += 1;
        self.arrived[self.next] = span;
        self.next = (self.next + 1) % self.len_max.0;
    }

    fn sorted_index(&self, span: u64) -> usize {
        self.sorted[..self.len].partition_point(|&smaller| smaller < span)
    }

    /// Returns the span at `quantile`; `None` before the first one.
    pub fn quantile(&self, quantile: Quantile) -> Option<Duration> {
        let rank = quantile.rank(self.len as u64)?;
        Some(Duration::from_nanos(self.sorted[rank as usize - 1]))
    }

    /// Returns the number of spans kept.
    pub const fn samples(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_full_buffer_drops_the_oldest_span() {
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
    fn a_length_of_zero_or_above_the_maximum_is_rejected() {
        assert_eq!(RecentLen::new(32), Ok(RecentLen::MAX));
        assert_eq!(RecentLen::new(20), Ok(RecentLen::default()));
        assert!(RecentLen::new(33).is_err());
        let error = RecentLen::new(0).unwrap_err();
        assert_eq!(error.to_string(), "number of recent spans 0 is not between 1 and 32");
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
