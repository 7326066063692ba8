//! Time slice of a worker: the cells it runs before it yields to its host runtime.

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
    slice: Slice,
}

/// State of a worker's current slice.
struct Slice {
    batch: Vec<RunPermit>,
    state: State,
    runs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Runs the cells that it finds.
    Working,
    /// Looks for a cell after it ran out of them, and is counted as searching.
    Searching,
    /// Parked until woken.
    Parked,
}

/// Reason why a worker returns from its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEnd {
    /// The slice is used up; the host's other tasks, such as I/O, get a turn.
    Yield,
    /// There are no cells to run.
    Idle,
    /// The system has stopped, or the worker is no longer wanted.
    Exit,
}

impl Worker {
    pub(super) fn claim(core: &Arc<Core>, id: usize) -> Option<Self> {
        let queue = core.coordinator.queues.claim(id)?;
        core.coordinator.idle.begin_search();
        Some(Self {
            local: WorkerLocal::new(core.clone(), id, queue),
            slice: Slice { batch: Vec::new(), state: State::Searching, runs: 0 },
        })
    }

    /// Runs cells until there are none left, the slice is used up or the worker should exit.
    ///
    /// `Pending` is a pause: the host polls its other tasks and then continues the slice.
    pub(super) fn poll_slice(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        if self.local.counters().phase() == WorkerPhase::Parked {
            self.local.counters().enter(WorkerPhase::Running, self.local.coarse_now());
        }
        let wanted = self.local.core().coordinator.is_wanted(&self.local);
        let polled = if wanted { self.run_on_thread(cx) } else { Poll::Ready(SliceEnd::Exit) };
        match polled {
            Poll::Ready(SliceEnd::Yield) => self.local.begin_slice(),
            Poll::Ready(SliceEnd::Exit) => self.record_parked(),
            Poll::Ready(SliceEnd::Idle) | Poll::Pending => {}
        }
        self.local.end_slice();
        polled
    }

    /// Runs ready cells even if the worker should exit; runs the last cells of a system whose host runtime is gone.
    pub(super) fn run_ready(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        let polled = self.run_on_thread(cx);
        self.local.begin_slice();
        self.local.end_slice();
        polled
    }

    /// Yields to the host's other tasks.
    pub(super) fn yield_to_host(&self) -> impl Future<Output = ()> {
        let core = self.local.core();
        let worker = self.local.id;
        let mut yielding = core.runtime.yield_now();
        wait_with(move |cx| {
            let polled = yielding.as_mut().poll(cx);
            match polled {
                Poll::Pending => core.coordinator.idle.begin_yield(worker, cx.waker()),
                Poll::Ready(()) => core.coordinator.idle.end_yield(worker),
            }
            polled
        })
    }

    /// Parks until there are cells to run or the worker should exit.
    pub(super) fn wait_for_signal(&mut self) -> impl Future<Output = ()> {
        wait_with(|cx| self.poll_wait_signal(cx))
    }

    fn poll_wait_signal(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let core = self.local.core();
        if self.slice.state == State::Parked {
            core.coordinator.idle.unpark(self.local.id);
            self.local.refresh_clock();
            self.slice.state = State::Searching;
            self.local.begin_slice();
            return Poll::Ready(());
        }
        self.slice.state = State::Parked;
        self.record_parked();
        let polled = core.coordinator.poll_wait_signal(&self.local, cx);
        if polled.is_ready() {
            // While this worker was registered as parked, the timer driver may have gone to sleep. The host may queue the woken
            // driver on this thread, behind a long handler; the nudge lets another thread run it.
            if core.timer_driver.wake_if_sleeping() {
                core.runtime.nudge();
            }
            self.slice.state = State::Searching;
        }
        polled
    }

    fn record_parked(&self) {
        self.local.counters().enter(WorkerPhase::Parked, self.local.core().now());
    }

    #[cfg(feature = "std")]
    fn run_on_thread(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        crate::raw::current::enter(&self.local, || self.slice.run_cells(&self.local, cx))
    }

    #[cfg(not(feature = "std"))]
    fn run_on_thread(&mut self, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        self.slice.run_cells(&self.local, cx)
    }
}

impl Drop for Worker {
    /// Unregisters the worker when it exits or the host drops it, and hands over the rest of its batch.
    fn drop(&mut self) {
        let coordinator = &self.local.core().coordinator;
        coordinator.idle.end_yield(self.local.id);
        self.slice.batch.drain(..).for_each(|permit| coordinator.queues.inject(permit));
        match self.slice.state {
            State::Working => {}
            State::Searching => {
                coordinator.idle.end_search();
            }
            State::Parked => {
                coordinator.idle.unpark(self.local.id);
                coordinator.idle.end_search();
            }
        }
    }
}

impl Slice {
    fn run_cells(&mut self, local: &WorkerLocal, cx: &mut Context<'_>) -> Poll<SliceEnd> {
        let core = local.core();
        loop {
            if let Some(permit) = self.next_cell(local) {
                if local.has_woken_host_task() {
                    // The cell became ready after the check below; if it ran now, the woken task would wait for its run.
                    core.coordinator.queues.requeue(&local.queue, permit);
                    return self.pause(local, cx);
                }
                // Cells in a batch cannot be stolen, so the default batch is a single cell.
                core.coordinator.drain_ready_cycle(
                    local,
                    core.config.worker_batch.get() - 1,
                    &mut self.batch,
                );
                run_next(local, permit);
                self.run_batch(local);
                if local.consume_budget() == SliceBudget::None {
                    return Poll::Ready(SliceEnd::Yield);
                }
                self.runs += 1;
                // A host task that this run woke may be queued where only this thread runs it; it waits for one run at most.
                let must_pause =
                    local.has_woken_host_task() && core.coordinator.queues.has_next(&local.queue);
                if must_pause || self.runs >= local.runs_per_slice {
                    return self.pause(local, cx);
                }
                continue;
            }
            if core.is_finished() {
                core.coordinator.idle.end_search();
                self.state = State::Working;
                // The driver may be sleeping until its next timer, and the last actor may have terminated on
                // this worker.
                core.timer_driver.wake();
                return Poll::Ready(SliceEnd::Exit);
            }
            if !core.coordinator.is_wanted(local) {
                return Poll::Ready(SliceEnd::Exit);
            }
            return Poll::Ready(SliceEnd::Idle);
        }
    }

    /// Runs the batch; queues the rest again if an actor was asked meanwhile, or a woken task of the host waits.
    fn run_batch(&mut self, local: &WorkerLocal) {
        let queues = &local.core().coordinator.queues;
        for permit in self.batch.drain(..) {
            if queues.has_asked() || local.has_woken_host_task() {
                queues.requeue(&local.queue, permit);
            } else {
                run_next(local, permit);
            }
        }
    }

    /// Pauses briefly, so that the host polls its other tasks.
    fn pause(&mut self, local: &WorkerLocal, cx: &Context<'_>) -> Poll<SliceEnd> {
        self.runs = 0;
        local.begin_pause();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes the next cell: one of its own, an injected one, or a stolen one.
    #[inline]
    fn next_cell(&mut self, local: &WorkerLocal) -> Option<RunPermit> {
        let coordinator = &local.core().coordinator;
        let permit = match coordinator.queues.next(&local.queue) {
            Some(permit) => permit,
            None => self.steal_cell(local)?,
        };
        if self.state == State::Searching {
            self.state = State::Working;
            coordinator.end_search(local);
        }
        Some(permit)
    }

    /// Takes cells from other workers or the injection queue.
    #[cold]
    fn steal_cell(&mut self, local: &WorkerLocal) -> Option<RunPermit> {
        let coordinator = &local.core().coordinator;
        if self.state == State::Working {
            self.state = State::Searching;
            coordinator.idle.begin_search();
        }
        let stolen = coordinator.queues.steal(&local.queue)?;
        local.counters().steals.add(1);
        Some(stolen)
    }
}

#[inline]
fn run_next(local: &WorkerLocal, permit: RunPermit) {
    local.begin_run();
    local.core().coordinator.run_and_requeue(local, permit);
}

#[cfg(all(test, feature = "std"))]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use core::num::NonZeroUsize;

    use super::*;
    use crate::ActorSystemConfig;
    use crate::test_rig::{Rig, SumMsg, WakeCounter};

    #[test]
    fn a_worker_that_woke_a_task_of_the_host_pauses_before_the_next_actor() {
        let rig = Rig::new(1);
        let mut worker = Worker::claim(rig.core(), 0).unwrap();
        let [asked, other] = [rig.spawn(), rig.spawn()];
        let (replies, asker) = WakeCounter::new();
        let mut ask = core::pin::pin!(asked.ask(SumMsg::Read));
        assert!(ask.as_mut().poll(&mut Context::from_waker(&asker)).is_pending());
        other.tell(SumMsg::Add(1));
        let (pauses, waker) = WakeCounter::new();
        let mut poll = || worker.poll_slice(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        assert_eq!((replies.count(), pauses.count(), other.depth()), (1, 1, 1));
        assert_eq!(poll(), Poll::Ready(SliceEnd::Idle));
        assert_eq!((pauses.count(), other.depth()), (1, 0), "no task of the host was woken");
    }

    #[test]
    fn a_worker_that_woke_a_task_of_the_host_pauses_before_an_actor_that_becomes_ready_afterwards() {
        let rig = Rig::new(1);
        let mut worker = Worker::claim(rig.core(), 0).unwrap();
        let other = rig.spawn();
        let (pauses, waker) = WakeCounter::new();
        let mut cx = Context::from_waker(&waker);
        wake_host_task(&rig, &mut worker, &mut cx);
        other.tell(SumMsg::Add(1));
        assert!(worker.poll_wait_signal(&mut cx).is_ready(), "the host has not polled its task yet");
        assert!(worker.poll_slice(&mut cx).is_pending());
        assert_eq!((pauses.count(), other.depth()), (1, 1));
        assert_eq!(worker.poll_slice(&mut cx), Poll::Ready(SliceEnd::Idle));
        assert_eq!((pauses.count(), other.depth()), (1, 0));
    }

    #[test]
    fn a_worker_that_was_parked_does_not_pause_for_a_task_of_the_host_that_it_woke_before() {
        let rig = Rig::new(1);
        let mut worker = Worker::claim(rig.core(), 0).unwrap();
        let other = rig.spawn();
        let mut cx = Context::from_waker(core::task::Waker::noop());
        wake_host_task(&rig, &mut worker, &mut cx);
        assert!(worker.poll_wait_signal(&mut cx).is_pending());
        other.tell(SumMsg::Add(1));
        assert!(worker.poll_wait_signal(&mut cx).is_ready());
        assert_eq!(worker.poll_slice(&mut cx), Poll::Ready(SliceEnd::Idle));
        assert_eq!(other.depth(), 0);
    }

    /// Runs all actors until none is ready; the last one wakes a task of the host.
    fn wake_host_task(rig: &Rig, worker: &mut Worker, cx: &mut Context<'_>) {
        let asked = rig.spawn();
        assert_eq!(worker.poll_slice(cx), Poll::Ready(SliceEnd::Idle));
        let (replies, asker) = WakeCounter::new();
        let mut ask = core::pin::pin!(asked.ask(SumMsg::Read));
        assert!(ask.as_mut().poll(&mut Context::from_waker(&asker)).is_pending());
        assert_eq!(worker.poll_slice(cx), Poll::Ready(SliceEnd::Idle));
        assert_eq!(replies.count(), 1);
    }

    #[test]
    fn a_run_ends_early_for_an_actor_that_is_asked_from_outside() {
        let rig = Rig::new(1);
        let mut worker = Worker::claim(rig.core(), 0).unwrap();
        let [flooded, first, second] = [rig.spawn(), rig.spawn(), rig.spawn()];
        let mut poll = || worker.poll_slice(&mut Context::from_waker(core::task::Waker::noop()));
        assert_eq!(poll(), Poll::Ready(SliceEnd::Idle), "all have started");
        for _ in 0..30 {
            flooded.tell(SumMsg::Add(1));
        }
        let (replies, asker) = WakeCounter::new();
        let mut asks = [&first, &second].map(|actor| Box::pin(actor.ask(SumMsg::Read)));
        for ask in &mut asks {
            assert!(ask.as_mut().poll(&mut Context::from_waker(&asker)).is_pending());
        }
        assert!(poll().is_pending());
        assert_eq!((replies.count(), flooded.depth()), (1, 30), "an asked actor runs first");
        assert!(poll().is_pending());
        assert_eq!(
            (replies.count(), flooded.depth()),
            (2, 23),
            "the flooded one is next, for a few messages"
        );
        assert_eq!(poll(), Poll::Ready(SliceEnd::Idle));
        assert_eq!(flooded.depth(), 0);
    }

    #[test]
    fn a_worker_that_still_yields_at_the_second_check_is_woken() {
        let rig = Rig::new(2);
        let worker = Worker::claim(rig.core(), 0).unwrap();
        let (wakes, waker) = WakeCounter::new();
        let mut yielding = core::pin::pin!(worker.yield_to_host());
        assert!(yielding.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let mut timer_task = core::pin::pin!(crate::timer_driver::drive(rig.core().clone()));
        let mut check = || {
            assert!(
                timer_task.as_mut().poll(&mut Context::from_waker(core::task::Waker::noop())).is_pending()
            );
            wakes.count()
        };
        assert_eq!(check(), 0, "the host may be about to poll the worker");
        assert_eq!(check(), 1);
    }

    #[test]
    fn an_actor_that_runs_between_two_checks_for_stuck_workers_does_not_wake_the_timer_task() {
        let rig = Rig::new(2);
        let actor = rig.spawn();
        let mut workers = [0, 1].map(|id| Worker::claim(rig.core(), id).unwrap());
        let mut run_until_parked = || workers.iter_mut().for_each(poll_until_parked);
        let (timer_wakes, timer_waker) = WakeCounter::new();
        let mut timer_task = core::pin::pin!(crate::timer_driver::drive(rig.core().clone()));
        let mut check =
            || assert!(timer_task.as_mut().poll(&mut Context::from_waker(&timer_waker)).is_pending());
        run_until_parked();
        for _ in 0..3 {
            check();
            actor.tell(SumMsg::Add(1));
            assert_eq!(timer_wakes.count(), 0, "the task watches");
            run_until_parked();
        }
        check();
        check();
        actor.tell(SumMsg::Add(1));
        assert_eq!(timer_wakes.count(), 1, "the task slept, because no worker had run since the last check");
    }

    /// The thread on which the host would poll the worker that was woken first may be blocked.
    #[test]
    fn another_worker_is_woken_if_the_first_has_not_run_at_the_second_check() {
        let rig = Rig::new(2);
        let actor = rig.spawn();
        let mut workers = [0, 1].map(|id| Worker::claim(rig.core(), id).unwrap());
        workers.iter_mut().for_each(poll_until_parked);
        let mut timer_task = core::pin::pin!(crate::timer_driver::drive(rig.core().clone()));
        let mut check = || {
            let mut cx = Context::from_waker(core::task::Waker::noop());
            assert!(timer_task.as_mut().poll(&mut cx).is_pending());
        };
        check();
        let parked = || rig.core().coordinator.idle.parked_count();
        assert_eq!(parked(), 2);
        actor.tell(SumMsg::Add(1));
        assert_eq!(parked(), 1);
        actor.tell(SumMsg::Add(1));
        check();
        assert_eq!(parked(), 0, "no worker has looked for the cell since the first check");
    }

    #[test]
    fn a_yield_that_takes_several_polls_is_registered_once() {
        let rig = Rig::new(2);
        let worker = Worker::claim(rig.core(), 0).unwrap();
        let (wakes, waker) = WakeCounter::new();
        let yielded = || {
            rig.core().coordinator.idle.wake_yielded();
            wakes.count()
        };
        {
            let mut yielding = core::pin::pin!(worker.yield_to_host());
            for _ in 0..3 {
                assert!(yielding.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            assert_eq!([yielded(), yielded()], [0, 1]);
        }
        drop(worker);
        assert_eq!(yielded(), 1);
    }

    #[test]
    fn a_worker_leaves_its_batch_for_a_task_of_the_host_that_it_woke() {
        let worker_batch = NonZeroUsize::new(8).unwrap();
        let rig = Rig::with_config(ActorSystemConfig { worker_batch, ..ActorSystemConfig::default() });
        let mut worker = Worker::claim(rig.core(), 0).unwrap();
        let [asked, other] = [rig.spawn(), rig.spawn()];
        let mut poll = || worker.poll_slice(&mut Context::from_waker(core::task::Waker::noop()));
        assert_eq!(poll(), Poll::Ready(SliceEnd::Idle));
        let (replies, asker) = WakeCounter::new();
        let mut ask = core::pin::pin!(asked.ask(SumMsg::Read));
        assert!(ask.as_mut().poll(&mut Context::from_waker(&asker)).is_pending());
        other.tell(SumMsg::Add(1));
        assert!(poll().is_pending());
        assert_eq!((replies.count(), other.depth()), (1, 1));
        assert_eq!(poll(), Poll::Ready(SliceEnd::Idle));
        assert_eq!(other.depth(), 0);
    }

    /// A host may keep the task that it woke last on the waking thread, where it would have to wait for a long handler.
    #[test]
    fn a_worker_that_wakes_the_timer_task_lets_another_thread_run_it() {
        let rig = Rig::new(2);
        let actor = rig.spawn();
        let mut workers = [0, 1].map(|id| Worker::claim(rig.core(), id).unwrap());
        workers.iter_mut().for_each(poll_until_parked);
        let (timer_wakes, timer_waker) = WakeCounter::new();
        let mut timer_task = core::pin::pin!(crate::timer_driver::drive(rig.core().clone()));
        for _ in 0..2 {
            assert!(timer_task.as_mut().poll(&mut Context::from_waker(&timer_waker)).is_pending());
        }
        let mut cx = Context::from_waker(core::task::Waker::noop());
        let worker = &mut workers[0];
        assert_eq!(worker.poll_wait_signal(&mut cx), Poll::Ready(()), "it looks for work again");
        actor.tell(SumMsg::Add(1));
        assert_eq!(timer_wakes.count(), 0, "the sender relies on the worker that looks for work");
        assert_eq!(
            worker.poll_wait_signal(&mut cx),
            Poll::Ready(()),
            "it finds work when it is about to park"
        );
        assert_eq!((timer_wakes.count(), rig.nudges()), (1, 1));
    }

    fn poll_until_parked(worker: &mut Worker) {
        let mut cx = Context::from_waker(core::task::Waker::noop());
        while worker.poll_wait_signal(&mut cx).is_ready() {
            assert_eq!(worker.poll_slice(&mut cx), Poll::Ready(SliceEnd::Idle));
        }
    }
}
