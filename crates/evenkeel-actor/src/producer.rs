//! Batching producer: sends many messages from one owner to one actor with fewer locks and wake-ups.
//!
//! Limits: at most [`OUTBOX_MAX`] buffered messages; sending one more flushes them.

use alloc::vec::Vec;
use core::fmt;

use crate::actor_ref::ActorRef;
use crate::raw::state::USER;
use crate::trace::Envelope;

/// The capacity of a producer's outbox.
pub const OUTBOX_MAX: usize = 32;

/// A producer that buffers messages for one actor and sends them in batches: one lock and at most one wake-up per batch.
///
/// It belongs to one thread or task at a time, so the buffer needs no lock. Messages are delivered in the order in
/// which they were sent. [`flush`](Self::flush), or dropping the producer, sends the last ones.
pub struct QueueMailboxProducer<M: Send + 'static> {
    to: ActorRef<M>,
    outbox: Vec<Envelope<M>>,
}

impl<M: Send + 'static> ActorRef<M> {
    /// Returns a batching producer for this actor.
    pub fn producer(&self) -> QueueMailboxProducer<M> {
        QueueMailboxProducer { to: self.clone(), outbox: Vec::new() }
    }
}

impl<M: Send + 'static> QueueMailboxProducer<M> {
    /// Buffers a message until the next flush; see [`ActorRef::tell`].
    #[inline]
    pub fn tell(&mut self, message: M) {
        if self.outbox.len() == OUTBOX_MAX {
            self.flush();
        }
        self.outbox.push(Envelope::seal(message, self.to.cell()));
    }

    /// Sends the buffered messages; dead-letters those that the mailbox rejects.
    pub fn flush(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        if self.to.mailbox().push_all_fast(&mut self.outbox) != 0 {
            self.to.cell().raise(USER);
        }
        // The others found the mailbox full or closed and take the slow path one by one.
        self.outbox.drain(..).for_each(|message| self.to.tell_or_dead_letter(message));
    }

    /// Returns the number of buffered messages.
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }

    /// Returns the receiving actor.
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
    fn the_33rd_message_a_flush_or_a_drop_sends_the_buffered_messages() {
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
