//! The node cache: where a conversation was served last, so that it comes back to a warm node.
//!
//! Bound: at most `max_capacity` entries, none older than `ttl` since its last use; the one used longest ago makes room.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::backpressure::NodeCacheConfig;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::time::Instant;

use crate::accept::ModelId;

/// What a choice is remembered under: the model, and what requests have in common.
pub(crate) type CacheKey = (ModelId, u64);

/// A remembered choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// The node.
    pub runtime_id: NodeId,
    /// When it was chosen.
    pub created_at: Instant,
    /// Until when it is remembered, unless it is used again.
    pub expires_at: Instant,
}

/// How well remembering does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests that went to the node remembered.
    pub hits: u64,
    /// Requests that could have and did not: nothing was remembered, or the node had no slot.
    pub misses: u64,
    /// Choices remembered.
    pub size: u64,
    /// Choices forgotten because their node drained, broke, left, or lost the model.
    pub invalidations: u64,
}

/// Remembers nodes by model and affinity.
#[derive(Clone, Debug)]
pub(crate) struct NodeSelectionCache {
    config: NodeCacheConfig,
    entries: BTreeMap<CacheKey, CacheEntry>,
    /// The same, the next to expire first: as every use renews, that is the one used longest ago.
    expiries: BTreeSet<(Instant, CacheKey)>,
    stats: CacheStats,
}

impl NodeSelectionCache {
    pub(crate) fn new(config: NodeCacheConfig) -> Self {
        let entries = BTreeMap::new();
        let expiries = BTreeSet::new();
        Self { config, entries, expiries, stats: CacheStats::default() }
    }

    /// Names the node remembered, without counting it as used.
    pub(crate) fn peek(&self, key: CacheKey) -> Option<NodeId> {
        self.entries.get(&key).map(|entry| entry.runtime_id)
    }

    /// Notes that a request goes to `node`, and whether that was the node remembered.
    pub(crate) fn note(&mut self, now: Instant, key: CacheKey, node: NodeId) {
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
        if self.config.max_capacity <= self.entries.len() as u64
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

    /// Forgets what has expired.
    pub(crate) fn on_time(&mut self, now: Instant) {
        while let Some(&(expires_at, key)) = self.expiries.first() {
            if now < expires_at {
                return;
            }
            self.remove(key);
        }
    }

    /// Forgets what leads to `node` for one of the models that `lost` names.
    pub(crate) fn invalidate(&mut self, node: NodeId, lost: impl Fn(ModelId) -> bool) {
        let gone = |(key, entry): (&CacheKey, &CacheEntry)| {
            (entry.runtime_id == node && lost(key.0)).then_some(*key)
        };
        let keys: Vec<_> = self.entries.iter().filter_map(gone).collect();
        self.stats.invalidations += keys.len() as u64;
        keys.into_iter().for_each(|key| self.remove(key));
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats { size: self.entries.len() as u64, ..self.stats }
    }

    pub(crate) fn entry(&self, key: CacheKey) -> Option<CacheEntry> {
        self.entries.get(&key).copied()
    }

    /// Tells whether both views hold the same, within the limit.
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
    fn a_use_renews_and_time_forgets() {
        let mut cache = cache(10);
        cache.note(at(0), (MODEL, 1), NODE);
        cache.note(at(4), (MODEL, 1), NODE);
        cache.on_time(at(8));
        let entry = cache.entry((MODEL, 1)).unwrap();
        assert_eq!((entry.created_at, entry.expires_at), (at(0), at(9)));
        cache.on_time(at(9));
        assert_eq!(cache.peek((MODEL, 1)), None);
        assert_eq!(cache.stats(), CacheStats { hits: 1, misses: 1, size: 0, invalidations: 0 });
    }

    #[test]
    fn a_full_cache_forgets_what_was_used_longest_ago() {
        let mut cache = cache(2);
        for (second, key) in [(0, 1), (1, 2), (2, 1), (3, 3)] {
            cache.note(at(second), (MODEL, key), NODE);
            assert!(cache.is_sound());
        }
        assert_eq!([1, 2, 3].map(|key| cache.peek((MODEL, key)).is_some()), [true, false, true]);
    }

    #[test]
    fn a_cache_without_capacity_remembers_nothing() {
        let mut cache = cache(0);
        cache.note(at(0), (MODEL, 1), NODE);
        assert!(cache.peek((MODEL, 1)).is_none() && cache.is_sound());
    }

    #[test]
    fn a_node_is_forgotten_for_the_models_it_lost() {
        let mut cache = cache(10);
        let other = ModelId(1);
        cache.note(at(0), (MODEL, 1), NODE);
        cache.note(at(0), (other, 1), NODE);
        cache.note(at(0), (other, 2), NodeId(8));
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
