//! Workers as tokio tasks, guests among others.

use alloc::boxed::Box;
use core::num::NonZeroU32;

use evenkeel_policy::time::Instant;
use tokio::runtime::Handle;
use tokio::task::unconstrained;

use super::{RuntimeHandle, RuntimeSpawnError, TaskFuture};

/// A tokio runtime; it needs its time driver (`enable_time` or `enable_all`).
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    handle: Handle,
    threads: usize,
    origin: tokio::time::Instant,
}

impl TokioRuntime {
    /// Runs workers on the runtime behind `handle`.
    pub fn new(handle: Handle) -> Self {
        Self { threads: handle.metrics().num_workers(), handle, origin: tokio::time::Instant::now() }
    }

    /// Runs workers on the runtime the caller is in; `None` outside of one.
    pub fn current() -> Option<Self> {
        Handle::try_current().ok().map(Self::new)
    }
}

impl RuntimeHandle for TokioRuntime {
    /// Polls outside of tokio's cooperative budget: a worker yields by its own measure, and a future
    /// that an actor waits for must not be told to come back at once because another used the budget up.
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
        Box::pin(tokio::time::sleep_until(at))
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(tokio::task::yield_now())
    }

    /// A thread of tokio's without a worker of ours on it serves its own tasks, takes those that wait in other threads'
    /// queues, and waits for input and output when there are none.
    fn has_room_beside(&self, working: usize) -> bool {
        working < self.threads
    }

    /// None but the slice's own end: with every pause tokio wakes a thread that finds nothing, which costs more
    /// than the runs in between, and a slice is short enough for whoever waits.
    fn runs_per_slice(&self) -> NonZeroU32 {
        NonZeroU32::MAX
    }

    /// What a tokio thread wakes last it keeps to itself, and no other thread can take it; something
    /// that is woken after it sends it to the queue, where they can.
    fn nudge(&self) {
        drop(self.handle.spawn(async {}));
    }
}
