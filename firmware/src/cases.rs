//! Test cases on a microcontroller; a case that fails aborts the program.
//!
//! Limits: every case waits in an ask, which is answered or times out after [`evenkeel_actor::ASK_TIMEOUT`].

use core::num::NonZeroUsize;
use core::time::Duration;

use cortex_m::peripheral::scb::{Exception, VectActive};
use evenkeel_actor::{
    Actor, ActorError, ActorRef, Context, Flow, HandlerResult, MailboxOptions, Props, ReadyQueueScheduler,
    Reply, Signal, StopMode,
};

use crate::systick;

const MESSAGES: u32 = 100;
/// The negative control expects one message too many.
const MESSAGES_EXPECTED: u32 = MESSAGES + if cfg!(feature = "negative") { 1 } else { 0 };
const MAILBOX: NonZeroUsize = NonZeroUsize::new(16).expect("16 is not zero");
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(5);
const TICKS: u32 = 3;

pub(crate) async fn three_actors_handle_a_hundred_messages_each(system: &ReadyQueueScheduler) {
    let actors = [counter(system), counter(system), counter(system)];
    for _ in 0..MESSAGES {
        for actor in &actors {
            actor.send(Msg::Add(1)).await.expect("the mailbox is open");
        }
    }
    for actor in &actors {
        assert_eq!(actor.ask(Msg::Sum).await, Ok(MESSAGES_EXPECTED));
        actor.stop(StopMode::Now);
    }
}

pub(crate) async fn a_receive_timeout_arrives(system: &ReadyQueueScheduler) {
    let actor = counter(system);
    assert_eq!(actor.ask(Msg::AwaitTimeout).await, Ok(Signal::ReceiveTimeout));
    actor.stop(StopMode::Now);
}

pub(crate) async fn a_failed_actor_is_restarted(system: &ReadyQueueScheduler) {
    let actor = counter(system);
    actor.tell(Msg::Add(7));
    actor.tell(Msg::Fail);
    actor.tell(Msg::Add(1));
    assert_eq!(actor.ask(Msg::Sum).await, Ok(1), "the state is new, and no message is lost");
    actor.stop(StopMode::Now);
}

pub(crate) async fn an_interrupt_handler_sends_messages(system: &ReadyQueueScheduler) {
    let actor = counter(system);
    let tick_source = actor.ask(Msg::AfterTicks);
    systick::listen(Some(actor.clone()));
    assert_eq!(tick_source.await, Ok(VectActive::Exception(Exception::SysTick)));
    systick::listen(None);
    actor.stop(StopMode::Now);
}

/// Messages handled by [`Counter`].
pub(crate) enum Msg {
    Add(u32),
    Sum(Reply<u32>),
    Fail,
    /// Sets a receive timeout and replies with the next signal.
    AwaitTimeout(Reply<Signal>),
    /// Sent by an interrupt handler, with the active exception.
    Tick(VectActive),
    /// Replies with the source of the ticks after [`TICKS`] of them.
    AfterTicks(Reply<VectActive>),
}

#[derive(Default)]
struct Counter {
    sum: u32,
    ticks: u32,
    after_timeout: Option<Reply<Signal>>,
    after_ticks: Option<Reply<VectActive>>,
}

impl Actor for Counter {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match message {
            Msg::Add(n) => self.sum += n,
            Msg::Sum(reply) => send_reply(reply, self.sum),
            Msg::Fail => return Err(ActorError::new("on purpose")),
            Msg::AwaitTimeout(reply) => {
                self.after_timeout = Some(reply);
                assert!(ctx.set_receive_timeout(Some(RECEIVE_TIMEOUT)), "the timing wheel has capacity");
            }
            Msg::Tick(from) => {
                self.ticks += 1;
                if let Some(reply) = self.after_ticks.take_if(|_| self.ticks >= TICKS) {
                    send_reply(reply, from);
                }
            }
            Msg::AfterTicks(reply) => self.after_ticks = Some(reply),
        }
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        if let Some(reply) = self.after_timeout.take() {
            send_reply(reply, signal);
        }
        Ok(Flow::Continue)
    }
}

fn counter(system: &ReadyQueueScheduler) -> ActorRef<Msg> {
    let props = Props::new(Counter::default).mailbox(MailboxOptions::bounded(MAILBOX)).build();
    system.spawn(&props).expect("the limit of actors is not reached")
}

/// Replies; the asker may have given up.
fn send_reply<T>(reply: Reply<T>, value: T) {
    drop(reply.send(value));
}
