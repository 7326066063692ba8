//! The pool actor of a router: supervises the routees, which are its children, and replaces those that stop.

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

/// Messages handled by [`Pool`].
pub(super) enum PoolMsg {
    /// Drains and stops the routees, then the pool.
    Drain,
}

/// The pool actor, which replaces the routees that stop.
pub(super) struct Pool<A: Actor> {
    props: Props<A>,
    slots: Arc<RouteeSlots<A::Msg>>,
    /// The limit and backoff for replacing routees.
    replacement: Supervision,
    records: Vec<RouteeSlot>,
    phase: PoolPhase,
}

/// The pool's record of one slot.
#[derive(Clone, Default)]
struct RouteeSlot {
    state: SlotState,
    history: RestartHistory,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    /// Waits for a new routee.
    #[default]
    Vacant,
    Occupied(MailboxIndex),
    /// Its routees stopped more often than the supervision allows.
    Abandoned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolPhase {
    Serving,
    Draining,
}

impl<A: Actor> Pool<A> {
    pub(super) fn props(
        routee: &Props<A>,
        slots: &Arc<RouteeSlots<A::Msg>>,
        supervision: Supervision,
    ) -> Props<Self> {
        // Messages that no routee accepts are dead-lettered on the pool, with the routees' policy.
        let keep = routee.0.settings.keep_dead_letters;
        let routee = routee.clone();
        let slots = slots.clone();
        let factory = move || Self {
            props: routee.clone(),
            slots: slots.clone(),
            replacement: supervision.with_decider(|_| SupervisionDirective::Restart),
            records: alloc::vec![RouteeSlot::default(); slots.len()],
            phase: PoolPhase::Serving,
        };
        let props = Props::new(factory).label("router").mailbox(MailboxPreset::Small);
        props.supervise(supervision).dead_letters(keep).build()
    }

    fn occupy(&mut self, slot: usize, routee: &ActorRef<A::Msg>) {
        self.records[slot].state = SlotState::Occupied(routee.index());
    }

    /// Spawns a routee for a slot; on an error, retries later or abandons the slot.
    fn fill(&mut self, slot: usize, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        self.records[slot].state = SlotState::Vacant;
        loop {
            match ctx.spawn(&self.props) {
                Ok(routee) => {
                    self.occupy(slot, &routee);
                    drop(self.slots.replace(slot, Some(routee)));
                    return Ok(Flow::Continue);
                }
                // The system is shutting down, and the pool with it.
                Err(SpawnError::Stopping) => return Ok(Flow::Continue),
                Err(_) => match self.next_delay(slot, ctx) {
                    Some(Duration::ZERO) => {}
                    delay => return self.fill_later(slot, delay, ctx),
                },
            }
        }
    }

    /// Returns the delay before a slot is filled again, or `None` if it is to be abandoned.
    fn next_delay(&mut self, slot: usize, ctx: &Context<'_, Self>) -> Option<Duration> {
        let now = ctx.now();
        let random = ctx.local.random();
        let stopped = ActorError::new("the routee has stopped");
        match decide(&self.replacement, &mut self.records[slot].history, &stopped, now, random) {
            SupervisionDecision::Restart { after } => Some(after),
            SupervisionDecision::Resume
            | SupervisionDecision::Stop { .. }
            | SupervisionDecision::Escalate => None,
        }
    }

    /// Sets a timer to fill the slot after `delay`; abandons the slot if there is no delay or no free timer.
    fn fill_later(
        &mut self,
        slot: usize,
        delay: Option<Duration>,
        ctx: &mut Context<'_, Self>,
    ) -> HandlerResult<PoolMsg> {
        let is_set = delay.is_some_and(|delay| ctx.set_timer(TimerId(slot as u64), delay, Repeat::Once));
        if is_set {
            self.records[slot].state = SlotState::Vacant;
            return Ok(Flow::Continue);
        }
        self.records[slot].state = SlotState::Abandoned;
        drop(self.slots.replace(slot, None));
        if self.records.iter().all(|record| record.state == SlotState::Abandoned) {
            return Err(ActorError::new("every slot of the router has been abandoned"));
        }
        Ok(Flow::Continue)
    }

    fn on_terminated(&mut self, routee: MailboxIndex, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        if self.phase == PoolPhase::Draining {
            return Ok(stop_after_last_child(ctx));
        }
        let occupied = SlotState::Occupied(routee);
        let Some(slot) = self.records.iter().position(|record| record.state == occupied) else {
            return Ok(Flow::Continue);
        };
        match self.next_delay(slot, ctx) {
            Some(Duration::ZERO) => self.fill(slot, ctx),
            delay => self.fill_later(slot, delay, ctx),
        }
    }
}

impl<A: Actor> Actor for Pool<A> {
    type Msg = PoolMsg;

    /// Adopts the routees that were spawned with the router; after a restart, spawns them all.
    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        for slot in 0..self.records.len() {
            match self.slots.get(slot).filter(|routee| routee.state() != ActorState::Stopped) {
                Some(routee) => {
                    ctx.adopt(routee.cell());
                    self.occupy(slot, &routee);
                }
                None => drop(self.fill(slot, ctx)?),
            }
        }
        Ok(Flow::Continue)
    }

    fn receive(&mut self, message: PoolMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        match message {
            PoolMsg::Drain => {
                self.phase = PoolPhase::Draining;
                self.slots.iter_from(0).for_each(|routee| routee.stop(StopMode::Drained));
                Ok(stop_after_last_child(ctx))
            }
        }
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<PoolMsg> {
        match signal {
            Signal::Terminated { actor, .. } => self.on_terminated(actor, ctx),
            Signal::Timer(TimerId(slot)) if self.phase == PoolPhase::Serving => self.fill(slot as usize, ctx),
            Signal::Timer(_) | Signal::ChildFailed(_) | Signal::ReceiveTimeout | Signal::CapacityTimeout => {
                Ok(Flow::Continue)
            }
        }
    }

    /// Clears every slot: a routee references the pool as its parent and would keep it in memory.
    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {
        (0..self.slots.len()).for_each(|slot| drop(self.slots.replace(slot, None)));
    }
}

fn stop_after_last_child<A: Actor>(ctx: &Context<'_, Pool<A>>) -> Flow<PoolMsg> {
    if ctx.children().is_empty() { Flow::Stop } else { Flow::Continue }
}
