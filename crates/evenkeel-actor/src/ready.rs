//! Ready queues: the scheduled cells, each at most once, because a cell has one run permit.

#[cfg(not(feature = "std"))]
mod single;
#[cfg(feature = "std")]
mod work_stealing;

#[cfg(not(feature = "std"))]
pub(crate) use single::{LocalQueue, ReadyQueues};
#[cfg(feature = "std")]
pub(crate) use work_stealing::{LocalQueue, ReadyQueues};
