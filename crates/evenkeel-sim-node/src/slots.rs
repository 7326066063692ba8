//! The engine's slots and its queue: first come, first served.
//!
//! Bound: never more running than slots, never more waiting than places; whoever goes away gives back
//! what it held at once.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How many requests an engine works on, and how many wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences that hold a slot.
    pub running: u32,
    /// Requests that wait for one.
    pub waiting: u32,
}

#[derive(Debug)]
pub(super) struct SlotPool {
    free: Arc<Semaphore>,
    queue_max: u32,
    load: watch::Sender<Load>,
    /// The same, for each model alone.
    by_model: Vec<watch::Sender<Load>>,
}

/// No slot is free and every waiting place is taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

impl SlotPool {
    pub(super) fn new(slots: u32, queue_max: u32, models: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(slots as usize)),
            queue_max,
            load: watch::Sender::default(),
            by_model: (0..models).map(|_| watch::Sender::default()).collect(),
        })
    }

    /// Takes a slot, or a place to wait for one.
    pub(super) fn enter(self: &Arc<Self>, model: usize) -> Result<SlotOrWait, QueueFull> {
        // A freed slot goes to the first waiter, so nobody passes those who wait here.
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Ok(SlotOrWait::Running(self.running(model, permit)));
        }
        let queued = self.load.send_if_modified(|load| {
            let room = load.waiting < self.queue_max;
            load.waiting += u32::from(room);
            room
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

    /// Lets somebody see every change.
    pub(super) fn watch(&self) -> watch::Receiver<Load> {
        self.load.subscribe()
    }

    fn running(self: &Arc<Self>, model: usize, permit: OwnedSemaphorePermit) -> SlotPermit {
        self.change(model, |load| load.running += 1);
        SlotPermit { slots: self.clone(), model, permit: Some(permit) }
    }

    fn change(&self, model: usize, change: impl Fn(&mut Load)) {
        self.by_model[model].send_modify(&change);
        self.load.send_modify(change);
    }
}

/// What a request that was not turned away holds.
#[derive(Debug)]
pub(super) enum SlotOrWait {
    Running(SlotPermit),
    Waiting(WaitGuard),
}

impl SlotOrWait {
    /// Waits for the slot; dropping the future gives the place back.
    pub(super) async fn slot(self) -> SlotPermit {
        match self {
            Self::Running(slot) => slot,
            Self::Waiting(waiting) => {
                let slots = waiting.slots.clone();
                let permit = slots.free.clone().acquire_owned().await.expect("the semaphore is never closed");
                // Counted as running before it stops waiting: whoever watches never sees it nowhere.
                slots.running(waiting.model, permit)
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

/// The right to be worked on.
#[derive(Debug)]
pub(super) struct SlotPermit {
    slots: Arc<SlotPool>,
    model: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        // Counted down before the next one is let in, or the count could exceed the slots.
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
    fn past_the_slots_requests_wait_and_past_the_places_they_are_turned_away() {
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
    fn without_waiting_places_a_full_engine_turns_everybody_away() {
        let slots = SlotPool::new(1, 0, 1);
        let _held = slots.enter(0).unwrap();
        assert_eq!(slots.enter(0).unwrap_err(), QueueFull);
    }

    #[test]
    fn who_goes_away_while_waiting_leaves_nothing_behind() {
        let slots = SlotPool::new(1, 2, 2);
        let held = slots.enter(0).unwrap();
        let second = slots.enter(1).unwrap();
        let third = slots.enter(1).unwrap();
        let mut third = pin!(third.slot());
        {
            let mut second = pin!(second.slot());
            assert!(ready(second.as_mut()).is_none() && ready(third.as_mut()).is_none());
        }
        assert_eq!(slots.load_of(1), Load { running: 0, waiting: 1 });
        drop(held);
        assert!(ready(third.as_mut()).is_some(), "the slot passes who is gone");
        assert_eq!((slots.load(), slots.load_of(1)), (Load::default(), Load::default()));
    }

    fn ready(slot: std::pin::Pin<&mut impl Future<Output = SlotPermit>>) -> Option<SlotPermit> {
        match slot.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot),
            Poll::Pending => None,
        }
    }
}
