//! Loom models of the concurrent core: loom runs each in every interleaving within a preemption bound.
//!
//! The models use the real state word, mailbox queues, slab, oneshot, LIFO slot and idle workers, and the steps of a
//! run that clear a flag and then look for work ([`super::clear_then_look`]). The code around them mirrors the steps of
//! the invoker, the coordinator and the workers, in the same order.
//!
//! Limits: preemptions per execution, set by each model and overridden by `LOOM_MAX_PREEMPTIONS`.

mod broken_protocols;
mod capacity;
mod lifo_slot;
mod mailbox;
mod parking;
mod replies;
mod returned_refs;
mod slot_reuse;
mod stopping;
mod worker_exit;

use alloc::collections::VecDeque;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::num::NonZeroUsize;
use core::task::Waker;
use std::sync::Arc as StdArc;

use loom::sync::{Condvar, Mutex};

use super::clear_then_look;
use super::state::{CellState, Notify, ReleaseOutcome, SUSPENDED, SYSTEM, USER, WAITERS, WOKEN};
use crate::mailbox::{MailboxOptions, MailboxQueues, OverflowStrategy, PushResult};
use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};

/// Runs a model in every interleaving with at most `preemptions` preemptions.
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}

/// A message that suspends its cell until `ModelCommand::Resume`.
const SUSPEND: u32 = 1000;

/// System message of a [`ModelCell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelCommand {
    Resume,
    Stop,
}

/// A cell without a worker: the thread that acquires the run permit runs it.
struct ModelCell {
    state: CellState,
    queues: MailboxQueues<u32, ModelCommand>,
    /// Stands for the state that a future's poll would find; all accesses are relaxed.
    external: AtomicU32,
    low_watermark: usize,
    dequeue: Dequeue,
    runner: UnsafeCell<RunnerState>,
}

/// Order in which the runner takes user messages.
#[derive(Clone, Copy)]
enum Dequeue {
    /// Like the runtime's invoker, in batches.
    Batches,
    /// Like a custom invoker, one by one from the shared half.
    OneByOne,
}

// SAFETY: the runner state is accessed only under the run permit, which is what the models check.
unsafe impl Send for ModelCell {}
// SAFETY: as above.
unsafe impl Sync for ModelCell {}

#[derive(Clone, Debug, Default)]
struct RunnerState {
    private: VecDeque<u32>,
    handled: Vec<u32>,
    dead_lettered: Vec<u32>,
    signals: u32,
    commands: u32,
    has_waiters: bool,
    suspended: bool,
    resumed_early: bool,
}

impl ModelCell {
    fn new(capacity: usize) -> Arc<Self> {
        Self::with_dequeue(capacity, Dequeue::Batches)
    }

    fn with_dequeue(capacity: usize, dequeue: Dequeue) -> Arc<Self> {
        let options = MailboxOptions {
            capacity: NonZeroUsize::new(capacity).expect("the capacity is not zero"),
            overflow: OverflowStrategy::Reject,
            reserve_for_system: 0,
            high_watermark: capacity,
            low_watermark: capacity / 2,
        };
        Arc::new(Self {
            state: CellState::new(),
            queues: MailboxQueues::new(&options),
            external: AtomicU32::new(0),
            low_watermark: options.low_watermark,
            dequeue,
            runner: UnsafeCell::new(RunnerState::default()),
        })
    }

    /// Mirrors `ActorRef::try_tell`.
    fn tell(&self, message: u32) -> PushResult<u32> {
        let pushed = self.queues.push(message);
        if pushed == PushResult::Queued {
            self.run_if_scheduled(self.state.raise(USER));
        }
        pushed
    }

    /// Mirrors `ActorRef::send`, on a thread of its own.
    fn send(&self, message: u32, test_waker: &StdArc<TestWaker>) -> PushResult<u32> {
        let waker = Waker::from(test_waker.clone());
        let mut place = None;
        loop {
            match self.queues.push(message) {
                PushResult::Queued => {
                    self.run_if_scheduled(self.state.raise(USER));
                    return PushResult::Queued;
                }
                PushResult::Full(_) if self.queues.wait_for_room(&mut place, &waker, &self.state) => {
                    test_waker.wait();
                }
                pushed => return pushed,
            }
        }
    }

    /// Mirrors `CellRef::tell_system`.
    fn command(&self, command: ModelCommand) -> Result<(), ModelCommand> {
        self.queues.push_system(command)?;
        self.run_if_scheduled(self.state.raise(SYSTEM));
        Ok(())
    }

    /// Mirrors a future that becomes ready: changes its state, then wakes.
    fn signal(&self) {
        self.external.fetch_add(1, Ordering::Relaxed);
        self.run_if_scheduled(self.state.raise_always(WOKEN));
    }

    fn run_if_scheduled(&self, notify: Notify) {
        if notify == Notify::Schedule {
            self.run();
        }
    }

    /// Runs the cell until the run permit is released.
    fn run(&self) {
        loop {
            // SAFETY: the caller holds the run permit; loom fails the model on concurrent access.
            let step = self.runner.with_mut(|runner| self.run_once(unsafe { &mut *runner }));
            match step {
                Step::Finish { flags } if self.state.release(flags) == ReleaseOutcome::Kept => {}
                Step::Finish { .. } | Step::Ended => return,
            }
        }
    }

    /// Mirrors one run of the invoker.
    fn run_once(&self, runner: &mut RunnerState) -> Step {
        loop {
            let flags = self.state.flags_relaxed();
            if flags & WAITERS != 0 {
                self.wake_waiters(runner);
            }
            if flags & SYSTEM != 0 {
                let handle = |command| self.process_command(command, runner);
                if clear_then_look::process_system(&self.state, &self.queues, handle).is_some() {
                    self.terminate(runner);
                    return Step::Ended;
                }
            }
            if flags & WOKEN != 0 {
                let poll = |_before| self.external.load(Ordering::Relaxed);
                runner.signals = clear_then_look::process_wake(&self.state, poll);
            }
            let message = match self.dequeue {
                _ if runner.suspended => None,
                Dequeue::Batches => clear_then_look::pop_user(&self.state, &self.queues, &mut runner.private),
                Dequeue::OneByOne if self.queues.lower_if_empty(&self.state) => None,
                Dequeue::OneByOne => self.queues.pop_oldest(&self.state),
            };
            let Some(message) = message else {
                return self.finish(runner);
            };
            runner.handled.push(message);
            if message == SUSPEND && !core::mem::take(&mut runner.resumed_early) {
                runner.suspended = true;
                return self.finish(runner);
            }
        }
    }

    fn finish(&self, runner: &mut RunnerState) -> Step {
        self.wake_waiters(runner);
        let pending = if runner.private.is_empty() { 0 } else { USER };
        Step::Finish { flags: if runner.suspended { SUSPENDED | pending } else { 0 } }
    }

    fn process_command(&self, command: ModelCommand, runner: &mut RunnerState) -> Option<Step> {
        runner.commands += 1;
        match command {
            ModelCommand::Resume if runner.suspended => {
                runner.suspended = false;
                None
            }
            ModelCommand::Resume => {
                runner.resumed_early = true;
                None
            }
            ModelCommand::Stop => Some(Step::Ended),
        }
    }

    fn terminate(&self, runner: &mut RunnerState) {
        self.queues.close().into_iter().for_each(Waker::wake);
        runner.dead_lettered.extend(runner.private.drain(..).chain(self.queues.drain()));
        drop(self.queues.close_system());
        self.state.mark_dead();
    }

    fn wake_waiters(&self, runner: &mut RunnerState) {
        clear_then_look::wake_waiters(&self.state, &self.queues, &mut runner.has_waiters, self.low_watermark);
    }

    /// Reads the runner state after all threads are done.
    fn runner(&self) -> RunnerState {
        // SAFETY: loom fails the model if another thread changes it meanwhile, or did so without
        // synchronization.
        self.runner.with(|runner| unsafe { (*runner).clone() })
    }

    /// Asserts that exactly these messages were handled, and each thread's messages in the order sent.
    fn assert_handled(&self, by_thread: &[&[u32]]) {
        let handled = self.runner().handled;
        let mut left: Vec<&[u32]> = by_thread.to_vec();
        for message in &handled {
            let from = left.iter_mut().find(|sent| sent.first() == Some(message));
            let sent = from.unwrap_or_else(|| panic!("reordered or handled twice: {handled:?}"));
            *sent = &sent[1..];
        }
        assert!(left.iter().all(|sent| sent.is_empty()), "lost wake-up: only {handled:?} handled");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Finish { flags: u32 },
    Ended,
}

/// A waker that a thread can wait for; loom reports a wait that never ends as a deadlock.
#[derive(Default)]
struct TestWaker {
    log: Mutex<WakeLog>,
    woken: Condvar,
}

#[derive(Clone, Copy, Default)]
struct WakeLog {
    pending: bool,
    total: u32,
}

impl TestWaker {
    fn new() -> StdArc<Self> {
        StdArc::default()
    }

    /// Waits until it was woken since the last wait.
    fn wait(&self) {
        let mut log = self.log.lock().expect("no thread panics with the lock");
        while !log.pending {
            log = self.woken.wait(log).expect("no thread panics with the lock");
        }
        log.pending = false;
    }

    /// Returns the number of wake-ups so far.
    fn wake_count(&self) -> u32 {
        self.log.lock().expect("no thread panics with the lock").total
    }
}

impl Wake for TestWaker {
    fn wake(self: StdArc<Self>) {
        let mut log = self.log.lock().expect("no thread panics with the lock");
        *log = WakeLog { pending: true, total: log.total + 1 };
        self.woken.notify_one();
    }
}
