//! Affinity without a cache entry: rendezvous hashing with bounded load.
//!
//! Guarantees: when nodes are added or removed, only the keys of those nodes move; a preferred node never has more in
//! flight than `load_max` times its share of the pool's load, rounded up.

use evenkeel_policy::id::NodeId;

/// Returns a node's rank for a key; the highest is preferred.
pub(super) fn rank(key: u64, node: NodeId) -> u64 {
    // Node ids are small and dense: spread them before combining them with the key.
    mix(key ^ mix(u64::from(node.0).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

/// Load and slots of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeLoad {
    pub(super) busy: u32,
    pub(super) slots: u32,
}

/// Reports whether a node stays within `load_max` times the pool's mean load with one more request.
pub(super) fn is_within(node: NodeLoad, pool: PoolLoad, load_max: f64) -> bool {
    let share = f64::from(node.slots) / pool.slots as f64;
    let max = (load_max * (pool.busy + 1) as f64 * share).ceil();
    f64::from(node.busy) + 1.0 <= max
}

/// Load and slots of all candidates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolLoad {
    pub(super) busy: u64,
    pub(super) slots: u64,
}

impl PoolLoad {
    pub(super) fn add(&mut self, node: NodeLoad) {
        self.busy += u64::from(node.busy);
        self.slots += u64::from(node.slots);
    }
}

/// The finalizer of SplitMix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_over_the_nodes_and_only_the_keys_of_a_removed_node_move() {
        let preferred =
            |key, nodes: &[u32]| nodes.iter().copied().max_by_key(|node| rank(key, NodeId(*node))).unwrap();
        let mut counts = [0; 4];
        for key in 0..4_000 {
            let with = preferred(key, &[0, 1, 2, 3]);
            counts[with as usize] += 1;
            let without = preferred(key, &[0, 1, 2]);
            assert!(with == without || with == 3);
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_node_is_preferred_up_to_a_quarter_above_the_mean_load() {
        let within = |busy, pool_busy| {
            let pool = PoolLoad { busy: pool_busy, slots: 32 };
            is_within(NodeLoad { busy, slots: 8 }, pool, 1.25)
        };
        assert!(within(0, 0) && !within(1, 1), "an idle pool spreads requests from the second one on");
        assert!(within(4, 15) && !within(5, 15), "five of sixteen is a quarter above four");
    }
}
