//! One worker between two looks of its host at others.

use alloc::vec::Vec;
use core::future::Future;
use core::task::{Context, Poll};

use crate::hub::WorkerPhase;
use crate::raw::run_permit::RunPermit;
use crate::runtime::wait_with;
use crate::sync::Arc;
use crate::system::Core;
use crate::worker_local::{SliceBudget, WorkerLocal};

/// A worker, between polls.
pub(super) struct Worker {
    local: WorkerLocal,
    batch: Vec<RunPermit>,
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
    /// There is nothing to run.
    Idle,
    /// The system is over, or the worker is not wanted any more.
    Leave,
}

impl Worker {
    pub(super) fn seat(core: &Arc<Core>, id: usize) -> Option<Self> {
        let queue = core.coordinator.queues.claim(id)?;
        core.coordinator.idle.begin_search();
        Some(Self {
            local: WorkerLocal::new(core.clone(), id, queue),
            batch: Vec::new(),
            state: State::Searching,
            runs: 0,
        })
    }

    /// Runs cells until there are none, or others should have a turn.
    pub(super) fn poll_slice(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        if self.local.counters().phase() == WorkerPhase::Parked {
            self.local.counters().enter(WorkerPhase::Running, self.local.coarse_now());
        }
        let wanted = self.local.core().coordinator.is_wanted(&self.local);
        let polled = if wanted { self.enter(cx) } else { Poll::Ready(SliceEnd::Leave) };
        match polled {
            Poll::Ready(SliceEnd::Over) => self.local.begin_slice(),
            Poll::Ready(SliceEnd::Leave) => self.park(),
            Poll::Ready(SliceEnd::Idle) | Poll::Pending => {}
        }
        self.local.end_slice();
        polled
    }

    /// Lets the host's other tasks go first.
    pub(super) fn yield_to_host(&self) -> impl Future<Output = ()> {
        let core = self.local.core();
        let worker = self.local.id;
        let mut yielding = core.runtime.yield_now();
        wait_with(move |cx| {
            let polled = yielding.as_mut().poll(cx);
            match polled {
                Poll::Pending => core.coordinator.idle.record_yield(worker, cx.waker()),
                Poll::Ready(()) => core.coordinator.idle.end_yield(worker),
            }
            polled
        })
    }

    /// Sleeps until there is something to run: the coordinator's `poll_wait_signal` as a future.
    pub(super) fn wait_for_signal(&mut self) -> impl Future<Output = ()> {
        wait_with(|cx| self.poll_wait_signal(cx))
    }

    fn poll_wait_signal(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let core = self.local.core();
        if self.state == State::Asleep {
            core.coordinator.idle.rise(self.local.id);
            self.local.wake_up();
            self.state = State::Searching;
            self.local.begin_slice();
            return Poll::Ready(());
        }
        self.state = State::Asleep;
        let polled = core.coordinator.poll_wait_signal(&self.local, cx);
        match polled {
            Poll::Pending => self.park(),
            Poll::Ready(()) => {
                // The clock may have found everybody asleep in between.
                core.clock.wake_if_sleeping();
                self.state = State::Searching;
            }
        }
        polled
    }

    fn park(&self) {
        self.local.counters().enter(WorkerPhase::Parked, self.local.core().now());
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

impl Drop for Worker {
    /// Takes a worker that its host drops off those who sleep or search; to wake it would be in vain.
    fn drop(&mut self) {
        let coordinator = &self.local.core().coordinator;
        coordinator.idle.end_yield(self.local.id);
        self.batch.drain(..).for_each(|ready| coordinator.queues.inject(ready));
        match self.state {
            State::Working => {}
            State::Searching => {
                coordinator.idle.end_search();
            }
            State::Asleep => {
                coordinator.idle.rise(self.local.id);
                coordinator.idle.end_search();
            }
        }
    }
}

fn run(
    local: &WorkerLocal,
    batch: &mut Vec<RunPermit>,
    state: &mut State,
    runs: &mut u32,
    cx: &mut Context<'_>,
) -> Poll<SliceEnd> {
    let core = local.core();
    loop {
        if let Some(ready) = find(local, state) {
            // What is taken in one go cannot be stolen, so it is one unless the config says more.
            core.coordinator.drain_ready_cycle(local, core.config.worker_batch.get() - 1, batch);
            run_one(local, ready);
            batch.drain(..).for_each(|ready| run_one(local, ready));
            if local.consume_budget() == SliceBudget::None {
                return Poll::Ready(SliceEnd::Over);
            }
            *runs += 1;
            if local.runs_per_slice <= *runs {
                // A short pause: to the end of the host's queue.
                *runs = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            continue;
        }
        if core.is_finished() {
            core.coordinator.idle.end_search();
            *state = State::Working;
            // It may sleep until something is due, and the last actor may have ended here.
            core.clock.wake();
            return Poll::Ready(SliceEnd::Leave);
        }
        if !core.coordinator.is_wanted(local) {
            return Poll::Ready(SliceEnd::Leave);
        }
        return Poll::Ready(SliceEnd::Idle);
    }
}

/// Takes the next cell, from whoever has one.
#[inline]
fn find(local: &WorkerLocal, state: &mut State) -> Option<RunPermit> {
    let coordinator = &local.core().coordinator;
    let ready = match coordinator.queues.next(&local.queue) {
        Some(ready) => ready,
        None => search(local, state)?,
    };
    if *state == State::Searching {
        *state = State::Working;
        coordinator.end_search(local);
    }
    Some(ready)
}

/// Looks at what others have.
#[cold]
fn search(local: &WorkerLocal, state: &mut State) -> Option<RunPermit> {
    let coordinator = &local.core().coordinator;
    if *state == State::Working {
        *state = State::Searching;
        coordinator.idle.begin_search();
    }
    let stolen = coordinator.queues.steal(&local.queue)?;
    local.counters().steals.add(1);
    Some(stolen)
}

#[inline]
fn run_one(local: &WorkerLocal, ready: RunPermit) {
    local.begin_run();
    local.core().coordinator.run(local, ready);
}
