//! Queues from end to end, in memory and on disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod costs;
mod crash;
mod dedup;
mod delivery;
mod drr_delivery;
mod expiry;
mod fairness;
mod fallen;
mod fifo;
mod history;
mod life;
mod limits;
mod moves;
mod powercut;
mod restart;
mod results;
mod rig;
mod turnover;
mod watched;
