//! Who sleeps and who looks for work.
//!
//! A worker that finds nothing announces that it sleeps, then looks once more; whoever makes work looks
//! for sleepers after making it. One of the two sees the other, so no work is left with everybody
//! asleep. While somebody searches, nobody is woken: the searcher will find it, and the last one to stop
//! searching wakes the next.

use alloc::vec::Vec;
use core::task::{Poll, Waker};

use crate::sync::{AtomicUsize, Lock, Ordering, fence};

/// The sleepers and searchers among the workers.
#[derive(Debug)]
pub(crate) struct IdleWorkers {
    sleeping: AtomicUsize,
    searching: AtomicUsize,
    sleepers: Lock<Vec<(usize, Waker)>>,
    /// Those who let their host go first.
    yielding: Lock<Vec<YieldEntry>>,
}

/// A worker that has given its thread back and comes again when its host lets it.
#[derive(Debug)]
struct YieldEntry {
    worker: usize,
    waker: Waker,
    /// Whether the clock has seen it before.
    seen: bool,
}

impl IdleWorkers {
    pub(crate) fn new() -> Self {
        Self {
            sleeping: AtomicUsize::new(0),
            searching: AtomicUsize::new(0),
            sleepers: Lock::new(Vec::new()),
            yielding: Lock::new(Vec::new()),
        }
    }

    /// Notes that a worker lets its host go first.
    pub(crate) fn record_yield(&self, worker: usize, waker: &Waker) {
        let yielding = YieldEntry { worker, waker: waker.clone(), seen: false };
        self.yielding.with(|all| all.push(yielding));
    }

    /// Notes that a worker is back.
    pub(crate) fn end_yield(&self, worker: usize) {
        let back = self.yielding.with(|all| {
            let at = all.iter().position(|yielding| yielding.worker == worker)?;
            Some(all.swap_remove(at))
        });
        // After the lock, as in `rise`.
        drop(back);
    }

    /// Wakes the workers that the call before found yielding, too.
    ///
    /// A host's thread that is stuck in a handler may have kept one to itself, where no other finds it.
    pub(crate) fn wake_yielded(&self) {
        let late: Vec<_> = self.yielding.with(|all| {
            let late = all.iter().filter(|yielding| yielding.seen).map(|yielding| yielding.waker.clone());
            let late = late.collect();
            all.iter_mut().for_each(|yielding| yielding.seen = true);
            late
        });
        late.into_iter().for_each(Waker::wake);
    }

    /// Wakes one sleeper, unless there is none or somebody searches already; after work was made.
    pub(crate) fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) == 0 || self.searching.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let woken = self.sleepers.with(|sleepers| {
            let (_, waker) = sleepers.pop()?;
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
            self.searching.fetch_add(1, Ordering::SeqCst);
            Some(waker)
        });
        let Some(waker) = woken else { return false };
        waker.wake();
        true
    }

    /// Wakes everybody; for shutdown.
    pub(crate) fn notify_all(&self) {
        self.notify_from(0);
    }

    /// Wakes the workers from the one of this number on; after they were told to leave.
    pub(crate) fn notify_from(&self, first: usize) {
        fence(Ordering::SeqCst);
        let woken: Vec<_> = self.sleepers.with(|sleepers| {
            let woken = sleepers.extract_if(.., |(worker, _)| first <= *worker).collect::<Vec<_>>();
            self.sleeping.fetch_sub(woken.len(), Ordering::Relaxed);
            self.searching.fetch_add(woken.len(), Ordering::SeqCst);
            woken
        });
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Counts the caller among those who search.
    pub(crate) fn begin_search(&self) {
        self.searching.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the caller off those who search, with something found; the last one wakes the next.
    ///
    /// Returns whether it did.
    pub(crate) fn end_search(&self) -> bool {
        self.searching.fetch_sub(1, Ordering::SeqCst) == 1 && self.notify()
    }

    /// The same for one who can see whether there is more; who makes work meanwhile wakes somebody.
    pub(crate) fn end_search_if(&self, more: impl FnOnce() -> bool) -> bool {
        if self.searching.fetch_sub(1, Ordering::SeqCst) != 1 {
            return false;
        }
        fence(Ordering::SeqCst);
        more() && self.notify()
    }

    /// Sends a searcher to sleep, unless `found_work` has something for it: ready at once then.
    ///
    /// The sleeper is announced first and looks afterwards.
    pub(crate) fn poll_sleep(
        &self,
        worker: usize,
        waker: &Waker,
        found_work: impl FnOnce() -> bool,
    ) -> Poll<()> {
        self.sleepers.with(|sleepers| {
            sleepers.push((worker, waker.clone()));
            self.sleeping.fetch_add(1, Ordering::SeqCst);
        });
        self.searching.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !found_work() {
            return Poll::Pending;
        }
        self.rise(worker);
        Poll::Ready(())
    }

    /// Gets up, as a searcher in any case.
    ///
    /// Somebody who was woken was counted as searching by whoever woke it.
    pub(crate) fn rise(&self, worker: usize) {
        let risen = self.sleepers.with(|sleepers| {
            let at = sleepers.iter().position(|(sleeper, _)| *sleeper == worker)?;
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
            self.searching.fetch_add(1, Ordering::SeqCst);
            Some(sleepers.swap_remove(at))
        });
        // After the lock: with its last waker a host may drop a task, and with it a worker.
        drop(risen);
    }

    pub(crate) fn sleeping(&self) -> usize {
        self.sleeping.load(Ordering::SeqCst)
    }
}
