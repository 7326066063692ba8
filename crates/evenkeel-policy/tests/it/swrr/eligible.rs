//! Picks in which only some of the paths are eligible.

use super::*;

proptest! {
    #[test]
    fn an_ineligible_path_neither_gains_nor_loses_credit(
        weights in weights(2..9),
        masks in vec((any::<u8>(), 1..9_000_u64), 1..200),
    ) {
        let mut swrr = with_weights(&weights);
        for (mask, size) in masks {
            let before = owed(&swrr);
            let eligible = |path: PathId| mask & (1 << path.0) != 0;
            let picked = swrr.pick_sized(Cost(size), eligible);
            prop_assert_eq!(picked.is_some(), swrr.active().iter().any(|&path| eligible(path)));
            prop_assert!(picked.is_none_or(eligible));
            let after = owed(&swrr);
            for &path in swrr.active().iter().filter(|&&path| !eligible(path)) {
                prop_assert!((before[path.index()] - after[path.index()]).abs() < 1e-12);
            }
            prop_assert!(after.iter().sum::<f64>().abs() < ROUNDING * 9_000.0);
        }
    }

    /// The cost by which unhealthy paths may exceed their share is bounded: at most one pick per path here.
    #[test]
    fn unhealthy_paths_stay_below_a_tenth_of_the_picks_in_which_a_healthy_one_is_eligible(
        paths in vec((1..10_000_u32, 0..3_u8), 2..9),
        sets in vec(any::<u8>(), 1..6),
        order in vec((any::<prop::sample::Index>(), 1..9_000_u64), 1..2_000),
    ) {
        let mut swrr = immediate();
        for (id, &(weight, health)) in (0..).zip(&paths) {
            join(&mut swrr, id, weight);
            swrr.set_health(PathId(id), START, HEALTHS[usize::from(health)]).unwrap();
        }
        let is_healthy = |path: PathId| paths[path.index()].1 == 0;
        let mut capped = 0;
        let mut unhealthy = 0;
        for (set, size) in order {
            let mask = *set.get(&sets);
            let eligible = |path: PathId| mask & (1 << path.0) != 0;
            let has_healthy = swrr.active().iter().any(|&path| eligible(path) && is_healthy(path));
            let Some(picked) = swrr.pick_sized(Cost(size), eligible) else { continue };
            if has_healthy {
                capped += size;
                unhealthy += if is_healthy(picked) { 0 } else { size };
            }
            let slack = paths.len() as f64 * 9_000.0;
            prop_assert!(unhealthy as f64 <= 0.1 * capped as f64 + slack, "{} of {}", unhealthy, capped);
        }
    }

    #[test]
    fn shares_over_changing_sets_of_eligible_paths_follow_the_window_s_theory(
        weights in weights(2..6), sets in vec(1..32_u8, 1..5), order in vec(any::<prop::sample::Index>(), 1_000),
    ) {
        let config = SwrrConfig { window_picks: 1_000, ramp_start: 1.0, ..SwrrConfig::default() };
        let mut swrr = SwrrScheduler::new(SwrrRules::new(&config).unwrap());
        (0..).zip(&weights).for_each(|(id, &weight)| join(&mut swrr, id, weight));
        for set in order {
            // Path 0 is always eligible, so that every pick counts.
            let mask = set.get(&sets) | 1;
            swrr.pick_where(|path| mask & (1 << path.0) != 0).unwrap();
        }
        for share in swrr.last_window().unwrap().shares() {
            prop_assert!((share.observed - share.theory).abs() < 0.005, "{:?}", share);
        }
    }
}

/// A large healthy path, a small healthy one and an unhealthy one, of which the healthy ones are eligible in turns.
///
/// Capped over all active paths and with credit in units of weight, the unhealthy path would earn credit beside the large
/// path and spend it beside the small one.
#[test]
fn a_cap_over_all_paths_would_let_an_unhealthy_path_dominate_beside_a_small_one() {
    const WEIGHTS: [i64; 3] = [1_000, 10, 100];
    let mut credits = [0_i64; 3];
    let mut wrong = 0;
    let mut ours = 0;
    let mut swrr = with_weights(&WEIGHTS.map(|weight| weight as u32));
    // Degraded paths have 0.4 of their weight.
    swrr.set_weight(PathId(2), START, 250).unwrap();
    swrr.set_health(PathId(2), START, Health::Degraded).unwrap();
    for turn in 0..10_000 {
        let healthy = turn % 2;
        [healthy, 2].into_iter().for_each(|path| credits[path] += WEIGHTS[path]);
        let winner = if credits[2] > credits[healthy] { 2 } else { healthy };
        credits[winner] -= WEIGHTS[healthy] + WEIGHTS[2];
        wrong += usize::from(winner == 2);

        let picked = swrr.pick_where(|path| path.index() == healthy || path.index() == 2);
        ours += usize::from(picked == Some(PathId(2)));
    }
    assert!(wrong > 4_000, "{wrong}");
    assert!(ours > 900 && ours < 1_000, "{ours}");
}

#[test]
fn when_no_healthy_path_is_eligible_none_is_capped() {
    let mut swrr = with_weights(&[1, 300, 100]);
    swrr.set_health(PathId(1), START, Health::Degraded).unwrap();
    swrr.set_health(PathId(2), START, Health::Degraded).unwrap();
    let picks = |swrr: &mut SwrrScheduler, eligible: fn(PathId) -> bool| {
        let mut counts = [0; 3];
        (0..4_000).for_each(|_| counts[swrr.pick_where(eligible).unwrap().index()] += 1);
        counts
    };
    assert_eq!(picks(&mut swrr, |path| path != PathId(0)), [0, 3_000, 1_000]);
    let [healthy, ..] = picks(&mut swrr, |path| path != PathId(2));
    assert!((3_600..3_700).contains(&healthy), "{healthy}");
}
