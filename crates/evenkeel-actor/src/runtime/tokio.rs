//! Workers as tokio tasks, next to the application's own.

use alloc::boxed::Box;
use core::num::{NonZeroU32, NonZeroUsize};
use core::time::Duration;
use std::panic::catch_unwind;
use std::thread;

use evenkeel_policy::time::Instant;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::unconstrained;

use super::{RuntimeHandle, RuntimeSpawnError, TaskFuture};

/// A tokio runtime; it needs the time driver (`enable_time` or `enable_all`).
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    handle: Handle,
    threads: usize,
    origin: tokio::time::Instant,
}

impl TokioRuntime {
    /// Returns a runtime that runs workers on the runtime of `handle`.
    pub fn new(handle: Handle) -> Self {
        Self { threads: handle.metrics().num_workers(), handle, origin: tokio::time::Instant::now() }
    }

    /// Returns the runtime of the caller; `None` outside one.
    pub fn current() -> Option<Self> {
        Handle::try_current().ok().map(Self::new)
    }
}

impl RuntimeHandle for TokioRuntime {
    /// Spawns outside tokio's cooperative budget: a worker has its own time slice, and a future that one actor awaits
    /// must not be forced to yield because another actor used up the budget.
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        drop(self.handle.spawn(unconstrained(task)));
        Ok(())
    }

    fn now(&self) -> Instant {
        let nanos = self.origin.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, at: Instant) -> TaskFuture {
        let at = self.origin + at.since(Instant::ORIGIN);
        // The caller may be on a thread outside the runtime.
        let _context = self.handle.enter();
        Box::pin(tokio::time::sleep_until(at))
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(tokio::task::yield_now())
    }

    /// Reports whether the runtime was built with its time driver.
    ///
    /// tokio reports a missing one only by a panic, so a panic message precedes the error of `start`.
    fn has_timer(&self) -> bool {
        let _context = self.handle.enter();
        catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
    }

    /// Returns the number of worker threads of the runtime; at least two on a machine with two cores, because
    /// `block_in_place` replaces a thread of a multi-threaded runtime. A current-thread runtime gets one.
    fn workers_default(&self) -> NonZeroUsize {
        if self.handle.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return NonZeroUsize::MIN;
        }
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        NonZeroUsize::new(self.threads.max(cores.min(2))).unwrap_or(NonZeroUsize::MIN)
    }

    fn is_host_task(&self) -> bool {
        tokio::task::try_id().is_some()
    }

    /// Reports whether a tokio thread has no active worker; such a thread runs its own tasks, steals from other threads'
    /// queues, and otherwise polls for I/O.
    fn has_free_thread(&self, active: usize) -> bool {
        active < self.threads
    }

    /// Sets no limit, so that only the end of its time slice makes a worker yield.
    ///
    /// At every yield, tokio wakes a thread that finds nothing to do, which costs more than the runs in between. A
    /// slice is short enough for other tasks.
    fn runs_per_slice(&self) -> NonZeroU32 {
        NonZeroU32::MAX
    }

    /// Spawns an empty task. A tokio thread keeps the task it woke last in its LIFO slot, from which other threads cannot
    /// steal; waking another task moves it to the thread's queue, from which they can.
    fn nudge(&self) {
        drop(self.handle.spawn(async {}));
    }
}
