//! Transaction places: the number of transactions that a node runs at once, and a tenant's share of them.
//!
//! Guarantees: both are integers computed from settings and weights alone, so they do not drift with measurements.

use super::limits::Limits;
use super::node::NodeStats;
use crate::weight::Weight;

impl Limits {
    /// Returns the number of transactions that a node with `max_transaction_conns` connections for them runs at once.
    ///
    /// The specification refuses a begin while the free fraction is below `tx_free_min`: with the default of 0.05, 48 of
    /// 50 connections are usable, and all of 10. With `tx_free_min` 0 all are usable.
    pub fn transaction_places(&self, max_transaction_conns: u32) -> u32 {
        let max = i32::try_from(max_transaction_conns).unwrap_or(i32::MAX);
        // Searched with the gate's own arithmetic, so that rounding cannot make the two differ.
        let is_refused = |running_tx: u32| {
            let stats = NodeStats { running_tx, max_transaction_conns: max, ..NodeStats::default() };
            stats.tx_free() < self.config().tx_free_min
        };
        let mut places = 0;
        let mut places_max = max.unsigned_abs();
        while places < places_max {
            let middle = places + (places_max - places) / 2;
            if is_refused(middle) {
                places_max = middle;
            } else {
                places = middle + 1;
            }
        }
        places
    }
}

/// Returns a tenant's share of a node's transaction places: its part by weight, rounded down, and at least 1.
///
/// `weight_sum_millis` is the sum of the weights of all tenants that hold or wait for a place, in thousandths.
pub fn transaction_share(places: u32, weight: Weight, weight_sum_millis: u64) -> u32 {
    let weight = u64::from(weight.millis());
    let share = u64::from(places) * weight / weight_sum_millis.max(weight);
    // At most `places`, so the conversion cannot fail.
    u32::try_from(share).unwrap_or(places).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::LimitsConfig;

    #[test]
    fn a_twentieth_of_the_connections_stays_free() {
        let places = [0, 1, 10, 19, 20, 21, 39, 40, 50, 100, u32::MAX]
            .map(|max_transaction_conns| Limits::default().transaction_places(max_transaction_conns));
        assert_eq!(places, [0, 1, 10, 19, 20, 20, 38, 39, 48, 96, 2_040_109_465]);
    }

    #[test]
    fn without_a_reserve_every_connection_is_a_place_and_with_all_reserved_only_the_first_is() {
        let places = |tx_free_min: f64| {
            let config = LimitsConfig { tx_free_min, ..LimitsConfig::default() };
            Limits::new(config).unwrap().transaction_places(50)
        };
        assert_eq!((places(0.0), places(1.0)), (50, 1));
    }

    #[test]
    fn a_share_is_rounded_down_and_at_least_one() {
        let share = |places: u32, weight: u32| {
            transaction_share(places, Weight::whole(weight).unwrap(), 6 * u64::from(Weight::ONE.millis()))
        };
        assert_eq!([1, 2, 3].map(|weight| share(12, weight)), [2, 4, 6]);
        assert_eq!([1, 2, 3].map(|weight| share(11, weight)), [1, 3, 5]);
        assert_eq!([1, 2, 3].map(|weight| share(2, weight)), [1, 1, 1]);
        assert_eq!(transaction_share(7, Weight::ONE, 0), 7, "a tenant alone has every place");
        assert_eq!(transaction_share(u32::MAX, Weight::MAX, 0), u32::MAX);
    }
}
