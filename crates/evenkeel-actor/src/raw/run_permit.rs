//! Run permit: only its holder may run the cell and access the cell's private state.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::task::Waker;

#[cfg(feature = "std")]
use super::lifo_slot::PointerSlot;
use super::mailbox_ref::MailboxRef;
use super::slab::SlabFull;
#[cfg(feature = "std")]
use super::slab::SlotRef;
use super::state::{Notify, ReleaseOutcome, WAKER_REF, WOKEN};
use super::{clear_then_look, waker};
use crate::actor::Actor;
use crate::cell::{ActorCell, CellEntry, CellRef};
use crate::coordinator::Urgency;
use crate::invoke::InvokeKind;
use crate::invoker::ActorCellInvoker;
use crate::sync::Arc;
use crate::system::Core;
use crate::worker_local::WorkerLocal;

/// A part of a cell that only the holder of the run permit may access.
pub(crate) struct PermitCell<T>(UnsafeCell<T>);

// SAFETY: the run permit moves between threads by acquire/release on the state word and has one holder at a
// time, so access is exclusive and ordered, as for a value behind a mutex.
unsafe impl<T: Send> Sync for PermitCell<T> {}

impl<T> PermitCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Borrows the value mutably.
    ///
    /// # Safety
    /// The caller holds the run permit of the cell that contains this value, and no other borrow is alive.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the run permit")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *self.0.get() }
    }
}

/// Type-erased execution of a cell.
pub(crate) trait InvokeCell: Send + Sync {
    /// Runs the cell once: processes its system messages, then a batch of user messages.
    ///
    /// # Safety
    /// The caller holds the run permit of `cell`, `self` is the body of `cell`, and the caller accesses
    /// neither after [`PermitState::ENDED`] was returned.
    unsafe fn invoke(&self, cell: &CellRef, local: &WorkerLocal) -> (InvokeKind, PermitState);
}

/// State of the run permit after a run; a single word, because every run returns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitState(u32);

impl PermitState {
    /// The caller keeps the permit and queues the cell again.
    pub(crate) const KEPT: Self = Self(1 << 31);
    /// The cell is dead; its reference to itself must be dropped.
    pub(crate) const ENDED: Self = Self(1 << 30);

    /// Requests that the permit be released and these state flags be set, unless work has arrived.
    ///
    /// The invoker cannot release it itself: the next worker might run the cell, or free it, while this one
    /// still holds the invoker's borrows.
    pub(crate) fn release_with(flags: u32) -> Self {
        Self(flags)
    }
}

/// The permit to run one cell: an entry of a ready queue.
///
/// It does not count a reference: a cell that is not dead references itself, and only the holder of the
/// permit can terminate it.
#[derive(Debug)]
pub(crate) struct RunPermit(ManuallyDrop<CellRef>);

impl CellRef {
    /// Raises the flag of a queue that a lock guards, and schedules the cell if needed.
    #[inline]
    pub(crate) fn raise(&self, flag: u32) {
        if self.slot().state.raise(flag) == Notify::Schedule {
            self.schedule(Urgency::Normal);
        }
    }

    /// Like [`CellRef::raise`], for a message whose sender waits for the reply.
    #[inline]
    pub(crate) fn raise_awaited(&self, flag: u32) {
        if self.slot().state.raise(flag) == Notify::Schedule {
            self.schedule(Urgency::Awaited);
        }
    }

    /// Raises a flag that no lock guards, and schedules the cell if needed.
    pub(crate) fn raise_always(&self, flag: u32) {
        if self.slot().state.raise_always(flag) == Notify::Schedule {
            self.schedule(Urgency::Normal);
        }
    }

    /// Raises `WOKEN` and consumes this reference, transferring it to the cell if possible.
    ///
    /// The transfer happens only on a worker of the same system: once scheduled, the cell may terminate
    /// immediately, and then only the worker keeps the system alive.
    #[cfg(feature = "std")]
    #[inline]
    pub(super) fn wake(self) {
        if !super::current::with(self.core(), |local| local.is_some()) {
            return self.raise_always(WOKEN);
        }
        let (notify, transferred) = self.slot().state.wake_and_transfer_ref();
        if notify == Notify::Schedule {
            self.schedule(Urgency::Normal);
        }
        if transferred {
            core::mem::forget(self);
        }
    }

    /// Raises `WOKEN` and consumes this reference.
    #[cfg(not(feature = "std"))]
    pub(super) fn wake(self) {
        self.raise_always(WOKEN);
    }

    /// Clears the wake-up flags, then passes the waker whose reference was transferred, if any, to `poll`.
    pub(crate) fn process_wake<R>(&self, poll: impl FnOnce(Option<Waker>) -> R) -> R {
        clear_then_look::process_wake(&self.slot().state, |before| {
            // SAFETY: the flag was set and has just been cleared.
            poll((before & WAKER_REF != 0).then(|| unsafe { waker::take_waker_ref(self) }))
        })
    }

    /// Marks the cell dead and drops the transferred reference of a wake-up that was never processed.
    pub(crate) fn mark_dead(&self) {
        let before = self.slot().state.mark_dead();
        // SAFETY: the flag was set, and a dead cell takes no further reference.
        drop((before & WAKER_REF != 0).then(|| unsafe { waker::take_waker_ref(self) }));
    }

    fn schedule(&self, urgency: Urgency) {
        // SAFETY: the state transition has just granted the run permit, and the uncounted reference is used only
        // while the permit is held; see `RunPermit`.
        let permit = RunPermit(unsafe { self.uncounted() });
        self.core().coordinator.register_ready(self.core(), permit, urgency);
    }
}

/// Allocates a slot for a cell. The cell references itself until it terminates; the caller gets the run
/// permit.
pub(crate) fn allocate<A: Actor>(
    core: &Arc<Core>,
    body: ActorCell<A>,
) -> Result<(MailboxRef<A::Msg>, RunPermit), SlabFull> {
    let entry = CellEntry { body: Box::new(body), core: core.clone() };
    let (cell, self_reference) = core.slab.occupy(entry)?;
    let mailbox = cell.occupant().body.mailbox().cast();
    // SAFETY: the body is an `ActorCell<A>`, whose mailbox takes `A::Msg`, and is in its slot.
    let mailbox = unsafe { MailboxRef::new(cell, mailbox) };
    Ok((mailbox, RunPermit(ManuallyDrop::new(self_reference))))
}

impl RunPermit {
    /// Runs the cell; returns the permit if it was kept.
    pub(crate) fn run_cell(self, local: &WorkerLocal) -> (InvokeKind, Option<Self>) {
        // SAFETY: `self` is the run permit, and the body is not touched below.
        let (result, state) = unsafe { self.0.occupant().body.invoke(&self.0, local) };
        match state {
            PermitState::KEPT => (result, Some(self)),
            PermitState::ENDED => {
                // Drop the cell's reference to itself, which was leaked on allocation.
                drop(ManuallyDrop::into_inner(self.0));
                (result, None)
            }
            PermitState(flags) => self.release(result, flags),
        }
    }

    /// Releases the permit unless work has arrived. The slot outlives the permit, because the worker keeps
    /// the slab alive.
    #[inline]
    fn release(self, result: InvokeKind, flags: u32) -> (InvokeKind, Option<Self>) {
        match (self.0.slot().state.release(flags), result) {
            (ReleaseOutcome::Released, result) => (result, None),
            (ReleaseOutcome::Kept, InvokeKind::Completed { .. }) => {
                (InvokeKind::Completed { ready_hint: true }, Some(self))
            }
            (ReleaseOutcome::Kept, result) => (result, Some(self)),
        }
    }

    pub(crate) fn cell(&self) -> &CellRef {
        &self.0
    }
}

/// LIFO slot of a worker: one run permit that the worker stores and that any worker may take.
#[cfg(feature = "std")]
#[derive(Debug)]
pub(crate) struct LifoSlot(PointerSlot);

#[cfg(feature = "std")]
impl LifoSlot {
    pub(crate) fn new() -> Self {
        Self(PointerSlot::new())
    }

    /// Stores a permit and returns the previous one. Only the owning worker may call this.
    #[inline]
    pub(crate) fn replace(&self, permit: RunPermit) -> Option<RunPermit> {
        let address = ManuallyDrop::into_inner(permit.0).into_raw().cast_mut();
        Self::from_address(self.0.replace(address))
    }

    /// Takes the stored permit.
    #[inline]
    pub(crate) fn take(&self) -> Option<RunPermit> {
        Self::from_address(self.0.take())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    fn from_address(address: *mut ()) -> Option<RunPermit> {
        if address.is_null() {
            return None;
        }
        // SAFETY: a non-null address was stored by `replace`, and the slot returns it exactly once.
        Some(RunPermit(ManuallyDrop::new(unsafe { SlotRef::<CellEntry>::from_raw(address) })))
    }
}

impl<A: Actor> InvokeCell for ActorCell<A> {
    unsafe fn invoke(&self, cell: &CellRef, local: &WorkerLocal) -> (InvokeKind, PermitState) {
        // SAFETY: the caller holds the run permit, and this is the only borrow of the runner state made under
        // it.
        let runner = unsafe { self.runner.get() };
        ActorCellInvoker::new(cell, self, runner, local).invoke()
    }
}
