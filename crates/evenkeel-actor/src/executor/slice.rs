//! One worker between two looks of its host at others.

use alloc::vec::Vec;
use core::task::{Context, Poll};

use crate::cell::CellRef;
use crate::hub::WorkerPhase;
use crate::observe::SAMPLED;
use crate::raw::run::Ready;
use crate::sync::{Arc, Ordering};
use crate::system::Core;
use crate::worker::{Local, SliceLeft};

/// A worker, between polls.
pub(super) struct Worker {
    local: Local,
    batch: Vec<Ready>,
    state: State,
    runs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Has found something, and looks in its own queue.
    Working,
    /// Looks everywhere.
    Searching,
    /// Waits to be woken.
    Asleep,
}

/// Why a worker gives its thread back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEnd {
    /// Others should have a turn, input and output included.
    Over,
    /// The system is over.
    Leave,
}

impl Worker {
    pub(super) fn seat(core: &Arc<Core>, id: usize) -> Option<Self> {
        let queue = core.coordinator.queues.seat(id)?;
        core.coordinator.idle.begin_search();
        Some(Self {
            local: Local::new(core.clone(), id, queue),
            batch: Vec::new(),
            state: State::Searching,
            runs: 0,
        })
    }

    /// Runs cells until there are none, or others should have a turn.
    pub(super) fn poll_slice(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        if self.state == State::Asleep {
            let core = self.local.core();
            core.coordinator.idle.rise(self.local.id);
            self.state = State::Searching;
            self.local.begin_slice();
        }
        if self.local.counters().phase() == WorkerPhase::Parked {
            self.local.counters().enter(WorkerPhase::Running, self.local.core().now());
        }
        let polled = self.enter(cx);
        if polled.is_pending() && self.state == State::Asleep {
            self.local.counters().enter(WorkerPhase::Parked, self.local.core().now());
        }
        if polled == Poll::Ready(SliceEnd::Over) {
            self.local.begin_slice();
        }
        self.local.end_slice();
        polled
    }

    #[cfg(feature = "std")]
    fn enter(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        let Self { local, batch, state, runs } = self;
        crate::raw::current::enter(local, || run(local, batch, state, runs, cx))
    }

    #[cfg(not(feature = "std"))]
    fn enter(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        let Self { local, batch, state, runs } = self;
        run(local, batch, state, runs, cx)
    }
}

fn run(
    local: &Local,
    batch: &mut Vec<Ready>,
    state: &mut State,
    runs: &mut u32,
    cx: &mut Context<'_>,
) -> Poll<SliceEnd> {
    let core = local.core();
    loop {
        if find(local, batch, state) {
            for ready in batch.drain(..) {
                *runs += 1;
                run_one(local, ready, *runs);
            }
            if local.spend() == SliceLeft::None {
                return Poll::Ready(SliceEnd::Over);
            }
            if local.is_pause_due(*runs) {
                // A short pause: to the end of the host's queue.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            continue;
        }
        if core.is_over() {
            core.coordinator.idle.end_search();
            *state = State::Working;
            return Poll::Ready(SliceEnd::Leave);
        }
        *state = State::Asleep;
        match core.coordinator.poll_wait_signal(local, cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(()) => *state = State::Searching,
        }
    }
}

/// Takes the next cells, from whoever has some.
fn find(local: &Local, batch: &mut Vec<Ready>, state: &mut State) -> bool {
    let coordinator = &local.core().coordinator;
    coordinator.drain_ready_cycle(local, local.core().config.worker_batch.get(), batch);
    if batch.is_empty() {
        if *state == State::Working {
            *state = State::Searching;
            coordinator.idle.begin_search();
        }
        if let Some(stolen) = coordinator.queues.steal(&local.queue) {
            local.counters().steals.add(1);
            batch.push(stolen);
        }
    }
    if batch.is_empty() {
        return false;
    }
    if *state == State::Searching {
        *state = State::Working;
        coordinator.end_search(local);
    }
    true
}

fn run_one(local: &Local, ready: Ready, nth: u32) {
    let core = local.core();
    let waited = ready.cell().head().ready_us.load(Ordering::Relaxed);
    let (result, kept) = if waited != 0 || nth.is_multiple_of(SAMPLED) {
        run_timed(local, ready, waited)
    } else {
        ready.run(local)
    };
    local.counters().runs.add(1);
    core.coordinator.handle_invoke_result(local, &result, kept);
}

/// Runs a cell with the clock in hand.
#[cold]
fn run_timed(local: &Local, ready: Ready, waited: u32) -> (crate::invoke::InvokeResult, Option<Ready>) {
    let (core, kind) = (local.core(), ready.cell().head().kind);
    let began = core.now();
    if waited != 0 {
        ready.cell().head().ready_us.store(0, Ordering::Relaxed);
        let span = micros(began).wrapping_sub(waited);
        local.counters().latency(kind).record(core::time::Duration::from_micros(u64::from(span)));
    }
    let ended = ready.run(local);
    local.counters().invoke_duration(kind).record(core.now().since(began));
    ended
}

/// Notes when a cell was scheduled, for one in [`SAMPLED`].
pub(crate) fn note_ready(cell: &CellRef) {
    cell.head().ready_us.store(micros(cell.core().now()), Ordering::Relaxed);
}

/// Microseconds since the origin, wrapping after an hour, and never zero.
fn micros(now: evenkeel_policy::time::Instant) -> u32 {
    ((now.as_nanos() / 1_000) as u32).max(1)
}
