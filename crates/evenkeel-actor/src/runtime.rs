//! Where workers run: the one seam between actors and the world.

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
use core::fmt;
use core::future::{Future, poll_fn};
use core::num::NonZeroU32;
use core::pin::Pin;
use core::task::{Context, Poll};

use evenkeel_policy::time::Instant;

/// A task a runtime runs, or something it waits for.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a runtime offers to a system of actors.
pub trait RuntimeHandle: Send + Sync + 'static {
    /// Runs a task until it ends.
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError>;

    /// Reads the clock.
    fn now(&self) -> Instant;

    /// Waits until a point in time.
    fn sleep_until(&self, at: Instant) -> TaskFuture;

    /// Lets everybody else go first, the host's input and output included.
    fn yield_now(&self) -> TaskFuture;

    /// Sees to it that a task which a worker has just woken need not wait for that worker's thread.
    ///
    /// The worker may be about to run a handler that takes long.
    fn nudge(&self) {}

    /// Whether the host has a thread for others while this many workers work.
    ///
    /// A worker whose slice is over goes on for a while then: whoever waits has another thread, input and output
    /// included.
    fn has_room_beside(&self, working: usize) -> bool {
        let _ = working;
        false
    }

    /// How many runs a worker makes before the host's other tasks have a turn.
    fn runs_per_slice(&self) -> NonZeroU32 {
        RUNS_PER_SLICE
    }

    /// How many messages an actor handles before other actors have a turn.
    fn messages_per_run(&self) -> NonZeroU32 {
        MESSAGES_PER_RUN
    }
}

const RUNS_PER_SLICE: NonZeroU32 = NonZeroU32::new(61).expect("61 is not zero");
const MESSAGES_PER_RUN: NonZeroU32 = NonZeroU32::new(64).expect("64 is not zero");

/// Waits with a function that is polled; a future without a name of its own.
pub(crate) fn wait_with<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> impl Future<Output = T> {
    poll_fn(poll)
}

/// A runtime takes no more tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeSpawnError;

impl fmt::Display for RuntimeSpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the runtime takes no more tasks")
    }
}

impl core::error::Error for RuntimeSpawnError {}
