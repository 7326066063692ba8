//! Deficits, debts, refunds, and the balance of parked keys.

use super::*;

/// A plain ring visits a key of weight 0.01 a hundred times per message; all but one of these visits find it in debt.
#[test]
fn a_tiny_weight_costs_no_empty_visits() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 0.01)]);
    let served = serve(&mut drr, 1_010);
    assert_eq!(count(&served), [1_000, 10, 0]);

    let mut visits = 0;
    let mut messages = 0;
    let mut deficits = [0_i64, 0];
    while messages < 1_010 {
        for (deficit, grant) in deficits.iter_mut().zip([1_000, 10]) {
            visits += 1;
            *deficit += grant;
            while *deficit > 0 && messages < 1_010 {
                *deficit -= 1_000;
                messages += 1;
            }
        }
    }
    assert!(visits > messages + 900, "the plain ring makes {visits} visits for {messages} messages");

    serve(&mut drr, 20);
    let status = drr.key_status(BOB);
    assert!(matches!(status, KeyStatus::InDebt { rounds: 1..=100 }), "still in the ring: {status:?}");
}

#[test]
fn a_debtor_that_is_the_only_active_key_is_served_at_once() {
    for new_key in [NewKey::NextRound, NewKey::First] {
        let mut drr = scheduler(new_key, &[(ALICE, 0.01)]);
        drr.start_new_round();
        drr.consume_deficit(ALICE, Cost(50_000_000));
        drr.start_new_round();
        assert_eq!(drr.next_key(), Some(ALICE), "{new_key:?}");
    }
}

#[test]
fn an_idle_key_keeps_its_debt_and_passing_rounds_pay_it_off() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.consume_deficit(ALICE, Cost(10_000));
    drr.remove_key(ALICE);
    assert_eq!(drr.debt(ALICE), Cost(10_000));
    let start = drr.round();
    serve(&mut drr, 5);
    let passed = drr.round() - start;
    drr.add_key(ALICE, Weight::ONE).unwrap();
    // ALICE is active again, so the current round's grant pays off debt too.
    let owed = drr.debt(ALICE).0;
    assert_eq!(owed, 10_000 - 1_000 * (passed + 1));
    // BOB is picked in this round, in each round that pays off debt and in the round in which ALICE's deficit is
    // positive; then ALICE is picked.
    assert_eq!(picks_until(&mut drr, ALICE), 3 + usize::try_from(owed / 1_000).unwrap());
}

/// If debt were dropped when a key goes idle, it could take ten times its share by leaving after each overdraft.
#[test]
fn an_on_off_tenant_cannot_escape_settlement() {
    let mut drr = scheduler(NewKey::First, &[(BOB, 1.0)]);
    let mut spent = [0_u64; 2];
    for _ in 0..2_000 {
        drr.add_key(ALICE, Weight::ONE).unwrap();
        let key = drr.next_key().unwrap();
        drr.consume_deficit(key, MESSAGE);
        let mut actual = MESSAGE;
        if key == ALICE {
            drr.remove_key(ALICE);
            actual = drr.settle(ALICE, MESSAGE, Cost(10_000), Settlement::Final);
        }
        spent[key.index()] += actual.0;
    }
    let [alice, bob] = spent;
    assert!(alice <= bob + 20_000, "the on/off tenant took {alice}, the other {bob}");
}

#[test]
fn a_running_settlement_only_raises_the_charge() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 1.0)]);
    drr.start_new_round();
    drr.consume_deficit(ALICE, Cost(500));
    assert_eq!(drr.settle(ALICE, Cost(500), Cost(100), Settlement::Running), Cost(500));
    assert_eq!(drr.deficit(ALICE), Cost(500));
    assert_eq!(drr.settle(ALICE, Cost(500), Cost(700), Settlement::Running), Cost(700));
    assert_eq!(drr.deficit(ALICE), Cost(300));
    assert_eq!(drr.settle(ALICE, Cost(700), Cost(200), Settlement::Final), Cost(200));
    assert_eq!(drr.deficit(ALICE), Cost(800));
}

#[test]
fn a_refund_to_an_idle_key_only_cancels_debt() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.consume_deficit(ALICE, Cost(3_000));
    drr.remove_key(ALICE);
    assert_eq!(drr.debt(ALICE), Cost(3_000));
    drr.settle(ALICE, Cost(3_000), Cost(500), Settlement::Final);
    assert_eq!(drr.debt(ALICE), Cost(500));
    drr.settle(ALICE, Cost(3_000), Cost(0), Settlement::Final);
    assert_eq!((drr.debt(ALICE), drr.deficit(ALICE)), (Cost(0), Cost(0)));
}

#[test]
fn rounds_before_a_charge_to_an_idle_key_do_not_pay_it_off() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    serve(&mut drr, 2);
    drr.remove_key(ALICE);
    serve(&mut drr, 20);
    drr.settle(ALICE, MESSAGE, Cost(6_000), Settlement::Final);
    assert_eq!(drr.debt(ALICE), Cost(5_000));
    serve(&mut drr, 2);
    assert_eq!(drr.debt(ALICE), Cost(3_000));
}

#[test]
fn a_key_whose_grant_equals_its_debt_is_not_served_in_that_round() {
    let mut drr = in_ring(1);
    let mut served = vec![];
    for _ in 0..10 {
        let key = drr.next_key().unwrap();
        drr.consume_deficit(key, if key == ALICE { Cost(2_000) } else { MESSAGE });
        served.push(key);
    }
    assert_eq!(served, [ALICE, BOB, CAROL, BOB, CAROL, ALICE, BOB, CAROL, BOB, CAROL]);
}

#[test]
fn a_charge_within_the_next_grant_keeps_the_order() {
    let mut drr = in_ring(1);
    serve(&mut drr, 1);
    drr.settle(ALICE, MESSAGE, Cost(1_500), Settlement::Running);
    drr.settle(CAROL, MESSAGE, Cost(1_500), Settlement::Running);
    assert_eq!(serve(&mut drr, 5), [BOB, CAROL, ALICE, BOB, CAROL]);
}

#[test]
fn a_refund_lets_a_new_key_use_the_rest_of_its_grant_in_this_round() {
    let mut drr = busy(3);
    let new_key = Key(3);
    drr.add_key(new_key, Weight::ONE).unwrap();
    drr.consume_deficit(new_key, MESSAGE);
    let round = drr.round();
    drr.settle(new_key, MESSAGE, Cost(200), Settlement::Final);
    assert!(picks_until(&mut drr, new_key) <= 4 && drr.round() <= round + 1);
    assert_eq!(drr.debt(new_key), Cost(200));
}

#[test]
fn a_refund_returns_a_debtor_to_the_ring_early() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.consume_deficit(ALICE, Cost(100_000));
    assert!(matches!(drr.key_status(ALICE), KeyStatus::InDebt { .. }));
    drr.settle(ALICE, Cost(100_000), Cost(500), Settlement::Final);
    assert_eq!((drr.key_status(ALICE), drr.debt(ALICE)), (KeyStatus::InRing, Cost(500)));
    assert_eq!(serve(&mut drr, 2), [BOB, ALICE]);
}

#[test]
fn a_refund_above_the_debt_returns_a_new_key_to_the_current_round() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.consume_deficit(ALICE, Cost(5_000));
    drr.settle(ALICE, Cost(6_000), Cost::ZERO, Settlement::Final);
    assert_eq!(drr.key_status(ALICE), KeyStatus::InRing);
    assert_eq!(serve(&mut drr, 3), [BOB, ALICE, ALICE]);
}

#[test]
fn raising_the_charge_of_the_next_key_ends_its_turn_but_not_the_round() {
    let mut drr = in_ring(2);
    let round = drr.round();
    assert_eq!(drr.next_key(), Some(ALICE));
    drr.consume_deficit(ALICE, MESSAGE);
    drr.settle(ALICE, MESSAGE, Cost(2_500), Settlement::Running);
    assert_eq!((drr.next_key(), drr.round()), (Some(BOB), round));
}

#[test]
fn a_new_weight_applies_to_waiting_work_from_the_next_visit() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    serve(&mut drr, 2);
    drr.update_weight(BOB, Weight::whole(3).unwrap());
    assert_eq!(serve(&mut drr, 8), [ALICE, BOB, BOB, BOB, ALICE, BOB, BOB, BOB]);
    drr.update_weight(BOB, Weight::new(0.5).unwrap());
    assert_eq!(count(&serve(&mut drr, 30)), [20, 10, 0]);
}

#[test]
fn a_new_weight_applies_to_a_debtor() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 0.01)]);
    serve(&mut drr, 4);
    assert!(matches!(drr.key_status(BOB), KeyStatus::InDebt { rounds: 90.. }));
    drr.update_weight(BOB, Weight::ONE);
    assert_eq!(drr.key_status(BOB), KeyStatus::InRing);
    assert_eq!(drr.next_key(), Some(ALICE), "BOB already had its grant of this round");
    assert_eq!(count(&serve(&mut drr, 21)), [11, 10, 0]);
}

#[test]
fn a_parked_key_is_skipped_until_woken() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.park(ALICE);
    assert_eq!((drr.parked_len(), drr.active_len()), (1, 1));
    drr.add_key(ALICE, Weight::ONE).unwrap();
    assert_eq!(count(&serve(&mut drr, 10)), [0, 10, 0]);
    drr.wake(ALICE);
    drr.wake(BOB);
    assert_eq!((drr.parked_len(), drr.active_len()), (0, 2));
    assert_eq!(picks_until(&mut drr, ALICE), 1);
    drr.park(ALICE);
    drr.remove_key(ALICE);
    assert_eq!((drr.parked_len(), drr.key_status(ALICE)), (0, KeyStatus::Idle));
    drr.park(CAROL);
    drr.park(ALICE);
    assert_eq!(drr.key_status(ALICE), KeyStatus::Idle, "an idle key cannot be parked");
}

#[test]
fn a_parked_key_keeps_the_rest_of_its_grant_for_one_round() {
    let mut drr = in_ring(3);
    assert_eq!(drr.next_key(), Some(ALICE));
    drr.consume_deficit(ALICE, MESSAGE);
    drr.park(ALICE);
    assert_eq!(drr.deficit(ALICE), Cost(2_000));
    drr.consume_deficit(BOB, MESSAGE);
    drr.wake(ALICE);
    assert_eq!(serve(&mut drr, 3), [CAROL, ALICE, ALICE]);
    while drr.next_key() != Some(ALICE) {
        serve(&mut drr, 1);
    }
    drr.consume_deficit(ALICE, MESSAGE);
    drr.park(ALICE);
    assert_eq!(drr.deficit(ALICE), Cost(2_000));
    serve(&mut drr, 10);
    assert_eq!(drr.deficit(ALICE), Cost(0), "forfeited after a round");
}

/// Parking the last key of a round ends the round. If the key then lost the rest of its grant, a key of weight 10
/// beside ten keys of weight 1 would get 714 of 2000 messages.
#[test]
fn a_key_parked_after_each_message_still_gets_its_share() {
    let mut drr = busy(10);
    let capped = Key(10);
    drr.add_key(capped, Weight::whole(10).unwrap()).unwrap();
    let mut served = 0;
    for _ in 0..2_000 {
        let key = drr.next_key().unwrap();
        drr.consume_deficit(key, MESSAGE);
        if key == capped {
            served += 1;
            drr.park(capped);
            drr.wake(capped);
        }
    }
    assert!((990..=1_010).contains(&served), "{served} of 2000");
}

#[test]
fn under_next_round_a_key_parked_before_its_turn_keeps_the_rounds_grant() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.start_new_round();
    drr.park(BOB);
    assert_eq!(drr.deficit(BOB), Cost(1_000));
    drr.wake(BOB);
    assert_eq!(serve_round(&mut drr), [ALICE, BOB]);
}

#[test]
fn under_next_round_a_new_weight_does_not_change_the_grant_already_given() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 1.0)]);
    drr.start_new_round();
    drr.update_weight(ALICE, Weight::whole(3).unwrap());
    assert_eq!(drr.deficit(ALICE), Cost(1_000));
    drr.start_new_round();
    assert_eq!(drr.deficit(ALICE), Cost(4_000));
}

#[test]
fn a_key_added_parked_waits_until_woken() {
    let mut drr = scheduler(NewKey::First, &[]);
    drr.add_parked(ALICE, Weight::ONE).unwrap();
    assert_eq!((drr.next_key(), drr.parked_len()), (None, 1));
    drr.add_parked(ALICE, Weight::MAX).unwrap();
    assert_eq!(drr.weight(ALICE), Some(Weight::ONE));
    drr.wake(ALICE);
    assert_eq!(drr.next_key(), Some(ALICE));
    assert!(drr.add_parked(Key(u32::MAX), Weight::ONE).is_err());
}

#[test]
fn huge_costs_saturate() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1000.0), (BOB, 0.01)]);
    for _ in 0..50 {
        let key = drr.next_key().unwrap();
        drr.consume_deficit(key, Cost(u64::MAX));
        drr.settle(key, Cost(0), Cost(u64::MAX), Settlement::Final);
    }
    assert!(drr.next_key().is_some());

    let config = DrrConfig { quantum: Cost(1), ..DrrConfig::default() };
    let mut drr = DrrScheduler::new(config).unwrap();
    drr.add_key(ALICE, Weight::MIN).unwrap();
    // 10 000 charges take over four minutes under Miri and run the same code as a hundred.
    let charges = if cfg!(miri) { 100 } else { 10_000 };
    for _ in 0..charges {
        drr.consume_deficit(ALICE, Cost::MAX);
    }
    assert_eq!(drr.next_key(), Some(ALICE));
    assert!(drr.round() <= charges * ((1 << 32) + 2), "{} rounds for {charges} charges", drr.round());
}

#[test]
fn debt_below_the_maximum_is_exact() {
    for owed in [10_000_000, 1_000_000_000, Cost::MAX.0] {
        let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
        drr.consume_deficit(ALICE, Cost(owed));
        drr.remove_key(ALICE);
        assert_eq!(drr.debt(ALICE), Cost(owed));
    }
}
