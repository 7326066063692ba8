//! A future that wakes itself while it is polled, without a turn of the scheduler for each time.
//!
//! hyper's connection and the handler it polls wake each other: a body that is asked for, a body that has come. The
//! scheduler puts a task that wakes itself behind all others, and wakes a thread that sleeps to take one of them over.
//! Here such a wake-up is heard by the poll that is going on, which begins again. And a task that waits for several
//! futures polls them all whichever woke it; here one that did not is left alone.
//!
//! Bound: begins again at most [`AGAIN_MAX`] times before others get their turn.

use core::pin::Pin;
use core::sync::atomic::{AtomicU8, Ordering};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;

use parking_lot::Mutex;

const AGAIN_MAX: usize = 4;

/// A future whose own wake-ups stay with it, and which is polled for its own wake-ups only.
pub(crate) struct CoalesceWakes<F> {
    future: Pin<Box<F>>,
    bell: Arc<WakeState>,
    waker: Waker,
}

impl<F> CoalesceWakes<F> {
    pub(crate) fn new(future: F) -> Self {
        let bell = Arc::new(WakeState::default());
        Self { future: Box::pin(future), waker: Waker::from(bell.clone()), bell }
    }

    /// The future itself; what is done to it is seen by the next poll.
    pub(crate) fn inner(&mut self) -> Pin<&mut F> {
        self.bell.state.store(WOKEN, Ordering::Release);
        self.future.as_mut()
    }
}

impl<F: Future> Future for CoalesceWakes<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, bell, waker } = &mut *self;
        if bell.is_awaited_by(cx.waker()) {
            return Poll::Pending;
        }
        for _ in 0..=AGAIN_MAX {
            bell.begin_poll();
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return Poll::Ready(output);
            }
            if bell.end_poll(cx.waker()) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Being polled, and nothing happened since the poll began.
const POLLING: u8 = 0;
/// Something happened.
const WOKEN: u8 = 1;
/// Its task waits.
const WAITING: u8 = 2;

/// What is rung for a future: heard by its poll, or by its task between polls.
#[derive(Default)]
struct WakeState {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl WakeState {
    /// Whether nothing happened since the task began to wait, which is the one that will be woken.
    fn is_awaited_by(&self, task: &Waker) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
            && self.task.lock().as_ref().is_some_and(|known| known.will_wake(task))
    }

    /// Begins a poll, which will see whatever happened so far.
    fn begin_poll(&self) {
        // Read and written in one: whoever rang before must be seen by this poll, whoever rings later sees it.
        self.state.swap(POLLING, Ordering::AcqRel);
    }

    /// Ends a poll that came to nothing: from here on the task is woken.
    ///
    /// `false` when something happened during the poll, which then begins again.
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
        // The task may have begun another poll since; then it is woken once too often, which harms nobody.
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

    /// Polls a future that wakes itself `times` times, and tells how often it was polled and its task woken.
    fn poll_once(times: usize) -> (usize, usize) {
        let wake_ups = Arc::new(WakeUps::default());
        let mut polls = 0;
        let mut quiet = CoalesceWakes::new(poll_fn(|cx| {
            polls += 1;
            if polls <= times {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        }));
        let _ = Pin::new(&mut quiet).poll(&mut Context::from_waker(&Waker::from(wake_ups.clone())));
        drop(quiet);
        (polls, wake_ups.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again_at_once_and_not_for_ever() {
        assert_eq!(poll_once(0), (1, 0));
        assert_eq!(poll_once(2), (3, 0));
        assert_eq!(poll_once(AGAIN_MAX), (AGAIN_MAX + 1, 0));
        assert_eq!(poll_once(usize::MAX), (AGAIN_MAX + 1, 1));
    }

    #[test]
    fn a_future_that_was_not_woken_is_left_alone_unless_another_task_has_it() {
        let mut polls = 0;
        let mut wakers = Vec::new();
        let mut quiet = CoalesceWakes::new(poll_fn(|cx| {
            polls += 1;
            wakers.push(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let one = Arc::new(WakeUps::default());
        let other = Arc::new(WakeUps::default());
        let poll = |quiet: &mut CoalesceWakes<_>, task: &Arc<WakeUps>| {
            let _ = Pin::new(quiet).poll(&mut Context::from_waker(&Waker::from(task.clone())));
        };
        let task = Waker::from(one.clone());
        for _ in 0..3 {
            let _ = Pin::new(&mut quiet).poll(&mut Context::from_waker(&task));
        }
        poll(&mut quiet, &other);
        quiet.waker.wake_by_ref();
        assert_eq!((one.0.load(Ordering::Relaxed), other.0.load(Ordering::Relaxed)), (0, 1));
        poll(&mut quiet, &other);
        quiet.inner();
        poll(&mut quiet, &other);
        drop(quiet);
        assert_eq!(polls, 4, "once for each task, once woken, once changed");
    }

    #[test]
    fn between_polls_the_task_is_woken_once() {
        let wake_ups = Arc::new(WakeUps::default());
        let bell = Arc::new(WakeState::default());
        bell.begin_poll();
        assert!(bell.end_poll(&Waker::from(wake_ups.clone())));
        bell.wake_by_ref();
        bell.wake_by_ref();
        assert_eq!(wake_ups.0.load(Ordering::Relaxed), 1);
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn what_happens_at_any_moment_of_a_poll_is_not_missed() {
        const TIMES: u32 = 20_000;
        let bell = Arc::new(WakeState::default());
        let happened = AtomicU32::new(0);
        let seen = AtomicU32::new(0);
        let task = Waker::from(Arc::new(Unpark(thread::current())));
        thread::scope(|scope| {
            scope.spawn(|| {
                for nth in 1..=TIMES {
                    happened.store(nth, Ordering::Relaxed);
                    bell.wake_by_ref();
                    while seen.load(Ordering::Relaxed) < nth {
                        thread::yield_now();
                    }
                }
            });
            for nth in 1..=TIMES {
                loop {
                    bell.begin_poll();
                    if happened.load(Ordering::Relaxed) == nth {
                        break;
                    }
                    if bell.end_poll(&task) {
                        thread::park();
                    }
                }
                seen.store(nth, Ordering::Relaxed);
            }
        });
    }
}
