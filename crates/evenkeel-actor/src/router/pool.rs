//! The actor that looks after a router's routees: its children, each in its place.

use alloc::vec::Vec;
use core::time::Duration;

use super::RouteeSlots;
use crate::actor::{Actor, Flow, HandlerResult, Signal};
use crate::actor_ref::ActorRef;
use crate::context::Context;
use crate::guardian::{
    ActorError, RestartHistory, Supervision, SupervisionDecision, SupervisionDirective, decide,
};
use crate::index::MailboxIndex;
use crate::invoke::ActorState;
use crate::mailbox::MailboxPreset;
use crate::props::Props;
use crate::stop::StopMode;
use crate::sync::Arc;
use crate::system::SpawnError;
use crate::timer::{Repeat, TimerId};

/// What the pool is told by the router's users.
pub(super) enum PoolMsg {
    /// Have the routees handle what waits, and end with the last of them.
    Drain,
}

/// Keeps every place of a router filled.
pub(super) struct Pool<A: Actor> {
    props: Props<A>,
    places: Arc<RouteeSlots<A::Msg>>,
    /// How often and how soon a place is filled again.
    refilling: Supervision,
    seats: Vec<RouteeSlot>,
    stage: PoolPhase,
}

/// What the pool knows of one place.
#[derive(Clone, Default)]
struct RouteeSlot {
    state: SeatState,
    history: RestartHistory,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SeatState {
    /// To be filled.
    #[default]
    Free,
    Taken(MailboxIndex),
    /// Its routees have ended too often.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolPhase {
    Serving,
    Draining,
}

impl<A: Actor> Pool<A> {
    pub(super) fn props(
        routee: &Props<A>,
        places: &Arc<RouteeSlots<A::Msg>>,
        supervision: Supervision,
    ) -> Props<Self> {
        // What no routee takes is buried here, as theirs is.
        let letters = routee.0.settings.letters;
        let routee = routee.clone();
        let places = places.clone();
        let factory = move || Self {
            props: routee.clone(),
            places: places.clone(),
            refilling: supervision.with_decider(|_| SupervisionDirective::Restart),
            seats: alloc::vec![RouteeSlot::default(); places.len()],
            stage: PoolPhase::Serving,
        };
        let props = Props::new(factory).label("router").mailbox(MailboxPreset::Small);
        props.supervise(supervision).dead_letters(letters).build()
    }

    fn seat(&mut self, at: usize, routee: &ActorRef<A::Msg>) {
        self.seats[at].state = SeatState::Taken(routee.index());
    }

    /// Fills a place, or has it filled later, or gives it up.
    fn fill(&mut self, at: usize, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        self.seats[at].state = SeatState::Free;
        loop {
            match ctx.spawn(&self.props) {
                Ok(routee) => {
                    self.seat(at, &routee);
                    drop(self.places.put(at, Some(routee)));
                    return Ok(Flow::Continue);
                }
                // The system ends, and this with it.
                Err(SpawnError::Stopping) => return Ok(Flow::Continue),
                Err(_) => match self.when(at, ctx) {
                    Some(Duration::ZERO) => {}
                    when => return self.fill_later(at, when, ctx),
                },
            }
        }
    }

    /// When a place whose routee has ended, or could not be made, is to be filled again, if ever.
    fn when(&mut self, at: usize, ctx: &Context<'_, Self>) -> Option<Duration> {
        let now = ctx.now();
        let random = ctx.local.random();
        let ended = ActorError::new("the routee has ended");
        match decide(&self.refilling, &mut self.seats[at].history, &ended, now, random) {
            SupervisionDecision::Restart { after } => Some(after),
            SupervisionDecision::Resume
            | SupervisionDecision::Stop { .. }
            | SupervisionDecision::Escalate => None,
        }
    }

    fn fill_later(
        &mut self,
        at: usize,
        when: Option<Duration>,
        ctx: &mut Context<'_, Self>,
    ) -> HandlerResult<PoolMsg> {
        let is_set = when.is_some_and(|after| ctx.set_timer(TimerId(at as u64), after, Repeat::Once));
        if is_set {
            self.seats[at].state = SeatState::Free;
            return Ok(Flow::Continue);
        }
        self.seats[at].state = SeatState::GivenUp;
        drop(self.places.put(at, None));
        if self.seats.iter().all(|seat| seat.state == SeatState::GivenUp) {
            return Err(ActorError::new("every place of the router has been given up"));
        }
        Ok(Flow::Continue)
    }

    fn on_terminated(&mut self, who: MailboxIndex, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        if self.stage == PoolPhase::Draining {
            return Ok(end_with_the_last(ctx));
        }
        let Some(at) = self.seats.iter().position(|seat| seat.state == SeatState::Taken(who)) else {
            return Ok(Flow::Continue);
        };
        match self.when(at, ctx) {
            Some(Duration::ZERO) => self.fill(at, ctx),
            when => self.fill_later(at, when, ctx),
        }
    }
}

impl<A: Actor> Actor for Pool<A> {
    type Msg = PoolMsg;

    /// Adopts the routees that were made with the router; after a restart there are none, and all are
    /// made anew.
    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        for at in 0..self.seats.len() {
            match self.places.get(at).filter(|routee| routee.state() != ActorState::Stopped) {
                Some(routee) => {
                    ctx.adopt(routee.cell());
                    self.seat(at, &routee);
                }
                None => drop(self.fill(at, ctx)?),
            }
        }
        Ok(Flow::Continue)
    }

    fn receive(&mut self, told: PoolMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        match told {
            PoolMsg::Drain => {
                self.stage = PoolPhase::Draining;
                self.places.from(0).for_each(|routee| routee.stop(StopMode::Drained));
                Ok(end_with_the_last(ctx))
            }
        }
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        match signal {
            Signal::Terminated { who, .. } => self.on_terminated(who, ctx),
            Signal::Timer(TimerId(at)) if self.stage == PoolPhase::Serving => self.fill(at as usize, ctx),
            Signal::Timer(_) | Signal::ChildFailed(_) | Signal::ReceiveTimeout => Ok(Flow::Continue),
        }
    }

    /// Empties every place: a routee refers to the pool as its parent, and would keep it in memory.
    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {
        (0..self.places.len()).for_each(|at| drop(self.places.put(at, None)));
    }
}

fn end_with_the_last<A: Actor>(ctx: &Context<'_, Pool<A>>) -> Flow<PoolMsg> {
    if ctx.children().is_empty() { Flow::Stop } else { Flow::Continue }
}
