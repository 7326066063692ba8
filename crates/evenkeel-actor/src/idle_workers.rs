//! Parked and searching workers.
//!
//! A worker that finds no work announces that it parks, then checks once more; a producer of work checks for
//! parked workers after queueing it. One of the two sees the other, so no work is left while all workers are
//! parked. While a worker searches, no other is woken: the searcher will find the work, and the last one to
//! stop searching wakes the next.

use alloc::vec::Vec;
use core::task::{Poll, Waker};

use crate::sync::{AtomicUsize, Lock, Ordering, fence};

/// The parked and searching workers.
#[derive(Debug)]
pub(crate) struct IdleWorkers {
    sleeping: AtomicUsize,
    searching: AtomicUsize,
    parked: Lock<Vec<(usize, Waker)>>,
    /// Workers that yielded to their host.
    yielding: Lock<Vec<YieldEntry>>,
}

/// A worker that has yielded its thread and continues when its host polls it again.
#[derive(Debug)]
struct YieldEntry {
    worker: usize,
    waker: Waker,
    /// Set once the timer driver has seen the entry.
    seen: bool,
}

impl IdleWorkers {
    pub(crate) fn new() -> Self {
        Self {
            sleeping: AtomicUsize::new(0),
            searching: AtomicUsize::new(0),
            parked: Lock::new(Vec::new()),
            yielding: Lock::new(Vec::new()),
        }
    }

    /// Records that a worker yields to its host.
    pub(crate) fn record_yield(&self, worker: usize, waker: &Waker) {
        let yielding = YieldEntry { worker, waker: waker.clone(), seen: false };
        self.yielding.with(|all| all.push(yielding));
    }

    /// Records that a worker is back from yielding.
    pub(crate) fn end_yield(&self, worker: usize) {
        let entry = self.yielding.with(|all| {
            let index = all.iter().position(|yielding| yielding.worker == worker)?;
            Some(all.swap_remove(index))
        });
        // Dropped after the lock, as in `unpark`.
        drop(entry);
    }

    /// Wakes the workers that were already yielding at the previous call.
    ///
    /// A host thread that is stuck in a handler may hold a worker in a place from which no other thread takes
    /// it.
    pub(crate) fn wake_yielded(&self) {
        let overdue: Vec<_> = self.yielding.with(|all| {
            let overdue = all.iter().filter(|yielding| yielding.seen).map(|yielding| yielding.waker.clone());
            let overdue = overdue.collect();
            all.iter_mut().for_each(|yielding| yielding.seen = true);
            overdue
        });
        overdue.into_iter().for_each(Waker::wake);
    }

    /// Wakes one parked worker unless there is none or another one searches; called after work was queued.
    pub(crate) fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) == 0 || self.searching.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let woken = self.parked.with(|parked| {
            let (_, waker) = parked.pop()?;
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
            self.searching.fetch_add(1, Ordering::SeqCst);
            Some(waker)
        });
        let Some(waker) = woken else { return false };
        waker.wake();
        true
    }

    /// Wakes all parked workers, for shutdown.
    pub(crate) fn notify_all(&self) {
        self.notify_from(0);
    }

    /// Wakes the parked workers with this number or above, after the target was lowered.
    pub(crate) fn notify_from(&self, first: usize) {
        fence(Ordering::SeqCst);
        let woken: Vec<_> = self.parked.with(|parked| {
            let woken = parked.extract_if(.., |(worker, _)| *worker >= first).collect::<Vec<_>>();
            self.sleeping.fetch_sub(woken.len(), Ordering::Relaxed);
            self.searching.fetch_add(woken.len(), Ordering::SeqCst);
            woken
        });
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Counts the caller as searching.
    pub(crate) fn begin_search(&self) {
        self.searching.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the caller's search after it found work; the last searcher wakes the next worker.
    ///
    /// Returns whether it woke one.
    pub(crate) fn end_search(&self) -> bool {
        self.searching.fetch_sub(1, Ordering::SeqCst) == 1 && self.notify()
    }

    /// Ends a search like `end_search`, but wakes a worker only if `more` reports further work; a producer
    /// that queues work meanwhile wakes one itself.
    pub(crate) fn end_search_if(&self, more: impl FnOnce() -> bool) -> bool {
        if self.searching.fetch_sub(1, Ordering::SeqCst) != 1 {
            return false;
        }
        fence(Ordering::SeqCst);
        more() && self.notify()
    }

    /// Parks a searching worker; ready at once if `found_work` reports work.
    ///
    /// The worker is announced as parked before `found_work` is called.
    pub(crate) fn poll_park(
        &self,
        worker: usize,
        waker: &Waker,
        found_work: impl FnOnce() -> bool,
    ) -> Poll<()> {
        self.parked.with(|parked| {
            parked.push((worker, waker.clone()));
            self.sleeping.fetch_add(1, Ordering::SeqCst);
        });
        self.searching.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !found_work() {
            return Poll::Pending;
        }
        self.unpark(worker);
        Poll::Ready(())
    }

    /// Ends the caller's parking; it counts as searching afterwards.
    ///
    /// A worker that was woken has already been counted as searching by its waker.
    pub(crate) fn unpark(&self, worker: usize) {
        let unparked = self.parked.with(|parked| {
            let index = parked.iter().position(|(parked_worker, _)| *parked_worker == worker)?;
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
            self.searching.fetch_add(1, Ordering::SeqCst);
            Some(parked.swap_remove(index))
        });
        // Dropped after the lock: dropping the last waker may drop a host task, and with it a worker.
        drop(unparked);
    }

    pub(crate) fn sleeping(&self) -> usize {
        self.sleeping.load(Ordering::SeqCst)
    }
}
