//! How long things took lately: any quantile of a sliding window.
//!
//! Each slice is a log-linear histogram: 16 steps of 64 ns, then 16 steps in every doubling up to
//! 2^42 ns. A step is at most 1/16 of what falls into it, so its middle is off by 1/32 at most.

use alloc::boxed::Box;

use super::Quantile;
use super::slices::{SliceCounter, Slices, WindowMismatch, WindowTooShort};
use crate::time::{Duration, Instant, nanos};

const SLICES: usize = 6;
const STEPS: usize = 16;
/// log2 of [`STEPS`].
const STEP_BITS: u32 = 4;
/// log2 of the nanoseconds from which on steps double.
const LINEAR_BITS: u32 = 10;
/// log2 of the nanoseconds at which the scale ends.
const SCALE_BITS: u32 = 42;
const OCTAVES: usize = (SCALE_BITS - LINEAR_BITS) as usize + 1;

/// A sliding window of latencies that answers for any quantile.
///
/// Recording is O(1) (amortised: a slice that expires is subtracted once), reading a quantile one
/// pass over the histogram. What took longer than 73 minutes counts as 73 minutes.
#[derive(Clone, Debug)]
pub struct LatencyWindow {
    slices: Slices<LatencyHistogram, SLICES>,
}

/// A minute, in slices of ten seconds.
impl Default for LatencyWindow {
    fn default() -> Self {
        Self { slices: Slices::of(Duration::from_secs(10)) }
    }
}

impl LatencyWindow {
    /// Makes an empty window, to be cut into six slices of whole nanoseconds.
    pub fn new(window: Duration) -> Result<Self, WindowTooShort> {
        Ok(Self { slices: Slices::new(window)? })
    }

    /// Feeds what finished at `now` after `latency`.
    pub fn record(&mut self, now: Instant, latency: Duration) {
        let bucket = Bucket::of(latency);
        self.slices.record(now, |histogram| histogram.count(bucket));
    }

    /// Names the latency at `quantile`, `None` while the window is empty.
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

    /// Names the latency that 95 of 100 samples do not exceed.
    pub fn p95(&self, now: Instant) -> Option<Duration> {
        self.quantile(now, Quantile::P95)
    }

    /// Counts the samples in the window.
    pub fn samples(&self, now: Instant) -> u64 {
        self.slices.live(now).map(|histogram| histogram.samples).sum()
    }

    /// Adds the samples of `other`, slice by slice, as if they had been recorded here.
    ///
    /// Both clocks must share their origin. What `other` holds of slices older than this window is
    /// left out.
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
    fn of(latency: Duration) -> Self {
        let nanos = nanos(latency).min((1 << SCALE_BITS) - 1);
        if nanos < 1 << LINEAR_BITS {
            return Self { octave: 0, step: (nanos >> (LINEAR_BITS - STEP_BITS)) as usize };
        }
        let exponent = nanos.ilog2();
        Self {
            octave: (exponent - LINEAR_BITS) as usize + 1,
            step: (nanos >> (exponent - STEP_BITS)) as usize - STEPS,
        }
    }

    fn middle(self) -> Duration {
        // Octave 0 starts at 0 and has the step of octave 1.
        let shift = LINEAR_BITS - STEP_BITS + self.octave.saturating_sub(1) as u32;
        let steps_before = if self.octave == 0 { 0 } else { STEPS };
        let start = ((steps_before + self.step) as u64) << shift;
        Duration::from_nanos(start + (1 << shift) / 2)
    }
}

#[derive(Clone, Debug)]
struct LatencyHistogram {
    /// The sum of `counts`; both stop together when a count is full.
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
        self.samples += add_up_to_max(count, 1);
    }

    fn in_octave(&self, octave: usize) -> u64 {
        self.counts[octave].iter().copied().map(u64::from).sum()
    }

    fn in_bucket(&self, bucket: Bucket) -> u64 {
        u64::from(self.counts[bucket.octave][bucket.step])
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.as_flattened_mut().iter_mut().zip(other.counts.as_flattened()) {
            self.samples += add_up_to_max(count, *more);
        }
    }
}

impl SliceCounter for LatencyHistogram {
    fn take(&mut self, other: &Self) {
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

/// Adds, and says by how much the count really grew.
fn add_up_to_max(count: &mut u32, more: u32) -> u64 {
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
                let bucket = Bucket::of(Bucket { octave, step }.middle());
                assert_eq!((bucket.octave, bucket.step), (octave, step));
            }
        }
    }

    #[test]
    fn every_bucket_starts_where_the_one_before_ends() {
        let mut end = 0;
        for octave in 0..OCTAVES {
            for step in 0..STEPS {
                let bucket = Bucket::of(Duration::from_nanos(end));
                assert_eq!((bucket.octave, bucket.step), (octave, step), "at {end} ns");
                end = 2 * nanos(bucket.middle()) - end;
            }
        }
        assert_eq!(end, 1 << SCALE_BITS);
    }

    #[test]
    fn a_slow_twentieth_shows_in_p99_and_not_in_p95() {
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
    fn an_empty_window_names_no_latency() {
        let mut window = LatencyWindow::default();
        assert_eq!(window.p95(NOW), None);
        window.record(NOW, Duration::from_millis(1));
        assert_eq!(window.p95(NOW + Duration::from_secs(60)), None);
        assert_eq!(window.samples(NOW + Duration::from_secs(60)), 0);
    }

    #[test]
    fn what_is_off_the_scale_counts_as_its_end() {
        let mut window = LatencyWindow::default();
        window.record(NOW, Duration::MAX);
        let p95 = window.p95(NOW).unwrap();
        assert!(Duration::from_secs(70 * 60) < p95 && p95 < Duration::from_secs(74 * 60));
    }

    #[test]
    fn a_full_count_stays_full_and_readable() {
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
    fn windows_of_different_slices_do_not_merge() {
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
