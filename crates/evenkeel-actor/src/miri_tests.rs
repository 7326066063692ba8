//! End-to-end tests on OS threads, small enough to run under Miri.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use evenkeel_policy::time::Instant;

use crate::guardian::{Backoff, Supervision};
use crate::runtime::{RuntimeHandle, RuntimeSpawnError, TaskFuture, block_on};
use crate::test_rig::{Sum, SumMsg};
use crate::*;

/// A runtime with a thread per task, and a clock that advances when it is read.
#[derive(Clone, Default)]
struct ThreadRuntime(Arc<Shared>);

#[derive(Default)]
struct Shared {
    threads: Mutex<Vec<JoinHandle<()>>>,
    nanos: AtomicU64,
}

impl RuntimeHandle for ThreadRuntime {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        self.0.threads.lock().unwrap().push(thread::spawn(move || block_on(task)));
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.nanos.fetch_add(1_000, Ordering::Relaxed))
    }

    /// Never completes: no test here depends on a timer.
    fn sleep_until(&self, _at: Instant) -> TaskFuture {
        Box::pin(core::future::pending())
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(async { thread::yield_now() })
    }
}

/// Two workers, or one without `std`.
const WORKERS: usize = if cfg!(feature = "std") { 2 } else { 1 };

/// Runs `scenario` in a system with `workers` workers, then joins the workers and the timer driver; fails if one
/// of them panicked.
fn run_scenario(workers: usize, scenario: impl FnOnce(&ReadyQueueScheduler)) {
    let runtime = ThreadRuntime::default();
    let config = ActorSystemConfig {
        workers: NonZeroUsize::new(workers),
        supervision: Supervision::default().with_backoff(Backoff::NONE),
        ..ActorSystemConfig::default()
    };
    let system = ActorSystemRunner::new(config).start(runtime.clone()).unwrap();
    scenario(&system);
    drop(system);
    let threads = core::mem::take(&mut *runtime.0.threads.lock().unwrap());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn spawn_sum(system: &ReadyQueueScheduler) -> ActorRef<SumMsg> {
    system.spawn(&Props::new(Sum::default).build()).unwrap()
}

#[test]
fn no_message_from_two_senders_is_lost() {
    run_scenario(WORKERS, |system| {
        let actor = spawn_sum(system);
        let other = actor.clone();
        let sender = thread::spawn(move || (0..20).for_each(|_| other.tell(SumMsg::Add(1))));
        for _ in 0..20 {
            actor.tell(SumMsg::Add(1));
            thread::yield_now();
        }
        sender.join().unwrap();
        assert_eq!(block_on(actor.ask(SumMsg::Read)), Ok(40));
    });
}

/// Miri reports a data race between the runs of one actor.
#[test]
fn actors_may_run_on_a_different_worker_for_each_ask() {
    run_scenario(WORKERS, |system| {
        let actors = [spawn_sum(system), spawn_sum(system)];
        for round in 1..=10 {
            for actor in &actors {
                actor.tell(SumMsg::Add(1));
                assert_eq!(block_on(actor.ask(SumMsg::Read)), Ok(round));
            }
        }
    });
}

#[test]
fn no_message_is_lost_while_the_number_of_workers_changes() {
    run_scenario(WORKERS, |system| {
        let actor = spawn_sum(system);
        let other = actor.clone();
        let sender = thread::spawn(move || (0..20).for_each(|_| other.tell(SumMsg::Add(1))));
        for workers in [3, 1, 2, 1, 3] {
            system.set_workers(NonZeroUsize::new(workers).unwrap()).unwrap();
            (0..4).for_each(|_| actor.tell(SumMsg::Add(1)));
            thread::yield_now();
        }
        sender.join().unwrap();
        assert_eq!(block_on(actor.ask(SumMsg::Read)), Ok(40));
    });
}

/// Miri's leak checker is the assertion.
#[test]
fn a_stopped_actor_is_freed_with_its_last_reference() {
    run_scenario(WORKERS, |system| {
        for mode in [StopMode::Now, StopMode::Drained, StopMode::Now, StopMode::Drained] {
            let actor = spawn_sum(system);
            let other = actor.clone();
            let sender = thread::spawn(move || (0..3).for_each(|_| other.tell(SumMsg::Add(1))));
            actor.tell(SumMsg::Add(1));
            actor.stop(mode);
            drop(actor);
            sender.join().unwrap();
        }
    });
}

#[test]
fn a_future_wakes_its_actor_from_another_thread() {
    run_scenario(WORKERS, |system| {
        let first = spawn_sum(system);
        let second = spawn_sum(system);
        for _ in 0..3 {
            let target = second.clone();
            let reply = async move { SumMsg::Add(1 + target.ask(SumMsg::Read).await.unwrap()) };
            first.tell(SumMsg::Await(Box::pin(reply)));
            second.tell(SumMsg::Add(1));
        }
        // The actor is suspended while it awaits, so the ask is handled after the last future has completed.
        assert!(block_on(first.ask(SumMsg::Read)).unwrap() >= 3);
    });
}

#[test]
fn a_spawned_task_can_ask_an_actor() {
    run_scenario(WORKERS, |system| {
        let actor = spawn_sum(system);
        let target = actor.clone();
        let (done, received) = std::sync::mpsc::channel();
        let task = async move {
            for _ in 0..5 {
                target.tell(SumMsg::Add(1));
                done.send(target.ask(SumMsg::Read).await.unwrap()).unwrap();
            }
        };
        system.spawn_task(task).unwrap();
        assert_eq!(received.iter().take(5).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_restart_keeps_the_mailbox() {
    run_scenario(WORKERS, |system| {
        let actor = spawn_sum(system);
        for message in [SumMsg::Add(1), SumMsg::Fail, SumMsg::Add(2)] {
            actor.tell(message);
        }
        assert_eq!(block_on(actor.ask(SumMsg::Read)), Ok(2));
    });
}

#[test]
fn an_ask_to_a_stopping_actor_completes_and_one_to_a_stopped_actor_fails() {
    run_scenario(1, |system| {
        let actor = spawn_sum(system);
        let ask = actor.ask(SumMsg::Read);
        actor.stop(StopMode::Now);
        assert!(matches!(block_on(ask), Ok(0) | Err(AskError::Discarded)));
        assert!(matches!(block_on(actor.ask(SumMsg::Read)), Err(AskError::Closed | AskError::Discarded)));
    });
}

#[test]
fn senders_wait_for_capacity_of_a_bounded_mailbox() {
    run_scenario(WORKERS, |system| {
        let mailbox = MailboxOptions::bounded(NonZeroUsize::new(2).unwrap());
        let actor = system.spawn(&Props::new(Sum::default).mailbox(mailbox).build()).unwrap();
        let other = actor.clone();
        let sender = thread::spawn(move || {
            (0..10).for_each(|_| {
                assert_eq!(block_on(other.send(SumMsg::Add(1))).ok(), Some(SendOutcome::Queued));
            });
        });
        for _ in 0..10 {
            assert_eq!(block_on(actor.send(SumMsg::Add(1))).ok(), Some(SendOutcome::Queued));
        }
        sender.join().unwrap();
        // A full mailbox rejects an ask, so it is retried.
        let total = core::iter::repeat_with(|| block_on(actor.ask(SumMsg::Read))).find_map(Result::ok);
        assert_eq!(total, Some(20));
    });
}
