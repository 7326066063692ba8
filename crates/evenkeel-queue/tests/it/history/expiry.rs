//! Expired messages, and their deletes.

use evenkeel_queue::KeyId;
use evenkeel_queue::message::MessageMeta;

use super::{Model, RETENTION_MS};

impl Model {
    pub(super) fn is_past_ttl(&self, meta: &MessageMeta) -> bool {
        meta.expires_at.is_some_and(|at| at.0 <= self.now)
    }

    pub(super) fn is_expired(&self, meta: &MessageMeta) -> bool {
        self.is_past_ttl(meta) || meta.sent_at.0 + RETENTION_MS <= self.now
    }

    /// Records an expiry; checks that the message is stored, expired, and not being deleted already.
    pub(super) fn record_expiry(&mut self, key: KeyId, meta: &MessageMeta) {
        assert!(self.is_expired(meta), "{meta:?} expired too early");
        assert!(self.stored.contains_key(&(key.0, meta.seq.0)), "{meta:?} expired after its removal");
        assert!(!self.deleting.contains(&(key, meta.seq)), "{meta:?} expired twice");
        self.expiring.insert(meta.seq);
        self.deleting.push((key, meta.seq));
    }

    pub(super) fn finish_deletes(&mut self) {
        for (key, seq) in self.deleting.drain(..) {
            self.state.confirm_removal(seq);
            self.stored.remove(&(key.0, seq.0));
            self.ended.remove(&seq);
            self.expiring.remove(&seq);
            self.expired += 1;
        }
    }
}
