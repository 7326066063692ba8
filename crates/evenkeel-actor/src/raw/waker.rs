//! A waker that is a reference to a cell: waking it raises `SIGNAL`. No allocation, ever.

use core::mem::ManuallyDrop;
use core::task::{RawWaker, RawWakerVTable, Waker};

use super::slab::SlotRef;
use super::state::SIGNAL;
use crate::cell::{CellRef, Resident};

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, forget);

/// Lends a waker of the cell without counting a reference; clones count.
pub(crate) fn lend(cell: &CellRef) -> ManuallyDrop<Waker> {
    // SAFETY: the waker is dropped by nobody and lives no longer than the borrow of `cell` lets the
    // caller keep it: callers poll a future with it and return. Clones are references of their own.
    let place = unsafe { ManuallyDrop::into_inner(cell.uncounted()).into_raw() };
    // SAFETY: the vtable below treats the address as a reference, as `RawWaker` demands.
    ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(place, &VTABLE)) })
}

/// Makes a waker of the cell that outlives the borrow.
pub(crate) fn of(cell: &CellRef) -> Waker {
    Waker::clone(&lend(cell))
}

/// Looks at the reference behind a waker without giving it up.
///
/// # Safety
/// `place` is the address in a living waker of this vtable.
unsafe fn behind(place: *const ()) -> ManuallyDrop<CellRef> {
    // SAFETY: promised by the caller; never dropped, so the count stays.
    ManuallyDrop::new(unsafe { SlotRef::<Resident>::from_raw(place) })
}

unsafe fn clone(place: *const ()) -> RawWaker {
    // SAFETY: called on a living waker.
    let cell = unsafe { behind(place) };
    RawWaker::new(CellRef::clone(&cell).into_raw(), &VTABLE)
}

unsafe fn wake(place: *const ()) {
    // SAFETY: consumes the waker, and with it the reference.
    unsafe { SlotRef::<Resident>::from_raw(place) }.announce(SIGNAL);
}

unsafe fn wake_by_ref(place: *const ()) {
    // SAFETY: called on a living waker.
    unsafe { behind(place) }.announce(SIGNAL);
}

unsafe fn forget(place: *const ()) {
    // SAFETY: consumes the waker, and with it the reference.
    drop(unsafe { SlotRef::<Resident>::from_raw(place) });
}
