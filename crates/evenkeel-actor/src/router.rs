//! Routers: several actors of one kind behind one address.
//!
//! A sender picks the routee itself, so a message passes no other actor on its way. Bound: as many
//! routees as asked for, at most [`RouterOptions::SIZE_MAX`]; one that ends is replaced within the
//! limits of the router's supervision.

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
use crate::raw::state::SCHEDULED;
use crate::reply::{AskFuture, Reply};
use crate::stop::StopMode;
use crate::sync::{Arc, AtomicUsize, Lock, Ordering};
use crate::system::{Core, ReadyQueueScheduler, SpawnError};
use crate::trace::SpanHandle;

/// Whom a router hands the next message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Routing {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The one with the least to do: what waits in its mailbox, and what it is at.
    ///
    /// One that is suspended or has failed comes after all that serve; every routee is looked at.
    LeastMailbox,
}

/// How many routees a router has, whom it picks, and what becomes of those that fail or end.
#[derive(Clone, Copy, Debug)]
pub struct RouterOptions {
    /// How many routees.
    pub size: NonZeroUsize,
    /// Whom the next message goes to.
    pub routing: Routing,
    /// What becomes of a routee that fails.
    ///
    /// One that ends, for whatever reason, is replaced: after the backoff, and at most `max_restarts`
    /// times within the window, counted for each place. When no place is left, the router fails to
    /// its own supervisor.
    pub supervision: Supervision,
}

impl RouterOptions {
    /// The most routees of one router.
    pub const SIZE_MAX: usize = 1024;

    /// Hands messages to `size` routees in turn.
    pub fn round_robin(size: NonZeroUsize) -> Self {
        Self { size, routing: Routing::RoundRobin, supervision: Supervision::default() }
    }

    /// Hands each message to the one of `size` routees with the least to do.
    pub fn least_mailbox(size: NonZeroUsize) -> Self {
        Self { size, routing: Routing::LeastMailbox, supervision: Supervision::default() }
    }

    /// Chooses what becomes of routees that fail or end.
    #[must_use]
    pub fn supervise(self, supervision: Supervision) -> Self {
        Self { supervision, ..self }
    }
}

/// The address of several actors that take messages of type `M`; cheap to clone.
///
/// Messages of one sender reach different routees, and are handled in no order.
pub struct Router<M> {
    pool: ActorRef<PoolMsg>,
    places: Arc<RouteeSlots<M>>,
}

impl ReadyQueueScheduler {
    /// Makes a router without a parent, and its routees.
    pub fn spawn_router<A: Actor>(
        &self,
        props: &Props<A>,
        options: RouterOptions,
    ) -> Result<Router<A::Msg>, RouterError> {
        Router::spawn(self.core(), props, options, None)
    }
}

impl<A: Actor> Context<'_, A> {
    /// Makes a router as a child, and its routees.
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
        if RouterOptions::SIZE_MAX < options.size.get() {
            return Err(RouterError::TooLarge { size: options.size.get() });
        }
        let places = Arc::new(RouteeSlots::new(options.size, options.routing));
        let pool_props = Pool::props(props, &places, options.supervision);
        let mut filled = Ok(());
        // Before the pool runs: it finds its routees in their places and adopts them.
        let fill = |pool: &ActorRef<PoolMsg>| {
            filled = (0..places.len()).try_for_each(|at| {
                let routee = Core::spawn(core, props, None, Some(pool.cell().clone()))?;
                drop(places.put(at, Some(routee)));
                Ok(())
            });
        };
        let pool = Core::spawn_after(core, &pool_props, None, parent, fill).map_err(RouterError::Spawn)?;
        if let Err(error) = filled {
            pool.stop(StopMode::Now);
            return Err(RouterError::Spawn(error));
        }
        Ok(Self { pool, places })
    }

    /// Sends and forgets: what no routee has a place for becomes a dead letter, with the reason.
    pub fn tell(&self, message: M) {
        let core = self.pool.cell().core();
        let (message, reason) = match self.try_tell(message) {
            Ok(_) => return,
            Err(SendError::Full(message)) => (message, DeadLetterReason::Full),
            Err(SendError::Closed(message)) => (message, core.why_closed()),
        };
        core.dead_letter(self.pool.cell(), message, reason);
    }

    /// Sends, and hands back what no routee takes.
    ///
    /// When the one whose turn it is refuses, the others are tried, so that one that is full or is
    /// being replaced refuses nothing on behalf of all.
    pub fn try_tell(&self, mut message: M) -> Result<SendOutcome, SendError<M>> {
        let mut some_full = false;
        for routee in self.places.from(self.places.pick()) {
            message = match routee.try_tell(message) {
                Ok(sent) => return Ok(sent),
                Err(SendError::Full(message)) => {
                    some_full = true;
                    message
                }
                Err(SendError::Closed(message)) => message,
            };
        }
        Err(if some_full { SendError::Full(message) } else { SendError::Closed(message) })
    }

    /// Asks a routee; see [`ActorRef::ask`].
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(Reply<T>) -> M) -> AskFuture<'_, T> {
        let trace = SpanHandle::of_question(self.pool.cell());
        let (sender, receiver) = oneshot::channel();
        let reply = Reply::new(sender, trace.clone());
        let sent = trace.within(|| self.try_tell(question(reply)));
        ask_future(sent, receiver, self.pool.cell(), trace)
    }

    /// Names the routees there are at the moment.
    pub fn routees(&self) -> Vec<ActorRef<M>> {
        self.places.from(0).filter(|routee| routee.state() != ActorState::Stopped).collect()
    }

    /// Counts the messages that wait for all routees.
    pub fn depth(&self) -> usize {
        self.places.from(0).map(|routee| routee.depth()).sum()
    }

    /// Names the actor that looks after the routees; its end is the router's.
    pub fn index(&self) -> MailboxIndex {
        self.pool.index()
    }

    /// Tells what the actor that looks after the routees is doing.
    pub fn state(&self) -> ActorState {
        self.pool.state()
    }

    /// Asks the router to end, and every routee in the same way.
    pub fn stop(&self, mode: StopMode) {
        match mode {
            StopMode::Now => self.pool.stop(StopMode::Now),
            // Where this finds no place, it has been asked before.
            StopMode::Drained => drop(self.pool.try_tell(PoolMsg::Drain)),
        }
    }
}

impl<M> Clone for Router<M> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), places: self.places.clone() }
    }
}

impl<M: Send + 'static> fmt::Debug for Router<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Router({}, {} places)", self.index(), self.places.len())
    }
}

/// The routees, each in its place; a place is empty when its routee is not replaced any more.
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

    fn get(&self, at: usize) -> Option<ActorRef<M>> {
        self.routees[at].with(|routee| routee.clone())
    }

    /// Changes who is in a place; gives back who was, to be dropped outside of the lock.
    fn put(&self, at: usize, routee: Option<ActorRef<M>>) -> Option<ActorRef<M>> {
        self.routees[at].with(|place| core::mem::replace(place, routee))
    }

    /// Every routee, beginning with the one in this place.
    fn from(&self, first: usize) -> impl Iterator<Item = ActorRef<M>> + '_ {
        self.ring(first).filter_map(|at| self.get(at))
    }

    fn ring(&self, first: usize) -> impl Iterator<Item = usize> + use<M> {
        let len = self.len();
        (first..len).chain(0..first)
    }

    /// Whose turn it is.
    fn pick(&self) -> usize {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.len();
        match self.routing {
            Routing::RoundRobin => turn,
            Routing::LeastMailbox => self.least(turn),
        }
    }

    /// Who has the least to do; of equals, the first from here.
    fn least(&self, first: usize) -> usize {
        let mut least = Load::MOST;
        let mut place = first;
        for at in self.ring(first) {
            let load = self.get(at).map_or(Load::MOST, |routee| Load::of(&routee));
            if load < least {
                (least, place) = (load, at);
            }
            if least == Load::NONE {
                break;
            }
        }
        place
    }
}

/// How much a routee has to do, those first that serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Load {
    standing: RouteeStatus,
    messages: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RouteeStatus {
    Serves,
    /// Nobody knows until when.
    Suspended,
    Ended,
}

impl Load {
    const NONE: Self = Self { standing: RouteeStatus::Serves, messages: 0 };
    const MOST: Self = Self { standing: RouteeStatus::Ended, messages: usize::MAX };

    fn of<M: Send + 'static>(routee: &ActorRef<M>) -> Self {
        let cell = routee.cell();
        let awaits = cell.is_awaiting();
        let standing = match routee.state() {
            ActorState::Running => RouteeStatus::Serves,
            // A handler that awaits a future is at work.
            ActorState::Suspended if awaits => RouteeStatus::Serves,
            ActorState::Suspended => RouteeStatus::Suspended,
            ActorState::Stopping | ActorState::Stopped => RouteeStatus::Ended,
        };
        let busy = awaits || cell.slot().state.flags() & SCHEDULED != 0;
        Self { standing, messages: routee.depth() + usize::from(busy) }
    }
}

/// Why a router was not made.
#[derive(Clone, Debug, PartialEq)]
pub enum RouterError {
    /// More routees than [`RouterOptions::SIZE_MAX`].
    TooLarge {
        /// What was asked for.
        size: usize,
    },
    /// The router, or a routee, was not made; those made before end.
    Spawn(SpawnError),
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { size } => write!(f, "{size} routees are more than {}", RouterOptions::SIZE_MAX),
            Self::Spawn(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RouterError {}
