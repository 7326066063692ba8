//! A clock shared by all processes of the machine.

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of the monotonic clock, which has the same epoch in every process.
pub(crate) fn shared_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The monotonic clock is never negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
