//! No work is left while all workers are parked, and no worker stays parked after the end.

use alloc::vec::Vec;
use core::task::{Poll, Waker};
use std::sync::Arc as StdArc;

use loom::thread;

use super::{TestWaker, check};
use crate::idle_workers::IdleWorkers;
use crate::sync::{Arc, AtomicU32, Ordering};

/// Workers that share one queue, which is a number, ordered only by the fences of `IdleWorkers`.
struct WorkerModel {
    idle: IdleWorkers,
    queue: AtomicU32,
    /// Work items that are not done.
    alive: AtomicU32,
    stopped: AtomicU32,
}

impl WorkerModel {
    /// Creates a model with `items` work items to come; the workers exit after the last, once stopped.
    fn expecting(items: u32) -> Arc<Self> {
        Arc::new(Self {
            idle: IdleWorkers::new(),
            queue: AtomicU32::new(0),
            alive: AtomicU32::new(items),
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

    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) == 1 && self.alive.load(Ordering::Relaxed) == 0
    }

    /// Mirrors a worker until the end.
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
            if self.is_over() {
                self.idle.end_search();
                return;
            }
            let found = || self.queue.load(Ordering::Relaxed) != 0 || self.is_over();
            if self.idle.poll_park(worker, &waker, found) == Poll::Pending {
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
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

fn workers(model: &Arc<WorkerModel>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let one = |worker| {
        let model = model.clone();
        thread::spawn(move || model.work(worker))
    };
    (0..count).map(one).collect()
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
fn no_worker_stays_parked_after_the_end() {
    check(3, || {
        let model = WorkerModel::expecting(0);
        let workers = workers(&model, 2);
        model.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// The stop comes while work is left; the worker that finishes it must let all workers exit.
#[test]
fn the_worker_that_finishes_the_last_work_ends_the_others() {
    check(2, || {
        let model = WorkerModel::expecting(1);
        let workers = workers(&model, 2);
        model.stop();
        model.inject();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn two_concurrent_notifications_wake_different_workers_or_one_of_them_none() {
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
        assert_eq!(idle.sleeping(), 2 - woken as usize);
    });
}

/// Time at which a searching worker that found work checks for more.
#[derive(Clone, Copy)]
enum CheckTime {
    /// As [`IdleWorkers::end_search_if`] does.
    AfterSearch,
    BeforeSearchEnds,
}

/// One worker is parked; one has found work and is about to run it for long; a third thread queues more.
fn finder_and_producer(check_time: CheckTime) {
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
    let more = || queue.load(Ordering::Relaxed) != 0;
    match check_time {
        CheckTime::AfterSearch => drop(idle.end_search_if(more)),
        CheckTime::BeforeSearchEnds => {
            let more = more();
            idle.end_search_if(|| more);
        }
    }
    producer.join().unwrap();
    assert_eq!(test_waker.wake_count(), 1, "the parked worker is needed, and woken once");
}

#[test]
fn the_end_of_a_search_and_new_work_wake_a_parked_worker_once() {
    check(3, || finder_and_producer(CheckTime::AfterSearch));
}

#[test]
#[should_panic(expected = "the parked worker is needed")]
fn checking_before_the_search_ends_leaves_work_next_to_a_parked_worker() {
    check(3, || finder_and_producer(CheckTime::BeforeSearchEnds));
}
