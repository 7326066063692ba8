//! Atomics, locks and shared pointers, chosen by target: `std`, `critical-section` on microcontrollers, or loom
//! in the models. Other modules use only these.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use portable_atomic::{AtomicPtr, AtomicU32, AtomicUsize, fence};

pub(crate) use core::sync::atomic::Ordering;

#[cfg(all(not(loom), target_has_atomic = "ptr"))]
pub(crate) use alloc::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(all(not(loom), not(target_has_atomic = "ptr")))]
pub(crate) use portable_atomic_util::Arc;

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell whose users ensure exclusive access themselves.
///
/// It has the same two accessors as loom's cell, which checks the access.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Passes a pointer for reading to `read`.
    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Passes a pointer for writing to `change`.
    #[inline]
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

/// Reference-counted pointer for runtime implementations; atomic on every target, including those without
/// compare-and-swap, where the final binary chooses the implementation of atomics.
#[cfg(not(loom))]
pub type ArcShared<T> = Arc<T>;

/// A value behind the platform's cheapest lock.
///
/// The closure must be short and must not take another lock: on microcontrollers it runs with interrupts
/// disabled.
#[derive(Debug)]
pub(crate) struct Lock<T>(Inner<T>);

#[cfg(loom)]
type Inner<T> = loom::sync::Mutex<T>;
#[cfg(all(not(loom), feature = "std"))]
type Inner<T> = parking_lot::Mutex<T>;
#[cfg(all(not(loom), not(feature = "std")))]
type Inner<T> = critical_section::Mutex<core::cell::RefCell<T>>;

impl<T> Lock<T> {
    #[cfg(any(loom, feature = "std"))]
    pub(crate) fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    #[cfg(all(not(loom), not(feature = "std")))]
    pub(crate) fn new(value: T) -> Self {
        Self(Inner::new(core::cell::RefCell::new(value)))
    }

    /// Runs `work` with exclusive access to the value.
    #[cfg(all(not(loom), feature = "std"))]
    #[inline(always)]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.lock())
    }

    #[cfg(loom)]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    #[cfg(all(not(loom), not(feature = "std")))]
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        critical_section::with(|token| work(&mut self.0.borrow_ref_mut(token)))
    }
}
