//! Typed pointer to a cell's mailbox, so that a send needs no type lookup.

use core::any::TypeId;
use core::ptr::NonNull;

use crate::actor::Actor;
use crate::cell::{ActorCell, CellRef};
use crate::mailbox::QueueMailbox;

/// A counted reference to a cell, with a pointer to its mailbox.
pub(crate) struct MailboxRef<M> {
    cell: CellRef,
    mailbox: NonNull<QueueMailbox<M>>,
}

// SAFETY: a reference to a cell and a shared borrow of its mailbox, which is `Sync` for messages that are
// `Send`: both may be used from any thread.
unsafe impl<M: Send> Send for MailboxRef<M> {}
// SAFETY: as above.
unsafe impl<M: Send> Sync for MailboxRef<M> {}

impl<M> MailboxRef<M> {
    /// Combines a cell and its mailbox.
    ///
    /// # Safety
    /// `mailbox` is the mailbox of the cell's body, taken while the body was in its slot.
    pub(super) unsafe fn new(cell: CellRef, mailbox: NonNull<QueueMailbox<M>>) -> Self {
        Self { cell, mailbox }
    }

    /// Creates a reference from a cell and its body.
    pub(crate) fn for_cell<A: Actor<Msg = M>>(cell: &CellRef, body: &ActorCell<A>) -> Self {
        let mailbox = NonNull::from(&body.mailbox);
        assert_eq!(cell.occupant().body.mailbox(), mailbox.cast(), "the body belongs to the cell");
        Self { cell: cell.clone(), mailbox }
    }

    /// Creates a reference to a cell whose actor handles `M`; `Err` is the name of the type it handles
    /// instead.
    pub(crate) fn typed(cell: CellRef) -> Result<Self, &'static str>
    where
        M: 'static,
    {
        let body = &cell.occupant().body;
        let (type_id, name) = body.message_type();
        if type_id != TypeId::of::<M>() {
            return Err(name);
        }
        let mailbox = body.mailbox().cast();
        // SAFETY: the body is an `ActorCell<A>` in its slot, and its `A::Msg` has the type ID of `M`: it is
        // `M`.
        Ok(unsafe { Self::new(cell, mailbox) })
    }

    #[inline]
    pub(crate) fn cell(&self) -> &CellRef {
        &self.cell
    }

    #[inline]
    pub(crate) fn mailbox(&self) -> &QueueMailbox<M> {
        // SAFETY: the cell is referenced, so its body is not dropped.
        unsafe { self.mailbox.as_ref() }
    }
}

impl<M> Clone for MailboxRef<M> {
    fn clone(&self) -> Self {
        Self { cell: self.cell.clone(), mailbox: self.mailbox }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mailbox::{MailboxQueueStats, PushResult};
    use crate::test_rig::{Rig, SumMsg};
    use crate::trace::Envelope;

    #[test]
    fn every_clone_of_a_reference_refers_to_the_same_mailbox() {
        let rig = Rig::new(1);
        let actor = rig.spawn();
        let cell = actor.cell().clone();
        let mailbox = cell.occupant().body.mailbox().cast();
        // SAFETY: the body is in its slot, and is an `ActorCell<Sum>`, whose mailbox takes `SumMsg`.
        let reference = unsafe { MailboxRef::<SumMsg>::new(cell, mailbox) }.clone();
        let stats = |depth| MailboxQueueStats { enqueued: depth as u64, depth };
        let message = Envelope::seal(SumMsg::Add(1), reference.cell());
        assert!(matches!(reference.mailbox().push(message), PushResult::Queued));
        assert_eq!((actor.depth(), reference.cell().occupant().body.stats()), (1, stats(1)));
        drop(actor);
        let message = Envelope::seal(SumMsg::Add(1), reference.cell());
        assert!(matches!(reference.mailbox().push(message), PushResult::Queued));
        assert_eq!(reference.mailbox().stats(), stats(2));
    }

    #[test]
    #[cfg(feature = "patterns")]
    fn a_mailbox_is_found_only_by_the_type_of_its_messages() {
        let rig = Rig::new(1);
        let actor = rig.spawn();
        let reference = MailboxRef::<SumMsg>::typed(actor.cell().clone()).ok().unwrap();
        let message = Envelope::seal(SumMsg::Add(1), reference.cell());
        assert!(matches!(reference.mailbox().push(message), PushResult::Queued));
        assert_eq!(actor.depth(), 1);
        let name = MailboxRef::<u64>::typed(actor.cell().clone()).err().unwrap();
        assert!(name.ends_with("SumMsg"), "{name}");
    }
}
