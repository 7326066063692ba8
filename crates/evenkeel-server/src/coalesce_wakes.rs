//! Coalesces the wake-ups of a future that wakes itself while it is polled.
//!
//! hyper's connection and the handler that it polls wake each other, for example when a body is requested and when it
//! has arrived. Tokio reschedules a task that wakes itself behind all others, and unparks another worker to steal work.
//! [`CoalesceWakes`] re-polls the future in place instead. A task that waits for several futures polls all of them
//! whichever woke it; [`CoalesceWakes`] skips the poll unless its own future was woken.
//!
//! Limits: re-polls at most [`REPOLL_MAX`] times in a row, then yields to other tasks.

use core::pin::Pin;
use core::sync::atomic::{AtomicU8, Ordering};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;

use parking_lot::Mutex;

const REPOLL_MAX: usize = 4;

/// Re-polls the inner future in place when it wakes itself, and skips polls that another future of the task caused.
pub(crate) struct CoalesceWakes<F> {
    future: Pin<Box<F>>,
    wakes: Arc<WakeState>,
    waker: Waker,
}

impl<F> CoalesceWakes<F> {
    pub(crate) fn new(future: F) -> Self {
        let wakes = Arc::new(WakeState::default());
        Self { future: Box::pin(future), waker: Waker::from(wakes.clone()), wakes }
    }

    /// Returns the inner future for modification; the next poll is not skipped.
    pub(crate) fn inner(&mut self) -> Pin<&mut F> {
        self.wakes.state.store(WOKEN, Ordering::Release);
        self.future.as_mut()
    }
}

impl<F: Future> Future for CoalesceWakes<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, wakes, waker } = &mut *self;
        if wakes.is_waiting_for(cx.waker()) {
            return Poll::Pending;
        }
        for _ in 0..=REPOLL_MAX {
            wakes.begin_poll();
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return Poll::Ready(output);
            }
            if wakes.end_poll(cx.waker()) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The future is being polled and was not woken since the poll began.
const POLLING: u8 = 0;
/// The future was woken.
const WOKEN: u8 = 1;
/// The task waits for a wake-up.
const WAITING: u8 = 2;

/// The waker that the inner future gets: causes a re-poll during a poll, and wakes the task between polls.
#[derive(Default)]
struct WakeState {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl WakeState {
    /// Reports whether this task is waiting and the future was not woken since its last poll.
    fn is_waiting_for(&self, task: &Waker) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
            && self.task.lock().as_ref().is_some_and(|known| known.will_wake(task))
    }

    /// Begins a poll, which sees everything that happened before earlier wake-ups.
    fn begin_poll(&self) {
        // A read-modify-write: it acquires earlier wake-ups, and later wake-ups see POLLING.
        self.state.swap(POLLING, Ordering::AcqRel);
    }

    /// Ends a pending poll; from here on a wake-up wakes the task.
    ///
    /// Returns `false` if the future was woken during the poll and must be polled again.
    fn end_poll(&self, task: &Waker) -> bool {
        let mut slot = self.task.lock();
        if !slot.as_ref().is_some_and(|known| known.will_wake(task)) {
            *slot = Some(task.clone());
        }
        drop(slot);
        self.state.compare_exchange(POLLING, WAITING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Wake for WakeState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The task may have begun another poll since; then this is a spurious wake-up, which is harmless.
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) == WAITING
            && let Some(task) = &*self.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::future::poll_fn;
    use core::sync::atomic::{AtomicU32, AtomicUsize};
    use std::thread::{self, Thread};

    use super::*;

    #[derive(Default)]
    struct WakeUps(AtomicUsize);

    impl Wake for WakeUps {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls a future that wakes itself `times` times; returns how often it was polled and its task woken.
    fn poll_once(times: usize) -> (usize, usize) {
        let wake_ups = Arc::new(WakeUps::default());
        let mut polls = 0;
        let mut future = CoalesceWakes::new(poll_fn(|cx| {
            polls += 1;
            if polls <= times {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        }));
        let _ = Pin::new(&mut future).poll(&mut Context::from_waker(&Waker::from(wake_ups.clone())));
        drop(future);
        (polls, wake_ups.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_future_that_wakes_itself_is_repolled_in_place_a_limited_number_of_times() {
        assert_eq!(poll_once(0), (1, 0));
        assert_eq!(poll_once(2), (3, 0));
        assert_eq!(poll_once(REPOLL_MAX), (REPOLL_MAX + 1, 0));
        assert_eq!(poll_once(usize::MAX), (REPOLL_MAX + 1, 1));
    }

    #[test]
    fn a_future_that_was_not_woken_is_not_polled_unless_another_task_polls_it() {
        let mut polls = 0;
        let mut wakers = Vec::new();
        let mut future = CoalesceWakes::new(poll_fn(|cx| {
            polls += 1;
            wakers.push(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let one = Arc::new(WakeUps::default());
        let other = Arc::new(WakeUps::default());
        let poll = |future: &mut CoalesceWakes<_>, task: &Arc<WakeUps>| {
            let _ = Pin::new(future).poll(&mut Context::from_waker(&Waker::from(task.clone())));
        };
        let task = Waker::from(one.clone());
        for _ in 0..3 {
            let _ = Pin::new(&mut future).poll(&mut Context::from_waker(&task));
        }
        poll(&mut future, &other);
        future.waker.wake_by_ref();
        assert_eq!((one.0.load(Ordering::Relaxed), other.0.load(Ordering::Relaxed)), (0, 1));
        poll(&mut future, &other);
        future.inner();
        poll(&mut future, &other);
        drop(future);
        assert_eq!(polls, 4, "once for each task, once woken, once changed");
    }

    #[test]
    fn between_polls_the_task_is_woken_once() {
        let wake_ups = Arc::new(WakeUps::default());
        let wakes = Arc::new(WakeState::default());
        wakes.begin_poll();
        assert!(wakes.end_poll(&Waker::from(wake_ups.clone())));
        wakes.wake_by_ref();
        wakes.wake_by_ref();
        assert_eq!(wake_ups.0.load(Ordering::Relaxed), 1);
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn no_wake_up_during_a_poll_is_lost() {
        const TIMES: u32 = 20_000;
        let wakes = Arc::new(WakeState::default());
        let happened = AtomicU32::new(0);
        let seen = AtomicU32::new(0);
        let task = Waker::from(Arc::new(Unpark(thread::current())));
        thread::scope(|scope| {
            scope.spawn(|| {
                for nth in 1..=TIMES {
                    happened.store(nth, Ordering::Relaxed);
                    wakes.wake_by_ref();
                    while seen.load(Ordering::Relaxed) < nth {
                        thread::yield_now();
                    }
                }
            });
            for nth in 1..=TIMES {
                loop {
                    wakes.begin_poll();
                    if happened.load(Ordering::Relaxed) == nth {
                        break;
                    }
                    if wakes.end_poll(&task) {
                        thread::park();
                    }
                }
                seen.store(nth, Ordering::Relaxed);
            }
        });
    }
}
