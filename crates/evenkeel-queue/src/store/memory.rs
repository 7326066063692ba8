//! A store in memory, for tests and the simulator.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use evenkeel_policy::weight::Weight;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};

use super::result_index::ResultIndex;
use super::{
    AppendBatch, AppendListener, Commit, Completion, Fetch, MessageChange, Ownership, QueueDescriptor,
    QueueRecord, Store, StoreError, StoredResult,
};
use super::{delivery_cost, expires_at, visible_at};
use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, DEDUP_WINDOW, DedupId, EnqueueResult, MessageMeta, Payload};
use crate::queue_state::{DeliveryCount, RedeliveryRecord, StoredKey, StoredMessage, StoredState};
use crate::rule::KeyRule;
use crate::time::UnixMillis;

/// A store in memory; every operation completes before the call returns.
pub struct MemoryStore {
    state: Mutex<MemoryState>,
    secret: [u8; 32],
}

#[derive(Default)]
struct MemoryState {
    queues: BTreeMap<QueueId, MemoryQueue>,
    results: BTreeMap<MessageId, StoredResult>,
    result_index: ResultIndex,
    last_queue_id: u32,
    seq: u64,
    is_closed: bool,
}

struct MemoryQueue {
    descriptor: QueueDescriptor,
    epoch: Epoch,
    listener: Option<AppendListener>,
    names: HashMap<Arc<str>, KeyId>,
    keys: BTreeMap<KeyId, MemoryKey>,
    next_key_id: u32,
    messages: BTreeMap<(KeyId, Seq), (MessageMeta, Payload)>,
    states: BTreeMap<(KeyId, Seq), StoredMessage>,
    /// Sent messages by deduplication ID.
    dedup: HashMap<DedupId, (UnixMillis, MessageId)>,
    /// The same deduplication IDs, the oldest first.
    dedup_by_age: VecDeque<(UnixMillis, DedupId)>,
}

/// A message taken out of its queue, to be appended to the queue `to`.
struct MovedMessage {
    key: KeyId,
    to: QueueId,
    name: Arc<str>,
    meta: MessageMeta,
    payload: Payload,
}

struct MemoryKey {
    name: Arc<str>,
    rule: KeyRule,
    requested_weight: Option<Weight>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Creates an empty store with a random secret.
    pub fn new() -> Self {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).expect("the system has a random number generator");
        Self { state: Mutex::default(), secret }
    }

    fn with_queue<T>(
        &self,
        queue: QueueId,
        work: impl FnOnce(&mut MemoryQueue, &mut u64) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(StoreError::Closed);
        }
        let MemoryState { queues, seq, .. } = &mut *state;
        work(queues.get_mut(&queue).ok_or(StoreError::NoQueue)?, seq)
    }
}

impl Store for MemoryStore {
    fn append(&self, batch: AppendBatch, done: Completion<Vec<EnqueueResult>>) {
        done(self.with_queue(batch.queue, |queue, seq| {
            queue.check_keys(batch.messages.iter().map(|message| &message.key))?;
            let (sent, appended) = queue.append(batch, seq);
            // Called under the lock, so that the listener receives messages in order.
            if let Some(listener) = &queue.listener {
                listener(appended);
            }
            Ok(sent)
        }));
    }

    fn read_keys(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredKey>, StoreError> {
        self.with_queue(queue, |queue, _| {
            Ok(queue.keys.iter().map(|(&key, entry)| queue.stored_key(key, entry, before)).collect())
        })
    }

    fn read_delivery_states(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredMessage>, StoreError> {
        self.with_queue(queue, |queue, _| {
            Ok(queue.states.values().filter(|state| state.meta.seq < before).copied().collect())
        })
    }

    fn read_next(&self, fetch: Fetch, done: Completion<Vec<(MessageMeta, Payload)>>) {
        done(self.with_queue(fetch.queue, |queue, _| {
            let mut bytes = 0;
            let after = (fetch.key, Seq(fetch.after.0 + 1))..=(fetch.key, Seq(u64::MAX));
            let found = queue.messages.range(after).map(|(_, message)| message.clone());
            let limited = found.take(fetch.messages_max).take_while(|(meta, _)| {
                let fits = bytes < fetch.bytes_max;
                bytes += meta.size as usize;
                fits
            });
            Ok(limited.collect())
        }));
    }

    fn read_payloads(
        &self,
        queue: QueueId,
        messages: Vec<(KeyId, MessageMeta)>,
        done: Completion<Vec<(Seq, Payload)>>,
    ) {
        done(self.with_queue(queue, |queue, _| {
            let found = messages
                .into_iter()
                .filter_map(|(key, meta)| Some((meta.seq, queue.messages.get(&(key, meta.seq))?.1.clone())));
            Ok(found.collect())
        }));
    }

    fn commit(&self, commit: Commit, done: Completion<()>) {
        let mut moved = Vec::new();
        let destinations: Vec<QueueId> =
            commit.changes.iter().filter_map(MessageChange::destination).collect();
        let missing = destinations.into_iter().find_map(|to| self.with_queue(to, |_, _| Ok(())).err());
        let result = self.with_queue(commit.queue, |queue, _| {
            if queue.epoch != commit.epoch {
                return Err(StoreError::NotOwner);
            }
            if let Some(error) = missing {
                return Err(error);
            }
            for change in commit.changes {
                moved.extend(queue.change(change));
            }
            Ok(())
        });
        for MovedMessage { key, to, name, meta, payload } in moved {
            let meta = MessageMeta { from: Some(meta.moved_from(commit.queue, key)), ..meta };
            // If the destination was removed meanwhile, the message is lost.
            drop(self.with_queue(to, |queue, seq| {
                let appended = queue.append_moved(name, meta, payload, seq);
                if let Some(listener) = &queue.listener {
                    listener(vec![appended]);
                }
                Ok(())
            }));
        }
        done(result);
    }

    fn purge(&self, queue: QueueId, done: Completion<()>) {
        let mut state = self.state.lock();
        let purged = match state.queues.get_mut(&queue) {
            Some(purged) => {
                purged.messages.clear();
                purged.states.clear();
                purged.dedup.clear();
                purged.dedup_by_age.clear();
                Ok(())
            }
            None => Err(StoreError::NoQueue),
        };
        // Called under the lock, so that later appends reach the listener after the purge completes.
        done(purged);
    }

    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Completion<KeyId>) {
        done(self.with_queue(queue, |queue, _| {
            queue.check_keys(core::iter::once(&name))?;
            let key = queue.intern(&name);
            queue.keys.entry(key).and_modify(|entry| entry.rule = rule);
            Ok(key)
        }));
    }

    fn put_result(&self, id: MessageId, result: StoredResult, results_max: usize, done: Completion<()>) {
        let mut state = self.state.lock();
        let expires_at = result.expires_at;
        state.results.insert(id, result);
        state.result_index.insert(id, expires_at);
        while let Some((_, evicted)) = state.result_index.evict_over_limit(results_max, id) {
            state.results.remove(&evicted);
        }
        drop(state);
        done(Ok(()));
    }

    fn result(&self, id: MessageId, done: Completion<Option<StoredResult>>) {
        let result = self.state.lock().results.get(&id).cloned();
        done(Ok(result));
    }

    fn expire_results(&self, now: UnixMillis, max: usize, done: Completion<usize>) {
        let mut state = self.state.lock();
        let expired = state.results.iter().filter(|(_, result)| result.expires_at <= now);
        let expired: Vec<MessageId> = expired.map(|(id, _)| *id).take(max).collect();
        for id in &expired {
            if let Some(result) = state.results.remove(id) {
                state.result_index.remove(result.expires_at, *id);
            }
        }
        drop(state);
        done(Ok(expired.len()));
    }

    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError> {
        let state = self.state.lock();
        let records = state.queues.iter();
        Ok(records.map(|(&id, queue)| QueueRecord { id, descriptor: queue.descriptor.clone() }).collect())
    }

    fn put_queue(&self, id: Option<QueueId>, descriptor: QueueDescriptor, done: Completion<QueueId>) {
        let put = match id {
            Some(id) => self.with_queue(id, |queue, _| {
                queue.descriptor = descriptor;
                Ok(id)
            }),
            None => {
                let mut state = self.state.lock();
                state.last_queue_id += 1;
                let id = QueueId(state.last_queue_id);
                state.queues.insert(id, MemoryQueue::new(descriptor));
                Ok(id)
            }
        };
        done(put);
    }

    fn remove_queue(&self, queue: QueueId, done: Completion<()>) {
        self.state.lock().queues.remove(&queue);
        done(Ok(()));
    }

    fn take_ownership(&self, queues: Vec<(QueueId, AppendListener)>) -> Result<Vec<Ownership>, StoreError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(StoreError::Closed);
        }
        if queues.iter().any(|(queue, _)| !state.queues.contains_key(queue)) {
            return Err(StoreError::NoQueue);
        }
        let listen_from = Seq(state.seq + 1);
        let owned = queues.into_iter().filter_map(|(queue, listener)| {
            let queue = state.queues.get_mut(&queue)?;
            queue.epoch.0 += 1;
            queue.listener = Some(listener);
            Some(Ownership { epoch: queue.epoch, listen_from })
        });
        Ok(owned.collect())
    }

    fn is_owner(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError> {
        self.with_queue(queue, |queue, _| Ok(queue.epoch == epoch))
    }

    fn release_ownership(&self, _queue: QueueId, _epoch: Epoch) {}

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn plain_ids_before(&self) -> Seq {
        Seq(0)
    }

    fn close(&self) {
        self.state.lock().is_closed = true;
    }
}

impl MemoryQueue {
    fn new(descriptor: QueueDescriptor) -> Self {
        Self {
            descriptor,
            epoch: Epoch(0),
            listener: None,
            names: HashMap::new(),
            keys: BTreeMap::new(),
            next_key_id: 0,
            messages: BTreeMap::new(),
            states: BTreeMap::new(),
            dedup: HashMap::new(),
            dedup_by_age: VecDeque::new(),
        }
    }

    /// Rejects names that would exceed the maximum number of keys.
    fn check_keys<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>) -> Result<(), StoreError> {
        let new: HashSet<&Arc<str>> = names.filter(|name| !self.names.contains_key(*name)).collect();
        let fits =
            new.is_empty() || self.keys.len() + new.len() <= self.descriptor.settings.keys_max as usize;
        if fits { Ok(()) } else { Err(StoreError::TooManyKeys) }
    }

    fn append(&mut self, batch: AppendBatch, seq: &mut u64) -> (Vec<EnqueueResult>, Vec<AppendedMessage>) {
        let queue = batch.queue;
        let now = batch.sent_at;
        self.remove_old_dedup(now);
        let mut sent = Vec::new();
        let mut appended = Vec::new();
        for message in batch.messages {
            if let Some((_, id)) = message.dedup.and_then(|id| self.dedup.get(&id)) {
                sent.push(EnqueueResult::Duplicate(*id));
                continue;
            }
            *seq += 1;
            let not_before = visible_at(&message, batch.delay_ms, batch.sent_at);
            let meta = MessageMeta {
                seq: Seq(*seq),
                sent_at: batch.sent_at,
                size: message.payload.size() as u32,
                cost: delivery_cost(&message),
                from: None,
                expires_at: expires_at(&message, batch.sent_at),
            };
            let key = self.intern(&message.key);
            let id = MessageId { queue, key, seq: meta.seq };
            sent.push(EnqueueResult::Stored(id));
            if let Some(dedup) = message.dedup {
                self.dedup.insert(dedup, (now, id));
                self.dedup_by_age.push_back((now, dedup));
            }
            if let Some(entry) = self.keys.get_mut(&key).filter(|_| message.weight.is_some()) {
                entry.requested_weight = message.weight;
            }
            self.messages.insert((key, meta.seq), (meta, message.payload.clone()));
            if let Some(until) = not_before {
                let state = StoredState::Delayed { until };
                let deliveries = DeliveryCount::default();
                let stored = StoredMessage { key, meta, deliveries, first_delivered_at: None, state };
                self.states.insert((key, meta.seq), stored);
            }
            appended.push(AppendedMessage {
                key,
                name: message.key,
                weight: message.weight,
                meta,
                not_before,
                payload: message.payload,
            });
        }
        (sent, appended)
    }

    /// Removes deduplication IDs that are older than the window.
    fn remove_old_dedup(&mut self, now: UnixMillis) {
        let is_old = |(at, _): &mut (UnixMillis, DedupId)| DEDUP_WINDOW <= now.since(*at);
        while let Some((_, id)) = self.dedup_by_age.pop_front_if(is_old) {
            self.dedup.remove(&id);
        }
    }

    /// Appends a message of another queue.
    fn append_moved(
        &mut self,
        name: Arc<str>,
        meta: MessageMeta,
        payload: Payload,
        seq: &mut u64,
    ) -> AppendedMessage {
        *seq += 1;
        let key = self.intern(&name);
        let meta = MessageMeta { seq: Seq(*seq), ..meta };
        self.messages.insert((key, meta.seq), (meta, payload.clone()));
        AppendedMessage { key, name, weight: None, meta, not_before: None, payload }
    }

    fn intern(&mut self, name: &Arc<str>) -> KeyId {
        if let Some(&key) = self.names.get(name) {
            return key;
        }
        let key = KeyId(self.next_key_id);
        self.next_key_id += 1;
        self.names.insert(name.clone(), key);
        self.keys
            .insert(key, MemoryKey { name: name.clone(), rule: KeyRule::default(), requested_weight: None });
        key
    }

    fn change(&mut self, change: MessageChange) -> Option<MovedMessage> {
        match change {
            MessageChange::Leased(record, until) => {
                self.put_state(record, StoredState::Leased { until, epoch: record.epoch });
            }
            MessageChange::Requeued(record) => {
                let state =
                    record.not_before.map_or(StoredState::Ready, |until| StoredState::Delayed { until });
                self.put_state(record, state);
            }
            MessageChange::Removed(key, MessageMeta { seq, .. }) => {
                self.messages.remove(&(key, seq));
                self.states.remove(&(key, seq));
            }
            MessageChange::Moved(key, MessageMeta { seq, .. }, to) => {
                self.states.remove(&(key, seq));
                let (meta, payload) = self.messages.remove(&(key, seq))?;
                let name = self.keys.get(&key)?.name.clone();
                return Some(MovedMessage { key, to, name, meta, payload });
            }
            MessageChange::KeyRemoved(key) => {
                let is_used = self.messages.range((key, Seq(0))..=(key, Seq(u64::MAX))).next().is_some();
                let has_rule = self.keys.get(&key).is_some_and(|entry| !entry.rule.is_empty());
                if let Some(entry) = (!is_used && !has_rule).then(|| self.keys.remove(&key)).flatten() {
                    self.names.remove(&entry.name);
                }
            }
        }
        None
    }

    fn put_state(&mut self, record: RedeliveryRecord, state: StoredState) {
        let RedeliveryRecord { key, meta, deliveries, first_delivered_at, .. } = record;
        // The message may have been removed meanwhile.
        if self.messages.contains_key(&(key, meta.seq)) {
            let stored = StoredMessage { key, meta, deliveries, first_delivered_at, state };
            self.states.insert((key, meta.seq), stored);
        }
    }

    fn stored_key(&self, key: KeyId, entry: &MemoryKey, before: Seq) -> StoredKey {
        let mut messages = self.messages.range((key, Seq(0))..(key, before)).peekable();
        let expiring = messages.clone().map(|(_, (meta, _))| *meta);
        let expiring = expiring.filter(|meta| meta.expires_at.is_some()).collect();
        let first = messages.peek().map_or(Seq(0), |((_, seq), _)| *seq);
        let (last, count, bytes) = messages.fold((first, 0, 0), |(_, count, bytes), (_, (meta, _))| {
            (meta.seq, count + 1, bytes + u64::from(meta.size))
        });
        StoredKey {
            key,
            name: entry.name.clone(),
            rule: entry.rule,
            requested_weight: entry.requested_weight,
            first,
            last,
            count,
            bytes,
            expiring,
        }
    }
}
