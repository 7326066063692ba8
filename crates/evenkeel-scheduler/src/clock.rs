//! The scheduler's clock and its timer task: Tokio's time, or a manual clock in the loom models.

#[cfg(loom)]
pub(super) use model::SchedulerClock;
#[cfg(not(loom))]
pub(super) use real::SchedulerClock;

#[cfg(not(loom))]
mod real {
    use std::sync::{Arc, Weak};

    use evenkeel_policy::time::Instant;
    use tokio::sync::Notify;
    use tokio::time::timeout_at;

    use crate::RequestScheduler;

    pub(crate) struct SchedulerClock {
        origin: tokio::time::Instant,
        /// Notified when a timeout becomes due earlier than the timer is set for.
        reset: Arc<Notify>,
    }

    impl SchedulerClock {
        pub(crate) fn start() -> Self {
            Self { origin: tokio::time::Instant::now(), reset: Arc::new(Notify::new()) }
        }

        pub(crate) fn now(&self) -> Instant {
            Instant::ORIGIN + self.origin.elapsed()
        }

        pub(crate) fn notify(&self) {
            self.reset.notify_one();
        }

        /// Spawns the task that handles due timeouts until the scheduler is dropped. Needs a Tokio runtime.
        pub(crate) fn spawn_timer(&self, scheduler: &Arc<RequestScheduler>) {
            tokio::spawn(run_timer(Arc::downgrade(scheduler), self.origin, self.reset.clone()));
        }
    }

    async fn run_timer(scheduler: Weak<RequestScheduler>, origin: tokio::time::Instant, reset: Arc<Notify>) {
        loop {
            let Some(due) = scheduler.upgrade().map(|scheduler| scheduler.on_timer()) else { return };
            match due {
                Some(due) => {
                    // After the deadline or a reset, the loop handles due timeouts.
                    let _ = timeout_at(origin + due.since(Instant::ORIGIN), reset.notified()).await;
                }
                None => reset.notified().await,
            }
        }
    }
}

#[cfg(loom)]
mod model {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use evenkeel_policy::time::{Duration, Instant};

    use crate::RequestScheduler;

    /// A clock set by the model, which then calls `on_timer` itself.
    pub(crate) struct SchedulerClock(AtomicU64);

    impl SchedulerClock {
        pub(crate) fn start() -> Self {
            Self(AtomicU64::new(0))
        }

        pub(crate) fn now(&self) -> Instant {
            Instant::ORIGIN + Duration::from_nanos(self.0.load(Ordering::Relaxed))
        }

        pub(crate) fn set(&self, since_origin: Duration) {
            self.0.store(since_origin.as_nanos() as u64, Ordering::Relaxed);
        }

        pub(crate) fn notify(&self) {}

        pub(crate) fn spawn_timer(&self, _scheduler: &Arc<RequestScheduler>) {}
    }
}
