//! The facade: wires the parts of a system and hands calls on to them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;
use core::future::Future;
use core::num::NonZeroUsize;
use core::time::Duration;

use super::{ActorSystemConfig, Core, InvalidConfig};
use crate::actor::Actor;
use crate::actor_ref::ActorRef;
#[cfg(all(feature = "patterns", feature = "std"))]
use crate::adaptive::{AdaptiveDispatcher, AdaptiveHandle, adapt};
use crate::coordinator::ReadyQueueCoordinator;
use crate::dead_letters::{DeadLetter, DeadLetters};
use crate::executor::{Lifecycle, SetWorkersError, ShutdownReport, WorkerExecutor};
use crate::guardian::ActorError;
use crate::hub::{MetricsSink, Snapshot};
use crate::index::MailboxIndex;
use crate::invoke::{ActorState, SignalKey};
use crate::mailbox::{InvalidMailbox, SystemMessage};
#[cfg(feature = "patterns")]
use crate::name_registry::NameTable;
use crate::props::Props;
use crate::raw::slab::Slab;
use crate::runtime::{RuntimeHandle, RuntimeSpawnError};
#[cfg(feature = "patterns")]
use crate::spawn_middleware::{SpawnChain, SpawnMiddleware};
use crate::stop::StopMode;
use crate::sync::{Arc, AtomicU32, Lock};
use crate::system_metrics::SystemMetrics;
use crate::task::TaskActor;
use crate::timer_driver::TimerDriver;
use crate::timing_wheel::{TimingWheel, WheelOptions};
use crate::trace::record_signal;

/// Builds a system and starts its workers on a runtime.
#[derive(Default)]
pub struct ActorSystemRunner {
    config: ActorSystemConfig,
    #[cfg(feature = "patterns")]
    spawn_chain: SpawnChain,
}

impl ActorSystemRunner {
    /// Prepares a system with these settings.
    pub fn new(config: ActorSystemConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Puts a middleware around every spawn, inside those before.
    #[cfg(feature = "patterns")]
    #[must_use]
    pub fn spawn_middleware(mut self, inner: impl SpawnMiddleware + 'static) -> Self {
        self.spawn_chain.push(Box::new(inner));
        self
    }

    /// Starts it; it runs until it is shut down or the last handle to it is dropped.
    pub fn start(self, runtime: impl RuntimeHandle) -> Result<ReadyQueueScheduler, StartError> {
        self.config.validate().map_err(StartError::Config)?;
        let config = self.config;
        let options = WheelOptions { len_max: config.timers_max, ..WheelOptions::default() };
        let wheel = TimingWheel::new(options).expect("the default tick and buckets are valid");
        let core = Arc::new(Core {
            slab: Slab::new(config.actors_max),
            coordinator: ReadyQueueCoordinator::new(config.workers, config.workers_max),
            clock: TimerDriver::new(wheel),
            hub: SystemMetrics::new(config.workers.get(), config.labels_max, config.metrics),
            root: config.supervision,
            runtime: Box::new(runtime),
            #[cfg(feature = "patterns")]
            names: Lock::new(NameTable::new(config.names_max)),
            #[cfg(feature = "patterns")]
            spawn_chain: self.spawn_chain,
            letters: Lock::new(DeadLetters::new(config.dead_letters_max)),
            lifecycle: AtomicU32::new(Lifecycle::Running as u32),
            config,
        });
        let executor = WorkerExecutor::new(core);
        executor.start_workers().map_err(StartError::Runtime)?;
        Ok(ReadyQueueScheduler { executor: Arc::new(executor) })
    }
}

/// A running system of actors; handles are cheap to clone.
///
/// When the last one is dropped, the actors are stopped without waiting for what is in their
/// mailboxes; [`ReadyQueueScheduler::graceful_shutdown`] waits.
#[derive(Clone)]
pub struct ReadyQueueScheduler {
    executor: Arc<WorkerExecutor>,
}

impl ReadyQueueScheduler {
    /// Makes an actor without a parent.
    pub fn spawn<A: Actor>(&self, props: &Props<A>) -> Result<ActorRef<A::Msg>, SpawnError> {
        Core::spawn(self.core(), props, None, None)
    }

    /// Makes an actor of a value; see [`Props::of_values`].
    pub fn spawn_value<A: Actor>(&self, actor: A, props: &Props<A>) -> Result<ActorRef<A::Msg>, SpawnError> {
        Core::spawn(self.core(), props, Some(actor), None)
    }

    /// Runs a future as an actor without messages, on the same workers.
    ///
    /// What it asks of actors is answered without a detour over the host's scheduler.
    pub fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), SpawnError> {
        Core::spawn(self.core(), &self.executor.task_props, Some(TaskActor::new(task)), None).map(drop)
    }

    /// Tells what an actor is doing; [`ActorState::Stopped`] for a place that nobody has any more.
    pub fn actor_state(&self, index: MailboxIndex) -> ActorState {
        let cell = self.core().slab.find(index.slot, index.generation);
        cell.map_or(ActorState::Stopped, |cell| cell.state())
    }

    /// Ends an actor's wait; `false` when nobody has that place any more.
    pub fn signal(&self, index: MailboxIndex, key: SignalKey) -> bool {
        let Some(cell) = self.core().slab.find(index.slot, index.generation) else { return false };
        record_signal(&cell, key);
        cell.tell_system(SystemMessage::Signal(key)).is_ok()
    }

    /// Asks an actor to end; `false` when nobody has that place any more.
    pub fn stop(&self, index: MailboxIndex, mode: StopMode) -> bool {
        let cell = self.core().slab.find(index.slot, index.generation);
        cell.is_some_and(|cell| cell.tell_system(SystemMessage::Stop(mode)).is_ok())
    }

    /// Counts the actors that have not ended.
    pub fn alive(&self) -> u64 {
        self.core().hub.alive()
    }

    /// Says where the system is in its life.
    pub fn lifecycle(&self) -> Lifecycle {
        self.core().lifecycle()
    }

    /// Says how many workers there should be; fewer or more may work until those who leave have left
    /// and those who come have come.
    pub fn workers(&self) -> NonZeroUsize {
        self.core().workers()
    }

    /// Changes how many workers there should be, from one to
    /// [`workers_max`](ActorSystemConfig::workers_max).
    ///
    /// Returns at once. A worker that is to leave does so at the end of its slice, and leaves its ready
    /// actors to the others: nothing is lost or handled out of turn. May be called from a handler.
    pub fn set_workers(&self, workers: NonZeroUsize) -> Result<(), SetWorkersError> {
        self.executor.set_workers(workers)
    }

    /// Has the number of workers follow what they have to do, until the answer is dropped.
    ///
    /// One at a time: two would work against each other, and against [`Self::set_workers`].
    #[cfg(all(feature = "patterns", feature = "std"))]
    pub fn adapt_workers(&self, dispatcher: AdaptiveDispatcher) -> Result<AdaptiveHandle, SetWorkersError> {
        adapt(self.core(), dispatcher)
    }

    /// Refuses what is new, has what was accepted handled, then ends every actor.
    ///
    /// After `within`, what is not handled becomes dead letters.
    pub async fn graceful_shutdown(&self, within: Duration) -> ShutdownReport {
        self.executor.graceful_shutdown(within).await
    }

    /// Ends every actor before its next message.
    pub fn force_stop(&self) {
        self.executor.force_stop();
    }

    /// Reads every metric.
    pub fn metrics(&self) -> Snapshot {
        let core = self.core();
        core.hub.snapshot(core, &core.letters)
    }

    /// Hands every metric to a sink.
    pub fn publish_metrics(&self, sink: &impl MetricsSink) {
        sink.publish(&self.metrics());
    }

    /// Takes the dead letters that are kept.
    pub fn take_dead_letters(&self) -> VecDeque<DeadLetter> {
        self.core().letters.with(DeadLetters::drain)
    }

    /// Counts the dead letters of all time.
    pub fn dead_letters_total(&self) -> u64 {
        self.core().letters.with(|letters| letters.total())
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.executor.core()
    }
}

impl fmt::Debug for ActorSystemRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorSystemRunner").field("config", &self.config).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReadyQueueScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = self.core();
        f.debug_struct("ReadyQueueScheduler")
            .field("lifecycle", &core.lifecycle())
            .field("alive", &self.alive())
            .field("ready", &core.coordinator.depth())
            .finish_non_exhaustive()
    }
}

/// Why an actor was not made.
#[derive(Clone, Debug, PartialEq)]
pub enum SpawnError {
    /// The system is shutting down.
    Stopping,
    /// There are as many actors as there may be.
    TooMany {
        /// How many there may be.
        actors_max: u32,
    },
    /// The mailbox's options make no sense.
    Mailbox(InvalidMailbox),
    /// The factory of the actor or of its middleware panicked, or there is none.
    Factory(ActorError),
    /// A spawn middleware refused it.
    Refused(ActorError),
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping => f.write_str("the system is shutting down"),
            Self::TooMany { actors_max } => write!(f, "there are {actors_max} actors already"),
            Self::Mailbox(error) => write!(f, "invalid mailbox: {error}"),
            Self::Factory(error) => write!(f, "the factory made no actor: {error}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

impl core::error::Error for SpawnError {}

/// Why a system was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// Its settings make no sense.
    Config(InvalidConfig),
    /// The runtime took no tasks.
    Runtime(RuntimeSpawnError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Runtime(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for StartError {}
