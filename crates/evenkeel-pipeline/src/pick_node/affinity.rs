//! Which node a key prefers when none is remembered, and whether that one is too loaded to be preferred.
//!
//! Bounds: as nodes come and go, only the keys of those nodes move (rendezvous hashing); a preferred node never has more
//! in flight than `load_max` times its part of the pool's, rounded up.

use evenkeel_policy::id::NodeId;

/// A node's rank for a key; the highest is preferred.
pub(super) fn rank(key: u64, node: NodeId) -> u64 {
    // Node ids are small and dense: spread them before they meet the key.
    mix(key ^ mix(u64::from(node.0).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

/// One node's part of the work and of the slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeLoad {
    pub(super) busy: u32,
    pub(super) slots: u32,
}

/// Tells whether a node may take one more and stay within `load_max` times the mean of the pool.
pub(super) fn is_within(node: NodeLoad, pool: PoolLoad, load_max: f64) -> bool {
    let part = f64::from(node.slots) / pool.slots as f64;
    let most = (load_max * (pool.busy + 1) as f64 * part).ceil();
    f64::from(node.busy) + 1.0 <= most
}

/// The work and the slots of all candidates.
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

/// SplitMix64's last step.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_over_the_nodes_and_only_a_lost_nodes_keys_move() {
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
    fn a_node_is_preferred_up_to_a_quarter_above_the_mean() {
        let within = |busy, pool_busy| {
            let pool = PoolLoad { busy: pool_busy, slots: 32 };
            is_within(NodeLoad { busy, slots: 8 }, pool, 1.25)
        };
        assert!(within(0, 0) && !within(1, 1), "an idle pool shares from the second request on");
        assert!(within(4, 15) && !within(5, 15), "five of sixteen are a quarter above four");
    }
}
