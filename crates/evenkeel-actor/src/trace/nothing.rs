//! What is traced where nothing is.

use crate::cell::CellRef;
use crate::dead_letters::DeadLetterReason;
use crate::guardian::ActorError;
use crate::invoke::{ResumeCondition, SignalKey, SuspendReason};

/// No span.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanHandle;

impl SpanHandle {
    pub(crate) const NONE: Self = Self;

    #[inline(always)]
    pub(crate) fn of_message(_to: &CellRef, _message_type: &'static str) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn of_question(_to: &CellRef) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn of_wait(&self, _of: &CellRef, _reason: SuspendReason, _resume_on: ResumeCondition) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline(always)]
    pub(crate) fn note_dequeued(&self) {}

    #[inline(always)]
    pub(crate) fn note_refused(&self) {}

    #[inline(always)]
    pub(crate) fn note_buried(&self, _reason: DeadLetterReason) {}

    #[inline(always)]
    pub(crate) fn note_failed(&self, _error: &ActorError) {}

    #[inline(always)]
    pub(crate) fn note_answered(&self) {}
}

#[inline(always)]
pub(crate) fn note_signal(_to: &CellRef, _key: SignalKey) {}
