//! No work is left while all workers are parked, and no worker stays parked after a stop.

use alloc::vec::Vec;
use core::task::{Poll, Waker};
use std::sync::Arc as StdArc;

use loom::thread;

use super::{TestWaker, check};
use crate::idle_workers::IdleWorkers;
use crate::sync::{Arc, AtomicU32, Ordering};

/// Workers that share one queue. The queue is only a count, with relaxed accesses, so that only the fences of
/// `IdleWorkers` synchronise.
struct WorkerModel {
    idle: IdleWorkers,
    queue: AtomicU32,
    /// Work items that are not finished.
    unfinished: AtomicU32,
    stopped: AtomicU32,
}

impl WorkerModel {
    /// Creates a model whose workers exit once it is stopped and `items` work items are finished.
    fn expecting(items: u32) -> Arc<Self> {
        Arc::new(Self {
            idle: IdleWorkers::new(),
            queue: AtomicU32::new(0),
            unfinished: AtomicU32::new(items),
            stopped: AtomicU32::new(0),
        })
    }

    fn inject(&self) {
        self.queue.fetch_add(1, Ordering::Relaxed);
        self.idle.notify();
    }

    fn stop(&self) {
        self.stopped.store(1, Ordering::Relaxed);
        self.idle.notify_all();
    }

    fn is_finished(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) == 1 && self.unfinished.load(Ordering::Relaxed) == 0
    }

    /// Mirrors a worker until it exits.
    fn work(&self, worker: usize) {
        let test_waker = TestWaker::new();
        let waker = Waker::from(test_waker.clone());
        self.idle.begin_search();
        loop {
            if self.take() {
                self.idle.end_search();
                self.finish();
                while self.take() {
                    self.finish();
                }
                self.idle.begin_search();
                continue;
            }
            if self.is_finished() {
                self.idle.end_search();
                return;
            }
            let has_work = || self.queue.load(Ordering::Relaxed) != 0 || self.is_finished();
            if self.idle.poll_park(worker, &waker, has_work) == Poll::Pending {
                test_waker.wait();
                self.idle.unpark(worker);
            }
        }
    }

    fn take(&self) -> bool {
        let one_less = |items: u32| items.checked_sub(1);
        self.queue.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn finish(&self) {
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
    }
}

fn workers(model: &Arc<WorkerModel>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let spawn = |worker| {
        let model = model.clone();
        thread::spawn(move || model.work(worker))
    };
    (0..count).map(spawn).collect()
}

#[test]
fn a_parking_worker_misses_no_work() {
    check(3, || {
        let model = WorkerModel::expecting(2);
        let workers = workers(&model, 1);
        model.inject();
        model.inject();
        model.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn two_workers_leave_no_work_behind() {
    check(2, || {
        let model = WorkerModel::expecting(1);
        let workers = workers(&model, 2);
        model.inject();
        model.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn work_from_two_threads_reaches_a_parked_worker() {
    check(2, || {
        let model = WorkerModel::expecting(2);
        let workers = workers(&model, 1);
        let other = model.clone();
        let second = thread::spawn(move || other.inject());
        model.inject();
        model.stop();
        second.join().unwrap();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn no_worker_stays_parked_after_a_stop() {
    check(3, || {
        let model = WorkerModel::expecting(0);
        let workers = workers(&model, 2);
        model.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// The stop comes before the last work item is queued; the worker that finishes it must wake the others to exit.
#[test]
fn all_workers_exit_after_the_last_work_item() {
    check(2, || {
        let model = WorkerModel::expecting(1);
        let workers = workers(&model, 2);
        model.stop();
        model.inject();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn two_concurrent_notifications_never_wake_the_same_worker() {
    check(3, || {
        let idle = Arc::new(IdleWorkers::new());
        let test_wakers = [TestWaker::new(), TestWaker::new()];
        for (worker, test_waker) in test_wakers.iter().enumerate() {
            idle.begin_search();
            let waker = Waker::from(StdArc::clone(test_waker));
            assert_eq!(idle.poll_park(worker, &waker, || false), Poll::Pending);
        }
        let other = idle.clone();
        let second = thread::spawn(move || other.notify());
        let first = idle.notify();
        let woken = u32::from(first) + u32::from(second.join().unwrap());
        assert!(woken >= 1);
        assert_eq!(test_wakers.iter().map(|test_waker| test_waker.wake_count()).sum::<u32>(), woken);
        assert_eq!(idle.parked_count(), 2 - woken as usize);
    });
}

/// Order in which a worker that found work ends its search and checks for more work.
#[derive(Clone, Copy)]
enum CheckOrder {
    /// The order of [`IdleWorkers::end_search_and_notify_if`].
    AfterEndOfSearch,
    BeforeEndOfSearch,
}

/// One worker is parked; another has found work and will be busy for long; a third thread queues more work.
fn finder_and_producer(order: CheckOrder) {
    let idle = Arc::new(IdleWorkers::new());
    let queue = Arc::new(AtomicU32::new(0));
    let test_waker = TestWaker::new();
    idle.begin_search();
    let waker = Waker::from(StdArc::clone(&test_waker));
    assert_eq!(idle.poll_park(0, &waker, || false), Poll::Pending);
    idle.begin_search();
    let producer = {
        let idle = idle.clone();
        let queue = queue.clone();
        thread::spawn(move || {
            queue.store(1, Ordering::Relaxed);
            idle.notify();
        })
    };
    let has_more = || queue.load(Ordering::Relaxed) != 0;
    match order {
        CheckOrder::AfterEndOfSearch => drop(idle.end_search_and_notify_if(has_more)),
        CheckOrder::BeforeEndOfSearch => {
            let has_more = has_more();
            idle.end_search_and_notify_if(|| has_more);
        }
    }
    producer.join().unwrap();
    assert_eq!(test_waker.wake_count(), 1, "the parked worker must be woken once");
}

#[test]
fn the_end_of_a_search_and_new_work_wake_a_parked_worker_once() {
    check(3, || finder_and_producer(CheckOrder::AfterEndOfSearch));
}

#[test]
#[should_panic(expected = "the parked worker must be woken")]
fn checking_for_work_before_ending_the_search_loses_a_wakeup() {
    check(3, || finder_and_producer(CheckOrder::BeforeEndOfSearch));
}
