//! Guarantees that the modules of `evenkeel-policy` state, checked with random inputs.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod backpressure;
mod concurrency_limit;
mod drr;
mod estimate;
mod interner;
mod path;
mod score;
mod swrr;
mod transaction_places;
