//! Every decision Evenkeel takes, as pure values: no I/O, no clock, no randomness of its own.
//!
//! Time is an [`Instant`](time::Instant) the caller hands in, randomness a number the caller draws.
//! The same inputs give the same decisions, so the gateway, the simulator and a microcontroller run
//! this crate unchanged. Each module states its bound in its first lines; a property test in
//! `tests/it/` holds it there.
//!
//! | step of the walk | module | question it answers |
//! |---|---|---|
//! | admit | [`backpressure`] | take it, slow it, or turn it away now |
//! | queue | [`drr`] | whose turn is it |
//! | pick node | [`score`] | which node can and should do it |
//! | pick node | [`limit`] | how many requests a node should have at once |
//! | pick path | [`swrr`], [`path`] | which way to that node |
//! | observe | [`estimate`] | how fast, how often wrong, how much |
//!
//! [`time`], [`id`], [`weight`], [`cost`], [`setting`] and [`interner`] are the words the others are
//! written in.
#![warn(missing_docs)]
#![no_std]
extern crate alloc;

pub mod backpressure;
pub mod concurrency_limit;
pub mod cost;
pub mod drr;
pub mod estimate;
pub mod id;
pub mod interner;
pub mod outcome;
pub mod path;
pub mod score;
pub mod setting;
pub mod swrr;
pub mod time;
pub mod weight;

/// Holds the README's example to what the crate does.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
