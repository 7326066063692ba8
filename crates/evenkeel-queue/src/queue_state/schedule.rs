//! Choice of the next key: deficit round robin (DRR) over the keys that have a ready message and are not throttled.
//!
//! Invariants: a key without ready messages is not scheduled, and a throttled key is parked; `pending` and
//! `payload_bytes` are the sums over all keys; a tenant's limiter counts the outstanding messages of its keys; every
//! key without any message is listed in `idle`.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{KeyStatus, TenantDrr, WeightedKey};
use evenkeel_policy::id::Key;
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::weight::Weight;

use super::cost::ServiceTime;
use super::key_queue::{KeyQueue, MessageEntry, PAYLOAD_BYTES_MAX};
use super::key_table::{KeyTable, is_tenant_name, tenant_name};
use super::limiter::Limiters;
use super::{LeasedMessage, PrefetchRequest};
use crate::id::{KeyId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::settings::{DeliveryOrder, KEYS_MAX, QueueSettings};
use crate::time::UnixMillis;

/// A key keeps its turn this long while its prefetch is under way; then others are served until the prefetch ends.
const PREFETCH_WAIT_MAX: Duration = Duration::from_millis(5);
/// A failed prefetch is repeated after this time.
const PREFETCH_RETRY: Duration = Duration::from_secs(1);
/// A key without messages is removed after this time.
const IDLE_KEY: Duration = Duration::from_secs(60);
/// Maximum number of keys removed per call.
const FORGET_MAX: usize = 1_024;

/// Decides which key is served next.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) drr: TenantDrr,
    pub(super) keys: KeyTable,
    pub(super) order: DeliveryOrder,
    /// Counts receives, so that one receive may lease several messages of a FIFO key.
    pub(super) receives: u64,
    /// Rules of keys and tenants, by name.
    pub(super) rules: HashMap<Arc<str>, KeyRule>,
    pub(super) limiters: Limiters,
    /// Ready messages of all keys.
    pub(super) pending: u64,
    /// Recent service time of all keys, for cost by time.
    pub(super) service_time: ServiceTime,
    prefetch: Prefetch,
    /// Keys without messages, the longest idle first.
    idle: VecDeque<(UnixMillis, Key)>,
}

/// Reads from the store that fill the keys' windows.
#[derive(Debug, Default)]
struct Prefetch {
    requests: VecDeque<PrefetchRequest>,
    failed: Vec<Key>,
    /// Keys that keep their turn until the given time; some may have got messages meanwhile.
    waits: VecDeque<(UnixMillis, Key)>,
    /// Payloads in memory.
    payload_bytes: usize,
}

impl Schedule {
    pub(super) fn new(settings: &QueueSettings, secret: (u64, u64)) -> Result<Self, SettingOutOfRange> {
        Ok(Self {
            // The store enforces the queue's own limit of keys, which may change while messages wait.
            drr: TenantDrr::new(Cost(settings.quantum), KEYS_MAX)?,
            keys: KeyTable::new(secret),
            order: settings.order,
            // Starts at 1, so that the 0 of recovered keys matches no receive.
            receives: 1,
            rules: HashMap::new(),
            limiters: Limiters::default(),
            pending: 0,
            service_time: ServiceTime::default(),
            prefetch: Prefetch::default(),
            idle: VecDeque::new(),
        })
    }

    pub(super) fn key(&self, index: Key) -> &KeyQueue {
        self.keys.get(index).expect("an index in use belongs to a known key")
    }

    pub(super) fn key_mut(&mut self, index: Key) -> &mut KeyQueue {
        self.keys.get_mut(index).expect("an index in use belongs to a known key")
    }

    /// Returns the index of a key; creates the key if it is unknown.
    pub(super) fn intern(&mut self, key: KeyId, name: &Arc<str>) -> Result<Key, Rejection> {
        if let Some(index) = self.keys.find(key) {
            return Ok(index);
        }
        let tenant = self.keys.add_tenant_key(name)?;
        let weight = self.rule(name).weight.unwrap_or_default();
        let mut queue = KeyQueue::new(key, name.clone(), tenant, weight);
        queue.limiters = self.limiters.of_key(name);
        queue.fifo = (self.order == DeliveryOrder::Fifo).then(Box::default);
        Ok(self.keys.insert(queue))
    }

    /// Returns the rule of a key or tenant.
    pub(super) fn rule(&self, name: &str) -> KeyRule {
        self.rules.get(name).copied().unwrap_or_default()
    }

    /// Sets the weight of a key, or of a tenant and its key of the same name.
    pub(super) fn set_weight(&mut self, key: KeyId, name: &str, weight: Weight) {
        if let Some(tenant) = self.keys.tenant(name) {
            self.drr.update_tenant_weight(tenant, weight);
        }
        if let Some(index) = self.keys.find(key) {
            self.set_key_weight(index, weight);
        }
    }

    /// Sets a key's weight: among the tenants if its name is the tenant's, else among the tenant's keys.
    pub(super) fn set_key_weight(&mut self, index: Key, weight: Weight) {
        let queue = self.key_mut(index);
        queue.weight = weight;
        let tenant = queue.tenant;
        if is_tenant_name(&queue.name) {
            self.drr.update_tenant_weight(tenant, weight);
        } else {
            self.drr.update_weight(index, weight);
        }
    }

    /// Adds a message at the end of its key, with its payload if memory allows.
    pub(super) fn append(&mut self, index: Key, mut entry: MessageEntry, payload: Payload) {
        self.pending += 1;
        if self.prefetch.payload_bytes + payload.size() <= PAYLOAD_BYTES_MAX {
            self.prefetch.payload_bytes += payload.size();
            entry.payload = Some(payload);
        }
        let window = self.key(index).window_len(self.keys.len());
        if let Some(on_disk) = self.key_mut(index).append(entry, window) {
            self.prefetch.payload_bytes -= on_disk.payload.as_ref().map_or(0, Payload::size);
        }
    }

    /// Removes the next message of a key.
    pub(super) fn pop(&mut self, index: Key) -> Option<(MessageEntry, Option<Payload>)> {
        let entry = self.key_mut(index).pop()?;
        Some(self.on_removed(entry))
    }

    /// Removes a ready message from anywhere in its key.
    pub(super) fn take(&mut self, index: Key, meta: MessageMeta) -> Option<MessageEntry> {
        let entry = self.key_mut(index).take_by_seq(meta)?;
        Some(self.on_removed(entry).0)
    }

    /// Removes a message that waits for its redelivery.
    pub(super) fn take_redelivery(&mut self, index: Key, seq: Seq) -> Option<MessageEntry> {
        let entry = self.key_mut(index).take_redelivery(seq)?;
        Some(self.on_removed(entry).0)
    }

    /// Updates the totals after a ready message was removed, and separates its payload.
    fn on_removed(&mut self, mut entry: MessageEntry) -> (MessageEntry, Option<Payload>) {
        self.pending -= 1;
        let payload = entry.payload.take();
        self.prefetch.payload_bytes -= payload.as_ref().map_or(0, Payload::size);
        (entry, payload)
    }

    /// Makes a message ready again, before the messages of its key that were never delivered.
    pub(super) fn requeue(&mut self, index: Key, entry: MessageEntry) {
        self.pending += 1;
        self.key_mut(index).requeue(entry);
    }

    pub(super) fn key_status(&self, index: Key) -> KeyStatus {
        self.drr.key_status(index)
    }

    /// Returns the key whose turn it is.
    pub(super) fn next_key(&self) -> Option<&KeyQueue> {
        self.keys.get(self.drr.next_key()?.key)
    }

    /// Returns the key whose message a receive leases next. On a FIFO queue that is the key of the `last` one while it has
    /// more, so that the messages of a group are delivered together; its debt then lets the other keys go first.
    pub(super) fn next_to_lease(&self, last: Option<Key>, now: UnixMillis) -> Option<Key> {
        let has_more = |index: &Key| self.key(*index).is_ready() && self.throttle(*index, now).is_none();
        let same = last.filter(|_| self.order == DeliveryOrder::Fifo).filter(has_more);
        same.or_else(|| Some(self.drr.next_key()?.key))
    }

    /// Updates the key's scheduling state: active, parked (throttled or prefetching) or idle.
    pub(super) fn update(&mut self, index: Key, now: UnixMillis) {
        self.request_prefetch(index, now);
        let queue = self.key(index);
        let keeps_turn = queue.prefetch_wait_since().is_some_and(|since| now < since + PREFETCH_WAIT_MAX);
        let is_tenant = is_tenant_name(&queue.name);
        let tenant_weight = if is_tenant {
            queue.weight
        } else {
            self.rule(tenant_name(&queue.name)).weight.unwrap_or_default()
        };
        let weighted = WeightedKey {
            tenant: queue.tenant,
            tenant_weight,
            key: index,
            weight: if is_tenant { Weight::ONE } else { queue.weight },
        };
        let is_ready = queue.is_ready();
        let has_backlog = queue.on_disk_len() > 0;
        let tenant_limiter = queue.limiters.tenant;
        if tenant_limiter.is_some() {
            self.update_tenant(weighted.tenant, tenant_limiter, now);
        }
        let scheduled = if (is_ready || has_backlog) && self.is_throttled(index, now) {
            self.drr.park(index);
            self.drr.add_parked(weighted)
        } else if is_ready || keeps_turn {
            self.drr.wake(index);
            self.drr.add_key(weighted)
        } else if has_backlog {
            self.drr.park(index);
            self.drr.add_parked(weighted)
        } else {
            self.drr.remove_key(index);
            Ok(())
        };
        self.list_idle(index, now);
        debug_assert!(scheduled.is_ok(), "the scheduler has room for every known key: {scheduled:?}");
    }

    /// Updates a key after one of its messages stopped being outstanding.
    pub(super) fn recheck(&mut self, index: Key, now: UnixMillis) {
        let queue = self.key(index);
        if queue.limiters.is_none() && queue.fifo.is_none() {
            self.list_idle(index, now);
        } else {
            self.update(index, now);
        }
    }

    fn request_prefetch(&mut self, index: Key, now: UnixMillis) {
        let keys = self.keys.len();
        let queue = self.keys.get_mut(index).expect("an index in use belongs to a known key");
        if let Some(count) = queue.prefetch_len(queue.window_len(keys)) {
            let request = PrefetchRequest { key: queue.key, after: queue.cursor(), count };
            queue.begin_prefetch();
            self.prefetch.requests.push_back(request);
        }
        if queue.update_prefetch_wait(now) {
            self.prefetch.waits.push_back((now + PREFETCH_WAIT_MAX, index));
        }
    }

    pub(super) fn poll_prefetch(&mut self) -> Option<PrefetchRequest> {
        self.prefetch.requests.pop_front()
    }

    /// Returns the key that awaits this prefetch; a key that was cleared meanwhile does not.
    pub(super) fn awaiting(&self, request: PrefetchRequest) -> Option<Key> {
        let index = self.keys.find(request.key)?;
        self.key(index).is_prefetching_after(request.after).then_some(index)
    }

    /// Adds prefetched messages to their key, with as many payloads as memory allows.
    pub(super) fn apply_prefetch(&mut self, index: Key, found: impl Iterator<Item = (MessageMeta, Payload)>) {
        let mut room = PAYLOAD_BYTES_MAX.saturating_sub(self.prefetch.payload_bytes);
        let entries = found.map(|(meta, payload)| {
            let payload = Some(payload).filter(|payload| payload.size() <= room);
            room -= payload.as_ref().map_or(0, Payload::size);
            MessageEntry { payload, ..MessageEntry::new(meta) }
        });
        let kept =
            self.keys.get_mut(index).expect("an index in use belongs to a known key").apply_prefetch(entries);
        self.prefetch.payload_bytes += kept;
    }

    pub(super) fn fail_prefetch(&mut self, index: Key) {
        self.prefetch.failed.push(index);
    }

    /// Repeats failed prefetches, ends the wait for slow ones, and updates keys whose rate limit allows a delivery.
    pub(super) fn on_timer(&mut self, now: UnixMillis) {
        for index in core::mem::take(&mut self.prefetch.failed) {
            if let Some(queue) = self.keys.get_mut(index) {
                queue.end_prefetch();
                self.update(index, now);
            }
        }
        while let Some(&(_, index)) = self.prefetch.waits.front().filter(|(until, _)| *until <= now) {
            self.prefetch.waits.pop_front();
            if self.keys.get(index).is_some() {
                self.update(index, now);
            }
        }
        self.wake_limiters(now);
    }

    /// Returns when to call [`on_timer`](Self::on_timer) next.
    pub(super) fn next_timer(&self, now: UnixMillis) -> Option<UnixMillis> {
        let wait = self.prefetch.waits.front().map(|(until, _)| *until);
        let retry = (!self.prefetch.failed.is_empty()).then(|| now + PREFETCH_RETRY);
        wait.into_iter().chain(retry).chain(self.limiters.next_wake()).min()
    }

    /// Ends a receive: from now on its leases block the rest of their keys on a FIFO queue.
    pub(super) fn end_receive(&mut self, leased: &[LeasedMessage], now: UnixMillis) {
        if self.order == DeliveryOrder::Fair {
            return;
        }
        self.receives += 1;
        for leased in leased {
            if let Some(index) = self.keys.find(leased.key) {
                self.update(index, now);
            }
        }
    }

    /// Lists a key without messages, to be removed if it stays idle.
    fn list_idle(&mut self, index: Key, now: UnixMillis) {
        let queue = self.key_mut(index);
        if !queue.is_idle() {
            return;
        }
        queue.release_memory();
        if !queue.is_listed_idle {
            queue.is_listed_idle = true;
            self.idle.push_back((now, index));
        }
    }

    /// Removes keys that have been idle for a minute, at most 1024 per call.
    pub(super) fn forget_idle(&mut self, now: UnixMillis) -> Vec<(Key, KeyQueue)> {
        let mut forgotten = Vec::new();
        let rounds = self.idle.len().min(FORGET_MAX);
        for _ in 0..rounds {
            if !self.has_idle(now) {
                break;
            }
            let Some((since, index)) = self.idle.pop_front() else { break };
            let Some(queue) = self.keys.get_mut(index) else { continue };
            queue.is_listed_idle = false;
            if !queue.is_idle() {
                continue;
            }
            // A key in debt is kept until its debt has decayed.
            if !self.drr.forget_key(index) {
                queue.is_listed_idle = true;
                self.idle.push_back((since.max(now), index));
                continue;
            }
            forgotten.extend(self.forget(index).map(|queue| (index, queue)));
        }
        forgotten
    }

    /// Reports whether a key has been idle for a minute.
    pub(super) fn has_idle(&self, now: UnixMillis) -> bool {
        self.idle.front().is_some_and(|(since, _)| now.since(*since) >= IDLE_KEY)
    }

    fn forget(&mut self, index: Key) -> Option<KeyQueue> {
        let queue = self.keys.remove(index)?;
        if self.keys.is_unused(queue.tenant) && self.drr.forget_tenant(queue.tenant) {
            self.keys.release_tenant(queue.tenant);
        }
        Some(queue)
    }

    /// Drops every message; rules and counters of deliveries stay.
    pub(super) fn clear(&mut self, now: UnixMillis) {
        self.pending = 0;
        self.prefetch = Prefetch::default();
        self.limiters.clear();
        for number in 0..self.keys.slots_len() {
            let index = Key(number as u32);
            if let Some(queue) = self.keys.get_mut(index) {
                queue.clear();
                self.update(index, now);
            }
        }
    }

    /// Checks the invariants in the module header.
    pub(super) fn audit(&self) -> Result<(), String> {
        self.keys.audit()?;
        let pending: u64 = self.keys.iter().map(|(_, queue)| queue.pending()).sum();
        if pending != self.pending {
            return Err(format!("{} messages are pending, the keys have {pending}", self.pending));
        }
        let payloads =
            self.keys.iter().flat_map(|(_, queue)| queue.ready()).filter_map(|entry| entry.payload.as_ref());
        let bytes: usize = payloads.map(Payload::size).sum();
        if bytes != self.prefetch.payload_bytes {
            return Err(format!(
                "{} payload bytes are counted, {bytes} are in memory",
                self.prefetch.payload_bytes
            ));
        }
        for (index, queue) in self.keys.iter() {
            let is_scheduled = self.key_status(index) != KeyStatus::Idle;
            if is_scheduled != (queue.pending() > 0) {
                return Err(format!(
                    "{} is scheduled: {is_scheduled}, it has {}",
                    queue.name,
                    queue.pending()
                ));
            }
            if queue.is_idle() && !queue.is_listed_idle {
                return Err(format!("{} is idle and not listed", queue.name));
            }
        }
        self.audit_limiters()
    }
}
