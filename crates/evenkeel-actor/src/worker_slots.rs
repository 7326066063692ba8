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
    reach: AtomicUsize,
    places: Lock<Vec<WorkerSlot<T>>>,
}

#[derive(Debug)]
enum WorkerSlot<T> {
    Empty(T),
    /// Empty, with a worker about to start.
    Starting(T),
    Running,
}

impl<T> WorkerSlots<T> {
    pub(crate) fn new(places: impl IntoIterator<Item = T>, wanted: NonZeroUsize) -> Self {
        Self {
            wanted: AtomicUsize::new(wanted.get()),
            reach: AtomicUsize::new(0),
            places: Lock::new(places.into_iter().map(WorkerSlot::Empty).collect()),
        }
    }

    /// Returns the target number of workers, which occupy the first slots.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Reports whether the worker of a slot should keep running.
    #[inline]
    pub(crate) fn is_wanted(&self, place: usize) -> bool {
        place < self.wanted()
    }

    /// Sets the target number. The caller then wakes the workers beyond it and [fills the empty
    /// slots](Self::next_to_fill).
    pub(crate) fn set_target(&self, workers: NonZeroUsize) {
        self.wanted.store(workers.get(), Ordering::SeqCst);
    }

    /// Lowers the target to `reached`, unless it has been changed from `wanted` meanwhile.
    pub(crate) fn settle_for(&self, reached: NonZeroUsize, wanted: NonZeroUsize) {
        // A concurrent change takes precedence.
        let _theirs =
            self.wanted.compare_exchange(wanted.get(), reached.get(), Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Returns the first empty slot below the target and marks it as starting; the caller starts its worker.
    pub(crate) fn next_to_fill(&self) -> Option<usize> {
        let wanted = self.wanted();
        self.places.with(|places| {
            let empty = |place: &WorkerSlot<T>| matches!(place, WorkerSlot::Empty(_));
            let place = places.iter().take(wanted).position(empty)?;
            if let WorkerSlot::Empty(own) = core::mem::replace(&mut places[place], WorkerSlot::Running) {
                places[place] = WorkerSlot::Starting(own);
            }
            Some(place)
        })
    }

    /// Claims a slot; `None` if there is none or another worker holds it.
    pub(crate) fn take(&self, place: usize) -> Option<T> {
        self.places.with(|places| {
            let taken = core::mem::replace(places.get_mut(place)?, WorkerSlot::Running);
            self.record_reach(places);
            match taken {
                WorkerSlot::Empty(own) | WorkerSlot::Starting(own) => Some(own),
                WorkerSlot::Running => None,
            }
        })
    }

    /// Releases a slot.
    pub(crate) fn give_back(&self, place: usize, own: T) {
        self.places.with(|places| {
            places[place] = WorkerSlot::Empty(own);
            self.record_reach(places);
        });
    }

    fn record_reach(&self, places: &[WorkerSlot<T>]) {
        let taken = |place: &WorkerSlot<T>| matches!(place, WorkerSlot::Running);
        let reach = places.iter().rposition(taken).map_or(0, |last| last + 1);
        // Stored before the slot's worker queues anything. A worker about to park reads it after announcing
        // that, so it sees every slot with cells that it was not woken for.
        self.reach.store(reach, Ordering::Relaxed);
    }

    /// Returns one past the last running slot; slots beyond it have no queued cells.
    #[inline]
    pub(crate) fn reach(&self) -> usize {
        self.reach.load(Ordering::Relaxed)
    }

    /// Counts the running workers.
    pub(crate) fn active(&self) -> usize {
        self.places.with(|places| places.iter().filter(|place| matches!(place, WorkerSlot::Running)).count())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn crew(places: usize, wanted: usize) -> WorkerSlots<usize> {
        WorkerSlots::new(0..places, number(wanted))
    }

    fn number(workers: usize) -> NonZeroUsize {
        NonZeroUsize::new(workers).unwrap_or(NonZeroUsize::MIN)
    }

    #[test]
    fn a_slot_is_held_by_one_worker_at_a_time() {
        let crew = crew(2, 2);
        assert_eq!((crew.take(1), crew.take(1), crew.take(2)), (Some(1), None, None));
        crew.give_back(1, 1);
        assert_eq!(crew.take(1), Some(1));
    }

    #[test]
    fn each_empty_slot_below_the_target_is_returned_once() {
        let crew = crew(5, 2);
        let to_fill = || core::iter::from_fn(|| crew.next_to_fill()).collect::<Vec<_>>();
        assert_eq!((to_fill(), to_fill()), (alloc::vec![0, 1], alloc::vec![]));
        assert_eq!(slots.active(), 0, "the workers are starting");
        crew.take(2);
        crew.set_target(number(4));
        assert_eq!(to_fill(), [3]);
        crew.give_back(2, 2);
        assert_eq!(to_fill(), [2]);
        crew.set_target(number(1));
        assert_eq!((crew.is_wanted(0), crew.is_wanted(1)), (true, false));
    }

    #[test]
    fn a_starting_slot_goes_to_the_first_worker_that_claims_it() {
        let crew = crew(1, 1);
        assert_eq!(crew.next_to_fill(), Some(0));
        assert_eq!((crew.take(0), crew.take(0)), (Some(0), None));
        crew.give_back(0, 0);
        assert_eq!(crew.next_to_fill(), Some(0));
    }

    #[test]
    fn the_running_end_follows_the_last_running_slot() {
        let crew = crew(4, 4);
        let seen = || (crew.reach(), crew.active());
        assert_eq!(seen(), (0, 0));
        assert_eq!((crew.take(3), seen()), (Some(3), (4, 1)));
        assert_eq!((crew.take(0), seen()), (Some(0), (4, 2)));
        assert_eq!((crew.give_back(3, 3), seen()), ((), (1, 1)));
        assert_eq!((crew.give_back(0, 0), seen()), ((), (0, 0)));
    }

    #[test]
    fn lowering_the_target_does_not_override_a_concurrent_change() {
        let crew = crew(8, 2);
        crew.set_target(number(8));
        crew.settle_for(number(5), number(8));
        assert_eq!(crew.wanted(), 5);
        crew.settle_for(number(1), number(8));
        assert_eq!(crew.wanted(), 5);
    }
}
