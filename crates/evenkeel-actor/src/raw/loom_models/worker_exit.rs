//! Workers start and exit: an exiting worker leaves no work behind, and no wanted slot stays empty.

use core::num::NonZeroUsize;
use core::task::{Poll, Waker};

use loom::thread;

use super::{TestWaker, check};
use crate::idle_workers::IdleWorkers;
use crate::sync::{Arc, AtomicU32, Ordering};
use crate::worker_slots::WorkerSlots;

const ONE: NonZeroUsize = NonZeroUsize::MIN;
const TWO: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);

/// Two workers, and counts of the work items that any worker can take and of those only the second can take.
struct WorkerModel {
    slots: WorkerSlots<()>,
    idle: IdleWorkers,
    common: AtomicU32,
    second_only: AtomicU32,
    unfinished: AtomicU32,
}

impl WorkerModel {
    fn new(common: u32, second_only: u32) -> Arc<Self> {
        Arc::new(Self {
            slots: WorkerSlots::new([(), ()], TWO),
            idle: IdleWorkers::new(),
            common: AtomicU32::new(common),
            second_only: AtomicU32::new(second_only),
            unfinished: AtomicU32::new(common + second_only),
        })
    }

    fn take(&self) -> bool {
        let one_less = |items: u32| items.checked_sub(1);
        self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn finish(&self) {
        if self.unfinished.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_all();
        }
    }

    fn is_finished(&self) -> bool {
        self.unfinished.load(Ordering::SeqCst) == 0
    }

    /// Mirrors `set_workers` with one worker less.
    fn remove_worker(&self) {
        self.slots.set_target(ONE);
        self.idle.notify_from(1);
    }

    /// Mirrors a worker, which runs until all work is done or its slot is above the target.
    fn work(&self, worker: usize) {
        let test_waker = TestWaker::new();
        let waker = Waker::from(test_waker.clone());
        let value = self.slots.claim(worker);
        self.idle.begin_search();
        while self.slots.is_wanted(worker) {
            if self.take() {
                self.idle.end_search_and_notify_if(|| self.common.load(Ordering::Relaxed) != 0);
                self.finish();
                self.idle.begin_search();
                continue;
            }
            if self.is_finished() {
                break;
            }
            let has_work = || {
                self.common.load(Ordering::Relaxed) != 0
                    || self.is_finished()
                    || !self.slots.is_wanted(worker)
            };
            if self.idle.poll_park(worker, &waker, has_work) == Poll::Pending {
                test_waker.wait();
                self.idle.unpark(worker);
            }
        }
        self.exit(worker, value);
    }

    /// Mirrors the drop of a worker: end the search, hand its cells over, release its slot.
    fn exit(&self, worker: usize, value: Option<()>) {
        self.idle.end_search();
        if worker == 1 {
            let left = self.second_only.swap(0, Ordering::Relaxed);
            self.common.fetch_add(left, Ordering::Relaxed);
        }
        value.into_iter().for_each(|value| self.slots.release(worker, value));
        self.idle.notify();
    }
}

fn second_exits(model: &Arc<WorkerModel>) {
    let [first, second] = [0, 1].map(|worker| {
        let model = model.clone();
        thread::spawn(move || model.work(worker))
    });
    model.remove_worker();
    second.join().unwrap();
    first.join().unwrap();
    assert_eq!(model.common.load(Ordering::Relaxed), 0);
}

#[test]
fn the_remaining_worker_does_the_work_of_an_exiting_one() {
    check(2, || second_exits(&WorkerModel::new(0, 1)));
}

#[test]
fn an_exiting_worker_that_was_woken_for_work_wakes_another() {
    check(2, || {
        let model = WorkerModel::new(0, 0);
        model.unfinished.store(1, Ordering::SeqCst);
        let producer = model.clone();
        let producer = thread::spawn(move || {
            producer.common.fetch_add(1, Ordering::Relaxed);
            producer.idle.notify();
        });
        second_exits(&model);
        producer.join().unwrap();
    });
}

/// Order in which an exiting worker hands over its work and wakes another worker.
#[derive(Clone, Copy)]
enum WakeOrder {
    AfterHandingOver,
    BeforeHandingOver,
}

/// One worker exits and leaves work while the other parks; the other must see the work or be woken.
fn one_exits_while_the_other_parks(wake: WakeOrder) {
    let model = WorkerModel::new(0, 1);
    let test_waker = TestWaker::new();
    model.idle.begin_search();
    model.idle.begin_search();
    let exiting_model = model.clone();
    let exiting = thread::spawn(move || match wake {
        WakeOrder::AfterHandingOver => exiting_model.exit(1, None),
        WakeOrder::BeforeHandingOver => {
            exiting_model.idle.end_search();
            exiting_model.idle.notify();
            exiting_model.common.fetch_add(1, Ordering::Relaxed);
        }
    });
    let waker = Waker::from(test_waker.clone());
    let parked = model.idle.poll_park(0, &waker, || model.common.load(Ordering::Relaxed) != 0);
    exiting.join().unwrap();
    assert!(
        parked.is_ready() || test_waker.wake_count() == 1,
        "all workers are parked although there is work"
    );
}

#[test]
fn a_worker_that_parks_while_another_exits_sees_its_work_or_is_woken() {
    check(3, || one_exits_while_the_other_parks(WakeOrder::AfterHandingOver));
}

#[test]
#[should_panic(expected = "all workers are parked")]
fn waking_before_the_hand_over_leaves_work_with_all_workers_parked() {
    check(3, || one_exits_while_the_other_parks(WakeOrder::BeforeHandingOver));
}

/// Order in which a caller raises the target and searches for empty slots.
#[derive(Clone, Copy)]
enum TargetOrder {
    BeforeSearch,
    AfterSearch,
}

/// Raises the target while a worker exits; returns the number of workers that end up in its slot.
fn second_is_wanted_again(order: TargetOrder) -> usize {
    let slots = Arc::new(WorkerSlots::new([(), ()], TWO));
    let value = slots.claim(1).expect("no other worker holds the slot");
    slots.set_target(ONE);
    let exiting_slots = slots.clone();
    let exiting = thread::spawn(move || {
        exiting_slots.release(1, value);
        usize::from(exiting_slots.is_wanted(1) && exiting_slots.claim(1).is_some())
    });
    let empty = match order {
        TargetOrder::BeforeSearch => {
            slots.set_target(TWO);
            next_to_fill(&slots)
        }
        TargetOrder::AfterSearch => {
            let empty = slots.active() == 0;
            slots.set_target(TWO);
            empty.then_some(1)
        }
    };
    let started = empty.is_some() && slots.claim(1).is_some();
    exiting.join().unwrap() + usize::from(started)
}

/// Returns the first slot that lacks a worker, except the first worker's.
fn next_to_fill(slots: &WorkerSlots<()>) -> Option<usize> {
    core::iter::from_fn(|| slots.next_to_fill()).find(|slot| *slot == 1)
}

#[test]
fn a_wanted_slot_is_filled_exactly_once() {
    check(3, || assert_eq!(second_is_wanted_again(TargetOrder::BeforeSearch), 1));
}

#[test]
#[should_panic(expected = "the slot is empty")]
fn searching_for_empty_slots_before_raising_the_target_leaves_one_empty() {
    check(3, || assert_eq!(second_is_wanted_again(TargetOrder::AfterSearch), 1, "the slot is empty"));
}
