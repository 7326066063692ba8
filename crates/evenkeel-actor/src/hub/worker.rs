//! What one worker counts.

use core::time::Duration;

use evenkeel_policy::time::Instant;
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
    /// When the worker last told what it is up to.
    since_nanos: Counter,
    began: AtomicBool,
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
            since_nanos: Counter::new(),
            began: AtomicBool::new(false),
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

    /// Notes what the worker is up to from `now` on.
    pub fn enter(&self, phase: WorkerPhase, now: Instant) {
        let span = self.since(now);
        self.since_nanos.add(now.as_nanos().wrapping_sub(self.since_nanos.get()));
        self.began.store(true, Relaxed);
        if self.phase() == WorkerPhase::Running {
            self.busy_nanos.add(nanos(span));
        }
        self.total_nanos.add(nanos(span));
        self.running.store(phase == WorkerPhase::Running, Relaxed);
    }

    /// How long it has been up to what it is.
    fn since(&self, now: Instant) -> Duration {
        if !self.began.load(Relaxed) {
            return Duration::ZERO;
        }
        now.since(Instant::from_nanos(self.since_nanos.get()))
    }

    /// Adds up where its time went until `now`; what it is up to meanwhile may be counted on one side only.
    pub fn time(&self, now: Instant) -> WorkerTime {
        let span = self.since(now);
        let busy = if self.phase() == WorkerPhase::Running { span } else { Duration::ZERO };
        WorkerTime {
            busy: Duration::from_nanos(self.busy_nanos.get()) + busy,
            total: Duration::from_nanos(self.total_nanos.get()) + span,
        }
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
