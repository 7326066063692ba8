//! Wait for capacity in a full mailbox, by a sender or by a suspended actor.

use core::borrow::Borrow;
use core::marker::PhantomData;
use core::task::Waker;

#[cfg(feature = "std")]
use evenkeel_policy::time::Instant;

use crate::actor_ref::ActorRef;
use crate::hub::OverflowReason;

/// A place among the producers that wait for capacity in the mailbox of `R`; dropping it gives the place up.
pub(crate) struct RoomWait<M: Send + 'static, R: Borrow<ActorRef<M>>> {
    to: R,
    place: Option<u64>,
    /// End of a wait in the future of an actor; set at its first poll.
    #[cfg(feature = "std")]
    due: Option<Instant>,
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
        Self {
            to,
            place: None,
            #[cfg(feature = "std")]
            due: None,
            _messages: PhantomData,
        }
    }

    pub(crate) fn register(&mut self, waker: &Waker) -> bool {
        let to = self.to.borrow();
        to.mailbox().wait_for_room(&mut self.place, waker, &to.cell().slot().state)
    }

    /// Reports whether the wait has reached its limit, and counts it if so.
    ///
    /// Only an actor that awaits the send in its own future has a limit, because two of them could wait for each other; it is
    /// polled again at the limit.
    #[cfg(feature = "std")]
    pub(crate) fn is_over(&mut self, waker: &Waker) -> bool {
        // The waiting actor may belong to another system than the mailbox.
        let is_over = crate::raw::current::with_any(|local| {
            let Some(local) = local.filter(|local| local.polls_actor()) else { return false };
            let core = local.core();
            let now = core.now();
            let due = *self.due.get_or_insert_with(|| now + core.config.capacity_wait_max);
            local.watch_own_deadline(waker, due) && due <= now
        });
        if is_over {
            let cell = self.to.borrow().cell();
            cell.core().hub.count_overflow(cell.header().kind, OverflowReason::WaitTimedOut);
        }
        is_over
    }

    /// Reports that the wait goes on: without `std`, the task that is polled is not known.
    #[cfg(not(feature = "std"))]
    pub(crate) fn is_over(&mut self, _waker: &Waker) -> bool {
        false
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
