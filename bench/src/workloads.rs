//! One file per workload, each written once for all runtimes.

pub(crate) mod ask;
pub(crate) mod fan;
pub(crate) mod latency;
pub(crate) mod register;
pub(crate) mod skynet;
pub(crate) mod spawn;
pub(crate) mod wake;

/// After so many messages a producer lets others run; an unbounded one would own its worker.
const YIELD_EVERY: u64 = 128;
