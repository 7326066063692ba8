//! Expiry of messages: by their own TTL, or by the queue's retention.
//!
//! Invariants: `by_ttl` holds exactly the ready, delayed and exhausted messages with a TTL; `by_age` holds every key
//! with ready messages in memory, at or before the time its oldest was sent; `parked` keys wait for room to expire their
//! next message.
//!
//! Guarantees: an expired message is not delivered, and is kept until its delete is confirmed. A message of `by_ttl` is
//! deleted 100 ms after its TTL, with or without consumers. Retention is checked for the first message of
//! each key; a later message is checked when it becomes the first.
//! Limits: at most `EXPIRING_MAX` deletes of ready messages at a time. A waiting message with a TTL takes about
//! 150 bytes here; one without takes none, and its key one entry.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::id::Key;

use super::invisible::InvisibleState;
use super::key_queue::{KeyQueue, MessageEntry};
use super::{Disposition, QueueState};
use crate::id::{KeyId, Seq};
use crate::message::MessageMeta;
use crate::time::UnixMillis;

/// Messages that expire within this time are deleted in one batch.
const EXPIRY_BATCH_WINDOW: Duration = Duration::from_millis(100);
/// Maximum number of pending deletes of expired messages; at the maximum, no further ready message is expired.
const EXPIRING_MAX: usize = 1_024;

/// Ready, delayed and exhausted messages by when they expire.
#[derive(Debug, Default)]
pub(super) struct ExpiryIndex {
    by_ttl: BTreeMap<(UnixMillis, Seq), (Key, MessageMeta)>,
    by_age: BTreeSet<(UnixMillis, Key)>,
    parked: BTreeSet<Key>,
    /// Messages deleted by expiry so far.
    pub(super) total: u64,
}

impl ExpiryIndex {
    /// Adds a message that is neither leased nor being removed, if it has a TTL.
    pub(super) fn insert(&mut self, index: Key, meta: &MessageMeta) {
        if let Some(expires_at) = meta.expires_at {
            self.by_ttl.insert((expires_at, meta.seq), (index, *meta));
        }
    }

    /// Removes a message that was leased or is being removed.
    pub(super) fn remove(&mut self, meta: &MessageMeta) {
        if let Some(expires_at) = meta.expires_at {
            self.by_ttl.remove(&(expires_at, meta.seq));
        }
    }

    /// Returns the number of indexed messages with a TTL.
    pub(super) fn with_ttl(&self) -> u64 {
        self.by_ttl.len() as u64
    }

    /// Indexes a key by the time its oldest ready message in memory was sent, unless it is indexed by an earlier time.
    pub(super) fn index_first(&mut self, index: Key, queue: &mut KeyQueue) {
        let Some(first) = queue.firsts().map(|meta| meta.sent_at).min() else { return };
        let indexed = queue.expiry_indexed_at;
        if indexed.is_some_and(|indexed| indexed <= first) {
            return;
        }
        if let Some(indexed) = indexed {
            self.by_age.remove(&(indexed, index));
        }
        self.by_age.insert((first, index));
        queue.expiry_indexed_at = Some(first);
    }

    /// Removes a key that is no longer known.
    pub(super) fn remove_key(&mut self, index: Key, queue: &KeyQueue) {
        if let Some(indexed) = queue.expiry_indexed_at {
            self.by_age.remove(&(indexed, index));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self { total: self.total, ..Self::default() };
    }

    fn pop_ttl(&mut self, now: UnixMillis) -> Option<(Key, MessageMeta)> {
        let first = self.by_ttl.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    fn pop_aged(&mut self, now: UnixMillis, retention: Duration) -> Option<Key> {
        self.by_age.first().filter(|(sent_at, _)| *sent_at + retention <= now)?;
        self.by_age.pop_first().map(|(_, index)| index)
    }
}

impl QueueState {
    pub(super) fn is_expired(&self, meta: &MessageMeta) -> bool {
        meta.expires_at.is_some_and(|at| at <= self.now) || meta.sent_at + self.limits.retention <= self.now
    }

    /// Returns when to look for expired messages next.
    pub(super) fn next_expiry(&self) -> Option<UnixMillis> {
        if self.expiry_room() == 0 {
            return None;
        }
        let ttl = self.expiry.by_ttl.first_key_value().map(|((at, _), _)| *at);
        let age = self.expiry.by_age.first().map(|(sent_at, _)| *sent_at + self.limits.retention);
        ttl.into_iter().chain(age).min().map(|at| at + EXPIRY_BATCH_WINDOW)
    }

    /// Returns how many more ready messages may be expired now.
    pub(super) fn expiry_room(&self) -> usize {
        EXPIRING_MAX.saturating_sub(self.invisible.expired_count())
    }

    /// Parks a key until there is room to expire its next message; other keys are served meanwhile.
    pub(super) fn park_until_expiry_room(&mut self, index: Key) {
        self.schedule.drr.park(index);
        self.expiry.parked.insert(index);
    }

    /// Returns the keys that were parked for lack of room to the schedule.
    pub(super) fn unpark_expiring(&mut self) {
        for index in core::mem::take(&mut self.expiry.parked) {
            // A key that was emptied meanwhile may have been removed.
            if self.schedule.keys.get(index).is_some() {
                self.update_schedule(index);
            }
        }
    }

    /// Expires ready, delayed and exhausted messages; visits at most `max` messages and keys.
    pub(super) fn expire_some(&mut self, max: usize, ended: &mut Vec<Disposition>) {
        let mut left = self.expiry_room().min(max);
        while left > 0 {
            let Some((index, meta)) = self.expiry.pop_ttl(self.now) else { break };
            left -= 1;
            let is_invisible =
                self.invisible.get(meta.seq).is_some_and(|message| message.state.has_ttl_in_force());
            let entry = if is_invisible {
                self.reveal(meta.seq).map(|message| message.entry)
            } else {
                self.schedule.take(index, meta)
            };
            debug_assert!(entry.is_some(), "{meta:?} is indexed, but neither ready, delayed nor exhausted");
            if let Some(entry) = entry {
                let (key, meta) = self.expire(index, entry);
                ended.push(Disposition::Expired { key, meta });
                self.update_schedule(index);
            }
        }
        while left > 0 {
            let Some(index) = self.expiry.pop_aged(self.now, self.limits.retention) else { break };
            left -= 1;
            self.schedule.key_mut(index).expiry_indexed_at = None;
            self.expire_firsts(index, &mut left, ended);
            // Indexes the key again, if it has messages left.
            self.update_schedule(index);
        }
    }

    /// Removes first messages of a key until they are not expired.
    fn expire_firsts(&mut self, index: Key, left: &mut usize, ended: &mut Vec<Disposition>) {
        while *left > 0 {
            let firsts = self.schedule.key(index).firsts();
            let Some(meta) = firsts.copied().find(|meta| self.is_expired(meta)) else { break };
            let Some(entry) = self.schedule.take(index, meta) else { break };
            let (key, meta) = self.expire(index, entry);
            ended.push(Disposition::Expired { key, meta });
            *left -= 1;
        }
    }

    /// Marks a message as expired: [`confirm_removal`](Self::confirm_removal) or
    /// [`revert_removal`](Self::revert_removal) must follow.
    pub(super) fn expire(&mut self, index: Key, entry: MessageEntry) -> (KeyId, MessageMeta) {
        let key = self.schedule.key(index).key;
        let meta = entry.meta;
        self.hide(index, entry, InvisibleState::Expired { retry_at: None });
        (key, meta)
    }

    /// Removes a key's messages from the index if they are missing from the store.
    pub(super) fn remove_missing(&mut self, index: Key) {
        let Self { expiry, invisible, schedule, .. } = self;
        let queue = schedule.key(index);
        let exists =
            |seq: Seq| seq <= queue.cursor() || invisible.contains(seq) || queue.redelivery(seq).is_some();
        expiry.by_ttl.retain(|(_, seq), (key, _)| *key != index || exists(*seq));
    }

    pub(super) fn audit_expiry(&self) -> Result<(), String> {
        for (index, meta) in self.expiry.by_ttl.values() {
            let state = self.invisible.get(meta.seq).map(|message| message.state);
            let is_indexable = match state {
                Some(state) => state.has_ttl_in_force(),
                None => self.schedule.key(*index).holds(meta.seq),
            };
            if !is_indexable {
                return Err(format!("{meta:?} is indexed for expiry, its state is {state:?}"));
            }
        }
        for (index, queue) in self.schedule.keys.iter() {
            let first = queue.firsts().map(|meta| meta.sent_at).min();
            let is_early =
                first.is_none_or(|first| queue.expiry_indexed_at.is_some_and(|since| since <= first));
            let is_listed =
                queue.expiry_indexed_at.is_none_or(|since| self.expiry.by_age.contains(&(since, index)));
            if !is_early || !is_listed {
                return Err(format!("{} is not indexed for its first message", queue.name));
            }
            for entry in queue.ready().filter(|entry| entry.meta.expires_at.is_some()) {
                let expires_at = entry.meta.expires_at.unwrap_or_default();
                if !self.expiry.by_ttl.contains_key(&(expires_at, entry.meta.seq)) {
                    return Err(format!("{:?} has a TTL and is not indexed", entry.meta));
                }
            }
        }
        Ok(())
    }
}
