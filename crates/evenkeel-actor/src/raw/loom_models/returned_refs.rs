//! A reference that a waker transfers to a cell is released exactly once, whatever the cell does next.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::super::state::{CellState, Notify, ReleaseOutcome, WAKER_REF, WOKEN};
use super::check;
use crate::sync::Arc;

/// A cell that is not running, and the number of references dropped or taken over.
#[derive(Clone)]
struct ReferenceModel {
    state: Arc<CellState>,
    accounted: StdArc<AtomicUsize>,
}

impl ReferenceModel {
    fn new() -> Self {
        let state = Arc::new(CellState::new());
        state.reset_as_scheduled();
        assert_eq!(state.release(0), ReleaseOutcome::Released);
        Self { state, accounted: StdArc::default() }
    }

    /// Mirrors a waker that is consumed on a worker.
    fn wake(&self, run: impl FnOnce(&Self)) {
        let (notify, transferred) = self.state.wake_and_transfer_ref();
        if !transferred {
            self.accounted.fetch_add(1, Ordering::Relaxed);
        }
        if notify == Notify::Schedule {
            run(self);
        }
    }

    fn take_over(&self, flags: u32) {
        self.accounted.fetch_add(usize::from(flags & WAKER_REF != 0), Ordering::Relaxed);
    }

    fn process_wake(&self) {
        loop {
            self.take_over(self.state.lower(WOKEN | WAKER_REF));
            if self.state.release(0) == ReleaseOutcome::Released {
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
fn two_references_transferred_to_a_running_cell_are_both_accounted_for() {
    two_wakers(ReferenceModel::process_wake);
}

#[test]
fn two_references_transferred_to_a_terminating_cell_are_both_accounted_for() {
    two_wakers(ReferenceModel::terminate);
}
