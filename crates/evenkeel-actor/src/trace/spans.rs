//! Spans and events of messages, asks and waits; all at level `TRACE`.

use alloc::boxed::Box;

use tracing::{Span, trace, trace_span};

use crate::cell::CellRef;
use crate::dead_letters::DeadLetterReason;
use crate::guardian::ActorError;
use crate::invoke::{ResumeCondition, SignalKey, SuspendReason};

/// A handle that keeps a span open; empty if no subscriber is interested.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanHandle(Option<Box<Span>>);

impl SpanHandle {
    pub(crate) const NONE: Self = Self(None);

    fn new(span: Span) -> Self {
        if span.is_disabled() { Self::NONE } else { Self(Some(Box::new(span))) }
    }

    /// Opens the span of a message, which is entered while the message is handled.
    #[inline]
    pub(crate) fn for_message(to: &CellRef, message_type: &'static str) -> Self {
        let actor = || to.occupant().body.settings().trace_label();
        let signal_key = tracing::field::Empty;
        Self::new(trace_span!("message", actor = actor(), to = %to.index(), message_type, signal_key))
    }

    /// Opens the span of an ask, from the request until its reply is received or abandoned.
    #[inline]
    pub(crate) fn for_ask(to: &CellRef) -> Self {
        let actor = || to.occupant().body.settings().trace_label();
        Self::new(trace_span!("ask", actor = actor(), to = %to.index()))
    }

    /// Opens the span of an actor's suspension, as a child of the message that caused it, and records the key of the signal
    /// that ends it in both.
    #[inline]
    pub(crate) fn for_wait(&self, of: &CellRef, reason: SuspendReason, resume_on: ResumeCondition) -> Self {
        let parent = self.0.as_ref().and_then(|span| span.id());
        let key = match resume_on {
            ResumeCondition::ExternalSignal(key) => Some(tracing::field::display(key)),
            ResumeCondition::After(_) | ResumeCondition::WhenCapacityAvailable => None,
        };
        if let (Some(message), Some(key)) = (&self.0, &key) {
            message.record("signal_key", key);
        }
        let of = of.index();
        Self::new(trace_span!(parent: parent, "wait", actor = %of, ?reason, ?resume_on, signal_key = key))
    }

    /// Runs `work` inside the span.
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
            trace!(parent: span.as_ref(), "rejected");
        }
    }

    #[inline]
    pub(crate) fn record_dead_lettered(&self, reason: DeadLetterReason) {
        if let Some(span) = &self.0 {
            trace!(parent: span.as_ref(), reason = reason.as_label(), "dead_lettered");
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

/// Records a signal that ends a wait, in the current span.
#[inline]
pub(crate) fn record_signal(to: &CellRef, key: SignalKey) {
    trace!(to = %to.index(), signal_key = %key, "signal");
}
