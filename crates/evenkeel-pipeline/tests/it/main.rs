//! Tests of the pipeline's guarantees, with random histories and with the situations it is made for.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod admission;
mod affinity;
mod background;
mod capacity;
mod driver;
mod failover;
mod fairness;
mod history;
mod registry;
