//! One reading of everything the hub counts.

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

/// What the mailboxes of one kind of actor hold and have held, as long as their actors live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveMailboxes {
    /// What went through them.
    pub totals: MailboxTotals,
    /// What waits in them.
    pub depth: u64,
}

impl LiveMailboxes {
    /// Adds one mailbox.
    pub fn add(&mut self, totals: MailboxTotals, depth: u64) {
        self.totals += totals;
        self.depth = self.depth.saturating_add(depth);
    }
}

/// Where a snapshot is read from.
///
/// A mailbox's totals are in `live` until its actor stops, and retained by `kinds` from then on. Let no
/// actor stop between the two readings, or a total counts it twice or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The labels of the kinds.
    pub labels: &'a Labels,
    /// What is counted by kind.
    pub kinds: &'a PerKind<KindCounters>,
    /// The mailboxes of the actors that live.
    pub live: &'a PerKind<LiveMailboxes>,
    /// The workers, each in its place.
    pub workers: &'a [&'a WorkerCounters],
    /// How many of them work, those that sleep included.
    pub workers_active: u64,
    /// When this is read.
    pub now: Instant,
    /// How many actors wait for a worker.
    pub ready_queue_depth: u64,
    /// The dead letters.
    pub dead_letters: DeadLetterCounts,
}

/// Reads snapshots, each worker's busy ratio since the one before.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    /// What each worker had measured by then.
    before: Vec<WorkerTime>,
}

impl Collector {
    /// Makes a collector whose first snapshot looks back to the start.
    pub const fn new() -> Self {
        Self { before: Vec::new() }
    }

    /// Reads everything once.
    pub fn collect(&mut self, sources: &Sources<'_>) -> Snapshot {
        let mut readings = Readings(Vec::new());
        for (kind, label) in sources.labels.iter() {
            readings.read_kind(sources, kind, label);
        }
        self.before.resize(sources.workers.len(), WorkerTime::default());
        for (place, (worker, before)) in sources.workers.iter().zip(&mut self.before).enumerate() {
            readings.read_worker(worker, sources.now, before, &place.to_string());
        }
        readings.gauge(names::WORKERS_ACTIVE, Vec::new(), sources.workers_active as f64);
        readings.gauge(names::READY_QUEUE_DEPTH, Vec::new(), sources.ready_queue_depth as f64);
        for reason in DeadLetterReason::ALL {
            let labels = vec![("reason", reason.as_label().to_string())];
            readings.count(names::DEAD_LETTERS_TOTAL, labels, sources.dead_letters.count(reason));
        }
        Snapshot::new(readings.0)
    }
}

struct Readings(Vec<Series>);

impl Readings {
    fn read_kind(&mut self, sources: &Sources<'_>, kind: KindId, label: &str) {
        let counters = sources.kinds.get(kind);
        let live = sources.live.get(kind);
        let actor = || vec![("actor", label.to_string())];
        let mut totals = counters.retained();
        totals += live.totals;
        self.count_lanes(names::MAILBOX_ENQUEUED_TOTAL, label, totals.enqueued);
        self.count_lanes(names::MAILBOX_DEQUEUED_TOTAL, label, totals.dequeued);
        self.gauge(names::MAILBOX_DEPTH, actor(), live.depth as f64);
        self.gauge(names::ALIVE, actor(), counters.alive() as f64);
        self.count(names::FAILURES_TOTAL, actor(), counters.failures());
        self.count(names::RESTARTS_TOTAL, actor(), counters.restarts());
        for reason in OverflowReason::ALL {
            let labels = vec![("actor", label.to_string()), ("reason", reason.as_label().to_string())];
            self.count(names::MAILBOX_OVERFLOW_TOTAL, labels, counters.overflow(reason));
        }
        let invoke_duration = |worker: &&WorkerCounters| worker.invoke_duration(kind).snapshot();
        let latency = |worker: &&WorkerCounters| worker.latency(kind).snapshot();
        self.durations(names::INVOKE_DURATION_MS, actor(), sources.workers.iter().map(invoke_duration));
        self.durations(names::LATENCY_MS, actor(), sources.workers.iter().map(latency));
    }

    fn read_worker(&mut self, worker: &WorkerCounters, now: Instant, before: &mut WorkerTime, place: &str) {
        let labels = || vec![("worker", place.to_string())];
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

    fn count_lanes(&mut self, name: &'static str, actor: &str, totals: UserSystemTotals) {
        for (lane, count) in [("user", totals.user), ("system", totals.system)] {
            self.count(name, vec![("actor", actor.to_string()), ("mailbox", lane.to_string())], count);
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
        of_workers: impl Iterator<Item = HistogramSnapshot>,
    ) {
        let mut merged = Box::<HistogramSnapshot>::default();
        of_workers.for_each(|histogram| merged.merge(&histogram));
        self.0.push(Series { name, labels, value: Value::Histogram(merged) });
    }
}

/// Says how busy a worker was since `before`, and moves `before` up.
///
/// Between two readings at the same time a worker is as busy as its phase says.
fn busy_ratio(worker: &WorkerCounters, now: Instant, before: &mut WorkerTime) -> f64 {
    let time = worker.time(now);
    let WorkerTime { busy, total } = since(time, core::mem::replace(before, time));
    if total.is_zero() {
        return if worker.phase() == WorkerPhase::Running { 1.0 } else { 0.0 };
    }
    busy.div_duration_f64(total).min(1.0)
}

/// Subtracts what was measured `before`; where that is more, another worker has taken the place.
fn since(time: WorkerTime, before: WorkerTime) -> WorkerTime {
    match (time.busy.checked_sub(before.busy), time.total.checked_sub(before.total)) {
        (Some(busy), Some(total)) => WorkerTime { busy, total },
        _ => time,
    }
}
