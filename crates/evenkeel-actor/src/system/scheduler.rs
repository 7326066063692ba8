//! The facade of an actor system: builds its parts and delegates calls to them.

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
use crate::raw::mailbox_ref::MailboxRef;
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

/// Builder that starts an actor system on a runtime.
#[derive(Default)]
pub struct ActorSystemRunner {
    config: ActorSystemConfig,
    #[cfg(feature = "patterns")]
    spawn_chain: SpawnChain,
}

impl ActorSystemRunner {
    /// Returns a runner with this configuration.
    pub fn new(config: ActorSystemConfig) -> Self {
        Self {
            config,
            #[cfg(feature = "patterns")]
            spawn_chain: SpawnChain::default(),
        }
    }

    /// Wraps every spawn in a middleware, inside the middleware added before it.
    #[cfg(feature = "patterns")]
    #[must_use]
    pub fn spawn_middleware(mut self, inner: impl SpawnMiddleware + 'static) -> Self {
        self.spawn_chain.push(Box::new(inner));
        self
    }

    /// Starts the system; it runs until it is shut down or the last handle is dropped.
    pub fn start(self, runtime: impl RuntimeHandle) -> Result<ReadyQueueScheduler, StartError> {
        self.config.validate().map_err(StartError::Config)?;
        if !runtime.has_timer() {
            return Err(StartError::NoTimer);
        }
        let config = self.config;
        let workers = config.workers.unwrap_or_else(|| runtime.workers_default()).min(config.workers_max);
        let options = WheelOptions { len_max: config.timers_max, ..WheelOptions::default() };
        let wheel = TimingWheel::new(options).expect("the default tick and buckets are valid");
        let core = Arc::new(Core {
            slab: Slab::new(config.actors_max),
            coordinator: ReadyQueueCoordinator::new(workers, config.workers_max),
            timer_driver: TimerDriver::new(wheel),
            hub: SystemMetrics::new(workers.get(), config.labels_max, config.metrics),
            root: config.supervision,
            runtime: Box::new(runtime),
            #[cfg(feature = "patterns")]
            names: Lock::new(NameTable::new(config.names_max)),
            #[cfg(feature = "patterns")]
            spawn_chain: self.spawn_chain,
            dead_letters: Lock::new(DeadLetters::new(config.dead_letters_max)),
            lifecycle: AtomicU32::new(Lifecycle::Running as u32),
            worker_tasks: AtomicU32::new(0),
            host_gone: AtomicU32::new(0),
            config,
        });
        let executor = WorkerExecutor::new(core);
        executor.start_workers().map_err(StartError::Runtime)?;
        if executor.core().is_host_gone() {
            // The runtime has shut down, so it dropped the tasks at once.
            return Err(StartError::Runtime(RuntimeSpawnError));
        }
        Ok(ReadyQueueScheduler { executor: Arc::new(executor) })
    }
}

/// A running actor system; the handle is cheap to clone.
///
/// When the last handle is dropped, the actors are stopped without handling the messages in their mailboxes;
/// [`ReadyQueueScheduler::graceful_shutdown`] handles them first.
#[derive(Clone)]
pub struct ReadyQueueScheduler {
    executor: Arc<WorkerExecutor>,
}

impl ReadyQueueScheduler {
    /// Spawns an actor without a parent.
    pub fn spawn<A: Actor>(&self, props: &Props<A>) -> Result<ActorRef<A::Msg>, SpawnError> {
        Core::spawn(self.core(), props, None, None)
    }

    /// Spawns an actor from a value; see [`Props::of_values`].
    pub fn spawn_value<A: Actor>(&self, actor: A, props: &Props<A>) -> Result<ActorRef<A::Msg>, SpawnError> {
        Core::spawn(self.core(), props, Some(actor), None)
    }

    /// Runs a future on the actors' workers, as an actor that accepts no messages.
    ///
    /// Replies to its asks arrive without a detour through the host's scheduler.
    pub fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), SpawnError> {
        Core::spawn(self.core(), &self.executor.task_props, Some(TaskActor::new(task)), None).map(drop)
    }

    /// Returns the address of an actor; `None` if it no longer exists or handles messages of another type.
    pub fn actor_ref<M: Send + 'static>(&self, index: MailboxIndex) -> Option<ActorRef<M>> {
        let cell = self.core().slab.find(index.slot, index.generation)?;
        MailboxRef::typed(cell).ok().map(ActorRef::new)
    }

    /// Sends to the actor with this index, like [`ActorRef::tell`].
    ///
    /// If it no longer exists, or handles messages of another type, the message is dead-lettered with the reason
    /// [`NoSuchActor`](crate::dead_letters::DeadLetterReason::NoSuchActor).
    pub fn tell<M: Send + 'static>(&self, index: MailboxIndex, message: M) {
        match self.actor_ref(index) {
            Some(actor) => actor.tell(message),
            None => self.core().dead_letter_unaddressed(index, message),
        }
    }

    /// Returns the state of an actor; [`ActorState::Stopped`] if it no longer exists.
    pub fn actor_state(&self, index: MailboxIndex) -> ActorState {
        let cell = self.core().slab.find(index.slot, index.generation);
        cell.map_or(ActorState::Stopped, |cell| cell.state())
    }

    /// Sends the signal that ends an actor's wait; returns `false` if the actor no longer exists.
    pub fn signal(&self, index: MailboxIndex, key: SignalKey) -> bool {
        let Some(cell) = self.core().slab.find(index.slot, index.generation) else { return false };
        record_signal(&cell, key);
        cell.tell_system(SystemMessage::Signal(key)).is_ok()
    }

    /// Stops an actor; returns `false` if it no longer exists.
    pub fn stop(&self, index: MailboxIndex, mode: StopMode) -> bool {
        let cell = self.core().slab.find(index.slot, index.generation);
        cell.is_some_and(|cell| cell.tell_system(SystemMessage::Stop(mode)).is_ok())
    }

    /// Returns the number of actors that have not stopped.
    pub fn alive(&self) -> u64 {
        self.core().hub.alive()
    }

    /// Returns the lifecycle state of the system.
    pub fn lifecycle(&self) -> Lifecycle {
        self.core().lifecycle()
    }

    /// Returns the target number of workers; the actual number may differ while workers start or exit.
    pub fn workers(&self) -> NonZeroUsize {
        self.core().workers()
    }

    /// Sets the target number of workers, from one to [`workers_max`](ActorSystemConfig::workers_max).
    ///
    /// Returns at once. A surplus worker exits at the end of its slice and hands its ready actors to the others; no
    /// message is lost or reordered. May be called from a handler.
    pub fn set_workers(&self, workers: NonZeroUsize) -> Result<(), SetWorkersError> {
        self.executor.set_workers(workers)
    }

    /// Adapts the number of workers to the load until the returned handle is dropped.
    ///
    /// Use one at a time: two would undo each other's changes, and those of [`Self::set_workers`].
    #[cfg(all(feature = "patterns", feature = "std"))]
    pub fn adapt_workers(&self, dispatcher: AdaptiveDispatcher) -> Result<AdaptiveHandle, SetWorkersError> {
        adapt(self.core(), dispatcher)
    }

    /// Rejects new messages and actors, handles the accepted messages, then stops every actor.
    ///
    /// Messages not handled after `within` are dead-lettered.
    pub async fn graceful_shutdown(&self, within: Duration) -> ShutdownReport {
        self.executor.graceful_shutdown(within).await
    }

    /// Stops every actor before its next message.
    pub fn force_stop(&self) {
        self.executor.force_stop();
    }

    /// Returns a snapshot of all metrics.
    pub fn metrics(&self) -> Snapshot {
        let core = self.core();
        core.hub.snapshot(core, &core.dead_letters)
    }

    /// Publishes a snapshot of all metrics to a sink.
    pub fn publish_metrics(&self, sink: &impl MetricsSink) {
        sink.publish(&self.metrics());
    }

    /// Removes and returns the stored dead letters.
    pub fn take_dead_letters(&self) -> VecDeque<DeadLetter> {
        self.core().dead_letters.with(DeadLetters::drain)
    }

    /// Returns the number of dead letters since the start.
    pub fn dead_letters_total(&self) -> u64 {
        self.core().dead_letters.with(|letters| letters.total())
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

/// Reason an actor could not be spawned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpawnError {
    /// The system is shutting down.
    #[error("the system is shutting down")]
    Stopping,
    /// The limit of actors is reached.
    #[error("the limit of {actors_max} actors is reached")]
    TooMany {
        /// The limit.
        actors_max: u32,
    },
    /// The mailbox options are invalid.
    #[error("invalid mailbox: {0}")]
    Mailbox(#[source] InvalidMailbox),
    /// The factory of the actor or of its middleware panicked, or there is none.
    #[error("the factory created no actor: {0}")]
    Factory(#[source] ActorError),
    /// A spawn middleware rejected the actor.
    #[error("rejected by spawn middleware: {0}")]
    Refused(#[source] ActorError),
}

/// Reason a system could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(InvalidConfig),
    /// The runtime has no timer.
    #[error("the runtime has no time driver; build it with enable_time or enable_all")]
    NoTimer,
    /// The runtime accepts no more tasks.
    #[error(transparent)]
    Runtime(RuntimeSpawnError),
}
