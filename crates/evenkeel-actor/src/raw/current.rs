//! Which worker this thread is running as, while it is.

use core::cell::Cell;
use core::ptr;

use crate::system::Core;
use crate::worker_local::WorkerLocal;

std::thread_local! {
    static CURRENT: Cell<*const WorkerLocal> = const { Cell::new(ptr::null()) };
}

/// Makes `local` this thread's worker while `work` runs.
pub(crate) fn enter<R>(local: &WorkerLocal, work: impl FnOnce() -> R) -> R {
    let _left = RestoreGuard(CURRENT.replace(local));
    work()
}

/// Restores the worker before, also when a panic passes.
struct RestoreGuard(*const WorkerLocal);

impl Drop for RestoreGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Looks at this thread's worker, if it is one of `core`'s.
#[inline]
pub(crate) fn with<R>(core: &Core, work: impl FnOnce(Option<&WorkerLocal>) -> R) -> R {
    // SAFETY: set by `enter`, which borrows the worker for as long as the pointer stands; the worker
    // is not `Sync`, and this thread is the one that borrowed it.
    let local = unsafe { CURRENT.get().as_ref() };
    work(local.filter(|local| ptr::eq(local.core(), core)))
}

/// Notes that this thread's worker, if it runs one, has woken somebody who is not an actor.
#[cold]
pub(crate) fn owe_turn() {
    // SAFETY: as above.
    if let Some(local) = unsafe { CURRENT.get().as_ref() } {
        local.require_yield();
    }
}
