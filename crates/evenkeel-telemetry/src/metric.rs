//! What is counted: numbers that many threads add to and a page reads.
//!
//! Bound: recording is one relaxed atomic step (two for a histogram), and neither locks, allocates nor hashes; whoever
//! reads never keeps a recorder waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A value on a cache line of its own, so that two cores that count different things do not wait for each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CachePadded<T>(T);

/// A number that only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<CachePadded<AtomicU64>>);

impl Counter {
    /// Counts one.
    pub fn count(&self) {
        self.add(1);
    }

    /// Counts many at once.
    pub fn add(&self, many: u64) {
        self.0.0.fetch_add(many, Relaxed);
    }

    /// Catches up with a total that somebody else keeps; a smaller one changes nothing.
    pub fn advance_to(&self, total: u64) {
        self.0.0.fetch_max(total, Relaxed);
    }

    /// Reads how many were counted.
    pub fn get(&self) -> u64 {
        self.0.0.load(Relaxed)
    }
}

/// A whole number that comes and goes.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<CachePadded<AtomicI64>>);

impl Gauge {
    /// Replaces the number.
    pub fn set(&self, value: i64) {
        self.0.0.store(value, Relaxed);
    }

    /// Adds to the number, or takes from it.
    pub fn add(&self, more: i64) {
        self.0.0.fetch_add(more, Relaxed);
    }

    /// Reads the number.
    pub fn get(&self) -> i64 {
        self.0.0.load(Relaxed)
    }
}

/// A ratio or another number that is measured rather than counted.
#[derive(Clone, Debug, Default)]
pub struct FloatGauge(Arc<CachePadded<AtomicU64>>);

impl FloatGauge {
    /// Replaces the number.
    pub fn set(&self, value: f64) {
        self.0.0.store(value.to_bits(), Relaxed);
    }

    /// Reads the number.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.0.load(Relaxed))
    }
}

/// How long things took, by the bucket each falls into.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<CachePadded<Buckets>>);

#[derive(Debug)]
struct Buckets {
    /// The longest span of each bucket but the last, which has no end.
    bounds: &'static [Duration],
    counts: Box<[AtomicU64]>,
    /// Wraps after 584 years of spans together; Prometheus takes that for a restart.
    sum_nanos: AtomicU64,
}

/// What a histogram held at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// The longest span of each bucket, and how many were that long or shorter.
    pub buckets: Vec<(Duration, u64)>,
    /// How many there were.
    pub count: u64,
    /// How long all of them took together.
    pub sum: Duration,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [Duration]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(CachePadded(Buckets { bounds, counts, sum_nanos: AtomicU64::new(0) })))
    }

    /// Counts one span; one as long as a bucket's bound is in that bucket.
    pub fn record(&self, span: Duration) {
        let buckets = &self.0.0;
        let at = buckets.bounds.partition_point(|bound| *bound < span);
        buckets.counts[at].fetch_add(1, Relaxed);
        buckets.sum_nanos.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Reads all buckets, one after the other.
    ///
    /// The count is that of the buckets read, so that it equals the last of them while others record; the sum may be
    /// a few spans behind.
    pub fn read(&self) -> HistogramSnapshot {
        let Buckets { bounds, counts, sum_nanos } = &self.0.0;
        let sum = Duration::from_nanos(sum_nanos.load(Relaxed));
        let mut count = 0;
        let mut buckets = Vec::with_capacity(bounds.len());
        for (at, bucket) in counts.iter().enumerate() {
            count += bucket.load(Relaxed);
            buckets.extend(bounds.get(at).map(|bound| (*bound, count)));
        }
        HistogramSnapshot { buckets, count, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[Duration] = &[Duration::from_millis(10), Duration::from_millis(50)];

    #[test]
    fn a_span_as_long_as_a_bound_is_within_it() {
        let nanos = Duration::from_nanos(1);
        assert_eq!(falls_into(Duration::ZERO), 0);
        assert_eq!(falls_into(BOUNDS[0]), 0);
        assert_eq!(falls_into(BOUNDS[0] + nanos), 1);
        assert_eq!(falls_into(BOUNDS[1]), 1);
        assert_eq!(falls_into(BOUNDS[1] + nanos), 2);
        assert_eq!(falls_into(Duration::MAX), 2);
    }

    #[test]
    fn a_histogram_adds_up() {
        let histogram = Histogram::new(BOUNDS);
        for millis in [5, 20, 30, 70] {
            histogram.record(Duration::from_millis(millis));
        }
        let expected = HistogramSnapshot {
            buckets: vec![(BOUNDS[0], 1), (BOUNDS[1], 3)],
            count: 4,
            sum: Duration::from_millis(125),
        };
        assert_eq!(histogram.read(), expected);
    }

    #[test]
    fn a_counter_that_catches_up_never_falls() {
        let counter = Counter::default();
        counter.advance_to(7);
        counter.advance_to(5);
        assert_eq!(counter.get(), 7);
    }

    #[test]
    fn a_gauge_comes_and_goes() {
        let gauge = Gauge::default();
        gauge.set(5);
        gauge.add(-7);
        assert_eq!(gauge.get(), -2);
        let ratio = FloatGauge::default();
        ratio.set(0.25);
        assert_eq!(ratio.get().to_bits(), 0.25_f64.to_bits());
    }

    fn falls_into(span: Duration) -> usize {
        let histogram = Histogram::new(BOUNDS);
        histogram.record(span);
        let reading = histogram.read();
        reading.buckets.iter().filter(|(_, count)| *count == 0).count()
    }
}
