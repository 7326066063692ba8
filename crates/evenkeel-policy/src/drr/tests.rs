mod accounts;

use super::*;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

const ALICE: Key = Key(0);
const BOB: Key = Key(1);
const CAROL: Key = Key(2);
const MESSAGE: Cost = Cost::MESSAGE;

// See docs/specs.md, deficit round robin, task 4.1.
#[test]
fn three_equal_keys_each_get_a_third() {
    for new_key in [NewKey::NextRound, NewKey::First] {
        let mut drr = scheduler(new_key, &[(ALICE, 1.0), (BOB, 1.0), (CAROL, 1.0)]);
        let served = serve(&mut drr, 900);
        assert_eq!(count(&served), [300, 300, 300], "{new_key:?}");
    }
}

// See docs/specs.md, deficit round robin, task 4.2.
#[test]
fn a_removed_key_is_not_active() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.remove_key(ALICE);
    assert!(drr.has_active_keys());
    assert_eq!(drr.active_len(), 1);
    assert_eq!(drr.key_status(ALICE), KeyStatus::Idle);
    assert_eq!(count(&serve(&mut drr, 10)), [0, 10, 0]);
    drr.remove_key(BOB);
    assert!(!drr.has_active_keys());
    drr.start_new_round();
    assert_eq!(drr.next_key(), None);
}

// See docs/specs.md, deficit round robin, task 4.3.
#[test]
fn a_key_added_again_is_active_again() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 1.0), (BOB, 1.0)]);
    drr.remove_key(ALICE);
    assert_eq!(count(&serve(&mut drr, 4)), [0, 4, 0]);
    drr.add_key(ALICE, Weight::ONE).unwrap();
    assert_eq!(drr.active_len(), 2);
    assert_eq!(count(&serve(&mut drr, 10)), [5, 5, 0]);
}

// See docs/specs.md, deficit round robin, task 4.4.
#[test]
fn a_new_round_grants_weight_times_quantum() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 1.0), (BOB, 2.5)]);
    assert_eq!((drr.deficit(ALICE), drr.deficit(BOB)), (Cost(0), Cost(0)));
    drr.start_new_round();
    assert_eq!((drr.deficit(ALICE), drr.deficit(BOB)), (Cost(1_000), Cost(2_500)));
    drr.consume_deficit(ALICE, Cost(400));
    drr.start_new_round();
    assert_eq!((drr.deficit(ALICE), drr.deficit(BOB)), (Cost(1_600), Cost(5_000)));
}

// See docs/specs.md, deficit round robin, task 4.5.
#[test]
fn a_single_key_gets_everything() {
    for new_key in [NewKey::NextRound, NewKey::First] {
        let mut drr = scheduler(new_key, &[(BOB, 0.3)]);
        assert_eq!(count(&serve(&mut drr, 50)), [0, 50, 0], "{new_key:?}");
    }
}

// See docs/specs.md, deficit round robin, task 4.6.
#[test]
fn a_key_added_mid_round_is_granted_in_the_next_round() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 2.0)]);
    drr.start_new_round();
    drr.consume_deficit(ALICE, MESSAGE);
    drr.add_key(BOB, Weight::ONE).unwrap();
    assert_eq!((drr.deficit(BOB), drr.next_key()), (Cost(0), Some(ALICE)));
    drr.consume_deficit(ALICE, MESSAGE);
    assert_eq!(drr.next_key(), None, "the round has no key left, though BOB waits");
    drr.start_new_round();
    assert_eq!(drr.deficit(BOB), Cost(1_000));
}

#[test]
fn adding_an_active_key_again_keeps_its_deficit_and_weight() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 2.0)]);
    drr.start_new_round();
    drr.consume_deficit(ALICE, Cost(300));
    drr.add_key(ALICE, Weight::MAX).unwrap();
    assert_eq!(drr.deficit(ALICE), Cost(1_700));
    assert_eq!(drr.weight(ALICE), Weight::new(2.0).ok());
    assert_eq!(drr.active_len(), 1);
}

#[test]
fn peeking_at_the_next_key_changes_nothing() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    for _ in 0..100 {
        assert_eq!(drr.next_key(), Some(ALICE));
    }
    drr.consume_deficit(ALICE, MESSAGE);
    assert_eq!(drr.next_key(), Some(BOB));
}

#[test]
fn an_idle_tenant_saves_nothing() {
    for new_key in [NewKey::NextRound, NewKey::First] {
        let mut drr = scheduler(new_key, &[(ALICE, 5.0), (BOB, 1.0)]);
        serve(&mut drr, 2);
        drr.remove_key(ALICE);
        serve(&mut drr, 50);
        drr.add_key(ALICE, Weight::ONE).unwrap();
        assert_eq!(drr.deficit(ALICE), Cost(0), "{new_key:?}");
    }
}

/// If every pick advanced to the next key, a key of weight 3 would get no more than a key of weight 1 until the lighter
/// one has used up its grant.
#[test]
fn weight_counts_inside_a_round() {
    let mut drr = scheduler(NewKey::NextRound, &[(ALICE, 3.0), (BOB, 1.0)]);
    drr.start_new_round();
    assert_eq!(serve_round(&mut drr), [ALICE, ALICE, ALICE, BOB]);

    let mut deficits = [3_000_i64, 1_000];
    let mut served = [0, 0];
    for pick in 0..2_000 {
        let key = pick % 2;
        if deficits[key] > 0 {
            deficits[key] -= 1;
            served[key] += 1;
        }
    }
    assert_eq!(served, [1_000, 1_000], "if every pick advances: the first 2000 messages at a cost of 1");
}

#[test]
fn a_quiet_key_among_a_hundred_busy_ones_is_served_first() {
    let mut drr = busy(100);
    let quiet = Key(100);
    serve(&mut drr, 4_321);
    drr.add_key(quiet, Weight::ONE).unwrap();
    assert_eq!(picks_until(&mut drr, quiet), 1, "before all busy keys");
    drr.remove_key(quiet);

    // After nine other prioritized keys, it is the tenth to be served.
    serve(&mut drr, 4_321);
    for key in 101..110 {
        drr.add_key(Key(key), Weight::ONE).unwrap();
    }
    drr.add_key(quiet, Weight::ONE).unwrap();
    assert_eq!(picks_until(&mut drr, quiet), 10);
}

/// With the specification's grant of 1000 at a cost of 1, each of 100 busy keys sends 1000 messages per round: the
/// quiet key waits for the rest of this round and for its turn in the next.
#[test]
fn with_the_literal_quantum_a_quiet_key_waits_for_199_999_messages() {
    // A hundred keys with a thousand messages each take over four minutes under Miri and run the same code as two.
    let busy = if cfg!(miri) { 2 } else { 100 };
    let quiet = Key(busy);
    let mut literal = scheduler(NewKey::NextRound, &[]);
    for key in 0..busy {
        literal.add_key(Key(key), Weight::ONE).unwrap();
    }
    literal.start_new_round();
    literal.consume_deficit(Key(0), Cost(1));
    literal.add_key(quiet, Weight::ONE).unwrap();
    let mut waited = 0;
    while literal.next_key() != Some(quiet) && waited < 3_000 * busy {
        match literal.next_key() {
            Some(key) => literal.consume_deficit(key, Cost(1)),
            None => literal.start_new_round(),
        }
        waited += 1;
    }
    // One iteration opened a round and served no key.
    waited -= 1;
    assert_eq!(waited, 2_000 * busy - 1, "the rest of this round and all busy keys in the next");
}

/// A key that was served from the ring and became idle must not be prioritized when it returns in the same round:
/// otherwise it would get two grants per round.
#[test]
fn sending_one_message_at_a_time_gets_no_more_than_a_backlog() {
    let mut drr = busy(10);
    let loner = Key(10);
    let mut served = 0;
    for _ in 0..1_100 {
        drr.add_key(loner, Weight::ONE).unwrap();
        let key = drr.next_key().unwrap();
        drr.consume_deficit(key, MESSAGE);
        if key == loner {
            served += 1;
            drr.remove_key(loner);
        }
    }
    assert!((99..=101).contains(&served), "1 of 11 keys got {served} of 1100 messages");
}

#[test]
fn a_key_that_leaves_and_returns_unserved_gains_no_priority() {
    let mut drr = busy(10);
    let impatient = Key(10);
    drr.add_key(impatient, Weight::ONE).unwrap();
    assert_eq!(picks_until(&mut drr, impatient), 1);
    let mut others = 0;
    while others < 100 {
        drr.add_key(impatient, Weight::ONE).unwrap();
        let key = drr.next_key().unwrap();
        if key == impatient {
            break;
        }
        drr.consume_deficit(key, MESSAGE);
        drr.remove_key(impatient);
        others += 1;
    }
    assert_eq!(others, 10, "the ten others are served before it is served again");
}

/// Runs many random operations and checks the lists after each.
#[test]
fn every_operation_keeps_the_invariants_of_every_list() {
    // 20 000 operations take over four minutes under Miri; the first 300 take every branch of the match.
    let steps = if cfg!(miri) { 300 } else { 20_000 };
    for new_key in [NewKey::First, NewKey::NextRound] {
        let mut drr = scheduler(new_key, &[]);
        let mut state = 1_u64;
        for _ in 0..steps {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = Key((state >> 33) as u32 % 9);
            let cost = Cost((state >> 40) % 4_000);
            match (state >> 60) & 15 {
                0..=2 => drr.add_key(key, Weight::new(0.3).unwrap()).unwrap(),
                3 => drr.remove_key(key),
                4 => drr.park(key),
                5 => drr.wake(key),
                6 => drr.update_weight(key, Weight::new(0.2 + cost.0 as f64 / 1_000.0).unwrap()),
                7 => drop(drr.settle(key, MESSAGE, cost, Settlement::Final)),
                8 => drr.start_new_round(),
                _ => {
                    let turn = drr.next_key().unwrap_or(key);
                    drr.consume_deficit(turn, cost);
                }
            }
            drr.level.check(&drr.accounts);
        }
    }
}

#[test]
fn a_key_that_was_idle_while_all_keys_were_idle_is_prioritized() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0)]);
    serve(&mut drr, 1);
    drr.consume_deficit(ALICE, Cost(500));
    drr.remove_key(ALICE);
    drr.add_key(BOB, Weight::MAX).unwrap();
    serve(&mut drr, 1);
    drr.add_key(ALICE, Weight::ONE).unwrap();
    assert_eq!(drr.next_key(), Some(ALICE));
}

#[test]
fn a_key_that_keeps_returning_is_prioritized_for_one_grant_per_round() {
    let mut drr = busy(1);
    let heavy = Key(1);
    let round = drr.round();
    let mut prioritized = 0;
    for _ in 0..50 {
        drr.add_key(heavy, Weight::whole(10).unwrap()).unwrap();
        if drr.next_key() == Some(heavy) && drr.round() == round {
            drr.consume_deficit(heavy, MESSAGE);
            prioritized += 1;
        }
        drr.remove_key(heavy);
    }
    assert_eq!((prioritized, drr.round()), (10, round));
}

#[test]
fn a_forgotten_key_has_no_debt() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0)]);
    drr.consume_deficit(ALICE, Cost(9_000));
    assert!(!drr.forget_key(ALICE), "it is active");
    drr.remove_key(ALICE);
    assert!(drr.forget_key(ALICE));
    assert!(drr.forget_key(Key(77)), "never added");
    assert_eq!(drr.debt(ALICE), Cost(0));
}

#[test]
fn calls_with_unknown_keys_have_no_effect() {
    let mut drr = scheduler(NewKey::First, &[(CAROL, 1.0)]);
    for key in [ALICE, BOB, Key(3), Key(u32::MAX)] {
        drr.consume_deficit(key, MESSAGE);
        drr.remove_key(key);
        drr.park(key);
        drr.wake(key);
        drr.update_weight(key, Weight::MAX);
        assert_eq!(drr.settle(key, Cost(1), Cost(2), Settlement::Final), Cost(1));
        assert_eq!((drr.deficit(key), drr.debt(key)), (Cost(0), Cost(0)));
        assert_eq!((drr.key_status(key), drr.weight(key)), (KeyStatus::Idle, None));
    }
    assert_eq!(drr.next_key(), Some(CAROL));
}

#[test]
fn limits_are_enforced_and_named_in_the_error() {
    // Keys are indices: with a limit of 2, only keys 0 and 1 are valid, whether or not they were added.
    let config = DrrConfig { keys_max: 2, ..DrrConfig::default() };
    let error = DrrScheduler::new(config).unwrap().add_key(Key(2), Weight::ONE).unwrap_err();
    assert_eq!(error.to_string(), "more than 2 keys");
    for quantum in [Cost(0), Cost(1_000_000_001)] {
        let error = DrrScheduler::new(DrrConfig { quantum, ..config }).unwrap_err();
        assert_eq!(error.to_string(), alloc::format!("quantum {quantum} is not between 1 and 1000000000"));
        assert_eq!(TenantDrr::new(quantum, 2).unwrap_err(), error);
    }
    for quantum in [Cost(1), DrrConfig::QUANTUM_MAX] {
        assert!(DrrScheduler::new(DrrConfig { quantum, ..config }).is_ok());
    }
}

#[test]
fn the_key_status_names_the_list_that_holds_the_key() {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0)]);
    assert_eq!((drr.key_status(ALICE), drr.key_status(BOB)), (KeyStatus::Next, KeyStatus::Prioritized));
    serve(&mut drr, 2);
    assert_eq!((drr.key_status(ALICE), drr.key_status(BOB)), (KeyStatus::Next, KeyStatus::InRing));
    drr.consume_deficit(ALICE, Cost(4_000));
    assert_eq!(drr.key_status(ALICE), KeyStatus::InDebt { rounds: 4 });
}

fn scheduler(new_key: NewKey, keys: &[(Key, f64)]) -> DrrScheduler {
    let mut drr = DrrScheduler::new(DrrConfig { new_key, ..DrrConfig::default() }).unwrap();
    for &(key, weight) in keys {
        drr.add_key(key, Weight::new(weight).unwrap()).unwrap();
    }
    drr
}

/// Creates a scheduler with ALICE at the given weight, BOB and CAROL at 1, in the ring in this order.
fn in_ring(weight: u32) -> DrrScheduler {
    let mut drr = scheduler(NewKey::First, &[(ALICE, 1.0), (BOB, 1.0), (CAROL, 1.0)]);
    serve(&mut drr, 3);
    drr.update_weight(ALICE, Weight::whole(weight).unwrap());
    drr
}

/// Creates a scheduler whose `len` keys of weight 1 have all been visited, so that none is new.
fn busy(len: u32) -> DrrScheduler {
    let mut drr = scheduler(NewKey::First, &[]);
    for key in 0..len {
        drr.add_key(Key(key), Weight::ONE).unwrap();
    }
    serve(&mut drr, 3 * len as usize);
    drr
}

/// Serves messages, opening rounds as needed, and returns the key of each.
fn serve(drr: &mut DrrScheduler, messages: usize) -> Vec<Key> {
    let mut served = vec![];
    let mut rounds = 0;
    while served.len() < messages {
        match drr.next_key() {
            Some(key) => {
                drr.consume_deficit(key, MESSAGE);
                served.push(key);
            }
            None => {
                drr.start_new_round();
                rounds += 1;
                assert!(rounds <= messages, "too many rounds without serving a key");
            }
        }
    }
    served
}

/// Serves messages until the round has no key left, at most 1000.
fn serve_round(drr: &mut DrrScheduler) -> Vec<Key> {
    let mut served = vec![];
    while let Some(key) = drr.next_key().filter(|_| served.len() < 1_000) {
        drr.consume_deficit(key, MESSAGE);
        served.push(key);
    }
    served
}

/// Serves messages until a key is picked and returns the number of picks, including that one.
fn picks_until(drr: &mut DrrScheduler, wanted: Key) -> usize {
    for pick in 1..10_000 {
        let key = drr.next_key().unwrap();
        drr.consume_deficit(key, MESSAGE);
        if key == wanted {
            return pick;
        }
    }
    usize::MAX
}

fn count(served: &[Key]) -> [usize; 3] {
    [ALICE, BOB, CAROL].map(|key| served.iter().filter(|&&other| other == key).count())
}
