//! A clock that all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};

/// Reads nanoseconds since some moment that is the same for every process.
pub(crate) fn shared_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The machine has been up for a time that is not negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
