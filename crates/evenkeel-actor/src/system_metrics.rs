//! The counters of one actor system, and how a snapshot is taken from them.

use alloc::vec::Vec;

use crate::dead_letters::{DeadLetterReason, DeadLetters};
use crate::hub::{
    Collector, KindCounters, KindId, Labels, LiveMailboxes, MailboxTotals, OverflowReason, PerKind, Snapshot,
    Sources, UserSystemTotals, WorkerCounters,
};
use crate::invoke::ActorState;
use crate::mailbox::MailboxQueueStats;
use crate::sync::{Arc, AtomicU32, Lock, Ordering};
use crate::system::{Core, Metrics};

/// The sampling rate: one run in this many is timed, and one wait of a ready actor.
pub(crate) const SAMPLE_INTERVAL: u32 = 64;

/// The counters of one system.
#[derive(Debug)]
pub(crate) struct SystemMetrics {
    labels: Lock<Labels>,
    kinds: PerKind<KindCounters>,
    /// By worker slot; counters outlive the worker.
    workers: Lock<Vec<Arc<WorkerCounters>>>,
    collector: Lock<Collector>,
    metrics: Metrics,
    labels_max: u16,
    /// Counts cells scheduled by threads that are not workers, to sample them.
    outside: AtomicU32,
}

impl SystemMetrics {
    pub(crate) fn new(workers: usize, labels_max: u16, metrics: Metrics) -> Self {
        Self {
            labels: Lock::new(Labels::new(labels_max)),
            kinds: PerKind::new(labels_max),
            workers: Lock::new((0..workers).map(|_| Arc::new(WorkerCounters::new(labels_max))).collect()),
            labels_max,
            collector: Lock::new(Collector::new()),
            metrics,
            outside: AtomicU32::new(0),
        }
    }

    /// Returns the counters of a worker slot; a new worker continues those of its predecessor.
    pub(crate) fn worker(&self, slot: usize) -> Arc<WorkerCounters> {
        self.workers.with(|workers| {
            while workers.len() <= slot {
                workers.push(Arc::new(WorkerCounters::new(self.labels_max)));
            }
            workers[slot].clone()
        })
    }

    pub(crate) fn count_spawn(&self, label: &str) -> KindId {
        let kind = self.labels.with(|labels| labels.intern(label));
        self.kinds.get(kind).add_spawned();
        kind
    }

    pub(crate) fn count_end(&self, kind: KindId, user: MailboxQueueStats, system: MailboxQueueStats) {
        self.kinds.get(kind).add_stopped(totals(user, system));
    }

    pub(crate) fn count_failure(&self, kind: KindId) {
        self.kinds.get(kind).add_failure();
    }

    pub(crate) fn count_mailbox_failure(&self, kind: KindId) {
        self.kinds.get(kind).add_mailbox_failure();
    }

    pub(crate) fn count_restart(&self, kind: KindId) {
        self.kinds.get(kind).add_restart();
    }

    pub(crate) fn count_overflow(&self, kind: KindId, reason: OverflowReason) {
        self.kinds.get(kind).add_overflow(reason);
    }

    /// Returns the number of actors that have not stopped.
    pub(crate) fn alive(&self) -> u64 {
        self.labels.with(|labels| labels.iter().map(|(kind, _)| self.kinds.get(kind).alive()).sum())
    }

    /// Reports whether to time a cell scheduled by a thread that is not a worker.
    pub(crate) fn should_sample_wait(&self) -> bool {
        self.metrics == Metrics::On
            && self.outside.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE_INTERVAL)
    }

    /// Sums the sampled waits from ready to run over all workers and kinds.
    #[cfg(all(feature = "patterns", feature = "std"))]
    pub(crate) fn waits(&self) -> WaitTotals {
        let kinds: Vec<_> = self.labels.with(|labels| labels.iter().map(|(kind, _)| kind).collect());
        let workers = self.workers.with(|workers| workers.clone());
        let mut waits = WaitTotals::default();
        for worker in &workers {
            for kind in &kinds {
                let latency = worker.latency(*kind).snapshot();
                waits.count += latency.count();
                waits.sum += latency.sum();
            }
        }
        waits
    }

    /// Takes a snapshot of all metrics.
    pub(crate) fn snapshot(&self, core: &Core, letters: &Lock<DeadLetters>) -> Snapshot {
        let mut live = PerKind::<LiveMailboxes>::new(self.labels_max);
        for cell in core.slab.iter() {
            if cell.state() == ActorState::Stopped {
                continue;
            }
            let body = &cell.occupant().body;
            let user = body.stats();
            let system = body.system_stats();
            live.get_mut(body.header().kind).add(totals(user, system), user.depth as u64);
        }
        let workers = self.workers.with(|workers| workers.clone());
        let workers: Vec<&WorkerCounters> = workers.iter().map(|worker| &**worker).collect();
        let dead_letters = letters.with(|letters| letters.counts());
        self.labels.with(|labels| {
            let sources = Sources {
                labels,
                kinds: &self.kinds,
                live: &live,
                workers: &workers,
                workers_active: core.coordinator.queues.worker_slots.active() as u64,
                now: core.now(),
                ready_queue_depth: core.coordinator.depth() as u64,
                dead_letters,
            };
            self.collector.with(|collector| collector.collect(&sources))
        })
    }
}

/// Number and sum of the sampled waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg(all(feature = "patterns", feature = "std"))]
pub(crate) struct WaitTotals {
    pub(crate) count: u64,
    pub(crate) sum: core::time::Duration,
}

fn totals(user: MailboxQueueStats, system: MailboxQueueStats) -> MailboxTotals {
    let dequeued = |queue: MailboxQueueStats| queue.enqueued.saturating_sub(queue.depth as u64);
    MailboxTotals {
        enqueued: UserSystemTotals { user: user.enqueued, system: system.enqueued },
        dequeued: UserSystemTotals { user: dequeued(user), system: dequeued(system) },
    }
}

/// Returns the overflow that caused a dead letter, if an overflow did.
pub(crate) fn overflow_of(reason: DeadLetterReason) -> Option<OverflowReason> {
    match reason {
        DeadLetterReason::DroppedOldest => Some(OverflowReason::DroppedOldest),
        DeadLetterReason::DroppedNewest => Some(OverflowReason::DroppedNewest),
        DeadLetterReason::Overflow => Some(OverflowReason::DeadLetter),
        _ => None,
    }
}
