//! What one worker has to itself.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::task::Waker;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::hub::WorkerCounters;
use crate::raw::oneshot::DeadlineHandle;
use crate::ready::LocalQueue;
use crate::sync::Arc;
use crate::system::{Core, Metrics};
use crate::system_metrics::SAMPLED;

/// How long a worker goes on before it lets its host look after others.
pub(crate) const SLICE: Duration = Duration::from_micros(200);
/// How long a worker goes on at most where its host has threads to spare.
pub(crate) const SLICE_MAX: Duration = Duration::from_millis(2);
/// How often a worker means to read the clock while it works.
const CLOCK_EVERY: Duration = Duration::from_micros(20);
const UNITS_MAX: u32 = 128;
/// How many cells run inside of one run, each asked by its actor, before that has to wait like others.
#[cfg(feature = "std")]
const IN_PLACE_MAX: u32 = 16;
/// How many messages must have been handled between the last two looks at the clock: where handlers are long, whoever
/// asks is better off waiting, and served meanwhile by another worker.
#[cfg(feature = "std")]
const IN_PLACE_FROM: u32 = 8;
/// Questions remembered before those that were answered are thrown out.
#[cfg(feature = "std")]
const YOUNG_MAX: usize = 64;

/// A worker's own part; nobody else touches it.
pub(crate) struct WorkerLocal {
    core: Arc<Core>,
    pub(crate) id: usize,
    counters: Arc<WorkerCounters>,
    pub(crate) queue: LocalQueue,
    now: Cell<Instant>,
    slice_end: Cell<Instant>,
    /// Until when the slice may be prolonged.
    slice_last: Cell<Instant>,
    /// Whether somebody was woken in this slice who is no actor, and may have this thread's next turn.
    owes_turn: Cell<bool>,
    /// Messages and runs until the clock is read again.
    units: Cell<u32>,
    spent: Cell<u32>,
    random: Cell<u32>,
    pub(crate) runs_per_slice: u32,
    pub(crate) messages_per_run: usize,
    /// Runs and waits are timed whose number has none of these bits.
    sampled: u32,
    runs: Cell<u32>,
    /// Runs the hub has been told of.
    counted: Cell<u32>,
    messages: Cell<u64>,
    #[cfg(feature = "std")]
    scheduled: Cell<u32>,
    /// The waker of the cell whose future is being polled.
    polled: Cell<Option<WakerAddress>>,
    /// Another waker of that cell, counted already.
    spare: Cell<Option<Waker>>,
    /// When the first question in that future expires.
    expires: Cell<Option<Instant>>,
    young: RefCell<Vec<(DeadlineHandle, Duration)>>,
    /// How many cells may still run inside of the run at hand.
    #[cfg(feature = "std")]
    in_place_left: Cell<u32>,
}

impl WorkerLocal {
    pub(crate) fn new(core: Arc<Core>, id: usize, queue: LocalQueue) -> Self {
        let now = core.now();
        let sampled = match core.config.metrics {
            Metrics::On => SAMPLED - 1,
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
            slice_last: Cell::new(Instant::ORIGIN),
            owes_turn: Cell::new(false),
            units: Cell::new(1),
            spent: Cell::new(1),
            random: Cell::new(0x9e37_79b9 ^ (id as u32 + 1)),
            sampled,
            runs: Cell::new(1),
            counted: Cell::new(1),
            messages: Cell::new(0),
            #[cfg(feature = "std")]
            scheduled: Cell::new(0),
            polled: Cell::new(None),
            spare: Cell::new(None),
            expires: Cell::new(None),
            young: RefCell::new(Vec::new()),
            #[cfg(feature = "std")]
            in_place_left: Cell::new(0),
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

    /// Counts one message or run; tells whether the slice is over.
    ///
    /// A look at the clock costs more than a message, so it is taken every [`CLOCK_EVERY`] or so, as
    /// judged by the last span: after each message where messages are long.
    #[inline]
    pub(crate) fn consume_budget(&self) -> SliceBudget {
        let left = self.units.get() - 1;
        self.units.set(left);
        if left == 0 { self.look_at_clock() } else { SliceBudget::Some }
    }

    #[cold]
    fn look_at_clock(&self) -> SliceBudget {
        let now = self.core.now();
        let before = self.now.replace(now);
        if self.slice_end.get() == Instant::FAR_FUTURE {
            // The first look of a slice; what the host did before it says nothing.
            self.slice_end.set(now + SLICE);
            self.slice_last.set(now + SLICE_MAX);
            self.units.set(self.spent.get());
            return SliceBudget::Some;
        }
        if self.slice_end.get() <= before {
            // Over already; the moment since the last look says nothing about messages.
            self.units.set(1);
            return SliceBudget::None;
        }
        let each = now.since(before) / self.spent.get();
        let units = CLOCK_EVERY.as_nanos() / each.as_nanos().max(1);
        let units = u32::try_from(units).unwrap_or(UNITS_MAX).clamp(1, UNITS_MAX);
        self.spent.set(units);
        if self.slice_end.get() <= now {
            if !self.is_prolonged(now) {
                self.units.set(1);
                return SliceBudget::None;
            }
            if self.slice_end.replace(now + SLICE) + (SLICE_MAX - SLICE) == self.slice_last.get() {
                // A thread of the host that slept when this one had its turn may not wait for input and output.
                self.core.runtime.nudge();
            }
        }
        self.units.set(units);
        SliceBudget::Some
    }

    /// Whether nobody can be waiting for the end of the slice.
    fn is_prolonged(&self, now: Instant) -> bool {
        now < self.slice_last.get()
            && !self.owes_turn.get()
            && self.core.runtime.has_free_thread(self.core.coordinator.working())
    }

    /// Notes that somebody was woken who is no actor: the slice is not prolonged.
    #[cfg(feature = "std")]
    pub(crate) fn require_yield(&self) {
        self.owes_turn.set(true);
    }

    /// Begins a new slice; it ends [`SLICE`] after the first look at the clock.
    ///
    /// A short pause begins none: where a look is due less often than a pause, no look would ever be
    /// the second of its slice, and the slice would never end.
    pub(crate) fn begin_slice(&self) {
        self.slice_end.set(Instant::FAR_FUTURE);
        self.owes_turn.set(false);
    }

    /// Looks at the clock after a sleep of any length.
    pub(crate) fn wake_up(&self) {
        self.now.set(self.core.now());
    }

    /// Notes that this worker has woken another, which is to run at once.
    pub(crate) fn record_wake(&self) {
        self.counters().wakes.add(1);
        self.core.runtime.nudge();
    }

    /// A time no later than the present, and a fraction of a millisecond before it.
    pub(crate) fn coarse_now(&self) -> Instant {
        self.now.get()
    }

    /// Counts a run and the messages handled in it.
    #[inline]
    pub(crate) fn count_run(&self, messages: usize) {
        self.runs.set(self.runs.get().wrapping_add(1));
        self.messages.set(self.messages.get() + messages as u64);
    }

    /// Whether the next run is to be timed.
    #[inline]
    pub(crate) fn times_run(&self) -> bool {
        self.runs.get() & self.sampled == 0
    }

    /// Whether the wait of a cell that this worker schedules is to be timed.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn times_wait(&self) -> bool {
        let nth = self.scheduled.get().wrapping_add(1);
        self.scheduled.set(nth);
        nth & self.sampled == 0
    }

    /// Notes that a cell's turn begins.
    #[inline]
    pub(crate) fn begin_run(&self) {
        #[cfg(feature = "std")]
        self.in_place_left.set(IN_PLACE_MAX);
    }

    /// Lets the newest cell run inside of the run at hand, whose future asks it and is polled with `waker`.
    ///
    /// It would be the next anyway; in its asker's place it needs neither to be waited for nor to wake anybody.
    /// Never inside of another such run: the depth of the stack stays bounded. The asker's system lane and its deadline
    /// wait for the handler to return, which is why this is for short handlers only.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn run_asked_inline(&self, waker: &Waker) {
        let left = self.in_place_left.get();
        let is_brisk = IN_PLACE_FROM <= self.spent.get();
        if left == 0 || !is_brisk || self.polled.get() != Some(WakerAddress::of(waker)) {
            return;
        }
        let coordinator = &self.core.coordinator;
        let Some(newest) = coordinator.queues.take_lifo(&self.queue) else { return };
        self.in_place_left.set(0);
        let asker = (self.polled.take(), self.spare.take(), self.expires.take());
        coordinator.run(self, newest);
        self.polled.set(asker.0);
        self.spare.set(asker.1);
        self.expires.set(asker.2);
        self.in_place_left.set(left - 1);
    }

    /// A number that looks random; for jitter.
    pub(crate) fn random(&self) -> u32 {
        let mut word = self.random.get();
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        self.random.set(word);
        word
    }

    /// Notes that the future of a cell is being polled, with this waker; `spare` wakes the same cell.
    #[inline]
    pub(crate) fn begin_poll(&self, waker: &Waker, spare: Option<Waker>) {
        self.polled.set(Some(WakerAddress::of(waker)));
        self.spare.set(spare);
    }

    /// Tells when the first question expires that the future just polled waits for, and hands back the spare
    /// waker.
    #[inline]
    pub(crate) fn end_poll(&self) -> (Option<Instant>, Option<Waker>) {
        self.polled.set(None);
        (self.expires.take(), self.spare.take())
    }

    /// Makes a waker to keep, out of the one that the future is polled with.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn own(&self, waker: &Waker) -> Waker {
        if self.polled.get() == Some(WakerAddress::of(waker))
            && let Some(spare) = self.spare.take()
        {
            return spare;
        }
        waker.clone()
    }

    /// Watches over a question that the cell itself waits for with `waker`: the cell is woken in time,
    /// and no entry of its own is needed; `false` for one that somebody else waits for.
    #[cfg(feature = "std")]
    pub(crate) fn watch_own(&self, waker: &Waker, due: Instant) -> bool {
        if self.polled.get() != Some(WakerAddress::of(waker)) {
            return false;
        }
        let sooner = self.expires.get().map_or(due, |expires| expires.min(due));
        self.expires.set(Some(sooner));
        true
    }

    /// Watches over any other question; most are answered before the slice ends.
    #[cfg(feature = "std")]
    pub(crate) fn watch(&self, question: DeadlineHandle, within: Duration) {
        let mut young = self.young.borrow_mut();
        young.push((question, within));
        if YOUNG_MAX <= young.len() {
            self.grow_up(&mut young);
        }
    }

    /// Hands over what the slice has left: questions still open to the clock, counts to the hub.
    pub(crate) fn end_slice(&self) {
        let counters = self.counters();
        let counted = self.counted.replace(self.runs.get());
        counters.runs.add(u64::from(self.runs.get().wrapping_sub(counted)));
        counters.messages.add(self.messages.take());
        let mut young = self.young.borrow_mut();
        if !young.is_empty() {
            self.grow_up(&mut young);
        }
    }

    fn grow_up(&self, young: &mut Vec<(DeadlineHandle, Duration)>) {
        young.retain(|(question, _)| question.is_pending());
        // A question that is open after so many others is worth an entry of its own.
        self.core.clock.expect_answers(&self.core, young.drain(..));
    }
}

/// Tells wakers apart without keeping them.
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

/// Whether a worker may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceBudget {
    Some,
    None,
}

impl Drop for WorkerLocal {
    fn drop(&mut self) {
        self.end_slice();
        self.core.coordinator.queues.leave(&mut self.queue);
        self.core.coordinator.idle.notify();
    }
}

impl fmt::Debug for WorkerLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "std", not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test may fail")]
mod tests {
    use alloc::boxed::Box;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

    use super::*;
    use crate::runtime::{RuntimeHandle, RuntimeSpawnError, TaskFuture};
    use crate::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler};

    /// A host whose clock and threads are the test's.
    #[derive(Clone, Default)]
    struct Host(Arc<HostState>);

    #[derive(Default)]
    struct HostState {
        micros: AtomicU64,
        has_room: AtomicBool,
        nudges: AtomicU32,
    }

    impl RuntimeHandle for Host {
        fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
            drop(task);
            Ok(())
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

    /// Works in messages of 10 µs until the slice is over; tells how many µs that took.
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
    fn a_slice_goes_on_while_the_host_has_a_thread_for_others() {
        let host = Host::default();
        let (_system, local) = worker(&host);
        let crowded = slice_us(&host, &local, || ());
        assert!((200..300).contains(&crowded), "{crowded} µs");
        assert_eq!(host.0.nudges.load(Ordering::Relaxed), 0);
        host.0.has_room.store(true, Ordering::Relaxed);
        let roomy = slice_us(&host, &local, || ());
        assert!((2_000..2_400).contains(&roomy), "{roomy} µs");
        assert_eq!(host.0.nudges.load(Ordering::Relaxed), 1, "that thread is told once");
    }

    #[test]
    fn a_slice_in_which_somebody_else_was_woken_is_not_prolonged() {
        let host = Host::default();
        let (_system, local) = worker(&host);
        host.0.has_room.store(true, Ordering::Relaxed);
        let (_wakes, waker) = crate::test_rig::Wakes::new();
        let owing = crate::raw::current::enter(&local, || {
            slice_us(&host, &local, || crate::ignore_panic::wake_and_yield(waker.clone()))
        });
        assert!((200..300).contains(&owing), "{owing} µs");
        let after = slice_us(&host, &local, || ());
        assert!(2_000 <= after, "{after} µs: the turn was given");
    }
}
