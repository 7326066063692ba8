//! Empty tracing, used without the feature `tracing`.

use crate::cell::CellRef;
use crate::dead_letters::DeadLetterReason;
use crate::guardian::ActorError;
use crate::invoke::{ResumeCondition, SignalKey, SuspendReason};

/// An empty span handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanHandle;

impl SpanHandle {
    pub(crate) const NONE: Self = Self;

    #[inline(always)]
    pub(crate) fn for_message(_to: &CellRef, _message_type: &'static str) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn for_ask(_to: &CellRef) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn for_wait(
        &self,
        _of: &CellRef,
        _reason: SuspendReason,
        _resume_on: ResumeCondition,
    ) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline(always)]
    pub(crate) fn record_dequeued(&self) {}

    #[inline(always)]
    pub(crate) fn record_rejected(&self) {}

    #[inline(always)]
    pub(crate) fn record_dead_lettered(&self, _reason: DeadLetterReason) {}

    #[inline(always)]
    pub(crate) fn record_failed(&self, _error: &ActorError) {}

    #[inline(always)]
    pub(crate) fn record_replied(&self) {}
}

#[inline(always)]
pub(crate) fn record_signal(_to: &CellRef, _key: SignalKey) {}
