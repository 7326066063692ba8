//! The user lane of a cell, reached in one step.

#[cfg(feature = "patterns")]
use core::any::TypeId;
use core::ptr::NonNull;

use crate::actor::Actor;
use crate::cell::{ActorCell, CellRef};
use crate::mailbox::QueueMailbox;

/// A counted reference to a cell that knows where its lane lies.
pub(crate) struct MailboxRef<M> {
    cell: CellRef,
    lane: NonNull<QueueMailbox<M>>,
}

// SAFETY: a reference to a cell and a shared borrow of its lane, which is `Sync` for messages that may
// be sent: both may be used from any thread.
unsafe impl<M: Send> Send for MailboxRef<M> {}
// SAFETY: as above.
unsafe impl<M: Send> Sync for MailboxRef<M> {}

impl<M> MailboxRef<M> {
    /// Joins a cell and its lane.
    ///
    /// # Safety
    /// `lane` is the lane of the cell's body, taken when the body was in its slot.
    pub(super) unsafe fn new(cell: CellRef, lane: NonNull<QueueMailbox<M>>) -> Self {
        Self { cell, lane }
    }

    /// Refers to a cell whose body is at hand.
    pub(crate) fn of<A: Actor<Msg = M>>(cell: &CellRef, body: &ActorCell<A>) -> Self {
        let lane = NonNull::from(&body.lane);
        assert_eq!(cell.occupant().body.lane(), lane.cast(), "the body is the cell's");
        Self { cell: cell.clone(), lane }
    }

    /// Refers to a cell whose actor takes `M`; `Err` says what else it takes.
    #[cfg(feature = "patterns")]
    pub(crate) fn typed(cell: CellRef) -> Result<Self, &'static str>
    where
        M: 'static,
    {
        let body = &cell.occupant().body;
        let (takes, name) = body.takes();
        if takes != TypeId::of::<M>() {
            return Err(name);
        }
        let lane = body.lane().cast();
        // SAFETY: the body is a `Body<A>` in its slot, and its `A::Msg` has the id of `M`: it is `M`.
        Ok(unsafe { Self::new(cell, lane) })
    }

    #[inline]
    pub(crate) fn cell(&self) -> &CellRef {
        &self.cell
    }

    #[inline]
    pub(crate) fn lane(&self) -> &QueueMailbox<M> {
        // SAFETY: the cell is referred to, so its body is not dropped.
        unsafe { self.lane.as_ref() }
    }
}

impl<M> Clone for MailboxRef<M> {
    fn clone(&self) -> Self {
        Self { cell: self.cell.clone(), lane: self.lane }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mailbox::{MailboxQueueStats, PushResult};
    use crate::test_rig::{Rig, SumMsg};
    use crate::trace::Envelope;

    #[test]
    fn every_copy_of_an_address_leads_to_the_same_lane() {
        let rig = Rig::new(1);
        let actor = rig.spawn();
        let cell = actor.cell().clone();
        let lane = cell.occupant().body.lane().cast();
        // SAFETY: the body is in its slot, and a `Body<Sum>`, whose lane takes `Told`.
        let lane = unsafe { MailboxRef::<SumMsg>::new(cell, lane) }.clone();
        let stats = |depth| MailboxQueueStats { enqueued: depth as u64, depth };
        let told = Envelope::seal(SumMsg::Add(1), lane.cell());
        assert!(matches!(lane.lane().push(told), PushResult::Queued));
        assert_eq!((actor.depth(), lane.cell().occupant().body.stats()), (1, stats(1)));
        drop(actor);
        let told = Envelope::seal(SumMsg::Add(1), lane.cell());
        assert!(matches!(lane.lane().push(told), PushResult::Queued));
        assert_eq!(lane.lane().stats(), stats(2));
    }

    #[test]
    #[cfg(feature = "patterns")]
    fn only_the_type_of_its_messages_leads_to_a_lane() {
        let rig = Rig::new(1);
        let actor = rig.spawn();
        let lane = MailboxRef::<SumMsg>::typed(actor.cell().clone()).ok().unwrap();
        let told = Envelope::seal(SumMsg::Add(1), lane.cell());
        assert!(matches!(lane.lane().push(told), PushResult::Queued));
        assert_eq!(actor.depth(), 1);
        let takes = MailboxRef::<u64>::typed(actor.cell().clone()).err().unwrap();
        assert!(takes.ends_with("SumMsg"), "{takes}");
    }
}
