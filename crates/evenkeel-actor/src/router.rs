//! Routers: a pool of actors of one type behind one address.
//!
//! The sender picks the routee, so a message passes through no other actor. Limits: a fixed number of routees, at most
//! [`RouterOptions::SIZE_MAX`]; a routee that stops is replaced as often as the router's supervision allows.

mod pool;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroUsize;

use pool::{Pool, PoolMsg};

use crate::actor::Actor;
use crate::actor_ref::{ActorRef, SendError, SendOutcome, ask_future};
use crate::cell::CellRef;
use crate::context::Context;
use crate::dead_letters::DeadLetterReason;
use crate::guardian::Supervision;
use crate::index::MailboxIndex;
use crate::invoke::ActorState;
use crate::props::Props;
use crate::raw::oneshot;
use crate::raw::state::{SCHEDULED, USER};
use crate::reply::{AskFuture, Reply};
use crate::stop::StopMode;
use crate::sync::{Arc, AtomicUsize, Lock, Ordering};
use crate::system::{Core, ReadyQueueScheduler, SpawnError};
use crate::trace::SpanHandle;

/// The way a router picks the routee for a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Routing {
    /// Picks the routees in turn.
    #[default]
    RoundRobin,
    /// Picks the routee with the fewest messages, counting those in its mailbox and the one it is handling.
    ///
    /// Suspended and failed routees come last. Every pick inspects every routee, unless it finds an idle one first.
    LeastMailbox,
}

/// Options of a router.
#[derive(Clone, Copy, Debug)]
pub struct RouterOptions {
    /// The number of routees.
    pub size: NonZeroUsize,
    /// The way a routee is picked.
    pub routing: Routing,
    /// The supervision of the routees.
    ///
    /// A routee that stops, for whatever reason, is replaced after the backoff. A slot whose routees stop more than
    /// `max_restarts` times within the window is abandoned: it stays empty. Once every slot is abandoned, the router's
    /// pool actor fails, and the supervisor of the router decides what happens to it.
    pub supervision: Supervision,
}

impl RouterOptions {
    /// The maximum number of routees of one router.
    pub const SIZE_MAX: usize = 1024;

    /// Returns options that route messages to `size` routees in turn.
    pub fn round_robin(size: NonZeroUsize) -> Self {
        Self { size, routing: Routing::RoundRobin, supervision: Supervision::default() }
    }

    /// Returns options that route each message to the least loaded of `size` routees.
    pub fn least_mailbox(size: NonZeroUsize) -> Self {
        Self { size, routing: Routing::LeastMailbox, supervision: Supervision::default() }
    }

    /// Sets the supervision of the routees.
    #[must_use]
    pub fn supervise(self, supervision: Supervision) -> Self {
        Self { supervision, ..self }
    }
}

/// The address of a pool of actors that take messages of type `M`; cheap to clone.
///
/// Messages of one sender go to different routees, so their order is not kept.
pub struct Router<M> {
    pool: ActorRef<PoolMsg>,
    slots: Arc<RouteeSlots<M>>,
}

impl ReadyQueueScheduler {
    /// Spawns a router without a parent, and its routees.
    pub fn spawn_router<A: Actor>(
        &self,
        props: &Props<A>,
        options: RouterOptions,
    ) -> Result<Router<A::Msg>, RouterError> {
        Router::spawn(self.core(), props, options, None)
    }
}

impl<A: Actor> Context<'_, A> {
    /// Spawns a router as a child, and its routees.
    pub fn spawn_router<R: Actor>(
        &mut self,
        props: &Props<R>,
        options: RouterOptions,
    ) -> Result<Router<R::Msg>, RouterError> {
        let parent = Some(self.cell.clone());
        let router = Router::spawn(self.local.shared_core(), props, options, parent)?;
        self.adopt(router.pool.cell());
        Ok(router)
    }
}

impl<M: Send + 'static> Router<M> {
    fn spawn<A: Actor<Msg = M>>(
        core: &Arc<Core>,
        props: &Props<A>,
        options: RouterOptions,
        parent: Option<CellRef>,
    ) -> Result<Self, RouterError> {
        if options.size.get() > RouterOptions::SIZE_MAX {
            return Err(RouterError::TooLarge { size: options.size.get() });
        }
        let slots = Arc::new(RouteeSlots::new(options.size, options.routing));
        let pool_props = Pool::props(props, &slots, options.supervision);
        let mut spawned = Ok(());
        // Runs before the pool's `started`, which adopts the routees that it finds in the slots.
        let spawn_routees = |pool: &ActorRef<PoolMsg>| {
            spawned = (0..slots.len()).try_for_each(|index| {
                let routee = Core::spawn(core, props, None, Some(pool.cell().clone()))?;
                drop(slots.replace(index, Some(routee)));
                Ok(())
            });
        };
        let pool = Core::spawn_prepared(core, &pool_props, None, parent, spawn_routees)
            .map_err(RouterError::Spawn)?;
        if let Err(error) = spawned {
            pool.stop(StopMode::Now);
            return Err(RouterError::Spawn(error));
        }
        Ok(Self { pool, slots })
    }

    /// Sends without waiting; dead-letters the message if no routee accepts it.
    pub fn tell(&self, message: M) {
        let core = self.pool.cell().core();
        let (message, reason) = match self.try_tell(message) {
            Ok(_) => return,
            Err(SendError::Full(message)) => (message, DeadLetterReason::Full),
            Err(SendError::MailboxFailed(message)) => (message, DeadLetterReason::MailboxFailed),
            Err(SendError::Closed(message) | SendError::HostGone(message)) => (message, core.closed_reason()),
        };
        core.dead_letter(self.pool.cell(), message, reason);
    }

    /// Sends, or returns the message if no routee accepts it.
    ///
    /// If the picked routee rejects the message, the others are tried, so one routee that is full or being replaced
    /// does not make the router reject. The error is [`SendError::Full`] if any routee is full, otherwise
    /// [`SendError::MailboxFailed`] if any mailbox failed.
    pub fn try_tell(&self, message: M) -> Result<SendOutcome, SendError<M>> {
        self.try_tell_then(message, |cell| cell.raise(USER))
    }

    fn try_tell_then(&self, mut message: M, raise: impl Fn(&CellRef)) -> Result<SendOutcome, SendError<M>> {
        let mut any_full = false;
        let mut any_failed = false;
        for routee in self.slots.iter_from(self.slots.pick()) {
            message = match routee.try_tell_then(message, &raise) {
                Ok(outcome) => return Ok(outcome),
                Err(SendError::Full(message)) => {
                    any_full = true;
                    message
                }
                Err(SendError::MailboxFailed(message)) => {
                    any_failed = true;
                    message
                }
                Err(SendError::Closed(message) | SendError::HostGone(message)) => message,
            };
        }
        if any_full {
            return Err(SendError::Full(message));
        }
        if any_failed {
            return Err(SendError::MailboxFailed(message));
        }
        Err(SendError::closed(self.pool.cell().core(), message))
    }

    /// Asks a routee; see [`ActorRef::ask`].
    pub fn ask<T: Send + 'static>(&self, message: impl FnOnce(Reply<T>) -> M) -> AskFuture<'_, T> {
        let trace = SpanHandle::for_ask(self.pool.cell());
        let (sender, receiver) = oneshot::channel();
        let reply = Reply::new(sender, trace.clone());
        let sent = trace.within(|| self.try_tell_then(message(reply), |cell| cell.raise_awaited(USER)));
        ask_future(sent, receiver, self.pool.cell(), trace)
    }

    /// Returns the current routees.
    pub fn routees(&self) -> Vec<ActorRef<M>> {
        self.slots.iter_from(0).filter(|routee| routee.state() != ActorState::Stopped).collect()
    }

    /// Returns the number of messages in the mailboxes of all routees.
    pub fn depth(&self) -> usize {
        self.slots.iter_from(0).map(|routee| routee.depth()).sum()
    }

    /// Returns the index of the pool actor, which supervises the routees and lives as long as the router.
    pub fn index(&self) -> MailboxIndex {
        self.pool.index()
    }

    /// Returns the state of the pool actor.
    pub fn state(&self) -> ActorState {
        self.pool.state()
    }

    /// Stops the router and every routee in the given mode.
    pub fn stop(&self, mode: StopMode) {
        match mode {
            StopMode::Now => self.pool.stop(StopMode::Now),
            // If the mailbox is full, it already holds a drain request.
            StopMode::Drained => drop(self.pool.try_tell(PoolMsg::Drain)),
        }
    }
}

impl<M> Clone for Router<M> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), slots: self.slots.clone() }
    }
}

impl<M: Send + 'static> fmt::Debug for Router<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Router({}, {} slots)", self.index(), self.slots.len())
    }
}

/// The slots of a router; a slot is empty once its routee is no longer replaced.
struct RouteeSlots<M> {
    routees: Box<[Lock<Option<ActorRef<M>>>]>,
    next: AtomicUsize,
    routing: Routing,
}

impl<M: Send + 'static> RouteeSlots<M> {
    fn new(size: NonZeroUsize, routing: Routing) -> Self {
        let routees = (0..size.get()).map(|_| Lock::new(None)).collect();
        Self { routees, next: AtomicUsize::new(0), routing }
    }

    fn len(&self) -> usize {
        self.routees.len()
    }

    fn get(&self, index: usize) -> Option<ActorRef<M>> {
        self.routees[index].with(|routee| routee.clone())
    }

    /// Replaces the routee of a slot and returns the previous one, so that the caller drops it outside the lock.
    fn replace(&self, index: usize, routee: Option<ActorRef<M>>) -> Option<ActorRef<M>> {
        self.routees[index].with(|slot| core::mem::replace(slot, routee))
    }

    /// Iterates over every routee once, from slot `first` on.
    fn iter_from(&self, first: usize) -> impl Iterator<Item = ActorRef<M>> + '_ {
        self.indices_from(first).filter_map(|index| self.get(index))
    }

    fn indices_from(&self, first: usize) -> impl Iterator<Item = usize> + use<M> {
        let len = self.len();
        (first..len).chain(0..first)
    }

    /// Picks the slot for the next message.
    fn pick(&self) -> usize {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.len();
        match self.routing {
            Routing::RoundRobin => turn,
            Routing::LeastMailbox => self.least_loaded(turn),
        }
    }

    /// Finds the least loaded slot; among equals, the first one from `first` on.
    fn least_loaded(&self, first: usize) -> usize {
        let mut least = RouteeLoad::MAX;
        let mut slot = first;
        for index in self.indices_from(first) {
            let load = self.get(index).map_or(RouteeLoad::MAX, |routee| RouteeLoad::measure(&routee));
            if load < least {
                least = load;
                slot = index;
            }
            if least == RouteeLoad::IDLE {
                break;
            }
        }
        slot
    }
}

/// The load of a routee, compared by status first: a serving routee is less loaded than a suspended one, whatever their
/// numbers of messages, and a suspended one less than a stopped one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RouteeLoad {
    status: RouteeStatus,
    messages: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RouteeStatus {
    Serving,
    Suspended,
    Stopped,
}

impl RouteeLoad {
    const IDLE: Self = Self { status: RouteeStatus::Serving, messages: 0 };
    const MAX: Self = Self { status: RouteeStatus::Stopped, messages: usize::MAX };

    fn measure<M: Send + 'static>(routee: &ActorRef<M>) -> Self {
        let cell = routee.cell();
        let is_awaiting = cell.is_awaiting();
        let status = match routee.state() {
            ActorState::Running => RouteeStatus::Serving,
            // An actor that awaits a future is handling a message.
            ActorState::Suspended if is_awaiting => RouteeStatus::Serving,
            ActorState::Suspended => RouteeStatus::Suspended,
            ActorState::Stopping | ActorState::Stopped => RouteeStatus::Stopped,
        };
        let is_busy = is_awaiting || cell.slot().state.flags() & SCHEDULED != 0;
        Self { status, messages: routee.depth() + usize::from(is_busy) }
    }
}

/// Reason a router could not be spawned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RouterError {
    /// More routees than [`RouterOptions::SIZE_MAX`].
    #[error("router size is {size}, above the limit of {max}", max = RouterOptions::SIZE_MAX)]
    TooLarge {
        /// The requested size.
        size: usize,
    },
    /// The pool or a routee could not be spawned; routees already spawned are stopped.
    #[error(transparent)]
    Spawn(SpawnError),
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::raw::current;
    use crate::test_rig::{Rig, Sum, SumMsg};
    use crate::worker_local::WorkerLocal;

    #[test]
    fn an_asked_routee_is_as_urgent_as_an_asked_actor() {
        let rig = Rig::new(1);
        let local = rig.worker(0);
        let props = Props::new(Sum::default).build();
        let router = rig.system.spawn_router(&props, RouterOptions::round_robin(NonZeroUsize::MIN)).unwrap();
        let queues = &rig.core().coordinator.queues;
        run_all(&rig, &local);
        router.tell(SumMsg::Add(1));
        assert!(!queues.has_asked());
        run_all(&rig, &local);
        let ask = router.ask(SumMsg::Read);
        assert!(queues.has_asked());
        drop(ask);
        run_all(&rig, &local);
        rig.system.force_stop();
        run_all(&rig, &local);
    }

    fn run_all(rig: &Rig, local: &WorkerLocal) {
        while let Some(permit) = rig.core().coordinator.queues.next(&local.queue) {
            local.begin_slice();
            local.begin_run();
            current::enter(local, || rig.core().coordinator.run_and_requeue(local, permit));
        }
    }
}
