//! Counters, gauges and histograms that many threads update while a scrape reads them.
//!
//! Guarantees: recording is one relaxed atomic operation (two for a histogram) without locks, allocation or hashing; a
//! reader never blocks a recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A value on its own cache line, so that counters used by different cores do not contend.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CachePadded<T>(T);

/// A monotonic counter.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<CachePadded<AtomicU64>>);

impl Counter {
    /// Adds one.
    pub fn count(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.0.fetch_add(count, Relaxed);
    }

    /// Raises the counter to a total that is counted elsewhere; a smaller total changes nothing.
    pub fn advance_to(&self, total: u64) {
        self.0.0.fetch_max(total, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.0.load(Relaxed)
    }
}

/// An integer gauge.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<CachePadded<AtomicI64>>);

impl Gauge {
    pub fn set(&self, value: i64) {
        self.0.0.store(value, Relaxed);
    }

    /// Adds to the gauge; `delta` may be negative.
    pub fn add(&self, delta: i64) {
        self.0.0.fetch_add(delta, Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.0.load(Relaxed)
    }
}

/// A floating-point gauge.
#[derive(Clone, Debug, Default)]
pub struct FloatGauge(Arc<CachePadded<AtomicU64>>);

impl FloatGauge {
    pub fn set(&self, value: f64) {
        self.0.0.store(value.to_bits(), Relaxed);
    }

    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.0.load(Relaxed))
    }
}

/// A histogram of durations.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<CachePadded<Buckets>>);

/// A histogram of counts, such as tokens per request.
#[derive(Clone, Debug)]
pub struct CountHistogram(Arc<CachePadded<Buckets>>);

/// Buckets of nanoseconds or counts.
#[derive(Debug)]
struct Buckets {
    /// Upper bound of each bucket but the last, which is unbounded.
    bounds: Box<[u64]>,
    counts: Box<[AtomicU64]>,
    /// Nanoseconds wrap around at 584 years; Prometheus treats that as a counter reset.
    sum: AtomicU64,
}

/// A histogram's values at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Upper bound of each bucket and its cumulative count.
    pub buckets: Vec<(Duration, u64)>,
    pub count: u64,
    pub sum: Duration,
}

/// A count histogram's values at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountSnapshot {
    /// Upper bound of each bucket and its cumulative count.
    pub buckets: Vec<(u64, u64)>,
    pub count: u64,
    pub sum: u64,
}

impl Histogram {
    pub(crate) fn new(bounds: &[Duration]) -> Self {
        Self(Arc::new(CachePadded(Buckets::new(bounds.iter().map(|bound| nanos(*bound)).collect()))))
    }

    /// Records a duration; one equal to a bucket's bound falls into that bucket.
    pub fn record(&self, duration: Duration) {
        self.0.0.record(nanos(duration));
    }

    /// Reads all buckets, one after the other.
    ///
    /// The count is the sum of the buckets read, so it matches them even while other threads record; the sum may lag by
    /// a few durations.
    pub fn read(&self) -> HistogramSnapshot {
        let CountSnapshot { buckets, count, sum } = self.0.0.read();
        let buckets = buckets.into_iter().map(|(bound, count)| (Duration::from_nanos(bound), count));
        HistogramSnapshot { buckets: buckets.collect(), count, sum: Duration::from_nanos(sum) }
    }
}

impl CountHistogram {
    pub(crate) fn new(bounds: &[u64]) -> Self {
        Self(Arc::new(CachePadded(Buckets::new(bounds.into()))))
    }

    /// Records a count; one equal to a bucket's bound falls into that bucket.
    pub fn record(&self, count: u64) {
        self.0.0.record(count);
    }

    /// Reads all buckets; the sum may lag, as in [`Histogram::read`].
    pub fn read(&self) -> CountSnapshot {
        self.0.0.read()
    }
}

impl Buckets {
    fn new(bounds: Box<[u64]>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    fn record(&self, value: u64) {
        let index = self.bounds.partition_point(|bound| *bound < value);
        self.counts[index].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    fn read(&self) -> CountSnapshot {
        let sum = self.sum.load(Relaxed);
        let mut count = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (index, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Relaxed);
            buckets.extend(self.bounds.get(index).map(|bound| (*bound, count)));
        }
        CountSnapshot { buckets, count, sum }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[Duration] = &[Duration::from_millis(10), Duration::from_millis(50)];

    #[test]
    fn a_duration_equal_to_a_bound_falls_into_its_bucket() {
        let nanosecond = Duration::from_nanos(1);
        assert_eq!(bucket_index(Duration::ZERO), 0);
        assert_eq!(bucket_index(BOUNDS[0]), 0);
        assert_eq!(bucket_index(BOUNDS[0] + nanosecond), 1);
        assert_eq!(bucket_index(BOUNDS[1]), 1);
        assert_eq!(bucket_index(BOUNDS[1] + nanosecond), 2);
        assert_eq!(bucket_index(Duration::MAX), 2);
    }

    #[test]
    fn buckets_are_cumulative_and_durations_are_summed() {
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
    fn counts_are_counted_in_buckets_and_summed() {
        let histogram = CountHistogram::new(&[1, 10]);
        for count in [0, 1, 10, 11] {
            histogram.record(count);
        }
        assert_eq!(histogram.read(), CountSnapshot { buckets: vec![(1, 2), (10, 3)], count: 4, sum: 22 });
    }

    #[test]
    fn a_counter_never_decreases() {
        let counter = Counter::default();
        counter.advance_to(7);
        counter.advance_to(5);
        assert_eq!(counter.get(), 7);
    }

    #[test]
    fn gauges_can_increase_and_decrease() {
        let gauge = Gauge::default();
        gauge.set(5);
        gauge.add(-7);
        assert_eq!(gauge.get(), -2);
        let ratio = FloatGauge::default();
        ratio.set(0.25);
        assert_eq!(ratio.get().to_bits(), 0.25_f64.to_bits());
    }

    fn bucket_index(duration: Duration) -> usize {
        let histogram = Histogram::new(BOUNDS);
        histogram.record(duration);
        let snapshot = histogram.read();
        snapshot.buckets.iter().filter(|(_, count)| *count == 0).count()
    }
}
