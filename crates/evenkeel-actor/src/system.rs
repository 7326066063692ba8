//! A system of actors: its parts joined, and the facade through which they are used.

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
use crate::cell::{ActorCell, CellEntry, CellRef};
use crate::coordinator::ReadyQueueCoordinator;
use crate::dead_letter_scope::while_dead_lettering;
use crate::dead_letters::{DeadLetter, DeadLetterReason, DeadLetters};
use crate::executor::Lifecycle;
use crate::guardian::{ActorError, Supervision};
use crate::mailbox::MailboxOptions;
#[cfg(feature = "patterns")]
use crate::name_registry::NameTable;
use crate::panic::catch;
use crate::props::{Props, Settings};
use crate::raw::run_permit::allocate;
use crate::raw::slab::Slab;
use crate::runtime::RuntimeHandle;
#[cfg(feature = "patterns")]
use crate::spawn_middleware::{SpawnChain, SpawnContext};
use crate::stop::StopMode;
use crate::sync::{Arc, AtomicU32, Lock, Ordering, fence};
use crate::system_metrics::{SystemMetrics, overflow_of};
use crate::timer_driver::TimerDriver;

/// Everything the cells of one system share.
pub(crate) struct Core {
    pub(crate) slab: Slab<CellEntry>,
    pub(crate) coordinator: ReadyQueueCoordinator,
    pub(crate) clock: TimerDriver,
    pub(crate) hub: SystemMetrics,
    /// What happens to actors without a parent.
    pub(crate) root: Supervision,
    pub(crate) runtime: Box<dyn RuntimeHandle>,
    pub(crate) config: ActorSystemConfig,
    #[cfg(feature = "patterns")]
    pub(crate) names: Lock<NameTable>,
    #[cfg(feature = "patterns")]
    spawn_chain: SpawnChain,
    letters: Lock<DeadLetters>,
    lifecycle: AtomicU32,
}

impl Core {
    pub(crate) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// How many workers there should be.
    pub(crate) fn workers(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.coordinator.queues.crew.wanted()).unwrap_or(NonZeroUsize::MIN)
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        Lifecycle::from_word(self.lifecycle.load(Ordering::SeqCst))
    }

    /// Moves on in the lifecycle; never back.
    pub(crate) fn advance(&self, to: Lifecycle) {
        self.lifecycle.fetch_max(to as u32, Ordering::SeqCst);
    }

    /// Whether workers should leave: the system has stopped, and nothing is left in it.
    pub(crate) fn is_over(&self) -> bool {
        if self.lifecycle.load(Ordering::Relaxed) != Lifecycle::Stopped as u32 {
            return false;
        }
        // Whoever spawns counts the actor, then looks at the lifecycle: one of the two sees the other.
        fence(Ordering::SeqCst);
        self.hub.alive() == 0
    }

    /// Wakes every worker and the clock, to see whether the system is over.
    pub(crate) fn wake_all_for_shutdown(&self) {
        self.coordinator.idle.notify_all();
        self.clock.wake();
    }

    /// Whether somebody must look after cells that wait behind a handler that takes long.
    pub(crate) fn is_watched(&self) -> bool {
        // Those who are to come, and those who have yet to leave.
        let crew = &self.coordinator.queues.crew;
        let workers = crew.wanted().max(crew.reach());
        1 < workers && self.coordinator.idle.sleeping() < workers
    }

    /// Frees what waits behind stuck workers; see [`crate::clock`].
    #[cfg(feature = "std")]
    pub(crate) fn rescue(&self, turns: &mut [u32]) -> bool {
        self.coordinator.queues.steal_from_stuck(turns)
    }

    /// With one worker there is nobody to come to the rescue.
    #[cfg(not(feature = "std"))]
    pub(crate) fn rescue(&self, _turns: &mut [u32]) -> bool {
        false
    }

    /// Makes an actor, from a value or by its factory.
    pub(crate) fn spawn<A: Actor>(
        this: &Arc<Self>,
        props: &Props<A>,
        actor: Option<A>,
        parent: Option<CellRef>,
    ) -> Result<ActorRef<A::Msg>, SpawnError> {
        Self::spawn_after(this, props, actor, parent, |_| {})
    }

    /// The same, with something to be done before the actor runs for the first time.
    pub(crate) fn spawn_after<A: Actor>(
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
            let make = || Self::make(this, props, actor, parent, prepare);
            return this.spawn_chain.surround(&ctx, make, ActorRef::index);
        }
        Self::make(this, props, actor, parent, prepare)
    }

    fn make<A: Actor>(
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
            (None, Some(factory)) => catch(factory).map_err(SpawnError::Factory)?,
            (None, None) => {
                return Err(SpawnError::Factory(ActorError::new("props of values have no factory")));
            }
        };
        let middleware = catch(|| spec.settings.make_middleware(mailbox.middleware));
        let middleware = middleware.map_err(SpawnError::Factory)?;
        let kind = this.hub.count_spawn(spec.settings.label.as_str());
        fence(Ordering::SeqCst);
        if this.lifecycle() != Lifecycle::Running {
            // Its factory may have taken long, and the workers may have left.
            this.hub.count_end(kind, Default::default(), Default::default());
            this.wake_all_for_shutdown();
            return Err(SpawnError::Stopping);
        }
        let body = ActorCell::new(spec.clone(), mailbox, actor, middleware, kind, parent);
        let Ok((lane, ready)) = allocate(this, body) else {
            this.hub.count_end(kind, Default::default(), Default::default());
            return Err(SpawnError::TooMany { actors_max: this.config.actors_max });
        };
        let made = ActorRef::new(lane);
        prepare(&made);
        this.coordinator.register_ready(this, ready);
        let mode = match this.lifecycle() {
            Lifecycle::Running => return Ok(made),
            Lifecycle::Stopping => StopMode::Drained,
            Lifecycle::Draining | Lifecycle::Stopped => StopMode::Now,
        };
        // Shutdown may have passed by while the cell was not there yet.
        made.cell().occupant().body.close();
        made.stop(mode);
        Ok(made)
    }

    /// What an actor's mailbox holds, and what happens beyond.
    pub(crate) fn mailbox_of<'a>(&'a self, settings: &'a Settings) -> &'a MailboxOptions {
        settings.mailbox.as_ref().unwrap_or(&self.config.mailbox)
    }

    /// Why a message is refused by an actor that takes nothing any more.
    pub(crate) fn why_closed(&self) -> DeadLetterReason {
        match self.lifecycle() {
            Lifecycle::Running => DeadLetterReason::Closed,
            Lifecycle::Stopping | Lifecycle::Draining | Lifecycle::Stopped => DeadLetterReason::Refused,
        }
    }

    /// Drops the dead letters that are kept, and keeps none from here on: nobody can take them.
    ///
    /// A message may hold the address of an actor, and so the system that its letter is kept in.
    pub(crate) fn forget_letters(&self) {
        let letters = self.letters.with(DeadLetters::close);
        drop(catch(|| drop(letters)));
    }

    /// Makes a dead letter of a message.
    pub(crate) fn dead_letter<M: Send + 'static>(
        &self,
        cell: &CellRef,
        message: M,
        reason: DeadLetterReason,
    ) {
        let body = &cell.occupant().body;
        if let Some(overflow) = overflow_of(reason) {
            self.hub.count_overflow(body.head().kind, overflow);
        }
        let actor = Cow::Owned(body.settings().label.as_str().into());
        let (kept, dropped) = if body.settings().letters.keeps::<M>() {
            (Some(Box::new(message) as Box<dyn Any + Send>), None)
        } else {
            (None, Some(message))
        };
        let message_type = type_name::<M>();
        let letter =
            DeadLetter { to: cell.index(), actor, reason, message_type, message: kept, at: self.now() };
        let evicted = self.letters.with(|letters| letters.push(letter));
        // Dropped here, after the lock: a message's owner may send when it is dropped, or panic.
        drop(catch(|| while_dead_lettering(|| drop(dropped))));
        drop(catch(|| drop(evicted)));
    }
}
