//! Workers as embassy tasks, on a microcontroller or on embassy's executor for hosts.
//!
//! Bound: [`TASKS_MAX`] tasks in the whole program; a system takes one for each worker and one for its
//! clock.

use alloc::boxed::Box;
use core::fmt;
use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;

use embassy_executor::SendSpawner;
use embassy_time::Timer;
use evenkeel_policy::time::Instant;

use super::{RuntimeHandle, RuntimeSpawnError, TaskFuture};

/// The most tasks of all systems in a program; embassy keeps a place for each from the start.
pub const TASKS_MAX: usize = 8;

/// The longest sleep in one go: the product of its ticks and their length fits into 64 bits at any
/// speed of embassy's clock.
const NAP_MAX: Duration = Duration::from_secs(3600);

/// An executor of embassy's; the program chooses embassy's time driver.
///
/// Actors are woken by wakers of their own, so an actor that itself waits for one of embassy's timers
/// needs a driver that serves any waker: one of embassy-time's `generic-queue` features.
#[derive(Clone, Copy)]
pub struct EmbassyRuntime {
    spawner: SendSpawner,
}

impl EmbassyRuntime {
    /// Runs workers on the executor behind `spawner`.
    pub const fn new(spawner: SendSpawner) -> Self {
        Self { spawner }
    }
}

impl RuntimeHandle for EmbassyRuntime {
    /// Refuses when [`TASKS_MAX`] tasks have not ended.
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
                Timer::after(ticks(left.min(NAP_MAX))).await;
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

/// Whole microseconds, at embassy's resolution.
fn now() -> Instant {
    Instant::from_nanos(embassy_time::Instant::now().as_micros().saturating_mul(1000))
}

/// At least as long as `span`.
fn ticks(span: Duration) -> embassy_time::Duration {
    let micros = span.as_nanos().div_ceil(1000);
    embassy_time::Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
