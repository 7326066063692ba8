//! Timer driver: the task that advances the timing wheel.
//!
//! The task sleeps while no timer is due and no worker runs. While a worker runs, and once afterwards, it also checks
//! once per millisecond for cells queued behind a long handler, and for asks from outside the workers.

use alloc::vec::Vec;
use core::future::Future;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::executor::{HostTask, HostTaskKind};
use crate::mailbox::SystemMessage;
use crate::raw::oneshot::{self, DeadlineHandle};
use crate::ready::WorkerTurns;
use crate::runtime::{TaskFuture, wait_with};
use crate::sync::{Arc, AtomicU32, Lock, Ordering};
use crate::system::Core;
use crate::timer::{TimerEntry, TimerEvent};
use crate::timing_wheel::{TimingWheel, WheelFull};

/// Interval at which the task runs while a worker is running, and once afterwards.
const WATCH_INTERVAL: Duration = Duration::from_millis(1);

/// The timing wheel and the state of the task that drives it.
#[derive(Debug)]
pub(crate) struct TimerDriver {
    timers: Lock<DriverState>,
    /// Asks from outside the workers that have no timer of their own yet; `None` once the driver has stopped.
    pending_asks: Lock<Option<Vec<(DeadlineHandle, Duration)>>>,
    asleep: AtomicU32,
}

#[derive(Debug)]
struct DriverState {
    wheel: TimingWheel<TimerEvent>,
    /// Time at which the task wakes by itself.
    until: Instant,
    waker: Option<Waker>,
    status: DriverStatus,
}

/// Status of the driver's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverStatus {
    /// It runs or will run.
    Running,
    /// It has ended; no timer fires any more.
    Stopped,
}

impl TimerDriver {
    pub(crate) fn new(wheel: TimingWheel<TimerEvent>) -> Self {
        Self {
            timers: Lock::new(DriverState {
                wheel,
                until: Instant::FAR_FUTURE,
                waker: None,
                status: DriverStatus::Running,
            }),
            pending_asks: Lock::new(Some(Vec::new())),
            asleep: AtomicU32::new(0),
        }
    }

    /// Sets a timer; also returns `WheelFull` once the driver has stopped.
    ///
    /// Wakes the task only from a long sleep: on a worker's thread the woken task could be delayed until the
    /// current handler returns, and while a worker runs the task wakes by itself.
    pub(crate) fn insert(
        &self,
        due: Instant,
        event: TimerEvent,
    ) -> Result<TimerEntry, WheelFull<TimerEvent>> {
        let (key, waker) = self.timers.with(|timers| {
            if timers.status == DriverStatus::Stopped {
                return Err(WheelFull(event));
            }
            let key = timers.wheel.insert(due, event)?;
            let would_wake_too_late = due < timers.until && self.asleep.load(Ordering::SeqCst) != 0;
            let waker = if would_wake_too_late { timers.waker.take() } else { None };
            Ok((key, waker))
        })?;
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(TimerEntry { key, due })
    }

    pub(crate) fn cancel(&self, entry: TimerEntry) {
        drop(self.timers.with(|timers| timers.wheel.cancel(entry.key)));
    }

    /// Sets timers for asks that are still pending; an ask that finds the wheel full times out immediately.
    pub(crate) fn set_deadlines(&self, core: &Core, asks: impl Iterator<Item = (DeadlineHandle, Duration)>) {
        let now = core.now();
        for (ask, timeout) in asks {
            if let Err(WheelFull(TimerEvent::Ask(ask))) = self.insert(now + timeout, TimerEvent::Ask(ask)) {
                ask.time_out();
            }
        }
    }

    /// Waits for `duration`, or until the driver stops; may be awaited on any thread.
    pub(crate) async fn sleep(&self, duration: Duration) {
        // The sender is kept, so that only the deadline ends the wait.
        let (_sender, mut receiver) = oneshot::channel::<()>();
        self.watch_deadline(receiver.deadline(), duration);
        wait_with(|cx| receiver.poll_recv(cx.waker(), || cx.waker().clone()).map(drop)).await;
    }

    /// Watches the deadline of an ask from outside all workers.
    pub(crate) fn watch_deadline(&self, ask: DeadlineHandle, timeout: Duration) {
        let rejected = self.pending_asks.with(|pending_asks| match pending_asks {
            Some(pending_asks) => {
                pending_asks.push((ask, timeout));
                None
            }
            None => Some(ask),
        });
        match rejected {
            Some(ask) => ask.time_out(),
            None => drop(self.wake_if_sleeping()),
        }
    }

    /// Wakes the task if it sleeps for longer than [`WATCH_INTERVAL`]; returns whether it did.
    #[inline]
    pub(crate) fn wake_if_sleeping(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) != 0 && self.wake()
    }

    #[cold]
    pub(crate) fn wake(&self) -> bool {
        let waker = self.timers.with(|timers| timers.waker.take());
        let woken = waker.is_some();
        waker.into_iter().for_each(Waker::wake);
        woken
    }

    /// Removes and returns the events that are due by `now`.
    fn due(&self, now: Instant) -> Vec<(Instant, TimerEvent)> {
        let mut due = Vec::new();
        self.timers.with(|timers| timers.wheel.advance(now, &mut due));
        due
    }

    fn flush_pending_asks(&self, core: &Core) {
        let mut asks = self
            .pending_asks
            .with(|pending_asks| pending_asks.as_mut().map(core::mem::take).unwrap_or_default());
        asks.retain(|(ask, _)| ask.is_pending());
        self.set_deadlines(core, asks.into_iter());
    }

    fn has_pending_asks(&self) -> bool {
        self.pending_asks
            .with(|pending_asks| pending_asks.as_ref().is_some_and(|pending_asks| !pending_asks.is_empty()))
    }

    /// Stops the driver: times out every pending ask, drops all other timers, and rejects new ones.
    ///
    /// Entries left in the wheel would reference cells, and through them the system that contains the wheel.
    pub(crate) fn close(&self) {
        let mut remaining = Vec::new();
        self.timers.with(|timers| {
            timers.status = DriverStatus::Stopped;
            timers.wheel.advance(Instant::FAR_FUTURE, &mut remaining);
        });
        let pending_asks = self.pending_asks.with(Option::take).into_iter().flatten().map(|(ask, _)| ask);
        let asks = remaining.into_iter().filter_map(|(_, event)| match event {
            TimerEvent::Ask(ask) => Some(ask),
            _ => None,
        });
        asks.chain(pending_asks).for_each(|ask| ask.time_out());
    }
}

/// Drives the timing wheel until the system has stopped.
pub(crate) fn drive(core: Arc<Core>) -> impl Future<Output = ()> {
    let guard = DriverGuard { core: core.clone(), task: Some(HostTask::new(core, HostTaskKind::Timer)) };
    async move {
        let core = &*guard.core;
        let mut turns = WorkerTurns::new(core.config.workers_max);
        while !core.is_finished() {
            for (due, event) in core.timer_driver.due(core.now()) {
                fire(due, event);
            }
            core.timer_driver.flush_pending_asks(core);
            if core.steal_from_stuck(&mut turns) {
                core.coordinator.idle.notify_another();
            }
            core.coordinator.idle.wake_yielded();
            DriverSleep { core, turns: &turns, sleep: None }.await;
        }
    }
}

/// Closes the driver when its task ends; a host that drops the task ends the whole system.
struct DriverGuard {
    core: Arc<Core>,
    task: Option<HostTask>,
}

impl Drop for DriverGuard {
    fn drop(&mut self) {
        // First, so that the asks that time out below are reported as ended by the host.
        drop(self.task.take());
        self.core.timer_driver.close();
    }
}

/// Sleep of the driver's task, until a timer is due or it is woken.
struct DriverSleep<'a> {
    core: &'a Core,
    turns: &'a WorkerTurns,
    sleep: Option<TaskFuture>,
}

impl Future for DriverSleep<'_> {
    type Output = ();

    fn poll(mut self: core::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let timer_driver = &self.core.timer_driver;
        if let Some(sleep) = &mut self.sleep {
            // The sleep ended or the task was woken; the loop checks for every possible cause.
            let _ready = sleep.as_mut().poll(cx);
            timer_driver.asleep.store(0, Ordering::SeqCst);
            return Poll::Ready(());
        }
        let now = self.core.now();
        // Set before checking: from here on a new timer, a running worker or an ask wakes the task.
        timer_driver.asleep.store(1, Ordering::SeqCst);
        let until = timer_driver.timers.with(|timers| {
            let due = timers.wheel.next_due().unwrap_or(Instant::FAR_FUTURE);
            timers.waker = Some(cx.waker().clone());
            timers.until = due;
            due
        });
        let must_watch = timer_driver.has_pending_asks() || self.core.needs_stuck_check(self.turns);
        let until = if must_watch {
            timer_driver.asleep.store(0, Ordering::SeqCst);
            until.min(now + WATCH_INTERVAL)
        } else {
            until
        };
        if self.core.is_finished() {
            return Poll::Ready(());
        }
        let mut sleep = self.core.runtime.sleep_until(until);
        if sleep.as_mut().poll(cx).is_ready() {
            timer_driver.asleep.store(0, Ordering::SeqCst);
            return Poll::Ready(());
        }
        self.sleep = Some(sleep);
        Poll::Pending
    }
}

/// Fires a timer; an actor that has terminated ignores it.
///
/// Periodic timers are re-armed by their actor, so that at most one firing is in flight.
fn fire(due: Instant, event: TimerEvent) {
    match event {
        TimerEvent::Ask(ask) => ask.time_out(),
        TimerEvent::Resume(cell) => drop(cell.tell_system(SystemMessage::Resume { due })),
        TimerEvent::Repoll(cell) => drop(cell.tell_system(SystemMessage::Repoll { due })),
        TimerEvent::Timer { cell, id } => drop(cell.tell_system(SystemMessage::Timer { id, due })),
        TimerEvent::ReceiveTimeout(cell) => drop(cell.tell_system(SystemMessage::ReceiveTimeout { due })),
    }
}

/// Returns the microseconds since the origin, wrapping after about 71 minutes, and never zero.
pub(crate) fn coarse_us(now: Instant) -> u32 {
    ((now.as_nanos() / 1_000) as u32).max(1)
}
