//! Tasks outside the actors that send messages, stop some actors and change the number of workers.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_actor::*;

use super::Random;
use super::chaos_actor::{Action, ChaosMsg};
use super::ledger::Ledger;

/// Sends `messages` messages to random actors in random ways, and records the accepted ones.
pub(crate) async fn produce(
    from: usize,
    messages: usize,
    actors: Vec<ActorRef<ChaosMsg>>,
    ledger: Arc<Ledger>,
    mut random: Random,
) {
    let mut numbers = vec![0; actors.len()];
    for _ in 0..messages {
        let to = random.below(actors.len());
        let number = numbers[to];
        numbers[to] += 1;
        let target = &actors[to];
        let message = |action| ChaosMsg { to, from, number, action };
        let accepted = match random.below(8) {
            0 => match target.ask(|reply| message(Action::Answer(reply))).await {
                Ok(answer) => {
                    assert_eq!(answer, number, "the reply belongs to this ask");
                    true
                }
                Err(AskError::NoReply | AskError::TimedOut | AskError::Discarded) => true,
                Err(AskError::Full | AskError::Closed) => false,
            },
            1 | 2 => target.send(message(action(&mut random))).await.is_ok(),
            3 => target.try_tell(message(action(&mut random))).is_ok(),
            _ => {
                target.tell(message(action(&mut random)));
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

fn action(random: &mut Random) -> Action {
    match random.below(64) {
        0 => Action::Yield,
        1 => Action::Fail,
        2 => Action::Panic,
        3 => Action::Suspend,
        4 => Action::Pause,
        5 => Action::Await,
        6 => Action::Alarm,
        7..12 => Action::Relay,
        _ => Action::Nothing,
    }
}

/// Stops one actor in four after a random delay.
pub(crate) async fn stop_some(actors: Vec<ActorRef<ChaosMsg>>, ledger: Arc<Ledger>, mut random: Random) {
    for (actor, target) in actors.iter().enumerate() {
        if random.below(4) == 0 {
            ledger.stop_requested(actor);
            for _ in 0..random.below(300) {
                tokio::task::yield_now().await;
            }
            target.stop(random.pick(&[StopMode::Now, StopMode::Drained]));
        }
    }
}

/// Sets random worker counts until the system stops.
pub(crate) async fn change_workers(
    system: ReadyQueueScheduler,
    finished: Arc<AtomicBool>,
    mut random: Random,
) {
    while !finished.load(Ordering::Acquire) {
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
