//! Spreads requests over comparable nodes: by affinity key with weighted rendezvous hashing, or by weight with smooth
//! weighted round robin.
//!
//! Guarantees: when a node is added or removed, or its weight changes, only keys from or to that node move. Keys and
//! picks are shared in proportion to the weights; with smooth weighted round robin, exactly so over every period of the
//! weights. Loads are bounded: a node that is full for its share gets no request while another is not (rendezvous hashing
//! with bounded loads). Limits: O(candidates).

use core::cmp::Reverse;

use super::Candidate;
use crate::id::NodeId;

/// Part of its share of the pool's capacity that a node may use, whatever the others' loads are.
const CAPACITY_PART: f64 = 0.5;

/// Credit that a pick by weight costs; the candidates together gain as much.
const PICK_CREDIT: i64 = 1 << 32;

/// Returns the index of the comparable node that a key prefers; `None` if all of them are full for their shares.
pub(super) fn by_affinity(candidates: &[Candidate], key: u64, load_max: f64) -> Option<usize> {
    let pool = PoolLoad::of(candidates);
    let mut best: Option<(f64, usize)> = None;
    for (index, candidate) in comparable(candidates) {
        let rank = rank(key, candidate);
        let is_higher = |(highest, other): (f64, usize)| {
            rank.total_cmp(&highest).then(candidates[other].node.cmp(&candidate.node)).is_gt()
        };
        if best.is_none_or(is_higher) && pool.has_share_for(candidate, load_max) {
            best = Some((rank, index));
        }
    }
    best.map(|(_, index)| index)
}

/// Returns the index of the comparable node whose turn it is, and charges it for the pick.
///
/// A node that is full for its share is passed over while another is not; it neither gains nor loses credit.
pub(super) fn by_weight(candidates: &mut [Candidate], load_max: f64) -> Option<usize> {
    let pool = PoolLoad::of(candidates);
    let all_full = !comparable(candidates).any(|(_, candidate)| pool.has_share_for(candidate, load_max));
    let takes_part = |candidate: &Candidate| {
        candidate.comparison.comparable && (all_full || pool.has_share_for(candidate, load_max))
    };
    let weight = |candidate: &Candidate| i64::from(candidate.weight.millis());
    let total: i64 = candidates.iter().filter(|it| takes_part(it)).map(weight).sum();
    let mut paid = 0;
    let mut winner: Option<usize> = None;
    for index in 0..candidates.len() {
        if !takes_part(&candidates[index]) {
            continue;
        }
        // The gains add up to the price of a pick in every set of nodes, so that credit is worth the same in each.
        let gain = PICK_CREDIT * weight(&candidates[index]) / total;
        candidates[index].comparison.credit += gain;
        paid += gain;
        let order = |index: usize| (candidates[index].comparison.credit, Reverse(candidates[index].node));
        if winner.is_none_or(|best| order(best) < order(index)) {
            winner = Some(index);
        }
    }
    candidates[winner?].comparison.credit -= paid;
    winner
}

fn comparable(candidates: &[Candidate]) -> impl Iterator<Item = (usize, &Candidate)> {
    candidates.iter().enumerate().filter(|(_, candidate)| candidate.comparison.comparable)
}

/// Load of all comparable nodes.
pub(super) struct PoolLoad {
    load: u64,
    shares: f64,
    capacity: u64,
    weights: f64,
    /// Adaptive limits follow the load, so they say nothing about shares: if any node has one, only weights count.
    counts_capacity: bool,
}

impl PoolLoad {
    pub(super) fn of(candidates: &[Candidate]) -> Self {
        let counts_capacity = comparable(candidates).all(|(_, it)| it.comparison.capacity.is_some());
        let mut pool = Self { load: 0, shares: 0.0, capacity: 0, weights: 0.0, counts_capacity };
        for (_, candidate) in comparable(candidates) {
            pool.load += u64::from(candidate.comparison.load);
            pool.shares += pool.share(candidate);
            pool.capacity +=
                u64::from(candidate.comparison.capacity.filter(|_| counts_capacity).unwrap_or(0));
            pool.weights += candidate.weight.as_f64();
        }
        pool
    }

    fn share(&self, candidate: &Candidate) -> f64 {
        let capacity = candidate.comparison.capacity.filter(|_| self.counts_capacity).unwrap_or(1);
        f64::from(capacity) * candidate.weight.as_f64()
    }

    /// Reports whether a node's load, with one more request, is within `load_max` times its share of the pool's load.
    ///
    /// The square root allows for chance: among few requests, a random spread exceeds the share itself most of the
    /// time, and a strict limit would shift requests from light nodes to heavy ones. A node that uses less than half of
    /// its share of the pool's capacity has room for more in any case. Neither applies to the load of other clients,
    /// which follows no weights.
    pub(super) fn has_share_for(&self, candidate: &Candidate, load_max: f64) -> bool {
        let due = (self.load + 1) as f64 * self.share(candidate) / self.shares;
        let comparison = &candidate.comparison;
        let max = if comparison.serves_mostly_others() {
            libm::ceil(load_max * due)
        } else {
            let room = CAPACITY_PART * self.capacity as f64 * candidate.weight.as_f64() / self.weights;
            libm::ceil(load_max * due + libm::sqrt(due)).max(room)
        };
        f64::from(comparison.load) + 1.0 <= max
    }
}

/// Returns a node's rank for a key; the highest is preferred.
///
/// The logarithm of a uniform number, divided by the weight, is smallest with a chance in proportion to the weight.
fn rank(key: u64, candidate: &Candidate) -> f64 {
    let uniform = ((hash(key, candidate.node) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    libm::log(uniform) / candidate.weight.as_f64()
}

fn hash(key: u64, node: NodeId) -> u64 {
    // Node ids are small and dense: spread them before combining them with the key.
    mix(key ^ mix(u64::from(node.0).wrapping_add(0x9e37_79b9_7f4a_7c15)))
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
    use crate::score::Comparison;
    use crate::score::tests::{candidate, example_node};
    use crate::weight::Weight;
    use alloc::vec::Vec;

    #[test]
    fn keys_spread_by_weight_and_only_the_keys_of_a_removed_node_move() {
        let all = nodes(&[1.0, 1.0, 2.0, 4.0]);
        let mut counts = [0; 4];
        for key in 0..8_000 {
            let with = home(&all, key);
            counts[with] += 1;
            let without = home(&all[..3], key);
            assert!(with == without || with == 3);
        }
        for (count, ideal) in counts.into_iter().zip([1_000_i32, 1_000, 2_000, 4_000]) {
            assert!((count - ideal).abs() < 150, "{counts:?}");
        }
    }

    #[test]
    fn a_rising_weight_only_attracts_keys() {
        let before = nodes(&[1.0, 1.0, 1.0]);
        let after = nodes(&[1.0, 1.0, 3.0]);
        for key in 0..2_000 {
            assert!(home(&after, key) == 2 || home(&after, key) == home(&before, key));
        }
    }

    #[test]
    fn picks_follow_the_weights_exactly_over_every_period() {
        let mut pool = nodes(&[9.0, 1.0]);
        for _ in 0..3 {
            let picks: Vec<_> = (0..10).map(|_| by_weight(&mut pool, 1.25).unwrap()).collect();
            assert_eq!(picks.iter().filter(|pick| **pick == 1).count(), 1, "{picks:?}");
        }
    }

    #[test]
    fn a_node_that_takes_no_part_neither_gains_nor_loses_credit() {
        let mut pool = nodes(&[1.0, 1.0, 1.0]);
        pool[2].comparison.comparable = false;
        let picks: Vec<_> = (0..4).map(|_| by_weight(&mut pool, 1.25).unwrap()).collect();
        assert_eq!((picks.as_slice(), pool[2].comparison.credit), (&[0, 1, 0, 1][..], 0));
        pool.iter_mut().for_each(|node| node.comparison.comparable = false);
        assert_eq!(by_weight(&mut pool, 1.25), None);
    }

    #[test]
    fn a_node_that_is_full_for_its_share_is_passed_over_while_another_is_not() {
        let mut pool = nodes(&[1.0, 1.0]);
        pool[0].comparison.load = 9;
        assert!((0..4).all(|_| by_weight(&mut pool, 1.25) == Some(1)));
        assert!((0..100).all(|key| home(&pool, key) == 1));
        pool[1].comparison.comparable = false;
        assert_eq!((by_weight(&mut pool, 1.25), home(&pool, 1)), (Some(0), 0));
    }

    #[test]
    fn a_node_is_full_for_its_share_above_a_quarter_more_and_the_chance_variation() {
        let has_share = |load, others: u32| {
            let mut pool = nodes(&[1.0, 1.0]);
            pool[0].comparison.load = load;
            pool[1].comparison.load = others;
            PoolLoad::of(&pool).has_share_for(&pool[0], 1.25)
        };
        // Its share of eight is 4, and 5 + √4 is 7.
        assert!(has_share(1, 0) && has_share(6, 0) && !has_share(7, 0));
        // Its share of 100 is 50, and 62.5 + √50 is 69.6.
        assert!(has_share(69, 30) && !has_share(70, 29));
    }

    #[test]
    fn capacity_counts_in_the_shares_only_if_it_is_known_of_all() {
        let mut pool = nodes(&[1.0, 1.0]);
        pool[0].comparison = Comparison { capacity: Some(2), load: 6, ..pool[0].comparison };
        pool[1].comparison.capacity = Some(10);
        assert!(!PoolLoad::of(&pool).has_share_for(&pool[0], 1.25));
        pool[1].comparison = Comparison { capacity: None, load: 6, ..pool[1].comparison };
        assert!(PoolLoad::of(&pool).has_share_for(&pool[0], 1.25));
    }

    #[test]
    fn a_node_may_use_half_of_its_share_of_the_capacity_whatever_the_others_do() {
        let mut pool = nodes(&[3.0, 1.0]);
        pool.iter_mut().for_each(|node| node.comparison.capacity = Some(32));
        // Half of 64 is 32; three quarters of it are 24.
        pool[0].comparison.load = 23;
        assert!(PoolLoad::of(&pool).has_share_for(&pool[0], 1.25));
        pool[1].comparison.load = 7;
        assert!(PoolLoad::of(&pool).has_share_for(&pool[1], 1.25));
        pool[0].comparison.load = 0;
        pool[1].comparison.load = 8;
        assert!(!PoolLoad::of(&pool).has_share_for(&pool[1], 1.25));
    }

    #[test]
    fn a_node_that_other_clients_load_gets_no_request_while_another_is_idle() {
        let mut pool = nodes(&[1.0, 1.0]);
        pool.iter_mut().for_each(|node| node.comparison.capacity = Some(8));
        pool[0].comparison.load = 3;
        assert!(PoolLoad::of(&pool).has_share_for(&pool[0], 1.25));
        pool[0].comparison.external = 3;
        assert!(!PoolLoad::of(&pool).has_share_for(&pool[0], 1.25));
    }

    /// A limit without allowance for chance turns weights of 9 to 1 into 12.7 to 1 at four clients: a client in four
    /// finds the light node busy, and one busy slot is all that the strict limit allows.
    #[test]
    fn the_chance_variation_keeps_the_light_nodes_share() {
        let mut pool = nodes(&[9.0, 1.0]);
        pool[0].comparison.load = 2;
        pool[1].comparison.load = 1;
        let due: f64 = 4.0 * 0.1;
        assert!(f64::from(pool[1].comparison.load) + 1.0 > libm::ceil(1.25 * due), "the strict limit");
        assert!(PoolLoad::of(&pool).has_share_for(&pool[1], 1.25));
    }

    fn home(pool: &[Candidate], key: u64) -> usize {
        by_affinity(pool, key, 1.25).unwrap()
    }

    fn nodes(weights: &[f64]) -> Vec<Candidate> {
        let node = |(id, weight): (u32, &f64)| Candidate {
            weight: Weight::new(*weight).unwrap(),
            ..candidate(id, example_node())
        };
        (0..).zip(weights).map(node).collect()
    }
}
