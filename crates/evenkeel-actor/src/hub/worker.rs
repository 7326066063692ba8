//! The counters of one worker.

use core::time::Duration;

use evenkeel_policy::time::Instant;
use portable_atomic::{AtomicBool, Ordering::Relaxed};

use super::{Counter, Histogram, KindId, PerKind, nanos};

/// The counters of one worker, which is their only writer.
#[derive(Debug)]
pub struct WorkerCounters {
    /// Runs of actors.
    pub runs: Counter,
    /// Messages handled.
    pub messages: Counter,
    /// Runs that used up their budget.
    pub yields: Counter,
    /// The number of times the worker stole actors from another worker.
    pub steals: Counter,
    /// The number of times the worker woke another worker.
    pub wakes: Counter,
    busy_nanos: Counter,
    total_nanos: Counter,
    /// The start of the current phase.
    since_nanos: Counter,
    started: AtomicBool,
    running: AtomicBool,
    kinds: PerKind<KindHistograms>,
}

#[derive(Debug, Default)]
struct KindHistograms {
    invoke_duration: Histogram,
    latency: Histogram,
}

/// Busy and total time of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTime {
    /// Time spent running actors.
    pub busy: Duration,
    /// All time, parked time included.
    pub total: Duration,
}

/// Phase of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// Runs actors or searches for ready ones.
    Running,
    /// Waits to be woken.
    Parked,
}

impl WorkerCounters {
    /// Returns counters at zero, for `labels_max` labels.
    pub fn new(labels_max: u16) -> Self {
        Self {
            runs: Counter::new(),
            messages: Counter::new(),
            yields: Counter::new(),
            steals: Counter::new(),
            wakes: Counter::new(),
            busy_nanos: Counter::new(),
            total_nanos: Counter::new(),
            since_nanos: Counter::new(),
            started: AtomicBool::new(false),
            running: AtomicBool::new(false),
            kinds: PerKind::new(labels_max),
        }
    }

    /// Returns the durations of the runs of actors of one kind.
    pub fn invoke_duration(&self, kind: KindId) -> &Histogram {
        &self.kinds.get(kind).invoke_duration
    }

    /// Returns the waits of actors of one kind, from ready to run.
    pub fn latency(&self, kind: KindId) -> &Histogram {
        &self.kinds.get(kind).latency
    }

    /// Records the start of a phase.
    pub fn enter(&self, phase: WorkerPhase, now: Instant) {
        let elapsed = self.elapsed(now);
        self.since_nanos.add(now.as_nanos().wrapping_sub(self.since_nanos.get()));
        self.started.store(true, Relaxed);
        if self.phase() == WorkerPhase::Running {
            self.busy_nanos.add(nanos(elapsed));
        }
        self.total_nanos.add(nanos(elapsed));
        self.running.store(phase == WorkerPhase::Running, Relaxed);
    }

    /// Returns the time since the start of the current phase.
    fn elapsed(&self, now: Instant) -> Duration {
        if !self.started.load(Relaxed) {
            return Duration::ZERO;
        }
        now.since(Instant::from_nanos(self.since_nanos.get()))
    }

    /// Returns the busy and total time until `now`; a phase change during the call may be counted only partly.
    pub fn time(&self, now: Instant) -> WorkerTime {
        let elapsed = self.elapsed(now);
        let busy = if self.phase() == WorkerPhase::Running { elapsed } else { Duration::ZERO };
        WorkerTime {
            busy: Duration::from_nanos(self.busy_nanos.get()) + busy,
            total: Duration::from_nanos(self.total_nanos.get()) + elapsed,
        }
    }

    /// Returns the phase; parked until the worker has started.
    pub fn phase(&self) -> WorkerPhase {
        if self.running.load(Relaxed) { WorkerPhase::Running } else { WorkerPhase::Parked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Labels;

    #[test]
    fn a_worker_counts_each_kind_separately() {
        let worker = WorkerCounters::new(2);
        let mut labels = Labels::new(2);
        let a = labels.intern("a");
        let b = labels.intern("b");
        worker.invoke_duration(a).record(Duration::from_micros(5));
        worker.latency(b).record(Duration::from_micros(7));
        worker.latency(b).record(Duration::from_micros(7));
        let counts =
            |kind| (worker.invoke_duration(kind).snapshot().count(), worker.latency(kind).snapshot().count());
        assert_eq!((counts(a), counts(b), counts(KindId::OTHER)), ((1, 0), (0, 2), (0, 0)));
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_worker_takes_120_kb_at_the_default_limit() {
        assert_eq!(size_of::<KindHistograms>(), 464);
        let bytes = 257 * size_of::<KindHistograms>() + size_of::<WorkerCounters>();
        assert!(bytes <= 120_000, "{bytes} bytes");
    }
}
