//! Collects a snapshot of all metrics.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use evenkeel_policy::time::Instant;

use super::kind::{KindCounters, MailboxTotals, OverflowReason, UserSystemTotals};
use super::{
    HistogramSnapshot, KindId, Labels, PerKind, Series, Snapshot, Value, WorkerCounters, WorkerPhase,
    WorkerTime, names,
};
use crate::dead_letters::{DeadLetterCounts, DeadLetterReason};

/// Totals of the mailboxes of all live actors of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveMailboxes {
    /// Messages enqueued and dequeued.
    pub totals: MailboxTotals,
    /// Messages in the mailboxes.
    pub depth: u64,
}

impl LiveMailboxes {
    /// Adds one mailbox.
    pub fn add(&mut self, totals: MailboxTotals, depth: u64) {
        self.totals += totals;
        self.depth = self.depth.saturating_add(depth);
    }
}

/// The counters that a snapshot is collected from.
///
/// The totals of a mailbox are in `live` until its actor stops, then in `kinds`. An actor that stops between the two
/// reads is counted twice or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The label of each kind.
    pub labels: &'a Labels,
    /// The counters by kind.
    pub kinds: &'a PerKind<KindCounters>,
    /// The mailboxes of the actors that are alive.
    pub live: &'a PerKind<LiveMailboxes>,
    /// The workers, by slot.
    pub workers: &'a [&'a WorkerCounters],
    /// The number of running workers, including parked ones.
    pub workers_active: u64,
    /// The time of the snapshot.
    pub now: Instant,
    /// The number of actors that wait for a worker.
    pub ready_queue_depth: u64,
    /// The dead letters by reason.
    pub dead_letters: DeadLetterCounts,
}

/// A collector of snapshots; in each, a worker's busy ratio covers the time since the previous snapshot.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    /// Each worker's time at the previous snapshot.
    before: Vec<WorkerTime>,
}

impl Collector {
    /// Returns a collector whose first snapshot covers the time since the start.
    pub const fn new() -> Self {
        Self { before: Vec::new() }
    }

    /// Collects a snapshot.
    pub fn collect(&mut self, sources: &Sources<'_>) -> Snapshot {
        let mut builder = SnapshotBuilder(Vec::new());
        for (kind, label) in sources.labels.iter() {
            builder.add_kind(sources, kind, label);
        }
        self.before.resize(sources.workers.len(), WorkerTime::default());
        for (slot, (worker, before)) in sources.workers.iter().zip(&mut self.before).enumerate() {
            builder.add_worker(worker, sources.now, before, &slot.to_string());
        }
        builder.gauge(names::WORKERS_ACTIVE, Vec::new(), sources.workers_active as f64);
        builder.gauge(names::READY_QUEUE_DEPTH, Vec::new(), sources.ready_queue_depth as f64);
        for reason in DeadLetterReason::ALL {
            let labels = vec![("reason", reason.as_label().to_string())];
            builder.count(names::DEAD_LETTERS_TOTAL, labels, sources.dead_letters.count(reason));
        }
        Snapshot::new(builder.0)
    }
}

struct SnapshotBuilder(Vec<Series>);

impl SnapshotBuilder {
    fn add_kind(&mut self, sources: &Sources<'_>, kind: KindId, label: &str) {
        let counters = sources.kinds.get(kind);
        let live = sources.live.get(kind);
        let actor = || vec![("actor", label.to_string())];
        let mut totals = counters.retained();
        totals += live.totals;
        self.count_queues(names::MAILBOX_ENQUEUED_TOTAL, label, totals.enqueued);
        self.count_queues(names::MAILBOX_DEQUEUED_TOTAL, label, totals.dequeued);
        self.gauge(names::MAILBOX_DEPTH, actor(), live.depth as f64);
        self.gauge(names::ALIVE, actor(), counters.alive() as f64);
        self.count(names::FAILURES_TOTAL, actor(), counters.failures());
        self.count(names::RESTARTS_TOTAL, actor(), counters.restarts());
        self.count(names::MAILBOX_FAILURES_TOTAL, actor(), counters.mailbox_failures());
        for reason in OverflowReason::ALL {
            let labels = vec![("actor", label.to_string()), ("reason", reason.as_label().to_string())];
            self.count(names::MAILBOX_OVERFLOW_TOTAL, labels, counters.overflow(reason));
        }
        let invoke_duration = |worker: &&WorkerCounters| worker.invoke_duration(kind).snapshot();
        let latency = |worker: &&WorkerCounters| worker.latency(kind).snapshot();
        self.durations(names::INVOKE_DURATION_MS, actor(), sources.workers.iter().map(invoke_duration));
        self.durations(names::LATENCY_MS, actor(), sources.workers.iter().map(latency));
    }

    fn add_worker(&mut self, worker: &WorkerCounters, now: Instant, before: &mut WorkerTime, slot: &str) {
        let labels = || vec![("worker", slot.to_string())];
        self.gauge(names::WORKER_BUSY_RATIO, labels(), busy_ratio(worker, now, before));
        for (name, counter) in [
            (names::RUNS_TOTAL, &worker.runs),
            (names::MESSAGES_TOTAL, &worker.messages),
            (names::YIELDS_TOTAL, &worker.yields),
            (names::STEALS_TOTAL, &worker.steals),
            (names::WAKES_TOTAL, &worker.wakes),
        ] {
            self.count(name, labels(), counter.get());
        }
    }

    fn count_queues(&mut self, name: &'static str, actor: &str, totals: UserSystemTotals) {
        for (queue, count) in [("user", totals.user), ("system", totals.system)] {
            self.count(name, vec![("actor", actor.to_string()), ("mailbox", queue.to_string())], count);
        }
    }

    fn count(&mut self, name: &'static str, labels: Vec<(&'static str, String)>, count: u64) {
        self.0.push(Series { name, labels, value: Value::Counter(count) });
    }

    fn gauge(&mut self, name: &'static str, labels: Vec<(&'static str, String)>, value: f64) {
        self.0.push(Series { name, labels, value: Value::Gauge(value) });
    }

    fn durations(
        &mut self,
        name: &'static str,
        labels: Vec<(&'static str, String)>,
        histograms: impl Iterator<Item = HistogramSnapshot>,
    ) {
        let mut merged = Box::<HistogramSnapshot>::default();
        histograms.for_each(|histogram| merged.merge(&histogram));
        self.0.push(Series { name, labels, value: Value::Histogram(merged) });
    }
}

/// Returns the share of time a worker was busy since `before`, and updates `before`.
///
/// If no time has passed, the worker's phase decides: 1 if it is running, 0 if it is parked.
fn busy_ratio(worker: &WorkerCounters, now: Instant, before: &mut WorkerTime) -> f64 {
    let time = worker.time(now);
    let WorkerTime { busy, total } = since(time, core::mem::replace(before, time));
    if total.is_zero() {
        return if worker.phase() == WorkerPhase::Running { 1.0 } else { 0.0 };
    }
    busy.div_duration_f64(total).min(1.0)
}

/// Returns the time since `before`; all of `time` if a new worker with new counters uses the slot.
fn since(time: WorkerTime, before: WorkerTime) -> WorkerTime {
    match (time.busy.checked_sub(before.busy), time.total.checked_sub(before.total)) {
        (Some(busy), Some(total)) => WorkerTime { busy, total },
        _ => time,
    }
}
