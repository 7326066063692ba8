//! The observability hub: what is counted where, and how it is read.
//!
//! Bound: a number that workers write all the time has one writer, and costs it a load and a store; no
//! reader makes a writer wait. Labels, and with them series, are at most `labels_max` and `other`. A
//! worker takes 464 bytes per label on a 64-bit machine: 120 KB with the default of 256 labels.
//!
//! Reading is one pass: a [`Collector`] turns what the hub holds into a [`Snapshot`], which a
//! [`MetricsSink`] publishes or [`Snapshot::write_prometheus`] prints.

mod collect;
mod counter;
mod histogram;
mod kind;
mod labels;
pub mod names;
mod prometheus;
mod snapshot;
mod worker;

pub use collect::{Collector, LiveMailboxes, Sources};
pub use counter::Counter;
pub use histogram::{Histogram, HistogramSnapshot};
pub use kind::{KindCounters, MailboxTotals, OverflowReason, UserSystemTotals};
pub use labels::{KindId, Labels, PerKind};
pub use snapshot::{Series, Snapshot, Value};
pub use worker::{WorkerCounters, WorkerPhase, WorkerTime};

use core::time::Duration;

use evenkeel_policy::time::Instant;

/// Somewhere that snapshots go.
pub trait MetricsSink {
    /// Takes what the hub read.
    fn publish(&self, snapshot: &Snapshot);
}

/// Counts the nanoseconds of a span, as many as an [`Instant`] can.
fn nanos(span: Duration) -> u64 {
    (Instant::ORIGIN + span).as_nanos()
}

#[cfg(test)]
mod tests;
