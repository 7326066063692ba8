//! What one worker counts.

use core::time::Duration;

use portable_atomic::{AtomicBool, Ordering::Relaxed};

use super::{Counter, Histogram, KindId, PerKind, nanos};

/// The numbers of one worker, which it alone writes.
#[derive(Debug)]
pub struct WorkerCounters {
    /// Times it ran an actor.
    pub runs: Counter,
    /// Messages it handed to actors.
    pub messages: Counter,
    /// Runs that used up their budget.
    pub yields: Counter,
    /// Times it took actors from another worker.
    pub steals: Counter,
    /// Times it woke another worker.
    pub wakes: Counter,
    busy_nanos: Counter,
    total_nanos: Counter,
    running: AtomicBool,
    kinds: PerKind<KindHistograms>,
}

#[derive(Debug, Default)]
struct KindHistograms {
    invoke_duration: Histogram,
    latency: Histogram,
}

/// Where a worker's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTime {
    /// How long actors ran.
    pub busy: Duration,
    /// How long it was in all, waiting to be woken included.
    pub total: Duration,
}

/// What a worker is up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// It runs actors or looks for some.
    Running,
    /// It waits to be woken.
    Parked,
}

impl WorkerCounters {
    /// Makes the numbers of a worker that has done nothing, for as many labels as there may be.
    pub fn new(labels_max: u16) -> Self {
        Self {
            runs: Counter::new(),
            messages: Counter::new(),
            yields: Counter::new(),
            steals: Counter::new(),
            wakes: Counter::new(),
            busy_nanos: Counter::new(),
            total_nanos: Counter::new(),
            running: AtomicBool::new(false),
            kinds: PerKind::new(labels_max),
        }
    }

    /// Gives the durations of the handlers of one kind.
    pub fn invoke_duration(&self, kind: KindId) -> &Histogram {
        &self.kinds.get(kind).invoke_duration
    }

    /// Gives the waits of one kind, from ready to run.
    pub fn latency(&self, kind: KindId) -> &Histogram {
        &self.kinds.get(kind).latency
    }

    /// Adds a span that the worker measured.
    pub fn add_time(&self, measured: WorkerTime) {
        self.busy_nanos.add(nanos(measured.busy));
        self.total_nanos.add(nanos(measured.total));
    }

    /// Adds up the spans the worker measured.
    pub fn time(&self) -> WorkerTime {
        WorkerTime {
            busy: Duration::from_nanos(self.busy_nanos.get()),
            total: Duration::from_nanos(self.total_nanos.get()),
        }
    }

    /// Notes what the worker is up to from here on.
    pub fn enter(&self, phase: WorkerPhase) {
        self.running.store(phase == WorkerPhase::Running, Relaxed);
    }

    /// Says what the worker is up to; parked until it said otherwise.
    pub fn phase(&self) -> WorkerPhase {
        if self.running.load(Relaxed) { WorkerPhase::Running } else { WorkerPhase::Parked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Labels;

    #[test]
    fn a_worker_counts_each_kind_apart() {
        let worker = WorkerCounters::new(2);
        let mut labels = Labels::new(2);
        let (a, b) = (labels.intern("a"), labels.intern("b"));
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
