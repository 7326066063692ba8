//! A deterministic runtime for tests: virtual time, one thread, and a poll order that a seed reproduces.
//!
//! Each worker of a system is a task of this runtime, and so is its timer task. A step polls one runnable task, chosen
//! by the seed; time stands still until no task is runnable, then jumps to the end of the next sleep. Limits: at most
//! [`TASKS_MAX`] tasks, and at most `steps_max` steps per call, so that a livelock fails with a message.

mod probe;
mod random;
mod schedule;
mod sleep;
#[cfg(test)]
mod tests;

pub use probe::{Probe, ProbeHost};

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::future::Future;
use core::num::NonZeroU32;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use evenkeel_policy::time::Instant;

use super::{RuntimeHandle, RuntimeSpawnError, TaskFuture};
use schedule::{NextPoll, Schedule};
use sleep::{Sleep, Yield};

/// The maximum number of tasks.
pub const TASKS_MAX: usize = 65_536;

/// The settings of a [`TestRuntime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestOptions {
    /// The seed of the poll order.
    pub seed: u64,
    /// The maximum number of steps of one call.
    pub steps_max: u64,
    /// The number of runs after which a worker yields to other workers.
    pub runs_per_slice: NonZeroU32,
    /// The number of messages after which an actor yields to other actors.
    pub messages_per_run: NonZeroU32,
}

impl TestOptions {
    /// Returns a million steps, slices of one run, and runs of 1, 2, 5 or 64 messages, depending on the seed.
    pub fn new(seed: u64) -> Self {
        let messages = match seed % 4 {
            0 => 1,
            1 => 2,
            2 => 5,
            _ => 64,
        };
        Self {
            seed,
            steps_max: 1_000_000,
            runs_per_slice: NonZeroU32::MIN,
            messages_per_run: NonZeroU32::MIN.saturating_add(messages - 1),
        }
    }
}

/// A runtime that polls its tasks on the calling thread, in an order that the seed reproduces.
///
/// Dropping it while a test panics prints the seed. Dropping it otherwise first runs all runnable tasks, which lets a
/// system that was dropped earlier finish its shutdown.
#[derive(Debug)]
pub struct TestRuntime {
    handle: TestHandle,
    steps_max: u64,
}

/// The handle of a [`TestRuntime`] for an actor system or a handler.
#[derive(Clone, Debug)]
pub struct TestHandle {
    schedule: Arc<Schedule>,
    runs_per_slice: NonZeroU32,
    messages_per_run: NonZeroU32,
}

impl TestRuntime {
    /// Returns a runtime with the default options for `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with(TestOptions::new(seed))
    }

    /// Returns a runtime with these options.
    pub fn with(options: TestOptions) -> Self {
        let TestOptions { seed, steps_max, runs_per_slice, messages_per_run } = options;
        let schedule = Arc::new(Schedule::new(seed));
        Self { handle: TestHandle { schedule, runs_per_slice, messages_per_run }, steps_max }
    }

    /// Returns the handle for [`ActorSystemRunner::start`](crate::ActorSystemRunner::start).
    pub fn handle(&self) -> TestHandle {
        self.handle.clone()
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.schedule().seed()
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.schedule().now()
    }

    /// Returns the number of tasks that have not completed.
    pub fn tasks(&self) -> usize {
        self.schedule().tasks()
    }

    /// Runs until no task is runnable at the current time.
    ///
    /// # Panics
    /// After `steps_max` steps.
    #[track_caller]
    pub fn run_until_idle(&self) {
        let mut steps = self.steps();
        or_panic(self.run_idle(&mut steps));
    }

    /// Advances time by `duration`, from sleep to sleep, and runs the runnable tasks at each.
    ///
    /// # Panics
    /// After `steps_max` steps.
    #[track_caller]
    pub fn advance(&self, duration: Duration) {
        self.run_until(self.now() + duration, || None::<()>);
    }

    /// Advances time until `find` returns something, or `until` is reached.
    #[track_caller]
    fn run_until<T>(&self, until: Instant, mut find: impl FnMut() -> Option<T>) -> Option<T> {
        let mut steps = self.steps();
        loop {
            or_panic(self.run_idle(&mut steps));
            let found = find();
            if found.is_some() {
                return found;
            }
            if !self.schedule().move_to_next_sleep(until) {
                self.schedule().move_to(until);
                return None;
            }
        }
    }

    /// Runs until `future` completes; time advances whenever every task sleeps.
    ///
    /// # Panics
    /// If [`TestRuntime::try_block_on`] returns an error.
    #[track_caller]
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        or_panic(self.try_block_on(future))
    }

    /// Runs until `future` completes; returns an error on a deadlock or after `steps_max` steps.
    pub fn try_block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Stuck> {
        let mut future = pin!(future);
        let flag = self.schedule().main_flag();
        let waker = Waker::from(flag.clone());
        let mut cx = Context::from_waker(&waker);
        let mut steps = self.steps();
        loop {
            match self.schedule().next_poll() {
                Some(NextPoll::Main) => {
                    steps.spend()?;
                    flag.clear();
                    if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                        return Ok(output);
                    }
                }
                Some(NextPoll::Task(task)) => {
                    steps.spend()?;
                    self.schedule().poll(task);
                }
                None if self.schedule().move_to_next_sleep(Instant::FAR_FUTURE) => {}
                None => return Err(Stuck::Deadlock(self.status())),
            }
        }
    }

    fn schedule(&self) -> &Arc<Schedule> {
        &self.handle.schedule
    }

    fn steps(&self) -> Steps<'_> {
        Steps { left: self.steps_max, runtime: self }
    }

    fn run_idle(&self, steps: &mut Steps<'_>) -> Result<(), Stuck> {
        while let Some(next) = self.schedule().next_poll() {
            steps.spend()?;
            if let NextPoll::Task(task) = next {
                self.schedule().poll(task);
            }
        }
        Ok(())
    }

    fn status(&self) -> RuntimeStatus {
        RuntimeStatus { seed: self.seed(), now: self.now(), tasks: self.tasks() }
    }
}

impl Drop for TestRuntime {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("test runtime: {}", self.status());
        } else {
            // A livelock is only reported by the calls that drive the runtime.
            let _stuck = self.run_idle(&mut self.steps());
        }
        self.schedule().close();
    }
}

/// The step budget of a call.
struct Steps<'a> {
    left: u64,
    runtime: &'a TestRuntime,
}

impl Steps<'_> {
    fn spend(&mut self) -> Result<(), Stuck> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let steps_max = self.runtime.steps_max;
                Err(Stuck::Livelock { steps_max, status: self.runtime.status() })
            }
        }
    }
}

/// Reason a [`TestRuntime`] gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// No task is runnable, and none sleeps.
    #[error("deadlock: no task is runnable and none sleeps ({0})")]
    Deadlock(RuntimeStatus),
    /// The step limit was reached.
    #[error("livelock: not finished after {steps_max} steps ({status})")]
    Livelock {
        /// The limit.
        steps_max: u64,
        /// The state of the runtime.
        status: RuntimeStatus,
    },
}

/// The state of a runtime, with the seed that reproduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The seed.
    pub seed: u64,
    /// The virtual time.
    pub now: Instant,
    /// The number of tasks that have not completed.
    pub tasks: usize,
}

impl fmt::Display for RuntimeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, now, tasks } = self;
        write!(f, "seed {seed}, at {:?}, {tasks} tasks", now.since(Instant::ORIGIN))
    }
}

/// Fails the test if the runtime gave up.
#[track_caller]
#[expect(clippy::panic, reason = "a test runtime reports by panicking")]
fn or_panic<T>(outcome: Result<T, Stuck>) -> T {
    match outcome {
        Ok(value) => value,
        Err(stuck) => panic!("{stuck}"),
    }
}

impl TestHandle {
    /// Advances virtual time without running any task, to simulate a handler that takes `duration`.
    pub fn elapse(&self, duration: Duration) {
        self.schedule.move_to(self.schedule.now() + duration);
    }
}

impl RuntimeHandle for TestHandle {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        self.schedule.spawn(task)
    }

    fn now(&self) -> Instant {
        self.schedule.now()
    }

    fn sleep_until(&self, at: Instant) -> TaskFuture {
        Box::pin(Sleep::new(self.schedule.clone(), at))
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(Yield::default())
    }

    fn runs_per_slice(&self) -> NonZeroU32 {
        self.runs_per_slice
    }

    fn messages_per_run(&self) -> NonZeroU32 {
        self.messages_per_run
    }
}
