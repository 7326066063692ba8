//! Time for cells: one wheel, one task that turns it.
//!
//! The task sleeps while nothing is due and nobody works. While somebody works it also looks, once a
//! millisecond, after cells that wait behind a handler that takes long, and after questions asked from
//! outside of workers.

use alloc::vec::Vec;
use core::future::Future;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::mailbox::SystemMessage;
use crate::raw::oneshot::DeadlineHandle;
use crate::runtime::TaskFuture;
use crate::sync::{Arc, AtomicU32, Lock, Ordering};
use crate::system::Core;
use crate::timer::{TimerEntry, TimerEvent};
use crate::timing_wheel::{TimingWheel, WheelFull};

/// How often the task looks while somebody works.
const WATCH_EVERY: Duration = Duration::from_millis(1);

/// What is due when, and who turns the wheel.
#[derive(Debug)]
pub(crate) struct TimerDriver {
    timers: Lock<DriverState>,
    /// Questions from outside of workers, before they are worth an entry of their own; `None` when
    /// nobody turns the wheel any more.
    young: Lock<Option<Vec<(DeadlineHandle, Duration)>>>,
    asleep: AtomicU32,
}

#[derive(Debug)]
struct DriverState {
    wheel: TimingWheel<TimerEvent>,
    /// The task wakes by itself at this time.
    until: Instant,
    waker: Option<Waker>,
    turned: DriverStatus,
}

/// Whether anything that is put into the wheel comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverStatus {
    /// Its task runs, or is about to.
    OnTime,
    /// Its task is gone.
    NoMore,
}

impl TimerDriver {
    pub(crate) fn new(wheel: TimingWheel<TimerEvent>) -> Self {
        Self {
            timers: Lock::new(DriverState {
                wheel,
                until: Instant::FAR_FUTURE,
                waker: None,
                turned: DriverStatus::OnTime,
            }),
            young: Lock::new(Some(Vec::new())),
            asleep: AtomicU32::new(0),
        }
    }

    /// Keeps something until it is due; there is no place for it when nobody turns the wheel any more.
    ///
    /// Wakes the task only from a long sleep: a worker's thread might keep it for itself as long as a
    /// handler runs, and while somebody works it comes by itself.
    pub(crate) fn insert(
        &self,
        due: Instant,
        timed: TimerEvent,
    ) -> Result<TimerEntry, WheelFull<TimerEvent>> {
        let (key, waker) = self.timers.with(|timers| {
            if timers.turned == DriverStatus::NoMore {
                return Err(WheelFull(timed));
            }
            let key = timers.wheel.insert(due, timed)?;
            let late = due < timers.until && self.asleep.load(Ordering::SeqCst) != 0;
            let waker = if late { timers.waker.take() } else { None };
            Ok((key, waker))
        })?;
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(TimerEntry { key, due })
    }

    pub(crate) fn cancel(&self, alarm: TimerEntry) {
        drop(self.timers.with(|timers| timers.wheel.cancel(alarm.key)));
    }

    /// Watches over questions that are still open; one that the wheel has no place for ends at once.
    pub(crate) fn expect_answers(
        &self,
        core: &Core,
        questions: impl Iterator<Item = (DeadlineHandle, Duration)>,
    ) {
        let now = core.now();
        for (question, span) in questions {
            if let Err(WheelFull(TimerEvent::Ask(question))) =
                self.insert(now + span, TimerEvent::Ask(question))
            {
                question.expire();
            }
        }
    }

    /// Watches over a question asked from outside of all workers.
    pub(crate) fn watch(&self, question: DeadlineHandle, span: Duration) {
        let unwatched = self.young.with(|young| match young {
            Some(young) => {
                young.push((question, span));
                None
            }
            None => Some(question),
        });
        match unwatched {
            Some(question) => question.expire(),
            None => self.wake_if_sleeping(),
        }
    }

    /// Wakes the task if it sleeps for longer than [`WATCH_EVERY`].
    #[inline]
    pub(crate) fn wake_if_sleeping(&self) {
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    #[cold]
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.timers.with(|timers| timers.waker.take()) {
            waker.wake();
        }
    }

    /// Everything that is due by `now`.
    fn due(&self, now: Instant) -> Vec<(Instant, TimerEvent)> {
        let mut due = Vec::new();
        self.timers.with(|timers| timers.wheel.advance(now, &mut due));
        due
    }

    fn sweep(&self, core: &Core) {
        let mut open = self.young.with(|young| young.as_mut().map(core::mem::take).unwrap_or_default());
        open.retain(|(question, _)| question.is_pending());
        self.expect_answers(core, open.into_iter());
    }

    fn has_young(&self) -> bool {
        self.young.with(|young| young.as_ref().is_some_and(|young| !young.is_empty()))
    }

    /// Ends every wait that the clock was to end, and refuses those that come.
    ///
    /// What is left in the wheel refers to cells, and so to the system that the wheel is part of.
    fn close(&self) {
        let mut left = Vec::new();
        self.timers.with(|timers| {
            timers.turned = DriverStatus::NoMore;
            timers.wheel.advance(Instant::FAR_FUTURE, &mut left);
        });
        let young = self.young.with(Option::take).into_iter().flatten().map(|(question, _)| question);
        let questions = left.into_iter().filter_map(|(_, timed)| match timed {
            TimerEvent::Ask(question) => Some(question),
            _ => None,
        });
        questions.chain(young).for_each(|question| question.expire());
    }
}

/// Turns the wheel until the system is over.
pub(crate) fn turn(core: Arc<Core>) -> impl Future<Output = ()> {
    let turning = DriverGuard(core);
    async move {
        let core = &*turning.0;
        let mut turns = alloc::vec![0; core.config.workers_max.get()];
        while !core.is_finished() {
            for (due, timed) in core.clock.due(core.now()) {
                fire(due, timed);
            }
            core.clock.sweep(core);
            if core.steal_from_stuck(&mut turns) {
                core.coordinator.idle.notify();
            }
            core.coordinator.idle.wake_yielded();
            DriverSleep { core, sleep: None }.await;
        }
    }
}

/// The task that turns the wheel; it may also be its host that ends it.
struct DriverGuard(Arc<Core>);

impl Drop for DriverGuard {
    fn drop(&mut self) {
        self.0.clock.close();
    }
}

/// The task's sleep: until something is due, or somebody pokes it.
struct DriverSleep<'a> {
    core: &'a Core,
    sleep: Option<TaskFuture>,
}

impl Future for DriverSleep<'_> {
    type Output = ();

    fn poll(mut self: core::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let clock = &self.core.clock;
        if let Some(sleep) = &mut self.sleep {
            // Woken: by the sleep's end, by a poke or by an earlier timer. The loop looks at all of it.
            let _over = sleep.as_mut().poll(cx);
            clock.asleep.store(0, Ordering::SeqCst);
            return Poll::Ready(());
        }
        let now = self.core.now();
        // Announced, then looked: whoever sets a timer, works or asks from here on wakes the task.
        clock.asleep.store(1, Ordering::SeqCst);
        let until = clock.timers.with(|timers| {
            let due = timers.wheel.next_due().unwrap_or(Instant::FAR_FUTURE);
            timers.waker = Some(cx.waker().clone());
            timers.until = due;
            due
        });
        let watched = clock.has_young() || self.core.needs_stuck_check();
        let until = if watched {
            clock.asleep.store(0, Ordering::SeqCst);
            until.min(now + WATCH_EVERY)
        } else {
            until
        };
        if self.core.is_finished() {
            return Poll::Ready(());
        }
        let mut sleep = self.core.runtime.sleep_until(until);
        if sleep.as_mut().poll(cx).is_ready() {
            clock.asleep.store(0, Ordering::SeqCst);
            return Poll::Ready(());
        }
        self.sleep = Some(sleep);
        Poll::Pending
    }
}

/// Does what is due; an actor that has ended needs no telling.
///
/// Its actor sets what repeats again, so that one firing is under way at a time.
fn fire(due: Instant, timed: TimerEvent) {
    match timed {
        TimerEvent::Ask(question) => question.expire(),
        TimerEvent::Resume(cell) => drop(cell.tell_system(SystemMessage::Resume { due })),
        TimerEvent::Expire(cell) => drop(cell.tell_system(SystemMessage::Expire { due })),
        TimerEvent::Timer { cell, id } => drop(cell.tell_system(SystemMessage::Timer { id, due })),
        TimerEvent::ReceiveTimeout(cell) => drop(cell.tell_system(SystemMessage::ReceiveTimeout { due })),
    }
}

/// Microseconds since the origin, wrapping after an hour, and never zero.
pub(crate) fn coarse_us(now: Instant) -> u32 {
    ((now.as_nanos() / 1_000) as u32).max(1)
}
