//! Property tests of the guarantees that the modules of `evenkeel-policy` state.
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod backpressure;
mod concurrency_limit;
mod drr;
mod estimate;
mod interner;
mod path;
mod score;
mod swrr;
mod transaction_places;
