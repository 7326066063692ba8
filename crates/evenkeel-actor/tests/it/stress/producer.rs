//! Those who send, from outside of all actors, and those who stop some of them or change the number of
//! workers meanwhile.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_actor::*;

use super::Random;
use super::chaos_actor::{Note, Task};
use super::ledger::Ledger;

/// Sends so many messages to random actors in random ways, and books what was accepted.
pub(crate) async fn produce(
    from: usize,
    messages: usize,
    clerks: Vec<ActorRef<Note>>,
    ledger: Arc<Ledger>,
    mut random: Random,
) {
    let mut numbers = vec![0; clerks.len()];
    for _ in 0..messages {
        let to = random.below(clerks.len());
        let number = numbers[to];
        numbers[to] += 1;
        let clerk = &clerks[to];
        let note = |task| Note { to, from, number, task };
        let accepted = match random.below(8) {
            0 => match clerk.ask(|reply| note(Task::Answer(reply))).await {
                Ok(answer) => {
                    assert_eq!(answer, number, "an answer to another question");
                    true
                }
                Err(AskError::NoReply | AskError::TimedOut | AskError::Discarded) => true,
                Err(AskError::Full | AskError::Closed) => false,
            },
            1 | 2 => clerk.send(note(task(&mut random))).await.is_ok(),
            3 => clerk.try_tell(note(task(&mut random))).is_ok(),
            _ => {
                clerk.tell(note(task(&mut random)));
                true
            }
        };
        if accepted {
            ledger.accepted(to, from, number);
        }
        if random.below(16) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

fn task(random: &mut Random) -> Task {
    match random.below(64) {
        0 => Task::Yield,
        1 => Task::Fail,
        2 => Task::Panic,
        3 => Task::Suspend,
        4 => Task::Pause,
        5 => Task::Await,
        6 => Task::Alarm,
        7..12 => Task::Relay,
        _ => Task::Nothing,
    }
}

/// Stops every fourth actor at some moment.
pub(crate) async fn stop_some(clerks: Vec<ActorRef<Note>>, ledger: Arc<Ledger>, mut random: Random) {
    for (actor, clerk) in clerks.iter().enumerate() {
        if random.below(4) == 0 {
            ledger.told_to_stop(actor);
            for _ in 0..random.below(300) {
                tokio::task::yield_now().await;
            }
            clerk.stop(random.pick(&[StopMode::Now, StopMode::Drained]));
        }
    }
}

/// Has now more workers and now fewer, until the system stops.
pub(crate) async fn change_workers(system: ReadyQueueScheduler, over: Arc<AtomicBool>, mut random: Random) {
    while !over.load(Ordering::Acquire) {
        let workers = NonZeroUsize::new(1 + random.below(6)).expect("at least one");
        match system.set_workers(workers) {
            Ok(()) => {}
            Err(SetWorkersError::Stopping) => return,
            Err(error) => panic!("{error}"),
        }
        for _ in 0..random.below(40) {
            tokio::task::yield_now().await;
        }
    }
}
