//! The known keys of a queue, by the index that the scheduler uses and by their stored id.

use std::collections::HashMap;

use evenkeel_policy::id::{Key, TenantId};
use evenkeel_policy::interner::Interner;

use super::key_queue::KeyQueue;
use crate::id::KeyId;
use crate::rejection::Rejection;
use crate::settings::KEYS_MAX;

/// Slab of key queues; the index of a removed key is reused.
#[derive(Debug)]
pub(super) struct KeyTable {
    /// Boxed, because a free slot is never returned.
    slots: Vec<Option<Box<KeyQueue>>>,
    free: Vec<Key>,
    by_id: HashMap<KeyId, Key>,
    tenants: Interner<TenantId>,
    /// Number of keys of each tenant.
    tenant_keys: Vec<u32>,
}

impl KeyTable {
    pub(super) fn new(secret: (u64, u64)) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            tenants: Interner::new(KEYS_MAX, secret),
            tenant_keys: Vec::new(),
        }
    }

    pub(super) fn find(&self, key: KeyId) -> Option<Key> {
        self.by_id.get(&key).copied()
    }

    pub(super) fn get(&self, index: Key) -> Option<&KeyQueue> {
        self.slots[index.index()].as_deref()
    }

    pub(super) fn get_mut(&mut self, index: Key) -> Option<&mut KeyQueue> {
        self.slots[index.index()].as_deref_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of slots, occupied or free.
    pub(super) fn slots_len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &KeyQueue)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, queue)| Some((Key(index as u32), queue.as_deref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut KeyQueue> {
        self.slots.iter_mut().flatten().map(Box::as_mut)
    }

    pub(super) fn tenant(&self, name: &str) -> Option<TenantId> {
        self.tenants.get(name)
    }

    /// Counts one more key of the tenant that `name` belongs to, and returns the tenant.
    pub(super) fn add_tenant_key(&mut self, name: &str) -> Result<TenantId, Rejection> {
        let tenant = self.tenants.intern(tenant_name(name));
        let tenant = tenant.map_err(|error| Rejection::TooManyKeys { max: u64::from(error.names_max) })?;
        if self.tenant_keys.len() <= tenant.index() {
            self.tenant_keys.resize(tenant.index() + 1, 0);
        }
        self.tenant_keys[tenant.index()] += 1;
        Ok(tenant)
    }

    pub(super) fn insert(&mut self, queue: KeyQueue) -> Key {
        let index = self.free.pop().unwrap_or(Key(self.slots.len() as u32));
        if index.index() == self.slots.len() {
            self.slots.push(None);
        }
        self.by_id.insert(queue.key, index);
        self.slots[index.index()] = Some(Box::new(queue));
        index
    }

    pub(super) fn remove(&mut self, index: Key) -> Option<KeyQueue> {
        let queue = self.slots[index.index()].take()?;
        self.free.push(index);
        self.by_id.remove(&queue.key);
        self.tenant_keys[queue.tenant.index()] -= 1;
        Some(*queue)
    }

    /// Reports whether the tenant has no key left.
    pub(super) fn is_unused(&self, tenant: TenantId) -> bool {
        self.tenant_keys[tenant.index()] == 0
    }

    pub(super) fn release_tenant(&mut self, tenant: TenantId) {
        self.tenants.release(tenant);
    }

    /// Checks that the two indexes and the tenants' counts agree with the slots.
    pub(super) fn audit(&self) -> Result<(), String> {
        let mut tenant_keys = vec![0; self.tenant_keys.len()];
        for (index, queue) in self.iter() {
            tenant_keys[queue.tenant.index()] += 1;
            if self.find(queue.key) != Some(index) {
                return Err(format!("{:?} is not found at {index:?}", queue.key));
            }
        }
        let used = self.iter().count();
        if tenant_keys != self.tenant_keys || used != self.len() || used + self.free.len() != self.slots.len()
        {
            return Err(format!("{used} keys are in use, {} are indexed", self.len()));
        }
        Ok(())
    }
}

/// Returns the tenant part of a key's name, which is `tenant` or `tenant/subkey`.
pub(super) fn tenant_name(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

/// Reports whether a key's name is that of a tenant, so that its rule applies to the whole tenant.
pub(super) fn is_tenant_name(name: &str) -> bool {
    !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::weight::Weight;
    use std::sync::Arc;

    #[test]
    fn an_index_is_reused_after_its_key_was_removed() {
        let mut table = KeyTable::new((1, 2));
        let add = |table: &mut KeyTable, id: u32, name: &str| {
            let tenant = table.add_tenant_key(name).unwrap();
            table.insert(KeyQueue::new(KeyId(id), Arc::from(name), tenant, Weight::ONE))
        };
        let first = add(&mut table, 1, "a/1");
        let second = add(&mut table, 2, "a/2");
        assert!(table.remove(first).is_some_and(|queue| !table.is_unused(queue.tenant)));
        assert_eq!((table.find(KeyId(1)), table.find(KeyId(2))), (None, Some(second)));
        assert_eq!(add(&mut table, 3, "b"), first);
        assert_eq!(table.audit(), Ok(()));
    }
}
