//! How an actor handles messages, as a value it can change.
//!
//! Bound: at most [`BEHAVIOURS_MAX`] handlers lie under the one in force.

use alloc::vec::Vec;
use core::fmt;

use crate::actor::{Actor, HandlerResult};
use crate::context::Context;

/// How many handlers may lie under the one in force.
pub const BEHAVIOURS_MAX: usize = 64;

/// Handles one message; what [`Actor::receive`] is, under a name of the actor's own.
pub type ReceiveFn<A> =
    fn(&mut A, <A as Actor>::Msg, &mut Context<'_, A>) -> HandlerResult<<A as Actor>::Msg>;

/// The handler in force, and those it is laid over: "become" of other actor systems.
///
/// It is a field of the actor, so an actor without one pays nothing, and a restart begins with the
/// handler that the factory names. Where the states carry fields of their own, an enum and a `match` in
/// `receive` say more.
///
/// ```
/// use evenkeel_actor::{Actor, Behaviour, Context, Flow, Handled};
///
/// struct Door {
///     behaviour: Behaviour<Self>,
///     passed: u32,
/// }
///
/// enum Msg {
///     Open,
///     Pass,
///     Close,
/// }
///
/// impl Door {
///     fn closed(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> Handled<Msg> {
///         match message {
///             Msg::Open => {
///                 self.behaviour.switch(Self::open);
///                 ctx.unstash_all();
///             }
///             later => ctx.stash(later),
///         }
///         Ok(Flow::Continue)
///     }
///
///     fn open(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> Handled<Msg> {
///         match message {
///             Msg::Open => {}
///             Msg::Pass => self.passed += 1,
///             Msg::Close => self.behaviour.switch(Self::closed),
///         }
///         Ok(Flow::Continue)
///     }
/// }
///
/// impl Actor for Door {
///     type Msg = Msg;
///
///     fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> Handled<Msg> {
///         let receive = self.behaviour.current();
///         receive(self, message, ctx)
///     }
/// }
///
/// let door = Door { behaviour: Behaviour::new(Door::closed), passed: 0 };
/// # drop(door);
/// ```
pub struct Behaviour<A: Actor> {
    current: ReceiveFn<A>,
    under: Vec<ReceiveFn<A>>,
}

impl<A: Actor> Behaviour<A> {
    /// Begins with a handler.
    pub const fn new(first: ReceiveFn<A>) -> Self {
        Self { current: first, under: Vec::new() }
    }

    /// Names the handler in force; `receive` hands the message on to it.
    #[inline]
    pub const fn current(&self) -> ReceiveFn<A> {
        self.current
    }

    /// Puts another handler in force, from the next message on; those under it stay.
    pub fn replace(&mut self, next: ReceiveFn<A>) {
        self.current = next;
    }

    /// Lays a handler over the one in force, until [`Behaviour::uncover`].
    pub fn push(&mut self, next: ReceiveFn<A>) -> Result<(), BehavioursFull> {
        if BEHAVIOURS_MAX <= self.under.len() {
            return Err(BehavioursFull);
        }
        self.under.push(core::mem::replace(&mut self.current, next));
        Ok(())
    }

    /// Goes back to the handler under the one in force; `false`, and as it was, when there is none.
    pub fn pop(&mut self) -> bool {
        let Some(under) = self.under.pop() else { return false };
        self.current = under;
        true
    }
}

impl<A: Actor> fmt::Debug for Behaviour<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Behaviour").field("under", &self.under.len()).finish_non_exhaustive()
    }
}

/// As many handlers are laid over each other as may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BehavioursFull;

impl fmt::Display for BehavioursFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEHAVIOURS_MAX} behaviours are covered already")
    }
}

impl core::error::Error for BehavioursFull {}
