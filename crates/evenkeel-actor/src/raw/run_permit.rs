//! The run right as a value, and what only its holder may touch.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
#[cfg(feature = "std")]
use core::ptr;
use core::task::Waker;

use super::mailbox_ref::MailboxRef;
use super::slab::SlabFull;
#[cfg(feature = "std")]
use super::slab::SlotRef;
use super::state::{Notify, RETURNED, Release, SIGNAL};
use super::waker;
use crate::actor::Actor;
use crate::cell::{ActorCell, CellEntry, CellRef};
use crate::invoke::InvokeKind;
use crate::invoker::ActorCellInvoker;
use crate::sync::Arc;
#[cfg(feature = "std")]
use crate::sync::{AtomicPtr, Ordering};
use crate::system::Core;
use crate::worker_local::WorkerLocal;

/// A part of a cell that only the holder of its run right touches.
pub(crate) struct PermitCell<T>(UnsafeCell<T>);

// SAFETY: the run right moves between threads by acquire/release on the state word and belongs to one
// of them at a time, so access is exclusive and ordered, as for a value behind a mutex.
unsafe impl<T: Send> Sync for PermitCell<T> {}

impl<T> PermitCell<T> {
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
    /// [`Right::ENDED`] touches neither.
    unsafe fn run(&self, cell: &CellRef, local: &WorkerLocal) -> (InvokeKind, PermitState);
}

/// Where the run right is after a run; one word, which every run returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitState(u32);

impl PermitState {
    /// Still with the caller: back into the queue.
    pub(crate) const KEPT: Self = Self(1 << 31);
    /// The cell is dead; its own reference is to be dropped.
    pub(crate) const ENDED: Self = Self(1 << 30);

    /// To be given back with these flags of the state set, unless something came up.
    ///
    /// The invoker cannot do it: the next worker may run the cell, or free it, before this one has
    /// returned from the invoker's borrows.
    pub(crate) fn spent(hold: u32) -> Self {
        Self(hold)
    }
}

/// The right to run one cell: an entry of a ready queue.
///
/// It counts no reference: a cell that is not dead refers to itself, and only the holder of this right
/// can end it.
#[derive(Debug)]
pub(crate) struct RunPermit(ManuallyDrop<CellRef>);

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
        if self.slot().state.raise_unlocked(flag) == Notify::Schedule {
            self.schedule();
        }
    }

    /// Raises `SIGNAL` and gives this reference up: to the cell, if that has use for it.
    ///
    /// On one of the cell's own workers only: what is scheduled may end at once, and nothing but the worker
    /// keeps the system then.
    #[cfg(feature = "std")]
    #[inline]
    pub(super) fn signal(self) {
        if !super::current::with(self.core(), |local| local.is_some()) {
            return self.announce(SIGNAL);
        }
        let (notify, taken) = self.slot().state.return_reference();
        if notify == Notify::Schedule {
            self.schedule();
        }
        if taken {
            core::mem::forget(self);
        }
    }

    /// Raises `SIGNAL` and gives this reference up.
    #[cfg(not(feature = "std"))]
    pub(super) fn signal(self) {
        self.announce(SIGNAL);
    }

    /// Takes flags down, and the reference that came with a signal over.
    pub(crate) fn on_signal(&self) -> Option<Waker> {
        let before = self.slot().state.lower(SIGNAL | RETURNED);
        // SAFETY: just cleared.
        (before & RETURNED != 0).then(|| unsafe { waker::left_with(self) })
    }

    /// Ends the cell, and gives up the reference that came with a signal nobody heard.
    pub(crate) fn mark_dead(&self) {
        let before = self.slot().state.mark_dead();
        // SAFETY: dead from here on, and the flag was set.
        drop((before & RETURNED != 0).then(|| unsafe { waker::left_with(self) }));
    }

    fn schedule(&self) {
        // SAFETY: the state word has just given us the run right, and the right is used only while it
        // is held; see `Ready`.
        let ready = RunPermit(unsafe { self.uncounted() });
        self.core().coordinator.register_ready(self.core(), ready);
    }
}

/// Gives a cell its slot; it refers to itself until it ends, and the caller may run it.
pub(crate) fn allocate<A: Actor>(
    core: &Arc<Core>,
    body: ActorCell<A>,
) -> Result<(MailboxRef<A::Msg>, RunPermit), SlabFull> {
    let resident = CellEntry { body: Box::new(body), core: core.clone() };
    let (cell, own) = core.slab.occupy(resident)?;
    let lane = cell.occupant().body.lane().cast();
    // SAFETY: the body is a `Body<A>`, whose lane takes `A::Msg`, and lies in its slot.
    let lane = unsafe { MailboxRef::new(cell, lane) };
    Ok((lane, RunPermit(ManuallyDrop::new(own))))
}

impl RunPermit {
    /// Runs the cell; returns the right if it was kept.
    pub(crate) fn run(self, local: &WorkerLocal) -> (InvokeKind, Option<Self>) {
        // SAFETY: `self` is the run right, and the body is not touched below.
        let (result, right) = unsafe { self.0.occupant().body.run(&self.0, local) };
        match right {
            PermitState::KEPT => (result, Some(self)),
            PermitState::ENDED => {
                // The cell's own reference, leaked when it was made, is taken back.
                drop(ManuallyDrop::into_inner(self.0));
                (result, None)
            }
            PermitState(hold) => self.release(result, hold),
        }
    }

    /// Gives the right back, unless something came up; the slot outlives it, for the worker keeps the
    /// slab alive.
    #[inline]
    fn release(self, result: InvokeKind, hold: u32) -> (InvokeKind, Option<Self>) {
        match (self.0.slot().state.release(hold), result) {
            (Release::Gone, result) => (result, None),
            (Release::Kept, InvokeKind::Completed { .. }) => {
                (InvokeKind::Completed { ready_hint: true }, Some(self))
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
pub(crate) struct LifoSlot(AtomicPtr<()>);

#[cfg(feature = "std")]
impl LifoSlot {
    /// Puts a right in and takes out what was there; for the worker whose place it is.
    ///
    /// Others only empty the place, so what is empty stays so until it is filled here, by a plain write.
    #[inline]
    pub(crate) fn replace(&self, ready: RunPermit) -> Option<RunPermit> {
        let place = ManuallyDrop::into_inner(ready.0).into_raw().cast_mut();
        if self.is_empty() {
            self.0.store(place, Ordering::Release);
            return None;
        }
        Self::right(self.0.swap(place, Ordering::AcqRel))
    }

    /// Takes out what is there.
    #[inline]
    pub(crate) fn take(&self) -> Option<RunPermit> {
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
    fn right(place: *mut ()) -> Option<RunPermit> {
        if place.is_null() {
            return None;
        }
        // SAFETY: a place that is not null was put in by `replace`, and the swap took it out once.
        Some(RunPermit(ManuallyDrop::new(unsafe { SlotRef::<CellEntry>::from_raw(place) })))
    }
}

impl<A: Actor> Run for ActorCell<A> {
    unsafe fn run(&self, cell: &CellRef, local: &WorkerLocal) -> (InvokeKind, PermitState) {
        // SAFETY: the caller holds the run right, and only this borrow of the owner's part is made
        // under it.
        let owner = unsafe { self.owner.get() };
        ActorCellInvoker::new(cell, self, owner, local).run()
    }
}
