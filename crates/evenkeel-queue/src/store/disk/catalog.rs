//! The writer's in-memory catalog of queues and keys.
//!
//! Limits: `keys_max` keys per queue, and `tenant_keys_max` per tenant. Keys of a queue with an owner count for the owner,
//! over all its queues; keys `tenant/subkey` of a shared queue count for that tenant of that queue. A message that moves
//! to another queue is exempt from the limit of its tenant.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use evenkeel_policy::account::AccountNumber;

use super::layout::KeyRecord;
use crate::id::{Epoch, KeyId, QueueId, Seq};
use crate::namespace::Namespace;
use crate::rule::KeyRule;
use crate::store::result_index::ResultIndex;
use crate::store::{AppendListener, QueueDescriptor, QueueRecord, StoreError};
use crate::time::UnixMillis;

pub(super) struct Catalog {
    pub(super) queues: BTreeMap<QueueId, QueueEntry>,
    pub(super) last_queue_id: u32,
    /// Next sequence number.
    pub(super) seq: u64,
    /// End of the reserved sequence numbers, exclusive.
    pub(super) seq_end: u64,
    /// Results that expire before this time have been deleted.
    pub(super) results_expired_until: UnixMillis,
    pub(super) results: ResultIndex,
    /// Queues whose purged messages are still to be deleted.
    pub(super) purges: Vec<PurgeCursor>,
    /// The database was reopened after a failed write, so a repeated delete may find its message already deleted.
    pub(super) is_reopened: bool,
    /// Number of keys of each tenant.
    tenant_keys: HashMap<KeyTenant, u32>,
}

/// Position of a purge, which deletes messages segment by segment.
pub(super) struct PurgeCursor {
    pub(super) queue: QueueId,
    /// Messages with a lower sequence number are purged.
    pub(super) below: Seq,
    /// First sequence number of the current segment.
    pub(super) segment: Seq,
    /// Key from which to continue.
    pub(super) from: Vec<u8>,
}

impl PurgeCursor {
    pub(super) fn new(queue: QueueId, below: Seq) -> Self {
        Self { queue, below, segment: Seq(0), from: queue.0.to_be_bytes().to_vec() }
    }
}

pub(super) struct QueueEntry {
    pub(super) descriptor: QueueDescriptor,
    pub(super) epoch: Epoch,
    pub(super) purged_below: Seq,
    pub(super) names: HashMap<Arc<str>, KeyId>,
    pub(super) keys: HashMap<KeyId, KeyEntry>,
    pub(super) next_key_id: u32,
    pub(super) listener: Option<AppendListener>,
}

pub(super) struct KeyEntry {
    pub(super) record: KeyRecord,
    pub(super) live: u64,
}

/// Tenant that a key counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyTenant {
    /// Owner of the queue.
    Owner(AccountNumber),
    /// First level of the key's name, in a shared queue.
    Level(QueueId, Box<str>),
}

impl KeyTenant {
    /// Returns `None` for a key without subkeys in a shared queue, which is a tenant of its own.
    fn of(namespace: Namespace, queue: QueueId, name: &str) -> Option<Self> {
        match namespace {
            Namespace::Account(owner) => Some(Self::Owner(owner)),
            Namespace::Shared => name.split_once('/').map(|(tenant, _)| Self::Level(queue, tenant.into())),
        }
    }
}

impl QueueEntry {
    pub(super) fn new(descriptor: QueueDescriptor, epoch: Epoch, purged_below: Seq) -> Self {
        Self {
            descriptor,
            epoch,
            purged_below,
            names: HashMap::new(),
            keys: HashMap::new(),
            next_key_id: 0,
            listener: None,
        }
    }
}

impl Catalog {
    /// Creates a catalog without queues; `seq` is the end of the reserved sequence numbers, of which it is unknown how many
    /// were used.
    pub(super) fn new(last_queue_id: u32, seq: u64, results: ResultIndex) -> Self {
        Self {
            queues: BTreeMap::new(),
            last_queue_id,
            seq,
            seq_end: seq,
            results_expired_until: UnixMillis(0),
            results,
            purges: Vec::new(),
            is_reopened: false,
            tenant_keys: HashMap::new(),
        }
    }

    /// Returns the first sequence number of a queue that is not purged; of a deleted queue, every message is purged.
    ///
    /// Purged messages may still be on disk.
    pub(super) fn purged_below(&self, queue: QueueId) -> Seq {
        self.queues.get(&queue).map_or(Seq(u64::MAX), |entry| entry.purged_below)
    }

    pub(super) fn records(&self) -> Vec<QueueRecord> {
        self.queues
            .iter()
            .map(|(&id, queue)| QueueRecord { id, descriptor: queue.descriptor.clone() })
            .collect()
    }

    /// Returns the id of a key, if it exists.
    pub(super) fn key_id(&self, queue: QueueId, name: &str) -> Result<Option<KeyId>, StoreError> {
        let entry = self.queues.get(&queue).ok_or(StoreError::NoQueue)?;
        Ok(entry.names.get(name).copied())
    }

    /// Creates a key, within the limits; the limit of its tenant is optional.
    pub(super) fn create_key(
        &mut self,
        queue: QueueId,
        name: &Arc<str>,
        tenant_keys_max: Option<u32>,
    ) -> Result<KeyId, StoreError> {
        let entry = self.queues.get(&queue).ok_or(StoreError::NoQueue)?;
        if entry.descriptor.settings.keys_max as usize <= entry.keys.len() {
            return Err(StoreError::TooManyKeys);
        }
        let tenant = KeyTenant::of(entry.descriptor.namespace, queue, name);
        let used = tenant.and_then(|tenant| self.tenant_keys.get(&tenant)).copied().unwrap_or(0);
        if let Some(max) = tenant_keys_max.filter(|&max| max <= used) {
            return Err(StoreError::TooManyTenantKeys { max });
        }
        let id = KeyId(entry.next_key_id);
        id.0.checked_add(1).ok_or(StoreError::TooManyKeys)?;
        let record = KeyRecord { name: name.clone(), rule: KeyRule::default(), requested_weight: None };
        self.insert_key(queue, id, record);
        Ok(id)
    }

    /// Adds a key; a key of an unknown queue was left behind by a deleted one and is ignored.
    pub(super) fn insert_key(&mut self, queue: QueueId, id: KeyId, record: KeyRecord) {
        let Some(entry) = self.queues.get_mut(&queue) else { return };
        let tenant = KeyTenant::of(entry.descriptor.namespace, queue, &record.name);
        entry.next_key_id = entry.next_key_id.max(id.0.saturating_add(1));
        entry.names.insert(record.name.clone(), id);
        entry.keys.insert(id, KeyEntry { record, live: 0 });
        self.count(tenant);
    }

    /// Removes a key that has neither messages nor a rule; reports whether it did.
    pub(super) fn remove_unused_key(&mut self, queue: QueueId, id: KeyId) -> bool {
        let Some(entry) = self.queues.get_mut(&queue) else { return false };
        let is_unused = |key: &KeyEntry| key.live == 0 && key.record.rule.is_empty();
        if !entry.keys.get(&id).is_some_and(is_unused) {
            return false;
        }
        if let Some(removed) = entry.keys.remove(&id) {
            entry.names.remove(&removed.record.name);
            let tenant = KeyTenant::of(entry.descriptor.namespace, queue, &removed.record.name);
            self.uncount(tenant);
        }
        true
    }

    /// Replaces a queue's descriptor; its keys count for a new owner.
    pub(super) fn set_descriptor(
        &mut self,
        queue: QueueId,
        descriptor: QueueDescriptor,
    ) -> Result<(), StoreError> {
        let entry = self.queues.get_mut(&queue).ok_or(StoreError::NoQueue)?;
        let before = core::mem::replace(&mut entry.descriptor, descriptor).namespace;
        let after = entry.descriptor.namespace;
        if before != after {
            let names: Vec<Arc<str>> = entry.names.keys().cloned().collect();
            for name in names {
                self.uncount(KeyTenant::of(before, queue, &name));
                self.count(KeyTenant::of(after, queue, &name));
            }
        }
        Ok(())
    }

    pub(super) fn remove_queue(&mut self, queue: QueueId) -> Option<QueueEntry> {
        let removed = self.queues.remove(&queue)?;
        for name in removed.names.keys() {
            self.uncount(KeyTenant::of(removed.descriptor.namespace, queue, name));
        }
        Some(removed)
    }

    fn count(&mut self, tenant: Option<KeyTenant>) {
        if let Some(tenant) = tenant {
            *self.tenant_keys.entry(tenant).or_default() += 1;
        }
    }

    fn uncount(&mut self, tenant: Option<KeyTenant>) {
        let Some(tenant) = tenant else { return };
        if let Some(count) = self.tenant_keys.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.tenant_keys.remove(&tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: QueueId = QueueId(1);
    const OWNED: QueueId = QueueId(2);
    const OTHER: QueueId = QueueId(3);

    #[test]
    fn the_keys_of_a_tenant_are_limited_within_a_shared_queue() {
        let mut catalog = catalog();
        assert_eq!(create(&mut catalog, SHARED, "acme/1"), Ok(KeyId(0)));
        assert_eq!(create(&mut catalog, SHARED, "acme/2"), Ok(KeyId(1)));
        let rejected = Err(StoreError::TooManyTenantKeys { max: 2 });
        assert_eq!(create(&mut catalog, SHARED, "acme/3"), rejected);
        // Other tenants, and keys without subkeys, have room.
        for (number, name) in ["byte/1", "acme", "c", "d"].into_iter().enumerate() {
            assert_eq!(create(&mut catalog, SHARED, name), Ok(KeyId(2 + number as u32)));
        }
        assert!(catalog.remove_unused_key(SHARED, KeyId(0)));
        assert!(!catalog.remove_unused_key(SHARED, KeyId(0)), "it was removed twice");
        assert_eq!(create(&mut catalog, SHARED, "acme/3"), Ok(KeyId(6)));
        assert_eq!(create(&mut catalog, SHARED, "acme/1"), rejected);
        assert_eq!(catalog.create_key(SHARED, &"acme/1".into(), None), Ok(KeyId(7)), "a move was limited");
    }

    #[test]
    fn the_keys_of_an_owner_are_limited_over_all_its_queues() {
        let mut catalog = catalog();
        assert_eq!(create(&mut catalog, OWNED, "a"), Ok(KeyId(0)));
        assert_eq!(create(&mut catalog, OTHER, "a"), Ok(KeyId(0)));
        let rejected = Err(StoreError::TooManyTenantKeys { max: 2 });
        assert_eq!(create(&mut catalog, OWNED, "b"), rejected);
        assert_eq!(create(&mut catalog, SHARED, "b"), Ok(KeyId(0)));
        catalog.set_descriptor(SHARED, descriptor(owner())).unwrap();
        assert!(catalog.remove_unused_key(OTHER, KeyId(0)));
        assert_eq!(create(&mut catalog, OWNED, "b"), rejected, "an assigned queue's key is not counted");
        assert!(catalog.remove_queue(SHARED).is_some());
        assert_eq!(create(&mut catalog, OWNED, "b"), Ok(KeyId(1)));
        assert_eq!(catalog.tenant_keys.values().sum::<u32>(), 2);
    }

    fn create(catalog: &mut Catalog, queue: QueueId, name: &str) -> Result<KeyId, StoreError> {
        catalog.create_key(queue, &name.into(), Some(2))
    }

    fn owner() -> Namespace {
        Namespace::Account("123456789012".parse().unwrap())
    }

    fn descriptor(namespace: Namespace) -> QueueDescriptor {
        QueueDescriptor { namespace, ..QueueDescriptor::for_test() }
    }

    fn catalog() -> Catalog {
        let mut catalog = Catalog::new(3, 1, ResultIndex::default());
        for (queue, namespace) in [(SHARED, Namespace::Shared), (OWNED, owner()), (OTHER, owner())] {
            catalog.queues.insert(queue, QueueEntry::new(descriptor(namespace), Epoch(0), Seq(0)));
        }
        catalog
    }
}
