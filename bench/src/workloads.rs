//! Implementations of the workloads, each for all runtimes.

pub(crate) mod ask;
pub(crate) mod fan;
pub(crate) mod flood;
pub(crate) mod latency;
pub(crate) mod register;
pub(crate) mod skynet;
pub(crate) mod spawn;
pub(crate) mod wake;

/// Number of messages after which a producer yields; otherwise it would monopolize its worker.
const YIELD_EVERY: u64 = 128;
