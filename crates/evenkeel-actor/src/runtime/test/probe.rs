//! Test probe: records messages and signals, and waits for expected ones in virtual time.

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

/// A pair of actors controlled by a test: one records messages, the other (the host) watches actors and has children.
///
/// The `expect` methods wait in virtual time and fail the test if nothing arrives in time.
pub struct Probe<'r, M> {
    runtime: &'r TestRuntime,
    inbox: ActorRef<M>,
    host: ActorRef<HostTask>,
    messages: Recording<M>,
    signals: Recording<Signal>,
}

type Recording<T> = Arc<Lock<VecDeque<T>>>;

/// The host of a [`Probe`]: watches actors, has children, and runs the test's closures.
#[derive(Debug)]
pub struct ProbeHost(Recording<Signal>);

/// A closure for a [`ProbeHost`] to run.
pub struct HostTask(Work);

type Work = Box<dyn FnOnce(&mut Context<'_, ProbeHost>) + Send>;

struct Inbox<M>(Recording<M>);

impl<'r, M: Debug + Send + 'static> Probe<'r, M> {
    /// Spawns a probe with the default supervision.
    pub fn new(runtime: &'r TestRuntime, system: &ReadyQueueScheduler) -> Result<Self, SpawnError> {
        Self::supervising(runtime, system, Supervision::default())
    }

    /// Spawns a probe with this supervision of its children.
    pub fn supervising(
        runtime: &'r TestRuntime,
        system: &ReadyQueueScheduler,
        children: Supervision,
    ) -> Result<Self, SpawnError> {
        let messages = empty();
        let signals = empty();
        let inbox = Inbox(messages.clone());
        let inbox = system.spawn_value(inbox, &Props::of_values().label("probe").build())?;
        let host = Props::of_values().label("probe").supervise(children).build();
        let host = system.spawn_value(ProbeHost(signals.clone()), &host)?;
        Ok(Self { runtime, inbox, host, messages, signals })
    }

    /// Returns the actor that records messages.
    pub fn actor(&self) -> &ActorRef<M> {
        &self.inbox
    }

    /// Runs a closure in a handler of the host, and waits for its result.
    #[track_caller]
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Context<'_, ProbeHost>) -> T + Send + 'static,
    ) -> T {
        let done = self.host.ask(|reply| {
            HostTask(Box::new(move |ctx| {
                // The test waits for the reply below.
                drop(reply.send(work(ctx)));
            }))
        });
        self.runtime.block_on(done).expect("the probe runs until the test ends")
    }

    /// Spawns a child of the host.
    #[track_caller]
    pub fn spawn<C: Actor>(&self, props: &Props<C>) -> Result<ActorRef<C::Msg>, SpawnError> {
        let props = props.clone();
        self.run(move |ctx| ctx.spawn(&props))
    }

    /// Makes the host watch an actor.
    #[track_caller]
    pub fn watch<N: Send + 'static>(&self, target: &ActorRef<N>) {
        let target = target.clone();
        self.run(move |ctx| ctx.watch(&target));
    }

    /// Stops both actors and the host's children.
    pub fn stop(&self) {
        self.inbox.stop(StopMode::Now);
        self.host.stop(StopMode::Now);
        self.runtime.run_until_idle();
    }

    /// Waits for the next message.
    ///
    /// # Panics
    /// If none arrives `within` this time.
    #[track_caller]
    pub fn expect(&self, within: Duration) -> M {
        self.next(&self.messages, "message", within)
    }

    /// Waits for the next message, which must equal `message`.
    ///
    /// # Panics
    /// If none, or another one, arrives `within` this time.
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
    /// If none arrives `within` this time.
    #[track_caller]
    pub fn expect_signal(&self, within: Duration) -> Signal {
        self.next(&self.signals, "signal", within)
    }

    /// Waits for the termination of a watched actor or child; discards other signals that arrive before it.
    ///
    /// # Panics
    /// If it does not arrive `within` this time.
    #[track_caller]
    pub fn expect_terminated<N: Send + 'static>(
        &self,
        target: &ActorRef<N>,
        within: Duration,
    ) -> Termination {
        let deadline = self.runtime.now() + within;
        loop {
            let left = deadline.since(self.runtime.now());
            match self.expect_signal(left) {
                Signal::Terminated { actor, cause } if actor == target.index() => return cause,
                _ => {}
            }
        }
    }

    /// Advances time by `duration`, during which nothing may arrive.
    ///
    /// # Panics
    /// If a message or a signal arrives.
    #[track_caller]
    pub fn expect_nothing(&self, duration: Duration) {
        self.runtime.advance(duration);
        let messages = self.messages();
        let signals = self.signals();
        let seed = self.runtime.seed();
        assert!(
            messages.is_empty() && signals.is_empty(),
            "seed {seed}: received {messages:?} and {signals:?}"
        );
    }

    /// Removes and returns the recorded messages.
    pub fn messages(&self) -> Vec<M> {
        self.runtime.run_until_idle();
        self.messages.with(core::mem::take).into()
    }

    /// Removes and returns the recorded signals.
    pub fn signals(&self) -> Vec<Signal> {
        self.runtime.run_until_idle();
        self.signals.with(core::mem::take).into()
    }

    #[track_caller]
    fn next<T>(&self, recording: &Recording<T>, kind: &str, within: Duration) -> T {
        let deadline = self.runtime.now() + within;
        let next = self.runtime.run_until(deadline, || recording.with(VecDeque::pop_front));
        next.unwrap_or_else(|| fail_timeout(kind, within, self.runtime))
    }
}

fn empty<T>() -> Recording<T> {
    Arc::new(Lock::new(VecDeque::new()))
}

#[track_caller]
#[expect(clippy::panic, reason = "a test probe reports by panicking")]
fn fail_timeout<T>(kind: &str, within: Duration, runtime: &TestRuntime) -> T {
    panic!("no {kind} arrived within {within:?} (seed {})", runtime.seed())
}

impl<M: Send + 'static> Actor for Inbox<M> {
    type Msg = M;

    fn receive(&mut self, message: M, _ctx: &mut Context<'_, Self>) -> HandlerResult<M> {
        self.0.with(|messages| messages.push_back(message));
        Ok(Flow::Continue)
    }
}

impl Actor for ProbeHost {
    type Msg = HostTask;

    fn receive(&mut self, task: HostTask, ctx: &mut Context<'_, Self>) -> HandlerResult<HostTask> {
        (task.0)(ctx);
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<HostTask> {
        self.0.with(|signals| signals.push_back(signal));
        Ok(Flow::Continue)
    }
}
