//! An actor system: the state that its cells share, and the facade that applications use.

mod config;
mod scheduler;

pub use config::{ActorSystemConfig, InvalidConfig, Metrics};
pub use scheduler::{ActorSystemRunner, ReadyQueueScheduler, SpawnError, StartError};

use alloc::borrow::Cow;
use alloc::boxed::Box;
use core::any::{Any, type_name};
use core::num::NonZeroUsize;

use evenkeel_policy::time::Instant;

use crate::actor::Actor;
use crate::actor_ref::ActorRef;
use crate::cell::{ActorCell, CellRef, MailboxRegistry};
use crate::coordinator::{ReadyQueueCoordinator, Urgency};
use crate::dead_letter_scope::while_dead_lettering;
use crate::dead_letters::{DeadLetter, DeadLetterReason, DeadLetters, KeepMessage};
use crate::executor::{Lifecycle, run_remaining};
use crate::guardian::{ActorError, Supervision};
use crate::index::MailboxIndex;
use crate::mailbox::MailboxOptions;
#[cfg(feature = "patterns")]
use crate::name_registry::NameTable;
use crate::panic::catch_panic;
use crate::props::{Props, Settings};
use crate::raw::run_permit::allocate;
use crate::ready::WorkerTurns;
use crate::runtime::RuntimeHandle;
#[cfg(feature = "patterns")]
use crate::spawn_middleware::{SpawnChain, SpawnContext};
use crate::stop::StopMode;
use crate::sync::{Arc, AtomicU32, Lock, Ordering, fence};
use crate::system_metrics::{SystemMetrics, overflow_of};
use crate::timer_driver::TimerDriver;

/// The actor to which a dead letter was sent.
struct DeadLetterReceiver {
    to: MailboxIndex,
    actor: Cow<'static, str>,
    keep: KeepMessage,
}

/// The state shared by all cells of one system.
pub(crate) struct Core {
    pub(crate) slab: MailboxRegistry,
    pub(crate) coordinator: ReadyQueueCoordinator,
    pub(crate) timer_driver: TimerDriver,
    pub(crate) hub: SystemMetrics,
    /// The supervision of actors without a parent.
    pub(crate) root: Supervision,
    pub(crate) runtime: Box<dyn RuntimeHandle>,
    pub(crate) config: ActorSystemConfig,
    #[cfg(feature = "patterns")]
    pub(crate) names: Lock<NameTable>,
    #[cfg(feature = "patterns")]
    spawn_chain: SpawnChain,
    dead_letters: Lock<DeadLetters>,
    lifecycle: AtomicU32,
    /// Number of worker tasks that the host runtime has not dropped.
    pub(crate) worker_tasks: AtomicU32,
    /// Nonzero once the host runtime has dropped the timer task or the last worker of the running system.
    host_gone: AtomicU32,
}

impl Core {
    pub(crate) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// Returns the target number of workers.
    pub(crate) fn workers(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.coordinator.queues.worker_slots.wanted()).unwrap_or(NonZeroUsize::MIN)
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        Lifecycle::from_word(self.lifecycle.load(Ordering::SeqCst))
    }

    /// Advances the lifecycle; never moves back.
    pub(crate) fn advance(&self, to: Lifecycle) {
        self.lifecycle.fetch_max(to as u32, Ordering::SeqCst);
    }

    /// Records that the host runtime was dropped before the system: nothing runs the actors any more.
    pub(crate) fn record_host_gone(&self) {
        self.host_gone.store(1, Ordering::SeqCst);
        self.advance(Lifecycle::Stopped);
    }

    pub(crate) fn is_host_gone(&self) -> bool {
        self.host_gone.load(Ordering::SeqCst) != 0
    }

    /// Reports whether workers should exit: the system has stopped and no actor is left.
    pub(crate) fn is_finished(&self) -> bool {
        if self.lifecycle.load(Ordering::Relaxed) != Lifecycle::Stopped as u32 {
            return false;
        }
        // A spawn counts the actor, then reads the lifecycle, so either the spawn or this check sees the other.
        fence(Ordering::SeqCst);
        self.hub.alive() == 0
    }

    /// Wakes every worker and the timer task, so that they notice a finished system.
    pub(crate) fn wake_all_for_shutdown(&self) {
        self.coordinator.idle.notify_all();
        self.timer_driver.wake();
    }

    /// Reports whether the timer task must check for workers stuck in a long handler: while a worker runs, and once more.
    ///
    /// Without that last check, a system that is asked every few microseconds would wake the timer task for each ask.
    pub(crate) fn needs_stuck_check(&self, last: &WorkerTurns) -> bool {
        // Includes workers about to start and workers about to exit.
        let worker_slots = &self.coordinator.queues.worker_slots;
        let workers = worker_slots.wanted().max(worker_slots.running_end());
        workers > 1 && (last.have_changed() || self.coordinator.idle.parked_count() < workers)
    }

    /// Moves cells that wait behind stuck workers to the injection queue; see [`crate::timer_driver`].
    #[cfg(feature = "std")]
    pub(crate) fn steal_from_stuck(&self, last: &mut WorkerTurns) -> bool {
        self.coordinator.queues.steal_from_stuck(last)
    }

    /// Does nothing: with one worker, no other could run the cells.
    #[cfg(not(feature = "std"))]
    pub(crate) fn steal_from_stuck(&self, _last: &mut WorkerTurns) -> bool {
        false
    }

    /// Spawns an actor from a value, or from its factory if `actor` is `None`.
    pub(crate) fn spawn<A: Actor>(
        this: &Arc<Self>,
        props: &Props<A>,
        actor: Option<A>,
        parent: Option<CellRef>,
    ) -> Result<ActorRef<A::Msg>, SpawnError> {
        Self::spawn_prepared(this, props, actor, parent, |_| {})
    }

    /// Like [`Core::spawn`], but calls `prepare` before the actor runs for the first time.
    pub(crate) fn spawn_prepared<A: Actor>(
        this: &Arc<Self>,
        props: &Props<A>,
        actor: Option<A>,
        parent: Option<CellRef>,
        prepare: impl FnOnce(&ActorRef<A::Msg>),
    ) -> Result<ActorRef<A::Msg>, SpawnError> {
        #[cfg(feature = "patterns")]
        if !this.spawn_chain.is_empty() {
            let settings = &props.0.settings;
            let ctx = SpawnContext {
                label: settings.label.as_str(),
                parent: parent.as_ref().map(CellRef::index),
                mailbox: this.mailbox_of(settings),
                now: this.now(),
            };
            let spawn = || Self::spawn_unhooked(this, props, actor, parent, prepare);
            return this.spawn_chain.spawn_with_hooks(&ctx, spawn, ActorRef::index);
        }
        Self::spawn_unhooked(this, props, actor, parent, prepare)
    }

    fn spawn_unhooked<A: Actor>(
        this: &Arc<Self>,
        props: &Props<A>,
        actor: Option<A>,
        parent: Option<CellRef>,
        prepare: impl FnOnce(&ActorRef<A::Msg>),
    ) -> Result<ActorRef<A::Msg>, SpawnError> {
        if this.lifecycle() != Lifecycle::Running {
            return Err(SpawnError::Stopping);
        }
        let spec = &props.0;
        let mailbox = this.mailbox_of(&spec.settings);
        mailbox.validate().map_err(SpawnError::Mailbox)?;
        let actor = match (actor, &spec.factory) {
            (Some(actor), _) => actor,
            (None, Some(factory)) => catch_panic(factory).map_err(SpawnError::Factory)?,
            (None, None) => {
                return Err(SpawnError::Factory(ActorError::new("props of values have no factory")));
            }
        };
        let middleware = catch_panic(|| spec.settings.make_middleware(mailbox.middleware));
        let middleware = middleware.map_err(SpawnError::Factory)?;
        let kind = this.hub.count_spawn(spec.settings.label.as_str());
        fence(Ordering::SeqCst);
        if this.lifecycle() != Lifecycle::Running {
            // The workers may have exited while the factory ran.
            this.hub.count_end(kind, Default::default(), Default::default());
            this.wake_all_for_shutdown();
            return Err(SpawnError::Stopping);
        }
        let body = ActorCell::new(spec.clone(), mailbox, actor, middleware, kind, parent);
        let Ok((mailbox, permit)) = allocate(this, body) else {
            this.hub.count_end(kind, Default::default(), Default::default());
            return Err(SpawnError::TooMany { actors_max: this.config.actors_max });
        };
        let spawned = ActorRef::new(mailbox);
        prepare(&spawned);
        this.coordinator.register_ready(this, permit, Urgency::Normal);
        let mode = match this.lifecycle() {
            Lifecycle::Running => return Ok(spawned),
            Lifecycle::Stopping => StopMode::Drained,
            Lifecycle::Draining | Lifecycle::Stopped => StopMode::Now,
        };
        // Shutdown may have iterated over the cells before this one existed.
        spawned.cell().occupant().body.close();
        spawned.stop(mode);
        if this.is_host_gone() {
            run_remaining(this);
        }
        Ok(spawned)
    }

    /// Returns the mailbox options of an actor: its own or the system's.
    pub(crate) fn mailbox_of<'a>(&'a self, settings: &'a Settings) -> &'a MailboxOptions {
        settings.mailbox.as_ref().unwrap_or(&self.config.mailbox)
    }

    /// Returns the dead-letter reason for a message to a closed mailbox.
    pub(crate) fn closed_reason(&self) -> DeadLetterReason {
        match self.lifecycle() {
            Lifecycle::Running => DeadLetterReason::Closed,
            _ if self.is_host_gone() => DeadLetterReason::HostGone,
            Lifecycle::Stopping | Lifecycle::Draining | Lifecycle::Stopped => DeadLetterReason::Refused,
        }
    }

    /// Returns the dead-letter reason for a message that is queued when its actor stops.
    pub(crate) fn stopped_reason(&self) -> DeadLetterReason {
        if self.is_host_gone() { DeadLetterReason::HostGone } else { DeadLetterReason::Stopped }
    }

    /// Drops the stored dead letters and stores no more, once nothing can read them.
    ///
    /// A stored message may hold an actor's address, which would keep the system alive in a cycle.
    pub(crate) fn close_dead_letters(&self) {
        let letters = self.dead_letters.with(DeadLetters::close);
        drop(catch_panic(|| drop(letters)));
    }

    /// Dead-letters a message.
    pub(crate) fn dead_letter<M: Send + 'static>(
        &self,
        cell: &CellRef,
        message: M,
        reason: DeadLetterReason,
    ) {
        let body = &cell.occupant().body;
        if let Some(overflow) = overflow_of(reason) {
            self.hub.count_overflow(body.header().kind, overflow);
        }
        if reason == DeadLetterReason::MailboxFailed {
            self.dead_letters.with(|letters| letters.count_unkept(reason));
            return drop_dead_letter(message);
        }
        let receiver = DeadLetterReceiver {
            to: cell.index(),
            actor: Cow::Owned(body.settings().trace_label().into()),
            keep: body.settings().keep_dead_letters,
        };
        self.store_dead_letter(receiver, message, reason);
    }

    /// Dead-letters a message to an index that has no actor.
    pub(crate) fn dead_letter_unaddressed<M: Send + 'static>(&self, to: MailboxIndex, message: M) {
        let receiver =
            DeadLetterReceiver { to, actor: Cow::Borrowed("unknown"), keep: KeepMessage::default() };
        self.store_dead_letter(receiver, message, DeadLetterReason::NoSuchActor);
    }

    fn store_dead_letter<M: Send + 'static>(
        &self,
        DeadLetterReceiver { to, actor, keep }: DeadLetterReceiver,
        message: M,
        reason: DeadLetterReason,
    ) {
        let (kept, dropped) = if keep.keeps::<M>() {
            (Some(Box::new(message) as Box<dyn Any + Send>), None)
        } else {
            (None, Some(message))
        };
        let message_type = type_name::<M>();
        let letter = DeadLetter { to, actor, reason, message_type, message: kept, at: self.now() };
        let evicted = self.dead_letters.with(|letters| letters.push(letter));
        drop_dead_letter(dropped);
        drop(catch_panic(|| drop(evicted)));
    }
}

/// Drops a dead letter's message; call it outside the lock, because the message's `Drop` may send messages or panic.
fn drop_dead_letter<M>(message: M) {
    drop(catch_panic(|| while_dead_lettering(|| drop(message))));
}
