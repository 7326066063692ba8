//! Slab of actor cells with a generational index: slot number and generation.
//!
//! A slot is never moved or freed while the slab lives, so a stale index can always be looked up: it finds
//! another generation and is rejected.
//!
//! Guarantees: a slot gets a new occupant only after the last reference to the previous one is gone. Limits:
//! at most `slots_max` slots are occupied at a time; memory is allocated in whole chunks, which may hold more.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use super::state::CellState;
use crate::ignore_panic::ignore_panic;
use crate::sync::{AtomicPtr, AtomicU32, Lock, Ordering, UnsafeCell};

/// Number of slots in the first chunk; each later chunk is twice as large as the one before, up to
/// [`LARGEST_CHUNK`]. Small under loom, whose cost grows with the number of slots.
const FIRST_CHUNK: u32 = if cfg!(loom) { 1 } else { 32 };
const DOUBLINGS: u32 = if cfg!(loom) { 1 } else { 7 };
const LARGEST_CHUNK: u32 = FIRST_CHUNK << DOUBLINGS;
/// Total number of slots in the chunks of growing size.
const GROWING: u32 = 2 * LARGEST_CHUNK - FIRST_CHUNK;
/// Upper bound of `slots_max`.
pub(crate) const SLOTS_MAX: u32 = 1 << 30;

/// A value that lives in a slot and can reach its slab.
///
/// It must keep the slab alive, so that a referenced slot is not freed.
pub(crate) trait Occupant: Sized {
    fn slab(&self) -> &Slab<Self>;

    /// Removes and returns a reference to another occupant, so that a chain of any length is dropped iteratively
    /// and not recursively.
    fn take_next(&mut self) -> Option<SlotRef<Self>>;
}

/// One slot: state word, reference count, generation and occupant.
pub(crate) struct Slot<T> {
    pub(crate) state: CellState,
    refs: AtomicU32,
    generation: AtomicU32,
    number: u32,
    occupant: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the occupant is written while no reference to the slot exists and only read (shared) while one
// does; everything else is atomic or never changes.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}
// SAFETY: a slot is sent only as part of its slab, together with its occupant.
unsafe impl<T: Send + Sync> Send for Slot<T> {}

/// Memory for cells, indexed by slot number.
pub(crate) struct Slab<T> {
    chunks: Box<[AtomicPtr<Slot<T>>]>,
    vacant: Lock<Vacant>,
    slots_max: u32,
}

struct Vacant {
    numbers: Vec<u32>,
    allocated: u32,
}

/// All slots are occupied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabFull;

impl<T: Occupant> Slab<T> {
    pub(crate) fn new(slots_max: u32) -> Self {
        let slots_max = slots_max.min(SLOTS_MAX);
        let (last_chunk, ..) = locate(slots_max.saturating_sub(1));
        Self {
            chunks: (0..=last_chunk).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            vacant: Lock::new(Vacant { numbers: Vec::new(), allocated: 0 }),
            slots_max,
        }
    }

    /// Stores an occupant and returns two references to it.
    ///
    /// The state word starts out scheduled: the caller also holds the run permit.
    pub(crate) fn occupy(&self, occupant: T) -> Result<(SlotRef<T>, SlotRef<T>), SlabFull> {
        let number = self.vacant.with(|vacant| self.next_vacant(vacant)).ok_or(SlabFull)?;
        let slot = self.slot(number).ok_or(SlabFull)?;
        // SAFETY: the number came from the vacant list, so no reference to this slot exists and no lookup can
        // create one while `refs` is zero: this thread alone touches the occupant.
        slot.occupant.with_mut(|pointer| unsafe { (*pointer).write(occupant) });
        slot.state.reset_as_scheduled();
        slot.refs.store(2, Ordering::Release);
        let pointer = NonNull::from(slot);
        Ok((SlotRef(pointer), SlotRef(pointer)))
    }

    fn next_vacant(&self, vacant: &mut Vacant) -> Option<u32> {
        if let Some(number) = vacant.numbers.pop() {
            return Some(number);
        }
        if vacant.allocated >= self.slots_max {
            return None;
        }
        let number = vacant.allocated;
        let (chunk, offset, len) = locate(number);
        if offset == 0 {
            let slots: Box<[Slot<T>]> = (number..number + len).map(Slot::new).collect();
            self.chunks[chunk].store(Box::into_raw(slots).cast(), Ordering::Release);
        }
        vacant.allocated += 1;
        Some(number)
    }

    fn slot(&self, number: u32) -> Option<&Slot<T>> {
        let (chunk, offset, _) = locate(number);
        let first = self.chunks.get(chunk)?.load(Ordering::Acquire);
        if first.is_null() {
            return None;
        }
        // SAFETY: a chunk that is not null has `len` slots, `offset` is below that, and chunks are freed only
        // with the slab, which `self` borrows.
        Some(unsafe { &*first.add(offset as usize) })
    }

    /// Looks up an occupant by number and generation; `None` if it was dropped.
    pub(crate) fn find(&self, number: u32, generation: u32) -> Option<SlotRef<T>> {
        let slot = self.slot(number)?;
        let mut refs = slot.refs.load(Ordering::Relaxed);
        loop {
            if refs == 0 {
                return None;
            }
            match slot.refs.compare_exchange_weak(refs, refs + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => refs = seen,
            }
        }
        let found = SlotRef(NonNull::from(slot));
        // The generation is stable only while a reference is held.
        (found.generation() == generation).then_some(found)
    }

    /// Iterates over all current occupants.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SlotRef<T>> + '_ {
        let allocated = self.vacant.with(|vacant| vacant.allocated);
        (0..allocated).filter_map(|number| {
            let generation = self.slot(number)?.generation.load(Ordering::Acquire);
            self.find(number, generation)
        })
    }

    fn vacate(&self, slot: &Slot<T>) {
        slot.generation.fetch_add(1, Ordering::Release);
        self.vacant.with(|vacant| vacant.numbers.push(slot.number));
    }
}

impl<T> Slot<T> {
    fn new(number: u32) -> Self {
        Self {
            state: CellState::new(),
            refs: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            number,
            occupant: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        for (index, chunk) in self.chunks.iter().enumerate() {
            let first = chunk.load(Ordering::Acquire);
            if !first.is_null() {
                let len = (FIRST_CHUNK << (index as u32).min(DOUBLINGS)) as usize;
                // SAFETY: created by `Box::into_raw` from a slice of this length; occupants keep the slab
                // alive, so none is left in it.
                drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(first, len)) });
            }
        }
    }
}

/// Returns the chunk of a slot, the offset in it, and the chunk's length.
fn locate(number: u32) -> (usize, u32, u32) {
    if number >= GROWING {
        let rest = number - GROWING;
        let chunk = DOUBLINGS + 1 + rest / LARGEST_CHUNK;
        return (chunk as usize, rest % LARGEST_CHUNK, LARGEST_CHUNK);
    }
    let chunk = (number / FIRST_CHUNK + 1).ilog2();
    let first = FIRST_CHUNK * ((1 << chunk) - 1);
    (chunk as usize, number - first, FIRST_CHUNK << chunk)
}

/// A counted reference to an occupied slot.
pub(crate) struct SlotRef<T: Occupant>(NonNull<Slot<T>>);

// SAFETY: like `Arc`, a reference gives shared access to the occupant and may drop it.
unsafe impl<T: Occupant + Send + Sync> Send for SlotRef<T> {}
// SAFETY: as above.
unsafe impl<T: Occupant + Send + Sync> Sync for SlotRef<T> {}

impl<T: Occupant> SlotRef<T> {
    #[inline]
    pub(crate) fn slot(&self) -> &Slot<T> {
        // SAFETY: a reference keeps the slot occupied, an occupant keeps the slab alive, and a slab
        // never moves its slots.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn occupant(&self) -> &T {
        // SAFETY: `refs` is above zero, so the occupant was written and has not been taken out.
        self.slot().occupant.with(|pointer| unsafe { (*pointer).assume_init_ref() })
    }

    pub(crate) fn number(&self) -> u32 {
        self.slot().number
    }

    pub(crate) fn generation(&self) -> u32 {
        self.slot().generation.load(Ordering::Acquire)
    }

    /// Reports whether both references refer to the same occupant.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Converts the reference into an address, for a waker; [`SlotRef::from_raw`] reverses it.
    pub(crate) fn into_raw(self) -> *const () {
        let address = self.0.as_ptr() as *const ();
        core::mem::forget(self);
        address
    }

    /// Converts an address back into a reference.
    ///
    /// # Safety
    /// `address` came from [`SlotRef::into_raw`] of the same `T` and is converted back once.
    pub(crate) unsafe fn from_raw(address: *const ()) -> Self {
        // SAFETY: the address came out of a `NonNull`, so it is not null.
        Self(unsafe { NonNull::new_unchecked(address as *mut Slot<T>) })
    }

    /// Copies the reference without counting it.
    ///
    /// # Safety
    /// The result must not be used after the last counted reference is gone. The holder of the run permit may
    /// use it, because a cell that is not dead holds a counted reference to itself.
    pub(crate) unsafe fn uncounted(&self) -> core::mem::ManuallyDrop<Self> {
        core::mem::ManuallyDrop::new(Self(self.0))
    }
}

impl<T: Occupant> Clone for SlotRef<T> {
    #[inline]
    fn clone(&self) -> Self {
        let refs = self.slot().refs.fetch_add(1, Ordering::Relaxed);
        // Only leaked references reach this limit; a wrapped count would free memory in use.
        assert!(refs < u32::MAX / 2, "too many references to one actor");
        Self(self.0)
    }
}

impl<T: Occupant> Drop for SlotRef<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(next) = self.release() {
            drop_chain(next);
        }
    }
}

impl<T: Occupant> SlotRef<T> {
    /// Decrements the count and drops the occupant if this was the last reference; returns the next reference
    /// of the chain.
    ///
    /// The slot must not be touched through `self` afterwards.
    #[inline]
    fn release(&self) -> Option<Self> {
        if self.slot().refs.fetch_sub(1, Ordering::Release) != 1 {
            return None;
        }
        self.drop_occupant()
    }

    #[cold]
    fn drop_occupant(&self) -> Option<Self> {
        // Orders all accesses by other threads before the occupant is moved out.
        self.slot().refs.load(Ordering::Acquire);
        // SAFETY: the count is zero, so no reference exists and `find` creates none: this thread owns the
        // occupant. It keeps the slab, and so the slot, alive until it is dropped at the end.
        let mut occupant = self.slot().occupant.with_mut(|pointer| unsafe { (*pointer).assume_init_read() });
        let next = occupant.take_next();
        occupant.slab().vacate(self.slot());
        // The occupant holds user code, whose drop may panic on whichever thread held the last reference.
        ignore_panic(|| drop(occupant));
        next
    }
}

/// Drops a reference and, iteratively, everything that only it kept alive.
#[cold]
fn drop_chain<T: Occupant>(reference: SlotRef<T>) {
    let mut next = Some(reference);
    while let Some(reference) = next {
        next = core::mem::ManuallyDrop::new(reference).release();
    }
}

impl<T: Occupant> fmt::Debug for SlotRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.number(), self.generation())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering as Order};

    #[test]
    fn an_occupant_is_found_by_its_number_and_generation_only() {
        let rig = TestSlab::new(4);
        let (occupant, _second) = rig.occupy("occupant");
        let found = rig.slab.find(occupant.number(), occupant.generation()).unwrap();
        assert_eq!((found.occupant().name, found.is(&occupant)), ("occupant", true));
        assert!(rig.slab.find(occupant.number(), occupant.generation() + 1).is_none());
        assert!(rig.slab.find(occupant.number() + 1, occupant.generation()).is_none());
    }

    #[test]
    fn an_occupant_is_dropped_with_its_last_reference() {
        let rig = TestSlab::new(4);
        let (occupant, second) = rig.occupy("occupant");
        let index = (occupant.number(), occupant.generation());
        drop((occupant.clone(), occupant));
        assert_eq!(rig.dropped(), 0);
        assert!(rig.slab.find(index.0, index.1).is_some());
        drop(second);
        assert_eq!(rig.dropped(), 1);
        assert!(rig.slab.find(index.0, index.1).is_none());
    }

    #[test]
    fn a_reused_slot_has_a_new_generation_and_a_fresh_state() {
        let rig = TestSlab::new(1);
        let (old, second) = rig.occupy("old");
        let index = (old.number(), old.generation());
        old.slot().state.mark_dead();
        drop((old, second));
        let (new, _second) = rig.occupy("new");
        assert_eq!((new.number(), new.generation()), (index.0, index.1 + 1));
        assert_eq!(new.slot().state.flags(), super::super::state::SCHEDULED);
        assert!(rig.slab.find(index.0, index.1).is_none());
    }

    #[test]
    fn a_full_slab_rejects_occupants_until_one_is_dropped() {
        let rig = TestSlab::new(2);
        let first = rig.occupy("first");
        let _second = rig.occupy("second");
        assert_eq!(rig.slab.occupy(rig.occupant("third")).map(drop), Err(SlabFull));
        drop(first);
        assert_eq!(rig.slab.occupy(rig.occupant("third")).map(drop), Ok(()));
        assert_eq!(
            rig.dropped(),
            3,
            "the rejected occupant, the first one, and the third one after its second attempt"
        );
    }

    #[test]
    fn slots_do_not_move_while_the_slab_grows() {
        let rig = TestSlab::new(200);
        let occupants: Vec<_> = (0..200).map(|_| rig.occupy("occupant")).collect();
        for (number, (occupant, _)) in occupants.iter().enumerate() {
            assert_eq!(occupant.number() as usize, number);
            assert!(rig.slab.find(occupant.number(), 0).is_some_and(|found| found.is(occupant)));
        }
        assert_eq!(rig.slab.iter().count(), 200);
        drop(occupants);
        assert_eq!((rig.dropped(), rig.slab.iter().count()), (200, 0));
    }

    #[test]
    fn every_number_maps_to_its_own_slot() {
        let mut before = locate(0);
        assert_eq!(before, (0, 0, FIRST_CHUNK));
        for number in 1..GROWING + 3 * LARGEST_CHUNK {
            let here = locate(number);
            let next = if before.1 + 1 == before.2 {
                (before.0 + 1, 0, (2 * before.2).min(LARGEST_CHUNK))
            } else {
                (before.0, before.1 + 1, before.2)
            };
            assert_eq!(here, next);
            before = here;
        }
        assert!(TestSlab::new(1).slab.find(SLOTS_MAX, 0).is_none());
    }

    #[test]
    fn an_occupant_keeps_the_slab_alive() {
        let rig = TestSlab::new(4);
        let dropped = rig.dropped.clone();
        let (occupant, second) = rig.occupy("occupant");
        drop((rig, second));
        assert_eq!(occupant.occupant().name, "occupant");
        drop(occupant);
        assert_eq!(dropped.load(Order::Relaxed), 1);
    }

    #[test]
    fn a_reference_round_trips_through_an_address() {
        let rig = TestSlab::new(4);
        let (occupant, second) = rig.occupy("occupant");
        drop(second);
        let address = occupant.into_raw();
        // SAFETY: it came from `into_raw` just now and is taken back once.
        let occupant = unsafe { SlotRef::<TestOccupant>::from_raw(address) };
        assert_eq!(alloc::format!("{occupant:?}"), "0.0");
        assert_eq!(rig.dropped(), 0);
        drop(occupant);
        assert_eq!(rig.dropped(), 1);
    }

    #[test]
    fn an_uncounted_reference_keeps_nothing_alive() {
        let rig = TestSlab::new(4);
        let (occupant, second) = rig.occupy("occupant");
        // SAFETY: not used after the counted ones are gone.
        let uncounted = unsafe { occupant.uncounted() };
        assert!(uncounted.is(&second));
        drop((occupant, second));
        assert_eq!(rig.dropped(), 1);
    }

    #[test]
    fn a_chain_of_occupants_is_dropped_iteratively() {
        const LENGTH: usize = if cfg!(miri) { 100 } else { 100_000 };
        let rig = TestSlab::new(LENGTH as u32);
        let mut last = None;
        for _ in 0..LENGTH {
            let mut occupant = rig.occupant("occupant");
            occupant.next = last.take();
            last = rig.slab.occupy(occupant).ok().map(|(occupant, _second)| occupant);
        }
        assert_eq!(rig.dropped(), 0);
        drop(last);
        assert_eq!(rig.dropped(), LENGTH);
    }

    #[test]
    fn an_occupant_that_panics_on_drop_frees_its_slot() {
        let rig = TestSlab::new(1);
        drop(rig.occupy("panics"));
        assert_eq!(rig.dropped(), 1);
        assert!(rig.slab.occupy(rig.occupant("next")).is_ok());
    }

    struct TestOccupant {
        name: &'static str,
        slab: Arc<Slab<Self>>,
        dropped: Arc<AtomicUsize>,
        next: Option<SlotRef<Self>>,
    }

    impl Occupant for TestOccupant {
        fn slab(&self) -> &Slab<Self> {
            &self.slab
        }

        fn take_next(&mut self) -> Option<SlotRef<Self>> {
            self.next.take()
        }
    }

    impl Drop for TestOccupant {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Order::Relaxed);
            assert_ne!(self.name, "panics");
        }
    }

    struct TestSlab {
        slab: Arc<Slab<TestOccupant>>,
        dropped: Arc<AtomicUsize>,
    }

    impl TestSlab {
        fn new(slots_max: u32) -> Self {
            Self { slab: Arc::new(Slab::new(slots_max)), dropped: Arc::new(AtomicUsize::new(0)) }
        }

        fn occupant(&self, name: &'static str) -> TestOccupant {
            TestOccupant { name, slab: self.slab.clone(), dropped: self.dropped.clone(), next: None }
        }

        fn occupy(&self, name: &'static str) -> (SlotRef<TestOccupant>, SlotRef<TestOccupant>) {
            self.slab.occupy(self.occupant(name)).unwrap()
        }

        fn dropped(&self) -> usize {
            self.dropped.load(Order::Relaxed)
        }
    }
}
