//! What one worker has to itself.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::task::Waker;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::hub::WorkerCounters;
use crate::observe::SAMPLED;
use crate::raw::oneshot::Expiry;
use crate::ready::LocalQueue;
use crate::sync::Arc;
use crate::system::{Core, Metrics};

/// How long a worker goes on before it lets its host look after others.
pub(crate) const SLICE: Duration = Duration::from_micros(200);
/// How often a worker means to read the clock while it works.
const CLOCK_EVERY: Duration = Duration::from_micros(20);
const UNITS_MAX: u32 = 128;
/// Questions remembered before those that were answered are thrown out.
#[cfg(feature = "std")]
const YOUNG_MAX: usize = 64;

/// A worker's own part; nobody else touches it.
pub(crate) struct Local {
    core: Arc<Core>,
    pub(crate) id: usize,
    counters: Arc<WorkerCounters>,
    pub(crate) queue: LocalQueue,
    now: Cell<Instant>,
    slice_end: Cell<Instant>,
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
    young: RefCell<Vec<(Expiry, Duration)>>,
}

impl Local {
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
    pub(crate) fn spend(&self) -> SliceLeft {
        let left = self.units.get() - 1;
        self.units.set(left);
        if left == 0 { self.look_at_clock() } else { SliceLeft::Some }
    }

    #[cold]
    fn look_at_clock(&self) -> SliceLeft {
        let now = self.core.now();
        let before = self.now.replace(now);
        if self.slice_end.get() == Instant::FAR_FUTURE {
            // The first look of a slice; what the host did before it says nothing.
            self.slice_end.set(now + SLICE);
            self.units.set(self.spent.get());
            return SliceLeft::Some;
        }
        if self.slice_end.get() <= before {
            // Over already; the moment since the last look says nothing about messages.
            self.units.set(1);
            return SliceLeft::None;
        }
        let each = now.since(before) / self.spent.get();
        let units = CLOCK_EVERY.as_nanos() / each.as_nanos().max(1);
        let units = u32::try_from(units).unwrap_or(UNITS_MAX).clamp(1, UNITS_MAX);
        self.spent.set(units);
        if self.slice_end.get() <= now {
            self.units.set(1);
            return SliceLeft::None;
        }
        self.units.set(units);
        SliceLeft::Some
    }

    /// Begins a new slice; it ends [`SLICE`] after the first look at the clock.
    ///
    /// A short pause begins none: where a look is due less often than a pause, no look would ever be
    /// the second of its slice, and the slice would never end.
    pub(crate) fn begin_slice(&self) {
        self.slice_end.set(Instant::FAR_FUTURE);
    }

    /// Looks at the clock after a sleep of any length.
    pub(crate) fn wake_up(&self) {
        self.now.set(self.core.now());
    }

    /// Notes that this worker has woken another, which is to run at once.
    pub(crate) fn note_wake(&self) {
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
    pub(crate) fn watch(&self, question: Expiry, within: Duration) {
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

    fn grow_up(&self, young: &mut Vec<(Expiry, Duration)>) {
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
pub(crate) enum SliceLeft {
    Some,
    None,
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end_slice();
        self.core.coordinator.queues.leave(&mut self.queue);
        self.core.coordinator.idle.notify();
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("id", &self.id).finish_non_exhaustive()
    }
}
