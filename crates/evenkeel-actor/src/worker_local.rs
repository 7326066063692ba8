//! State of one worker that no other thread accesses: time slice, counters, and the asks it watches.

use alloc::vec::Vec;
use core::any::TypeId;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::task::Waker;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::actor::Actor;
use crate::hub::WorkerCounters;
use crate::raw::oneshot::DeadlineHandle;
use crate::ready::LocalQueue;
use crate::sync::Arc;
use crate::system::{Core, Metrics};
use crate::system_metrics::SAMPLE_INTERVAL;
use crate::task::TaskActor;

/// Duration of a slice, after which a worker yields to its host.
pub(crate) const SLICE: Duration = Duration::from_micros(200);
/// Maximum duration of an extended slice, if the host has other threads for its tasks.
pub(crate) const SLICE_MAX: Duration = Duration::from_millis(2);
/// Intended interval between two clock reads of a busy worker.
const CLOCK_READ_INTERVAL: Duration = Duration::from_micros(20);
/// Maximum number of messages and runs between two clock reads.
const UNITS_MAX: u32 = 128;
/// Maximum number of cells that run inline within one run, each asked by its actor, before asks wait as
/// usual.
#[cfg(feature = "std")]
const INLINE_RUNS_MAX: u32 = 16;
/// Minimum number of messages between the last two clock reads for inline runs: with longer handlers, it is
/// better to wait and let another worker handle the ask.
#[cfg(feature = "std")]
const INLINE_BATCH_MIN: u32 = 8;
/// Maximum number of asks watched by the worker before the open ones are handed to the timer driver.
#[cfg(feature = "std")]
const PENDING_ASKS_MAX: usize = 64;

/// The private state of a worker.
pub(crate) struct WorkerLocal {
    core: Arc<Core>,
    pub(crate) id: usize,
    counters: Arc<WorkerCounters>,
    pub(crate) queue: LocalQueue,
    now: Cell<Instant>,
    slice_end: Cell<Instant>,
    /// Latest time up to which the slice may be extended.
    slice_limit: Cell<Instant>,
    /// Set when a task other than an actor was woken in this slice, and may be waiting for this thread.
    must_yield: Cell<bool>,
    /// Set when such a task was woken since the worker last paused, yielded or parked.
    has_woken_host_task: Cell<bool>,
    /// Messages and runs until the next clock read.
    units_left: Cell<u32>,
    units_per_read: Cell<u32>,
    random: Cell<u32>,
    pub(crate) runs_per_slice: u32,
    pub(crate) messages_per_run: usize,
    /// Bit mask: runs and waits whose number has none of these bits set are timed.
    sample_mask: u32,
    runs: Cell<u32>,
    /// Runs already reported to the metrics.
    reported_runs: Cell<u32>,
    messages: Cell<u64>,
    #[cfg(feature = "std")]
    scheduled: Cell<u32>,
    /// The waker of the cell whose future is being polled.
    polled: Cell<Option<WakerAddress>>,
    /// The kind of that cell.
    #[cfg(feature = "std")]
    polled_kind: Cell<PolledKind>,
    /// Another, already counted waker of that cell.
    spare: Cell<Option<Waker>>,
    /// Deadline of the first ask in that future.
    deadline: Cell<Option<Instant>>,
    pending_asks: RefCell<Vec<(DeadlineHandle, Duration)>>,
    /// Number of cells that may still run inline within the current run.
    #[cfg(feature = "std")]
    inline_runs_left: Cell<u32>,
}

impl WorkerLocal {
    pub(crate) fn new(core: Arc<Core>, id: usize, queue: LocalQueue) -> Self {
        let now = core.now();
        let sample_mask = match core.config.metrics {
            Metrics::On => SAMPLE_INTERVAL - 1,
            Metrics::Off => u32::MAX,
        };
        Self {
            runs_per_slice: core.runtime.runs_per_slice().get(),
            messages_per_run: core.runtime.messages_per_run().get() as usize,
            counters: core.hub.worker(id),
            core,
            id,
            queue,
            now: Cell::new(now),
            slice_end: Cell::new(Instant::FAR_FUTURE),
            slice_limit: Cell::new(Instant::ORIGIN),
            must_yield: Cell::new(false),
            has_woken_host_task: Cell::new(false),
            units_left: Cell::new(1),
            units_per_read: Cell::new(1),
            random: Cell::new(0x9e37_79b9 ^ (id as u32 + 1)),
            sample_mask,
            runs: Cell::new(1),
            reported_runs: Cell::new(1),
            messages: Cell::new(0),
            #[cfg(feature = "std")]
            scheduled: Cell::new(0),
            polled: Cell::new(None),
            #[cfg(feature = "std")]
            polled_kind: Cell::new(PolledKind::Task),
            spare: Cell::new(None),
            deadline: Cell::new(None),
            pending_asks: RefCell::new(Vec::new()),
            #[cfg(feature = "std")]
            inline_runs_left: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn shared_core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Counts one message or run; reports whether the slice is used up.
    ///
    /// Reading the clock costs more than handling a message, so it is read about every
    /// [`CLOCK_READ_INTERVAL`], estimated from the last interval: after each message if messages are long.
    #[inline]
    pub(crate) fn consume_budget(&self) -> SliceBudget {
        let left = self.units_left.get() - 1;
        self.units_left.set(left);
        if left == 0 { self.read_clock() } else { SliceBudget::Some }
    }

    #[cold]
    fn read_clock(&self) -> SliceBudget {
        let now = self.core.now();
        let before = self.now.replace(now);
        if self.slice_end.get() == Instant::FAR_FUTURE {
            // The first read of a slice: the time before it belongs to the host's other tasks.
            self.slice_end.set(now + SLICE);
            self.slice_limit.set(now + SLICE_MAX);
            self.units_left.set(self.units_per_read.get());
            return SliceBudget::Some;
        }
        if before >= self.slice_end.get() {
            // The slice was used up already, so the time since the last read does not measure messages.
            self.units_left.set(1);
            return SliceBudget::None;
        }
        let per_unit = now.since(before) / self.units_per_read.get();
        let units = CLOCK_READ_INTERVAL.as_nanos() / per_unit.as_nanos().max(1);
        let units = u32::try_from(units).unwrap_or(UNITS_MAX).clamp(1, UNITS_MAX);
        self.units_per_read.set(units);
        if now >= self.slice_end.get() {
            if !self.can_extend_slice(now) {
                self.units_left.set(1);
                return SliceBudget::None;
            }
            if self.slice_end.replace(now + SLICE) + (SLICE_MAX - SLICE) == self.slice_limit.get() {
                // A thread of the host that was parked when this slice began may not be polling for I/O yet.
                self.core.runtime.nudge();
            }
        }
        self.units_left.set(units);
        SliceBudget::Some
    }

    /// Reports whether the slice may be extended, because no other task waits for its end.
    fn can_extend_slice(&self, now: Instant) -> bool {
        now < self.slice_limit.get()
            && !self.must_yield.get()
            && self.core.runtime.has_free_thread(self.core.coordinator.active_workers())
    }

    /// Records that a task other than an actor was woken: the slice is not extended, and the worker pauses after the
    /// current run.
    #[cfg(feature = "std")]
    pub(crate) fn require_yield(&self) {
        self.must_yield.set(true);
        self.has_woken_host_task.set(true);
    }

    /// Reports whether a task other than an actor was woken since the worker last paused, yielded or parked.
    #[inline]
    pub(crate) fn has_woken_host_task(&self) -> bool {
        self.has_woken_host_task.get()
    }

    /// Records that the worker pauses, so that its host polls other tasks.
    #[inline]
    pub(crate) fn begin_pause(&self) {
        self.has_woken_host_task.set(false);
    }

    /// Begins a new slice; it ends [`SLICE`] after its first clock read.
    ///
    /// A short pause does not begin one: if clock reads are rarer than pauses, no read would ever be the
    /// second of its slice, and the slice would never end.
    pub(crate) fn begin_slice(&self) {
        self.slice_end.set(Instant::FAR_FUTURE);
        self.must_yield.set(false);
        self.begin_pause();
    }

    /// Reads the clock after a sleep.
    pub(crate) fn refresh_clock(&self) {
        self.now.set(self.core.now());
    }

    /// Records that this worker has woken another, which should run immediately.
    pub(crate) fn record_wake(&self) {
        self.counters().wakes.add(1);
        self.core.runtime.nudge();
    }

    /// Returns the time of the last clock read, at most a fraction of a millisecond old.
    pub(crate) fn coarse_now(&self) -> Instant {
        self.now.get()
    }

    /// Counts a run and the messages handled in it.
    #[inline]
    pub(crate) fn count_run(&self, messages: usize) {
        self.runs.set(self.runs.get().wrapping_add(1));
        self.messages.set(self.messages.get() + messages as u64);
    }

    /// Reports whether the next run is to be timed.
    #[inline]
    pub(crate) fn should_time_run(&self) -> bool {
        self.runs.get() & self.sample_mask == 0
    }

    /// Reports whether the wait of a cell that this worker schedules is to be timed.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn should_sample_wait(&self) -> bool {
        let nth = self.scheduled.get().wrapping_add(1);
        self.scheduled.set(nth);
        nth & self.sample_mask == 0
    }

    /// Prepares for the next cell.
    #[inline]
    pub(crate) fn begin_run(&self) {
        #[cfg(feature = "std")]
        self.inline_runs_left.set(INLINE_RUNS_MAX);
    }

    /// Runs the most recently scheduled cell inline, within the run of the cell whose future asks it and is
    /// polled with `waker`.
    ///
    /// It would be the next cell anyway; run inline, the asking cell need not suspend and be woken again.
    /// Inline runs are never nested, so the stack depth stays bounded. The asking cell's system messages and
    /// deadline wait for the handler to return, which is why this is done for short handlers only.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn run_asked_inline(&self, waker: &Waker) {
        let left = self.inline_runs_left.get();
        let handlers_are_short = self.units_per_read.get() >= INLINE_BATCH_MIN;
        if left == 0 || !handlers_are_short || self.polled.get() != Some(WakerAddress::of(waker)) {
            return;
        }
        let coordinator = &self.core.coordinator;
        let Some(asked) = coordinator.queues.take_lifo(&self.queue) else { return };
        self.inline_runs_left.set(0);
        let polled = self.polled.take();
        let polled_kind = self.polled_kind.get();
        let spare = self.spare.take();
        let deadline = self.deadline.take();
        coordinator.run_and_requeue(self, asked);
        self.polled.set(polled);
        self.polled_kind.set(polled_kind);
        self.spare.set(spare);
        self.deadline.set(deadline);
        self.inline_runs_left.set(left - 1);
    }

    /// Returns a pseudo-random number, for jitter.
    pub(crate) fn random(&self) -> u32 {
        let mut word = self.random.get();
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        self.random.set(word);
        word
    }

    /// Records that the future of a cell of this kind is being polled with `waker`; `spare` wakes the same cell.
    #[inline]
    pub(crate) fn begin_poll(&self, kind: PolledKind, waker: &Waker, spare: Option<Waker>) {
        self.polled.set(Some(WakerAddress::of(waker)));
        #[cfg(feature = "std")]
        self.polled_kind.set(kind);
        #[cfg(not(feature = "std"))]
        let _ = kind;
        self.spare.set(spare);
    }

    /// Returns the first deadline of the asks in the future just polled, and the spare waker.
    #[inline]
    pub(crate) fn end_poll(&self) -> (Option<Instant>, Option<Waker>) {
        self.polled.set(None);
        (self.deadline.take(), self.spare.take())
    }

    /// Reports whether the future of an actor is being polled, and not that of a task.
    #[cfg(feature = "std")]
    pub(crate) fn polls_actor(&self) -> bool {
        self.polled.get().is_some() && self.polled_kind.get() == PolledKind::Actor
    }

    /// Returns an owned waker for the task of `waker`, using up the spare one if possible.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn owned_waker(&self, waker: &Waker) -> Waker {
        if self.polled.get() == Some(WakerAddress::of(waker))
            && let Some(spare) = self.spare.take()
        {
            return spare;
        }
        waker.clone()
    }

    /// Watches the deadline of an ask that the current cell itself awaits with `waker`: the cell is woken in
    /// time, without a timer per ask. Returns `false` if another task awaits the ask.
    #[cfg(feature = "std")]
    pub(crate) fn watch_own_deadline(&self, waker: &Waker, due: Instant) -> bool {
        if self.polled.get() != Some(WakerAddress::of(waker)) {
            return false;
        }
        let sooner = self.deadline.get().map_or(due, |deadline| deadline.min(due));
        self.deadline.set(Some(sooner));
        true
    }

    /// Watches the deadline of any other ask; most are answered before the slice ends.
    #[cfg(feature = "std")]
    pub(crate) fn watch_deadline(&self, ask: DeadlineHandle, timeout: Duration) {
        let mut pending_asks = self.pending_asks.borrow_mut();
        pending_asks.push((ask, timeout));
        if pending_asks.len() >= PENDING_ASKS_MAX {
            self.flush_pending_asks(&mut pending_asks);
        }
    }

    /// Hands the results of the slice over: open asks to the timer driver, counters to the metrics.
    pub(crate) fn end_slice(&self) {
        let counters = self.counters();
        let reported_runs = self.reported_runs.replace(self.runs.get());
        counters.runs.add(u64::from(self.runs.get().wrapping_sub(reported_runs)));
        counters.messages.add(self.messages.take());
        let mut pending_asks = self.pending_asks.borrow_mut();
        if !pending_asks.is_empty() {
            self.flush_pending_asks(&mut pending_asks);
        }
    }

    fn flush_pending_asks(&self, pending_asks: &mut Vec<(DeadlineHandle, Duration)>) {
        pending_asks.retain(|(ask, _)| ask.is_pending());
        // An ask that is still open by now gets its own timer.
        self.core.timer_driver.set_deadlines(&self.core, pending_asks.drain(..));
    }
}

/// Identity of a waker, without keeping it alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WakerAddress {
    data: usize,
    vtable: usize,
}

impl WakerAddress {
    fn of(waker: &Waker) -> Self {
        Self { data: waker.data().addr(), vtable: core::ptr::from_ref(waker.vtable()).addr() }
    }
}

/// Kind of a cell whose future is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolledKind {
    Actor,
    /// A future of the application that has no mailbox ([`ReadyQueueScheduler::spawn_task`](crate::ReadyQueueScheduler::spawn_task)).
    Task,
}

impl PolledKind {
    /// Returns the kind of an actor type; known at compile time.
    #[inline]
    pub(crate) fn of<A: Actor>() -> Self {
        if TypeId::of::<A>() == TypeId::of::<TaskActor>() { Self::Task } else { Self::Actor }
    }
}

/// Remaining budget of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceBudget {
    Some,
    None,
}

impl Drop for WorkerLocal {
    fn drop(&mut self) {
        self.end_slice();
        self.core.coordinator.queues.release_worker(&mut self.queue);
        self.core.coordinator.idle.notify();
    }
}

impl fmt::Debug for WorkerLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerLocal").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "std", not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use alloc::boxed::Box;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

    use super::*;
    use crate::runtime::{RuntimeHandle, RuntimeSpawnError, TaskFuture};
    use crate::test_rig::{IdleRuntime, SumMsg};
    use crate::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler};

    /// A host whose clock and threads are controlled by the test.
    #[derive(Clone, Default)]
    struct Host(Arc<HostState>);

    #[derive(Default)]
    struct HostState {
        micros: AtomicU64,
        has_room: AtomicBool,
        nudges: AtomicU32,
        tasks: IdleRuntime,
    }

    impl Drop for Host {
        /// Drops the tasks, which reference this host, with the test's handle of it.
        fn drop(&mut self) {
            self.0.tasks.drop_tasks();
        }
    }

    impl RuntimeHandle for Host {
        fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
            self.0.tasks.spawn(task)
        }

        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.micros.load(Ordering::Relaxed) * 1_000)
        }

        fn sleep_until(&self, _at: Instant) -> TaskFuture {
            Box::pin(core::future::pending())
        }

        fn yield_now(&self) -> TaskFuture {
            Box::pin(core::future::ready(()))
        }

        fn nudge(&self) {
            self.0.nudges.fetch_add(1, Ordering::Relaxed);
        }

        fn has_free_thread(&self, _working: usize) -> bool {
            self.0.has_room.load(Ordering::Relaxed)
        }
    }

    fn worker(host: &Host) -> (ReadyQueueScheduler, WorkerLocal) {
        let system = ActorSystemRunner::new(ActorSystemConfig::default()).start(host.clone()).unwrap();
        let core = system.core().clone();
        let queue = core.coordinator.queues.claim(0).unwrap();
        core.coordinator.idle.begin_search();
        (system, WorkerLocal::new(core, 0, queue))
    }

    /// Processes messages of 10 µs until the slice ends; returns its duration in µs.
    fn slice_us(host: &Host, local: &WorkerLocal, mut after_each: impl FnMut()) -> u64 {
        local.begin_slice();
        let began = host.0.micros.load(Ordering::Relaxed);
        while local.consume_budget() == SliceBudget::Some {
            after_each();
            host.0.micros.fetch_add(10, Ordering::Relaxed);
        }
        host.0.micros.load(Ordering::Relaxed) - began
    }

    #[test]
    fn a_slice_is_extended_while_the_host_has_another_thread() {
        let host = Host::default();
        let (_system, local) = worker(&host);
        let crowded = slice_us(&host, &local, || ());
        assert!((200..300).contains(&crowded), "{crowded} µs");
        assert_eq!(host.0.nudges.load(Ordering::Relaxed), 0);
        host.0.has_room.store(true, Ordering::Relaxed);
        let roomy = slice_us(&host, &local, || ());
        assert!((2_000..2_400).contains(&roomy), "{roomy} µs");
        assert_eq!(host.0.nudges.load(Ordering::Relaxed), 1, "the host is nudged once");
    }

    #[test]
    fn an_inline_run_keeps_the_deadline_and_the_kind_of_the_asking_cell() {
        let host = Host::default();
        let (system, local) = worker(&host);
        local.units_per_read.set(INLINE_BATCH_MIN);
        local.begin_run();
        let (_wakes, waker) = crate::test_rig::WakeCounter::new();
        let due = Instant::from_millis(7);
        crate::raw::current::enter(&local, || {
            local.begin_poll(PolledKind::Task, &waker, None);
            assert!(local.watch_own_deadline(&waker, due));
            let asked = system.spawn(&crate::Props::new(crate::test_rig::Sum::default).build()).unwrap();
            // The asked cell awaits an ask of its own, which has a deadline too.
            let inner = asked.clone();
            asked.tell(SumMsg::Await(Box::pin(async move {
                let _timed_out = inner.ask(SumMsg::Read).within(Duration::from_millis(3)).await;
                SumMsg::Add(1)
            })));
            local.run_asked_inline(&waker);
            assert_eq!(asked.state(), crate::ActorState::Suspended, "the asked cell must have run");
            assert!(!local.polls_actor(), "a task asked");
            let deadline = local.end_poll().0;
            assert_eq!(deadline, Some(due));
            drop(system);
            // Terminates the cell, whose future references it.
            while let Some(permit) = local.core().coordinator.queues.next(&local.queue) {
                local.core().coordinator.run_and_requeue(&local, permit);
            }
        });
    }

    #[test]
    fn a_slice_in_which_another_task_was_woken_is_not_extended() {
        let host = Host::default();
        let (_system, local) = worker(&host);
        host.0.has_room.store(true, Ordering::Relaxed);
        let (_wakes, waker) = crate::test_rig::WakeCounter::new();
        let with_wake = crate::raw::current::enter(&local, || {
            slice_us(&host, &local, || crate::ignore_panic::wake_and_request_yield(waker.clone()))
        });
        assert!((200..300).contains(&with_wake), "{with_wake} µs");
        let after = slice_us(&host, &local, || ());
        assert!(after >= 2_000, "the slice must be extended again after a yield: {after} µs");
    }
}
