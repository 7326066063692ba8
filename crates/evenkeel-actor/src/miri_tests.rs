//! Real cells on plain threads: few enough for Miri.
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
    running: Mutex<Vec<JoinHandle<()>>>,
    nanos: AtomicU64,
}

impl RuntimeHandle for ThreadRuntime {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        self.0.running.lock().unwrap().push(thread::spawn(move || block_on(task)));
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.nanos.fetch_add(1_000, Ordering::Relaxed))
    }

    /// No test here depends on time; every sleeper is woken by other means.
    fn sleep_until(&self, _at: Instant) -> TaskFuture {
        Box::pin(core::future::pending())
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(async { thread::yield_now() })
    }
}

/// Two workers, or one without `std`.
const WORKERS: usize = if cfg!(feature = "std") { 2 } else { 1 };

/// Runs `scenario` in a system with `workers` workers; fails if a worker or the timer driver outlives it.
fn run_scenario(workers: usize, scenario: impl FnOnce(&ReadyQueueScheduler)) {
    let threads = ThreadRuntime::default();
    let config = ActorSystemConfig {
        workers: NonZeroUsize::new(workers).unwrap(),
        supervision: Supervision::default().with_backoff(Backoff::NONE),
        ..ActorSystemConfig::default()
    };
    let system = ActorSystemRunner::new(config).start(threads.clone()).unwrap();
    scenario(&system);
    drop(system);
    let running = core::mem::take(&mut *threads.0.running.lock().unwrap());
    running.into_iter().for_each(|task| task.join().unwrap());
}

fn sum(system: &ReadyQueueScheduler) -> ActorRef<SumMsg> {
    system.spawn(&Props::new(Sum::default).build()).unwrap()
}

#[test]
fn messages_from_two_threads_are_handled_by_any_worker() {
    run_scenario(WORKERS, |system| {
        let actor = sum(system);
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

#[test]
fn an_actor_moves_between_workers_between_asks() {
    run_scenario(WORKERS, |system| {
        let actors = [sum(system), sum(system)];
        for round in 1..=10 {
            for actor in &actors {
                actor.tell(SumMsg::Add(1));
                assert_eq!(block_on(actor.ask(SumMsg::Read)), Ok(round));
            }
        }
    });
}

#[test]
fn the_number_of_workers_changes_while_two_threads_send() {
    run_scenario(WORKERS, |system| {
        let actor = sum(system);
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

#[test]
fn a_stopped_actor_is_freed_with_its_last_reference() {
    run_scenario(WORKERS, |system| {
        for mode in [StopMode::Now, StopMode::Drained, StopMode::Now, StopMode::Drained] {
            let actor = sum(system);
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
        let first = sum(system);
        let second = sum(system);
        for _ in 0..3 {
            let target = second.clone();
            let reply = async move { SumMsg::Add(1 + target.ask(SumMsg::Read).await.unwrap()) };
            first.tell(SumMsg::Await(Box::pin(reply)));
            second.tell(SumMsg::Add(1));
        }
        // The wait for the last future is over before the ask is handled.
        assert!(block_on(first.ask(SumMsg::Read)).unwrap() >= 3);
    });
}

#[test]
fn a_task_asks_on_the_workers_threads() {
    run_scenario(WORKERS, |system| {
        let actor = sum(system);
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
        let actor = sum(system);
        for received in [SumMsg::Add(1), SumMsg::Fail, SumMsg::Add(2)] {
            actor.tell(received);
        }
        assert_eq!(block_on(actor.ask(SumMsg::Read)), Ok(2));
    });
}

#[test]
fn an_ask_to_a_stopping_actor_gets_no_reply() {
    run_scenario(1, |system| {
        let actor = sum(system);
        let ask = actor.ask(SumMsg::Read);
        actor.stop(StopMode::Now);
        assert!(matches!(block_on(ask), Ok(0) | Err(AskError::Discarded)));
        assert!(matches!(block_on(actor.ask(SumMsg::Read)), Err(AskError::Closed | AskError::Discarded)));
    });
}

#[test]
fn a_sender_waits_for_capacity_on_its_own_thread() {
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
        let sum = core::iter::repeat_with(|| block_on(actor.ask(SumMsg::Read))).find_map(Result::ok);
        assert_eq!(sum, Some(20));
    });
}
