//! What a runtime must do: 15 cases, each given a system that was just started.
//!
//! Nothing here knows a runtime, and nothing sleeps: whoever waits has asked an actor.

use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::guardian::{Backoff, FailureNotification, Supervision, SupervisionDecision};
use evenkeel_actor::*;

const MS: Duration = Duration::from_millis(1);

/// Makes a test of every case; `$run` starts a system and hands it to the case.
macro_rules! test_every_case {
    ($run:ident) => {
        crate::runtime_cases::test_every_case! { $run:
            three_actors_handle_a_hundred_messages_each,
            an_ask_is_answered,
            one_senders_messages_keep_their_order,
            a_timer_repeats_until_it_is_cancelled,
            a_receive_timeout_fires_when_no_message_arrives,
            a_failed_child_restarts_after_its_backoff,
            a_suspended_actor_resumes_at_its_signal,
            a_timed_suspension_ends_by_itself,
            an_awaited_output_is_handled_before_queued_messages,
            a_drained_stop_handles_accepted_messages,
            an_immediate_stop_makes_dead_letters,
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
    for n in 0..100 {
        actors.iter().for_each(|actor| actor.tell(note(n)));
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
    for n in 0..3_000 {
        actor.send(note(n)).await.unwrap();
    }
    assert_eq!(log_of(&actor).await, notes(0..3_000));
}

pub(crate) async fn a_timer_repeats_until_it_is_cancelled(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let fast = TimerId(1);
    let slow = TimerId(2);
    actor.tell(act(move |_, ctx| {
        assert!(ctx.set_timer(fast, MS, Repeat::Every(MS)));
        Ok(Flow::Continue)
    }));
    assert_eq!(log_when(&actor, 3).await[..3], [const { Entry::Heard(Signal::Timer(TimerId(1))) }; 3]);
    actor.tell(act(move |puppet, ctx| {
        ctx.cancel_timer(fast);
        puppet.log.clear();
        assert!(ctx.set_timer(slow, 5 * MS, Repeat::Once));
        Ok(Flow::Continue)
    }));
    assert_eq!(log_when(&actor, 1).await, [Entry::Heard(Signal::Timer(slow))]);
}

pub(crate) async fn a_receive_timeout_fires_when_no_message_arrives(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    actor.tell(act(|_, ctx| {
        assert!(ctx.set_receive_timeout(Some(2 * MS)));
        Ok(Flow::Continue)
    }));
    assert_eq!(log_when(&actor, 1).await, [Entry::Heard(Signal::ReceiveTimeout)]);
}

pub(crate) async fn a_failed_child_restarts_after_its_backoff(system: ReadyQueueScheduler) {
    let backoff = Backoff::new(2 * MS, 2 * MS, 1, 0).unwrap();
    let parent = Props::new(Puppet::default).supervise(Supervision::default().with_backoff(backoff)).build();
    let parent = system.spawn(&parent).unwrap();
    let child = child_of(&parent).await;
    child.tell(note(1));
    child.tell(act(|_, _| Err(ActorError::new("as told"))));
    child.tell(note(2));
    assert_eq!(log_of(&child).await, notes(2..3));
    let heard = log_when(&parent, 1).await;
    let [Entry::Heard(Signal::ChildFailed(FailureNotification { child: who, decision, .. }))] = &heard[..]
    else {
        panic!("{heard:?}");
    };
    assert_eq!((*who, *decision), (child.index(), SupervisionDecision::Restart { after: 2 * MS }));
}

pub(crate) async fn a_suspended_actor_resumes_at_its_signal(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let key = suspend(&actor).await;
    actor.tell(note(1));
    let early = actor.ask(|reply| answer(reply, 0)).within(5 * MS).await;
    assert_eq!(early, Err(AskError::TimedOut));
    assert_eq!(actor.state(), ActorState::Suspended);
    actor.signal(key);
    assert_eq!(log_of(&actor).await, notes(1..2));
}

pub(crate) async fn a_timed_suspension_ends_by_itself(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    actor.tell(act(|_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(2 * MS)))));
    actor.tell(note(1));
    assert_eq!(log_of(&actor).await, notes(1..2));
}

pub(crate) async fn an_awaited_output_is_handled_before_queued_messages(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let other = puppet(&system);
    actor.tell(act(|_, _| {
        Ok(Flow::wait(async move { note(other.ask(|reply| answer(reply, 7)).await.unwrap()) }))
    }));
    actor.tell(note(8));
    assert_eq!(log_of(&actor).await, notes(7..9));
}

pub(crate) async fn a_drained_stop_handles_accepted_messages(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let farewell = actor.ask(farewell);
    (0..10).for_each(|n| actor.tell(note(n)));
    actor.stop(StopMode::Drained);
    assert_eq!(farewell.await, Ok(notes(0..10)));
    assert!(matches!(actor.try_tell(note(10)), Err(SendError::Closed(_))));
}

pub(crate) async fn an_immediate_stop_makes_dead_letters(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let watcher = puppet(&system);
    watch(&watcher, &actor).await;
    suspend(&actor).await;
    (0..3).for_each(|n| actor.tell(note(n)));
    actor.stop(StopMode::Now);
    assert_eq!(log_when(&watcher, 1).await, [ended(&actor, Termination::Stopped)]);
    assert_eq!(system.dead_letters_total(), 3);
}

pub(crate) async fn a_termination_is_reported_once_to_its_watcher(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let watcher = puppet(&system);
    watch(&watcher, &actor).await;
    actor.stop(StopMode::Drained);
    let told = ended(&actor, Termination::Stopped);
    assert_eq!(log_when(&watcher, 1).await, std::slice::from_ref(&told));
    watch(&watcher, &actor).await;
    assert_eq!(log_when(&watcher, 2).await, [told, ended(&actor, Termination::Unknown)]);
}

pub(crate) async fn children_stop_before_their_parent(system: ReadyQueueScheduler) {
    let parent = puppet(&system);
    let watcher = puppet(&system);
    let child = child_of(&parent).await;
    watch(&watcher, &child).await;
    watch(&watcher, &parent).await;
    parent.stop(StopMode::Drained);
    let told = [ended(&child, Termination::Stopped), ended(&parent, Termination::Stopped)];
    assert_eq!(log_when(&watcher, 2).await, told);
}

pub(crate) async fn a_sender_waits_for_capacity(system: ReadyQueueScheduler) {
    let options = MailboxOptions::bounded(NonZeroUsize::new(8).unwrap());
    let actor = system.spawn(&Props::new(Puppet::default).mailbox(options).build()).unwrap();
    let witness = puppet(&system);
    let key = suspend(&actor).await;
    let room = u32::try_from(options.user_capacity()).unwrap();
    (0..room).for_each(|n| assert!(matches!(actor.try_tell(note(n)), Ok(SendOutcome::Queued))));
    assert!(matches!(actor.try_tell(note(room)), Err(SendError::Full(_))));
    let sender = actor.clone();
    let seen = witness.clone();
    let waits = async move {
        sender.send(note(room)).await.unwrap();
        seen.tell(note(0));
    };
    system.spawn_task(waits).unwrap();
    actor.signal(key);
    log_when(&witness, 1).await;
    assert_eq!(log_of(&actor).await, notes(0..room + 1));
}

pub(crate) async fn a_shutdown_handles_accepted_messages_and_rejects_the_rest(system: ReadyQueueScheduler) {
    let actor = puppet(&system);
    let farewell = actor.ask(farewell);
    (0..50).for_each(|n| actor.tell(note(n)));
    let end = system.graceful_shutdown(Duration::from_secs(5)).await;
    assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
    assert_eq!(farewell.await, Ok(notes(0..50)));
    assert_eq!(system.lifecycle(), Lifecycle::Stopped);
    assert!(matches!(actor.try_tell(note(0)), Err(SendError::Closed(_))));
    assert_eq!(system.spawn(&Props::new(Puppet::default).build()).err(), Some(SpawnError::Stopping));
}

/// An actor that does as it is told, and keeps a log.
#[derive(Default)]
struct Puppet {
    log: Vec<Entry>,
    /// Who wants the log once it is that long.
    reader: Option<(usize, Reply<Vec<Entry>>)>,
    /// Who wants the log at the end.
    heir: Option<Reply<Vec<Entry>>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Note(u32),
    Heard(Signal),
}

/// What a puppet is told: what to do.
struct Act(Box<Deed>);

type Deed = dyn FnOnce(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Act> + Send;

impl Actor for Puppet {
    type Msg = Act;

    fn receive(&mut self, act: Act, ctx: &mut Context<'_, Self>) -> HandlerResult<Act> {
        let handled = (act.0)(self, ctx);
        self.show();
        handled
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Act> {
        self.log.push(Entry::Heard(signal));
        self.show();
        Ok(Flow::Continue)
    }

    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {
        if let Some(heir) = self.heir.take() {
            drop(heir.send(self.log.clone()));
        }
    }
}

impl Puppet {
    fn show(&mut self) {
        if let Some((_, reader)) = self.reader.take_if(|(len, _)| *len <= self.log.len()) {
            drop(reader.send(self.log.clone()));
        }
    }
}

fn puppet(system: &ReadyQueueScheduler) -> ActorRef<Act> {
    system.spawn(&Props::new(Puppet::default).build()).unwrap()
}

fn act(
    deed: impl FnOnce(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Act> + Send + 'static,
) -> Act {
    Act(Box::new(deed))
}

fn note(n: u32) -> Act {
    act(move |puppet, _| {
        puppet.log.push(Entry::Note(n));
        Ok(Flow::Continue)
    })
}

fn notes(numbers: std::ops::Range<u32>) -> Vec<Entry> {
    numbers.map(Entry::Note).collect()
}

fn answer(reply: Reply<u32>, n: u32) -> Act {
    act(move |_, _| give(reply, n))
}

/// Whoever asked may have gone.
fn give<T>(reply: Reply<T>, value: T) -> HandlerResult<Act> {
    drop(reply.send(value));
    Ok(Flow::Continue)
}

fn farewell(reply: Reply<Vec<Entry>>) -> Act {
    act(move |puppet, _| {
        puppet.heir = Some(reply);
        Ok(Flow::Continue)
    })
}

fn ended(who: &ActorRef<Act>, how: Termination) -> Entry {
    Entry::Heard(Signal::Terminated { actor: who.index(), cause: how })
}

/// The log after everything told before.
async fn log_of(actor: &ActorRef<Act>) -> Vec<Entry> {
    log_when(actor, 0).await
}

/// The log once it has `len` entries.
async fn log_when(actor: &ActorRef<Act>, len: usize) -> Vec<Entry> {
    let log = actor.ask(|reply| {
        act(move |puppet, _| {
            puppet.reader = Some((len, reply));
            Ok(Flow::Continue)
        })
    });
    log.await.unwrap()
}

/// Suspends an actor until the key is signalled.
async fn suspend(actor: &ActorRef<Act>) -> SignalKey {
    let key = actor.ask(|reply| {
        act(|_, ctx| {
            let key = ctx.signal_key();
            give(reply, key)?;
            Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key)))
        })
    });
    key.await.unwrap()
}

async fn watch(watcher: &ActorRef<Act>, whom: &ActorRef<Act>) {
    let whom = whom.clone();
    let watched = watcher.ask(|reply| act(move |_, ctx| give(reply, ctx.watch(&whom))));
    assert_eq!(watched.await, Ok(true));
}

async fn child_of(parent: &ActorRef<Act>) -> ActorRef<Act> {
    let child = parent
        .ask(|reply| act(|_, ctx| give(reply, ctx.spawn(&Props::new(Puppet::default).build()).unwrap())));
    child.await.unwrap()
}
