//! The walk's time and its one timer: Tokio's, or in models whatever they set.

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
        /// Rung when something is due earlier than the timer knows.
        alarm: Arc<Notify>,
    }

    impl SchedulerClock {
        pub(crate) fn start() -> Self {
            Self { origin: tokio::time::Instant::now(), alarm: Arc::new(Notify::new()) }
        }

        pub(crate) fn now(&self) -> Instant {
            Instant::ORIGIN + self.origin.elapsed()
        }

        pub(crate) fn notify(&self) {
            self.alarm.notify_one();
        }

        /// Has the walk do what is due when it is, for as long as anybody walks; needs a Tokio runtime.
        pub(crate) fn spawn_timer(&self, walk: &Arc<RequestScheduler>) {
            tokio::spawn(keep_time(Arc::downgrade(walk), self.origin, self.alarm.clone()));
        }
    }

    async fn keep_time(walk: Weak<RequestScheduler>, origin: tokio::time::Instant, alarm: Arc<Notify>) {
        loop {
            let Some(due) = walk.upgrade().map(|walk| walk.on_timer()) else { return };
            match due {
                Some(due) => {
                    // Either way the machine is asked again.
                    let _ = timeout_at(origin + due.since(Instant::ORIGIN), alarm.notified()).await;
                }
                None => alarm.notified().await,
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

    /// A clock that a model moves, who then has to pass the time itself.
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

        pub(crate) fn spawn_timer(&self, _walk: &Arc<RequestScheduler>) {}
    }
}
