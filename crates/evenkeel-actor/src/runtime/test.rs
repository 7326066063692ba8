//! A runtime for tests: virtual time, one thread, and an order of steps that a seed repeats.
//!
//! Each worker of a system is a task of this runtime, and so is its clock. A step polls one task that
//! can go on, chosen by the seed; time stands still until none can, and then moves to the next sleep's
//! end. Bound: at most [`TASKS_MAX`] tasks, and a call that drives them takes at most `steps_max`
//! steps, so that a livelock ends in words.

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

/// The most tasks that may wait at a time.
pub const TASKS_MAX: usize = 65_536;

/// The settings of a [`TestRuntime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestOptions {
    /// What decides whose turn it is.
    pub seed: u64,
    /// Steps that one call may take.
    pub steps_max: u64,
    /// Runs after which a worker lets the other workers go first.
    pub runs_per_slice: NonZeroU32,
    /// Messages after which an actor lets other actors go first.
    pub messages_per_run: NonZeroU32,
}

impl TestOptions {
    /// A million steps, a slice of one run, and runs of 1, 2, 5 or 64 messages, as the seed says.
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

/// Runs tasks on the thread that asks it to, in an order that the seed repeats.
///
/// Dropped while a test panics, it prints the seed. Dropped otherwise, it first runs whatever can go
/// on, so that a system that was dropped before it comes to its end.
#[derive(Debug)]
pub struct TestRuntime {
    handle: TestHandle,
    steps_max: u64,
}

/// What a system of actors, or a handler, sees of a [`TestRuntime`].
#[derive(Clone, Debug)]
pub struct TestHandle {
    schedule: Arc<Schedule>,
    runs_per_slice: NonZeroU32,
    messages_per_run: NonZeroU32,
}

impl TestRuntime {
    /// Makes a runtime whose order is that of `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with(TestOptions::new(seed))
    }

    /// Makes a runtime with these settings.
    pub fn with(options: TestOptions) -> Self {
        let TestOptions { seed, steps_max, runs_per_slice, messages_per_run } = options;
        let schedule = Arc::new(Schedule::new(seed));
        Self { handle: TestHandle { schedule, runs_per_slice, messages_per_run }, steps_max }
    }

    /// Hands out what [`ActorSystemRunner::start`](crate::ActorSystemRunner::start) takes.
    pub fn handle(&self) -> TestHandle {
        self.handle.clone()
    }

    /// Names the seed.
    pub fn seed(&self) -> u64 {
        self.schedule().seed()
    }

    /// Reads the virtual clock.
    pub fn now(&self) -> Instant {
        self.schedule().now()
    }

    /// Counts the tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.schedule().tasks()
    }

    /// Runs until nothing can go on at the present time.
    ///
    /// # Panics
    /// After `steps_max` steps.
    #[track_caller]
    pub fn run_until_idle(&self) {
        let mut steps = self.steps();
        or_panic(self.run_idle(&mut steps));
    }

    /// Lets time pass, from sleep to sleep, and runs at each what can go on.
    ///
    /// # Panics
    /// After `steps_max` steps.
    #[track_caller]
    pub fn advance(&self, span: Duration) {
        self.run_until(self.now() + span, || None::<()>);
    }

    /// Lets time pass until `find` finds something, or `until` is reached.
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

    /// Runs until `future` is done; time passes whenever everything sleeps.
    ///
    /// # Panics
    /// Where [`TestRuntime::try_block_on`] has an error.
    #[track_caller]
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        or_panic(self.try_block_on(future))
    }

    /// Runs until `future` is done, or until it is known that it never will be.
    pub fn try_block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Stuck> {
        let mut future = pin!(future);
        let flag = self.schedule().main();
        let waker = Waker::from(flag.clone());
        let mut cx = Context::from_waker(&waker);
        let mut steps = self.steps();
        loop {
            match self.schedule().next_turn() {
                Some(NextPoll::Main) => {
                    steps.take()?;
                    flag.lower();
                    if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                        return Ok(output);
                    }
                }
                Some(NextPoll::Task(turn)) => {
                    steps.take()?;
                    self.schedule().poll(turn);
                }
                None if self.schedule().move_to_next_sleep(Instant::FAR_FUTURE) => {}
                None => return Err(Stuck::Deadlock(self.account())),
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
        while let Some(turn) = self.schedule().next_turn() {
            steps.take()?;
            if let NextPoll::Task(turn) = turn {
                self.schedule().poll(turn);
            }
        }
        Ok(())
    }

    fn account(&self) -> RuntimeStatus {
        RuntimeStatus { seed: self.seed(), now: self.now(), tasks: self.tasks() }
    }
}

impl Drop for TestRuntime {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("test runtime: {}", self.account());
        } else {
            // Whoever wants to know of a livelock drives the runtime themselves.
            let _stuck = self.run_idle(&mut self.steps());
        }
        self.schedule().close();
    }
}

/// The steps left to a call.
struct Steps<'a> {
    left: u64,
    runtime: &'a TestRuntime,
}

impl Steps<'_> {
    fn take(&mut self) -> Result<(), Stuck> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let steps_max = self.runtime.steps_max;
                Err(Stuck::Livelock { steps_max, account: self.runtime.account() })
            }
        }
    }
}

/// Why a runtime gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// Nothing can go on, and nothing sleeps that could be woken by time.
    Deadlock(RuntimeStatus),
    /// Something goes on for ever.
    Livelock {
        /// As many steps as were taken.
        steps_max: u64,
        /// Where it was.
        account: RuntimeStatus,
    },
}

/// Where a runtime is, and how to get there again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The seed.
    pub seed: u64,
    /// The virtual time.
    pub now: Instant,
    /// Tasks that have not ended.
    pub tasks: usize,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock(account) => {
                write!(f, "deadlock: nothing can go on and nothing sleeps ({account})")
            }
            Self::Livelock { steps_max, account } => {
                write!(f, "livelock: no end after {steps_max} steps ({account})")
            }
        }
    }
}

impl core::error::Error for Stuck {}

impl fmt::Display for RuntimeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, now, tasks } = self;
        write!(f, "seed {seed}, at {:?}, {tasks} tasks", now.since(Instant::ORIGIN))
    }
}

/// A runtime for tests that gives up fails the test.
#[track_caller]
#[expect(clippy::panic, reason = "this is how a test kit says what it found")]
fn or_panic<T>(outcome: Result<T, Stuck>) -> T {
    match outcome {
        Ok(value) => value,
        Err(stuck) => panic!("{stuck}"),
    }
}

impl TestHandle {
    /// Lets virtual time pass while nobody else runs, as in a handler that takes `span`.
    pub fn elapse(&self, span: Duration) {
        self.schedule.move_to(self.schedule.now() + span);
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
