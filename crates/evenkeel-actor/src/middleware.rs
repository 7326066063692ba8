//! Middleware: hooks before the first and after the last message of an actor's run.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::ControlFlow;

use evenkeel_policy::time::Instant;

use crate::index::MailboxIndex;
use crate::invoke::InvokeResult;

/// Description of a run, passed to the hooks of a [`MiddlewareChain`].
#[derive(Clone, Copy, Debug)]
pub struct InvokeContext<'a> {
    /// The actor that runs.
    pub actor: MailboxIndex,
    /// The label of the actor in metrics.
    pub label: &'a str,
    /// The time of the call.
    pub now: Instant,
    /// Before the run, the number of waiting messages; after it, the number of handled ones.
    pub messages: usize,
}

/// A hook around every run of one actor in which it handles messages or outputs of futures.
///
/// System messages bypass it. A panic in `before_invoke` fails the actor, and its messages wait; a panic in
/// `after_invoke` is counted as a failure.
pub trait MiddlewareChain: Send {
    /// Runs before the first message of a run; [`ControlFlow::Break`] postpones the run.
    ///
    /// The messages stay queued, and the middleware is called again after a millisecond.
    fn before_invoke(&mut self, ctx: &InvokeContext<'_>) -> ControlFlow<(), ()>;

    /// Runs after a run, once for each that was not postponed.
    fn after_invoke(&mut self, ctx: &InvokeContext<'_>, result: &InvokeResult);
}

/// A factory for the middleware of one actor. A plain function pointer, so that options that hold it stay `Copy`.
#[derive(Clone, Copy)]
pub struct MiddlewareHook(fn() -> Box<dyn MiddlewareChain>);

impl MiddlewareHook {
    /// Returns a hook that calls `make` once for each actor.
    pub const fn new(make: fn() -> Box<dyn MiddlewareChain>) -> Self {
        Self(make)
    }

    pub(crate) fn make(self) -> Box<dyn MiddlewareChain> {
        (self.0)()
    }
}

impl PartialEq for MiddlewareHook {
    /// Compares function addresses; one function may have several.
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

/// Several middlewares as one: `before_invoke` in order, `after_invoke` in reverse.
///
/// If one postpones a run, the middlewares outside it get their `after_invoke`, so that they can release resources; those
/// inside it are not called.
#[derive(Default)]
pub struct CompositeMiddleware {
    chain: Vec<Box<dyn MiddlewareChain>>,
}

impl CompositeMiddleware {
    /// Returns an empty chain.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a middleware inside the middleware added before it.
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
        for index in 0..self.chain.len() {
            if self.chain[index].before_invoke(ctx).is_break() {
                let postponed = InvokeResult::Yielded;
                self.chain[..index].iter_mut().rev().for_each(|outer| outer.after_invoke(ctx, &postponed));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, ctx: &InvokeContext<'_>, result: &InvokeResult) {
        self.chain.iter_mut().rev().for_each(|middleware| middleware.after_invoke(ctx, result));
    }
}
