//! An actor that remembers what it hears, for a test to ask about.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::time::Duration;

use super::TestRuntime;
use crate::actor::{Actor, Flow, HandlerResult, Signal};
use crate::actor_ref::ActorRef;
use crate::context::Context;
use crate::guardian::Supervision;
use crate::props::Props;
use crate::stop::{StopMode, Termination};
use crate::sync::Lock;
use crate::system::{ReadyQueueScheduler, SpawnError};

/// Two actors in the hands of a test: one that takes messages, one that watches and has children.
///
/// What is expected is waited for in virtual time, and what is not heard by then fails the test.
pub struct Probe<'r, M> {
    runtime: &'r TestRuntime,
    inbox: ActorRef<M>,
    host: ActorRef<HostTask>,
    messages: Recording<M>,
    signals: Recording<Signal>,
}

type Recording<T> = Arc<Lock<VecDeque<T>>>;

/// The half of a [`Probe`] that watches and has children; it does what the test says.
#[derive(Debug)]
pub struct ProbeHost(Recording<Signal>);

/// Something for a [`ProbeHost`] to do.
pub struct HostTask(Work);

type Work = Box<dyn FnOnce(&mut Context<'_, ProbeHost>) + Send>;

struct Inbox<M>(Recording<M>);

impl<'r, M: Debug + Send + 'static> Probe<'r, M> {
    /// Makes a probe whose children are supervised as by default.
    pub fn new(runtime: &'r TestRuntime, system: &ReadyQueueScheduler) -> Result<Self, SpawnError> {
        Self::supervising(runtime, system, Supervision::default())
    }

    /// Makes a probe that supervises its children like this.
    pub fn supervising(
        runtime: &'r TestRuntime,
        system: &ReadyQueueScheduler,
        children: Supervision,
    ) -> Result<Self, SpawnError> {
        let messages = nothing();
        let signals = nothing();
        let inbox = Inbox(messages.clone());
        let inbox = system.spawn_value(inbox, &Props::of_values().label("probe").build())?;
        let host = Props::of_values().label("probe").supervise(children).build();
        let host = system.spawn_value(ProbeHost(signals.clone()), &host)?;
        Ok(Self { runtime, inbox, host, messages, signals })
    }

    /// Names the half that takes messages.
    pub fn actor(&self) -> &ActorRef<M> {
        &self.inbox
    }

    /// Has the other half do something, as a handler of its own would, and waits until it is done.
    #[track_caller]
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Context<'_, ProbeHost>) -> T + Send + 'static,
    ) -> T {
        let done = self.host.ask(|reply| {
            HostTask(Box::new(move |ctx| {
                // The test waits for it; see below.
                drop(reply.send(work(ctx)));
            }))
        });
        self.runtime.block_on(done).expect("the probe runs until the test ends")
    }

    /// Makes a child of the probe.
    #[track_caller]
    pub fn spawn<C: Actor>(&self, props: &Props<C>) -> Result<ActorRef<C::Msg>, SpawnError> {
        let props = props.clone();
        self.run(move |ctx| ctx.spawn(&props))
    }

    /// Has the end of an actor told to the probe.
    #[track_caller]
    pub fn watch<N: Send + 'static>(&self, target: &ActorRef<N>) {
        let target = target.clone();
        self.run(move |ctx| ctx.watch(&target));
    }

    /// Ends both halves, and what the probe has for children.
    pub fn stop(&self) {
        self.inbox.stop(StopMode::Now);
        self.host.stop(StopMode::Now);
        self.runtime.run_until_idle();
    }

    /// Waits for the next message.
    ///
    /// # Panics
    /// When none came `within` that span.
    #[track_caller]
    pub fn expect(&self, within: Duration) -> M {
        self.next(&self.messages, "message", within)
    }

    /// Waits for the next message, which must be this one.
    ///
    /// # Panics
    /// When none came `within` that span, or another.
    #[track_caller]
    pub fn expect_eq(&self, message: &M, within: Duration)
    where
        M: PartialEq,
    {
        assert_eq!(&self.expect(within), message, "seed {}", self.runtime.seed());
    }

    /// Waits for the next signal.
    ///
    /// # Panics
    /// When none came `within` that span.
    #[track_caller]
    pub fn expect_signal(&self, within: Duration) -> Signal {
        self.next(&self.signals, "signal", within)
    }

    /// Waits for the end of an actor that is watched or a child; other signals before it are dropped.
    ///
    /// # Panics
    /// When it was not told `within` that span.
    #[track_caller]
    pub fn expect_terminated<N: Send + 'static>(&self, target: &ActorRef<N>, within: Duration) -> Termination {
        let deadline = self.runtime.now() + within;
        loop {
            let left = deadline.since(self.runtime.now());
            match self.expect_signal(left) {
                Signal::Terminated { actor, cause } if actor == target.index() => return cause,
                _ => {}
            }
        }
    }

    /// Lets time pass, in which nothing must be heard.
    ///
    /// # Panics
    /// When a message or a signal came.
    #[track_caller]
    pub fn expect_nothing(&self, span: Duration) {
        self.runtime.advance(span);
        let heard = (self.messages(), self.signals());
        assert!(heard.0.is_empty() && heard.1.is_empty(), "seed {}: heard {heard:?}", self.runtime.seed());
    }

    /// Takes the messages heard so far.
    pub fn messages(&self) -> Vec<M> {
        self.runtime.run_until_idle();
        self.messages.with(core::mem::take).into()
    }

    /// Takes the signals heard so far.
    pub fn signals(&self) -> Vec<Signal> {
        self.runtime.run_until_idle();
        self.signals.with(core::mem::take).into()
    }

    #[track_caller]
    fn next<T>(&self, heard: &Recording<T>, what: &str, within: Duration) -> T {
        let next = self.runtime.run_until(self.runtime.now() + within, || heard.with(VecDeque::pop_front));
        next.unwrap_or_else(|| nothing_heard(what, within, self.runtime))
    }
}

fn nothing<T>() -> Recording<T> {
    Arc::new(Lock::new(VecDeque::new()))
}

#[track_caller]
#[expect(clippy::panic, reason = "this is how a test kit says what it found")]
fn nothing_heard<T>(what: &str, within: Duration, runtime: &TestRuntime) -> T {
    panic!("no {what} came within {within:?} (seed {})", runtime.seed())
}

impl<M: Send + 'static> Actor for Inbox<M> {
    type Msg = M;

    fn receive(&mut self, message: M, _ctx: &mut Context<'_, Self>) -> HandlerResult<M> {
        self.0.with(|heard| heard.push_back(message));
        Ok(Flow::Continue)
    }
}

impl Actor for ProbeHost {
    type Msg = HostTask;

    fn receive(&mut self, order: HostTask, ctx: &mut Context<'_, Self>) -> HandlerResult<HostTask> {
        (order.0)(ctx);
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<HostTask> {
        self.0.with(|heard| heard.push_back(signal));
        Ok(Flow::Continue)
    }
}
