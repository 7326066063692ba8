//! Tokio tasks that drive the stress test: they send messages, stop some actors and change the number of workers.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_actor::*;

use super::Random;
use super::chaos_actor::{Action, ChaosMsg};
use super::ledger::Ledger;

/// Sends `messages` messages to random actors in random ways, and records in the ledger each one that was accepted or
/// dead-lettered.
pub(crate) async fn produce(
    from: usize,
    messages: usize,
    actors: Vec<ActorRef<ChaosMsg>>,
    ledger: Arc<Ledger>,
    mut random: Random,
) {
    let mut next_seq = vec![0; actors.len()];
    for _ in 0..messages {
        let to = random.below(actors.len());
        let number = next_seq[to];
        next_seq[to] += 1;
        let target = &actors[to];
        let message = |action| ChaosMsg { to, from, number, action };
        let accepted = match random.below(8) {
            0 => match target.ask(|reply| message(Action::Answer(reply))).await {
                Ok(answer) => {
                    assert_eq!(answer, number, "the reply belongs to this ask");
                    true
                }
                Err(AskError::NoReply | AskError::TimedOut | AskError::Discarded) => true,
                Err(AskError::Full | AskError::Closed | AskError::HostGone | AskError::MailboxFailed) => {
                    false
                }
            },
            1 | 2 => target.send(message(random_action(&mut random))).await.is_ok(),
            3 => target.try_tell(message(random_action(&mut random))).is_ok(),
            _ => {
                // `tell` dead-letters what it cannot deliver; the ledger counts that too.
                target.tell(message(random_action(&mut random)));
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

fn random_action(random: &mut Random) -> Action {
    match random.below(64) {
        0 => Action::Yield,
        1 => Action::Fail,
        2 => Action::Panic,
        3 => Action::Suspend,
        4 => Action::SuspendBriefly,
        5 => Action::Await,
        6 => Action::SetTimer,
        7..12 => Action::Relay,
        _ => Action::Nothing,
    }
}

/// Stops each actor with probability 1/4, with a random delay before each stop.
pub(crate) async fn stop_some(actors: Vec<ActorRef<ChaosMsg>>, ledger: Arc<Ledger>, mut random: Random) {
    for (index, actor) in actors.iter().enumerate() {
        if random.below(4) == 0 {
            ledger.stop_requested(index);
            for _ in 0..random.below(300) {
                tokio::task::yield_now().await;
            }
            actor.stop(random.pick(&[StopMode::Now, StopMode::Drained]));
        }
    }
}

/// Sets random worker counts until the test is finished or the system is stopping.
pub(crate) async fn change_workers(
    system: ReadyQueueScheduler,
    finished: Arc<AtomicBool>,
    mut random: Random,
) {
    while !finished.load(Ordering::Acquire) {
        let workers = NonZeroUsize::new(1 + random.below(6)).expect("1 + n is not zero");
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
