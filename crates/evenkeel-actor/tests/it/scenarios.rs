//! The five scenarios of the specification (docs/specs.md, actor scheduler facade), a sustained load and a handler that
//! never returns, on real threads.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::hub::names;
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::read;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_actor_handles_ten_thousand_messages_in_order() {
    within_30_s(async {
        let system = system();
        let actor = counter(&system);
        for number in 0..10_000 {
            actor.send(Count::Next(number)).await.unwrap();
        }
        assert_eq!(actor.ask(Count::Get).await, Ok(10_000));
        end(system).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_actors_handle_ten_thousand_messages_each() {
    within_30_s(async {
        let system = system();
        let actors: Vec<_> = (0..100).map(|_| counter(&system)).collect();
        let producers = actors.clone().into_iter().map(|actor| {
            tokio::spawn(async move {
                for number in 0..10_000 {
                    actor.send(Count::Next(number)).await.unwrap();
                }
            })
        });
        for producer in producers.collect::<Vec<_>>() {
            producer.await.unwrap();
        }
        for actor in &actors {
            assert_eq!(actor.ask(Count::Get).await, Ok(10_000));
        }
        assert_eq!(system.dead_letters_total(), 0);
        end(system).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_actors_spawned_at_once_all_reply_and_all_stop() {
    within_30_s(async {
        let system = system();
        for _ in 0..5 {
            let actors: Vec<_> = (0..1_000).map(|_| counter(&system)).collect();
            for number in 0..10 {
                actors.iter().for_each(|actor| actor.tell(Count::Next(number)));
            }
            for actor in &actors {
                assert_eq!(actor.ask(Count::Get).await, Ok(10));
                actor.stop(StopMode::Now);
            }
        }
        let end = system.graceful_shutdown(Duration::from_secs(10)).await;
        assert_eq!((end, system.alive()), (ShutdownReport { drained: true, abandoned: 0 }, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_or_reordered_by_suspension_and_resumption() {
    within_30_s(async {
        let system = system();
        let actor = counter(&system);
        for round in 0..1_000 {
            let suspension = match round % 3 {
                0 => Suspension::Signal(SignalKey(round)),
                1 => Suspension::Time(Duration::from_micros(round)),
                _ => Suspension::Future,
            };
            actor.send(Count::Suspend(suspension)).await.unwrap();
            for number in 10 * round..10 * (round + 1) {
                actor.send(Count::Next(number)).await.unwrap();
            }
            if round % 3 == 0 {
                // The signal may arrive before or during the wait.
                actor.signal(SignalKey(round));
            }
            if round % 30 == 0 {
                // The actor remembers at most sixteen early signals, so the test must not send more ahead of it.
                assert_eq!(actor.ask(Count::Get).await, Ok(10 * (round + 1)));
            }
        }
        assert_eq!(actor.ask(Count::Get).within(Duration::from_secs(20)).await, Ok(10_000));
        end(system).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_that_fails_repeatedly_is_restarted_and_handles_later_messages() {
    within_30_s(async {
        let patient = Supervision::default().with_backoff(Backoff::NONE);
        let patient = patient.with_max_restarts(1_000, Duration::from_secs(60)).unwrap();
        let system = system_with(ActorSystemConfig { supervision: patient, ..config() });
        let handled = Arc::new(AtomicU64::new(0));
        let counted = handled.clone();
        let props =
            Props::new(move || Fragile { handled: counted.clone(), left: 20 }).label("fragile").build();
        let actor = system.spawn(&props).unwrap();
        for number in 0..10_000 {
            actor.send(number).await.unwrap();
        }
        let end = system.graceful_shutdown(Duration::from_secs(10)).await;
        assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
        // Each value handles 20 messages and fails on the next, half of them with a panic.
        let restarts = read(&system.metrics(), names::RESTARTS_TOTAL, &[("actor", "fragile")]);
        assert_eq!((handled.load(Ordering::SeqCst), restarts), (9_524, 476.0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_messages_a_second_to_each_of_a_hundred_actors_all_arrive() {
    const ACTORS: u64 = 100;
    const SECONDS: u64 = 2;
    within_30_s(async {
        let system = system();
        let actors: Vec<_> = (0..ACTORS).map(|_| counter(&system)).collect();
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        for ms in 0..1_000 * SECONDS {
            tick.tick().await;
            for actor in &actors {
                for number in 10 * ms..10 * (ms + 1) {
                    actor.send(Count::Next(number)).await.unwrap();
                }
            }
        }
        for actor in &actors {
            assert_eq!(actor.ask(Count::Get).await, Ok(10_000 * SECONDS));
        }
        let handled: f64 = ["0", "1"]
            .map(|worker| read(&system.metrics(), names::MESSAGES_TOTAL, &[("worker", worker)]))
            .iter()
            .sum();
        assert!(handled >= (ACTORS * 10_000 * SECONDS) as f64, "{handled}");
        assert_eq!(system.dead_letters_total(), 0);
        end(system).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_returns_blocks_no_other_actor_and_is_reported_abandoned() {
    within_30_s(async {
        let system = system();
        let (release, stuck) = stuck(&system, vec![]);
        let others: Vec<_> = (0..50).map(|_| counter(&system)).collect();
        // After this, all workers and the timer driver are parked; the worker that gets stuck wakes the driver.
        tokio::time::sleep(Duration::from_millis(50)).await;
        stuck.tell(());
        for round in 0..200 {
            for actor in &others {
                actor.send(Count::Next(round)).await.unwrap();
            }
        }
        for actor in &others {
            assert_eq!(actor.ask(Count::Get).await, Ok(200), "the others make progress");
        }
        others[0].tell(Count::Suspend(Suspension::Time(Duration::from_millis(5))));
        assert_eq!(others[0].ask(Count::Get).await, Ok(200), "timers still fire");
        assert_eq!(stuck.state(), ActorState::Running);
        let end = system.graceful_shutdown(Duration::from_millis(200)).await;
        assert_eq!(end, ShutdownReport { drained: false, abandoned: 1 });
        drop(release);
        while system.alive() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_sent_by_a_handler_before_it_got_stuck_are_handled_by_other_workers() {
    within_30_s(async {
        // One message: its actor stays in the LIFO slot. Three: no worker is woken. Ten: the second worker is woken.
        for sends in [1, 3, 10] {
            let system = system();
            let others: Vec<_> = (0..sends).map(|_| counter(&system)).collect();
            let (release, stuck) = stuck(&system, others.clone());
            tokio::time::sleep(Duration::from_millis(20)).await;
            stuck.tell(());
            for actor in &others {
                while actor.ask(Count::Get).await != Ok(1) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            drop(release);
            end(system).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_message_is_lost_silently_while_threads_send() {
    within_30_s(async {
        let system = system();
        let handled = Arc::new(AtomicU64::new(0));
        let counted = handled.clone();
        let props = Props::new(move || CountingActor(counted.clone())).build();
        let actors: Vec<_> = (0..4).map(|_| system.spawn(&props).unwrap()).collect();
        let producers: Vec<_> = (0..4)
            .map(|nth: usize| {
                let actors = actors.clone();
                std::thread::spawn(move || {
                    let mut sent = 0_u64;
                    for number in 0..200_000_u64 {
                        let actor = &actors[(nth + number as usize) % 4];
                        if number % 5 == 0 {
                            // A message over capacity becomes a dead letter.
                            actor.tell(number);
                            sent += 1;
                        } else {
                            sent += u64::from(actor.try_tell(number).is_ok());
                        }
                    }
                    sent
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let end = system.graceful_shutdown(Duration::from_secs(10)).await;
        assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
        let sent: u64 = producers.into_iter().map(|producer| producer.join().unwrap()).sum();
        assert_eq!(handled.load(Ordering::SeqCst) + system.dead_letters_total(), sent);
    })
    .await;
}

fn config() -> ActorSystemConfig {
    ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap())
}

fn system() -> ReadyQueueScheduler {
    system_with(config())
}

fn system_with(config: ActorSystemConfig) -> ReadyQueueScheduler {
    ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap()
}

async fn end(system: ReadyQueueScheduler) {
    let end = system.graceful_shutdown(Duration::from_secs(10)).await;
    assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
}

/// Limits each scenario to 30 s.
async fn within_30_s(scenario: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(30), scenario).await.expect("the scenario ends within 30 s");
}

fn counter(system: &ReadyQueueScheduler) -> ActorRef<Count> {
    system.spawn(&Props::new(|| Counter(0)).build()).unwrap()
}

/// Counts from 0, and fails the test on a number that is lost, duplicated or out of order.
struct Counter(u64);

enum Count {
    Next(u64),
    Suspend(Suspension),
    /// Output of an awaited future.
    Back,
    Get(Reply<u64>),
}

enum Suspension {
    Signal(SignalKey),
    Time(Duration),
    Future,
}

impl Actor for Counter {
    type Msg = Count;

    fn receive(&mut self, count: Count, _ctx: &mut Context<'_, Self>) -> HandlerResult<Count> {
        match count {
            Count::Next(number) => {
                assert_eq!(number, self.0);
                self.0 += 1;
            }
            Count::Get(reply) => {
                let _ = reply.send(self.0);
            }
            Count::Back => {}
            Count::Suspend(Suspension::Signal(key)) => {
                return Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key)));
            }
            Count::Suspend(Suspension::Time(span)) => {
                return Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(span)));
            }
            Count::Suspend(Suspension::Future) => {
                return Ok(Flow::wait(async {
                    tokio::task::yield_now().await;
                    Count::Back
                }));
            }
        }
        Ok(Flow::Continue)
    }
}

/// Handles `left` messages, then fails.
struct Fragile {
    handled: Arc<AtomicU64>,
    left: u32,
}

impl Actor for Fragile {
    type Msg = u64;

    fn receive(&mut self, number: u64, _ctx: &mut Context<'_, Self>) -> HandlerResult<u64> {
        if self.left == 0 {
            assert!(number.is_multiple_of(2), "worn out");
            return Err(ActorError::new("worn out"));
        }
        self.left -= 1;
        self.handled.fetch_add(1, Ordering::SeqCst);
        Ok(Flow::Continue)
    }
}

/// Sends messages, then blocks in its handler until the channel closes.
struct Stuck {
    first: Vec<ActorRef<Count>>,
    blocked: Option<Receiver<()>>,
}

fn stuck(system: &ReadyQueueScheduler, first: Vec<ActorRef<Count>>) -> (Sender<()>, ActorRef<()>) {
    let (release, blocked) = std::sync::mpsc::channel();
    let stuck = Stuck { first, blocked: Some(blocked) };
    (release, system.spawn_value(stuck, &Props::of_values().build()).unwrap())
}

impl Actor for Stuck {
    type Msg = ();

    fn receive(&mut self, _message: (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        self.first.iter().for_each(|other| other.tell(Count::Next(0)));
        let _closed = self.blocked.take().map(|blocked| blocked.recv());
        Ok(Flow::Continue)
    }
}

struct CountingActor(Arc<AtomicU64>);

impl Actor for CountingActor {
    type Msg = u64;

    fn receive(&mut self, _number: u64, _ctx: &mut Context<'_, Self>) -> HandlerResult<u64> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(Flow::Continue)
    }
}
