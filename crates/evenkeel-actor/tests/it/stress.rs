//! A whole system under random load: no message is lost, handled twice or handled out of order.
//!
//! Every message carries its sender and a sequence number, and must have exactly one outcome: handled, dead-lettered
//! or returned to its sender. Limits: rounds of a few thousand messages for `EVENKEEL_STRESS_SECONDS` (default 3),
//! starting with `EVENKEEL_STRESS_SEED` (default random).

mod chaos_actor;
mod ledger;
mod producer;

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_actor::dead_letters::KeepMessage;
use evenkeel_actor::guardian::{Backoff, MailboxOnRestart, Supervision};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use chaos_actor::{ChaosActor, ChaosMsg};
use ledger::Ledger;

/// Time after which a round counts as stuck; a round normally takes far less.
const STUCK: Duration = Duration::from_secs(60);

#[test]
fn under_random_load_every_message_has_one_outcome_and_keeps_its_order() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seconds = number("EVENKEEL_STRESS_SECONDS").unwrap_or(3);
    let mut seed = number("EVENKEEL_STRESS_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    let mut messages = 0;
    while rounds == 0 || Instant::now() < end {
        println!("EVENKEEL_STRESS_SEED={seed}");
        messages += Round::new(seed).run();
        rounds += 1;
        seed = seed.wrapping_add(1);
    }
    println!("{rounds} rounds, {messages} messages");
}

/// Random number generator that depends only on its seed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// Creates an independent generator.
    fn split(&mut self) -> Self {
        Self(self.below(usize::MAX) as u64)
    }
}

/// The way a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// Graceful shutdown after all accepted messages are handled.
    Graceful,
    /// Forced stop while producers still send.
    Abrupt,
}

#[derive(Debug)]
struct Round {
    seed: u64,
    workers: usize,
    threads: usize,
    worker_batch: usize,
    actors: usize,
    producers: usize,
    messages_each: usize,
    on_restart: MailboxOnRestart,
    ending: RoundEnd,
}

impl Round {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        // One round in four has few actors and long bursts.
        let (actors_max, messages_max) = random.pick(&[(12, 600), (12, 600), (12, 600), (1, 6000)]);
        Self {
            seed,
            workers: 1 + random.below(4),
            threads: 2 + random.below(3),
            worker_batch: random.pick(&[1, 1, 4]),
            actors: 2 + random.below(actors_max),
            producers: 2 + random.below(6),
            messages_each: 200 + random.below(messages_max),
            on_restart: random.pick(&[
                MailboxOnRestart::Keep,
                MailboxOnRestart::Keep,
                MailboxOnRestart::Clear,
            ]),
            ending: random.pick(&[RoundEnd::Graceful, RoundEnd::Graceful, RoundEnd::Abrupt]),
        }
    }

    /// Runs the round; returns the number of messages sent.
    fn run(&self) -> usize {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(self.threads).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let result = runtime.block_on(async { tokio::time::timeout(STUCK, self.run_to_end()).await });
        result.unwrap_or_else(|_| panic!("stuck: {self:?}"))
    }

    async fn run_to_end(&self) -> usize {
        let mut random = Random(self.seed ^ 0x5ca1_ab1e);
        let system = self.start();
        let ledger = Arc::new(Ledger::new(self.actors, self.producers));
        let (keys, signaller) = chaos_actor::signaller(random.split());
        let actors = self.spawn_actors(&system, &ledger, &keys, &mut random);
        drop(keys);
        let finished = Arc::new(AtomicBool::new(false));
        let collector =
            tokio::spawn(ledger::collect_dead_letters(system.clone(), ledger.clone(), finished.clone()));
        let producers: Vec<_> = (0..self.producers)
            .map(|id| {
                let work =
                    producer::produce(id, self.messages_each, actors.clone(), ledger.clone(), random.split());
                tokio::spawn(work)
            })
            .collect();
        let scaler = tokio::spawn(producer::change_workers(system.clone(), finished.clone(), random.split()));
        let stopper = tokio::spawn(producer::stop_some(actors.clone(), ledger.clone(), random.split()));
        if self.ending == RoundEnd::Abrupt {
            (0..self.actors).for_each(|actor| ledger.stop_requested(actor));
            for _ in 0..random.below(200) {
                tokio::task::yield_now().await;
            }
            system.force_stop();
        }
        for producer in producers {
            producer.await.expect("a producer does not panic");
        }
        stopper.await.expect("the stopper does not panic");
        if self.ending == RoundEnd::Graceful {
            let end = system.graceful_shutdown(STUCK).await;
            assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 }, "{self:?}");
        }
        while system.alive() != 0 {
            tokio::task::yield_now().await;
        }
        finished.store(true, Ordering::Release);
        scaler.await.expect("the scaler does not panic");
        collector.await.expect("the collector does not panic");
        drop(actors);
        signaller.abort();
        ledger.check(&format!("{self:?}"), system.dead_letters_total())
    }

    fn start(&self) -> ReadyQueueScheduler {
        let supervision = Supervision::default()
            .with_backoff(Backoff::NONE)
            .with_on_restart(self.on_restart)
            .with_max_restarts(Supervision::RESTARTS_MAX, Duration::from_nanos(1))
            .expect("the limit itself is allowed");
        let config = ActorSystemConfig {
            workers: NonZeroUsize::new(self.workers),
            worker_batch: NonZeroUsize::new(self.worker_batch).expect("at least one"),
            dead_letters_max: 1 << 20,
            supervision,
            ..ActorSystemConfig::default()
        };
        ActorSystemRunner::new(config)
            .start(TokioRuntime::current().expect("called inside a tokio runtime"))
            .expect("valid settings")
    }

    /// Spawns the actors; each forwards some of its messages to the one spawned before it.
    fn spawn_actors(
        &self,
        system: &ReadyQueueScheduler,
        ledger: &Arc<Ledger>,
        keys: &chaos_actor::Keys,
        random: &mut Random,
    ) -> Vec<ActorRef<ChaosMsg>> {
        let mut actors: Vec<ActorRef<ChaosMsg>> = Vec::new();
        for id in 0..self.actors {
            let ledger = ledger.clone();
            let keys = keys.clone();
            let next = actors.last().cloned();
            let make = move || ChaosActor::new(id, ledger.clone(), keys.clone(), next.clone());
            let props = Props::new(make)
                .mailbox(chaos_actor::mailbox(random))
                .dead_letters(KeepMessage::Whole)
                .build();
            actors.push(system.spawn(&props).expect("actors_max is larger"));
        }
        actors
    }
}
