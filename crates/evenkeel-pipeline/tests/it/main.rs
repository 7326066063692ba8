//! Tests of the pipeline's guarantees: property tests over random call sequences, and scenarios such as overload and
//! failover.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod admission;
mod affinity;
mod background;
mod capacity;
mod choice;
mod driver;
mod failover;
mod fairness;
mod flows;
mod health;
mod held_time;
mod history;
mod paths;
mod redirect;
mod registry;
mod transactions;
