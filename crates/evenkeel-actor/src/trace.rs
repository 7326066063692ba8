//! Envelopes of messages, and their `tracing` spans.
//!
//! Guarantees: without the feature `tracing`, an envelope is as large as its message and every call here is empty. With
//! it, an envelope is one pointer larger, and a message that no subscriber traces costs one callsite check.

#[cfg(not(feature = "tracing"))]
mod disabled;
#[cfg(feature = "tracing")]
mod spans;

#[cfg(not(feature = "tracing"))]
pub(crate) use disabled::{SpanHandle, record_signal};
#[cfg(feature = "tracing")]
pub(crate) use spans::{SpanHandle, record_signal};

use core::any::type_name;

use crate::cell::CellRef;

/// A message and its span.
#[derive(Debug)]
pub(crate) struct Envelope<M> {
    pub(crate) message: M,
    pub(crate) trace: SpanHandle,
}

#[cfg(not(feature = "tracing"))]
const _: () =
    assert!(size_of::<Envelope<u64>>() == size_of::<u64>(), "an envelope is as large as its message");
#[cfg(feature = "tracing")]
const _: () = assert!(size_of::<SpanHandle>() == size_of::<usize>(), "a span handle is one pointer");

impl<M> Envelope<M> {
    /// Wraps a message for an actor and opens its span, as a child of the sender's.
    #[inline]
    pub(crate) fn seal(message: M, to: &CellRef) -> Self {
        Self { message, trace: SpanHandle::for_message(to, type_name::<M>()) }
    }
}
