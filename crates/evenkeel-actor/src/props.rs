//! Props: the recipe for spawning actors, with their factory, mailbox, supervision and middleware.

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

/// The recipe for spawning actors; cheap to clone, and shared by the actors spawned from it.
pub struct Props<A: Actor>(pub(crate) Arc<Spec<A>>);

impl<A: Actor> Clone for Props<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The contents of [`Props`].
pub(crate) struct Spec<A: Actor> {
    pub(crate) settings: Settings,
    pub(crate) factory: Option<Factory<A>>,
}

/// The part of a [`Spec`] that does not depend on the type of the actor.
pub(crate) struct Settings {
    /// The system's default if `None`.
    pub(crate) mailbox: Option<MailboxOptions>,
    pub(crate) children: Supervision,
    pub(crate) label: Label,
    /// The label if `None`.
    pub(crate) trace_label: Option<Box<str>>,
    pub(crate) middleware: Option<Middleware>,
    pub(crate) keep_dead_letters: KeepMessage,
    #[cfg(feature = "patterns")]
    pub(crate) stash_max: usize,
}

/// The label of an actor in metrics.
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
    /// Returns a builder of props whose actors are created by `factory`, at the spawn and at each restart.
    #[allow(clippy::new_ret_no_self, reason = "returns the builder of the type")]
    pub fn new(factory: impl Fn() -> A + Send + Sync + 'static) -> PropsBuilder<A> {
        PropsBuilder(Spec { settings: Settings::of::<A>(), factory: Some(Box::new(factory)) })
    }

    /// Returns a builder of props for actors that are passed as values and cannot be created again.
    ///
    /// Such an actor is stopped instead of restarted.
    pub fn of_values() -> PropsBuilder<A> {
        PropsBuilder(Spec { settings: Settings::of::<A>(), factory: None })
    }
}

impl Settings {
    /// Creates the middleware of one actor, with the mailbox's as the outer one.
    pub(crate) fn make_middleware(&self, hook: Option<MiddlewareHook>) -> Option<Box<dyn MiddlewareChain>> {
        match (hook, &self.middleware) {
            (None, None) => None,
            (Some(hook), None) => Some(hook.make()),
            (None, Some(own)) => Some(own()),
            (Some(hook), Some(own)) => Some(Box::new(CompositeMiddleware::nested(hook.make(), own()))),
        }
    }

    /// Returns the label in spans and dead letters.
    pub(crate) fn trace_label(&self) -> &str {
        self.trace_label.as_deref().unwrap_or_else(|| self.label.as_str())
    }

    fn of<A>() -> Self {
        Self {
            mailbox: None,
            children: Supervision::default(),
            label: Label::Type(short_type_name::<A>()),
            trace_label: None,
            middleware: None,
            keep_dead_letters: KeepMessage::Plain,
            #[cfg(feature = "patterns")]
            stash_max: STASH_MAX,
        }
    }
}

/// Builder of [`Props`].
pub struct PropsBuilder<A: Actor>(Spec<A>);

impl<A: Actor> PropsBuilder<A> {
    /// Sets the mailbox, as a preset or in full; the default is `ActorSystemConfig::mailbox`.
    #[must_use]
    pub fn mailbox(mut self, options: impl Into<MailboxOptions>) -> Self {
        self.0.settings.mailbox = Some(options.into());
        self
    }

    /// Sets the supervision of the actors' children.
    #[must_use]
    pub fn supervise(mut self, children: Supervision) -> Self {
        self.0.settings.children = children;
        self
    }

    /// Sets the label in metrics; the default is the name of the actor's type.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.0.settings.label = Label::Named(label.into());
        self
    }

    /// Sets the label in spans and dead letters; the default is the label in metrics.
    ///
    /// For actors of which there are too many for metrics of each.
    #[must_use]
    pub fn trace_label(mut self, label: impl Into<Box<str>>) -> Self {
        self.0.settings.trace_label = Some(label.into());
        self
    }

    /// Wraps every run of the actors in a middleware; each actor gets its own.
    #[must_use]
    pub fn middleware<M: MiddlewareChain + 'static>(
        mut self,
        middleware: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.0.settings.middleware = Some(Box::new(move || Box::new(middleware())));
        self
    }

    /// Sets which dead letters keep their message.
    #[must_use]
    pub fn dead_letters(mut self, keep: KeepMessage) -> Self {
        self.0.settings.keep_dead_letters = keep;
        self
    }

    /// Sets the capacity of each actor's stash; the default is [`STASH_MAX`], and 0 disables it.
    #[cfg(feature = "patterns")]
    #[must_use]
    pub fn stash_max(mut self, stash_max: usize) -> Self {
        self.0.settings.stash_max = stash_max;
        self
    }

    /// Builds the props.
    pub fn build(self) -> Props<A> {
        Props(Arc::new(self.0))
    }
}

impl<A: Actor> From<PropsBuilder<A>> for Props<A> {
    fn from(builder: PropsBuilder<A>) -> Self {
        builder.build()
    }
}

/// Returns `Counter` for `crate::module::Counter`, and the full name of a type with type parameters.
pub(crate) fn short_type_name<A>() -> &'static str {
    let name = core::any::type_name::<A>();
    if name.contains('<') { name } else { name.rsplit("::").next().unwrap_or(name) }
}
