//! Metrics hub: the counters and histograms of a system, and snapshots of them.
//!
//! Guarantees: a counter on the hot path has one writer and costs it a load and a store; readers never block writers.
//! Limits: at most `labels_max` labels and `other` (bounded label cardinality). A worker takes 464 bytes per label on a
//! 64-bit machine: 120 KB with the default of 256 labels.
//!
//! A [`Collector`] reads the counters into a [`Snapshot`] in one pass; a [`MetricsSink`] publishes the snapshot, or
//! [`Snapshot::write_prometheus`] writes it as text.

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

/// A destination for snapshots.
pub trait MetricsSink {
    /// Publishes a snapshot.
    fn publish(&self, snapshot: &Snapshot);
}

/// Returns the nanoseconds of a duration, capped at the range of an [`Instant`].
fn nanos(duration: Duration) -> u64 {
    (Instant::ORIGIN + duration).as_nanos()
}

#[cfg(test)]
mod tests;
