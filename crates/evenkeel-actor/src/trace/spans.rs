//! The spans and events of messages, questions and waits; all at level `TRACE`.

use alloc::boxed::Box;

use tracing::{Span, trace, trace_span};

use crate::cell::CellRef;
use crate::dead_letters::DeadLetterReason;
use crate::guardian::ActorError;
use crate::invoke::{ResumeCondition, SignalKey, SuspendReason};

/// A span that is open as long as this is kept; none where nobody is interested.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanHandle(Option<Box<Span>>);

impl SpanHandle {
    pub(crate) const NONE: Self = Self(None);

    fn new(span: Span) -> Self {
        if span.is_disabled() { Self::NONE } else { Self(Some(Box::new(span))) }
    }

    /// Begins a message's span: it waits, and is entered while it is handled.
    #[inline]
    pub(crate) fn for_message(to: &CellRef, message_type: &'static str) -> Self {
        let actor = || to.occupant().body.settings().label.as_str();
        Self::new(trace_span!("message", actor = actor(), to = %to.index(), message_type))
    }

    /// Begins a question's span: from when it is put to when its answer is taken or given up.
    #[inline]
    pub(crate) fn for_ask(to: &CellRef) -> Self {
        let actor = || to.occupant().body.settings().label.as_str();
        Self::new(trace_span!("ask", actor = actor(), to = %to.index()))
    }

    /// Begins the span of a wait of an actor, inside of the message that led to it.
    #[inline]
    pub(crate) fn for_wait(&self, of: &CellRef, reason: SuspendReason, resume_on: ResumeCondition) -> Self {
        let parent = self.0.as_ref().and_then(|span| span.id());
        let key = match resume_on {
            ResumeCondition::ExternalSignal(key) => Some(tracing::field::display(key)),
            ResumeCondition::After(_) | ResumeCondition::WhenCapacityAvailable => None,
        };
        let of = of.index();
        Self::new(trace_span!(parent: parent, "wait", actor = %of, ?reason, ?resume_on, signal_key = key))
    }

    /// Runs something inside of the span.
    #[inline]
    pub(crate) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.0 {
            Some(span) => span.in_scope(work),
            None => work(),
        }
    }

    #[inline]
    pub(crate) fn record_dequeued(&self) {
        if let Some(span) = &self.0 {
            trace!(parent: span.as_ref(), "dequeued");
        }
    }

    #[inline]
    pub(crate) fn record_rejected(&self) {
        if let Some(span) = &self.0 {
            trace!(parent: span.as_ref(), "refused");
        }
    }

    #[inline]
    pub(crate) fn record_dead_lettered(&self, reason: DeadLetterReason) {
        if let Some(span) = &self.0 {
            trace!(parent: span.as_ref(), reason = reason.as_label(), "buried");
        }
    }

    #[inline]
    pub(crate) fn record_failed(&self, error: &ActorError) {
        if let Some(span) = &self.0 {
            trace!(parent: span.as_ref(), %error, "failed");
        }
    }

    #[inline]
    pub(crate) fn record_replied(&self) {
        if let Some(span) = &self.0 {
            trace!(parent: span.as_ref(), "answered");
        }
    }
}

/// Tells that somebody ends a wait, inside of whatever span that happens in.
#[inline]
pub(crate) fn record_signal(to: &CellRef, key: SignalKey) {
    trace!(to = %to.index(), signal_key = %key, "signal");
}
