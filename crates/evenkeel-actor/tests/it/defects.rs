//! Defects typical of actor runtimes; each test fails on a design that has the defect.

use std::num::NonZeroUsize;
use std::sync::mpsc;

use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

fn system(workers: usize) -> ReadyQueueScheduler {
    let config = ActorSystemConfig {
        workers: NonZeroUsize::new(workers),
        supervision: Supervision::default().with_backoff(Backoff::NONE),
        ..ActorSystemConfig::default()
    };
    ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap()
}

fn mailbox_of(capacity: usize) -> MailboxOptions {
    let user_capacity = NonZeroUsize::new(capacity).unwrap();
    MailboxOptions {
        high_watermark: capacity,
        low_watermark: capacity / 2,
        ..MailboxOptions::bounded(user_capacity)
    }
}

/// Suspends at the first message and counts the others.
struct Sleeper {
    key: mpsc::Sender<SignalKey>,
    seen: u64,
}

enum SleeperMsg {
    Sleep,
    Count,
    Read(Reply<u64>),
}

impl Actor for Sleeper {
    type Msg = SleeperMsg;

    fn receive(&mut self, message: SleeperMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<SleeperMsg> {
        match message {
            SleeperMsg::Sleep => {
                let key = ctx.signal_key();
                self.key.send(key).unwrap();
                return Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key)));
            }
            SleeperMsg::Count => self.seen += 1,
            SleeperMsg::Read(reply) => drop(reply.send(self.seen)),
        }
        Ok(Flow::Continue)
    }
}

/// Yields until the worker, a task of the same thread, has nothing left to do.
async fn run_until_idle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A suspended actor is not idle: freeing the memory of its queue would lose messages.
#[tokio::test]
async fn a_burst_queued_during_a_suspension_survives_system_messages() {
    const BURST: u64 = 3000;
    let system = system(1);
    let (key, keys) = mpsc::channel();
    let props = Props::of_values().mailbox(mailbox_of(4096)).build();
    let actor = system.spawn_value(Sleeper { key, seen: 0 }, &props).unwrap();
    actor.tell(SleeperMsg::Sleep);
    (0..BURST).for_each(|_| actor.tell(SleeperMsg::Count));
    run_until_idle().await;
    let key = keys.try_recv().unwrap();
    actor.signal(SignalKey(key.0 - 1));
    run_until_idle().await;
    assert_eq!(actor.state(), ActorState::Suspended);
    actor.signal(key);
    assert_eq!(actor.ask(SleeperMsg::Read).await, Ok(BURST));
}

const CHILDREN: usize = 64;

/// Parent whose children fail while it is suspended. It counts failures that arrive as signals and as messages.
struct Parent {
    key: mpsc::Sender<SignalKey>,
    by_system: usize,
    by_mailbox: usize,
}

enum ParentMsg {
    Begin,
    /// A failure reported through the bounded mailbox, as the specification does.
    Failed,
    Read(Reply<(usize, usize)>),
}

impl Actor for Parent {
    type Msg = ParentMsg;

    fn receive(&mut self, message: ParentMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<ParentMsg> {
        match message {
            ParentMsg::Begin => {
                let child = Props::of_values().build();
                for _ in 0..CHILDREN {
                    ctx.spawn_value(Child(ctx.me()), &child).unwrap();
                }
                let key = ctx.signal_key();
                self.key.send(key).unwrap();
                return Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key)));
            }
            ParentMsg::Failed => self.by_mailbox += 1,
            ParentMsg::Read(reply) => drop(reply.send((self.by_system, self.by_mailbox))),
        }
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<ParentMsg> {
        self.by_system += usize::from(matches!(signal, Signal::ChildFailed(_)));
        Ok(Flow::Continue)
    }
}

struct Child(ActorRef<ParentMsg>);

impl Actor for Child {
    type Msg = ();

    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        drop(self.0.try_tell(ParentMsg::Failed));
        Err(ActorError::new("on purpose"))
    }

    fn receive(&mut self, _message: (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}

/// The specification notifies the guardian with `try_send` on a bounded channel, which loses what does not fit; see
/// docs/specs.md, actor scheduler facade.
#[tokio::test]
async fn every_failure_reaches_a_parent_whose_mailbox_is_full() {
    let system = system(1);
    let (key, keys) = mpsc::channel();
    let parent = Parent { key, by_system: 0, by_mailbox: 0 };
    let parent = system.spawn_value(parent, &Props::of_values().mailbox(mailbox_of(4)).build()).unwrap();
    parent.tell(ParentMsg::Begin);
    run_until_idle().await;
    parent.signal(keys.try_recv().unwrap());
    run_until_idle().await;
    let (by_system, by_mailbox) = parent.ask(ParentMsg::Read).await.unwrap();
    assert_eq!(by_system, CHILDREN);
    assert_eq!(by_mailbox, 4, "the mailbox was full for the other reports");
}

/// An index consists of a slot and a generation, because slots are reused.
#[tokio::test]
async fn a_stale_index_reaches_no_actor_after_its_slot_is_reused() {
    let system = system(1);
    let props = Props::of_values().build();
    let (key, _keys) = mpsc::channel();
    let old = system.spawn_value(Sleeper { key: key.clone(), seen: 0 }, &props).unwrap();
    let index = old.index();
    old.stop(StopMode::Now);
    drop(old);
    run_until_idle().await;
    let new = system.spawn_value(Sleeper { key, seen: 0 }, &props).unwrap();
    assert_eq!(new.index().slot, index.slot);
    assert_ne!(new.index(), index);
    assert_eq!(system.actor_state(index), ActorState::Stopped);
    assert!(!system.stop(index, StopMode::Now));
    assert!(!system.signal(index, SignalKey(1)));
    new.tell(SleeperMsg::Count);
    assert_eq!(new.ask(SleeperMsg::Read).await, Ok(1));
}

/// A slot is reused only after the last reference to its actor is dropped.
#[tokio::test]
async fn a_slot_is_not_reused_while_a_reference_to_it_exists() {
    let system = system(1);
    let props = Props::of_values().build();
    let (key, _keys) = mpsc::channel();
    let old = system.spawn_value(Sleeper { key: key.clone(), seen: 0 }, &props).unwrap();
    old.stop(StopMode::Now);
    run_until_idle().await;
    let new = system.spawn_value(Sleeper { key, seen: 0 }, &props).unwrap();
    assert_ne!(new.index().slot, old.index().slot);
    assert_eq!((old.state(), new.state()), (ActorState::Stopped, ActorState::Running));
    assert!(matches!(old.try_tell(SleeperMsg::Count), Err(SendError::Closed(_))));
}

/// A sender that is not woken by the stop would wait forever.
#[tokio::test]
async fn a_sender_waiting_for_capacity_gets_its_message_back_when_the_actor_stops() {
    let system = system(1);
    let (key, _keys) = mpsc::channel();
    let props = Props::of_values().mailbox(mailbox_of(1)).build();
    let actor = system.spawn_value(Sleeper { key, seen: 0 }, &props).unwrap();
    actor.tell(SleeperMsg::Sleep);
    run_until_idle().await;
    actor.tell(SleeperMsg::Count);
    let sender = tokio::spawn({
        let actor = actor.clone();
        async move { actor.send(SleeperMsg::Count).await.map_err(|error| matches!(error, SendError::Closed(_))) }
    });
    run_until_idle().await;
    assert!(!sender.is_finished());
    actor.stop(StopMode::Now);
    assert_eq!(sender.await.unwrap(), Err(true));
    // The queued message is a dead letter; the returned one is not.
    assert_eq!(system.dead_letters_total(), 1);
}
