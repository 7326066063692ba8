//! How many workers there should be, and whose place is taken.
//!
//! Bound: as many places as there are workers at most, each taken by one worker at a time. Whoever leaves
//! gives its place back, then looks whether it is wanted after all; whoever wants more says so, then
//! looks for empty places. One of the two sees the other, so no wanted place stays empty.

use alloc::vec::Vec;
use core::num::NonZeroUsize;

use crate::sync::{AtomicUsize, Lock, Ordering};

/// The places of the workers; what each worker has to itself waits in its place while it is empty.
#[derive(Debug)]
pub(crate) struct WorkerSlots<T> {
    wanted: AtomicUsize,
    /// One past the last place that is taken.
    reach: AtomicUsize,
    places: Lock<Vec<WorkerSlot<T>>>,
}

#[derive(Debug)]
enum WorkerSlot<T> {
    Empty(T),
    /// Empty, and a worker is on its way.
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

    /// How many workers there should be: those in the first places.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Whether the worker of a place should stay.
    #[inline]
    pub(crate) fn is_wanted(&self, place: usize) -> bool {
        place < self.wanted()
    }

    /// Says how many there should be; those past them are to be woken, and then the empty places
    /// [to be filled](Self::next_to_fill).
    pub(crate) fn set_target(&self, workers: NonZeroUsize) {
        self.wanted.store(workers.get(), Ordering::SeqCst);
    }

    /// Wants no more than `reached` after all, unless somebody has changed their mind meanwhile.
    pub(crate) fn settle_for(&self, reached: NonZeroUsize, wanted: NonZeroUsize) {
        // That somebody has is the other outcome, and theirs counts.
        let _theirs =
            self.wanted.compare_exchange(wanted.get(), reached.get(), Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Names the first empty place of a worker that is wanted, and promises it to the caller, who starts
    /// that worker.
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

    /// Takes a place; `None` when there is none or another has it.
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

    /// Gives a place back.
    pub(crate) fn give_back(&self, place: usize, own: T) {
        self.places.with(|places| {
            places[place] = WorkerSlot::Empty(own);
            self.record_reach(places);
        });
    }

    fn record_reach(&self, places: &[WorkerSlot<T>]) {
        let taken = |place: &WorkerSlot<T>| matches!(place, WorkerSlot::Running);
        let reach = places.iter().rposition(taken).map_or(0, |last| last + 1);
        // Before its worker queues anything; who is about to sleep reads it after announcing that, so
        // it sees all places in which something waits that it was not woken for.
        self.reach.store(reach, Ordering::Relaxed);
    }

    /// One past the last place that is taken; nothing waits in those beyond.
    #[inline]
    pub(crate) fn reach(&self) -> usize {
        self.reach.load(Ordering::Relaxed)
    }

    /// Counts the places that are taken.
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
    fn a_place_is_taken_by_one_and_can_be_taken_again() {
        let crew = crew(2, 2);
        assert_eq!((crew.take(1), crew.take(1), crew.take(2)), (Some(1), None, None));
        crew.give_back(1, 1);
        assert_eq!(crew.take(1), Some(1));
    }

    #[test]
    fn each_empty_place_of_a_wanted_worker_is_promised_once() {
        let crew = crew(5, 2);
        let to_fill = || core::iter::from_fn(|| crew.next_to_fill()).collect::<Vec<_>>();
        assert_eq!((to_fill(), to_fill()), (alloc::vec![0, 1], alloc::vec![]));
        assert_eq!(crew.active(), 0, "they are on their way");
        crew.take(2);
        crew.set_target(number(4));
        assert_eq!(to_fill(), [3]);
        crew.give_back(2, 2);
        assert_eq!(to_fill(), [2]);
        crew.set_target(number(1));
        assert_eq!((crew.is_wanted(0), crew.is_wanted(1)), (true, false));
    }

    #[test]
    fn a_promised_place_goes_to_whoever_takes_it_first() {
        let crew = crew(1, 1);
        assert_eq!(crew.next_to_fill(), Some(0));
        assert_eq!((crew.take(0), crew.take(0)), (Some(0), None));
        crew.give_back(0, 0);
        assert_eq!(crew.next_to_fill(), Some(0));
    }

    #[test]
    fn the_reach_ends_with_the_last_place_taken() {
        let crew = crew(4, 4);
        let seen = || (crew.reach(), crew.active());
        assert_eq!(seen(), (0, 0));
        assert_eq!((crew.take(3), seen()), (Some(3), (4, 1)));
        assert_eq!((crew.take(0), seen()), (Some(0), (4, 2)));
        assert_eq!((crew.give_back(3, 3), seen()), ((), (1, 1)));
        assert_eq!((crew.give_back(0, 0), seen()), ((), (0, 0)));
    }

    #[test]
    fn who_settles_for_less_overrules_nobody() {
        let crew = crew(8, 2);
        crew.set_target(number(8));
        crew.settle_for(number(5), number(8));
        assert_eq!(crew.wanted(), 5);
        crew.settle_for(number(1), number(8));
        assert_eq!(crew.wanted(), 5);
    }
}
