//! Conformance tests for a runtime: 15 cases, each run on a freshly started system.
//!
//! The cases do not depend on a particular runtime and never sleep: a case that waits asks an actor.

use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::guardian::{Backoff, FailureNotification, Supervision, SupervisionDecision};
use evenkeel_actor::*;

const MS: Duration = Duration::from_millis(1);

/// Defines a test for every case; `$run` starts a system and passes it to the case.
macro_rules! test_every_case {
    ($run:ident) => {
        crate::runtime_cases::test_every_case! { $run:
            three_actors_handle_a_hundred_messages_each,
            an_ask_is_answered,
            one_senders_messages_keep_their_order,
            a_timer_repeats_until_it_is_cancelled,
            a_receive_timeout_fires_when_no_message_arrives,
            a_failed_child_restarts_after_its_backoff,
            a_suspended_actor_resumes_on_its_signal,
            a_timed_suspension_ends_by_itself,
            an_awaited_output_is_handled_before_queued_messages,
            a_drained_stop_handles_accepted_messages,
            an_immediate_stop_dead_letters_queued_messages,
            a_termination_is_reported_once_to_its_watcher,
            children_stop_before_their_parent,
            a_sender_waits_for_capacity,
            a_shutdown_handles_accepted_messages_and_rejects_the_rest,
        }
    };
    ($run:ident: $($case:ident,)*) => {
        $(#[test]
        fn $case() {
            $run(crate::runtime_cases::$case);
        })*
    };
}
pub(crate) use test_every_case;

pub(crate) async fn three_actors_handle_a_hundred_messages_each(system: ReadyQueueScheduler) {
    let actors = [puppet(&system), puppet(&system), puppet(&system)];
    for number in 0..100 {
        actors.iter().for_each(|actor| actor.tell(record(number)));
    }
    for actor in &actors {
        assert_eq!(log_of(actor).await.len(), 100);
    }
    assert_eq!(system.alive(), 3);
}

pub(crate) async fn an_ask_is_answered(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    assert_eq!(actor.ask(|reply| answer(reply, 42)).await, Ok(42));
    let dropped = actor.ask(|reply: Reply<u32>| {
        act(|_, _| {
            drop(reply);
            Ok(Flow::Continue)
        })
    });
    assert_eq!(dropped.await, Err(AskError::NoReply));
}

pub(crate) async fn one_senders_messages_keep_their_order(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    for number in 0..3_000 {
        actor.send(record(number)).await.unwrap();
    }
    assert_eq!(log_of(&actor).await, messages(0..3_000));
}

pub(crate) async fn a_timer_repeats_until_it_is_cancelled(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let fast = TimerId(1);
    let slow = TimerId(2);
    actor.tell(act(move |_, ctx| {
        assert!(ctx.set_timer(fast, MS, Repeat::Every(MS)));
        Ok(Flow::Continue)
    }));
    assert_eq!(log_at_len(&actor, 3).await[..3], [const { Entry::Signal(Signal::Timer(TimerId(1))) }; 3]);
    actor.tell(act(move |puppet, ctx| {
        ctx.cancel_timer(fast);
        puppet.log.clear();
        assert!(ctx.set_timer(slow, 5 * MS, Repeat::Once));
        Ok(Flow::Continue)
    }));
    assert_eq!(log_at_len(&actor, 1).await, [Entry::Signal(Signal::Timer(slow))]);
}

pub(crate) async fn a_receive_timeout_fires_when_no_message_arrives(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    actor.tell(act(|_, ctx| {
        assert!(ctx.set_receive_timeout(Some(2 * MS)));
        Ok(Flow::Continue)
    }));
    assert_eq!(log_at_len(&actor, 1).await, [Entry::Signal(Signal::ReceiveTimeout)]);
}

pub(crate) async fn a_failed_child_restarts_after_its_backoff(system: ReadyQueueScheduler) {
    let backoff = Backoff::new(2 * MS, 2 * MS, 1, 0).unwrap();
    let parent = Props::new(Puppet::default).supervise(Supervision::default().with_backoff(backoff)).build();
    let parent = system.spawn(&parent).unwrap();
    let child = spawn_child(&parent).await;
    child.tell(record(1));
    child.tell(act(|_, _| Err(ActorError::new("on purpose"))));
    child.tell(record(2));
    assert_eq!(log_of(&child).await, messages(2..3));
    let log = log_at_len(&parent, 1).await;
    let [Entry::Signal(Signal::ChildFailed(FailureNotification { child: failed, decision, .. }))] = &log[..]
    else {
        panic!("{log:?}");
    };
    assert_eq!((*failed, *decision), (child.index(), SupervisionDecision::Restart { after: 2 * MS }));
}

pub(crate) async fn a_suspended_actor_resumes_on_its_signal(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let key = suspend(&actor).await;
    actor.tell(record(1));
    let early = actor.ask(|reply| answer(reply, 0)).within(5 * MS).await;
    assert_eq!(early, Err(AskError::TimedOut));
    assert_eq!(actor.state(), ActorState::Suspended);
    actor.signal(key);
    assert_eq!(log_of(&actor).await, messages(1..2));
}

pub(crate) async fn a_timed_suspension_ends_by_itself(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    actor.tell(act(|_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(2 * MS)))));
    actor.tell(record(1));
    assert_eq!(log_of(&actor).await, messages(1..2));
}

pub(crate) async fn an_awaited_output_is_handled_before_queued_messages(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let other = puppet(&system);
    actor.tell(act(|_, _| {
        Ok(Flow::wait(async move { record(other.ask(|reply| answer(reply, 7)).await.unwrap()) }))
    }));
    actor.tell(record(8));
    assert_eq!(log_of(&actor).await, messages(7..9));
}

pub(crate) async fn a_drained_stop_handles_accepted_messages(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let final_log = actor.ask(final_log);
    (0..10).for_each(|number| actor.tell(record(number)));
    actor.stop(StopMode::Drained);
    assert_eq!(final_log.await, Ok(messages(0..10)));
    assert!(matches!(actor.try_tell(record(10)), Err(SendError::Closed(_))));
}

pub(crate) async fn an_immediate_stop_dead_letters_queued_messages(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let watcher = puppet(&system);
    watch(&watcher, &actor).await;
    suspend(&actor).await;
    (0..3).for_each(|number| actor.tell(record(number)));
    actor.stop(StopMode::Now);
    assert_eq!(log_at_len(&watcher, 1).await, [terminated(&actor, Termination::Stopped)]);
    assert_eq!(system.dead_letters_total(), 3);
}

pub(crate) async fn a_termination_is_reported_once_to_its_watcher(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let watcher = puppet(&system);
    watch(&watcher, &actor).await;
    actor.stop(StopMode::Drained);
    let expected = terminated(&actor, Termination::Stopped);
    assert_eq!(log_at_len(&watcher, 1).await, std::slice::from_ref(&expected));
    watch(&watcher, &actor).await;
    assert_eq!(log_at_len(&watcher, 2).await, [expected, terminated(&actor, Termination::Unknown)]);
}

pub(crate) async fn children_stop_before_their_parent(system: ReadyQueueScheduler) {
    let parent = puppet(&system);
    let watcher = puppet(&system);
    let child = spawn_child(&parent).await;
    watch(&watcher, &child).await;
    watch(&watcher, &parent).await;
    parent.stop(StopMode::Drained);
    let expected = [terminated(&child, Termination::Stopped), terminated(&parent, Termination::Stopped)];
    assert_eq!(log_at_len(&watcher, 2).await, expected);
}

pub(crate) async fn a_sender_waits_for_capacity(system: ReadyQueueScheduler) {
    let options = MailboxOptions::bounded(NonZeroUsize::new(8).unwrap());
    let actor = system.spawn(&Props::new(Puppet::default).mailbox(options).build()).unwrap();
    let witness = puppet(&system);
    let key = suspend(&actor).await;
    let room = u32::try_from(options.user_capacity()).unwrap();
    (0..room).for_each(|number| assert!(matches!(actor.try_tell(record(number)), Ok(SendOutcome::Queued))));
    assert!(matches!(actor.try_tell(record(room)), Err(SendError::Full(_))));
    let sender = actor.clone();
    let seen = witness.clone();
    let waits = async move {
        sender.send(record(room)).await.unwrap();
        seen.tell(record(0));
    };
    system.spawn_task(waits).unwrap();
    actor.signal(key);
    log_at_len(&witness, 1).await;
    assert_eq!(log_of(&actor).await, messages(0..room + 1));
}

pub(crate) async fn a_shutdown_handles_accepted_messages_and_rejects_the_rest(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let final_log = actor.ask(final_log);
    (0..50).for_each(|number| actor.tell(record(number)));
    let end = system.graceful_shutdown(Duration::from_secs(5)).await;
    assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
    assert_eq!(final_log.await, Ok(messages(0..50)));
    assert_eq!(system.lifecycle(), Lifecycle::Stopped);
    assert!(matches!(actor.try_tell(record(0)), Err(SendError::Closed(_))));
    assert_eq!(system.spawn(&Props::new(Puppet::default).build()).err(), Some(SpawnError::Stopping));
}

/// An actor that runs the closures it receives and keeps a log.
#[derive(Default)]
struct Puppet {
    log: Vec<Entry>,
    /// Receives the log once it has this length.
    reader: Option<(usize, Reply<Vec<Entry>>)>,
    /// Receives the log at termination.
    final_reader: Option<Reply<Vec<Entry>>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Message(u32),
    Signal(Signal),
}

/// Message of a puppet: the closure to run.
struct Closure(Box<ClosureFn>);

type ClosureFn = dyn FnOnce(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Closure> + Send;

impl Actor for Puppet {
    type Msg = Closure;

    fn receive(&mut self, act: Closure, ctx: &mut Context<'_, Self>) -> HandlerResult<Closure> {
        let handled = (act.0)(self, ctx);
        self.reply_if_due();
        handled
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Closure> {
        self.log.push(Entry::Signal(signal));
        self.reply_if_due();
        Ok(Flow::Continue)
    }

    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {
        if let Some(final_reader) = self.final_reader.take() {
            drop(final_reader.send(self.log.clone()));
        }
    }
}

impl Puppet {
    fn reply_if_due(&mut self) {
        if let Some((_, reader)) = self.reader.take_if(|(len, _)| *len <= self.log.len()) {
            drop(reader.send(self.log.clone()));
        }
    }
}

fn puppet(system: &ReadyQueueScheduler) -> ActorRef<Closure> {
    system.spawn(&Props::new(Puppet::default).build()).unwrap()
}

fn act(
    closure: impl FnOnce(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Closure> + Send + 'static,
) -> Closure {
    Closure(Box::new(closure))
}

fn record(number: u32) -> Closure {
    act(move |puppet, _| {
        puppet.log.push(Entry::Message(number));
        Ok(Flow::Continue)
    })
}

fn messages(numbers: std::ops::Range<u32>) -> Vec<Entry> {
    numbers.map(Entry::Message).collect()
}

fn answer(reply: Reply<u32>, number: u32) -> Closure {
    act(move |_, _| send_reply(reply, number))
}

/// Sends a reply and ignores an asker that has given up.
fn send_reply<T>(reply: Reply<T>, value: T) -> HandlerResult<Closure> {
    drop(reply.send(value));
    Ok(Flow::Continue)
}

fn final_log(reply: Reply<Vec<Entry>>) -> Closure {
    act(move |puppet, _| {
        puppet.final_reader = Some(reply);
        Ok(Flow::Continue)
    })
}

fn terminated(actor: &ActorRef<Closure>, cause: Termination) -> Entry {
    Entry::Signal(Signal::Terminated { actor: actor.index(), cause })
}

/// Returns the log once all messages sent before this call are handled.
async fn log_of(actor: &ActorRef<Closure>) -> Vec<Entry> {
    log_at_len(actor, 0).await
}

/// Returns the log once it has `len` entries.
async fn log_at_len(actor: &ActorRef<Closure>, len: usize) -> Vec<Entry> {
    let log = actor.ask(|reply| {
        act(move |puppet, _| {
            puppet.reader = Some((len, reply));
            Ok(Flow::Continue)
        })
    });
    log.await.unwrap()
}

/// Suspends an actor; returns the key whose signal resumes it.
async fn suspend(actor: &ActorRef<Closure>) -> SignalKey {
    let key = actor.ask(|reply| {
        act(|_, ctx| {
            let key = ctx.signal_key();
            send_reply(reply, key)?;
            Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key)))
        })
    });
    key.await.unwrap()
}

async fn watch(watcher: &ActorRef<Closure>, target: &ActorRef<Closure>) {
    let target = target.clone();
    let watched = watcher.ask(|reply| act(move |_, ctx| send_reply(reply, ctx.watch(&target))));
    assert_eq!(watched.await, Ok(true));
}

async fn spawn_child(parent: &ActorRef<Closure>) -> ActorRef<Closure> {
    let child = parent.ask(|reply| {
        act(|_, ctx| send_reply(reply, ctx.spawn(&Props::new(Puppet::default).build()).unwrap()))
    });
    child.await.unwrap()
}
