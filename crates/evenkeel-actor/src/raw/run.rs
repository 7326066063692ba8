//! The run right as a value, and what only its holder may touch.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
#[cfg(feature = "std")]
use core::ptr;

use super::lane::LaneRef;
use super::slab::SlabFull;
#[cfg(feature = "std")]
use super::slab::SlotRef;
use super::state::{Notify, Release};
use crate::actor::Actor;
use crate::cell::{Body, CellRef, Resident};
use crate::invoke::InvokeResult;
use crate::invoker::ActorCellInvoker;
use crate::sync::Arc;
#[cfg(feature = "std")]
use crate::sync::{AtomicPtr, Ordering};
use crate::system::Core;
use crate::worker::Local;

/// A part of a cell that only the holder of its run right touches.
pub(crate) struct Owned<T>(UnsafeCell<T>);

// SAFETY: the run right moves between threads by acquire/release on the state word and belongs to one
// of them at a time, so access is exclusive and ordered, as for a value behind a mutex.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Borrows the value.
    ///
    /// # Safety
    /// The caller holds the run right of the cell this is part of, and no other borrow is alive.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the run right")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: promised by the caller.
        unsafe { &mut *self.0.get() }
    }
}

/// What a cell does when its turn has come.
pub(crate) trait Run: Send + Sync {
    /// Serves the cell for one run.
    ///
    /// # Safety
    /// The caller holds the run right of `cell`, of which `self` is the body, and after
    /// [`Right::Ended`] touches neither.
    unsafe fn run(&self, cell: &CellRef, local: &Local) -> (InvokeResult, Right);
}

/// Where the run right is after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Still with the caller: back into the queue.
    Kept,
    /// To be given back with these flags set, unless something came up.
    ///
    /// The invoker cannot do it: the next worker may run the cell, or free it, before this one has
    /// returned from the invoker's borrows.
    Spent { hold: u32 },
    /// The cell is dead; its own reference is to be dropped.
    Ended,
}

/// The right to run one cell: an entry of a ready queue.
///
/// It counts no reference: a cell that is not dead refers to itself, and only the holder of this right
/// can end it.
#[derive(Debug)]
pub(crate) struct Ready(ManuallyDrop<CellRef>);

impl CellRef {
    /// Raises a flag of a lane that a lock guards, and puts the cell into the ready queue if need be.
    #[inline]
    pub(crate) fn raise(&self, flag: u32) {
        if self.slot().state.raise(flag) == Notify::Schedule {
            self.schedule();
        }
    }

    /// Raises a flag that no lock guards.
    pub(crate) fn announce(&self, flag: u32) {
        if self.slot().state.announce(flag) == Notify::Schedule {
            self.schedule();
        }
    }

    fn schedule(&self) {
        // SAFETY: the state word has just given us the run right, and the right is used only while it
        // is held; see `Ready`.
        let ready = Ready(unsafe { self.uncounted() });
        self.core().coordinator.register_ready(self.core(), ready);
    }
}

/// Gives a cell its slot; it refers to itself until it ends, and the caller may run it.
pub(crate) fn house<A: Actor>(core: &Arc<Core>, body: Body<A>) -> Result<(LaneRef<A::Msg>, Ready), SlabFull> {
    let resident = Resident { body: Box::new(body), core: core.clone() };
    let (cell, own) = core.slab.occupy(resident)?;
    let lane = cell.occupant().body.lane().cast();
    // SAFETY: the body is a `Body<A>`, whose lane takes `A::Msg`, and lies in its slot.
    let lane = unsafe { LaneRef::new(cell, lane) };
    Ok((lane, Ready(ManuallyDrop::new(own))))
}

impl Ready {
    /// Runs the cell; returns the right if it was kept.
    pub(crate) fn run(self, local: &Local) -> (InvokeResult, Option<Self>) {
        // SAFETY: `self` is the run right, and the body is not touched below.
        let (result, right) = unsafe { self.0.occupant().body.run(&self.0, local) };
        match right {
            Right::Kept => (result, Some(self)),
            Right::Spent { hold } => self.release(result, hold),
            Right::Ended => {
                // The cell's own reference, leaked when it was made, is taken back.
                drop(ManuallyDrop::into_inner(self.0));
                (result, None)
            }
        }
    }

    /// Gives the right back, unless something came up; the slot outlives it, for the worker keeps the
    /// slab alive.
    #[inline]
    fn release(self, result: InvokeResult, hold: u32) -> (InvokeResult, Option<Self>) {
        match (self.0.slot().state.release(hold), result) {
            (Release::Gone, result) => (result, None),
            (Release::Kept, InvokeResult::Completed { .. }) => {
                (InvokeResult::Completed { ready_hint: true }, Some(self))
            }
            (Release::Kept, result) => (result, Some(self)),
        }
    }

    pub(crate) fn cell(&self) -> &CellRef {
        &self.0
    }
}

/// A place for one run right that its worker fills and others may empty.
#[cfg(feature = "std")]
#[derive(Debug, Default)]
pub(crate) struct Newest(AtomicPtr<()>);

#[cfg(feature = "std")]
impl Newest {
    /// Puts a right in and takes out what was there; for the worker whose place it is.
    ///
    /// Others only empty the place, so what is empty stays so until it is filled here, by a plain write.
    #[inline]
    pub(crate) fn replace(&self, ready: Ready) -> Option<Ready> {
        let place = ManuallyDrop::into_inner(ready.0).into_raw().cast_mut();
        if self.is_empty() {
            self.0.store(place, Ordering::Release);
            return None;
        }
        Self::right(self.0.swap(place, Ordering::AcqRel))
    }

    /// Takes out what is there.
    #[inline]
    pub(crate) fn take(&self) -> Option<Ready> {
        if self.is_empty() {
            return None;
        }
        Self::right(self.0.swap(ptr::null_mut(), Ordering::AcqRel))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    #[inline]
    fn right(place: *mut ()) -> Option<Ready> {
        if place.is_null() {
            return None;
        }
        // SAFETY: a place that is not null was put in by `replace`, and the swap took it out once.
        Some(Ready(ManuallyDrop::new(unsafe { SlotRef::<Resident>::from_raw(place) })))
    }
}

impl<A: Actor> Run for Body<A> {
    unsafe fn run(&self, cell: &CellRef, local: &Local) -> (InvokeResult, Right) {
        // SAFETY: the caller holds the run right, and only this borrow of the owner's part is made
        // under it.
        let owner = unsafe { self.owner.get() };
        ActorCellInvoker::new(cell, self, owner, local).run()
    }
}
