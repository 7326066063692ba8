//! What must hold on a microcontroller; a case that does not ends the program.
//!
//! Bound: whoever waits has asked, and an answer comes within [`evenkeel_actor::ASK_WITHIN`] or never.

use core::num::NonZeroUsize;
use core::time::Duration;

use cortex_m::peripheral::scb::{Exception, VectActive};
use evenkeel_actor::{
    Actor, ActorError, ActorRef, Context, Flow, Handled, MailboxOptions, Props, ReadyQueueScheduler, Reply,
    Signal, StopMode,
};

use crate::systick;

const MESSAGES: u32 = 100;
/// The negative control expects one that nobody sends.
const MESSAGES_EXPECTED: u32 = MESSAGES + if cfg!(feature = "negative") { 1 } else { 0 };
const MAILBOX: NonZeroUsize = NonZeroUsize::new(16).expect("16 is not zero");
const SILENCE: Duration = Duration::from_millis(5);
const TICKS: u32 = 3;

pub(crate) async fn three_actors_handle_a_hundred_messages_each(system: &ReadyQueueScheduler) {
    let actors = [counter(system), counter(system), counter(system)];
    for _ in 0..MESSAGES {
        for actor in &actors {
            actor.send(Msg::Add(1)).await.expect("the actor takes messages");
        }
    }
    for actor in &actors {
        assert_eq!(actor.ask(Msg::Sum).await, Ok(MESSAGES_EXPECTED));
        actor.stop(StopMode::Now);
    }
}

pub(crate) async fn silence_is_told(system: &ReadyQueueScheduler) {
    let actor = counter(system);
    assert_eq!(actor.ask(Msg::AfterSilence).await, Ok(Signal::ReceiveTimeout));
    actor.stop(StopMode::Now);
}

pub(crate) async fn a_failed_actor_starts_again(system: &ReadyQueueScheduler) {
    let actor = counter(system);
    actor.tell(Msg::Add(7));
    actor.tell(Msg::Fail);
    actor.tell(Msg::Add(1));
    assert_eq!(actor.ask(Msg::Sum).await, Ok(1), "the sum begins anew, and no message is lost");
    actor.stop(StopMode::Now);
}

pub(crate) async fn an_interrupt_handler_tells(system: &ReadyQueueScheduler) {
    let actor = counter(system);
    let ticked = actor.ask(Msg::AfterTicks);
    systick::listen(Some(actor.clone()));
    assert_eq!(ticked.await, Ok(VectActive::Exception(Exception::SysTick)));
    systick::listen(None);
    actor.stop(StopMode::Now);
}

/// What a counter is told.
pub(crate) enum Msg {
    Add(u32),
    Sum(Reply<u32>),
    Fail,
    /// Answer with what comes after a silence.
    AfterSilence(Reply<Signal>),
    /// Sent from inside this.
    Tick(VectActive),
    /// Answer with where ticks come from, once there were a few.
    AfterTicks(Reply<VectActive>),
}

#[derive(Default)]
struct Counter {
    sum: u32,
    ticks: u32,
    after_silence: Option<Reply<Signal>>,
    after_ticks: Option<Reply<VectActive>>,
}

impl Actor for Counter {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> Handled<Msg> {
        match message {
            Msg::Add(n) => self.sum += n,
            Msg::Sum(reply) => answer(reply, self.sum),
            Msg::Fail => return Err(ActorError::new("as told")),
            Msg::AfterSilence(reply) => {
                self.after_silence = Some(reply);
                assert!(ctx.set_receive_timeout(Some(SILENCE)), "the wheel has a place");
            }
            Msg::Tick(from) => {
                self.ticks += 1;
                if let Some(reply) = self.after_ticks.take_if(|_| TICKS <= self.ticks) {
                    answer(reply, from);
                }
            }
            Msg::AfterTicks(reply) => self.after_ticks = Some(reply),
        }
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> Handled<Msg> {
        if let Some(reply) = self.after_silence.take() {
            answer(reply, signal);
        }
        Ok(Flow::Continue)
    }
}

fn counter(system: &ReadyQueueScheduler) -> ActorRef<Msg> {
    let props = Props::new(Counter::default).mailbox(MailboxOptions::bounded(MAILBOX)).build();
    system.spawn(&props).expect("there is a place for an actor")
}

/// Whoever asked may have given up.
fn answer<T>(reply: Reply<T>, value: T) {
    drop(reply.send(value));
}
