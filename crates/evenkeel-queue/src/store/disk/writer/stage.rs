//! What a request puts into its group.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_policy::weight::Weight;

use super::{CommitGroup, KeyspaceId, WriteOp, Writer};
use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, EnqueueResult, MessageMeta, Payload};
use crate::queue_state::{DeliveryCount, RedeliveryRecord, StoredState};
use crate::rule::KeyRule;
use crate::settings::Durability;
use crate::store::disk::dedup::{self, DedupEntry};
use crate::store::disk::keyspaces::{Catalog, KeyEntry, Keyspaces, PurgeCursor, QueueEntry, SEQ_BLOCK, io};
use crate::store::disk::layout::{self, KeyRecord};
use crate::store::disk::results::{self, ExpiredResult};
use crate::store::{
    AppendListener, Batch, Commit, Completion, MessageChange, Ownership, QueueDescriptor, StoreError,
    StoredResult, cost_of, due_of, expiry_of,
};
use crate::time::UnixMillis;

/// How many results are dropped at once for one that is kept.
const RESULTS_DROPPED_MAX: usize = 1_000;

impl Writer {
    /// Puts a request into a group; what cannot be done is answered at once.
    pub(super) fn stage(&mut self, group: &mut CommitGroup, op: WriteOp) {
        let free = self.free;
        let reserve = self.options.reserve_bytes;
        let mut opened = self.opened.write();
        let (Some(opened), Some(ledger)) = (opened.as_mut(), self.ledger.as_mut()) else {
            drop(op.refuse(&StoreError::Closed));
            return;
        };
        let mut desk = StagingContext { opened, ledger, group };
        match op {
            WriteOp::Append(_, done) if free < reserve => done(Err(StoreError::DiskFull { free, reserve })),
            WriteOp::PutResult(.., done) if free < reserve => {
                done(Err(StoreError::DiskFull { free, reserve }))
            }
            WriteOp::Append(batch, done) => desk.append(batch, done),
            WriteOp::Commit(commit, done) => desk.commit(commit, done),
            WriteOp::Purge(queue, done) => desk.purge(queue, done),
            WriteOp::SetRule(queue, name, rule, done) => desk.set_rule(queue, &name, rule, done),
            WriteOp::PutResult(of, kept, max, done) => desk.put_result(of, &kept, max, done),
            WriteOp::ExpireResults(now, max, done) => desk.expire_results(now, max, done),
            WriteOp::PutQueue(id, body, done) => desk.put_queue(id, *body, done),
            WriteOp::RemoveQueue(queue, done) => desk.remove_queue(queue, done),
            WriteOp::Claim(queues, done) => desk.claim(queues, done),
            WriteOp::Renew(queue, epoch, done) => done(desk.queue(queue).map(|queue| queue.epoch == epoch)),
            WriteOp::Queues(done) => done(Ok(desk.ledger.records())),
            WriteOp::PurgedBelow(queue, done) => done(desk.queue(queue).map(|queue| queue.purged_below)),
            WriteOp::Close(_) => {}
        }
    }
}

/// Where one request is worked on.
struct StagingContext<'a> {
    opened: &'a mut Keyspaces,
    ledger: &'a mut Catalog,
    group: &'a mut CommitGroup,
}

impl StagingContext<'_> {
    fn append(&mut self, batch: Batch, done: Completion<Vec<EnqueueResult>>) {
        let Batch { queue, drafts, sent_at, delay_ms, durability } = batch;
        if let Err(why) = self.queue(queue) {
            return done(Err(why));
        }
        let mut appended = Vec::with_capacity(drafts.len());
        let mut sent = Vec::with_capacity(drafts.len());
        let mut named = HashMap::new();
        for draft in drafts {
            let place = draft.dedup.map(|id| dedup::place(queue, &id));
            match place.map(|place| self.sent_before(queue, sent_at, &place, &named)).transpose() {
                Ok(before) => {
                    if let Some(before) = before.flatten() {
                        sent.push(EnqueueResult::Duplicate(before));
                        continue;
                    }
                }
                Err(why) => return done(Err(why)),
            }
            let not_before = due_of(&draft, delay_ms, sent_at);
            let cost = cost_of(&draft);
            let size = draft.payload.size() as u32;
            let expires_at = expiry_of(&draft, sent_at);
            let key = match self.intern(queue, &draft.key) {
                Ok(key) => key,
                Err(why) => return done(Err(why)),
            };
            self.record_requested_weight(queue, key, draft.weight);
            let header = MessageMeta { seq: self.next_seq(), sent_at, size, cost, from: None, expires_at };
            let id = MessageId { queue, key, seq: header.seq };
            sent.push(EnqueueResult::Stored(id));
            named.extend(place.map(|place| (place, DedupEntry { at: sent_at, id })));
            let name = draft.key;
            let weight = draft.weight;
            let payload = draft.payload;
            appended.push(AppendedMessage { key, name, weight, header, not_before, payload });
        }
        if let Err(why) = self.write_names(sent_at, named) {
            return done(Err(why));
        }
        appended.iter().for_each(|new| self.write_message(queue, new));
        self.group.need(durability);
        self.notify_listener(queue, appended);
        self.answer(done, sent);
    }

    /// Finds a message that was sent under this name lately: in this request, in this group, or before.
    fn sent_before(
        &self,
        queue: QueueId,
        now: UnixMillis,
        place: &[u8; 36],
        named: &HashMap<[u8; 36], DedupEntry>,
    ) -> Result<Option<MessageId>, StoreError> {
        let found = match named.get(place).or_else(|| self.group.named.get(place)) {
            Some(found) => Some(*found),
            None => self.opened.dedup.find(queue, place)?,
        };
        Ok(found.filter(|found| found.is_fresh(now)).map(|found| found.id))
    }

    /// Writes down what messages are called, with the messages.
    fn write_names(
        &mut self,
        now: UnixMillis,
        named: HashMap<[u8; 36], DedupEntry>,
    ) -> Result<(), StoreError> {
        if named.is_empty() {
            return Ok(());
        }
        let keyspace = self.opened.dedup.current(&self.opened.db, now)?;
        for (place, entry) in &named {
            self.group.batch.insert(keyspace, place.as_slice(), dedup::entry_value(entry).as_slice());
        }
        self.group.named.extend(named);
        Ok(())
    }

    fn write_message(&mut self, queue: QueueId, new: &AppendedMessage) {
        let place = layout::message_key(queue, new.key, &new.header);
        let value = layout::message_value(&new.payload);
        let shelf = self.opened.shelves.current();
        shelf.appended += 1;
        shelf.live += 1;
        shelf.bytes += value.len() as u64;
        self.group.bytes += value.len();
        self.group.batch.insert(&shelf.keyspace, place.as_slice(), value);
        if let Some(until) = new.not_before {
            let state = layout::state_value(DeliveryCount::default(), None, StoredState::Delayed { until });
            self.group.put(KeyspaceId::State, place.as_slice(), state);
        }
        if let Some(key) = self.key(queue, new.key) {
            key.live += 1;
        }
    }

    fn commit(&mut self, commit: Commit, done: Completion<()>) {
        let Commit { queue, epoch, changes, durability } = commit;
        match self.queue(queue) {
            Ok(owned) if owned.epoch == epoch => {}
            Ok(_) => return done(Err(StoreError::NotOwner)),
            Err(why) => return done(Err(why)),
        }
        // What may fail comes first, so that all of it happens or nothing.
        let mut payloads = match self.read_moved(queue, &changes) {
            Ok(payloads) => payloads,
            Err(why) => return done(Err(why)),
        };
        for change in changes {
            self.change(queue, change, &mut payloads);
        }
        self.group.need(durability);
        self.answer(done, ());
    }

    /// Reads the messages that are to be moved, and makes their keys known where they go.
    fn read_moved(
        &mut self,
        queue: QueueId,
        changes: &[MessageChange],
    ) -> Result<HashMap<Seq, Payload>, StoreError> {
        let mut payloads = HashMap::new();
        for change in changes {
            let &MessageChange::Moved(key, header, to) = change else { continue };
            self.queue(to)?;
            if let Some(name) = self.key(queue, key).map(|key| key.record.name.clone()) {
                self.intern(to, &name)?;
            }
            let place = layout::message_key(queue, key, &header);
            let found = self.opened.shelves.of(header.seq).keyspace.get(place.as_slice()).map_err(io)?;
            let payload = found.and_then(|value| layout::read_message_value(&value.into()));
            payloads.extend(payload.map(|payload| (header.seq, payload)));
        }
        Ok(payloads)
    }

    fn change(&mut self, queue: QueueId, change: MessageChange, payloads: &mut HashMap<Seq, Payload>) {
        match change {
            MessageChange::Leased(returned, until) => {
                self.note(queue, &returned, StoredState::Leased { until, epoch: returned.epoch });
            }
            MessageChange::Requeued(returned) => match returned.not_before {
                Some(until) => self.note(queue, &returned, StoredState::Delayed { until }),
                None if returned.delivered.attempts == 0 => {
                    let place = layout::message_key(queue, returned.key, &returned.header);
                    self.group.take(KeyspaceId::State, place.as_slice());
                }
                None => self.note(queue, &returned, StoredState::Ready),
            },
            MessageChange::Removed(key, header) => self.remove(queue, key, &header),
            MessageChange::Moved(key, header, to) => {
                // One that is gone is gone.
                if let Some(payload) = payloads.remove(&header.seq) {
                    self.move_message(queue, key, &header, payload, to);
                }
            }
            MessageChange::KeyRemoved(key) => self.forget(queue, key),
        }
    }

    fn note(&mut self, queue: QueueId, returned: &RedeliveryRecord, standing: StoredState) {
        let place = layout::message_key(queue, returned.key, &returned.header);
        let state = layout::state_value(returned.delivered, returned.first_delivered_at, standing);
        self.group.put(KeyspaceId::State, place.as_slice(), state);
    }

    fn remove(&mut self, queue: QueueId, key: KeyId, header: &MessageMeta) {
        // What was purged is swept, and counted then: counted twice, a generation would go with what lives in it.
        if self.queue(queue).is_ok_and(|owner| header.seq < owner.purged_below) {
            return;
        }
        let place = layout::message_key(queue, key, header);
        let shelf = self.opened.shelves.of_mut(header.seq);
        // What is gone is not counted again either.
        if self.ledger.is_reopened && matches!(shelf.keyspace.contains_key(place.as_slice()), Ok(false)) {
            return;
        }
        shelf.live = shelf.live.saturating_sub(1);
        self.group.batch.remove(&shelf.keyspace, place.as_slice());
        self.group.take(KeyspaceId::State, place.as_slice());
        if let Some(key) = self.key(queue, key) {
            key.live = key.live.saturating_sub(1);
        }
    }

    /// Puts a message into another queue, under its key's name.
    fn move_message(
        &mut self,
        queue: QueueId,
        key: KeyId,
        header: &MessageMeta,
        payload: Payload,
        to: QueueId,
    ) {
        let Some(name) = self.key(queue, key).map(|key| key.record.name.clone()) else { return };
        let Ok(target) = self.intern(to, &name) else { return };
        let there = MessageMeta { seq: self.next_seq(), from: Some(header.leaving(queue, key)), ..*header };
        let new =
            AppendedMessage { key: target, name, weight: None, header: there, not_before: None, payload };
        self.remove(queue, key, header);
        self.write_message(to, &new);
        self.notify_listener(to, vec![new]);
    }

    /// Forgets a key, unless it has a message or a rule meanwhile.
    fn forget(&mut self, queue: QueueId, key: KeyId) {
        let Ok(owner) = self.queue(queue) else { return };
        let is_unused = |kept: &KeyEntry| kept.live == 0 && kept.record.rule.is_empty();
        if owner.keys.get(&key).is_some_and(is_unused) {
            if let Some(kept) = owner.keys.remove(&key) {
                owner.names.remove(&kept.record.name);
            }
            self.group.take(KeyspaceId::Keys, &layout::lane(queue, key));
        }
    }

    /// Whatever queue the message is named after: moved, it has outlived it maybe.
    fn put_result(&mut self, of: MessageId, kept: &StoredResult, max: usize, done: Completion<()>) {
        let value = results::value(kept);
        self.group.bytes += value.len();
        self.group.put(KeyspaceId::Results, &results::place(of), value);
        self.group.put(KeyspaceId::ResultsDue, &results::due(kept.expires_at, of), Vec::new());
        if let Some(before) = self.ledger.results.keep(of, kept.expires_at) {
            self.group.take(KeyspaceId::ResultsDue, &results::due(before, of));
        }
        // One that was told to keep fewer gets there step by step: nobody else is answered meanwhile.
        for _ in 0..RESULTS_DROPPED_MAX {
            let Some((at, of)) = self.ledger.results.evict_over_limit(max, of) else { break };
            self.group.take(KeyspaceId::Results, &results::place(of));
            self.group.take(KeyspaceId::ResultsDue, &results::due(at, of));
        }
        self.group.need(Durability::Fsync);
        self.answer(done, ());
    }

    /// Goes on where it ended, so that it does not wade through what it removed before.
    fn expire_results(&mut self, now: UnixMillis, max: usize, done: Completion<usize>) {
        let expired = match self.opened.expired_results(self.ledger.results_swept, now, max) {
            Ok(expired) => expired,
            Err(why) => return done(Err(why)),
        };
        for each in &expired {
            if let Some(of) = each.of() {
                self.ledger.results.forget(each.at(), of);
            }
            let ExpiredResult { due, result } = each;
            self.group.take(KeyspaceId::ResultsDue, due);
            if let Some(place) = result.as_ref().filter(|place| !self.group.has(KeyspaceId::Results, *place))
            {
                self.group.take(KeyspaceId::Results, place);
            }
        }
        // There may be more of the same moment.
        self.ledger.results_swept = expired.last().map_or(now, ExpiredResult::at);
        self.answer(done, expired.len());
    }

    fn purge(&mut self, queue: QueueId, done: Completion<Seq>) {
        let below = Seq(self.ledger.seq);
        match self.queue(queue) {
            Ok(owner) => {
                owner.purged_below = below;
                owner.keys.values_mut().for_each(|key| key.live = 0);
            }
            Err(why) => return done(Err(why)),
        }
        self.ledger.swept.push(PurgeCursor::new(queue, below));
        self.put_meta(&layout::of_queue(b'p', queue), &below.0.to_be_bytes());
        self.group.need(Durability::Fsync);
        self.answer(done, below);
    }

    fn set_rule(&mut self, queue: QueueId, name: &Arc<str>, rule: KeyRule, done: Completion<KeyId>) {
        let key = match self.intern(queue, name) {
            Ok(key) => key,
            Err(why) => return done(Err(why)),
        };
        self.change_record(queue, key, |record| record.rule = rule);
        self.group.need(Durability::Fsync);
        self.answer(done, key);
    }

    /// Remembers the weight that messages wish for their key.
    fn record_requested_weight(&mut self, queue: QueueId, key: KeyId, weight: Option<Weight>) {
        let known = self.key(queue, key).map(|kept| kept.record.wished_weight);
        if weight.is_some() && known != Some(weight) {
            self.change_record(queue, key, |record| record.wished_weight = weight);
        }
    }

    fn change_record(&mut self, queue: QueueId, key: KeyId, change: impl FnOnce(&mut KeyRecord)) {
        let Some(kept) = self.key(queue, key) else { return };
        change(&mut kept.record);
        let bytes = kept.record.encode();
        self.group.put(KeyspaceId::Keys, &layout::lane(queue, key), bytes);
    }

    fn put_queue(&mut self, id: Option<QueueId>, body: QueueDescriptor, done: Completion<QueueId>) {
        let json = match serde_json::to_vec(&body) {
            Ok(json) => json,
            Err(why) => return done(Err(StoreError::Io(why.to_string()))),
        };
        let id = match id {
            Some(id) => match self.queue(id) {
                Ok(queue) => {
                    queue.body = body;
                    id
                }
                Err(why) => return done(Err(why)),
            },
            None => {
                let Some(made) = self.ledger.made.checked_add(1) else {
                    return done(Err(StoreError::Io("no more queues can be made".into())));
                };
                self.ledger.made = made;
                self.ledger.queues.insert(QueueId(made), QueueEntry::new(body));
                self.put_meta(b"made", &u64::from(made).to_be_bytes());
                QueueId(made)
            }
        };
        self.put_meta(&layout::of_queue(b'q', id), &json);
        self.group.need(Durability::Fsync);
        self.answer(done, id);
    }

    fn remove_queue(&mut self, queue: QueueId, done: Completion<()>) {
        if let Some(removed) = self.ledger.queues.remove(&queue) {
            for &key in removed.keys.keys() {
                self.group.take(KeyspaceId::Keys, &layout::lane(queue, key));
            }
            for kind in *b"qep" {
                self.group.take(KeyspaceId::Meta, &layout::of_queue(kind, queue));
            }
            self.ledger.swept.push(PurgeCursor::new(queue, Seq(u64::MAX)));
        }
        self.group.need(Durability::Fsync);
        self.answer(done, ());
    }

    fn claim(&mut self, queues: Vec<(QueueId, AppendListener)>, done: Completion<Vec<Ownership>>) {
        if let Some(why) = queues.iter().find_map(|(queue, _)| self.queue(*queue).err()) {
            return done(Err(why));
        }
        let told_from = Seq(self.ledger.seq);
        let mut claimed = Vec::with_capacity(queues.len());
        for (queue, tail) in queues {
            let Ok(owner) = self.queue(queue) else { continue };
            owner.epoch.0 += 1;
            owner.tail = Some(tail);
            let epoch = owner.epoch;
            claimed.push(Ownership { epoch, told_from });
            self.put_meta(&layout::of_queue(b'e', queue), &epoch.0.to_be_bytes());
        }
        self.group.need(Durability::Fsync);
        self.answer(done, claimed);
    }

    /// Gives a number nobody has had; a block of them is set aside on disk with the first that is used.
    fn next_seq(&mut self) -> Seq {
        let seq = self.ledger.seq;
        self.ledger.seq += 1;
        if self.ledger.seq_end <= seq {
            self.ledger.seq_end = seq + SEQ_BLOCK;
            self.put_meta(b"seq", &(seq + SEQ_BLOCK).to_be_bytes());
        }
        Seq(seq)
    }

    fn intern(&mut self, queue: QueueId, name: &Arc<str>) -> Result<KeyId, StoreError> {
        let owner = self.queue(queue)?;
        if let Some(&key) = owner.names.get(name) {
            return Ok(key);
        }
        if owner.body.settings.keys_max as usize <= owner.keys.len() {
            return Err(StoreError::TooManyKeys);
        }
        let key = KeyId(owner.made);
        owner.made = owner.made.checked_add(1).ok_or(StoreError::TooManyKeys)?;
        let record = KeyRecord { name: name.clone(), rule: KeyRule::default(), wished_weight: None };
        let bytes = record.encode();
        owner.names.insert(name.clone(), key);
        owner.keys.insert(key, KeyEntry { record, live: 0 });
        self.group.put(KeyspaceId::Keys, &layout::lane(queue, key), bytes);
        Ok(key)
    }

    fn queue(&mut self, queue: QueueId) -> Result<&mut QueueEntry, StoreError> {
        self.ledger.queues.get_mut(&queue).ok_or(StoreError::NoQueue)
    }

    fn key(&mut self, queue: QueueId, key: KeyId) -> Option<&mut KeyEntry> {
        self.ledger.queues.get_mut(&queue)?.keys.get_mut(&key)
    }

    fn put_meta(&mut self, key: &[u8], value: &[u8]) {
        self.group.put(KeyspaceId::Meta, key, value);
    }

    /// Has a queue's owner told once the group is on disk.
    fn notify_listener(&mut self, queue: QueueId, appended: Vec<AppendedMessage>) {
        let Some(tail) = self.queue(queue).ok().and_then(|owner| owner.tail.clone()) else { return };
        match self.group.tails.iter_mut().find(|(of, ..)| *of == queue) {
            Some((_, _, told)) => told.extend(appended),
            None => self.group.tails.push((queue, tail, appended)),
        }
    }

    fn answer<T: Send + 'static>(&mut self, done: Completion<T>, value: T) {
        self.group.answers.push(Box::new(move |result| done(result.map(|()| value))));
    }
}

impl QueueEntry {
    fn new(body: QueueDescriptor) -> Self {
        Self {
            body,
            epoch: Epoch(0),
            purged_below: Seq(0),
            names: HashMap::new(),
            keys: HashMap::new(),
            made: 0,
            tail: None,
        }
    }
}
