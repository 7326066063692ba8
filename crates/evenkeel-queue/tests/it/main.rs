//! Queues from end to end, in memory and on disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod actor_restart;
mod costs;
mod crash;
mod dedup;
mod delivery;
mod drr_delivery;
mod expiry;
mod fairness;
mod fifo;
mod harness;
mod history;
mod late_receipts;
mod limits;
mod moves;
mod powercut;
mod queue_expiry;
mod queue_lifecycle;
mod recording_store;
mod restart;
mod results;
mod rotation;
mod workers;
