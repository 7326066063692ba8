//! How an actor is made: its value or a factory for it, its mailbox, its place among supervisors.

use alloc::boxed::Box;
use alloc::string::String;

use crate::actor::Actor;
use crate::dead_letters::KeepMessage;
use crate::guardian::Supervision;
use crate::mailbox::MailboxOptions;
use crate::middleware::{CompositeMiddleware, MiddlewareChain, MiddlewareHook};
#[cfg(feature = "patterns")]
use crate::stash::STASH_MAX;
use crate::sync::Arc;

type Factory<A> = Box<dyn Fn() -> A + Send + Sync>;
type Middleware = Box<dyn Fn() -> Box<dyn MiddlewareChain> + Send + Sync>;

/// What actors are made from; cheap to clone, and actors made from one share it.
pub struct Props<A: Actor>(pub(crate) Arc<Spec<A>>);

impl<A: Actor> Clone for Props<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What all actors of one [`Props`] have in common.
pub(crate) struct Spec<A: Actor> {
    pub(crate) settings: Settings,
    pub(crate) factory: Option<Factory<A>>,
}

/// The part of a [`Spec`] that does not depend on the type of the actor.
pub(crate) struct Settings {
    /// The system's unless said.
    pub(crate) mailbox: Option<MailboxOptions>,
    pub(crate) children: Supervision,
    pub(crate) label: Label,
    pub(crate) middleware: Option<Middleware>,
    pub(crate) letters: KeepMessage,
    #[cfg(feature = "patterns")]
    pub(crate) stash_max: usize,
}

/// What metrics call an actor.
pub(crate) enum Label {
    Type(&'static str),
    Named(String),
}

impl Label {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Type(name) => name,
            Self::Named(name) => name,
        }
    }
}

impl<A: Actor> Props<A> {
    /// Makes actors with `factory`, at first and after each restart.
    #[allow(clippy::new_ret_no_self, reason = "the builder ends in props, and this is where it begins")]
    pub fn new(factory: impl Fn() -> A + Send + Sync + 'static) -> PropsBuilder<A> {
        PropsBuilder(Spec { settings: Settings::of::<A>(), factory: Some(Box::new(factory)) })
    }

    /// Makes actors that are given as values and cannot be made again.
    ///
    /// Where a supervisor says restart, such an actor is stopped.
    pub fn of_values() -> PropsBuilder<A> {
        PropsBuilder(Spec { settings: Settings::of::<A>(), factory: None })
    }
}

impl Settings {
    /// Makes the middleware of one actor: the mailbox's around its own.
    pub(crate) fn make_middleware(&self, hook: Option<MiddlewareHook>) -> Option<Box<dyn MiddlewareChain>> {
        match (hook, &self.middleware) {
            (None, None) => None,
            (Some(hook), None) => Some(hook.make()),
            (None, Some(own)) => Some(own()),
            (Some(hook), Some(own)) => Some(Box::new(CompositeMiddleware::nested(hook.make(), own()))),
        }
    }

    fn of<A>() -> Self {
        Self {
            mailbox: None,
            children: Supervision::default(),
            label: Label::Type(short_type_name::<A>()),
            middleware: None,
            letters: KeepMessage::Plain,
            #[cfg(feature = "patterns")]
            stash_max: STASH_MAX,
        }
    }
}

/// Collects what [`Props`] are made of.
pub struct PropsBuilder<A: Actor>(Spec<A>);

impl<A: Actor> PropsBuilder<A> {
    /// Chooses the mailbox, by a preset or in full; the one of the system's settings unless said.
    #[must_use]
    pub fn mailbox(mut self, options: impl Into<MailboxOptions>) -> Self {
        self.0.settings.mailbox = Some(options.into());
        self
    }

    /// Chooses what happens to children that fail.
    #[must_use]
    pub fn supervise(mut self, children: Supervision) -> Self {
        self.0.settings.children = children;
        self
    }

    /// Chooses what metrics call the actors; their type's name unless said.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.0.settings.label = Label::Named(label.into());
        self
    }

    /// Puts a middleware around every run of every actor; each actor gets its own.
    #[must_use]
    pub fn middleware<M: MiddlewareChain + 'static>(
        mut self,
        middleware: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.0.settings.middleware = Some(Box::new(move || Box::new(middleware())));
        self
    }

    /// Chooses what dead letters keep of messages to the actors.
    #[must_use]
    pub fn dead_letters(mut self, keep: KeepMessage) -> Self {
        self.0.settings.letters = keep;
        self
    }

    /// Chooses how many messages each actor may put aside, [`STASH_MAX`] unless said; 0 forbids it.
    #[cfg(feature = "patterns")]
    #[must_use]
    pub fn stash_max(mut self, stash_max: usize) -> Self {
        self.0.settings.stash_max = stash_max;
        self
    }

    /// Makes the props.
    pub fn build(self) -> Props<A> {
        Props(Arc::new(self.0))
    }
}

impl<A: Actor> From<PropsBuilder<A>> for Props<A> {
    fn from(builder: PropsBuilder<A>) -> Self {
        builder.build()
    }
}

/// `Counter` of `crate::module::Counter`; the whole name where it has type parameters.
fn short_type_name<A>() -> &'static str {
    let name = core::any::type_name::<A>();
    if name.contains('<') { name } else { name.rsplit("::").next().unwrap_or(name) }
}
