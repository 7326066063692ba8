//! A message on its way, and what `tracing` is told of it.
//!
//! Bound: without the feature `tracing` an envelope is its message and every call here is empty. With
//! it, an envelope is one pointer larger, and a message nobody traces costs a look at its callsite.

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

/// A message, and the span it travels in.
#[derive(Debug)]
pub(crate) struct Envelope<M> {
    pub(crate) message: M,
    pub(crate) trace: SpanHandle,
}

#[cfg(not(feature = "tracing"))]
const _: () = assert!(size_of::<Envelope<u64>>() == size_of::<u64>(), "an envelope is its message");
#[cfg(feature = "tracing")]
const _: () = assert!(size_of::<SpanHandle>() == size_of::<usize>(), "a trace is one pointer");

impl<M> Envelope<M> {
    /// Encloses a message for an actor; its span begins here, inside of the sender's.
    #[inline]
    pub(crate) fn seal(message: M, to: &CellRef) -> Self {
        Self { message, trace: SpanHandle::for_message(to, type_name::<M>()) }
    }
}
