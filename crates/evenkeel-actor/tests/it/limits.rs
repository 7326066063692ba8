//! Limits and isolation: asks that fail immediately, queues that stay small, workers that survive panics in user code.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use evenkeel_actor::guardian::MailboxOnRestart;
use evenkeel_actor::*;

use crate::harness::{
    Harness, MS, Msg, explore, explore_with, fail, record, restart_immediately, run, supervised,
    suspend_until,
};

#[test]
fn an_ask_queued_at_a_stopped_actor_fails_immediately() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").keep_plain_messages());
        actor.tell(suspend_until(1));
        harness.run();
        let ask = actor.ask(|reply| Msg::Ask(1, reply));
        actor.stop(StopMode::Now);
        assert_eq!(harness.runtime.block_on(ask), Err(AskError::Discarded));
        assert_eq!((harness.now_ms(), harness.dead_letters().len()), (0, 1));
    });
}

#[test]
fn an_ask_cleared_by_a_restart_fails_immediately() {
    explore_with(supervised(restart_immediately().with_on_restart(MailboxOnRestart::Clear)), |harness| {
        let actor = harness.spawn(harness.puppet("a").keep_plain_messages());
        actor.tell(fail("broken"));
        let ask = actor.ask(|reply| Msg::Ask(1, reply));
        assert_eq!(harness.runtime.block_on(ask), Err(AskError::Discarded));
        assert_eq!((harness.now_ms(), actor.state()), (0, ActorState::Running));
    });
}

#[test]
fn an_ask_dropped_for_a_newer_message_fails_immediately() {
    explore(|harness| {
        let puppet = harness.puppet("a").capacity(1, OverflowStrategy::DropOldest).keep_plain_messages();
        let actor = harness.spawn(puppet);
        actor.tell(suspend_until(1));
        harness.run();
        let ask = actor.ask(|reply| Msg::Ask(1, reply));
        actor.tell(record(2));
        assert_eq!(harness.runtime.block_on(ask), Err(AskError::Discarded));
        assert_eq!(harness.now_ms(), 0);
    });
}

#[test]
fn an_ask_kept_in_a_whole_dead_letter_can_still_be_answered() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(1));
        harness.run();
        let mut ask = pin!(actor.ask(|reply| Msg::Ask(1, reply)));
        actor.stop(StopMode::Now);
        harness.run();
        assert!(poll(ask.as_mut(), Waker::noop()).is_pending());
        let letter = harness.system.take_dead_letters().pop_front().unwrap();
        let Ok(Msg::Ask(_, reply)) = letter.message.unwrap().downcast::<Msg>().map(|kept| *kept) else {
            panic!("the ask is the only dead letter");
        };
        assert_eq!(reply.send(9), Ok(()));
        assert_eq!(poll(ask, Waker::noop()), Poll::Ready(Ok(9)));
    });
}

#[test]
fn actors_report_stopping_as_soon_as_their_system_does() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(harness.wait_until_ms(50, 1));
        harness.run();
        let mut shutdown = pin!(harness.system.graceful_shutdown(100 * MS));
        assert!(poll(shutdown.as_mut(), Waker::noop()).is_pending());
        assert_eq!(actor.state(), ActorState::Stopping);
        assert_eq!(actor.try_tell(record(1)).map_err(drop_message), Err(SendError::Closed(())));
        harness.advance_ms(60);
        assert!(harness.runtime.block_on(shutdown).drained);
        assert_eq!((harness.lines(), actor.state()), (vec!["a 1".to_owned()], ActorState::Stopped));
    });
}

#[test]
fn repeated_system_messages_to_an_actor_that_does_not_run_are_coalesced() {
    explore(|harness| {
        let actor = harness.recorder("a");
        for round in 0..1_000 {
            actor.signal(SignalKey(round));
            actor.stop(if round % 2 == 0 { StopMode::Drained } else { StopMode::Now });
        }
        let waiting = system_queue_len(&harness.system, "a");
        assert!((2..=16 + 2).contains(&waiting), "{waiting}");
        harness.run();
        assert_eq!(actor.state(), ActorState::Stopped);
    });
}

#[test]
fn the_awaited_signal_is_not_lost_among_others() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(7));
        actor.tell(record(1));
        harness.run();
        actor.signal(SignalKey(7));
        (100..200).for_each(|other| actor.signal(SignalKey(other)));
        assert_eq!(system_queue_len(&harness.system, "a"), 17);
        assert_eq!(harness.lines(), ["a 1"]);
        // The latest of the other signals are kept for later waits.
        actor.tell(suspend_until(199));
        actor.tell(record(2));
        assert_eq!(harness.lines(), ["a 2"]);
    });
}

#[test]
fn watching_and_unwatching_in_a_loop_leaves_one_watch() {
    explore(|harness| {
        let watcher = harness.recorder("watcher");
        let target = harness.recorder("target");
        let watched = target.clone();
        let system = harness.system.clone();
        watcher.tell(run(move |me, ctx| {
            for _ in 0..1_000 {
                ctx.watch(&watched);
                ctx.unwatch(&watched);
            }
            ctx.watch(&watched);
            me.record(system_queue_len(&system, "target"));
        }));
        harness.run();
        target.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["watcher 2", "watcher terminated: stopped"]);
    });
}

#[test]
fn commands_to_a_child_that_does_not_run_are_coalesced() {
    explore(|harness| {
        let parent = harness.recorder("parent");
        let child = crate::harness::spawn_child(harness, &parent, harness.puppet("child").log_hooks());
        harness.log.take();
        let index = child.index();
        let system = harness.system.clone();
        parent.tell(run(move |me, ctx| {
            for _ in 0..500 {
                ctx.command(index, guardian::SupervisionCommand::Resume);
                ctx.command(index, guardian::SupervisionCommand::Restart);
            }
            me.record(system_queue_len(&system, "child"));
        }));
        let lines = harness.lines();
        assert_eq!(lines[0], "parent 2");
        assert_eq!(lines.iter().filter(|line| line.ends_with("started")).count(), 1, "{lines:?}");
    });
}

#[test]
fn other_waiting_senders_are_woken_even_if_a_waker_panics() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::BlockProducer));
        actor.tell(suspend_until(1));
        harness.run();
        actor.tell(record(1));
        let mut senders = [Box::pin(actor.send(record(2))), Box::pin(actor.send(record(3)))];
        let (wake_count, second) = TestWaker::new();
        assert!(poll(senders[0].as_mut(), &Waker::from(Arc::new(PanickingWaker))).is_pending());
        assert!(poll(senders[1].as_mut(), &second).is_pending());
        actor.signal(SignalKey(1));
        assert_eq!(harness.lines(), ["a 1"]);
        assert_eq!(wake_count.wakes(), 1);
        assert!(matches!(poll(senders[1].as_mut(), &second), Poll::Ready(Ok(SendOutcome::Queued))));
        assert_eq!(harness.lines(), ["a 3"]);
    });
}

#[test]
fn a_waker_that_panics_when_its_mailbox_closes_does_not_stop_the_worker() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::BlockProducer));
        actor.tell(suspend_until(1));
        harness.run();
        actor.tell(record(1));
        let mut sender = pin!(actor.send(record(2)));
        assert!(poll(sender.as_mut(), &Waker::from(Arc::new(PanickingWaker))).is_pending());
        actor.stop(StopMode::Now);
        harness.run();
        assert!(matches!(poll(sender, Waker::noop()), Poll::Ready(Err(SendError::Closed(_)))));
        assert_still_working(harness);
    });
}

#[test]
fn a_waker_that_panics_at_its_deadline_does_not_stop_the_timer_driver() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(1));
        harness.run();
        let mut ask = pin!(actor.ask(|reply| Msg::Ask(1, reply)).within(5 * MS));
        assert!(poll(ask.as_mut(), &Waker::from(Arc::new(PanickingWaker))).is_pending());
        harness.advance_ms(10);
        assert_eq!(poll(ask, Waker::noop()), Poll::Ready(Err(AskError::TimedOut)));
        assert_still_working(harness);
    });
}

#[test]
fn a_reply_that_panics_on_drop_does_not_stop_the_worker() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let other = harness.recorder("b");
        actor.tell(run(move |_, _| abandon(&other)));
        harness.run();
        assert_still_working(harness);
    });
}

#[test]
fn a_reply_that_panics_on_drop_does_not_stop_the_timer_driver() {
    explore(|harness| {
        let actor = harness.recorder("a");
        abandon(&actor);
        harness.advance_ms(10);
        assert_still_working(harness);
    });
}

#[test]
fn a_factory_that_panics_on_drop_does_not_stop_the_worker() {
    explore(|harness| {
        let panics = PanicOnDrop;
        let puppet = harness.puppet("a").factory(move |_| {
            let _captured = &panics;
        });
        let actor = harness.spawn(puppet);
        actor.stop(StopMode::Now);
        drop(actor);
        harness.run();
        assert_still_working(harness);
    });
}

#[test]
fn a_long_chain_of_ancestors_is_dropped_without_deep_recursion() {
    const GENERATIONS: u32 = 100_000;
    let harness = Harness::new(runtime::test::TestOptions::new(0), crate::harness::config());
    let youngest = Arc::new(Mutex::new(None));
    let root = harness
        .system
        .spawn_value(Ancestor { left: GENERATIONS, youngest: youngest.clone() }, &Props::of_values().build());
    let root = root.unwrap();
    harness.run();
    assert_eq!(harness.system.alive(), u64::from(GENERATIONS) + 1);
    root.stop(StopMode::Now);
    drop(root);
    harness.run();
    assert_eq!(harness.system.alive(), 0);
    let youngest = youngest.lock().unwrap().take();
    assert!(youngest.is_some(), "the youngest holds the last reference to its ancestors");
    drop(youngest);
}

struct Ancestor {
    left: u32,
    youngest: Arc<Mutex<Option<ActorRef<()>>>>,
}

impl Actor for Ancestor {
    type Msg = ();

    fn started(&mut self, ctx: &mut evenkeel_actor::Context<'_, Self>) -> HandlerResult<()> {
        if self.left == 0 {
            *self.youngest.lock().unwrap() = Some(ctx.me());
            return Ok(Flow::Continue);
        }
        let child = Self { left: self.left - 1, youngest: self.youngest.clone() };
        ctx.spawn_value(child, &Props::of_values().build())
            .map_err(|error| ActorError::new(error.to_string()))?;
        Ok(Flow::Continue)
    }

    fn receive(&mut self, _message: (), _ctx: &mut evenkeel_actor::Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}

/// Asks, replies and drops the ask, so that only the timer driver's deadline entry holds the unread reply.
fn abandon(target: &ActorRef<Msg>) {
    let slot = Arc::new(Mutex::new(None));
    let filled = slot.clone();
    let mut ask = Box::pin(target.ask(move |reply: Reply<PanicOnDrop>| {
        *filled.lock().unwrap() = Some(reply);
        record(0)
    }));
    assert!(poll(ask.as_mut(), Waker::noop()).is_pending());
    let reply = slot.lock().unwrap().take().unwrap();
    assert!(reply.send(PanicOnDrop).is_ok());
}

/// Asserts that workers and timer driver still run: a message is handled and a timer fires.
fn assert_still_working(harness: &Harness) {
    let actor = harness.recorder("alive");
    harness.log.take();
    let due = harness.now_ms() + 5;
    actor.tell(harness.wait_until_ms(due, 1));
    harness.advance_ms(10);
    assert_eq!(harness.lines(), ["alive 1"]);
}

/// Returns the number of messages in the system queues of actors with this label.
fn system_queue_len(system: &ReadyQueueScheduler, label: &str) -> u64 {
    let metrics = system.metrics();
    let labels = [("actor", label), ("mailbox", "system")];
    let read = |name| crate::harness::read(&metrics, name, &labels) as u64;
    read("actor.mailbox.enqueued_total") - read("actor.mailbox.dequeued_total")
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

pub(crate) fn drop_message<M>(error: SendError<M>) -> SendError<()> {
    match error {
        SendError::Full(_) => SendError::Full(()),
        SendError::Closed(_) => SendError::Closed(()),
        SendError::HostGone(_) => SendError::HostGone(()),
        SendError::MailboxFailed(_) => SendError::MailboxFailed(()),
    }
}

/// A waker that panics when woken.
struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("woken");
    }
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct TestWaker(Mutex<u32>);

impl TestWaker {
    fn new() -> (Arc<Self>, Waker) {
        let counter = Arc::new(Self::default());
        (counter.clone(), Waker::from(counter))
    }

    fn wakes(&self) -> u32 {
        *self.0.lock().unwrap()
    }
}

impl Wake for TestWaker {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
    }
}

/// Panics on drop, unless the thread is already panicking.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}
