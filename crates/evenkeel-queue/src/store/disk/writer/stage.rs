//! Staging: adds one request to a commit group.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_policy::weight::Weight;

use super::{CommitGroup, KeyspaceId, WriteOp, Writer};
use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, EnqueueResult, MessageMeta, Payload};
use crate::queue_state::{DeliveryCount, RedeliveryRecord, StoredState};
use crate::rule::KeyRule;
use crate::settings::Durability;
use crate::store::disk::catalog::{Catalog, KeyEntry, PurgeCursor, QueueEntry};
use crate::store::disk::dedup::{self, DedupEntry};
use crate::store::disk::keyspaces::{Keyspaces, SEQ_BLOCK, io};
use crate::store::disk::layout::{self, KeyRecord};
use crate::store::disk::results::{self, ExpiredResult};
use crate::store::{
    AppendBatch, AppendListener, Commit, Completion, MessageChange, Ownership, QueueDescriptor, StoreError,
    StoredResult, delivery_cost, expires_at, visible_at,
};
use crate::time::UnixMillis;

/// Maximum number of results evicted per stored result.
const EVICTIONS_MAX: usize = 1_000;

impl Writer {
    /// Adds a request to a group; a rejected request completes with an error at once.
    pub(super) fn stage(&mut self, group: &mut CommitGroup, op: WriteOp) {
        let free = self.available();
        let reserve = self.options.reserve_bytes;
        let mut keyspaces = self.keyspaces.write();
        let (Some(keyspaces), Some(catalog)) = (keyspaces.as_mut(), self.catalog.as_mut()) else {
            drop(op.fail(&StoreError::Closed));
            return;
        };
        let tenant_keys_max = self.options.tenant_keys_max;
        let mut staging = StagingContext { keyspaces, catalog, group, tenant_keys_max };
        match op {
            WriteOp::Append(_, done) if free < reserve => done(Err(StoreError::DiskFull { free, reserve })),
            WriteOp::PutResult(.., done) if free < reserve => {
                done(Err(StoreError::DiskFull { free, reserve }));
            }
            WriteOp::Append(batch, done) => staging.append(batch, done),
            WriteOp::Commit(commit, done) => staging.commit(commit, done),
            WriteOp::Purge(queue, done) => staging.purge(queue, done),
            WriteOp::SetRule(queue, name, rule, done) => staging.set_rule(queue, &name, rule, done),
            WriteOp::PutResult(id, result, max, done) => staging.put_result(id, &result, max, done),
            WriteOp::ExpireResults(now, max, done) => staging.expire_results(now, max, done),
            WriteOp::PutQueue(id, descriptor, done) => staging.put_queue(id, *descriptor, done),
            WriteOp::RemoveQueue(queue, done) => staging.remove_queue(queue, done),
            WriteOp::TakeOwnership(queues, done) => staging.take_ownership(queues, done),
            WriteOp::IsOwner(queue, epoch, done) => {
                done(staging.queue(queue).map(|queue| queue.epoch == epoch));
            }
            WriteOp::ListQueues(done) => done(Ok(staging.catalog.records())),
            WriteOp::GetPurgedBelow(queue, done) => {
                done(staging.queue(queue).map(|queue| queue.purged_below));
            }
            WriteOp::Close(_) => {}
        }
    }
}

/// Context for staging one request.
struct StagingContext<'a> {
    keyspaces: &'a mut Keyspaces,
    catalog: &'a mut Catalog,
    group: &'a mut CommitGroup,
    tenant_keys_max: u32,
}

impl StagingContext<'_> {
    fn append(&mut self, batch: AppendBatch, done: Completion<Vec<EnqueueResult>>) {
        let AppendBatch { queue, messages, sent_at, delay_ms, durability } = batch;
        if let Err(error) = self.queue(queue) {
            return done(Err(error));
        }
        let mut appended = Vec::with_capacity(messages.len());
        let mut sent = Vec::with_capacity(messages.len());
        let mut dedup_entries = HashMap::new();
        for message in messages {
            let dedup_key = message.dedup.map(|id| dedup::entry_key(queue, &id));
            let duplicate = dedup_key.map(|key| self.find_duplicate(queue, sent_at, &key, &dedup_entries));
            match duplicate.transpose() {
                Ok(before) => {
                    if let Some(before) = before.flatten() {
                        sent.push(EnqueueResult::Duplicate(before));
                        continue;
                    }
                }
                Err(error) => return done(Err(error)),
            }
            let not_before = visible_at(&message, delay_ms, sent_at);
            let cost = delivery_cost(&message);
            let size = message.payload.size() as u32;
            let expires_at = expires_at(&message, sent_at);
            let key = match self.intern(queue, &message.key) {
                Ok(key) => key,
                Err(error) => return done(Err(error)),
            };
            self.record_requested_weight(queue, key, message.weight);
            let meta = MessageMeta { seq: self.next_seq(), sent_at, size, cost, from: None, expires_at };
            let id = MessageId { queue, key, seq: meta.seq };
            sent.push(EnqueueResult::Stored(id));
            dedup_entries.extend(dedup_key.map(|key| (key, DedupEntry { at: sent_at, id })));
            let name = message.key;
            let weight = message.weight;
            let payload = message.payload;
            appended.push(AppendedMessage { key, name, weight, meta, not_before, payload });
        }
        if let Err(error) = self.write_dedup(sent_at, dedup_entries) {
            return done(Err(error));
        }
        appended.iter().for_each(|new| self.write_message(queue, new));
        self.group.require(durability);
        self.notify_listener(queue, appended);
        self.complete(done, sent);
    }

    /// Finds a message with the same deduplication ID: in this request, in this group, or on disk.
    fn find_duplicate(
        &self,
        queue: QueueId,
        now: UnixMillis,
        key: &[u8; 36],
        entries: &HashMap<[u8; 36], DedupEntry>,
    ) -> Result<Option<MessageId>, StoreError> {
        let found = match entries.get(key).or_else(|| self.group.dedup.get(key)) {
            Some(found) => Some(*found),
            None => self.keyspaces.dedup.find(queue, key)?,
        };
        // A purge forgets the deduplication IDs of the messages before it.
        let purged_below = self.catalog.purged_below(queue);
        let is_duplicate = |found: &DedupEntry| found.is_within_window(now) && purged_below <= found.id.seq;
        Ok(found.filter(is_duplicate).map(|found| found.id))
    }

    /// Adds deduplication entries to the group, which commits them together with their messages.
    fn write_dedup(
        &mut self,
        now: UnixMillis,
        entries: HashMap<[u8; 36], DedupEntry>,
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let keyspace = self.keyspaces.dedup.current_for_write(&self.keyspaces.db, now)?;
        for (key, entry) in &entries {
            self.group.batch.insert(keyspace, key.as_slice(), dedup::entry_value(entry).as_slice());
        }
        self.group.dedup.extend(entries);
        Ok(())
    }

    fn write_message(&mut self, queue: QueueId, new: &AppendedMessage) {
        let key = layout::message_key(queue, new.key, &new.meta);
        let value = layout::message_value(&new.payload);
        let segment = self.keyspaces.segments.current();
        segment.appended += 1;
        segment.live += 1;
        segment.bytes += value.len() as u64;
        self.group.bytes += value.len();
        self.group.batch.insert(&segment.keyspace, key.as_slice(), value);
        if let Some(until) = new.not_before {
            let state = layout::state_value(DeliveryCount::default(), None, StoredState::Delayed { until });
            self.group.insert(KeyspaceId::State, key.as_slice(), state);
        }
        if let Some(entry) = self.key(queue, new.key) {
            entry.live += 1;
        }
    }

    fn commit(&mut self, commit: Commit, done: Completion<()>) {
        let Commit { queue, epoch, changes, durability } = commit;
        match self.queue(queue) {
            Ok(owned) if owned.epoch == epoch => {}
            Ok(_) => return done(Err(StoreError::NotOwner)),
            Err(error) => return done(Err(error)),
        }
        // Every step that may fail comes before the first change, so that the commit is atomic.
        let mut payloads = match self.read_moved(queue, &changes) {
            Ok(payloads) => payloads,
            Err(error) => return done(Err(error)),
        };
        for change in changes {
            self.change(queue, change, &mut payloads);
        }
        self.group.require(durability);
        self.complete(done, ());
    }

    /// Reads the messages to be moved, and creates their keys in the target queues.
    fn read_moved(
        &mut self,
        queue: QueueId,
        changes: &[MessageChange],
    ) -> Result<HashMap<Seq, Payload>, StoreError> {
        let mut payloads = HashMap::new();
        for change in changes {
            let &MessageChange::Moved(key, meta, to) = change else { continue };
            self.queue(to)?;
            if let Some(name) = self.key(queue, key).map(|entry| entry.record.name.clone()) {
                self.intern_moved(to, &name)?;
            }
            let message_key = layout::message_key(queue, key, &meta);
            let segment = self.keyspaces.segments.containing(meta.seq);
            let found = segment.keyspace.get(message_key.as_slice()).map_err(io)?;
            let payload = found.and_then(|value| layout::read_message_value(&value.into()));
            payloads.extend(payload.map(|payload| (meta.seq, payload)));
        }
        Ok(payloads)
    }

    fn change(&mut self, queue: QueueId, change: MessageChange, payloads: &mut HashMap<Seq, Payload>) {
        match change {
            MessageChange::Leased(record, until) => {
                self.write_state(queue, &record, StoredState::Leased { until, epoch: record.epoch });
            }
            MessageChange::Requeued(record) => match record.not_before {
                Some(until) => self.write_state(queue, &record, StoredState::Delayed { until }),
                None if record.deliveries.attempts == 0 => {
                    let key = layout::message_key(queue, record.key, &record.meta);
                    self.group.remove(KeyspaceId::State, key.as_slice());
                }
                None => self.write_state(queue, &record, StoredState::Ready),
            },
            MessageChange::Removed(key, meta) => self.remove(queue, key, &meta),
            MessageChange::Moved(key, meta, to) => {
                // Without a payload, the message was deleted meanwhile.
                if let Some(payload) = payloads.remove(&meta.seq) {
                    self.move_message(queue, key, &meta, payload, to);
                }
            }
            MessageChange::KeyRemoved(key) => self.remove_key(queue, key),
        }
    }

    fn write_state(&mut self, queue: QueueId, record: &RedeliveryRecord, state: StoredState) {
        let key = layout::message_key(queue, record.key, &record.meta);
        let value = layout::state_value(record.deliveries, record.first_delivered_at, state);
        self.group.insert(KeyspaceId::State, key.as_slice(), value);
    }

    fn remove(&mut self, queue: QueueId, key: KeyId, meta: &MessageMeta) {
        // Maintenance deletes purged messages and counts them. If they were counted twice, a segment would be dropped
        // while it holds live messages.
        if self.queue(queue).is_ok_and(|entry| meta.seq < entry.purged_below) {
            return;
        }
        let message_key = layout::message_key(queue, key, meta);
        let segment = self.keyspaces.segments.containing_mut(meta.seq);
        // A repeated delete must not be counted twice either.
        let is_gone = || matches!(segment.keyspace.contains_key(message_key.as_slice()), Ok(false));
        if self.catalog.is_reopened && is_gone() {
            return;
        }
        segment.live = segment.live.saturating_sub(1);
        self.group.batch.remove(&segment.keyspace, message_key.as_slice());
        self.group.remove(KeyspaceId::State, message_key.as_slice());
        if let Some(entry) = self.key(queue, key) {
            entry.live = entry.live.saturating_sub(1);
        }
    }

    /// Appends a message to another queue, under the name of its key.
    fn move_message(
        &mut self,
        queue: QueueId,
        key: KeyId,
        meta: &MessageMeta,
        payload: Payload,
        to: QueueId,
    ) {
        let Some(name) = self.key(queue, key).map(|entry| entry.record.name.clone()) else { return };
        let Ok(target) = self.intern_moved(to, &name) else { return };
        let moved = MessageMeta { seq: self.next_seq(), from: Some(meta.moved_from(queue, key)), ..*meta };
        let new = AppendedMessage { key: target, name, weight: None, meta: moved, not_before: None, payload };
        self.remove(queue, key, meta);
        self.write_message(to, &new);
        self.notify_listener(to, vec![new]);
    }

    /// Removes a key, unless it got a message or a rule meanwhile.
    fn remove_key(&mut self, queue: QueueId, key: KeyId) {
        if self.catalog.remove_unused_key(queue, key) {
            self.group.remove(KeyspaceId::Keys, &layout::key_prefix(queue, key));
        }
    }

    /// Stores a result. A moved message keeps its id, so the queue in the id may have been deleted.
    fn put_result(&mut self, id: MessageId, result: &StoredResult, max: usize, done: Completion<()>) {
        let value = results::result_value(result);
        self.group.bytes += value.len();
        self.group.insert(KeyspaceId::Results, &results::result_key(id), value);
        self.group.insert(KeyspaceId::ResultsDue, &results::due_key(result.expires_at, id), Vec::new());
        if let Some(before) = self.catalog.results.insert(id, result.expires_at) {
            self.group.remove(KeyspaceId::ResultsDue, &results::due_key(before, id));
        }
        // Limited, because other writes wait meanwhile; if `max` was lowered, later results continue the eviction.
        for _ in 0..EVICTIONS_MAX {
            let Some((expires_at, evicted)) = self.catalog.results.evict_over_limit(max, id) else { break };
            self.group.remove(KeyspaceId::Results, &results::result_key(evicted));
            self.group.remove(KeyspaceId::ResultsDue, &results::due_key(expires_at, evicted));
        }
        self.group.require(Durability::Fsync);
        self.complete(done, ());
    }

    /// Deletes expired results, starting where the last run stopped: a full scan would skip its tombstones again.
    fn expire_results(&mut self, now: UnixMillis, max: usize, done: Completion<usize>) {
        let expired = match self.keyspaces.expired_results(self.catalog.results_expired_until, now, max) {
            Ok(expired) => expired,
            Err(error) => return done(Err(error)),
        };
        for result in &expired {
            if let Some(id) = result.id() {
                self.catalog.results.remove(result.expired_at(), id);
            }
            let ExpiredResult { due_key, result_key } = result;
            self.group.remove(KeyspaceId::ResultsDue, due_key);
            let is_replaced = |key: &[u8; 16]| self.group.writes(KeyspaceId::Results, key);
            if let Some(key) = result_key.as_ref().filter(|key| !is_replaced(key)) {
                self.group.remove(KeyspaceId::Results, key);
            }
        }
        // The next run starts at the expiry of the last deleted result, because more results may expire then.
        self.catalog.results_expired_until = expired.last().map_or(now, ExpiredResult::expired_at);
        self.complete(done, expired.len());
    }

    fn purge(&mut self, queue: QueueId, done: Completion<()>) {
        let below = Seq(self.catalog.seq);
        match self.queue(queue) {
            Ok(entry) => {
                entry.purged_below = below;
                entry.keys.values_mut().for_each(|key| key.live = 0);
            }
            Err(error) => return done(Err(error)),
        }
        self.catalog.purges.push(PurgeCursor::new(queue, below));
        self.put_meta(&layout::queue_meta_key(b'p', queue), &below.0.to_be_bytes());
        self.group.require(Durability::Fsync);
        self.complete(done, ());
    }

    fn set_rule(&mut self, queue: QueueId, name: &Arc<str>, rule: KeyRule, done: Completion<KeyId>) {
        let key = match self.intern(queue, name) {
            Ok(key) => key,
            Err(error) => return done(Err(error)),
        };
        self.change_record(queue, key, |record| record.rule = rule);
        self.group.require(Durability::Fsync);
        self.complete(done, key);
    }

    /// Stores the weight that a message requests for its key.
    fn record_requested_weight(&mut self, queue: QueueId, key: KeyId, weight: Option<Weight>) {
        let known = self.key(queue, key).map(|entry| entry.record.requested_weight);
        if weight.is_some() && known != Some(weight) {
            self.change_record(queue, key, |record| record.requested_weight = weight);
        }
    }

    fn change_record(&mut self, queue: QueueId, key: KeyId, change: impl FnOnce(&mut KeyRecord)) {
        let Some(entry) = self.key(queue, key) else { return };
        change(&mut entry.record);
        let bytes = entry.record.encode();
        self.group.insert(KeyspaceId::Keys, &layout::key_prefix(queue, key), bytes);
    }

    fn put_queue(&mut self, id: Option<QueueId>, descriptor: QueueDescriptor, done: Completion<QueueId>) {
        let json = match serde_json::to_vec(&descriptor) {
            Ok(json) => json,
            Err(error) => return done(Err(StoreError::Io(error.to_string()))),
        };
        let id = match id {
            Some(id) => match self.catalog.set_descriptor(id, descriptor) {
                Ok(()) => id,
                Err(error) => return done(Err(error)),
            },
            None => {
                let Some(id) = self.catalog.last_queue_id.checked_add(1) else {
                    return done(Err(StoreError::Io("no more queues can be created".into())));
                };
                self.catalog.last_queue_id = id;
                self.catalog.queues.insert(QueueId(id), QueueEntry::new(descriptor, Epoch(0), Seq(0)));
                self.put_meta(b"made", &u64::from(id).to_be_bytes());
                QueueId(id)
            }
        };
        self.put_meta(&layout::queue_meta_key(b'q', id), &json);
        self.group.require(Durability::Fsync);
        self.complete(done, id);
    }

    fn remove_queue(&mut self, queue: QueueId, done: Completion<()>) {
        if let Some(removed) = self.catalog.remove_queue(queue) {
            for &key in removed.keys.keys() {
                self.group.remove(KeyspaceId::Keys, &layout::key_prefix(queue, key));
            }
            for kind in *b"qep" {
                self.group.remove(KeyspaceId::Meta, &layout::queue_meta_key(kind, queue));
            }
            self.catalog.purges.push(PurgeCursor::new(queue, Seq(u64::MAX)));
        }
        self.group.require(Durability::Fsync);
        self.complete(done, ());
    }

    fn take_ownership(&mut self, queues: Vec<(QueueId, AppendListener)>, done: Completion<Vec<Ownership>>) {
        if let Some(error) = queues.iter().find_map(|(queue, _)| self.queue(*queue).err()) {
            return done(Err(error));
        }
        let listen_from = Seq(self.catalog.seq);
        let mut owned = Vec::with_capacity(queues.len());
        for (queue, listener) in queues {
            let Ok(entry) = self.queue(queue) else { continue };
            entry.epoch.0 += 1;
            entry.listener = Some(listener);
            let epoch = entry.epoch;
            owned.push(Ownership { epoch, listen_from });
            self.put_meta(&layout::queue_meta_key(b'e', queue), &epoch.0.to_be_bytes());
        }
        self.group.require(Durability::Fsync);
        self.complete(done, owned);
    }

    /// Returns an unused sequence number; the first of each block reserves the block on disk.
    fn next_seq(&mut self) -> Seq {
        let seq = self.catalog.seq;
        self.catalog.seq += 1;
        if self.catalog.seq_end <= seq {
            self.catalog.seq_end = seq + SEQ_BLOCK;
            self.put_meta(b"seq", &(seq + SEQ_BLOCK).to_be_bytes());
        }
        Seq(seq)
    }

    /// Returns the id of a key; creates the key if it is unknown and within the limits.
    fn intern(&mut self, queue: QueueId, name: &Arc<str>) -> Result<KeyId, StoreError> {
        let tenant_keys_max = self.tenant_keys_max;
        self.find_or_create_key(queue, name, Some(tenant_keys_max))
    }

    /// The same for a message that moves to this queue.
    fn intern_moved(&mut self, queue: QueueId, name: &Arc<str>) -> Result<KeyId, StoreError> {
        self.find_or_create_key(queue, name, None)
    }

    fn find_or_create_key(
        &mut self,
        queue: QueueId,
        name: &Arc<str>,
        tenant_keys_max: Option<u32>,
    ) -> Result<KeyId, StoreError> {
        if let Some(key) = self.catalog.key_id(queue, name)? {
            return Ok(key);
        }
        let key = self.catalog.create_key(queue, name, tenant_keys_max)?;
        self.change_record(queue, key, |_| {});
        Ok(key)
    }

    fn queue(&mut self, queue: QueueId) -> Result<&mut QueueEntry, StoreError> {
        self.catalog.queues.get_mut(&queue).ok_or(StoreError::NoQueue)
    }

    fn key(&mut self, queue: QueueId, key: KeyId) -> Option<&mut KeyEntry> {
        self.catalog.queues.get_mut(&queue)?.keys.get_mut(&key)
    }

    fn put_meta(&mut self, key: &[u8], value: &[u8]) {
        self.group.insert(KeyspaceId::Meta, key, value);
    }

    /// Adds appended messages to those that the queue's listener receives after the commit.
    fn notify_listener(&mut self, queue: QueueId, appended: Vec<AppendedMessage>) {
        let Some(listener) = self.queue(queue).ok().and_then(|entry| entry.listener.clone()) else { return };
        match self.group.appended.iter_mut().find(|(of, ..)| *of == queue) {
            Some((_, _, messages)) => messages.extend(appended),
            None => self.group.appended.push((queue, listener, appended)),
        }
    }

    /// Completes a request after the commit.
    fn complete<T: Send + 'static>(&mut self, done: Completion<T>, value: T) {
        self.group.completions.push(Box::new(move |result| done(result.map(|()| value))));
    }
}
