//! Marks the drop of a message as dead-lettering, so that an ask inside it fails with that reason.

#[cfg(all(not(loom), not(feature = "std")))]
pub(crate) use single::{is_dead_lettering, while_dead_lettering};
#[cfg(all(not(loom), feature = "std"))]
pub(crate) use threads::{is_dead_lettering, while_dead_lettering};

/// Always `false`: the loom models dead-letter no messages with senders.
#[cfg(loom)]
pub(crate) fn is_dead_lettering() -> bool {
    false
}

#[cfg(all(not(loom), feature = "std"))]
mod threads {
    use core::cell::Cell;

    std::thread_local! {
        static IN_SCOPE: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn is_dead_lettering() -> bool {
        IN_SCOPE.get()
    }

    pub(crate) fn while_dead_lettering(drop_message: impl FnOnce()) {
        let _scope = ScopeGuard(IN_SCOPE.replace(true));
        drop_message();
    }

    /// Restores the previous state, also on unwind; scopes may be nested.
    struct ScopeGuard(bool);

    impl Drop for ScopeGuard {
        fn drop(&mut self) {
            IN_SCOPE.set(self.0);
        }
    }
}

/// With one worker a global counter suffices: at worst, an ask that an interrupt handler drops inside the scope
/// is reported as dead-lettered.
#[cfg(all(not(loom), not(feature = "std")))]
mod single {
    use crate::sync::{AtomicU32, Ordering};

    static IN_SCOPE: AtomicU32 = AtomicU32::new(0);

    pub(crate) fn is_dead_lettering() -> bool {
        IN_SCOPE.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn while_dead_lettering(drop_message: impl FnOnce()) {
        IN_SCOPE.fetch_add(1, Ordering::Relaxed);
        drop_message();
        IN_SCOPE.fetch_sub(1, Ordering::Relaxed);
    }
}
