//! The runtime interface: the only connection between actors and the host's executor and clock.

#[cfg(feature = "std")]
mod block;
#[cfg(feature = "embassy")]
pub mod embassy;
#[cfg(feature = "test")]
pub mod test;
#[cfg(feature = "tokio")]
pub mod tokio;

#[cfg(feature = "std")]
pub use block::block_on;

use alloc::boxed::Box;
use core::future::{Future, poll_fn};
use core::num::{NonZeroU32, NonZeroUsize};
use core::pin::Pin;
use core::task::{Context, Poll};

use evenkeel_policy::time::Instant;

/// A boxed future without output: a task to spawn, or a sleep or yield to await.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The services that an actor system needs from a runtime.
pub trait RuntimeHandle: Send + Sync + 'static {
    /// Spawns a task.
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError>;

    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Sleeps until a point in time.
    fn sleep_until(&self, at: Instant) -> TaskFuture;

    /// Yields to the host's other tasks and its I/O.
    fn yield_now(&self) -> TaskFuture;

    /// Reports whether [`sleep_until`](Self::sleep_until) works; a system does not start without it.
    fn has_timer(&self) -> bool {
        true
    }

    /// Returns the number of workers of a system whose configuration does not set one.
    fn workers_default(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    /// Lets another thread run a task that the worker has just woken.
    ///
    /// A worker calls this after waking a task, because it may be about to run a long handler.
    fn nudge(&self) {}

    /// Reports whether the caller is a task of the host, so that a task that it wakes runs soon after it on its thread.
    fn is_host_task(&self) -> bool {
        false
    }

    /// Reports whether the host has a free thread while `active` workers run.
    ///
    /// While it has one, workers extend their slices (the time between two yields to the host): the free thread runs
    /// the host's other tasks and its I/O.
    fn has_free_thread(&self, active: usize) -> bool {
        let _ = active;
        false
    }

    /// Returns the maximum number of actor runs in a slice; a slice also ends after its time.
    fn runs_per_slice(&self) -> NonZeroU32 {
        RUNS_PER_SLICE
    }

    /// Returns the number of messages after which an actor yields to other actors.
    fn messages_per_run(&self) -> NonZeroU32 {
        MESSAGES_PER_RUN
    }
}

const RUNS_PER_SLICE: NonZeroU32 = NonZeroU32::new(61).expect("61 is not zero");
const MESSAGES_PER_RUN: NonZeroU32 = NonZeroU32::new(64).expect("64 is not zero");

/// Returns a future from a poll function.
pub(crate) fn wait_with<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> impl Future<Output = T> {
    poll_fn(poll)
}

/// Error of [`RuntimeHandle::spawn`]: the runtime accepts no more tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runtime accepts no more tasks")]
pub struct RuntimeSpawnError;
