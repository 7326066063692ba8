//! Whether a message is being buried: a question dropped with it learns that it was.

#[cfg(all(not(loom), not(feature = "std")))]
pub(crate) use single::{is_dead_lettering, while_dead_lettering};
#[cfg(all(not(loom), feature = "std"))]
pub(crate) use threads::{is_dead_lettering, while_dead_lettering};

/// In models questions are dropped by hand.
#[cfg(loom)]
pub(crate) fn is_dead_lettering() -> bool {
    false
}

#[cfg(all(not(loom), feature = "std"))]
mod threads {
    use core::cell::Cell;

    std::thread_local! {
        static UNDER_WAY: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn is_dead_lettering() -> bool {
        UNDER_WAY.get()
    }

    pub(crate) fn while_dead_lettering(bury: impl FnOnce()) {
        let _over = ScopeGuard(UNDER_WAY.replace(true));
        bury();
    }

    /// Ends a burial inside of another only, also when a panic passes.
    struct ScopeGuard(bool);

    impl Drop for ScopeGuard {
        fn drop(&mut self) {
            UNDER_WAY.set(self.0);
        }
    }
}

/// With one worker one flag will do: at worst an interrupt handler that drops a question meanwhile is
/// taken for its part.
#[cfg(all(not(loom), not(feature = "std")))]
mod single {
    use crate::sync::{AtomicU32, Ordering};

    static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

    pub(crate) fn is_dead_lettering() -> bool {
        UNDER_WAY.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn while_dead_lettering(bury: impl FnOnce()) {
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        bury();
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}
