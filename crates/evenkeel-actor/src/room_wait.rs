//! Wait for capacity in a full mailbox, by a sender outside actors or by a suspended actor.

use core::borrow::Borrow;
use core::marker::PhantomData;
use core::task::Waker;

use crate::actor_ref::ActorRef;
use crate::hub::OverflowReason;

/// A place among the producers that wait for capacity in the mailbox of `R`; dropping it gives the place up.
pub(crate) struct RoomWait<M: Send + 'static, R: Borrow<ActorRef<M>>> {
    to: R,
    place: Option<u64>,
    _messages: PhantomData<fn(M)>,
}

/// The wait of a suspended actor.
pub(crate) trait CapacityWait: Send {
    /// Registers `waker`, to be called when the mailbox has drained to its low watermark; returns `false` if too many
    /// producers wait.
    fn register(&mut self, waker: &Waker) -> bool;

    /// Counts a wait that reached its limit.
    fn count_timeout(&self);
}

impl<M: Send + 'static, R: Borrow<ActorRef<M>>> RoomWait<M, R> {
    pub(crate) fn new(to: R) -> Self {
        Self { to, place: None, _messages: PhantomData }
    }

    pub(crate) fn register(&mut self, waker: &Waker) -> bool {
        let to = self.to.borrow();
        to.mailbox().wait_for_room(&mut self.place, waker, &to.cell().slot().state)
    }
}

impl<M: Send + 'static> CapacityWait for RoomWait<M, ActorRef<M>> {
    fn register(&mut self, waker: &Waker) -> bool {
        self.register(waker)
    }

    fn count_timeout(&self) {
        let cell = self.to.cell();
        cell.core().hub.count_overflow(cell.header().kind, OverflowReason::WaitTimedOut);
    }
}

impl<M: Send + 'static, R: Borrow<ActorRef<M>>> Drop for RoomWait<M, R> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.to.borrow().mailbox().leave_waiting(place);
        }
    }
}
