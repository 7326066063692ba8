//! What surrounds the messages of a run: called before the first and after the last.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::ControlFlow;

use evenkeel_policy::time::Instant;

use crate::index::MailboxIndex;
use crate::invoke::InvokeResult;

/// What a middleware knows about a run.
#[derive(Clone, Copy, Debug)]
pub struct InvokeContext<'a> {
    /// Whose run it is.
    pub actor: MailboxIndex,
    /// What metrics call the actor.
    pub label: &'a str,
    /// The time.
    pub now: Instant,
    /// Messages waiting when the run began; after it, those handled in it.
    pub messages: usize,
}

/// Surrounds the messages of one actor, run by run, outputs of futures included.
///
/// What the system says is not surrounded, and is never held back. A middleware that panics before a
/// run fails its actor, whose messages wait; one that panics after it is counted as a failure.
pub trait MiddlewareChain: Send {
    /// Looks at a run whose first message is about to be handled; [`ControlFlow::Break`] holds it back.
    ///
    /// Nothing is lost: the messages wait, and the middleware is asked again after a millisecond.
    fn before_invoke(&mut self, ctx: &InvokeContext<'_>) -> ControlFlow<(), ()>;

    /// Looks at a run that has ended; called once for each that was let through.
    fn after_invoke(&mut self, ctx: &InvokeContext<'_>, result: &InvokeResult);
}

/// Makes the middleware of one actor; a plain function, so that settings with one can be copied.
#[derive(Clone, Copy)]
pub struct MiddlewareHook(fn() -> Box<dyn MiddlewareChain>);

impl MiddlewareHook {
    /// Calls `make` once for each actor.
    pub const fn new(make: fn() -> Box<dyn MiddlewareChain>) -> Self {
        Self(make)
    }

    pub(crate) fn make(self) -> Box<dyn MiddlewareChain> {
        (self.0)()
    }
}

impl PartialEq for MiddlewareHook {
    /// Whether both call the same function; one that was compiled twice may count as two.
    fn eq(&self, other: &Self) -> bool {
        core::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for MiddlewareHook {}

impl fmt::Debug for MiddlewareHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MiddlewareHook")
    }
}

/// Several middlewares as one: before in order, after in reverse.
///
/// When one holds a run back, those before it get their `after_invoke`, so that what they opened is
/// closed; those behind it hear nothing.
#[derive(Default)]
pub struct CompositeMiddleware {
    chain: Vec<Box<dyn MiddlewareChain>>,
}

impl CompositeMiddleware {
    /// Surrounds nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a middleware inside those before.
    #[must_use]
    pub fn with(mut self, inner: impl MiddlewareChain + 'static) -> Self {
        self.chain.push(Box::new(inner));
        self
    }

    pub(crate) fn nested(outer: Box<dyn MiddlewareChain>, inner: Box<dyn MiddlewareChain>) -> Self {
        Self { chain: alloc::vec![outer, inner] }
    }
}

impl MiddlewareChain for CompositeMiddleware {
    fn before_invoke(&mut self, ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        for at in 0..self.chain.len() {
            if self.chain[at].before_invoke(ctx).is_break() {
                let held = InvokeResult::Yielded;
                self.chain[..at].iter_mut().rev().for_each(|outer| outer.after_invoke(ctx, &held));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, ctx: &InvokeContext<'_>, result: &InvokeResult) {
        self.chain.iter_mut().rev().for_each(|middleware| middleware.after_invoke(ctx, result));
    }
}
