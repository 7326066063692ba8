//! Test support: a system without running workers, whose cells the test runs itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::num::NonZeroUsize;
use core::task::Waker;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use evenkeel_policy::time::Instant;

use crate::guardian::{Backoff, Supervision};
use crate::runtime::{RuntimeHandle, RuntimeSpawnError, TaskFuture};
use crate::sync::Arc as SharedArc;
use crate::system::Core;
use crate::worker_local::WorkerLocal;
use crate::*;

/// A system that runs nothing by itself.
pub(crate) struct Rig {
    pub(crate) system: ReadyQueueScheduler,
    runtime: IdleRuntime,
}

impl Drop for Rig {
    /// Ends the system, which the tasks of its runtime reference.
    fn drop(&mut self) {
        self.runtime.drop_tasks();
    }
}

impl Rig {
    pub(crate) fn new(workers: usize) -> Self {
        Self::with_config(ActorSystemConfig {
            workers: NonZeroUsize::new(workers),
            supervision: Supervision::default().with_backoff(Backoff::NONE),
            ..ActorSystemConfig::default()
        })
    }

    pub(crate) fn with_config(config: ActorSystemConfig) -> Self {
        let runtime = IdleRuntime::default();
        Self { system: ActorSystemRunner::new(config).start(runtime.clone()).unwrap(), runtime }
    }

    pub(crate) fn core(&self) -> &SharedArc<Core> {
        self.system.core()
    }

    /// Counts the nudges of the host.
    pub(crate) fn nudges(&self) -> u32 {
        self.runtime.nudges.load(Ordering::Relaxed)
    }

    /// Claims one of the workers for the test.
    pub(crate) fn worker(&self, id: usize) -> WorkerLocal {
        let queue = self.core().coordinator.queues.claim(id).unwrap();
        self.core().coordinator.idle.begin_search();
        WorkerLocal::new(self.core().clone(), id, queue)
    }

    /// Creates an actor; its first run is queued.
    pub(crate) fn spawn(&self) -> ActorRef<SumMsg> {
        self.system.spawn(&Props::new(Sum::default).build()).unwrap()
    }
}

/// A runtime that polls no task, whose clock stands still, and of which the test is a task.
#[derive(Clone, Default)]
pub(crate) struct IdleRuntime {
    tasks: Arc<std::sync::Mutex<Vec<TaskFuture>>>,
    nudges: Arc<AtomicU32>,
    has_left_task: Arc<AtomicBool>,
}

impl IdleRuntime {
    pub(crate) fn drop_tasks(&self) {
        let tasks = core::mem::take(&mut *self.tasks.lock().unwrap());
        drop(tasks);
    }

    /// Makes the test a plain thread to this runtime.
    pub(crate) fn leave_task(&self) {
        self.has_left_task.store(true, Ordering::Relaxed);
    }
}

impl RuntimeHandle for IdleRuntime {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        self.tasks.lock().unwrap().push(task);
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN
    }

    fn sleep_until(&self, _at: Instant) -> TaskFuture {
        Box::pin(core::future::pending())
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(core::future::pending())
    }

    fn is_host_task(&self) -> bool {
        !self.has_left_task.load(Ordering::Relaxed)
    }

    fn nudge(&self) {
        self.nudges.fetch_add(1, Ordering::Relaxed);
    }
}

/// Actor that adds up numbers.
#[derive(Default)]
pub(crate) struct Sum(u64);

pub(crate) enum SumMsg {
    Add(u64),
    /// Awaits the future and handles its output.
    Await(MessageFuture<SumMsg>),
    Fail,
    Read(Reply<u64>),
}

impl Actor for Sum {
    type Msg = SumMsg;

    fn receive(&mut self, message: SumMsg, _ctx: &mut Context<'_, Self>) -> HandlerResult<SumMsg> {
        match message {
            SumMsg::Add(number) => self.0 += number,
            SumMsg::Await(future) => return Ok(Flow::Await(future)),
            SumMsg::Fail => return Err(ActorError::new("failed on request")),
            SumMsg::Read(reply) => drop(reply.send(self.0)),
        }
        Ok(Flow::Continue)
    }
}

/// Waker that counts its wake-ups.
#[derive(Default)]
pub(crate) struct WakeCounter(AtomicU32);

impl WakeCounter {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let wakes = Arc::new(Self::default());
        let waker = Waker::from(wakes.clone());
        (wakes, waker)
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
