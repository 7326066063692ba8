//! Coordinator, mailbox, registry and worker loop as the specification sketches them.
//!
//! The coordinator's methods take `&mut self`, so it is behind one mutex. A concurrent set prevents a mailbox from
//! being queued twice. The registry is behind a lock. A batch is a new `Vec`, filled with one lock per message. One
//! deviation: a mailbox that becomes ready while it runs is queued again afterwards, because the sketch's own rule
//! loses that wake-up and hangs.

use std::any::Any;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use dashmap::DashSet;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use crate::skynet::Next;

const WORKER_BATCH: usize = 64;
const MESSAGE_BATCH: usize = 64;

pub(super) type Envelope = Box<dyn Any + Send>;

type Behaviour = Box<dyn FnMut(Envelope) -> Next + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MailboxIndex {
    slot: u32,
    generation: u32,
}

enum InvokeResult {
    Completed { ready_hint: bool },
    Stopped,
}

trait ReadyQueueCoordinator: Send + Sync {
    fn register_ready(&mut self, index: MailboxIndex);
    fn unregister(&mut self, index: MailboxIndex);
    fn drain_ready_cycle(&mut self, max_batch: usize, out: &mut SmallVec<[MailboxIndex; 64]>);
    fn poll_wait_signal(&mut self, context: &mut Context<'_>) -> Poll<()>;
    fn handle_invoke_result(&mut self, index: MailboxIndex, result: InvokeResult);
}

/// Uses a list of wakers instead of the sketch's signal channel, which would copy more.
#[derive(Default)]
struct DefaultReadyQueueCoordinator {
    queue: VecDeque<MailboxIndex>,
    queued: DashSet<MailboxIndex>,
    running: DashSet<MailboxIndex>,
    pending: DashSet<MailboxIndex>,
    wakers: Vec<Waker>,
}

impl ReadyQueueCoordinator for DefaultReadyQueueCoordinator {
    fn register_ready(&mut self, index: MailboxIndex) {
        if self.running.contains(&index) {
            self.pending.insert(index);
            return;
        }
        if self.queued.insert(index) {
            self.queue.push_back(index);
            if let Some(waker) = self.wakers.pop() {
                waker.wake();
            }
        }
    }

    fn unregister(&mut self, index: MailboxIndex) {
        self.running.remove(&index);
        self.pending.remove(&index);
    }

    fn drain_ready_cycle(&mut self, max_batch: usize, out: &mut SmallVec<[MailboxIndex; 64]>) {
        while out.len() < max_batch {
            let Some(index) = self.queue.pop_front() else { return };
            self.queued.remove(&index);
            self.running.insert(index);
            out.push(index);
        }
    }

    fn poll_wait_signal(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.queue.is_empty() {
            return Poll::Ready(());
        }
        if !self.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            self.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn handle_invoke_result(&mut self, index: MailboxIndex, result: InvokeResult) {
        match result {
            InvokeResult::Completed { ready_hint } => {
                self.running.remove(&index);
                if self.pending.remove(&index).is_some() || ready_hint {
                    self.register_ready(index);
                }
            }
            InvokeResult::Stopped => self.unregister(index),
        }
    }
}

#[derive(Default)]
struct QueueMailbox {
    system_queue: Mutex<VecDeque<Envelope>>,
    user_queue: Mutex<VecDeque<Envelope>>,
}

impl QueueMailbox {
    fn dequeue_batch(&self, max: usize) -> Vec<Envelope> {
        let mut batch = Vec::with_capacity(max);
        for queue in [&self.system_queue, &self.user_queue] {
            while batch.len() < max {
                let Some(envelope) = locked(queue).pop_front() else { break };
                batch.push(envelope);
            }
        }
        batch
    }

    fn is_empty(&self) -> bool {
        locked(&self.user_queue).is_empty() && locked(&self.system_queue).is_empty()
    }
}

struct ActorCell {
    behaviour: Mutex<Behaviour>,
}

#[derive(Default)]
struct MailboxSlot {
    generation: u32,
    actor: Option<(Arc<ActorCell>, Arc<QueueMailbox>)>,
}

#[derive(Default)]
struct MailboxSlots {
    slots: Vec<MailboxSlot>,
    free: Vec<u32>,
}

#[derive(Default)]
struct MailboxRegistry(RwLock<MailboxSlots>);

impl MailboxRegistry {
    fn register_mailbox(&self, cell: Arc<ActorCell>, mailbox: Arc<QueueMailbox>) -> MailboxIndex {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let slot = all.free.pop().unwrap_or_else(|| {
            all.slots.push(MailboxSlot::default());
            all.slots.len() as u32 - 1
        });
        let entry = &mut all.slots[slot as usize];
        entry.actor = Some((cell, mailbox));
        MailboxIndex { slot, generation: entry.generation }
    }

    fn unregister_mailbox(&self, index: MailboxIndex) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entry = &mut all.slots[index.slot as usize];
        if entry.generation == index.generation {
            entry.generation += 1;
            entry.actor = None;
            all.free.push(index.slot);
        }
    }

    fn get_mailbox(&self, index: MailboxIndex) -> Option<Arc<QueueMailbox>> {
        self.get(index, |(_, mailbox)| mailbox.clone())
    }

    fn get_actor_cell(&self, index: MailboxIndex) -> Option<Arc<ActorCell>> {
        self.get(index, |(cell, _)| cell.clone())
    }

    fn get<T>(
        &self,
        index: MailboxIndex,
        part: impl FnOnce(&(Arc<ActorCell>, Arc<QueueMailbox>)) -> T,
    ) -> Option<T> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let slot = all.slots.get(index.slot as usize).filter(|slot| slot.generation == index.generation)?;
        slot.actor.as_ref().map(part)
    }
}

/// Handle to a running system.
#[derive(Clone)]
pub(in super::super) struct Scheduler {
    coordinator: Arc<Mutex<dyn ReadyQueueCoordinator>>,
    registry: Arc<MailboxRegistry>,
}

#[derive(Clone)]
pub(in super::super) struct Addr {
    index: MailboxIndex,
    mailbox: Arc<QueueMailbox>,
    coordinator: Arc<Mutex<dyn ReadyQueueCoordinator>>,
}

impl Addr {
    pub(super) fn tell(&self, envelope: Envelope) {
        locked(&self.mailbox.user_queue).push_back(envelope);
        locked(&self.coordinator).register_ready(self.index);
    }
}

impl Scheduler {
    pub(super) fn start(tokio: &Handle, workers: NonZeroUsize) -> Self {
        let coordinator = Arc::new(Mutex::new(DefaultReadyQueueCoordinator::default()));
        let scheduler = Self { coordinator, registry: Arc::default() };
        for _ in 0..workers.get() {
            tokio.spawn(scheduler.clone().work());
        }
        scheduler
    }

    async fn work(self) {
        let mut ready = SmallVec::<[MailboxIndex; 64]>::new();
        loop {
            poll_fn(|context| locked(&self.coordinator).poll_wait_signal(context)).await;
            ready.clear();
            locked(&self.coordinator).drain_ready_cycle(WORKER_BATCH, &mut ready);
            for index in ready.iter().copied() {
                let result = self.invoke(index);
                locked(&self.coordinator).handle_invoke_result(index, result);
            }
            tokio::task::yield_now().await;
        }
    }

    fn invoke(&self, index: MailboxIndex) -> InvokeResult {
        let mailbox = self.registry.get_mailbox(index);
        let cell = self.registry.get_actor_cell(index);
        let (Some(mailbox), Some(cell)) = (mailbox, cell) else { return InvokeResult::Stopped };
        let mut behaviour = locked(&cell.behaviour);
        for envelope in mailbox.dequeue_batch(MESSAGE_BATCH) {
            if behaviour(envelope) == Next::Stop {
                self.registry.unregister_mailbox(index);
                return InvokeResult::Stopped;
            }
        }
        InvokeResult::Completed { ready_hint: !mailbox.is_empty() }
    }

    pub(super) fn spawn(&self, behaviour: impl FnMut(Envelope) -> Next + Send + 'static) -> Addr {
        let cell = Arc::new(ActorCell { behaviour: Mutex::new(Box::new(behaviour)) });
        let mailbox = Arc::new(QueueMailbox::default());
        let index = self.registry.register_mailbox(cell, mailbox.clone());
        Addr { index, mailbox, coordinator: self.coordinator.clone() }
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
