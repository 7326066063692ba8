//! Fair sharing of a byte budget: when it is full, the holder furthest above its share gives bytes back.

use alloc::collections::BTreeMap;

use crate::weight::Weight;

/// Fraction of the budget that is shared by weight; the rest is left to holders below their share.
const SHARED: f64 = 0.8;

/// A byte budget that several holders share by weight.
///
/// A holder's fair share is `0.8 × bytes_max × weight / Σ weights of the holders with bytes` (an arrival's included).
/// Only bytes that are still being received can be evicted. The caller evicts; nothing here waits.
#[derive(Clone, Debug)]
pub struct FairBudget<K> {
    bytes_max: u64,
    used: u64,
    /// Sum of the weights of all holders with bytes, in thousandths.
    weight_sum: u64,
    holdings: BTreeMap<K, Holding>,
}

/// Bytes of one holder.
#[derive(Clone, Copy, Debug)]
struct Holding {
    weight: Weight,
    receiving: u64,
    received: u64,
}

impl Holding {
    fn bytes(&self) -> u64 {
        self.receiving + self.received
    }
}

/// State of bytes in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesState {
    /// Part of a body that is not complete yet; can be evicted.
    Receiving,
    /// Part of a complete body that a request needs: never evicted.
    Received,
}

/// Decision on more bytes of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetDecision<K> {
    /// The bytes fit.
    Grant,
    /// A body that this holder is sending must be evicted first; it may be the body that the bytes belong to.
    Evict(K),
    /// The budget is full and nobody above its share has bytes that can be evicted.
    Refuse,
}

impl<K: Copy + Ord> FairBudget<K> {
    /// Creates an empty budget.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used: 0, weight_sum: 0, holdings: BTreeMap::new() }
    }

    /// Decides on `bytes` more of a holder, without changing the counts.
    pub fn decide(&self, holder: K, weight: Weight, bytes: u64) -> BudgetDecision<K> {
        let shared = SHARED * self.bytes_max as f64;
        if (self.used + bytes) as f64 <= shared {
            return BudgetDecision::Grant;
        }
        let own = self.holdings.get(&holder).filter(|holding| holding.bytes() > 0);
        let new_weight = if own.is_some() { 0 } else { u64::from(weight.millis()) };
        let per_weight = shared / (self.weight_sum + new_weight) as f64;
        let excess = |bytes: u64, weight: Weight| bytes as f64 - per_weight * f64::from(weight.millis());
        let own_excess = match own {
            Some(holding) => excess(holding.bytes() + bytes, holding.weight),
            None => excess(bytes, weight),
        };
        // On a tie the arrival's own holder gives way, so that equal holders do not evict each other in turn.
        let mut furthest = Some((own_excess, holder)).filter(|(excess, _)| *excess > 0.0);
        for (&other, holding) in self.holdings.iter().filter(|(other, _)| **other != holder) {
            let excess = excess(holding.bytes(), holding.weight);
            if holding.receiving > 0 && excess > furthest.map_or(0.0, |(most, _)| most) {
                furthest = Some((excess, other));
            }
        }
        match furthest {
            Some((_, holder)) => BudgetDecision::Evict(holder),
            None if self.used + bytes <= self.bytes_max => BudgetDecision::Grant,
            None => BudgetDecision::Refuse,
        }
    }

    /// Counts bytes of a holder. A holder keeps the weight that it had when it held nothing.
    pub fn add(&mut self, holder: K, weight: Weight, bytes: u64, state: BytesState) {
        if bytes == 0 {
            return;
        }
        let holding = self.holdings.entry(holder).or_insert(Holding { weight, receiving: 0, received: 0 });
        if holding.bytes() == 0 {
            holding.weight = weight;
            self.weight_sum += u64::from(weight.millis());
        }
        match state {
            BytesState::Receiving => holding.receiving += bytes,
            BytesState::Received => holding.received += bytes,
        }
        self.used += bytes;
    }

    /// Removes bytes of a holder; more than it has are ignored.
    pub fn remove(&mut self, holder: K, bytes: u64, state: BytesState) {
        let Some(holding) = self.holdings.get_mut(&holder) else { return };
        let count = match state {
            BytesState::Receiving => &mut holding.receiving,
            BytesState::Received => &mut holding.received,
        };
        let removed = bytes.min(*count);
        *count -= removed;
        self.used -= removed;
        if removed > 0 && holding.bytes() == 0 {
            self.weight_sum -= u64::from(holding.weight.millis());
        }
    }

    /// Returns the bytes of all holders.
    pub fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BudgetDecision::{Evict, Grant, Refuse};
    use BytesState::{Received, Receiving};

    const FLOOD: u32 = 0;
    const QUIET: u32 = 1;
    const THIRD: u32 = 2;

    #[test]
    fn below_the_shared_part_everything_is_granted() {
        let mut budget = budget(&[(FLOOD, 70, Receiving)]);
        assert_eq!(budget.decide(FLOOD, Weight::ONE, 10), Grant);
        budget.add(FLOOD, Weight::ONE, 10, Receiving);
        assert_eq!(budget.decide(FLOOD, Weight::ONE, 1), Evict(FLOOD));
        assert_eq!(budget.used(), 80);
    }

    #[test]
    fn a_holder_below_its_share_evicts_the_one_furthest_above() {
        let budget = budget(&[(FLOOD, 50, Receiving), (THIRD, 30, Receiving)]);
        assert_eq!(budget.decide(QUIET, Weight::ONE, 5), Evict(FLOOD));
        assert_eq!(budget.decide(THIRD, Weight::ONE, 5), Evict(FLOOD), "35 is below its share of 40");
        let third_by_weight = {
            let mut heavy = FairBudget::new(100);
            heavy.add(FLOOD, Weight::whole(5).unwrap(), 50, Receiving);
            heavy.add(THIRD, Weight::ONE, 30, Receiving);
            heavy.decide(QUIET, Weight::ONE, 5)
        };
        assert_eq!(third_by_weight, Evict(THIRD), "shares are 57, 11 and 11");
    }

    #[test]
    fn received_bytes_are_never_evicted_and_leave_room_for_a_holder_below_its_share() {
        let mut budget = budget(&[(FLOOD, 80, Received)]);
        assert_eq!(budget.decide(FLOOD, Weight::ONE, 1), Evict(FLOOD), "its own new body gives way");
        assert_eq!(budget.decide(QUIET, Weight::ONE, 20), Grant);
        assert_eq!(budget.decide(QUIET, Weight::ONE, 21), Refuse);
        budget.add(FLOOD, Weight::ONE, 1, Receiving);
        assert_eq!(budget.decide(QUIET, Weight::ONE, 5), Evict(FLOOD));
    }

    #[test]
    fn equal_holders_do_not_evict_each_other() {
        let budget = budget(&[(FLOOD, 45, Receiving), (QUIET, 45, Receiving)]);
        assert_eq!(budget.decide(QUIET, Weight::ONE, 1), Evict(QUIET));
        assert_eq!(budget.decide(FLOOD, Weight::ONE, 1), Evict(FLOOD));
    }

    #[test]
    fn bytes_removed_twice_are_counted_once() {
        let mut budget = budget(&[(FLOOD, 50, Receiving), (QUIET, 10, Received)]);
        budget.remove(FLOOD, 60, Receiving);
        budget.remove(FLOOD, 60, Receiving);
        budget.remove(FLOOD, 60, Received);
        budget.remove(THIRD, 1, Received);
        assert_eq!((budget.used(), budget.weight_sum), (10, 1_000));
        budget.remove(QUIET, 10, Received);
        assert_eq!((budget.used(), budget.weight_sum), (0, 0));
    }

    fn budget(held: &[(u32, u64, BytesState)]) -> FairBudget<u32> {
        let mut budget = FairBudget::new(100);
        for &(holder, bytes, state) in held {
            budget.add(holder, Weight::ONE, bytes, state);
        }
        budget
    }
}
