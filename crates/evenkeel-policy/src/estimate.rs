//! Estimators: averages, quantiles, rates and ratios of recent observations, in bounded memory.
//!
//! Guarantees, each checked by `tests/it/estimate.rs`:
//! - An [`Ewma`] never leaves the range of its samples.
//! - A quantile of a [`LatencyWindow`] is within 1/32 of the exact one (below 1 µs: within 32 ns), up to 73 minutes;
//!   the window takes less than 16 KiB however many samples it records.
//! - A quantile of a [`DecayingHistogram`], in whole milliseconds up to seven weeks, is at least the exact one and at
//!   most 1.5 times as long; the histogram takes 128 bytes.
//! - A quantile of [`RecentSpans`] is exact, and so is the minimum of a [`MinWindow`].
//! - In each window a sample counts for at least `window − slice` and at most `window`.
//! - A [`RateWindow`] measures the rate of a steady stream with an error of at most one record per slice.
//!
//! Slice number `n` of a window covers `n × slice .. (n + 1) × slice` since the clock's origin. A sample dated before
//! the newest one counts as recorded at the newest one's time. So when the clock steps back, the window stands still
//! until the clock catches up, and no sample is lost.

mod decaying;
mod ewma;
mod latency;
mod log_linear;
mod min;
mod quantile;
mod rate;
mod ratio;
mod recent;
mod slices;

pub use decaying::DecayingHistogram;
pub use ewma::{BadSample, Ewma, Gains};
pub use latency::LatencyWindow;
pub use min::MinWindow;
pub use quantile::Quantile;
pub use rate::RateWindow;
pub use ratio::{Outcome, RatioWindow};
pub use recent::{RecentLen, RecentSpans};
pub use slices::{WindowMismatch, WindowTooShort};
