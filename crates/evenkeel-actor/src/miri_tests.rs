//! Real cells on plain threads: few enough that Miri can watch every step of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

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

/// A thread for each task, and a clock that moves when it is looked at.
#[derive(Clone, Default)]
struct Threads(Arc<Shared>);

#[derive(Default)]
struct Shared {
    running: Mutex<Vec<JoinHandle<()>>>,
    nanos: AtomicU64,
}

impl RuntimeHandle for Threads {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        self.0.running.lock().unwrap().push(thread::spawn(move || block_on(task)));
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.nanos.fetch_add(1_000, Ordering::Relaxed))
    }

    /// Nothing here comes from time alone; whoever sleeps is woken by others.
    fn sleep_until(&self, _at: Instant) -> TaskFuture {
        Box::pin(core::future::pending())
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(async { thread::yield_now() })
    }
}

/// As many workers as there can be, up to two.
const WORKERS: usize = if cfg!(feature = "std") { 2 } else { 1 };

/// Runs `scene` in a system of so many workers; fails if a worker or the clock does not end with it.
fn play(workers: usize, scene: impl FnOnce(&ReadyQueueScheduler)) {
    let threads = Threads::default();
    let config = ActorSystemConfig {
        workers: NonZeroUsize::new(workers).unwrap(),
        supervision: Supervision::default().with_backoff(Backoff::NONE),
        ..ActorSystemConfig::default()
    };
    let system = ActorSystemRunner::new(config).start(threads.clone()).unwrap();
    scene(&system);
    drop(system);
    let running = core::mem::take(&mut *threads.0.running.lock().unwrap());
    running.into_iter().for_each(|task| task.join().unwrap());
}

fn sum(system: &ReadyQueueScheduler) -> ActorRef<SumMsg> {
    system.spawn(&Props::new(Sum::default).build()).unwrap()
}

#[test]
fn what_two_threads_tell_is_handled_by_whichever_worker_is_free() {
    play(WORKERS, |system| {
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
fn an_actor_goes_from_worker_to_worker_between_questions() {
    play(WORKERS, |system| {
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
fn workers_come_and_go_while_two_threads_tell() {
    play(WORKERS, |system| {
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
fn an_actor_that_ends_is_freed_by_whoever_lets_go_last() {
    play(WORKERS, |system| {
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
    play(WORKERS, |system| {
        let first = sum(system);
        let second = sum(system);
        for _ in 0..3 {
            let whom = second.clone();
            let answered = async move { SumMsg::Add(1 + whom.ask(SumMsg::Read).await.unwrap()) };
            first.tell(SumMsg::Await(Box::pin(answered)));
            second.tell(SumMsg::Add(1));
        }
        // The wait for the last future is over before the question's turn comes.
        assert!(3 <= block_on(first.ask(SumMsg::Read)).unwrap());
    });
}

#[test]
fn a_task_asks_on_the_workers_own_threads() {
    play(WORKERS, |system| {
        let actor = sum(system);
        let asked = actor.clone();
        let (done, told) = std::sync::mpsc::channel();
        let task = async move {
            for _ in 0..5 {
                asked.tell(SumMsg::Add(1));
                done.send(asked.ask(SumMsg::Read).await.unwrap()).unwrap();
            }
        };
        system.spawn_task(task).unwrap();
        assert_eq!(told.iter().take(5).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_restart_keeps_the_mailbox() {
    play(WORKERS, |system| {
        let actor = sum(system);
        for told in [SumMsg::Add(1), SumMsg::Fail, SumMsg::Add(2)] {
            actor.tell(told);
        }
        assert_eq!(block_on(actor.ask(SumMsg::Read)), Ok(2));
    });
}

#[test]
fn a_question_to_an_actor_that_ends_gets_no_answer() {
    play(1, |system| {
        let actor = sum(system);
        let question = actor.ask(SumMsg::Read);
        actor.stop(StopMode::Now);
        assert!(matches!(block_on(question), Ok(0) | Err(AskError::Discarded)));
        assert!(matches!(block_on(actor.ask(SumMsg::Read)), Err(AskError::Closed | AskError::Discarded)));
    });
}

#[test]
fn a_sender_waits_for_room_on_a_thread_of_its_own() {
    play(WORKERS, |system| {
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
        // A full mailbox refuses a question, and nobody can wait to ask.
        let sum = core::iter::repeat_with(|| block_on(actor.ask(SumMsg::Read))).find_map(Result::ok);
        assert_eq!(sum, Some(20));
    });
}
