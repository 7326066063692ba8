//! Marks the drop of a message as dead-lettering, so that an ask dropped with it reports that.

#[cfg(all(not(loom), not(feature = "std")))]
pub(crate) use single::{is_dead_lettering, while_dead_lettering};
#[cfg(all(not(loom), feature = "std"))]
pub(crate) use threads::{is_dead_lettering, while_dead_lettering};

/// The models drop senders explicitly.
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

    /// Restores the previous state, also on unwind; scopes may be nested.
    struct ScopeGuard(bool);

    impl Drop for ScopeGuard {
        fn drop(&mut self) {
            UNDER_WAY.set(self.0);
        }
    }
}

/// With one worker a global flag suffices: at worst, an ask that an interrupt handler drops meanwhile is
/// reported as dead-lettered.
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
