//! CPU time of the thread and wall-clock time of a piece of work.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Elapsed time of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed {
    /// CPU time of this thread, without the time it waited for a core.
    pub cpu: Duration,
    /// Wall-clock time.
    pub wall: Duration,
}

/// Measures `work` with both clocks.
pub fn time(work: impl FnOnce()) -> Elapsed {
    let cpu = thread_cpu();
    let wall = Instant::now();
    work();
    let wall = wall.elapsed();
    Elapsed { cpu: thread_cpu().saturating_sub(cpu), wall }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The CPU time of a thread is not negative, and its nanoseconds are below a billion.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn both_clocks_advance_during_work() {
        let elapsed = time(|| {
            for i in 0..1_000_000_u32 {
                black_box(i);
            }
        });
        assert!(elapsed.cpu > Duration::from_micros(50), "{elapsed:?}");
        assert!(elapsed.wall > Duration::from_micros(50), "{elapsed:?}");
    }
}
