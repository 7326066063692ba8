//! Writes to the store when deliveries end.

use evenkeel_actor::ActorRef;

use super::{Msg, QueueActor};
use crate::id::KeyId;
use crate::message::MessageMeta;
use crate::queue_state::Disposition;
use crate::settings::Durability;
use crate::store::{Commit, MessageChange};

/// Numbers of moves to the dead-letter queue, which finish in the order in which they started, except for those that the store
/// rejects at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeadLetterMoves {
    pub(super) started: u64,
    pub(super) finished: u64,
}

impl QueueActor {
    /// Writes how deliveries ended: requeued, expired or dead-lettered.
    pub(super) fn write_dispositions(&mut self, ended: Vec<Disposition>, self_ref: &ActorRef<Msg>) {
        let mut changes = Vec::with_capacity(ended.len());
        let mut expired = Vec::new();
        for disposition in ended {
            match (disposition, self.settings.redrive) {
                (Disposition::Requeued(record), _) => changes.push(MessageChange::Requeued(record)),
                (Disposition::Expired { key, meta }, _) => expired.push((key, meta)),
                (Disposition::DeadLetter { key, meta, .. }, Some(redrive)) => {
                    let self_ref = self_ref.clone();
                    let commit = self.commit(vec![MessageChange::Moved(key, meta, redrive.to)]);
                    let done = move |result| self_ref.tell(Msg::DeadLettered(meta.seq, result));
                    self.dead_letter_moves.started += 1;
                    self.store.commit(commit, Box::new(done));
                }
                // The redrive policy was removed meanwhile, so the message is redelivered, after a second.
                (Disposition::DeadLetter { meta, .. }, None) => self.state.revert_removal(meta.seq),
            }
        }
        self.commit_relaxed(changes);
        self.delete_expired(expired, self_ref);
    }

    /// Deletes expired messages. The delete is not synced: after a crash they expire again.
    pub(super) fn delete_expired(&self, expired: Vec<(KeyId, MessageMeta)>, self_ref: &ActorRef<Msg>) {
        if expired.is_empty() {
            return;
        }
        let seqs = expired.iter().map(|(_, meta)| meta.seq).collect();
        let changes = expired.into_iter().map(|(key, meta)| MessageChange::Removed(key, meta)).collect();
        let self_ref = self_ref.clone();
        let done = move |result| self_ref.tell(Msg::Removed(seqs, result, None));
        self.store.commit(self.unsynced_commit(changes), Box::new(done));
    }

    /// Commits without waiting for fsync. If a crash loses the commit, a message is redelivered.
    pub(super) fn commit_relaxed(&self, changes: Vec<MessageChange>) {
        if changes.is_empty() {
            return;
        }
        let queue = self.queue;
        self.store.commit(
            self.unsynced_commit(changes),
            Box::new(move |result| {
                if let Err(error) = result {
                    tracing::warn!(queue = queue.0, %error, "could not store delivery states");
                }
            }),
        );
    }

    fn unsynced_commit(&self, changes: Vec<MessageChange>) -> Commit {
        Commit { durability: Durability::Os, ..self.commit(changes) }
    }

    pub(super) fn commit(&self, changes: Vec<MessageChange>) -> Commit {
        Commit { queue: self.queue, epoch: self.epoch, changes, durability: self.settings.durability }
    }
}
