//! A reference that a waker returns to a cell is taken over once, whatever the cell does next.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::super::state::{CellState, Notify, RETURNED, Release, SIGNAL};
use super::check;
use crate::sync::Arc;

/// A cell that is not running, and a count of the references that were dropped or taken over.
#[derive(Clone)]
struct ReferenceModel {
    state: Arc<CellState>,
    accounted: StdArc<AtomicUsize>,
}

impl ReferenceModel {
    fn new() -> Self {
        let state = Arc::new(CellState::new());
        state.renew();
        assert_eq!(state.release(0), Release::Gone);
        Self { state, accounted: StdArc::default() }
    }

    /// Mirrors a waker that is consumed on a worker.
    fn wake(&self, run: impl FnOnce(&Self)) {
        let (notify, taken) = self.state.return_reference();
        if !taken {
            self.accounted.fetch_add(1, Ordering::Relaxed);
        }
        if notify == Notify::Schedule {
            run(self);
        }
    }

    fn take_over(&self, flags: u32) {
        self.accounted.fetch_add(usize::from(flags & RETURNED != 0), Ordering::Relaxed);
    }

    fn process_signal(&self) {
        loop {
            self.take_over(self.state.lower(SIGNAL | RETURNED));
            if self.state.release(0) == Release::Gone {
                return;
            }
        }
    }

    fn terminate(&self) {
        self.take_over(self.state.mark_dead());
    }
}

fn two_wakers(run: fn(&ReferenceModel)) {
    check(3, move || {
        let model = ReferenceModel::new();
        let other = model.clone();
        let waker = thread::spawn(move || other.wake(run));
        model.wake(run);
        waker.join().unwrap();
        assert_eq!(model.accounted.load(Ordering::Relaxed), 2, "a reference was lost or taken over twice");
    });
}

#[test]
fn two_references_returned_to_a_running_cell_are_taken_over() {
    two_wakers(ReferenceModel::process_signal);
}

#[test]
fn two_references_returned_to_a_terminating_cell_are_taken_over() {
    two_wakers(ReferenceModel::terminate);
}
