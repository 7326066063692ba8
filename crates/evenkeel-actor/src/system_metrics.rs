//! What a system counts while it runs, and how a reading of it is taken.

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

/// One in this many runs is timed, and as many first messages.
pub(crate) const SAMPLED: u32 = 64;

/// The counters of one system.
#[derive(Debug)]
pub(crate) struct SystemMetrics {
    labels: Lock<Labels>,
    kinds: PerKind<KindCounters>,
    /// Of all workers there ever were, each in its place.
    workers: Lock<Vec<Arc<WorkerCounters>>>,
    collector: Lock<Collector>,
    metrics: Metrics,
    labels_max: u16,
    /// Counts what is scheduled from outside of workers, to sample it.
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

    /// Finds the counters of a worker, which go on where the one before in that place left off.
    pub(crate) fn worker(&self, place: usize) -> Arc<WorkerCounters> {
        self.workers.with(|workers| {
            while workers.len() <= place {
                workers.push(Arc::new(WorkerCounters::new(self.labels_max)));
            }
            workers[place].clone()
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

    pub(crate) fn count_restart(&self, kind: KindId) {
        self.kinds.get(kind).add_restart();
    }

    pub(crate) fn count_overflow(&self, kind: KindId, reason: OverflowReason) {
        self.kinds.get(kind).add_overflow(reason);
    }

    /// Counts the actors that have not ended.
    pub(crate) fn alive(&self) -> u64 {
        self.labels.with(|labels| labels.iter().map(|(kind, _)| self.kinds.get(kind).alive()).sum())
    }

    /// Whether something scheduled from outside of workers is to be timed.
    pub(crate) fn samples_outside(&self) -> bool {
        self.metrics == Metrics::On && self.outside.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }

    /// Adds up the waits from ready to run that were measured, of all workers and kinds.
    #[cfg(all(feature = "patterns", feature = "std"))]
    pub(crate) fn waits(&self) -> WaitTotals {
        let kinds: Vec<_> = self.labels.with(|labels| labels.iter().map(|(kind, _)| kind).collect());
        let workers = self.workers.with(|workers| workers.clone());
        let mut waits = WaitTotals::default();
        for worker in &workers {
            for kind in &kinds {
                let measured = worker.latency(*kind).snapshot();
                waits.count += measured.count();
                waits.sum += measured.sum();
            }
        }
        waits
    }

    /// Reads everything.
    pub(crate) fn snapshot(&self, core: &Core, letters: &Lock<DeadLetters>) -> Snapshot {
        let mut live = PerKind::<LiveMailboxes>::new(self.labels_max);
        for cell in core.slab.iter() {
            if cell.state() == ActorState::Stopped {
                continue;
            }
            let body = &cell.occupant().body;
            let user = body.stats();
            let system = body.system_stats();
            live.get_mut(body.head().kind).add(totals(user, system), user.depth as u64);
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
                workers_active: core.coordinator.queues.crew.active() as u64,
                now: core.now(),
                ready_queue_depth: core.coordinator.depth() as u64,
                dead_letters,
            };
            self.collector.with(|collector| collector.collect(&sources))
        })
    }
}

/// How many waits were measured, and how long they were together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg(all(feature = "patterns", feature = "std"))]
pub(crate) struct WaitTotals {
    pub(crate) count: u64,
    pub(crate) sum: core::time::Duration,
}

fn totals(user: MailboxQueueStats, system: MailboxQueueStats) -> MailboxTotals {
    let dequeued = |lane: MailboxQueueStats| lane.enqueued.saturating_sub(lane.depth as u64);
    MailboxTotals {
        enqueued: UserSystemTotals { user: user.enqueued, system: system.enqueued },
        dequeued: UserSystemTotals { user: dequeued(user), system: dequeued(system) },
    }
}

/// The overflow a dead letter stands for, if it stands for one.
pub(crate) fn overflow_of(reason: DeadLetterReason) -> Option<OverflowReason> {
    match reason {
        DeadLetterReason::DroppedOldest => Some(OverflowReason::DroppedOldest),
        DeadLetterReason::DroppedNewest => Some(OverflowReason::DroppedNewest),
        DeadLetterReason::Overflow => Some(OverflowReason::DeadLetter),
        _ => None,
    }
}
