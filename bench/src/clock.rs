//! Two clocks: time of the world, and time that this process has run on any core.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Reads nanoseconds since the first reading.
///
/// A number rather than an [`Instant`], so that a message can carry it as its value.
pub fn now_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Reads how long all threads of this process have run, in user and in system mode.
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // A process has run for a time that is not negative, and nanoseconds are below a thousand million.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn work_of_another_thread_is_counted() {
        let world = now_ns();
        let process = process_cpu();
        let work = || (0..1_000_000_u32).map(black_box).max();
        std::thread::spawn(work).join().unwrap();
        assert!(world < now_ns());
        assert!(process + Duration::from_micros(50) < process_cpu());
    }
}
