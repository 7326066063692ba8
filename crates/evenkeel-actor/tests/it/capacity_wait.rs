//! Waits for capacity end: at a limit for a suspended actor, at once for a send that is given up.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use evenkeel_actor::hub::names;
use evenkeel_actor::*;

use crate::harness::*;

const LIMIT: Duration = Duration::from_millis(50);

/// Sends each number that it gets to its peer, and keeps the one that did not fit.
struct Forwarder {
    name: &'static str,
    peer: Option<ActorRef<ForwarderMsg>>,
    unsent: Option<u32>,
    log: Log,
}

enum ForwarderMsg {
    Connect(ActorRef<ForwarderMsg>),
    /// Sends this many numbers to the peer.
    Burst(u32),
    Number(u32),
}

impl Forwarder {
    fn send(&mut self, number: u32, ctx: &mut Context<'_, Self>) -> HandlerResult<ForwarderMsg> {
        let Some(peer) = &self.peer else { return Ok(Flow::Continue) };
        match ctx.try_tell(peer, ForwarderMsg::Number(number)) {
            Ok(_) => Ok(Flow::Continue),
            Err(_) => {
                self.unsent = Some(number);
                Ok(Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable))
            }
        }
    }
}

impl Actor for Forwarder {
    type Msg = ForwarderMsg;

    fn receive(&mut self, message: ForwarderMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<ForwarderMsg> {
        if let Some(number) = self.unsent.take() {
            self.log.record(format!("{} gave up {number}", self.name));
        }
        match message {
            ForwarderMsg::Connect(peer) => self.peer = Some(peer),
            ForwarderMsg::Burst(count) => {
                for number in 0..count {
                    let flow = self.send(number, ctx)?;
                    if matches!(flow, Flow::Suspend(..)) {
                        return Ok(flow);
                    }
                }
            }
            ForwarderMsg::Number(number) => self.log.record(format!("{} {number}", self.name)),
        }
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<ForwarderMsg> {
        assert_eq!(signal, Signal::CapacityTimeout);
        self.log.record(format!("{} timed out after {:?}", self.name, ctx.now()));
        Ok(Flow::Continue)
    }
}

#[test]
fn two_actors_that_wait_for_capacity_in_each_other_go_on_at_the_limit() {
    explore_with(ActorSystemConfig { capacity_wait_max: LIMIT, ..config() }, |harness| {
        let relay = |name| {
            let props = Props::of_values().mailbox(mailbox_options(4, OverflowStrategy::Reject)).label(name);
            let relay = Forwarder { name, peer: None, unsent: None, log: harness.log.clone() };
            harness.system.spawn_value(relay, &props.build()).unwrap()
        };
        let a = relay("a");
        let b = relay("b");
        a.tell(ForwarderMsg::Connect(b.clone()));
        b.tell(ForwarderMsg::Connect(a.clone()));
        harness.run();
        // While it handles the burst, each has too many numbers in its mailbox for the other to go on.
        [&a, &b].into_iter().for_each(|actor| actor.tell(ForwarderMsg::Burst(10)));
        (0..3).for_each(|_| [&a, &b].into_iter().for_each(|actor| actor.tell(ForwarderMsg::Number(77))));
        harness.run();
        assert_waits_end_at_the_limit(harness, [&a, &b]);
        assert_eq!([a.depth(), b.depth()], [0, 0], "both have handled their messages");
        let lines = harness.lines();
        assert!(lines.iter().any(|line| line.contains("timed out")), "{lines:?}");
    });
}

#[test]
fn two_actors_that_await_a_send_to_each_other_get_their_messages_back_at_the_limit() {
    explore_with(ActorSystemConfig { capacity_wait_max: LIMIT, ..config() }, |harness| {
        let [a, b] =
            ["a", "b"].map(|name| harness.spawn(harness.puppet(name).capacity(1, OverflowStrategy::Reject)));
        for (from, to) in [(&a, &b), (&b, &a)] {
            let to = to.clone();
            from.tell(act(move |_, _| Ok(Flow::wait(send_twice(to)))));
        }
        harness.run();
        assert_waits_end_at_the_limit(harness, [&a, &b]);
        let lines = harness.lines();
        assert!(lines.iter().any(|line| line.ends_with("mailbox is full")), "{lines:?}");
    });
}

#[test]
fn actors_of_two_systems_that_await_a_send_to_each_other_get_their_messages_back_at_the_limit() {
    let config = ActorSystemConfig { capacity_wait_max: LIMIT, ..config() };
    explore_with(config, |harness| {
        let other_system = ActorSystemRunner::new(config).start(harness.runtime.handle()).unwrap();
        let a = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::Reject));
        let b = puppet("b", &harness.log).capacity(1, OverflowStrategy::Reject).props();
        let b = other_system.spawn(&b).unwrap();
        harness.run();
        for (from, to) in [(&a, &b), (&b, &a)] {
            let to = to.clone();
            from.tell(act(move |_, _| Ok(Flow::wait(send_twice(to)))));
        }
        harness.run();
        let states = || [&a, &b].map(ActorRef::state);
        assert_eq!(states(), [ActorState::Suspended; 2], "they wait for each other");
        harness.advance_ms(LIMIT.as_millis() as u64 + 8);
        assert_eq!(states(), [ActorState::Running; 2]);
        let lines = harness.lines();
        assert!(lines.iter().any(|line| line.ends_with("mailbox is full")), "{lines:?}");
    });
}

/// Checks that the actors `a` and `b` wait for each other until the limit and then run again, and that this is counted.
fn assert_waits_end_at_the_limit<M: Send + 'static>(harness: &Harness, actors: [&ActorRef<M>; 2]) {
    let states = || actors.map(ActorRef::state);
    assert_eq!(states(), [ActorState::Suspended; 2], "they wait for each other");
    harness.advance_ms(LIMIT.as_millis() as u64 - 2);
    assert_eq!(states(), [ActorState::Suspended; 2]);
    harness.advance_ms(10);
    assert_eq!(states(), [ActorState::Running; 2]);
    let timeouts = ["a", "b"].map(|name| {
        harness.metric(names::MAILBOX_OVERFLOW_TOTAL, &[("actor", name), ("reason", "wait_timed_out")])
    });
    assert!(timeouts.iter().sum::<f64>() >= 1.0, "{timeouts:?}");
}

/// Sends two messages, of which at most one has room; returns a message that records the outcome of the second.
async fn send_twice(to: ActorRef<Msg>) -> Msg {
    let _queued = to.send(record(1)).await;
    let second = to.send(record(2)).await;
    run(move |puppet, _| puppet.record(second.map_or_else(|error| error.to_string(), |_| "sent".to_owned())))
}

#[test]
fn a_task_waits_for_capacity_without_a_limit() {
    explore_with(ActorSystemConfig { capacity_wait_max: LIMIT, ..config() }, |harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::BlockProducer));
        actor.tell(suspend_until(1));
        harness.run();
        actor.tell(record(1));
        let to = actor.clone();
        harness.system.spawn_task(async move { assert!(to.send(record(2)).await.is_ok()) }).unwrap();
        harness.advance_ms(10 * LIMIT.as_millis() as u64);
        actor.signal(SignalKey(1));
        assert_eq!(harness.lines(), ["a 1", "a 2"]);
    });
}

#[test]
fn an_actor_that_stops_while_it_waits_for_capacity_is_freed_at_once() {
    explore(|harness| {
        let target = harness.spawn(harness.puppet("target").capacity(1, OverflowStrategy::Reject));
        target.tell(suspend_until(1));
        harness.run();
        target.tell(record(0));
        let waiter = harness.recorder("waiter");
        let to = target.clone();
        waiter.tell(act(move |_, ctx| {
            assert!(ctx.try_tell(&to, record(1)).is_err());
            Ok(Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable))
        }));
        harness.run();
        let slot = waiter.index().slot;
        waiter.stop(StopMode::Now);
        drop(waiter);
        harness.run();
        // Its slot is free once no reference is left: the mailbox must hold none.
        assert_eq!(harness.recorder("next").index().slot, slot);
    });
}

#[test]
fn a_send_that_is_given_up_releases_its_task_and_its_message_at_once() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::BlockProducer));
        actor.tell(suspend_until(1));
        harness.run();
        actor.tell(record(0));
        let task = Arc::new(Task(AtomicU32::new(0)));
        let token = Arc::new(());
        let held = token.clone();
        {
            let waker = Waker::from(task.clone());
            let mut sending = pin!(actor.send(run(move |_, _| drop(held))));
            let mut cx = std::task::Context::from_waker(&waker);
            assert!(sending.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!((Arc::strong_count(&task), Arc::strong_count(&token)), (1, 1));
        actor.signal(SignalKey(1));
        harness.run();
        assert_eq!(task.0.load(Ordering::Relaxed), 0, "nothing is left to wake");
    });
}

#[test]
fn sends_that_are_given_up_take_no_place_from_others() {
    let harness = Harness::new(runtime::test::TestOptions::new(1), config());
    let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::BlockProducer));
    actor.tell(suspend_until(1));
    harness.run();
    actor.tell(record(0));
    let poll_once = |sending: &mut std::pin::Pin<Box<dyn Future<Output = bool> + '_>>| {
        harness.runtime.block_on(poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx).is_pending())))
    };
    let send = || -> std::pin::Pin<Box<dyn Future<Output = bool> + '_>> {
        Box::pin(async { actor.send(record(1)).await.is_ok() })
    };
    for _ in 0..3 {
        let mut given_up: Vec<_> = (0..65_536).map(|_| send()).collect();
        assert!(given_up.iter_mut().all(poll_once), "every send gets a place");
    }
}

struct Task(AtomicU32);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
