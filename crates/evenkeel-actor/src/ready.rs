//! Ready queues: the scheduled cells, each at most once, because a cell has one run permit.

#[cfg(not(feature = "std"))]
mod single;
#[cfg(feature = "std")]
mod work_stealing;

#[cfg(feature = "std")]
use alloc::boxed::Box;
use core::num::NonZeroUsize;

#[cfg(not(feature = "std"))]
pub(crate) use single::{LocalQueue, ReadyQueues};
#[cfg(feature = "std")]
pub(crate) use work_stealing::{LocalQueue, ReadyQueues};

/// Turn counters of the workers at the last check for stuck workers: how often each had looked for a cell.
#[derive(Debug)]
pub(crate) struct WorkerTurns {
    #[cfg(feature = "std")]
    counts: Box<[u32]>,
    /// A worker looked for a cell between the last two checks.
    have_changed: bool,
}

impl WorkerTurns {
    pub(crate) fn new(workers_max: NonZeroUsize) -> Self {
        #[cfg(not(feature = "std"))]
        let _ = workers_max;
        Self {
            #[cfg(feature = "std")]
            counts: alloc::vec![0; workers_max.get()].into(),
            have_changed: false,
        }
    }

    pub(crate) fn have_changed(&self) -> bool {
        self.have_changed
    }
}
