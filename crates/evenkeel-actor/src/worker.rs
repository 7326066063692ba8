//! What one worker has to itself.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::hub::WorkerCounters;
use crate::raw::oneshot::Expiry;
use crate::ready::LocalQueue;
use crate::sync::Arc;
use crate::system::Core;

/// How long a worker goes on before it lets its host look after others.
pub(crate) const SLICE: Duration = Duration::from_micros(200);
/// How often a worker means to read the clock while it works.
const CLOCK_EVERY: Duration = Duration::from_micros(20);
const UNITS_MAX: u32 = 128;
/// Questions remembered before those that were answered are thrown out.
const YOUNG_MAX: usize = 64;

/// A worker's own part; nobody else touches it.
pub(crate) struct Local {
    core: Arc<Core>,
    pub(crate) id: usize,
    pub(crate) queue: LocalQueue,
    now: Cell<Instant>,
    slice_end: Cell<Instant>,
    /// Messages and runs until the clock is read again.
    units: Cell<u32>,
    spent: Cell<u32>,
    random: Cell<u32>,
    /// How many runs there were when the worker last let its host's other tasks go first.
    paused_at: Cell<u32>,
    runs_per_slice: u32,
    pub(crate) messages_per_run: usize,
    #[cfg(feature = "std")]
    scheduled: Cell<u32>,
    young: RefCell<Vec<(Expiry, Duration)>>,
}

impl Local {
    pub(crate) fn new(core: Arc<Core>, id: usize, queue: LocalQueue) -> Self {
        Self {
            paused_at: Cell::new(0),
            runs_per_slice: core.runtime.runs_per_slice().get(),
            messages_per_run: core.runtime.messages_per_run().get() as usize,
            core,
            id,
            queue,
            now: Cell::new(Instant::ORIGIN),
            slice_end: Cell::new(Instant::FAR_FUTURE),
            units: Cell::new(1),
            spent: Cell::new(1),
            random: Cell::new(0x9e37_79b9 ^ (id as u32 + 1)),
            #[cfg(feature = "std")]
            scheduled: Cell::new(0),
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
        &self.core.hub.workers[self.id]
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
        if self.slice_end.get() == Instant::FAR_FUTURE {
            // The first look of a slice; how long the worker slept before it says nothing.
            self.slice_end.set(now + SLICE);
            self.now.set(now);
            self.units.set(self.spent.get());
            return SliceLeft::Some;
        }
        if self.slice_end.get() <= self.now.get() {
            // Over already; the moment since the last look says nothing about messages.
            self.units.set(1);
            return SliceLeft::None;
        }
        let each = now.since(self.now.get()) / self.spent.get();
        self.now.set(now);
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

    /// Whether the host's other tasks should have a short turn, after `runs` runs in all.
    #[inline]
    pub(crate) fn is_pause_due(&self, runs: u32) -> bool {
        let due = self.runs_per_slice <= runs.wrapping_sub(self.paused_at.get());
        if due {
            self.paused_at.set(runs);
        }
        due
    }

    /// Begins a new slice; it ends [`SLICE`] after the first look at the clock.
    ///
    /// A short pause begins none: where a look is due less often than a pause, no look would ever be
    /// the second of its slice, and the slice would never end.
    pub(crate) fn begin_slice(&self) {
        self.slice_end.set(Instant::FAR_FUTURE);
    }

    /// Notes that this worker has woken another, which is to run at once.
    pub(crate) fn note_wake(&self) {
        self.counters().wakes.add(1);
        self.core.runtime.nudge();
    }

    /// Whether the wait of a cell that this worker schedules is to be timed.
    #[cfg(feature = "std")]
    pub(crate) fn is_sampled(&self) -> bool {
        let nth = self.scheduled.get().wrapping_add(1);
        self.scheduled.set(nth);
        nth.is_multiple_of(crate::observe::SAMPLED)
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

    /// Watches over a question that has just been asked; most are answered before the slice ends.
    pub(crate) fn watch(&self, question: Expiry, span: Duration) {
        let mut young = self.young.borrow_mut();
        young.push((question, span));
        if YOUNG_MAX <= young.len() {
            self.grow_up(&mut young);
        }
    }

    /// Hands questions still open to the clock.
    pub(crate) fn end_slice(&self) {
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

/// Whether a worker may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceLeft {
    Some,
    None,
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end_slice();
        self.core.coordinator.queues.leave(&self.queue);
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("id", &self.id).finish_non_exhaustive()
    }
}
