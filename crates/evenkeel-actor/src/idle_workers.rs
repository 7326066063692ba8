//! Tracks the workers that are parked, searching for work, or yielding to the host runtime.
//!
//! A worker that finds no work registers itself as parked, then checks for work once more; a producer checks
//! for parked workers after queueing work. One of the two sees the other, so queued work is never stranded while all
//! workers are parked. While a worker searches, queueing work wakes no other worker: the searcher will find the work, and the
//! last worker to stop searching wakes the next. A task of the host that asks, and the timer task, wake a worker even while
//! another searches, because that one may have been woken and be waiting for a thread.

use alloc::vec::Vec;
use core::task::{Poll, Waker};

use crate::sync::{AtomicUsize, Lock, Ordering, fence};

/// Workers that are parked, searching or yielding; see the module documentation.
#[derive(Debug)]
pub(crate) struct IdleWorkers {
    /// Length of `parked`, readable without its lock.
    parked_count: AtomicUsize,
    searching: AtomicUsize,
    parked: Lock<Vec<(usize, Waker)>>,
    /// Workers that yielded to the host runtime, such as Tokio.
    yielding: Lock<Vec<YieldEntry>>,
}

/// A worker that has yielded its thread and continues when the host runtime polls it again.
#[derive(Debug)]
struct YieldEntry {
    worker: usize,
    waker: Waker,
    /// Set once the timer driver has seen the entry.
    seen_by_timer: bool,
}

impl IdleWorkers {
    pub(crate) fn new() -> Self {
        Self {
            parked_count: AtomicUsize::new(0),
            searching: AtomicUsize::new(0),
            parked: Lock::new(Vec::new()),
            yielding: Lock::new(Vec::new()),
        }
    }

    /// Registers a worker that yields to the host runtime, or updates its waker.
    pub(crate) fn begin_yield(&self, worker: usize, waker: &Waker) {
        let waker = waker.clone();
        let older = self.yielding.with(|yielding| {
            if let Some(entry) = yielding.iter_mut().find(|entry| entry.worker == worker) {
                return Some(core::mem::replace(&mut entry.waker, waker));
            }
            yielding.push(YieldEntry { worker, waker, seen_by_timer: false });
            None
        });
        // Dropped after the lock is released, as in `unpark`.
        drop(older);
    }

    /// Unregisters a worker that the host runtime polls again.
    pub(crate) fn end_yield(&self, worker: usize) {
        let entry = self.yielding.with(|yielding| {
            let index = yielding.iter().position(|entry| entry.worker == worker)?;
            Some(yielding.swap_remove(index))
        });
        // Dropped after the lock is released, as in `unpark`.
        drop(entry);
    }

    /// Wakes the workers that were already yielding at the previous call.
    ///
    /// A yielded worker may sit in the LIFO slot of a host thread that is blocked in a handler, from which other
    /// host threads do not steal (Tokio).
    pub(crate) fn wake_yielded(&self) {
        let stuck: Vec<_> = self.yielding.with(|yielding| {
            let seen_before = yielding.iter().filter(|entry| entry.seen_by_timer);
            let stuck = seen_before.map(|entry| entry.waker.clone()).collect();
            yielding.iter_mut().for_each(|entry| entry.seen_by_timer = true);
            stuck
        });
        stuck.into_iter().for_each(Waker::wake);
    }

    /// Wakes a parked worker, unless a worker is already searching; call it after queueing work.
    ///
    /// A worker counts as searching once it is woken. Returns whether it woke one.
    pub(crate) fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.parked_count.load(Ordering::Relaxed) == 0 || self.searching.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.wake_one()
    }

    /// Wakes a parked worker, even if a worker is already searching.
    ///
    /// That worker may have been woken and be waiting for its thread. Returns whether it woke one.
    pub(crate) fn notify_another(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.parked_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.wake_one()
    }

    fn wake_one(&self) -> bool {
        let woken = self.parked.with(|parked| {
            let (_, waker) = parked.pop()?;
            self.parked_count.fetch_sub(1, Ordering::SeqCst);
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

    /// Wakes the parked workers numbered `first` and above, so that they exit after the target number of workers
    /// was lowered.
    pub(crate) fn notify_from(&self, first: usize) {
        fence(Ordering::SeqCst);
        let woken: Vec<_> = self.parked.with(|parked| {
            let woken = parked.extract_if(.., |(worker, _)| *worker >= first).collect::<Vec<_>>();
            self.parked_count.fetch_sub(woken.len(), Ordering::Relaxed);
            self.searching.fetch_add(woken.len(), Ordering::SeqCst);
            woken
        });
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Counts the caller as searching.
    pub(crate) fn begin_search(&self) {
        self.searching.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the search of a worker that exits; the last searcher wakes the next worker.
    ///
    /// Returns whether it woke one.
    pub(crate) fn end_search(&self) -> bool {
        self.searching.fetch_sub(1, Ordering::SeqCst) == 1 && self.notify()
    }

    /// Ends the caller's search; the last searcher wakes the next worker if `has_more_work` returns `true`.
    ///
    /// A producer that queues work after that check wakes a worker itself. Returns whether a worker was woken.
    pub(crate) fn end_search_and_notify_if(&self, has_more_work: impl FnOnce() -> bool) -> bool {
        if self.searching.fetch_sub(1, Ordering::SeqCst) != 1 {
            return false;
        }
        fence(Ordering::SeqCst);
        has_more_work() && self.notify()
    }

    /// Parks a searching worker; ready at once if `has_work` returns `true`.
    ///
    /// The worker is registered as parked before `has_work` is called.
    pub(crate) fn poll_park(
        &self,
        worker: usize,
        waker: &Waker,
        has_work: impl FnOnce() -> bool,
    ) -> Poll<()> {
        self.parked.with(|parked| {
            parked.push((worker, waker.clone()));
            self.parked_count.fetch_add(1, Ordering::SeqCst);
        });
        self.searching.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !has_work() {
            return Poll::Pending;
        }
        self.unpark(worker);
        Poll::Ready(())
    }

    /// Moves the caller from the parked to the searching workers, unless the thread that woke it has already done so.
    pub(crate) fn unpark(&self, worker: usize) {
        let unparked = self.parked.with(|parked| {
            let index = parked.iter().position(|(parked_worker, _)| *parked_worker == worker)?;
            self.parked_count.fetch_sub(1, Ordering::SeqCst);
            self.searching.fetch_add(1, Ordering::SeqCst);
            Some(parked.swap_remove(index))
        });
        // Dropped after the lock is released: dropping the last waker may drop a host task, and with it a worker.
        drop(unparked);
    }

    pub(crate) fn parked_count(&self) -> usize {
        self.parked_count.load(Ordering::SeqCst)
    }
}
