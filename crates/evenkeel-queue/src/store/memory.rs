//! A store that forgets: for tests, and for the simulator.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use evenkeel_policy::weight::Weight;
use parking_lot::Mutex;

use super::result_index::ResultIndex;
use super::{
    AppendListener, Batch, Commit, Completion, Fetch, MessageChange, Ownership, QueueDescriptor, QueueRecord,
    Store, StoreError, StoredResult,
};
use super::{cost_of, due_of, expiry_of};
use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, DEDUP_WINDOW, DedupId, EnqueueResult, MessageMeta, Payload};
use crate::queue_state::{DeliveryCount, RedeliveryRecord, StoredKey, StoredMessage, StoredState};
use crate::rule::KeyRule;
use crate::time::UnixMillis;

/// Holds queues in memory; everything is answered before the call returns.
#[derive(Default)]
pub struct MemoryStore(Mutex<MemoryState>);

#[derive(Default)]
struct MemoryState {
    queues: BTreeMap<QueueId, MemoryQueue>,
    results: BTreeMap<MessageId, StoredResult>,
    book: ResultIndex,
    made: u32,
    seq: u64,
    is_closed: bool,
}

struct MemoryQueue {
    body: QueueDescriptor,
    epoch: Epoch,
    tail: Option<AppendListener>,
    names: HashMap<Arc<str>, KeyId>,
    keys: BTreeMap<KeyId, MemoryKey>,
    made: u32,
    messages: BTreeMap<(KeyId, Seq), (MessageMeta, Payload)>,
    states: BTreeMap<(KeyId, Seq), StoredMessage>,
    /// What was sent under a name that its sender gave, and when.
    named: HashMap<DedupId, (UnixMillis, MessageId)>,
    /// The same names, the oldest first.
    names_by_age: VecDeque<(UnixMillis, DedupId)>,
}

/// A message on its way to another queue.
struct MovedMessage {
    key: KeyId,
    to: QueueId,
    name: Arc<str>,
    header: MessageMeta,
    payload: Payload,
}

struct MemoryKey {
    name: Arc<str>,
    rule: KeyRule,
    wished_weight: Option<Weight>,
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(
        &self,
        queue: QueueId,
        work: impl FnOnce(&mut MemoryQueue, &mut u64) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut held = self.0.lock();
        if held.is_closed {
            return Err(StoreError::Closed);
        }
        let MemoryState { queues, seq, .. } = &mut *held;
        work(queues.get_mut(&queue).ok_or(StoreError::NoQueue)?, seq)
    }
}

impl Store for MemoryStore {
    fn append(&self, batch: Batch, done: Completion<Vec<EnqueueResult>>) {
        done(self.with(batch.queue, |held, seq| {
            held.check_keys(batch.drafts.iter().map(|draft| &draft.key))?;
            let (sent, appended) = held.append(batch, seq);
            // Told while the lock is held, so that messages are told in order.
            if let Some(tail) = &held.tail {
                tail(appended);
            }
            Ok(sent)
        }));
    }

    fn keys(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredKey>, StoreError> {
        self.with(queue, |held, _| {
            Ok(held.keys.iter().map(|(&key, kept)| held.kept(key, kept, before)).collect())
        })
    }

    fn state(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredMessage>, StoreError> {
        self.with(queue, |held, _| {
            Ok(held.states.values().filter(|state| state.header.seq < before).copied().collect())
        })
    }

    fn fetch(&self, ask: Fetch, done: Completion<Vec<(MessageMeta, Payload)>>) {
        done(self.with(ask.queue, |held, _| {
            let mut bytes = 0;
            let after = (ask.key, Seq(ask.after.0 + 1))..=(ask.key, Seq(u64::MAX));
            let found = held.messages.range(after).map(|(_, message)| message.clone());
            let within = found.take(ask.count_max).take_while(|(header, _)| {
                let fits = bytes < ask.bytes_max;
                bytes += header.size as usize;
                fits
            });
            Ok(within.collect())
        }));
    }

    fn read(&self, queue: QueueId, which: Vec<(KeyId, MessageMeta)>, done: Completion<Vec<(Seq, Payload)>>) {
        done(self.with(queue, |held, _| {
            let found = which.into_iter().filter_map(|(key, header)| {
                Some((header.seq, held.messages.get(&(key, header.seq))?.1.clone()))
            });
            Ok(found.collect())
        }));
    }

    fn commit(&self, commit: Commit, done: Completion<()>) {
        let mut moved = Vec::new();
        let targets: Vec<QueueId> = commit.changes.iter().filter_map(MessageChange::target).collect();
        let missing = targets.into_iter().find_map(|to| self.with(to, |_, _| Ok(())).err());
        let result = self.with(commit.queue, |held, _| {
            if held.epoch != commit.epoch {
                return Err(StoreError::NotOwner);
            }
            if let Some(why) = missing {
                return Err(why);
            }
            for change in commit.changes {
                moved.extend(held.change(change));
            }
            Ok(())
        });
        for MovedMessage { key, to, name, header, payload } in moved {
            let header = MessageMeta { from: Some(header.leaving(commit.queue, key)), ..header };
            // Removed this very moment, it takes what was moved to it along.
            drop(self.with(to, |held, seq| {
                let appended = held.take_in(name, header, payload, seq);
                if let Some(tail) = &held.tail {
                    tail(vec![appended]);
                }
                Ok(())
            }));
        }
        done(result);
    }

    fn purge(&self, queue: QueueId, done: Completion<Seq>) {
        let mut held = self.0.lock();
        let below = Seq(held.seq + 1);
        let purged = match held.queues.get_mut(&queue) {
            Some(purged) => {
                purged.messages.clear();
                purged.states.clear();
                Ok(below)
            }
            None => Err(StoreError::NoQueue),
        };
        // Told while the lock is held, so that it is told before what is appended later.
        done(purged);
    }

    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Completion<KeyId>) {
        done(self.with(queue, |held, _| {
            held.check_keys(core::iter::once(&name))?;
            let key = held.intern(&name);
            held.keys.entry(key).and_modify(|kept| kept.rule = rule);
            Ok(key)
        }));
    }

    fn put_result(&self, of: MessageId, kept: StoredResult, max: usize, done: Completion<()>) {
        let mut held = self.0.lock();
        let until = kept.expires_at;
        held.results.insert(of, kept);
        held.book.keep(of, until);
        while let Some((_, first)) = held.book.evict_over_limit(max, of) {
            held.results.remove(&first);
        }
        drop(held);
        done(Ok(()));
    }

    fn result(&self, of: MessageId, done: Completion<Option<StoredResult>>) {
        let kept = self.0.lock().results.get(&of).cloned();
        done(Ok(kept));
    }

    fn expire_results(&self, now: UnixMillis, max: usize, done: Completion<usize>) {
        let mut held = self.0.lock();
        let expired = held.results.iter().filter(|(_, kept)| kept.expires_at <= now);
        let expired: Vec<MessageId> = expired.map(|(of, _)| *of).take(max).collect();
        for of in &expired {
            if let Some(kept) = held.results.remove(of) {
                held.book.forget(kept.expires_at, *of);
            }
        }
        drop(held);
        done(Ok(expired.len()));
    }

    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError> {
        let held = self.0.lock();
        Ok(held.queues.iter().map(|(&id, held)| QueueRecord { id, body: held.body.clone() }).collect())
    }

    fn put_queue(&self, id: Option<QueueId>, body: QueueDescriptor, done: Completion<QueueId>) {
        let put = match id {
            Some(id) => self.with(id, |held, _| {
                held.body = body;
                Ok(id)
            }),
            None => {
                let mut held = self.0.lock();
                held.made += 1;
                let id = QueueId(held.made);
                held.queues.insert(id, MemoryQueue::new(body));
                Ok(id)
            }
        };
        done(put);
    }

    fn remove_queue(&self, queue: QueueId, done: Completion<()>) {
        self.0.lock().queues.remove(&queue);
        done(Ok(()));
    }

    fn take_ownership(&self, queues: Vec<(QueueId, AppendListener)>) -> Result<Vec<Ownership>, StoreError> {
        let mut held = self.0.lock();
        if held.is_closed {
            return Err(StoreError::Closed);
        }
        if queues.iter().any(|(queue, _)| !held.queues.contains_key(queue)) {
            return Err(StoreError::NoQueue);
        }
        let told_from = Seq(held.seq + 1);
        let claimed = queues.into_iter().filter_map(|(queue, tail)| {
            let owned = held.queues.get_mut(&queue)?;
            owned.epoch.0 += 1;
            owned.tail = Some(tail);
            Some(Ownership { epoch: owned.epoch, told_from })
        });
        Ok(claimed.collect())
    }

    fn renew(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError> {
        self.with(queue, |held, _| Ok(held.epoch == epoch))
    }

    fn release(&self, _queue: QueueId, _epoch: Epoch) {}

    fn secret(&self) -> [u8; 32] {
        [7; 32]
    }

    fn close(&self) {
        self.0.lock().is_closed = true;
    }
}

impl MemoryQueue {
    fn new(body: QueueDescriptor) -> Self {
        Self {
            body,
            epoch: Epoch(0),
            tail: None,
            names: HashMap::new(),
            keys: BTreeMap::new(),
            made: 0,
            messages: BTreeMap::new(),
            states: BTreeMap::new(),
            named: HashMap::new(),
            names_by_age: VecDeque::new(),
        }
    }

    /// Refuses names that are one key too many.
    fn check_keys<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>) -> Result<(), StoreError> {
        let new: HashSet<&Arc<str>> = names.filter(|name| !self.names.contains_key(*name)).collect();
        let fits = new.is_empty() || self.keys.len() + new.len() <= self.body.settings.keys_max as usize;
        if fits { Ok(()) } else { Err(StoreError::TooManyKeys) }
    }

    fn append(&mut self, batch: Batch, seq: &mut u64) -> (Vec<EnqueueResult>, Vec<AppendedMessage>) {
        let queue = batch.queue;
        let now = batch.sent_at;
        self.forget_names(now);
        let mut sent = Vec::new();
        let mut appended = Vec::new();
        for draft in batch.drafts {
            if let Some((_, id)) = draft.dedup.and_then(|name| self.named.get(&name)) {
                sent.push(EnqueueResult::Duplicate(*id));
                continue;
            }
            *seq += 1;
            let not_before = due_of(&draft, batch.delay_ms, batch.sent_at);
            let header = MessageMeta {
                seq: Seq(*seq),
                sent_at: batch.sent_at,
                size: draft.payload.size() as u32,
                cost: cost_of(&draft),
                from: None,
                expires_at: expiry_of(&draft, batch.sent_at),
            };
            let key = self.intern(&draft.key);
            let id = MessageId { queue, key, seq: header.seq };
            sent.push(EnqueueResult::Stored(id));
            if let Some(name) = draft.dedup {
                self.named.insert(name, (now, id));
                self.names_by_age.push_back((now, name));
            }
            if let Some(kept) = self.keys.get_mut(&key).filter(|_| draft.weight.is_some()) {
                kept.wished_weight = draft.weight;
            }
            self.messages.insert((key, header.seq), (header, draft.payload.clone()));
            if let Some(until) = not_before {
                let standing = StoredState::Delayed { until };
                let delivered = DeliveryCount::default();
                let state = StoredMessage { key, header, delivered, first_delivered_at: None, standing };
                self.states.insert((key, header.seq), state);
            }
            appended.push(AppendedMessage {
                key,
                name: draft.key,
                weight: draft.weight,
                header,
                not_before,
                payload: draft.payload,
            });
        }
        (sent, appended)
    }

    /// Forgets names that count no longer.
    fn forget_names(&mut self, now: UnixMillis) {
        let is_old = |(at, _): &mut (UnixMillis, DedupId)| DEDUP_WINDOW <= now.since(*at);
        while let Some((_, name)) = self.names_by_age.pop_front_if(is_old) {
            self.named.remove(&name);
        }
    }

    /// Takes in a message of another queue.
    fn take_in(
        &mut self,
        name: Arc<str>,
        header: MessageMeta,
        payload: Payload,
        seq: &mut u64,
    ) -> AppendedMessage {
        *seq += 1;
        let key = self.intern(&name);
        let header = MessageMeta { seq: Seq(*seq), ..header };
        self.messages.insert((key, header.seq), (header, payload.clone()));
        AppendedMessage { key, name, weight: None, header, not_before: None, payload }
    }

    fn intern(&mut self, name: &Arc<str>) -> KeyId {
        if let Some(&key) = self.names.get(name) {
            return key;
        }
        let key = KeyId(self.made);
        self.made += 1;
        self.names.insert(name.clone(), key);
        self.keys
            .insert(key, MemoryKey { name: name.clone(), rule: KeyRule::default(), wished_weight: None });
        key
    }

    fn change(&mut self, change: MessageChange) -> Option<MovedMessage> {
        match change {
            MessageChange::Leased(returned, until) => {
                self.note(returned, StoredState::Leased { until, epoch: returned.epoch });
            }
            MessageChange::Requeued(returned) => {
                let standing =
                    returned.not_before.map_or(StoredState::Ready, |until| StoredState::Delayed { until });
                self.note(returned, standing);
            }
            MessageChange::Removed(key, MessageMeta { seq, .. }) => {
                self.messages.remove(&(key, seq));
                self.states.remove(&(key, seq));
            }
            MessageChange::Moved(key, MessageMeta { seq, .. }, to) => {
                self.states.remove(&(key, seq));
                let (header, payload) = self.messages.remove(&(key, seq))?;
                let name = self.keys.get(&key)?.name.clone();
                return Some(MovedMessage { key, to, name, header, payload });
            }
            MessageChange::KeyRemoved(key) => {
                let is_used = self.messages.range((key, Seq(0))..=(key, Seq(u64::MAX))).next().is_some();
                let has_rule = self.keys.get(&key).is_some_and(|kept| !kept.rule.is_empty());
                if let Some(kept) = (!is_used && !has_rule).then(|| self.keys.remove(&key)).flatten() {
                    self.names.remove(&kept.name);
                }
            }
        }
        None
    }

    fn note(&mut self, returned: RedeliveryRecord, standing: StoredState) {
        let RedeliveryRecord { key, header, delivered, first_delivered_at, .. } = returned;
        // What was removed meanwhile has no state.
        if self.messages.contains_key(&(key, header.seq)) {
            let state = StoredMessage { key, header, delivered, first_delivered_at, standing };
            self.states.insert((key, header.seq), state);
        }
    }

    fn kept(&self, key: KeyId, kept: &MemoryKey, before: Seq) -> StoredKey {
        let mut messages = self.messages.range((key, Seq(0))..(key, before)).peekable();
        let expiring = messages.clone().map(|(_, (header, _))| *header);
        let expiring = expiring.filter(|header| header.expires_at.is_some()).collect();
        let first = messages.peek().map_or(Seq(0), |((_, seq), _)| *seq);
        let (last, count, bytes) = messages.fold((first, 0, 0), |(_, count, bytes), (_, (header, _))| {
            (header.seq, count + 1, bytes + u64::from(header.size))
        });
        StoredKey {
            key,
            name: kept.name.clone(),
            rule: kept.rule,
            wished_weight: kept.wished_weight,
            first,
            last,
            count,
            bytes,
            expiring,
        }
    }
}
