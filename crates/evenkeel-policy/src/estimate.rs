//! Estimators: recent observations in bounded memory, shared by every decision that needs them.
//!
//! Guarantees, each checked by `tests/it/estimate.rs`:
//! - An [`Ewma`] never leaves the range of its samples.
//! - A quantile of a [`LatencyWindow`] is within 1/32 of the exact one (below 1 µs: within 32 ns), up to 73 minutes; the
//!   window takes less than 16 KiB however many samples it records.
//! - A quantile of a [`DecayingHistogram`] is at most half as long again as the exact one, and never shorter (in whole
//!   milliseconds), up to seven weeks; the histogram takes 128 bytes.
//! - A quantile of [`RecentSpans`] is exact.
//! - In each window a sample counts for at least `window − slice` and at most `window`.
//! - A steady stream reads as its true rate within one record per slice in a [`RateWindow`].
//!
//! Slice number `n` of a window covers `n × slice .. (n + 1) × slice` since the clock's origin. A sample dated before the
//! newest one counts as arriving with it: a clock that steps back stops the window until it catches up, and loses
//! nothing.

mod decaying;
mod ewma;
mod latency;
mod log_linear;
mod quantile;
mod rate;
mod ratio;
mod recent;
mod slices;

pub use decaying::DecayingHistogram;
pub use ewma::{BadSample, Ewma, Gains};
pub use latency::LatencyWindow;
pub use quantile::Quantile;
pub use rate::RateWindow;
pub use ratio::{Outcome, RatioWindow};
pub use recent::{RecentLen, RecentSpans};
pub use slices::{WindowMismatch, WindowTooShort};
