//! Wall-clock time and CPU time of this process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds since the first call.
///
/// A number instead of an [`Instant`], so that it can be the value of a message.
pub fn now_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Returns the CPU time (user and system) of all threads of this process.
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // CPU time is never negative, and `tv_nsec` is below 1_000_000_000.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn work_of_another_thread_is_counted() {
        let wall = now_ns();
        let cpu = process_cpu();
        let work = || (0..1_000_000_u32).map(black_box).max();
        std::thread::spawn(work).join().unwrap();
        assert!(now_ns() > wall);
        assert!(process_cpu() > cpu + Duration::from_micros(50));
    }
}
