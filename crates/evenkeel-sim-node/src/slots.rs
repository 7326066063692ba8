//! The slots of the simulated engine, and its FIFO queue.
//!
//! Limits: at most `slots` requests run and at most `queue_max` wait. A dropped request releases its slot or its place
//! in the queue at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Numbers of running and waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that hold a slot.
    pub running: u32,
    /// Requests that wait for a slot.
    pub waiting: u32,
}

#[derive(Debug)]
pub(super) struct SlotPool {
    free: Arc<Semaphore>,
    queue_max: u32,
    load: watch::Sender<Load>,
    /// Load of each model.
    by_model: Vec<watch::Sender<Load>>,
    /// Largest number of requests that ran or waited at once.
    peak: AtomicU32,
}

/// No slot is free and the queue is full.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

impl SlotPool {
    pub(super) fn new(slots: u32, queue_max: u32, models: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(slots as usize)),
            queue_max,
            load: watch::Sender::default(),
            by_model: (0..models).map(|_| watch::Sender::default()).collect(),
            peak: AtomicU32::new(0),
        })
    }

    /// Acquires a slot, or a place in the queue.
    pub(super) fn enter(self: &Arc<Self>, model: usize) -> Result<SlotOrWait, QueueFull> {
        // The semaphore is fair: a freed slot goes to the first waiter, so this cannot overtake one.
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Ok(SlotOrWait::Running(self.start(model, permit)));
        }
        let queued = self.load.send_if_modified(|load| {
            let has_room = load.waiting < self.queue_max;
            load.waiting += u32::from(has_room);
            self.update_peak(*load);
            has_room
        });
        if !queued {
            return Err(QueueFull);
        }
        self.by_model[model].send_modify(|load| load.waiting += 1);
        Ok(SlotOrWait::Waiting(WaitGuard { slots: self.clone(), model }))
    }

    pub(super) fn load(&self) -> Load {
        *self.load.borrow()
    }

    pub(super) fn load_of(&self, model: usize) -> Load {
        *self.by_model[model].borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Load> {
        self.load.subscribe()
    }

    /// Returns the largest number of requests that ran or waited at once.
    pub(super) fn peak(&self) -> u32 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Called before watchers of the load see it, so that the peak never lags behind.
    fn update_peak(&self, load: Load) {
        self.peak.fetch_max(load.running + load.waiting, Ordering::Relaxed);
    }

    fn start(self: &Arc<Self>, model: usize, permit: OwnedSemaphorePermit) -> SlotPermit {
        self.change(model, |load| load.running += 1);
        SlotPermit { slots: self.clone(), model, permit: Some(permit) }
    }

    fn change(&self, model: usize, change: impl Fn(&mut Load)) {
        self.by_model[model].send_modify(&change);
        self.load.send_modify(|load| {
            change(load);
            self.update_peak(*load);
        });
    }
}

/// Slot or queue place of an accepted request.
#[derive(Debug)]
pub(super) enum SlotOrWait {
    Running(SlotPermit),
    Waiting(WaitGuard),
}

impl SlotOrWait {
    /// Waits for the slot. Dropping the future removes the request from the queue.
    pub(super) async fn slot(self) -> SlotPermit {
        match self {
            Self::Running(slot) => slot,
            Self::Waiting(waiting) => {
                let slots = waiting.slots.clone();
                let permit = slots.free.clone().acquire_owned().await.expect("the semaphore is never closed");
                // The request counts as running before `waiting` is dropped, so that watchers never miss it.
                slots.start(waiting.model, permit)
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct WaitGuard {
    slots: Arc<SlotPool>,
    model: usize,
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.slots.change(self.model, |load| load.waiting -= 1);
    }
}

/// An occupied slot; freed on drop.
#[derive(Debug)]
pub(super) struct SlotPermit {
    slots: Arc<SlotPool>,
    model: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        // Decrements before the permit is released: otherwise the next request could raise the count above the slots.
        self.slots.change(self.model, |load| load.running -= 1);
        self.permit.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn requests_wait_when_all_slots_are_busy_and_are_rejected_when_the_queue_is_full() {
        let slots = SlotPool::new(1, 1, 1);
        let first = slots.enter(0).unwrap();
        let second = slots.enter(0).unwrap();
        assert_eq!(slots.load(), Load { running: 1, waiting: 1 });
        assert_eq!(slots.enter(0).unwrap_err(), QueueFull);
        drop(first);
        let mut slot = pin!(second.slot());
        let slot = ready(slot.as_mut()).unwrap();
        assert_eq!(slots.load(), Load { running: 1, waiting: 0 });
        drop(slot);
        assert_eq!(slots.load(), Load::default());
    }

    #[test]
    fn without_a_queue_a_busy_engine_rejects_requests() {
        let slots = SlotPool::new(1, 0, 1);
        let _slot = slots.enter(0).unwrap();
        assert_eq!(slots.enter(0).unwrap_err(), QueueFull);
    }

    #[test]
    fn a_waiting_request_that_is_dropped_leaves_the_queue() {
        let slots = SlotPool::new(1, 2, 2);
        let first = slots.enter(0).unwrap();
        let second = slots.enter(1).unwrap();
        let third = slots.enter(1).unwrap();
        let mut third = pin!(third.slot());
        {
            let mut second = pin!(second.slot());
            assert!(ready(second.as_mut()).is_none() && ready(third.as_mut()).is_none());
        }
        assert_eq!(slots.load_of(1), Load { running: 0, waiting: 1 });
        drop(first);
        assert!(ready(third.as_mut()).is_some(), "the slot goes to the next request");
        assert_eq!((slots.load(), slots.load_of(1)), (Load::default(), Load::default()));
    }

    fn ready(slot: std::pin::Pin<&mut impl Future<Output = SlotPermit>>) -> Option<SlotPermit> {
        match slot.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot),
            Poll::Pending => None,
        }
    }
}
