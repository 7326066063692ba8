//! The scheduler's lock: parking_lot's mutex, or loom's in the loom models.

#[cfg(not(loom))]
pub(super) use parking_lot::Mutex;

#[cfg(loom)]
pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
