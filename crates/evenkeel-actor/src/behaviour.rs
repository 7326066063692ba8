//! Become: an actor replaces its message handler.
//!
//! Limits: at most [`BEHAVIOURS_MAX`] handlers on the stack below the current one.

use alloc::vec::Vec;
use core::fmt;

use crate::actor::{Actor, HandlerResult};
use crate::context::Context;

/// The maximum number of handlers on the stack below the current one.
pub const BEHAVIOURS_MAX: usize = 64;

/// A message handler: a method of the actor with the signature of [`Actor::receive`].
pub type ReceiveFn<A> =
    fn(&mut A, <A as Actor>::Msg, &mut Context<'_, A>) -> HandlerResult<<A as Actor>::Msg>;

/// The current message handler and the stack of handlers below it; other actor systems call this `become`.
///
/// It is a field of the actor, so actors without it pay nothing, and a restart begins with the handler that the factory
/// sets. If the states carry data of their own, an enum and a `match` in `receive` are clearer.
///
/// ```
/// use evenkeel_actor::{Actor, Behaviour, Context, Flow, HandlerResult};
///
/// struct Turnstile {
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
/// impl Turnstile {
///     fn closed(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
///         match message {
///             Msg::Open => {
///                 self.behaviour.replace(Self::open);
///                 ctx.unstash_all();
///             }
///             other => ctx.stash(other),
///         }
///         Ok(Flow::Continue)
///     }
///
///     fn open(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
///         match message {
///             Msg::Open => {}
///             Msg::Pass => self.passed += 1,
///             Msg::Close => self.behaviour.replace(Self::closed),
///         }
///         Ok(Flow::Continue)
///     }
/// }
///
/// impl Actor for Turnstile {
///     type Msg = Msg;
///
///     fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
///         let receive = self.behaviour.current();
///         receive(self, message, ctx)
///     }
/// }
///
/// let turnstile = Turnstile { behaviour: Behaviour::new(Turnstile::closed), passed: 0 };
/// # drop(turnstile);
/// ```
pub struct Behaviour<A: Actor> {
    current: ReceiveFn<A>,
    stack: Vec<ReceiveFn<A>>,
}

impl<A: Actor> Behaviour<A> {
    /// Returns a behaviour with `first` as its handler.
    pub const fn new(first: ReceiveFn<A>) -> Self {
        Self { current: first, stack: Vec::new() }
    }

    /// Returns the current handler, to which `receive` passes the message.
    #[inline]
    pub const fn current(&self) -> ReceiveFn<A> {
        self.current
    }

    /// Replaces the current handler from the next message on; the stack stays as it is.
    pub fn replace(&mut self, next: ReceiveFn<A>) {
        self.current = next;
    }

    /// Makes `next` the current handler and pushes the old one onto the stack, until [`Behaviour::pop`].
    pub fn push(&mut self, next: ReceiveFn<A>) -> Result<(), BehavioursFull> {
        if self.stack.len() >= BEHAVIOURS_MAX {
            return Err(BehavioursFull);
        }
        self.stack.push(core::mem::replace(&mut self.current, next));
        Ok(())
    }

    /// Returns to the handler on top of the stack; returns `false` and changes nothing if the stack is empty.
    pub fn pop(&mut self) -> bool {
        let Some(previous) = self.stack.pop() else { return false };
        self.current = previous;
        true
    }
}

impl<A: Actor> fmt::Debug for Behaviour<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Behaviour").field("stack", &self.stack.len()).finish_non_exhaustive()
    }
}

/// Error of [`Behaviour::push`]: [`BEHAVIOURS_MAX`] handlers are on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the behaviour stack is full: {BEHAVIOURS_MAX} handlers")]
pub struct BehavioursFull;
