//! The cells whose turn has come: each at most once, because the run right is one.

#[cfg(not(feature = "std"))]
mod single;
#[cfg(feature = "std")]
mod work_stealing;

#[cfg(not(feature = "std"))]
pub(crate) use single::{LocalQueue, ReadyQueues};
#[cfg(feature = "std")]
pub(crate) use work_stealing::{LocalQueue, ReadyQueues};
