//! Latency quantiles over a sliding window.
//!
//! Each slice is a [log-linear](super::log_linear) histogram: 16 buckets of 64 ns, then 16 buckets in every doubling up
//! to 2^42 ns. A bucket's width is at most 1/16 of any value in it, so its middle is off by at most 1/32.

use alloc::boxed::Box;

use super::Quantile;
use super::log_linear;
use super::slices::{SliceCounter, Slices, WindowMismatch, WindowTooShort};
use crate::time::{Duration, Instant, nanos};

const SLICES: usize = 6;
const STEPS: usize = 16;
/// log2 of [`STEPS`].
const STEP_BITS: u32 = 4;
/// log2 of the nanoseconds in a bucket of the linear part.
const UNIT_BITS: u32 = 6;
/// log2 of the nanoseconds at which the scale ends.
const SCALE_BITS: u32 = 42;
const OCTAVES: usize = (SCALE_BITS - UNIT_BITS - STEP_BITS) as usize + 1;

/// Sliding window of latencies from which any quantile can be read.
///
/// Recording is O(1) (amortised: an expired slice is subtracted once), reading a quantile is one pass over the
/// histogram. Latencies above 73 minutes count as 73 minutes.
#[derive(Clone, Debug)]
pub struct LatencyWindow {
    slices: Slices<LatencyHistogram, SLICES>,
}

/// The default window is one minute.
impl Default for LatencyWindow {
    fn default() -> Self {
        Self { slices: Slices::with_slice(Duration::from_secs(10)) }
    }
}

impl LatencyWindow {
    /// Creates an empty window of six equal slices, rounded down to whole nanoseconds.
    ///
    /// Fails if a slice would be shorter than a nanosecond.
    pub fn new(window: Duration) -> Result<Self, WindowTooShort> {
        Ok(Self { slices: Slices::new(window)? })
    }

    /// Records a latency measured at `now`.
    pub fn record(&mut self, now: Instant, latency: Duration) {
        let bucket = Bucket::for_latency(latency);
        self.slices.record(now, |histogram| histogram.count(bucket));
    }

    /// Returns the latency at `quantile`; `None` while the window is empty.
    pub fn quantile(&self, now: Instant, quantile: Quantile) -> Option<Duration> {
        let mut rank = quantile.rank(self.samples(now))?;
        let live = self.slices.live(now);
        for octave in 0..OCTAVES {
            let within: u64 = live.clone().map(|histogram| histogram.in_octave(octave)).sum();
            if rank > within {
                rank -= within;
                continue;
            }
            for step in 0..STEPS {
                let bucket = Bucket { octave, step };
                let within: u64 = live.clone().map(|histogram| histogram.in_bucket(bucket)).sum();
                if rank <= within {
                    return Some(bucket.middle());
                }
                rank -= within;
            }
        }
        None
    }

    /// Returns the latency that 95 of 100 samples do not exceed.
    pub fn p95(&self, now: Instant) -> Option<Duration> {
        self.quantile(now, Quantile::P95)
    }

    /// Returns the number of samples in the window.
    pub fn samples(&self, now: Instant) -> u64 {
        self.slices.live(now).map(|histogram| histogram.samples).sum()
    }

    /// Adds the samples of `other`, slice by slice, as if they had been recorded here.
    ///
    /// Both clocks must share their origin. Slices of `other` that are older than this window are left out.
    pub fn merge(&mut self, other: &Self) -> Result<(), WindowMismatch> {
        self.slices.merge(&other.slices, LatencyHistogram::add)
    }
}

#[derive(Clone, Copy)]
struct Bucket {
    octave: usize,
    step: usize,
}

impl Bucket {
    fn for_latency(latency: Duration) -> Self {
        let nanos = nanos(latency).min((1 << SCALE_BITS) - 1);
        let index = log_linear::index::<STEP_BITS>(nanos >> UNIT_BITS);
        Self { octave: index / STEPS, step: index % STEPS }
    }

    fn middle(self) -> Duration {
        let units = log_linear::range::<STEP_BITS>(self.octave * STEPS + self.step);
        Duration::from_nanos(((units.start + units.end) << UNIT_BITS) / 2)
    }
}

#[derive(Clone, Debug)]
struct LatencyHistogram {
    /// Sum of `counts`; a sample in a saturated bucket is not counted.
    samples: u64,
    counts: Box<[[u32; STEPS]; OCTAVES]>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { samples: 0, counts: Box::new([[0; STEPS]; OCTAVES]) }
    }
}

impl LatencyHistogram {
    fn count(&mut self, bucket: Bucket) {
        let count = &mut self.counts[bucket.octave][bucket.step];
        self.samples += add_saturating(count, 1);
    }

    fn in_octave(&self, octave: usize) -> u64 {
        self.counts[octave].iter().copied().map(u64::from).sum()
    }

    fn in_bucket(&self, bucket: Bucket) -> u64 {
        u64::from(self.counts[bucket.octave][bucket.step])
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.as_flattened_mut().iter_mut().zip(other.counts.as_flattened()) {
            self.samples += add_saturating(count, *more);
        }
    }
}

impl SliceCounter for LatencyHistogram {
    fn subtract(&mut self, other: &Self) {
        if other.samples == 0 {
            return;
        }
        for (count, less) in self.counts.as_flattened_mut().iter_mut().zip(other.counts.as_flattened()) {
            let before = *count;
            *count = before.saturating_sub(*less);
            self.samples -= u64::from(before - *count);
        }
    }

    fn clear(&mut self) {
        if self.samples == 0 {
            return;
        }
        self.samples = 0;
        self.counts.as_flattened_mut().fill(0);
    }
}

/// Adds with saturation and returns the increase.
fn add_saturating(count: &mut u32, more: u32) -> u64 {
    let before = *count;
    *count = before.saturating_add(more);
    u64::from(*count - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(100);

    #[test]
    fn a_window_takes_less_than_16_kib() {
        let histograms = (SLICES + 1) * size_of::<[[u32; STEPS]; OCTAVES]>();
        let bytes = size_of::<LatencyWindow>() + histograms;
        assert!(bytes <= 16 * 1024, "a window takes {bytes} bytes");
    }

    #[test]
    fn the_middle_of_a_bucket_lies_in_it() {
        for octave in 0..OCTAVES {
            for step in 0..STEPS {
                let bucket = Bucket::for_latency(Bucket { octave, step }.middle());
                assert_eq!((bucket.octave, bucket.step), (octave, step));
            }
        }
    }

    #[test]
    fn every_bucket_starts_where_the_previous_one_ends() {
        let mut end = 0;
        for octave in 0..OCTAVES {
            for step in 0..STEPS {
                let bucket = Bucket::for_latency(Duration::from_nanos(end));
                assert_eq!((bucket.octave, bucket.step), (octave, step), "at {end} ns");
                end = 2 * nanos(bucket.middle()) - end;
            }
        }
        assert_eq!(end, 1 << SCALE_BITS);
    }

    #[test]
    fn a_slow_twentieth_raises_p99_but_not_p95() {
        let mut window = LatencyWindow::default();
        for sample in 0..100 {
            window.record(NOW, Duration::from_millis(if sample < 95 { 10 } else { 1_000 }));
        }
        assert!(near(window.p95(NOW), 10));
        assert!(near(window.quantile(NOW, Quantile::P99), 1_000));
        assert!(near(window.quantile(NOW, Quantile::P50), 10));
        assert_eq!(window.samples(NOW), 100);
    }

    #[test]
    fn an_empty_window_has_no_quantile() {
        let mut window = LatencyWindow::default();
        assert_eq!(window.p95(NOW), None);
        window.record(NOW, Duration::from_millis(1));
        assert_eq!(window.p95(NOW + Duration::from_secs(60)), None);
        assert_eq!(window.samples(NOW + Duration::from_secs(60)), 0);
    }

    #[test]
    fn a_latency_beyond_the_scale_counts_in_the_last_bucket() {
        let mut window = LatencyWindow::default();
        window.record(NOW, Duration::MAX);
        let p95 = window.p95(NOW).unwrap();
        assert!(Duration::from_secs(70 * 60) < p95 && p95 < Duration::from_secs(74 * 60));
    }

    #[test]
    fn quantiles_remain_readable_when_a_count_is_saturated() {
        let mut window = LatencyWindow::default();
        window.record(NOW, Duration::from_millis(10));
        for _ in 0..40 {
            let same = window.clone();
            window.merge(&same).unwrap();
        }
        assert_eq!(window.samples(NOW), u64::from(u32::MAX));
        assert!(near(window.p95(NOW), 10));
    }

    #[test]
    fn windows_with_different_slice_lengths_do_not_merge() {
        let mut minute = LatencyWindow::default();
        let second = LatencyWindow::new(Duration::from_secs(6)).unwrap();
        let mismatch = WindowMismatch { ours: Duration::from_secs(10), theirs: Duration::from_secs(1) };
        assert_eq!(minute.merge(&second), Err(mismatch));
    }

    fn near(quantile: Option<Duration>, millis: u64) -> bool {
        let exact = Duration::from_millis(millis);
        quantile.is_some_and(|quantile| quantile.abs_diff(exact) <= exact / 32)
    }
}
