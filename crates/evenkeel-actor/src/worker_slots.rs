//! Worker slots: the target number of workers, and which of them run.
//!
//! Limits: one slot per possible worker, each held by one worker at a time. Guarantees: an exiting worker
//! releases its slot and then checks whether it is wanted after all; a caller that raises the target does so
//! before it looks for empty slots. One of the two sees the other, so no wanted slot stays empty.

use alloc::vec::Vec;
use core::num::NonZeroUsize;

use crate::sync::{AtomicUsize, Lock, Ordering};

/// The slots of the workers; an empty slot stores what its worker will own.
#[derive(Debug)]
pub(crate) struct WorkerSlots<T> {
    wanted: AtomicUsize,
    /// One past the last running slot.
    running_end: AtomicUsize,
    slots: Lock<Vec<WorkerSlot<T>>>,
}

#[derive(Debug)]
enum WorkerSlot<T> {
    Empty(T),
    /// Empty, with a worker about to start.
    Starting(T),
    Running,
}

impl<T> WorkerSlots<T> {
    pub(crate) fn new(slots: impl IntoIterator<Item = T>, wanted: NonZeroUsize) -> Self {
        Self {
            wanted: AtomicUsize::new(wanted.get()),
            running_end: AtomicUsize::new(0),
            slots: Lock::new(slots.into_iter().map(WorkerSlot::Empty).collect()),
        }
    }

    /// Returns the target number of workers, which occupy the first slots.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Reports whether the worker of a slot should keep running.
    #[inline]
    pub(crate) fn is_wanted(&self, slot: usize) -> bool {
        slot < self.wanted()
    }

    /// Sets the target number. The caller then wakes the workers beyond it and [fills the empty
    /// slots](Self::next_to_fill).
    pub(crate) fn set_target(&self, workers: NonZeroUsize) {
        self.wanted.store(workers.get(), Ordering::SeqCst);
    }

    /// Lowers the target from `wanted` to `reached`, the number of workers that could be started; does nothing if the
    /// target is no longer `wanted`.
    pub(crate) fn lower_target(&self, reached: NonZeroUsize, wanted: NonZeroUsize) {
        // A concurrent change takes precedence.
        let _previous =
            self.wanted.compare_exchange(wanted.get(), reached.get(), Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Returns the first empty slot below the target and marks it as starting; the caller starts its worker.
    pub(crate) fn next_to_fill(&self) -> Option<usize> {
        let wanted = self.wanted();
        self.slots.with(|slots| {
            let empty = |slot: &WorkerSlot<T>| matches!(slot, WorkerSlot::Empty(_));
            let slot = slots.iter().take(wanted).position(empty)?;
            if let WorkerSlot::Empty(value) = core::mem::replace(&mut slots[slot], WorkerSlot::Running) {
                slots[slot] = WorkerSlot::Starting(value);
            }
            Some(slot)
        })
    }

    /// Claims a slot; `None` if there is none or another worker holds it.
    pub(crate) fn claim(&self, slot: usize) -> Option<T> {
        self.slots.with(|slots| {
            let claimed = core::mem::replace(slots.get_mut(slot)?, WorkerSlot::Running);
            self.update_running_end(slots);
            match claimed {
                WorkerSlot::Empty(value) | WorkerSlot::Starting(value) => Some(value),
                WorkerSlot::Running => None,
            }
        })
    }

    /// Releases a slot.
    pub(crate) fn release(&self, slot: usize, value: T) {
        self.slots.with(|slots| {
            slots[slot] = WorkerSlot::Empty(value);
            self.update_running_end(slots);
        });
    }

    fn update_running_end(&self, slots: &[WorkerSlot<T>]) {
        let claimed = |slot: &WorkerSlot<T>| matches!(slot, WorkerSlot::Running);
        let running_end = slots.iter().rposition(claimed).map_or(0, |last| last + 1);
        // Stored before the slot's worker queues its first cell. A worker about to park reads it after it has
        // registered as parked: if it does not see the slot yet, the slot's worker sees it parked and can wake it.
        self.running_end.store(running_end, Ordering::Relaxed);
    }

    /// Returns one past the last running slot; slots beyond it have no queued cells.
    #[inline]
    pub(crate) fn running_end(&self) -> usize {
        self.running_end.load(Ordering::Relaxed)
    }

    /// Counts the running workers.
    pub(crate) fn active(&self) -> usize {
        self.slots.with(|slots| slots.iter().filter(|slot| matches!(slot, WorkerSlot::Running)).count())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slots(slots: usize, wanted: usize) -> WorkerSlots<usize> {
        WorkerSlots::new(0..slots, number(wanted))
    }

    fn number(workers: usize) -> NonZeroUsize {
        NonZeroUsize::new(workers).unwrap_or(NonZeroUsize::MIN)
    }

    #[test]
    fn a_slot_is_held_by_one_worker_at_a_time() {
        let slots = slots(2, 2);
        assert_eq!((slots.claim(1), slots.claim(1), slots.claim(2)), (Some(1), None, None));
        slots.release(1, 1);
        assert_eq!(slots.claim(1), Some(1));
    }

    #[test]
    fn each_empty_slot_below_the_target_is_returned_once() {
        let slots = slots(5, 2);
        let to_fill = || core::iter::from_fn(|| slots.next_to_fill()).collect::<Vec<_>>();
        assert_eq!((to_fill(), to_fill()), (alloc::vec![0, 1], alloc::vec![]));
        assert_eq!(slots.active(), 0, "the workers are starting");
        slots.claim(2);
        slots.set_target(number(4));
        assert_eq!(to_fill(), [3]);
        slots.release(2, 2);
        assert_eq!(to_fill(), [2]);
        slots.set_target(number(1));
        assert_eq!((slots.is_wanted(0), slots.is_wanted(1)), (true, false));
    }

    #[test]
    fn a_starting_slot_goes_to_the_first_worker_that_claims_it() {
        let slots = slots(1, 1);
        assert_eq!(slots.next_to_fill(), Some(0));
        assert_eq!((slots.claim(0), slots.claim(0)), (Some(0), None));
        slots.release(0, 0);
        assert_eq!(slots.next_to_fill(), Some(0));
    }

    #[test]
    fn the_running_end_follows_the_last_running_slot() {
        let slots = slots(4, 4);
        let seen = || (slots.running_end(), slots.active());
        assert_eq!(seen(), (0, 0));
        assert_eq!((slots.claim(3), seen()), (Some(3), (4, 1)));
        assert_eq!((slots.claim(0), seen()), (Some(0), (4, 2)));
        assert_eq!((slots.release(3, 3), seen()), ((), (1, 1)));
        assert_eq!((slots.release(0, 0), seen()), ((), (0, 0)));
    }

    #[test]
    fn lowering_the_target_does_not_override_a_concurrent_change() {
        let slots = slots(8, 2);
        slots.set_target(number(8));
        slots.lower_target(number(5), number(8));
        assert_eq!(slots.wanted(), 5);
        slots.lower_target(number(1), number(8));
        assert_eq!(slots.wanted(), 5);
    }
}
