//! Guarantees of the transaction places of `score`:
//!
//! - The number of places is the number of transactions that the gate lets begin, one after the other.
//! - The shares of all tenants fit in the places, except for the one place that each tenant has at least.

use evenkeel_policy::score::{Gate, Limits, LimitsConfig, NodeStats, RequestKind, Status, transaction_share};
use evenkeel_policy::weight::Weight;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn the_gate_lets_as_many_transactions_begin_as_there_are_places(
        max_transaction_conns in prop_oneof![1..200_i32, 1..=i32::MAX],
        tx_free_min in prop_oneof![Just(0.05), 0.001..=1.0],
    ) {
        let limits = Limits::new(LimitsConfig { tx_free_min, ..LimitsConfig::default() }).unwrap();
        let places = limits.transaction_places(max_transaction_conns.unsigned_abs());
        let gate = |running_tx: u32| {
            let stats = NodeStats {
                running_tx,
                max_http_sessions: i32::MAX,
                max_open_conns: i32::MAX,
                max_transaction_conns,
                status: Status::Serving,
                ..NodeStats::default()
            };
            limits.gate(&stats, RequestKind::BeginTx)
        };
        prop_assert!(places >= 1);
        prop_assert_eq!(gate(places), Err(Gate::TxFull), "{} places", places);
        for running_tx in [0, places / 2, places - 1].into_iter().chain(places.saturating_sub(100)..places) {
            prop_assert_eq!(gate(running_tx), Ok(()), "{} of {} places", running_tx, places);
        }
    }

    #[test]
    fn shares_fit_in_the_places_except_for_the_one_that_each_tenant_has_at_least(
        places in 0..100_000_u32,
        weights in vec((0.01..=1000.0_f64).prop_map(|weight| Weight::new(weight).unwrap()), 1..20),
    ) {
        let sum = weights.iter().map(|weight| u64::from(weight.millis())).sum();
        let shares: Vec<u32> = weights.iter().map(|weight| transaction_share(places, *weight, sum)).collect();
        prop_assert!(shares.iter().all(|share| *share >= 1));
        prop_assert!(shares.iter().map(|share| share - 1).sum::<u32>() <= places);
        for (weight, share) in weights.iter().zip(&shares) {
            let exact = f64::from(places) * f64::from(weight.millis()) / sum as f64;
            prop_assert!((f64::from(*share) - exact) <= 1.0 && exact - f64::from(*share) < 1.0 + 1e-6);
        }
    }
}
