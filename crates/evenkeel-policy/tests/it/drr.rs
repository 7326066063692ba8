//! Guarantees of deficit round robin.

use std::collections::BTreeSet;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{DrrConfig, DrrScheduler, KeyStatus, NewKey, Settlement, TenantDrr, WeightedKey};
use evenkeel_policy::id::{Key, TenantId};
use evenkeel_policy::weight::Weight;
use proptest::prelude::*;

/// One operation on a scheduler.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u32, Weight),
    Remove(u32),
    Park(u32),
    Wake(u32),
    Reweigh(u32, Weight),
    Serve(Cost),
    Settle(u32, Cost, Cost),
}

fn weight() -> impl Strategy<Value = Weight> {
    prop_oneof![Just(Weight::ONE), (0.01..20.0).prop_map(|weight| Weight::new(weight).unwrap())]
}

fn cost(max: u64) -> impl Strategy<Value = Cost> {
    prop_oneof![Just(Cost(1_000)), (1..=max).prop_map(Cost)]
}

fn step(keys: std::ops::Range<u32>) -> impl Strategy<Value = Step> {
    let key = move || keys.clone();
    prop_oneof![
        2 => (key(), weight()).prop_map(|(key, weight)| Step::Add(key, weight)),
        1 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::Park),
        1 => key().prop_map(Step::Wake),
        1 => (key(), weight()).prop_map(|(key, weight)| Step::Reweigh(key, weight)),
        6 => cost(5_000).prop_map(Step::Serve),
        1 => (key(), cost(9_000), cost(9_000)).prop_map(|(key, charged, actual)| Step::Settle(key, charged, actual)),
    ]
}

fn scheduler(new_key: NewKey) -> DrrScheduler {
    DrrScheduler::new(DrrConfig { new_key, ..DrrConfig::default() }).unwrap()
}

fn apply(drr: &mut DrrScheduler, step: Step) -> Option<(Key, Cost)> {
    match step {
        Step::Add(key, weight) => drr.add_key(Key(key), weight).unwrap(),
        Step::Remove(key) => drr.remove_key(Key(key)),
        Step::Park(key) => drr.park(Key(key)),
        Step::Wake(key) => drr.wake(Key(key)),
        Step::Reweigh(key, weight) => drr.update_weight(Key(key), weight),
        Step::Settle(key, charged, actual) => {
            drr.settle(Key(key), charged, actual, Settlement::Final);
        }
        Step::Serve(cost) => {
            let key = drr.next_key()?;
            drr.consume_deficit(key, cost);
            return Some((key, cost));
        }
    }
    None
}

/// Generates the weights of keys 0 and 1, which are added once and keep their work, and a sequence of steps that adds
/// them among operations on other keys.
fn backlog_and_churn() -> impl Strategy<Value = ([Weight; 2], Vec<Step>)> {
    let churn = || {
        prop::collection::vec(step(2..8), 0..300).prop_map(|mut steps| {
            steps.retain(|step| !matches!(step, Step::Settle(..)));
            steps
        })
    };
    ([weight(), weight()], churn(), churn(), churn()).prop_map(|(weights, before, between, after)| {
        let joins = (0..).zip(weights).map(|(key, weight)| Step::Add(key, weight)).collect::<Vec<_>>();
        (weights, [before, vec![joins[0]], between, vec![joins[1]], after].concat())
    })
}

/// Checks the pairwise guarantee for every interval; `served` holds the running sums of two keys' service.
fn check_every_interval(
    served: &[[u64; 2]],
    weights: [Weight; 2],
    cost_max: u64,
) -> Result<(), TestCaseError> {
    let bound = 1_000.0 + weights.iter().map(|weight| cost_max as f64 / weight.as_f64()).sum::<f64>();
    for (end, sums) in served.iter().enumerate() {
        for since in &served[..end] {
            let gap = normalised_gap(*sums, *since, weights);
            prop_assert!(gap <= bound + 1e-6, "gap {gap} over bound {bound}");
        }
    }
    Ok(())
}

fn normalised_gap(served: [u64; 2], since: [u64; 2], weights: [Weight; 2]) -> f64 {
    let [first, second] = [0, 1].map(|key| (served[key] - since[key]) as f64 / weights[key].as_f64());
    (first - second).abs()
}

proptest! {
    #[test]
    fn backlogged_keys_are_served_by_weight_over_every_interval((weights, steps) in backlog_and_churn()) {
        let mut drr = scheduler(NewKey::First);
        let mut served = vec![[0_u64; 2]];
        let mut cost_max = 0;
        for step in steps {
            let Some((key, cost)) = apply(&mut drr, step).filter(|(key, _)| key.0 < 2) else { continue };
            cost_max = cost_max.max(cost.0);
            if drr.key_status(Key(1)) == KeyStatus::Idle {
                continue;
            }
            let mut sums = served[served.len() - 1];
            sums[key.index()] += cost.0;
            served.push(sums);
        }
        check_every_interval(&served, weights, cost_max)?;
    }

    /// Under `NextRound` the guarantee counts from the first round that was opened with both keys in it.
    #[test]
    fn under_next_round_backlogged_keys_are_also_served_by_weight((weights, steps) in backlog_and_churn()) {
        let mut drr = scheduler(NewKey::NextRound);
        let mut served = vec![[0_u64; 2]];
        let mut cost_max = 0;
        let mut joined = None;
        for step in steps {
            if drr.next_key().is_none() {
                drr.start_new_round();
            }
            let served_now = apply(&mut drr, step);
            if joined.is_none() && drr.key_status(Key(1)) != KeyStatus::Idle {
                joined = Some(drr.round());
            }
            let Some((key, cost)) = served_now.filter(|(key, _)| key.0 < 2) else { continue };
            cost_max = cost_max.max(cost.0);
            if joined.is_some_and(|joined| joined < drr.round()) {
                let mut sums = served[served.len() - 1];
                sums[key.index()] += cost.0;
                served.push(sums);
            }
        }
        check_every_interval(&served, weights, cost_max)?;
    }

    #[test]
    fn there_is_a_next_key_while_any_key_is_active(steps in prop::collection::vec(step(0..12), 1..500)) {
        let mut drr = scheduler(NewKey::First);
        let mut active = BTreeSet::new();
        let mut parked = BTreeSet::new();
        for step in steps {
            apply(&mut drr, step);
            match step {
                Step::Add(key, _) if !parked.contains(&key) => { active.insert(key); }
                Step::Remove(key) => { active.remove(&key); parked.remove(&key); }
                Step::Park(key) if active.remove(&key) => { parked.insert(key); }
                Step::Wake(key) if parked.remove(&key) => { active.insert(key); }
                _ => {}
            }
            prop_assert_eq!(drr.active_len(), active.len());
            prop_assert_eq!(drr.parked_len(), parked.len());
            prop_assert_eq!(drr.next_key().is_some(), !active.is_empty());
            if let Some(key) = drr.next_key() {
                prop_assert!(active.contains(&key.0));
            }
        }
    }

    /// No wake-up is lost: after any steps, every active key is served again.
    #[test]
    fn every_active_key_is_eventually_served(
        steps in prop::collection::vec(step(0..12), 1..300),
        new_key in prop_oneof![Just(NewKey::First), Just(NewKey::NextRound)],
    ) {
        let mut drr = scheduler(new_key);
        for step in steps {
            if apply(&mut drr, step).is_none() && drr.next_key().is_none() {
                drr.start_new_round();
            }
        }
        let mut waiting: BTreeSet<u32> = (0..12)
            .filter(|&key| !matches!(drr.key_status(Key(key)), KeyStatus::Idle | KeyStatus::Parked))
            .collect();
        prop_assert_eq!(waiting.len(), drr.active_len());
        // Enough picks to pay off the deepest debt of these steps at the smallest weight.
        for _ in 0..1_000_000 {
            let Some(key) = drr.next_key() else {
                if waiting.is_empty() { break; }
                drr.start_new_round();
                continue;
            };
            drr.consume_deficit(key, Cost(5_000));
            waiting.remove(&key.0);
            if waiting.is_empty() { break; }
        }
        prop_assert!(waiting.is_empty(), "never served again: {waiting:?}");
    }

    #[test]
    fn a_key_idle_for_a_round_is_served_within_the_other_prioritized_keys_plus_one(
        steps in prop::collection::vec(step(0..12), 1..300),
        others in prop::collection::vec((20..30_u32, weight()), 0..6),
        new_weight in weight(),
    ) {
        let mut drr = scheduler(NewKey::First);
        for step in steps {
            apply(&mut drr, step);
        }
        for &(key, weight) in &others {
            drr.add_key(Key(key), weight).unwrap();
        }
        drr.add_key(Key(40), new_weight).unwrap();
        // While any key is prioritized, the next key is a prioritized one, so `Next` counts too.
        let is_prioritized = |key: &u32| matches!(drr.key_status(Key(*key)), KeyStatus::Prioritized | KeyStatus::Next);
        let limit = (0..40).filter(is_prioritized).count() + 1;
        let mut picks = 1;
        while drr.next_key() != Some(Key(40)) {
            let key = drr.next_key().unwrap();
            drr.consume_deficit(key, Cost(10));
            picks += 1;
            prop_assert!(picks <= limit, "not served within {limit} picks");
        }
    }

    /// The debt wheel skips visits to keys in debt without changing the service: the same keys are served in the same
    /// order and rounds as in a plain ring that visits every key.
    #[test]
    fn debtors_are_served_when_a_plain_ring_serves_them(
        weights in prop::collection::vec(weight(), 2..6),
        costs in prop::collection::vec(cost(200_000), 60),
    ) {
        let cost_of = |key: u32, served: &[(u64, u32, Cost)]| {
            let earlier = served.iter().filter(|&&(_, other, _)| other == key).count();
            costs[(earlier * 7 + key as usize) % costs.len()]
        };
        let mut drr = scheduler(NewKey::NextRound);
        for (key, &weight) in (0..).zip(&weights) {
            drr.add_key(Key(key), weight).unwrap();
        }
        let mut actual = vec![];
        while drr.round() < 300 && actual.len() < 10_000 {
            match drr.next_key() {
                Some(key) => {
                    let cost = cost_of(key.0, &actual);
                    actual.push((drr.round(), key.0, cost));
                    drr.consume_deficit(key, cost);
                }
                None => drr.start_new_round(),
            }
        }
        let mut plain_ring = vec![];
        let mut deficits = vec![0_i64; weights.len()];
        for round in 2..300_u64 {
            for (key, deficit) in (0..).zip(&mut deficits) {
                *deficit += i64::from(weights[key as usize].millis()) * 1_000;
                while *deficit > 0 {
                    let cost = cost_of(key, &plain_ring);
                    *deficit -= cost.0 as i64 * 1_000;
                    plain_ring.push((round, key, cost));
                }
            }
        }
        prop_assert_eq!(actual, plain_ring);
    }

    #[test]
    fn three_equal_keys_get_a_third_of_any_window_within_one_message(window in 1..200_usize, skip in 0..50_usize) {
        let mut drr = scheduler(NewKey::First);
        for key in 0..3 {
            drr.add_key(Key(key), Weight::ONE).unwrap();
        }
        let mut served = [0_usize; 3];
        for pick in 0..skip + window {
            let key = drr.next_key().unwrap();
            drr.consume_deficit(key, Cost::MESSAGE);
            served[key.index()] += usize::from(pick >= skip);
        }
        for count in served {
            prop_assert!(count.abs_diff(window / 3) <= 1, "{served:?} of {window}");
        }
    }

    #[test]
    fn tenants_are_served_by_weight_regardless_of_their_keys(
        tenant_weights in [weight(), weight()],
        keys in prop::collection::vec((0..2_u32, weight()), 2..20),
        steps in prop::collection::vec((0..20_u32, any::<bool>(), cost(5_000)), 100..300),
    ) {
        let mut drr = TenantDrr::new(Cost::MESSAGE, 1_000).unwrap();
        let weighted_key = |key: u32, tenant: u32, weight| WeightedKey {
            tenant: TenantId(tenant),
            tenant_weight: tenant_weights[tenant as usize],
            key: Key(key),
            weight,
        };
        // Each tenant has one key that stays; the other keys are added and removed.
        for tenant in 0..2 {
            drr.add_key(weighted_key(tenant, tenant, Weight::ONE)).unwrap();
        }
        let mut served = vec![[0_u64; 2]];
        let mut cost_max = 0;
        for (pick, joins, cost) in steps {
            let index = pick as usize % keys.len();
            let key = 2 + index as u32;
            let (tenant, weight) = keys[index];
            if joins {
                drr.add_key(weighted_key(key, tenant, weight)).unwrap();
            } else {
                drr.remove_key(Key(key));
            }
            let turn = drr.next_key().unwrap();
            drr.consume_deficit(turn.key, cost);
            let mut sums = served[served.len() - 1];
            sums[turn.tenant.index()] += cost.0;
            served.push(sums);
            cost_max = cost_max.max(cost.0);
        }
        check_every_interval(&served, tenant_weights, cost_max)?;
    }
}
