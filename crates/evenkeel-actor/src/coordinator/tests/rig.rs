//! Workers that only own queues, and cells that never run.

use alloc::task::Wake;
use core::cell::RefCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::actor::{Actor, Flow, HandlerResult};
use crate::actor_ref::ActorRef;
use crate::context::Context as ActorContext;
use crate::props::Props;
use crate::system::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler};

/// Workers that only hold queues; an extra one, after the last, hands out cells.
pub(super) struct CoordinatorRig {
    pub(super) locals: Vec<WorkerLocal>,
    actors: RefCell<Vec<ActorRef<()>>>,
    /// Run permits that a test has finished with.
    finished: RefCell<Vec<RunPermit>>,
    pub(super) system: ReadyQueueScheduler,
    pub(super) runtime: IdleRuntime,
}

impl CoordinatorRig {
    pub(super) fn new(workers: usize) -> Self {
        let config = ActorSystemConfig::with_workers(NonZeroUsize::new(workers + 1).unwrap());
        let runtime = IdleRuntime::default();
        let system = ActorSystemRunner::new(config).start(runtime.clone()).unwrap();
        let core = system.core();
        let claim = |id| WorkerLocal::new(core.clone(), id, core.coordinator.queues.claim(id).unwrap());
        let locals = (0..=workers).map(claim).collect();
        Self { locals, actors: RefCell::default(), finished: RefCell::default(), system, runtime }
    }

    pub(super) fn core(&self) -> &Core {
        self.system.core()
    }

    pub(super) fn coordinator(&self) -> &ReadyQueueCoordinator {
        &self.core().coordinator
    }

    /// Creates cells and takes their run permits; only while nothing else is queued.
    pub(super) fn cells(&self, count: usize) -> Vec<RunPermit> {
        let extra_worker = self.locals.last().unwrap();
        let props = Props::new(|| IdleActor).build();
        let cells = (0..count).map(|_| {
            self.actors.borrow_mut().push(self.system.spawn(&props).unwrap());
            self.coordinator().queues.next(&extra_worker.queue).unwrap()
        });
        cells.collect()
    }

    pub(super) fn actor(&self, nth: usize) -> ActorRef<()> {
        self.actors.borrow()[nth].clone()
    }

    pub(super) fn register(&self, worker: usize, cell: RunPermit) {
        let local = &self.locals[worker];
        current::enter(local, || self.coordinator().register_ready(self.core(), cell, Urgency::Normal));
    }

    pub(super) fn register_outside(&self, cell: RunPermit) {
        self.coordinator().register_ready(self.core(), cell, Urgency::Normal);
    }

    pub(super) fn register_asked(&self, cell: RunPermit) {
        self.coordinator().register_ready(self.core(), cell, Urgency::Awaited);
    }

    pub(super) fn requeue(&self, worker: usize, cell: RunPermit) {
        self.coordinator().queues.requeue(&self.locals[worker].queue, cell);
    }

    pub(super) fn drain(&self, worker: usize, batch_max: usize) -> Vec<RunPermit> {
        let mut out = vec![];
        self.coordinator().drain_ready_cycle(&self.locals[worker], batch_max, &mut out);
        out
    }

    /// Takes cells from a worker's queue and returns their numbers.
    pub(super) fn take(&self, worker: usize, batch_max: usize) -> Vec<u32> {
        let taken = self.drain(worker, batch_max);
        let numbers = taken.iter().map(|cell| cell.cell().number()).collect();
        taken.into_iter().for_each(|cell| self.set_aside(Some(cell)));
        numbers
    }

    pub(super) fn take_one(&self, worker: usize) -> Option<RunPermit> {
        self.coordinator().queues.next(&self.locals[worker].queue)
    }

    pub(super) fn steal(&self, worker: usize) -> Option<RunPermit> {
        self.coordinator().queues.steal(&self.locals[worker].queue)
    }

    pub(super) fn set_aside(&self, cell: Option<RunPermit>) {
        self.finished.borrow_mut().extend(cell);
    }

    /// Parks a worker as if its search had failed; `None` if there is work.
    pub(super) fn park(&self, worker: usize) -> Option<Arc<WakeCounter>> {
        let woken = Arc::new(WakeCounter::default());
        let waker = Waker::from(woken.clone());
        self.coordinator().idle.begin_search();
        let polled =
            self.coordinator().poll_wait_signal(&self.locals[worker], &mut Context::from_waker(&waker));
        if polled.is_ready() {
            self.end_search();
            return None;
        }
        Some(woken)
    }

    pub(super) fn unpark(&self, worker: usize) {
        self.coordinator().idle.unpark(worker);
    }

    pub(super) fn end_search(&self) {
        self.coordinator().idle.end_search();
    }
}

impl Drop for CoordinatorRig {
    /// Terminates every cell, so that no run permit is lost, and drops the tasks, which reference the system.
    fn drop(&mut self) {
        self.system.force_stop();
        for local in &self.locals {
            let queues = &self.coordinator().queues;
            let next = || self.finished.borrow_mut().pop().or_else(|| queues.next(&local.queue));
            while let Some(cell) = next() {
                let mut permit = Some(cell);
                while let Some(cell) = permit {
                    permit = current::enter(local, || cell.run_cell(local)).1;
                }
            }
        }
        self.runtime.drop_tasks();
        assert!(std::thread::panicking() || self.system.alive() == 0);
    }
}

pub(super) fn numbers<const N: usize>(cells: &[RunPermit]) -> [u32; N] {
    core::array::from_fn(|nth| cells[nth].cell().number())
}

/// Counts its wake-ups.
#[derive(Default)]
pub(super) struct WakeCounter(AtomicUsize);

impl WakeCounter {
    pub(super) fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct IdleActor;

impl Actor for IdleActor {
    type Msg = ();

    fn receive(&mut self, _message: (), _ctx: &mut ActorContext<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}
