//! Timer driver: the task that advances the timing wheel.
//!
//! The task sleeps while no timer is due and no worker runs. While a worker runs, it also checks once per
//! millisecond for cells queued behind a long handler, and for asks from outside the workers.

use alloc::vec::Vec;
use core::future::Future;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::mailbox::SystemMessage;
use crate::raw::oneshot::DeadlineHandle;
use crate::runtime::Task;
use crate::sync::{Arc, AtomicU32, Lock, Ordering};
use crate::system::Core;
use crate::timer::{TimerEntry, TimerEvent};
use crate::timing_wheel::{TimingWheel, WheelFull};

/// Interval at which the task runs while a worker does.
const WATCH_EVERY: Duration = Duration::from_millis(1);

/// The timing wheel and the state of the task that drives it.
#[derive(Debug)]
pub(crate) struct TimerDriver {
    timers: Lock<DriverState>,
    /// Asks from outside the workers that have no timer of their own yet; `None` once the driver has stopped.
    young: Lock<Option<Vec<(DeadlineHandle, Duration)>>>,
    asleep: AtomicU32,
}

#[derive(Debug)]
struct DriverState {
    wheel: TimingWheel<TimerEvent>,
    /// Time at which the task wakes by itself.
    until: Instant,
    waker: Option<Waker>,
    turned: DriverStatus,
}

/// Reports whether timers still fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverStatus {
    /// The driver's task runs or is about to.
    OnTime,
    /// The driver's task is gone.
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

    /// Sets a timer; `WheelFull` also once the driver has stopped.
    ///
    /// Wakes the task only from a long sleep: a worker's thread could hold the woken task up for as long as a
    /// handler runs, and while a worker runs the task wakes by itself.
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

    /// Sets timers for asks that are still pending; an ask that finds the wheel full times out immediately.
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

    /// Watches the deadline of an ask from outside all workers.
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

    /// Wakes the task if it sleeps for longer than [`WATCH_INTERVAL`].
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

    /// Returns everything that is due by `now`.
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

    /// Stops the driver: ends every wait that a timer was to end, and rejects new timers.
    ///
    /// Entries left in the wheel would reference cells, and through them the system that contains the wheel.
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

/// Drives the timing wheel until the system has stopped.
pub(crate) fn turn(core: Arc<Core>) -> impl Future<Output = ()> {
    let turning = DriverGuard(core);
    async move {
        let core = &*turning.0;
        let mut turns = alloc::vec![0; core.config.workers_max.get()];
        while !core.is_over() {
            for (due, timed) in core.clock.due(core.now()) {
                fire(due, timed);
            }
            core.clock.sweep(core);
            if core.rescue(&mut turns) {
                core.coordinator.idle.notify();
            }
            core.coordinator.idle.wake_yielded();
            DriverSleep { core, sleep: None }.await;
        }
    }
}

/// Closes the driver when its task ends or its host drops it.
struct DriverGuard(Arc<Core>);

impl Drop for DriverGuard {
    fn drop(&mut self) {
        self.0.clock.close();
    }
}

/// Sleep of the driver's task, until a timer is due or it is woken.
struct DriverSleep<'a> {
    core: &'a Core,
    sleep: Option<Task>,
}

impl Future for DriverSleep<'_> {
    type Output = ();

    fn poll(mut self: core::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let clock = &self.core.clock;
        if let Some(sleep) = &mut self.sleep {
            // Woken by the end of the sleep, explicitly, or by an earlier timer; the loop checks all of them.
            let _over = sleep.as_mut().poll(cx);
            clock.asleep.store(0, Ordering::SeqCst);
            return Poll::Ready(());
        }
        let now = self.core.now();
        // Announced before checking: setting a timer, running a worker or asking wakes the task from here on.
        clock.asleep.store(1, Ordering::SeqCst);
        let until = clock.timers.with(|timers| {
            let due = timers.wheel.next_due().unwrap_or(Instant::FAR_FUTURE);
            timers.waker = Some(cx.waker().clone());
            timers.until = due;
            due
        });
        let watched = clock.has_young() || self.core.is_watched();
        let until = if watched {
            clock.asleep.store(0, Ordering::SeqCst);
            until.min(now + WATCH_EVERY)
        } else {
            until
        };
        if self.core.is_over() {
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

/// Fires a timer; an actor that has terminated ignores it.
///
/// Periodic timers are re-armed by their actor, so that at most one firing is in flight.
fn fire(due: Instant, timed: TimerEvent) {
    match timed {
        TimerEvent::Ask(question) => question.expire(),
        TimerEvent::Resume(cell) => drop(cell.tell_system(SystemMessage::Resume { due })),
        TimerEvent::Expire(cell) => drop(cell.tell_system(SystemMessage::Expire { due })),
        TimerEvent::Timer { cell, id } => drop(cell.tell_system(SystemMessage::Timer { id, due })),
        TimerEvent::ReceiveTimeout(cell) => drop(cell.tell_system(SystemMessage::ReceiveTimeout { due })),
    }
}

/// Returns the microseconds since the origin, wrapping after an hour, and never zero.
pub(crate) fn coarse_us(now: Instant) -> u32 {
    ((now.as_nanos() / 1_000) as u32).max(1)
}
