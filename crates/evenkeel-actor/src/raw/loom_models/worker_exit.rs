//! Workers start and exit: an exiting worker leaves no work behind, and no wanted slot stays empty.

use core::num::NonZeroUsize;
use core::task::{Poll, Waker};

use loom::thread;

use super::{Bell, check};
use crate::idle_workers::IdleWorkers;
use crate::sync::{Arc, AtomicU32, Ordering};
use crate::worker_slots::WorkerSlots;

const ONE: NonZeroUsize = NonZeroUsize::MIN;
const TWO: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);

/// Two workers; work items are numbers: those any worker can take, and those only the second can.
struct Shop {
    crew: WorkerSlots<()>,
    idle: IdleWorkers,
    common: AtomicU32,
    own: AtomicU32,
    undone: AtomicU32,
}

impl Shop {
    fn new(common: u32, own: u32) -> Arc<Self> {
        Arc::new(Self {
            crew: WorkerSlots::new([(), ()], TWO),
            idle: IdleWorkers::new(),
            common: AtomicU32::new(common),
            own: AtomicU32::new(own),
            undone: AtomicU32::new(common + own),
        })
    }

    fn take(&self) -> bool {
        let one_less = |pieces: u32| pieces.checked_sub(1);
        self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn finish(&self) {
        if self.undone.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_all();
        }
    }

    fn is_over(&self) -> bool {
        self.undone.load(Ordering::SeqCst) == 0
    }

    /// Mirrors `set_workers` with one worker less.
    fn dismiss(&self) {
        self.crew.set_target(ONE);
        self.idle.notify_from(1);
    }

    /// Mirrors a worker, which runs until all work is done or it is not wanted any more.
    fn work(&self, worker: usize) {
        let bell = Bell::new();
        let waker = Waker::from(bell.clone());
        let own = self.crew.take(worker);
        self.idle.begin_search();
        while self.crew.is_wanted(worker) {
            if self.take() {
                self.idle.end_search_if(|| self.common.load(Ordering::Relaxed) != 0);
                self.finish();
                self.idle.begin_search();
                continue;
            }
            if self.is_over() {
                break;
            }
            let found =
                || self.common.load(Ordering::Relaxed) != 0 || self.is_over() || !self.crew.is_wanted(worker);
            if self.idle.poll_sleep(worker, &waker, found) == Poll::Pending {
                bell.wait();
                self.idle.rise(worker);
            }
        }
        self.leave(worker, own);
    }

    /// Mirrors the drop of a worker: end the search, hand its cells over, release its slot.
    fn leave(&self, worker: usize, own: Option<()>) {
        self.idle.end_search();
        if worker == 1 {
            let left = self.own.swap(0, Ordering::Relaxed);
            self.common.fetch_add(left, Ordering::Relaxed);
        }
        own.into_iter().for_each(|own| self.crew.give_back(worker, own));
        self.idle.notify();
    }
}

fn second_leaves(shop: &Arc<Shop>) {
    let [first, second] = [0, 1].map(|worker| {
        let shop = shop.clone();
        thread::spawn(move || shop.work(worker))
    });
    shop.dismiss();
    second.join().unwrap();
    first.join().unwrap();
    assert_eq!(shop.common.load(Ordering::Relaxed), 0);
}

#[test]
fn the_remaining_worker_does_the_work_of_an_exiting_one() {
    check(2, || second_leaves(&Shop::new(0, 1)));
}

#[test]
fn an_exiting_worker_that_was_woken_for_work_wakes_another() {
    check(2, || {
        let shop = Shop::new(0, 0);
        shop.undone.store(1, Ordering::SeqCst);
        let maker = shop.clone();
        let maker = thread::spawn(move || {
            maker.common.fetch_add(1, Ordering::Relaxed);
            maker.idle.notify();
        });
        second_leaves(&shop);
        maker.join().unwrap();
    });
}

/// Time at which an exiting worker wakes another for the work it leaves.
#[derive(Clone, Copy)]
enum Wakes {
    AfterHandingOver,
    Before,
}

/// One worker exits and leaves work while the other parks; one of them must be awake for it.
fn one_leaves_while_the_other_goes_to_sleep(wakes: Wakes) {
    let shop = Shop::new(0, 1);
    let bell = Bell::new();
    shop.idle.begin_search();
    shop.idle.begin_search();
    let leaving = shop.clone();
    let leaver = thread::spawn(move || match wakes {
        Wakes::AfterHandingOver => leaving.leave(1, None),
        Wakes::Before => {
            leaving.idle.end_search();
            leaving.idle.notify();
            leaving.common.fetch_add(1, Ordering::Relaxed);
        }
    });
    let waker = Waker::from(bell.clone());
    let slept = shop.idle.poll_sleep(0, &waker, || shop.common.load(Ordering::Relaxed) != 0);
    leaver.join().unwrap();
    assert!(slept.is_ready() || bell.rings() == 1, "all workers are parked next to work");
}

#[test]
fn a_worker_that_parks_while_another_exits_sees_its_work_or_is_woken() {
    check(3, || one_leaves_while_the_other_goes_to_sleep(Wakes::AfterHandingOver));
}

#[test]
#[should_panic(expected = "all workers are parked")]
fn waking_before_the_hand_over_leaves_work_with_all_workers_parked() {
    check(3, || one_leaves_while_the_other_goes_to_sleep(Wakes::Before));
}

/// Order in which a caller raises the target and looks for empty slots.
#[derive(Clone, Copy)]
enum Asks {
    ThenLooks,
    AfterLooking,
}

/// A worker that is exiting is wanted again; returns how many workers end up in its slot.
fn second_is_asked_back(asks: Asks) -> usize {
    let crew = Arc::new(WorkerSlots::new([(), ()], TWO));
    let own = crew.take(1).expect("no other worker holds the slot");
    crew.set_target(ONE);
    let leaving = crew.clone();
    let leaver = thread::spawn(move || {
        leaving.give_back(1, own);
        usize::from(leaving.is_wanted(1) && leaving.take(1).is_some())
    });
    let empty = match asks {
        Asks::ThenLooks => {
            crew.set_target(TWO);
            next_to_fill(&crew)
        }
        Asks::AfterLooking => {
            let empty = crew.active() == 0;
            crew.set_target(TWO);
            empty.then_some(1)
        }
    };
    let started = empty.is_some() && crew.take(1).is_some();
    leaver.join().unwrap() + usize::from(started)
}

/// Returns the first slot that lacks a worker, except the first worker's.
fn next_to_fill(crew: &WorkerSlots<()>) -> Option<usize> {
    core::iter::from_fn(|| crew.next_to_fill()).find(|place| *place == 1)
}

#[test]
fn a_wanted_slot_is_filled_exactly_once() {
    check(3, || assert_eq!(second_is_asked_back(Asks::ThenLooks), 1));
}

#[test]
#[should_panic(expected = "the slot is empty")]
fn looking_for_empty_slots_before_raising_the_target_leaves_one_empty() {
    check(3, || assert_eq!(second_is_asked_back(Asks::AfterLooking), 1, "the slot is empty"));
}
