//! Workers as embassy tasks, on a microcontroller or on embassy's executor for hosts.
//!
//! Limits: [`TASKS_MAX`] tasks in the whole program; a system uses one per worker and one for its timers.

use alloc::boxed::Box;
use core::fmt;
use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;

use embassy_executor::SendSpawner;
use embassy_time::Timer;
use evenkeel_policy::time::Instant;

use super::{RuntimeHandle, RuntimeSpawnError, TaskFuture};

/// The maximum number of tasks of all systems in a program; embassy allocates them statically.
pub const TASKS_MAX: usize = 8;

/// The longest single sleep: its tick arithmetic fits into 64 bits at any tick rate of embassy's clock.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// An embassy executor; the program chooses embassy's time driver.
///
/// Actors have wakers of their own, so an actor that awaits one of embassy's timers needs a time driver that accepts any
/// waker: one of embassy-time's `generic-queue` features.
#[derive(Clone, Copy)]
pub struct EmbassyRuntime {
    spawner: SendSpawner,
}

impl EmbassyRuntime {
    /// Returns a runtime that runs workers on the executor of `spawner`.
    pub const fn new(spawner: SendSpawner) -> Self {
        Self { spawner }
    }
}

impl RuntimeHandle for EmbassyRuntime {
    /// Fails while [`TASKS_MAX`] tasks are running.
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        let token = run(task).map_err(|_| RuntimeSpawnError)?;
        self.spawner.spawn(token);
        Ok(())
    }

    fn now(&self) -> Instant {
        now()
    }

    fn sleep_until(&self, at: Instant) -> TaskFuture {
        Box::pin(async move {
            loop {
                let left = at.since(now());
                if left.is_zero() {
                    return;
                }
                Timer::after(ticks(left.min(SLEEP_MAX))).await;
            }
        })
    }

    fn yield_now(&self) -> TaskFuture {
        let mut yielded = false;
        Box::pin(poll_fn(move |cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }))
    }
}

impl fmt::Debug for EmbassyRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EmbassyRuntime")
    }
}

#[embassy_executor::task(pool_size = TASKS_MAX)]
async fn run(task: TaskFuture) {
    task.await;
}

/// Returns the time in whole microseconds, at embassy's resolution.
fn now() -> Instant {
    Instant::from_nanos(embassy_time::Instant::now().as_micros().saturating_mul(1000))
}

/// Converts a duration, rounding up.
fn ticks(duration: Duration) -> embassy_time::Duration {
    let micros = duration.as_nanos().div_ceil(1000);
    embassy_time::Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
