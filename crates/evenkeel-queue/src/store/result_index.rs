//! Index of the stored results, to evict those over a queue's limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{MessageId, QueueId};
use crate::time::UnixMillis;

/// Stored results of each queue, by expiry.
#[derive(Default)]
pub(crate) struct ResultIndex(HashMap<QueueId, QueueResults>);

#[derive(Default)]
struct QueueResults {
    by_expiry: BTreeSet<(UnixMillis, MessageId)>,
    expiries: BTreeMap<MessageId, UnixMillis>,
}

impl ResultIndex {
    /// Adds a result; returns the expiry of the one it replaces, if that differs.
    pub(crate) fn insert(&mut self, id: MessageId, expires_at: UnixMillis) -> Option<UnixMillis> {
        let results = self.0.entry(id.queue).or_default();
        let before = results.expiries.insert(id, expires_at);
        if let Some(before) = before {
            results.by_expiry.remove(&(before, id));
        }
        results.by_expiry.insert((expires_at, id));
        before.filter(|before| *before != expires_at)
    }

    /// Evicts the result that expires first in the queue of `latest`, other than `latest`, if there are more than `max`.
    pub(crate) fn evict_over_limit(
        &mut self,
        max: usize,
        latest: MessageId,
    ) -> Option<(UnixMillis, MessageId)> {
        let results = self.0.get_mut(&latest.queue)?;
        if results.by_expiry.len() <= max {
            return None;
        }
        let first = *results.by_expiry.iter().find(|(_, id)| *id != latest)?;
        results.by_expiry.remove(&first);
        results.expiries.remove(&first.1);
        Some(first)
    }

    /// Removes a result, unless it was replaced by one with another expiry.
    pub(crate) fn remove(&mut self, expired_at: UnixMillis, id: MessageId) {
        let Some(results) = self.0.get_mut(&id.queue) else { return };
        if results.by_expiry.remove(&(expired_at, id)) {
            results.expiries.remove(&id);
        }
        if results.by_expiry.is_empty() {
            self.0.remove(&id.queue);
        }
    }
}
