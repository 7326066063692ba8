//! What a piece of work took, in time of its own thread and in time of the world.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// What a piece of work took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed {
    /// Time this thread ran; what it waited for a core is not in it.
    pub cpu: Duration,
    /// Time that passed.
    pub wall: Duration,
}

/// Times `work` by both clocks.
pub fn time(work: impl FnOnce()) -> Elapsed {
    let cpu = thread_cpu();
    let wall = Instant::now();
    work();
    let wall = wall.elapsed();
    Elapsed { cpu: thread_cpu().saturating_sub(cpu), wall }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The thread has run for a time that is not negative, and nanoseconds are below a thousand million.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn work_takes_time_of_both_kinds() {
        let elapsed = time(|| {
            for i in 0..1_000_000_u32 {
                black_box(i);
            }
        });
        assert!(elapsed.cpu > Duration::from_micros(50), "{elapsed:?}");
        assert!(elapsed.wall > Duration::from_micros(50), "{elapsed:?}");
    }
}
