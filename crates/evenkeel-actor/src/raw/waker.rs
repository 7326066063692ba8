//! Waker of a cell: a counted cell reference, so it needs no allocation; waking raises `WOKEN`.

use core::mem::ManuallyDrop;
use core::task::{RawWaker, RawWakerVTable, Waker};

use super::slab::SlotRef;
#[cfg(doc)]
use super::state::WAKER_REF;
use super::state::WOKEN;
use crate::cell::{CellEntry, CellRef};

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// Creates a waker for the cell without counting a reference; its clones count.
pub(crate) fn borrowed(cell: &CellRef) -> ManuallyDrop<Waker> {
    // SAFETY: the waker is never dropped and lives no longer than the borrow of `cell` lets the caller keep
    // it: callers poll a future with it and return. Clones count references of their own.
    let address = unsafe { ManuallyDrop::into_inner(cell.uncounted()).into_raw() };
    // SAFETY: the vtable below treats the address as a reference, as `RawWaker` demands.
    ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(address, &VTABLE)) })
}

/// Creates a waker for the cell that outlives the borrow.
pub(crate) fn for_cell(cell: &CellRef) -> Waker {
    Waker::clone(&borrowed(cell))
}

/// Reports whether a waker belongs to a cell.
#[cfg(feature = "std")]
#[inline]
pub(crate) fn is_cell_waker(waker: &Waker) -> bool {
    core::ptr::eq(waker.vtable(), &VTABLE)
}

/// Returns the waker whose reference was transferred to the cell; see [`WAKER_REF`].
///
/// # Safety
/// The caller has just cleared the flag, or marked the cell dead and found the flag set.
pub(crate) unsafe fn take_waker_ref(cell: &CellRef) -> Waker {
    // SAFETY: the reference was counted by the waker that fired, and no one else takes it over.
    ManuallyDrop::into_inner(borrowed(cell))
}

/// Borrows the reference behind a waker.
///
/// # Safety
/// `address` is the data pointer of a live waker with this vtable.
unsafe fn cell_ref(address: *const ()) -> ManuallyDrop<CellRef> {
    // SAFETY: guaranteed by the caller; never dropped, so the count stays.
    ManuallyDrop::new(unsafe { SlotRef::<CellEntry>::from_raw(address) })
}

unsafe fn clone(address: *const ()) -> RawWaker {
    // SAFETY: called on a live waker.
    let cell = unsafe { cell_ref(address) };
    RawWaker::new(CellRef::clone(&cell).into_raw(), &VTABLE)
}

unsafe fn wake(address: *const ()) {
    // SAFETY: consumes the waker, and with it the reference.
    unsafe { SlotRef::<CellEntry>::from_raw(address) }.wake();
}

unsafe fn wake_by_ref(address: *const ()) {
    // SAFETY: called on a live waker.
    unsafe { cell_ref(address) }.raise_always(WOKEN);
}

unsafe fn drop_waker(address: *const ()) {
    // SAFETY: consumes the waker, and with it the reference.
    drop(unsafe { SlotRef::<CellEntry>::from_raw(address) });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::raw::state::SCHEDULED;
    use crate::test_rig::Rig;

    #[test]
    fn waking_sets_the_woken_flag_and_schedules_the_cell_once() {
        let rig = Rig::new(1);
        let cell = idle(&rig);
        let waker = for_cell(&cell);
        waker.wake_by_ref();
        assert_eq!(cell.slot().state.flags(), SCHEDULED | WOKEN);
        let owned = waker.clone();
        owned.wake();
        waker.wake();
        assert_eq!(rig.core().coordinator.depth(), 1);
    }

    #[test]
    fn a_cloned_waker_keeps_the_cell_alive_and_a_borrowed_one_does_not() {
        let rig = Rig::new(1);
        let cell = idle(&rig);
        let number = cell.number();
        let generation = cell.generation();
        let waker = for_cell(&cell);
        assert!(waker.will_wake(&waker.clone()));
        assert!(waker.will_wake(&borrowed(&cell)));
        cell.slot().state.mark_dead();
        // The cell's reference to itself, which its last run would have dropped.
        // SAFETY: the cell is dead, so no run will drop this reference again.
        drop(ManuallyDrop::into_inner(unsafe { cell.uncounted() }));
        drop(cell);
        assert!(rig.core().slab.find(number, generation).is_some());
        drop(waker);
        assert!(rig.core().slab.find(number, generation).is_none());
    }

    #[test]
    fn waking_a_dead_cell_does_nothing() {
        let rig = Rig::new(1);
        let cell = idle(&rig);
        let waker = for_cell(&cell);
        cell.slot().state.mark_dead();
        let flags = cell.slot().state.flags();
        waker.wake();
        assert_eq!((cell.slot().state.flags(), rig.core().coordinator.depth()), (flags, 0));
    }

    /// Creates a cell and runs its start, so that nothing is queued.
    fn idle(rig: &Rig) -> CellRef {
        let actor = rig.spawn();
        let local = rig.worker(0);
        let permit = rig.core().coordinator.queues.next(&local.queue).unwrap();
        assert!(permit.run_cell(&local).1.is_none());
        actor.cell().clone()
    }
}
