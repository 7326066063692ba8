//! Many messages from one hand to one actor.
//!
//! Bound: [`OUTBOX_MAX`] messages wait in a producer; the next one sends them all.

use alloc::vec::Vec;
use core::fmt;

use crate::actor_ref::ActorRef;
use crate::raw::state::USER;
use crate::trace::Envelope;

/// How many messages a producer collects.
pub const OUTBOX_MAX: usize = 32;

/// Collects messages for one actor and sends them together: one lock and at most one wake-up for all.
///
/// It belongs to one thread or task at a time, so what it collects needs no lock. Messages keep their
/// order among themselves and after what the same hand sent before; what it [`tell`](Self::tell)s last
/// is sent by [`flush`](Self::flush) or when it is dropped.
pub struct QueueMailboxProducer<M: Send + 'static> {
    to: ActorRef<M>,
    outbox: Vec<Envelope<M>>,
}

impl<M: Send + 'static> ActorRef<M> {
    /// Makes a producer of messages for this actor.
    pub fn producer(&self) -> QueueMailboxProducer<M> {
        QueueMailboxProducer { to: self.clone(), outbox: Vec::new() }
    }
}

impl<M: Send + 'static> QueueMailboxProducer<M> {
    /// Sends with the next flush, and forgets; see [`ActorRef::tell`].
    #[inline]
    pub fn tell(&mut self, message: M) {
        if self.outbox.len() == OUTBOX_MAX {
            self.flush();
        }
        self.outbox.push(Envelope::seal(message, self.to.cell()));
    }

    /// Sends everything that was collected; what finds no place becomes a dead letter, with the reason.
    pub fn flush(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        if self.to.mailbox().push_all_fast(&mut self.outbox) != 0 {
            self.to.cell().raise(USER);
        }
        // What is left has found the mailbox full or closed, and is dealt with one by one.
        self.outbox.drain(..).for_each(|message| self.to.tell_or_dead_letter(message));
    }

    /// Counts what waits for the next flush.
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }

    /// Tells whom it sends to.
    pub fn actor(&self) -> &ActorRef<M> {
        &self.to
    }
}

impl<M: Send + 'static> Drop for QueueMailboxProducer<M> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<M: Send + 'static> fmt::Debug for QueueMailboxProducer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMailboxProducer")
            .field("to", &self.to)
            .field("pending", &self.pending())
            .finish()
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::test_rig::{Rig, SumMsg};

    #[test]
    fn what_is_collected_arrives_with_the_33rd_a_flush_or_the_end() {
        let rig = Rig::new(1);
        let actor = rig.spawn();
        let mut producer = actor.producer();
        let mut tell = |times: usize| {
            (0..times).for_each(|_| producer.tell(SumMsg::Add(1)));
            (actor.depth(), producer.pending())
        };
        assert_eq!(tell(OUTBOX_MAX), (0, OUTBOX_MAX));
        assert_eq!(tell(1), (OUTBOX_MAX, 1));
        producer.flush();
        assert_eq!((actor.depth(), producer.pending()), (OUTBOX_MAX + 1, 0));
        producer.tell(SumMsg::Add(1));
        drop(producer);
        assert_eq!(actor.depth(), OUTBOX_MAX + 2);
    }
}
