//! Which results a store keeps, so that no queue has more than its limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{MessageId, QueueId};
use crate::time::UnixMillis;

/// Which results are kept, queue by queue, by when they expire.
#[derive(Default)]
pub(crate) struct ResultIndex(HashMap<QueueId, QueueResults>);

#[derive(Default)]
struct QueueResults {
    by_due: BTreeSet<(UnixMillis, MessageId)>,
    due_of: BTreeMap<MessageId, UnixMillis>,
}

impl ResultIndex {
    /// Notes that a result is kept until then; tells when one expires that it takes the place of.
    pub(crate) fn keep(&mut self, of: MessageId, until: UnixMillis) -> Option<UnixMillis> {
        let kept = self.0.entry(of.queue).or_default();
        let before = kept.due_of.insert(of, until);
        if let Some(before) = before {
            kept.by_due.remove(&(before, of));
        }
        kept.by_due.insert((until, of));
        before.filter(|before| *before != until)
    }

    /// Forgets the result that would expire first of those beside `latest` in its queue, if there are more than `max`.
    pub(crate) fn evict_over_limit(
        &mut self,
        max: usize,
        latest: MessageId,
    ) -> Option<(UnixMillis, MessageId)> {
        let kept = self.0.get_mut(&latest.queue)?;
        if kept.by_due.len() <= max {
            return None;
        }
        let first = *kept.by_due.iter().find(|(_, of)| *of != latest)?;
        kept.by_due.remove(&first);
        kept.due_of.remove(&first.1);
        Some(first)
    }

    /// Forgets a result that expired then.
    pub(crate) fn forget(&mut self, at: UnixMillis, of: MessageId) {
        let Some(kept) = self.0.get_mut(&of.queue) else { return };
        if kept.by_due.remove(&(at, of)) {
            kept.due_of.remove(&of);
        }
        if kept.by_due.is_empty() {
            self.0.remove(&of.queue);
        }
    }
}
