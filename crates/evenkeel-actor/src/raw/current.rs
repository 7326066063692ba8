//! Thread-local pointer to the worker that the current thread runs, if any.

use core::cell::Cell;
use core::ptr;

use crate::system::Core;
use crate::worker_local::WorkerLocal;

std::thread_local! {
    static CURRENT: Cell<*const WorkerLocal> = const { Cell::new(ptr::null()) };
}

/// Makes `local` this thread's worker while `work` runs.
pub(crate) fn enter<R>(local: &WorkerLocal, work: impl FnOnce() -> R) -> R {
    let _restore = RestoreGuard(CURRENT.replace(local));
    work()
}

/// Restores the previous worker, also on unwind.
struct RestoreGuard(*const WorkerLocal);

impl Drop for RestoreGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Passes this thread's worker to `work` if it belongs to `core`.
#[inline]
pub(crate) fn with<R>(core: &Core, work: impl FnOnce(Option<&WorkerLocal>) -> R) -> R {
    with_any(|local| work(local.filter(|local| ptr::eq(local.core(), core))))
}

/// Passes this thread's worker to `work`, whatever system it belongs to.
#[inline]
pub(crate) fn with_any<R>(work: impl FnOnce(Option<&WorkerLocal>) -> R) -> R {
    // SAFETY: set by `enter`, which borrows the worker for as long as the pointer is set; the worker is not
    // `Sync`, and this thread is the one that borrowed it.
    work(unsafe { CURRENT.get().as_ref() })
}

/// Records that this thread's worker, if it runs one, woke a task that is not an actor.
#[cold]
pub(crate) fn require_yield() {
    with_any(|local| local.map_or((), WorkerLocal::require_yield));
}
