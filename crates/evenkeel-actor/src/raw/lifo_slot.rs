//! Slot for one pointer that its owner stores and that any thread may take.
//!
//! Guarantees: a stored pointer is returned exactly once, and the thread that takes it also sees what its owner wrote before it
//! stored the pointer.

use core::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// See the module documentation; null means empty.
#[derive(Debug)]
pub(super) struct PointerSlot(AtomicPtr<()>);

impl PointerSlot {
    pub(super) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Stores a pointer and returns the previous one, or null. Only the owner may call this.
    ///
    /// Other threads only empty the slot, so an empty slot stays empty until the owner fills it, with a plain store.
    /// The previous pointer was stored by the same thread, so it needs no acquire.
    #[inline]
    pub(super) fn replace(&self, pointer: *mut ()) -> *mut () {
        if self.is_empty() {
            self.0.store(pointer, Ordering::Release);
            return ptr::null_mut();
        }
        self.0.swap(pointer, Ordering::Release)
    }

    /// Takes the stored pointer; null if there is none. Null publishes nothing, so it needs no release.
    #[inline]
    pub(super) fn take(&self) -> *mut () {
        if self.is_empty() {
            return ptr::null_mut();
        }
        self.0.swap(ptr::null_mut(), Ordering::Acquire)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }
}
