//! Scheduling decisions as pure functions: no I/O, no clock, no randomness of their own.
//!
//! Time is an [`Instant`](time::Instant) that the caller passes in, randomness a number that the caller draws. The same
//! inputs give the same decisions, so the gateway, the simulator and a microcontroller run this crate unchanged. Each
//! module states its guarantees in its header; property tests in `tests/it/` check them.
//!
//! | step of the pipeline | module | decision |
//! |---|---|---|
//! | admit | [`backpressure`] | accept, delay or reject a request (load shedding, fair eviction, deadlines) |
//! | queue | [`drr`], [`class`] | the next key to serve (deficit round robin), the share of each class of a tenant |
//! | pick node | [`score`] | the node to use (gates, then top-k or hot/cold selection) |
//! | pick node | [`concurrency_limit`] | the number of requests a node should have in flight |
//! | pick path | [`swrr`], [`path`] | the path to that node (smooth weighted round robin, path health) |
//! | observe | [`estimate`] | recent averages, quantiles, rates and ratios |
//!
//! [`time`], [`id`], [`account`], [`weight`], [`cost`], [`setting`] and [`interner`] define the types that the others share.
//! [`exposition`] writes metrics in the Prometheus text format.
#![warn(missing_docs)]
#![no_std]
extern crate alloc;

pub mod account;
pub mod backpressure;
pub mod class;
pub mod concurrency_limit;
pub mod cost;
pub mod drr;
pub mod estimate;
pub mod exposition;
pub mod id;
pub mod interner;
pub mod outcome;
pub mod path;
pub mod score;
pub mod setting;
pub mod swrr;
pub mod time;
pub mod weight;

/// Tests the code examples in the workspace's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct WorkspaceReadme;

/// Tests the code examples in this crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
