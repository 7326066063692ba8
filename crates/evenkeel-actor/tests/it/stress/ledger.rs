//! Sender, receiver and outcome of every message of a round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_actor::ReadyQueueScheduler;
use evenkeel_actor::dead_letters::DeadLetterReason;

use super::chaos_actor::ChaosMsg;

/// Logs of all actors.
pub(crate) struct Ledger {
    logs: Vec<Mutex<ActorLog>>,
    producers: usize,
    dead_letters: AtomicU64,
    relayed: Vec<AtomicU64>,
}

/// Messages from one sender to one actor.
#[derive(Clone, Default)]
struct SenderLog {
    accepted: Vec<u64>,
    handled: Vec<u64>,
    dead: Vec<u64>,
}

#[derive(Default)]
struct ActorLog {
    senders: Vec<SenderLog>,
    /// Futures the actor awaited, and outputs it received.
    awaited: u64,
    woken: u64,
    stop_requested: bool,
    stopped: bool,
    /// Messages still queued when the actor stopped.
    left_behind: usize,
}

impl Ledger {
    /// Numbers the senders: first the producers, then the actors, which forward messages.
    pub(crate) fn new(actors: usize, producers: usize) -> Self {
        let log = || {
            let senders = vec![SenderLog::default(); producers + actors];
            Mutex::new(ActorLog { senders, ..ActorLog::default() })
        };
        Self {
            logs: (0..actors).map(|_| log()).collect(),
            producers,
            dead_letters: AtomicU64::new(0),
            relayed: (0..actors).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the sender number of an actor and the sequence number of the next message it forwards.
    pub(crate) fn next_relay(&self, actor: usize) -> (usize, u64) {
        (self.producers + actor, self.relayed[actor].fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn accepted(&self, to: usize, from: usize, number: u64) {
        self.sender_log(to, from, |sender_log| sender_log.accepted.push(number));
    }

    pub(crate) fn handled(&self, to: usize, from: usize, number: u64) {
        self.sender_log(to, from, |sender_log| sender_log.handled.push(number));
    }

    pub(crate) fn awaited(&self, actor: usize) {
        self.logs[actor].lock().unwrap().awaited += 1;
    }

    pub(crate) fn woken(&self, actor: usize) {
        self.logs[actor].lock().unwrap().woken += 1;
    }

    pub(crate) fn stop_requested(&self, actor: usize) {
        self.logs[actor].lock().unwrap().stop_requested = true;
    }

    pub(crate) fn stopped(&self, actor: usize) {
        self.logs[actor].lock().unwrap().stopped = true;
    }

    fn sender_log(&self, to: usize, from: usize, write: impl FnOnce(&mut SenderLog)) {
        write(&mut self.logs[to].lock().unwrap().senders[from]);
    }

    /// Asserts that every message has exactly one outcome and that each sender's messages were handled in order.
    pub(crate) fn check(&self, round: &str, dead_letters_total: u64) -> usize {
        assert_eq!(self.dead_letters.load(Ordering::Relaxed), dead_letters_total, "dead letters, {round}");
        let mut sent = 0;
        for (actor, log) in self.logs.iter().enumerate() {
            let log = log.lock().unwrap();
            assert!(log.stopped, "actor {actor} did not stop, {round}");
            assert!(log.woken <= log.awaited, "actor {actor} received the output of a future twice, {round}");
            let woken = log.woken == log.awaited;
            let left_behind = log.left_behind == 0;
            assert!(log.stop_requested || (woken && left_behind), "actor {actor} stopped early, {round}");
            for (from, sender_log) in log.senders.iter().enumerate() {
                let route = || format!("from {from} to actor {actor}, {round}");
                let in_order = sender_log.handled.windows(2).all(|pair| pair[0] < pair[1]);
                assert!(in_order, "out of order or duplicated {}: {:?}", route(), sender_log.handled);
                let mut finished = [sender_log.handled.clone(), sender_log.dead.clone()].concat();
                finished.sort_unstable();
                assert_eq!(finished, sender_log.accepted, "lost or duplicated {}", route());
                sent += finished.len();
            }
        }
        sent
    }
}

/// Records dead letters as they arrive, and drops them so that asks among them fail.
pub(crate) async fn collect_dead_letters(
    system: ReadyQueueScheduler,
    ledger: Arc<Ledger>,
    finished: Arc<AtomicBool>,
) {
    loop {
        let last = finished.load(Ordering::Acquire);
        for letter in system.take_dead_letters() {
            ledger.dead_letters.fetch_add(1, Ordering::Relaxed);
            let message = letter.message.expect("chaos actors keep whole dead letters");
            let message = message.downcast::<ChaosMsg>().expect("only chaos messages are sent");
            ledger.sender_log(message.to, message.from, |sender_log| sender_log.dead.push(message.number));
            let left_behind = usize::from(letter.reason == DeadLetterReason::Stopped);
            ledger.logs[message.to].lock().unwrap().left_behind += left_behind;
        }
        if last {
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}
