//! The bounds each module of `evenkeel-policy` states, held against random inputs.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod backpressure;
mod drr;
mod estimate;
mod interner;
mod limit;
mod path;
mod score;
mod swrr;
