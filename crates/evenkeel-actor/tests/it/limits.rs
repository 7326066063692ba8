//! Ends at once, stays small, survives: what must hold where a worker could stall, grow or die.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use evenkeel_actor::guardian::MailboxOnRestart;
use evenkeel_actor::*;

use crate::harness::{MS, Msg, World, at_once, explore, explore_with, fail, go, hold, note, supervised};

#[test]
fn an_ask_queued_at_a_stopped_actor_fails_immediately() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").plain_letters());
        actor.tell(hold(1));
        world.run();
        let asked = actor.ask(|reply| Msg::Ask(1, reply));
        actor.stop(StopMode::Now);
        assert_eq!(world.runtime.block_on(asked), Err(AskError::Discarded));
        assert_eq!((world.now_ms(), world.letters().len()), (0, 1));
    });
}

#[test]
fn an_ask_cleared_by_a_restart_fails_immediately() {
    explore_with(supervised(at_once().with_on_restart(MailboxOnRestart::Clear)), |world| {
        let actor = world.spawn(world.puppet("a").plain_letters());
        actor.tell(fail("broken"));
        let asked = actor.ask(|reply| Msg::Ask(1, reply));
        assert_eq!(world.runtime.block_on(asked), Err(AskError::Discarded));
        assert_eq!((world.now_ms(), actor.state()), (0, ActorState::Running));
    });
}

#[test]
fn an_ask_dropped_for_a_newer_message_fails_immediately() {
    explore(|world| {
        let puppet = world.puppet("a").places(1, OverflowStrategy::DropOldest).plain_letters();
        let actor = world.spawn(puppet);
        actor.tell(hold(1));
        world.run();
        let asked = actor.ask(|reply| Msg::Ask(1, reply));
        actor.tell(note(2));
        assert_eq!(world.runtime.block_on(asked), Err(AskError::Discarded));
        assert_eq!(world.now_ms(), 0);
    });
}

#[test]
fn an_ask_kept_in_a_whole_dead_letter_can_still_be_answered() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(hold(1));
        world.run();
        let mut asked = pin!(actor.ask(|reply| Msg::Ask(1, reply)));
        actor.stop(StopMode::Now);
        world.run();
        assert!(poll(asked.as_mut(), Waker::noop()).is_pending());
        let letter = world.system.take_dead_letters().pop_front().unwrap();
        let Ok(Msg::Ask(_, reply)) = letter.message.unwrap().downcast::<Msg>().map(|kept| *kept) else {
            panic!("the question is the only letter");
        };
        assert_eq!(reply.send(9), Ok(()));
        assert_eq!(poll(asked, Waker::noop()), Poll::Ready(Ok(9)));
    });
}

#[test]
fn actors_report_stopping_as_soon_as_their_system_does() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(world.wait_until_ms(50, 1));
        world.run();
        let mut shutdown = pin!(world.system.graceful_shutdown(100 * MS));
        assert!(poll(shutdown.as_mut(), Waker::noop()).is_pending());
        assert_eq!(actor.state(), ActorState::Stopping);
        assert_eq!(actor.try_tell(note(1)).map_err(drop_message), Err(SendError::Closed(())));
        world.pass(60);
        assert!(world.runtime.block_on(shutdown).drained);
        assert_eq!((world.lines(), actor.state()), (vec!["a 1".to_owned()], ActorState::Stopped));
    });
}

#[test]
fn repeated_system_messages_to_a_suspended_actor_are_coalesced() {
    explore(|world| {
        let actor = world.noter("a");
        for round in 0..1_000 {
            actor.signal(SignalKey(round));
            actor.stop(if round % 2 == 0 { StopMode::Drained } else { StopMode::Now });
        }
        let waiting = system_lane(&world.system, "a");
        assert!((2..=16 + 2).contains(&waiting), "{waiting}");
        world.run();
        assert_eq!(actor.state(), ActorState::Stopped);
    });
}

#[test]
fn the_awaited_signal_is_not_lost_among_others() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(hold(7));
        actor.tell(note(1));
        world.run();
        actor.signal(SignalKey(7));
        (100..200).for_each(|other| actor.signal(SignalKey(other)));
        assert_eq!(system_lane(&world.system, "a"), 17);
        assert_eq!(world.lines(), ["a 1"]);
        // The latest of the others are remembered as those that came too early.
        actor.tell(hold(199));
        actor.tell(note(2));
        assert_eq!(world.lines(), ["a 2"]);
    });
}

#[test]
fn watching_and_unwatching_in_a_loop_leaves_one_watch() {
    explore(|world| {
        let watcher = world.noter("watcher");
        let target = world.noter("target");
        let whom = target.clone();
        let system = world.system.clone();
        watcher.tell(go(move |me, ctx| {
            for _ in 0..1_000 {
                ctx.watch(&whom);
                ctx.unwatch(&whom);
            }
            ctx.watch(&whom);
            me.note(system_lane(&system, "target"));
        }));
        world.run();
        target.stop(StopMode::Now);
        assert_eq!(world.lines(), ["watcher 2", "watcher hears end: stopped"]);
    });
}

#[test]
fn commands_to_a_suspended_child_are_coalesced() {
    explore(|world| {
        let parent = world.noter("parent");
        let child = crate::harness::child_of(world, &parent, world.puppet("child").loud());
        world.log.take();
        let index = child.index();
        let system = world.system.clone();
        parent.tell(go(move |me, ctx| {
            for _ in 0..500 {
                ctx.command(index, guardian::SupervisionCommand::Resume);
                ctx.command(index, guardian::SupervisionCommand::Restart);
            }
            me.note(system_lane(&system, "child"));
        }));
        let lines = world.lines();
        assert_eq!(lines[0], "parent 2");
        assert_eq!(lines.iter().filter(|line| line.ends_with("started")).count(), 1, "{lines:?}");
    });
}

#[test]
fn a_waker_that_panics_does_not_keep_other_senders_from_free_capacity() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").places(1, OverflowStrategy::BlockProducer));
        actor.tell(hold(1));
        world.run();
        actor.tell(note(1));
        let mut senders = [Box::pin(actor.send(note(2))), Box::pin(actor.send(note(3)))];
        let (bell, second) = Bell::new();
        assert!(poll(senders[0].as_mut(), &Waker::from(Arc::new(Bomb))).is_pending());
        assert!(poll(senders[1].as_mut(), &second).is_pending());
        actor.signal(SignalKey(1));
        assert_eq!(world.lines(), ["a 1"]);
        assert_eq!(bell.rung(), 1);
        assert!(matches!(poll(senders[1].as_mut(), &second), Poll::Ready(Ok(SendOutcome::Queued))));
        assert_eq!(world.lines(), ["a 3"]);
    });
}

#[test]
fn a_waker_that_panics_when_its_mailbox_closes_does_not_stop_the_worker() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").places(1, OverflowStrategy::BlockProducer));
        actor.tell(hold(1));
        world.run();
        actor.tell(note(1));
        let mut sender = pin!(actor.send(note(2)));
        assert!(poll(sender.as_mut(), &Waker::from(Arc::new(Bomb))).is_pending());
        actor.stop(StopMode::Now);
        world.run();
        assert!(matches!(poll(sender, Waker::noop()), Poll::Ready(Err(SendError::Closed(_)))));
        serves(world);
    });
}

#[test]
fn a_waker_that_panics_at_its_deadline_does_not_stop_the_timer_driver() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(hold(1));
        world.run();
        let mut asked = pin!(actor.ask(|reply| Msg::Ask(1, reply)).within(5 * MS));
        assert!(poll(asked.as_mut(), &Waker::from(Arc::new(Bomb))).is_pending());
        world.pass(10);
        assert_eq!(poll(asked, Waker::noop()), Poll::Ready(Err(AskError::TimedOut)));
        serves(world);
    });
}

#[test]
fn a_reply_that_panics_on_drop_does_not_stop_the_worker() {
    explore(|world| {
        let actor = world.noter("a");
        let other = world.noter("b");
        actor.tell(go(move |_, _| abandon(&other)));
        world.run();
        serves(world);
    });
}

#[test]
fn a_reply_that_panics_on_drop_does_not_stop_the_timer_driver() {
    explore(|world| {
        let actor = world.noter("a");
        abandon(&actor);
        world.pass(10);
        serves(world);
    });
}

#[test]
fn a_factory_that_panics_on_drop_does_not_stop_the_worker() {
    explore(|world| {
        let burning = Burning;
        let puppet = world.puppet("a").factory(move |_| {
            let _held = &burning;
        });
        let actor = world.spawn(puppet);
        actor.stop(StopMode::Now);
        drop(actor);
        world.run();
        serves(world);
    });
}

#[test]
fn a_long_chain_of_ancestors_is_dropped_without_deep_recursion() {
    const GENERATIONS: u32 = 100_000;
    let world = World::new(runtime::test::TestOptions::new(0), crate::harness::config());
    let youngest = Arc::new(Mutex::new(None));
    let root = world
        .system
        .spawn_value(Ancestor { left: GENERATIONS, youngest: youngest.clone() }, &Props::of_values().build());
    let root = root.unwrap();
    world.run();
    assert_eq!(world.system.alive(), u64::from(GENERATIONS) + 1);
    root.stop(StopMode::Now);
    drop(root);
    world.run();
    assert_eq!(world.system.alive(), 0);
    let youngest = youngest.lock().unwrap().take();
    assert!(youngest.is_some(), "the last reference to all of them");
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

    fn receive(&mut self, (): (), _ctx: &mut evenkeel_actor::Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}

/// Asks, has it answered, and leaves the answer unread in the hands of whoever watches the deadline.
fn abandon(whom: &ActorRef<Msg>) {
    let way_back = Arc::new(Mutex::new(None));
    let kept = way_back.clone();
    let mut asked = Box::pin(whom.ask(move |reply: Reply<Burning>| {
        *kept.lock().unwrap() = Some(reply);
        note(0)
    }));
    assert!(poll(asked.as_mut(), Waker::noop()).is_pending());
    let reply = way_back.lock().unwrap().take().unwrap();
    assert!(reply.send(Burning).is_ok());
}

/// Whether workers and clock go on: a message is handled, and a timer fires.
fn serves(world: &World) {
    let actor = world.noter("alive");
    world.log.take();
    let due = world.now_ms() + 5;
    actor.tell(world.wait_until_ms(due, 1));
    world.pass(10);
    assert_eq!(world.lines(), ["alive 1"]);
}

/// How many messages wait in the system lanes of actors with this label.
fn system_lane(system: &ReadyQueueScheduler, label: &str) -> u64 {
    let metrics = system.metrics();
    let labels = [("actor", label), ("mailbox", "system")];
    let read = |name| crate::harness::read(&metrics, name, &labels) as u64;
    read("actor.mailbox.enqueued_total") - read("actor.mailbox.dequeued_total")
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

fn drop_message<M>(error: SendError<M>) -> SendError<()> {
    match error {
        SendError::Full(_) => SendError::Full(()),
        SendError::Closed(_) => SendError::Closed(()),
    }
}

/// A waker nobody should have trusted.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("woken");
    }
}

/// Counts how often it was woken.
#[derive(Default)]
struct Bell(Mutex<u32>);

impl Bell {
    fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::new(Self::default());
        (bell.clone(), Waker::from(bell))
    }

    fn rung(&self) -> u32 {
        *self.0.lock().unwrap()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
    }
}

/// Panics when it is dropped, unless something panics already.
struct Burning;

impl Drop for Burning {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}
