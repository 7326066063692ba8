//! Tests of the coordinator in isolation: the workers only own queues, and the cells never run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod rig;

use alloc::sync::Arc;
use alloc::vec;
use core::num::NonZeroUsize;
use core::task::Waker;

use super::*;
use crate::invoke::SignalKey;
use crate::raw::current;
use crate::ready::WorkerTurns;
use crate::test_rig::IdleRuntime;
use rig::{CoordinatorRig, numbers};

// Normal operation.

#[test]
fn a_cell_registered_from_outside_is_found_by_any_worker() {
    for worker in 0..2 {
        let rig = CoordinatorRig::new(2);
        let cells = rig.cells(2);
        let [a, b] = numbers(&cells);
        cells.into_iter().for_each(|cell| rig.register_outside(cell));
        assert_eq!(rig.take(worker, 9), [a, b]);
    }
}

#[test]
fn a_cell_registered_by_a_worker_runs_next_on_it() {
    let rig = CoordinatorRig::new(2);
    let cells = rig.cells(3);
    let [a, b, c] = numbers(&cells);
    let mut cells = cells.into_iter();
    rig.requeue(0, cells.next().unwrap());
    rig.requeue(0, cells.next().unwrap());
    rig.register(0, cells.next().unwrap());
    assert_eq!(rig.take(0, 9), [c, a, b]);
}

#[test]
fn the_lifo_slot_moves_its_previous_cell_to_the_end_of_the_queue() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(3);
    let [a, b, c] = numbers(&cells);
    let mut cells = cells.into_iter();
    rig.requeue(0, cells.next().unwrap());
    rig.register(0, cells.next().unwrap());
    rig.register(0, cells.next().unwrap());
    assert_eq!(rig.take(0, 9), [c, a, b]);
}

#[test]
fn a_cell_that_yielded_goes_behind_the_others() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(3);
    let [a, b, c] = numbers(&cells);
    cells.into_iter().for_each(|cell| rig.requeue(0, cell));
    let first = rig.drain(0, 1).remove(0);
    rig.coordinator().handle_invoke_result(&rig.locals[0], InvokeKind::Yielded, Some(first));
    assert_eq!(rig.take(0, 9), [b, c, a]);
    assert_eq!(rig.locals[0].counters().yields.get(), 1);
}

#[test]
fn after_a_cell_that_yielded_a_cell_from_outside_runs_before_the_others() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(4);
    let [a, b, c, d] = numbers(&cells);
    let mut cells = cells.into_iter();
    (0..2).for_each(|_| rig.requeue(0, cells.next().unwrap()));
    let first = rig.drain(0, 1).remove(0);
    cells.for_each(|cell| rig.register_outside(cell));
    rig.coordinator().handle_invoke_result(&rig.locals[0], InvokeKind::Yielded, Some(first));
    assert_eq!(rig.take(0, 9), [c, b, a, d]);
}

#[test]
fn cells_from_outside_that_yield_run_before_a_workers_own_in_every_second_turn() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(5);
    let own = cells[0].cell().number();
    let mut cells = cells.into_iter();
    rig.requeue(0, cells.next().unwrap());
    let mut last = cells.next().unwrap();
    cells.for_each(|cell| rig.register_outside(cell));
    let mut turns = 0;
    while last.cell().number() != own {
        rig.coordinator().handle_invoke_result(&rig.locals[0], InvokeKind::Yielded, Some(last));
        last = rig.take_one(0).unwrap();
        turns += 1;
    }
    assert_eq!(turns, 2);
    rig.set_aside(Some(last));
    while let Some(cell) = rig.take_one(0) {
        rig.set_aside(Some(cell));
    }
}

#[test]
fn asked_cells_run_first_but_at_most_every_second_turn() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(5);
    let [a, b, c, d, e] = numbers(&cells);
    let mut cells = cells.into_iter();
    for _ in 0..3 {
        rig.requeue(0, cells.next().unwrap());
    }
    cells.for_each(|cell| rig.register_asked(cell));
    assert_eq!(rig.take(0, 9), [d, a, e, b, c]);
}

#[test]
fn a_run_that_released_its_permit_queues_nothing() {
    let rig = CoordinatorRig::new(1);
    for result in [InvokeKind::Completed { ready_hint: false }, InvokeKind::Stopped] {
        rig.coordinator().handle_invoke_result(&rig.locals[0], result, None);
    }
    assert_eq!(rig.coordinator().depth(), 0);
}

#[test]
fn an_idle_worker_steals_half_of_anothers_queue() {
    let rig = CoordinatorRig::new(2);
    rig.cells(8).into_iter().for_each(|cell| rig.requeue(0, cell));
    let first = rig.steal(1);
    assert!(first.is_some());
    rig.set_aside(first);
    assert_eq!((rig.take(1, 9).len(), rig.take(0, 9).len()), (3, 4));
}

#[test]
fn a_worker_takes_no_more_than_its_batch() {
    let rig = CoordinatorRig::new(1);
    rig.cells(5).into_iter().for_each(|cell| rig.requeue(0, cell));
    assert_eq!((rig.take(0, 2).len(), rig.take(0, 2).len(), rig.take(0, 2).len()), (2, 2, 1));
}

#[test]
fn a_parked_worker_is_woken_by_a_cell_from_outside() {
    let rig = CoordinatorRig::new(2);
    let cells = rig.cells(2);
    let woken = rig.park(0).expect("there is nothing to do");
    for cell in cells {
        rig.register_outside(cell);
    }
    assert_eq!(woken.times(), 1, "a woken worker is searching and is not woken again");
    rig.unpark(0);
    assert_eq!(rig.take(0, 9).len(), 2);
}

#[test]
fn all_queues_count_towards_the_depth() {
    let rig = CoordinatorRig::new(2);
    let mut cells = rig.cells(5).into_iter();
    let mut next = || cells.next().unwrap();
    rig.register_outside(next());
    rig.register_asked(next());
    rig.register(0, next());
    rig.register(0, next());
    rig.requeue(1, next());
    assert_eq!(rig.coordinator().depth(), 5);
}

// Unusual cases.

#[test]
fn a_slot_is_claimed_by_one_worker() {
    let rig = CoordinatorRig::new(2);
    assert!(rig.coordinator().queues.claim(0).is_none(), "already claimed");
    assert!(rig.coordinator().queues.claim(64).is_none(), "no such slot");
}

#[test]
fn a_worker_about_to_park_sees_cells_queued_just_before() {
    let rig = CoordinatorRig::new(2);
    let mut cells = rig.cells(3).into_iter();
    rig.register_outside(cells.next().unwrap());
    assert!(rig.park(0).is_none(), "in the injection queue");
    rig.take(0, 9);
    rig.requeue(1, cells.next().unwrap());
    assert!(rig.park(0).is_none(), "in another's queue");
    rig.take(1, 9);
    rig.register_asked(cells.next().unwrap());
    assert!(rig.park(0).is_none(), "in the queue of asked cells");
    assert!(rig.park(1).is_none(), "any worker may take it");
    rig.set_aside(rig.steal(1));
}

#[test]
fn a_worker_that_unparks_by_itself_can_park_again_and_be_woken() {
    let rig = CoordinatorRig::new(2);
    let cells = rig.cells(1);
    for _ in 0..3 {
        let woken = rig.park(0).unwrap();
        rig.unpark(0);
        rig.end_search();
        assert_eq!(woken.times(), 0);
    }
    let woken = rig.park(0).unwrap();
    cells.into_iter().for_each(|cell| rig.register_outside(cell));
    assert_eq!(woken.times(), 1);
    rig.unpark(0);
}

#[test]
fn while_a_worker_searches_no_other_is_woken_until_the_last_search_ends() {
    let rig = CoordinatorRig::new(3);
    let cells = rig.cells(2);
    let woken = rig.park(0).unwrap();
    rig.coordinator().idle.begin_search();
    cells.into_iter().for_each(|cell| rig.register_outside(cell));
    assert_eq!(woken.times(), 0, "the searching worker will find the cells");
    rig.end_search();
    assert_eq!(woken.times(), 1, "there may be more cells");
    rig.unpark(0);
}

#[test]
fn a_task_that_asks_wakes_a_worker_although_another_was_woken() {
    let rig = CoordinatorRig::new(2);
    let mut cells = rig.cells(3).into_iter();
    let woken = [0, 1].map(|worker| rig.park(worker).unwrap());
    let times = || woken.iter().map(|woken| woken.times()).sum::<usize>();
    let mut register = |urgency| {
        rig.coordinator().register_ready(rig.core(), cells.next().unwrap(), urgency);
        times()
    };
    assert_eq!(register(Urgency::Normal), 1);
    assert_eq!(register(Urgency::Normal), 1, "a worker was woken and will find the cell");
    assert_eq!(register(Urgency::Awaited), 2, "the first one may have to wait for its thread");
    [0, 1].into_iter().for_each(|worker| rig.unpark(worker));
    assert_eq!(rig.take(0, 9).len(), 3);
}

#[test]
fn while_all_workers_run_none_is_woken_and_no_cell_is_lost() {
    let rig = CoordinatorRig::new(2);
    rig.cells(20).into_iter().for_each(|cell| rig.register_outside(cell));
    assert!(!rig.coordinator().idle.notify());
    assert_eq!(rig.take(0, 99).len() + rig.take(1, 99).len(), 20);
}

#[test]
fn cells_behind_a_long_handler_can_be_stolen_after_the_second_check() {
    let rig = CoordinatorRig::new(2);
    let mut cells = rig.cells(2).into_iter();
    let queues = &rig.coordinator().queues;
    let mut turns = WorkerTurns::new(NonZeroUsize::MIN.saturating_add(2));
    queues.steal_from_stuck(&mut turns);
    rig.set_aside(rig.take_one(0));
    rig.register(0, cells.next().unwrap());
    assert!(!queues.steal_from_stuck(&mut turns), "the worker has taken a cell since the last check");
    assert!(queues.steal_from_stuck(&mut turns), "the worker has taken no cell since the last check");
    assert_eq!(
        rig.take(1, 9).len(),
        1,
        "the cell in the LIFO slot was moved, because it could not be stolen there"
    );
    rig.requeue(0, cells.next().unwrap());
    assert!(
        queues.steal_from_stuck(&mut turns),
        "the cells in its deque can be stolen, so another worker is needed"
    );
    assert!(rig.coordinator().depth() == 1);
}

#[test]
fn a_worker_that_is_not_stuck_keeps_its_lifo_slot() {
    let rig = CoordinatorRig::new(2);
    let cells = rig.cells(1);
    let [a] = numbers(&cells);
    let mut turns = WorkerTurns::new(NonZeroUsize::MIN);
    cells.into_iter().for_each(|cell| rig.register(0, cell));
    for _ in 0..10 {
        let cell = rig.drain(0, 1).remove(0);
        assert_eq!(cell.cell().number(), a);
        rig.register(0, cell);
        assert!(!rig.coordinator().queues.steal_from_stuck(&mut turns));
    }
}

#[test]
fn an_exiting_worker_hands_over_all_of_its_cells() {
    let mut rig = CoordinatorRig::new(2);
    let mut cells = rig.cells(4).into_iter();
    rig.requeue(0, cells.next().unwrap());
    rig.requeue(0, cells.next().unwrap());
    rig.register(0, cells.next().unwrap());
    rig.register(0, cells.next().unwrap());
    drop(rig.locals.remove(0));
    assert_eq!(rig.take(0, 9).len(), 4, "the other worker has all four");
}

#[test]
fn all_workers_are_woken_by_a_stop_and_none_parks_after_it() {
    let rig = CoordinatorRig::new(3);
    let woken = [0, 1, 2].map(|worker| rig.park(worker).unwrap());
    rig.system.force_stop();
    assert_eq!(woken.map(|woken| woken.times()), [1; 3]);
    (0..3).for_each(|worker| rig.unpark(worker));
    assert!(rig.park(0).is_none());
}

#[test]
fn a_worker_of_another_system_counts_as_outside() {
    let rig = CoordinatorRig::new(1);
    let other = CoordinatorRig::new(1);
    let cell = rig.cells(1).remove(0);
    let woken = rig.park(0).unwrap();
    current::enter(&other.locals[0], || rig.coordinator().register_ready(rig.core(), cell, Urgency::Normal));
    assert_eq!(woken.times(), 1, "not put into the other system's queue");
    rig.unpark(0);
    assert_eq!((rig.coordinator().depth(), other.coordinator().depth()), (1, 0));
}

#[test]
fn a_cell_with_a_hundred_messages_is_registered_once() {
    let rig = CoordinatorRig::new(1);
    let cell = rig.cells(1).remove(0);
    assert!(cell.run_cell(&rig.locals[0]).1.is_none(), "the actor has started and is idle");
    (0..100).for_each(|_| rig.actor(0).tell(()));
    (0..10).for_each(|key| rig.actor(0).signal(SignalKey(key)));
    assert_eq!(rig.coordinator().depth(), 1);
}

// Limits.

#[test]
fn the_lifo_slot_is_served_three_times_in_a_row_and_then_the_queue() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(2);
    let [waiting, eager] = numbers(&cells);
    let mut cells = cells.into_iter();
    rig.requeue(0, cells.next().unwrap());
    rig.register(0, cells.next().unwrap());
    let mut order = vec![];
    for _ in 0..9 {
        let cell = rig.drain(0, 1).remove(0);
        order.push(cell.cell().number());
        if cell.cell().number() == eager {
            rig.register(0, cell);
        } else {
            rig.requeue(0, cell);
        }
    }
    // Then it is taken from the queue once, and three more times from the LIFO slot.
    let three = vec![eager; 3];
    let four = vec![eager; 4];
    assert_eq!(order, [three, vec![waiting], four, vec![waiting]].concat());
}

#[test]
fn the_injection_queue_is_served_every_61st_turn() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(2);
    let [busy, outside] = numbers(&cells);
    let mut cells = cells.into_iter();
    rig.requeue(0, cells.next().unwrap());
    rig.register_outside(cells.next().unwrap());
    let mut turn = 0;
    let found = loop {
        turn += 1;
        let cell = rig.drain(0, 1).remove(0);
        if cell.cell().number() == outside {
            break cell;
        }
        assert_eq!(cell.cell().number(), busy);
        rig.requeue(0, cell);
    };
    assert_eq!(turn, 61);
    rig.set_aside(Some(found));
}

#[test]
fn a_second_worker_is_woken_when_four_cells_are_queued_and_not_before() {
    let rig = CoordinatorRig::new(2);
    let mut cells = rig.cells(6).into_iter();
    let woken = rig.park(1).unwrap();
    let counts: Vec<_> = (0..6)
        .map(|_| {
            rig.register(0, cells.next().unwrap());
            woken.times()
        })
        .collect();
    // The last one registered is in the LIFO slot and does not count as queued.
    assert_eq!(counts, [0, 0, 0, 0, 1, 1]);
    assert_eq!(rig.locals[0].counters().wakes.get(), 1);
    rig.unpark(1);
}

#[test]
fn requeued_cells_wake_a_second_worker_too() {
    let rig = CoordinatorRig::new(2);
    let cells = rig.cells(4);
    let woken = rig.park(1).unwrap();
    for (nth, cell) in cells.into_iter().enumerate() {
        assert_eq!(woken.times(), 0, "{nth} cells queued");
        let hint = InvokeKind::Completed { ready_hint: true };
        rig.coordinator().handle_invoke_result(&rig.locals[0], hint, Some(cell));
    }
    assert_eq!(woken.times(), 1);
    rig.unpark(1);
}

#[test]
fn a_batch_of_zero_takes_nothing_and_a_large_one_takes_everything() {
    let rig = CoordinatorRig::new(1);
    rig.cells(3).into_iter().for_each(|cell| rig.requeue(0, cell));
    assert_eq!(rig.take(0, 0).len(), 0);
    assert_eq!(rig.take(0, usize::MAX).len(), 3);
    assert_eq!(rig.take(0, usize::MAX).len(), 0);
}

#[test]
fn a_thousand_cells_of_one_worker_are_all_found_by_the_others() {
    let cells = if cfg!(miri) { 50 } else { 1_000 };
    let rig = CoordinatorRig::new(3);
    rig.cells(cells).into_iter().for_each(|cell| rig.register(0, cell));
    let mut found = 0;
    while let Some(cell) = rig.steal(1) {
        rig.set_aside(Some(cell));
        found += 1 + rig.take(1, usize::MAX).len();
    }
    assert_eq!(found, cells - 1, "all but the one in the LIFO slot");
    assert_eq!(rig.take(0, 9).len(), 1);
}

#[test]
fn each_of_a_hundred_workers_wakes_the_next_and_none_is_woken_twice() {
    let workers = if cfg!(miri) { 10 } else { 100 };
    let rig = CoordinatorRig::new(workers);
    let woken: Vec<_> = (0..workers).map(|worker| rig.park(worker).unwrap()).collect();
    assert!(rig.coordinator().idle.notify());
    let mut up = vec![];
    for _ in 0..workers {
        let next = (0..workers).find(|worker| woken[*worker].times() == 1 && !up.contains(worker)).unwrap();
        up.push(next);
        rig.unpark(next);
        // The woken worker finds work and, as the last searcher, wakes the next one.
        rig.end_search();
    }
    assert!(woken.iter().all(|woken| woken.times() == 1));
    assert_eq!(rig.coordinator().idle.parked_count(), 0);
}

// Asks from outside the workers.

#[test]
fn no_cell_is_taken_to_run_inline_while_an_asked_cell_waits() {
    let rig = CoordinatorRig::new(1);
    let cells = rig.cells(2);
    let [inline, asked] = numbers(&cells);
    let mut cells = cells.into_iter();
    rig.register(0, cells.next().unwrap());
    rig.register_asked(cells.next().unwrap());
    let take_lifo = || rig.coordinator().queues.take_lifo(&rig.locals[0].queue);
    assert!(take_lifo().is_none());
    assert_eq!(rig.take(0, 1), [asked]);
    let taken = take_lifo().expect("no asked cell waits");
    assert_eq!(taken.cell().number(), inline);
    rig.set_aside(Some(taken));
}

#[test]
fn a_thread_that_is_no_task_of_the_host_wakes_no_second_worker_by_asking() {
    let rig = CoordinatorRig::new(2);
    let cells = rig.cells(2);
    rig.runtime.leave_task();
    let woken = [0, 1].map(|worker| rig.park(worker).unwrap());
    cells.into_iter().for_each(|cell| rig.register_asked(cell));
    assert_eq!(woken.iter().map(|woken| woken.times()).sum::<usize>(), 1);
    [0, 1].into_iter().for_each(|worker| rig.unpark(worker));
}
