//! Affinity cache: the node that last served an affinity key, so that a conversation returns to a warm cache.
//!
//! Limits: at most `max_capacity` entries, none older than `ttl` since its last use; evicts the least recently used.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::backpressure::NodeCacheConfig;
use evenkeel_policy::id::{ModelId, NodeId};
use evenkeel_policy::time::Instant;

/// Model and affinity key.
pub(crate) type CacheKey = (ModelId, u64);

/// A cached node selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// The node.
    pub runtime_id: NodeId,
    /// Time of the selection.
    pub created_at: Instant,
    /// Expiry, renewed by every use.
    pub expires_at: Instant,
}

/// Statistics of the affinity cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests sent to their cached node.
    pub hits: u64,
    /// Requests with an affinity key sent to another node: there was no entry, or its node had no free slot.
    pub misses: u64,
    /// Entries.
    pub size: u64,
    /// Entries removed because their node was drained, removed, no longer serves the model, or its breaker opened.
    pub invalidations: u64,
}

/// The affinity cache.
#[derive(Clone, Debug)]
pub(crate) struct NodeSelectionCache {
    config: NodeCacheConfig,
    entries: BTreeMap<CacheKey, CacheEntry>,
    /// Entries by expiry; as every use renews an entry, the first is the least recently used.
    expiries: BTreeSet<(Instant, CacheKey)>,
    stats: CacheStats,
}

impl NodeSelectionCache {
    pub(crate) fn new(config: NodeCacheConfig) -> Self {
        let entries = BTreeMap::new();
        let expiries = BTreeSet::new();
        Self { config, entries, expiries, stats: CacheStats::default() }
    }

    /// Returns the cached node without counting a use.
    pub(crate) fn peek(&self, key: CacheKey) -> Option<NodeId> {
        self.entries.get(&key).map(|entry| entry.runtime_id)
    }

    /// Records that a request goes to `node`, as a hit or a miss.
    pub(crate) fn record(&mut self, now: Instant, key: CacheKey, node: NodeId) {
        let expires_at = now + self.config.ttl;
        if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.runtime_id == node) {
            self.stats.hits += 1;
            let before = core::mem::replace(&mut entry.expires_at, expires_at);
            self.expiries.remove(&(before, key));
            self.expiries.insert((expires_at, key));
            return;
        }
        self.stats.misses += 1;
        self.remove(key);
        if self.entries.len() as u64 >= self.config.max_capacity
            && let Some(&(_, oldest)) = self.expiries.first()
        {
            self.remove(oldest);
        }
        if self.config.max_capacity == 0 {
            return;
        }
        self.entries.insert(key, CacheEntry { runtime_id: node, created_at: now, expires_at });
        self.expiries.insert((expires_at, key));
    }

    /// Records a request that goes to `node` for once; the key keeps its node, if it has one.
    pub(crate) fn record_detour(&mut self, now: Instant, key: CacheKey, node: NodeId) {
        match self.peek(key) {
            Some(_) => self.stats.misses += 1,
            None => self.record(now, key, node),
        }
    }

    /// Removes expired entries.
    pub(crate) fn on_time(&mut self, now: Instant) {
        while let Some(&(expires_at, key)) = self.expiries.first() {
            if now < expires_at {
                return;
            }
            self.remove(key);
        }
    }

    /// Removes the entries of `node` for the models for which `is_stale` returns `true`.
    pub(crate) fn invalidate(&mut self, node: NodeId, is_stale: impl Fn(ModelId) -> bool) {
        let stale = |(key, entry): (&CacheKey, &CacheEntry)| {
            (entry.runtime_id == node && is_stale(key.0)).then_some(*key)
        };
        let keys: Vec<_> = self.entries.iter().filter_map(stale).collect();
        self.stats.invalidations += keys.len() as u64;
        keys.into_iter().for_each(|key| self.remove(key));
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats { size: self.entries.len() as u64, ..self.stats }
    }

    pub(crate) fn entry(&self, key: CacheKey) -> Option<CacheEntry> {
        self.entries.get(&key).copied()
    }

    /// Reports whether both indexes agree and are within the limit.
    pub(crate) fn is_sound(&self) -> bool {
        let same = self.entries.iter().all(|(key, entry)| self.expiries.contains(&(entry.expires_at, *key)));
        same && self.entries.len() == self.expiries.len()
            && self.entries.len() as u64 <= self.config.max_capacity
    }

    fn remove(&mut self, key: CacheKey) {
        if let Some(entry) = self.entries.remove(&key) {
            self.expiries.remove(&(entry.expires_at, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::time::Duration;

    const MODEL: ModelId = ModelId(0);
    const NODE: NodeId = NodeId(7);

    #[test]
    fn a_use_renews_an_entry_and_time_expires_it() {
        let mut cache = cache(10);
        cache.record(at(0), (MODEL, 1), NODE);
        cache.record(at(4), (MODEL, 1), NODE);
        cache.on_time(at(8));
        let entry = cache.entry((MODEL, 1)).unwrap();
        assert_eq!((entry.created_at, entry.expires_at), (at(0), at(9)));
        cache.on_time(at(9));
        assert_eq!(cache.peek((MODEL, 1)), None);
        assert_eq!(cache.stats(), CacheStats { hits: 1, misses: 1, size: 0, invalidations: 0 });
    }

    #[test]
    fn a_full_cache_evicts_the_least_recently_used() {
        let mut cache = cache(2);
        for (second, key) in [(0, 1), (1, 2), (2, 1), (3, 3)] {
            cache.record(at(second), (MODEL, key), NODE);
            assert!(cache.is_sound());
        }
        assert_eq!([1, 2, 3].map(|key| cache.peek((MODEL, key)).is_some()), [true, false, true]);
    }

    #[test]
    fn a_cache_without_capacity_stays_empty() {
        let mut cache = cache(0);
        cache.record(at(0), (MODEL, 1), NODE);
        assert!(cache.peek((MODEL, 1)).is_none() && cache.is_sound());
    }

    #[test]
    fn entries_of_a_node_are_removed_for_the_models_it_no_longer_serves() {
        let mut cache = cache(10);
        let other = ModelId(1);
        cache.record(at(0), (MODEL, 1), NODE);
        cache.record(at(0), (other, 1), NODE);
        cache.record(at(0), (other, 2), NodeId(8));
        cache.invalidate(NODE, |model| model == other);
        assert_eq!((cache.stats().invalidations, cache.stats().size), (1, 2));
        assert!(cache.peek((MODEL, 1)).is_some() && cache.peek((other, 2)).is_some());
    }

    fn cache(max_capacity: u64) -> NodeSelectionCache {
        NodeSelectionCache::new(NodeCacheConfig { max_capacity, ttl: Duration::from_secs(5) })
    }

    fn at(second: u64) -> Instant {
        Instant::from_secs(second)
    }
}
