//! Tests of the guarantees of `swrr`, and of the defects that a literal reading of the specification would have.
#![allow(clippy::unwrap_used, reason = "an error is a failed test")]

mod eligible;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::PathId;
use evenkeel_policy::swrr::{
    Health, Reweight, ReweightCounts, SwrrConfig, SwrrRules, SwrrScheduler, path_weight,
};
use evenkeel_policy::time::{Duration, Instant};
use proptest::collection::vec;
use proptest::prelude::*;

const START: Instant = Instant::ORIGIN;

const HEALTHS: [Health; 3] = [Health::Healthy, Health::Degraded, Health::Recovery];

/// Tolerance for the rounding of integer credits.
const ROUNDING: f64 = 1e-3;

/// Creates a scheduler whose pinned weights take effect at once: no ramp, no intervals.
fn immediate() -> SwrrScheduler {
    let config = SwrrConfig {
        change_min: 0.0,
        raise_max: 100_000.0,
        raise_interval_min: Duration::ZERO,
        ramp_start: 1.0,
        window_picks: 100,
        ..SwrrConfig::default()
    };
    SwrrScheduler::new(SwrrRules::new(&config).unwrap())
}

fn join(swrr: &mut SwrrScheduler, id: u32, weight: u32) {
    swrr.add_path(PathId(id)).unwrap();
    swrr.set_weight(PathId(id), START, weight).unwrap();
    swrr.activate(PathId(id), START).unwrap();
}

fn join_measured(swrr: &mut SwrrScheduler, path: PathId, rtt_ms: f64) {
    swrr.add_path(path).unwrap();
    swrr.update_path_rtt(path, START, rtt_ms).unwrap();
    swrr.activate(path, START).unwrap();
}

/// Refreshes `steps` times at intervals of 100 ms, so that every weight can increase by that many steps.
fn refresh(swrr: &mut SwrrScheduler, from_ms: u64, steps: u64) {
    (1..=steps).for_each(|step| _ = swrr.refresh(Instant::from_millis(from_ms + step * 100)));
}

fn with_weights(weights: &[u32]) -> SwrrScheduler {
    let mut swrr = immediate();
    (0..).zip(weights).for_each(|(id, &weight)| join(&mut swrr, id, weight));
    swrr
}

fn reweigh(swrr: &mut SwrrScheduler, weights: &[u32]) {
    for (id, &weight) in (0..).zip(weights) {
        swrr.set_weight(PathId(id), START, weight).unwrap();
    }
}

fn pick(swrr: &mut SwrrScheduler) -> usize {
    swrr.pick().unwrap().index()
}

/// Picks `picks` times and returns each path with the length of its longest run.
fn longest_runs(swrr: &mut SwrrScheduler, paths: usize, picks: usize) -> Vec<(usize, u32)> {
    let mut longest = vec![0; paths];
    let mut last = usize::MAX;
    let mut run = 0;
    for _ in 0..picks {
        let path = pick(swrr);
        run = if path == last { run + 1 } else { 1 };
        last = path;
        longest[path] = run.max(longest[path]);
    }
    longest.into_iter().enumerate().collect()
}

fn smallest(weights: &[u32]) -> u32 {
    *weights.iter().min().unwrap()
}

fn owed(swrr: &SwrrScheduler) -> Vec<f64> {
    swrr.active().iter().map(|&path| swrr.owed(path).unwrap()).collect()
}

fn harmonic(n: usize) -> f64 {
    (1..=n).map(|k| 1.0 / k as f64).sum()
}

/// Asserts that no path is further behind or ahead of its share than `swrr` guarantees for picks of at most `size`.
fn assert_smooth(owed: &[f64], n: usize, size: f64) {
    for &owed in owed {
        assert!(owed <= (harmonic(n) - 1.0) * size + ROUNDING, "{owed} behind among {n}");
        assert!(owed >= -(1.0 - 1.0 / n as f64) * size - ROUNDING, "{owed} ahead among {n}");
    }
    assert!(owed.iter().sum::<f64>().abs() <= ROUNDING * size, "credits do not sum to 0: {owed:?}");
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Generates weights with ties and with large ratios.
fn weights(paths: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<u32>> {
    vec(prop_oneof![1..5_u32, 1..60_u32, Just(500)], paths)
}

proptest! {
    #[test]
    fn any_period_of_picks_gives_exact_shares(weights in weights(1..9), skipped in 0..200_usize) {
        let mut swrr = with_weights(&weights);
        let divisor = weights.iter().fold(0, |divisor, &weight| gcd(divisor, weight));
        (0..skipped).for_each(|_| { pick(&mut swrr); });
        let mut served = vec![0; weights.len()];
        (0..weights.iter().sum::<u32>() / divisor).for_each(|_| served[pick(&mut swrr)] += 1);
        let ideal: Vec<u32> = weights.iter().map(|weight| weight / divisor).collect();
        prop_assert_eq!(served, ideal);
    }

    #[test]
    fn service_stays_within_the_harmonic_number_of_the_ideal(weights in weights(1..17)) {
        let mut swrr = with_weights(&weights);
        let sum = f64::from(weights.iter().sum::<u32>());
        let mut served = vec![0.0; weights.len()];
        for picks in 1..=400 {
            served[pick(&mut swrr)] += 1.0;
            let behind: Vec<f64> = weights.iter().zip(&served)
                .map(|(&weight, served)| f64::from(picks * weight) / sum - served).collect();
            assert_smooth(&behind, weights.len(), 1.0);
            prop_assert!(behind.iter().all(|lag| lag.abs() <= harmonic(weights.len())));
        }
    }

    #[test]
    fn service_stays_within_the_bound_under_any_reweighting(
        changes in vec((weights(6), 1..20_usize), 1..40),
    ) {
        let mut swrr = with_weights(&[1; 6]);
        for (weights, picks) in changes {
            reweigh(&mut swrr, &weights);
            for _ in 0..picks {
                pick(&mut swrr);
                assert_smooth(&owed(&swrr), 6, 1.0);
            }
        }
    }

    #[test]
    fn no_run_exceeds_the_ratio_of_weights_before_or_after_a_change(
        (before, after) in (2..7_usize).prop_flat_map(|paths| (weights(paths), weights(paths))),
        picks in 0..60_usize,
    ) {
        let mut swrr = with_weights(&before);
        for (path, run) in longest_runs(&mut swrr, before.len(), picks) {
            prop_assert!(
                run <= before[path].div_ceil(smallest(&before)),
                "path {} was picked {} times in a row at weights {:?}", path, run, before
            );
        }
        reweigh(&mut swrr, &after);
        for (path, run) in longest_runs(&mut swrr, after.len(), 700) {
            prop_assert!(
                run <= after[path].div_ceil(smallest(&after)),
                "path {} was picked {} times in a row at weights {:?}", path, run, after
            );
        }
    }

    #[test]
    fn after_many_changes_a_run_exceeds_the_ratio_of_weights_by_at_most_one(
        changes in (2..7_usize).prop_flat_map(|paths| vec((weights(paths), 1..60_usize), 2..30)),
    ) {
        let mut swrr = with_weights(&changes[0].0);
        for (weights, picks) in changes {
            reweigh(&mut swrr, &weights);
            for (path, run) in longest_runs(&mut swrr, weights.len(), picks) {
                // Rounding may reverse a tie, which adds one where the ratio is an integer.
                prop_assert!(
                    run <= weights[path] / smallest(&weights) + 1,
                    "path {} was picked {} times in a row at weights {:?}", path, run, weights
                );
            }
        }
    }

    #[test]
    fn sized_picks_keep_shares_of_cost_within_a_few_picks(
        weights in weights(1..9),
        sizes in vec(1..16_384_u64, 1..300),
    ) {
        let mut swrr = with_weights(&weights);
        let sum = f64::from(weights.iter().sum::<u32>());
        let size_max = *sizes.iter().max().unwrap() as f64;
        let mut served = vec![0.0; weights.len()];
        let mut total_cost = 0.0;
        for size in sizes {
            served[swrr.pick_sized(Cost(size), |_| true).unwrap().index()] += size as f64;
            total_cost += size as f64;
            let behind: Vec<f64> = weights.iter().zip(&served)
                .map(|(&weight, served)| total_cost * f64::from(weight) / sum - served).collect();
            assert_smooth(&behind, weights.len(), size_max);
        }
    }

    #[test]
    fn credits_stay_balanced_and_bounded_as_paths_join_and_leave(
        steps in vec((0..8_u32, 1..60_u32, 0..6_usize), 1..120),
    ) {
        let mut swrr = with_weights(&[1; 8]);
        for (id, weight, picks) in steps {
            let path = PathId(id);
            if swrr.active().contains(&path) {
                swrr.deactivate(path).unwrap();
            } else {
                swrr.set_weight(path, START, weight).unwrap();
                swrr.activate(path, START).unwrap();
                prop_assert!(swrr.owed(path).unwrap().abs() < ROUNDING, "a path that joins is owed nothing");
            }
            for _ in 0..picks {
                swrr.pick();
            }
            let owed = owed(&swrr);
            prop_assert!(owed.iter().all(|owed| owed.abs() <= harmonic(8)), "{:?}", owed);
            prop_assert!(owed.iter().sum::<f64>().abs() < ROUNDING, "{:?}", owed);
        }
    }

    #[test]
    fn picks_do_not_depend_on_the_order_in_which_paths_were_added(
        order in Just((0..8_u32).collect::<Vec<_>>()).prop_shuffle(),
        weights in weights(8),
    ) {
        let mut sorted = with_weights(&weights);
        let mut shuffled = immediate();
        order.iter().for_each(|&id| join(&mut shuffled, id, weights[id as usize]));
        for _ in 0..200 {
            prop_assert_eq!(sorted.pick(), shuffled.pick());
        }
    }

    #[test]
    fn unhealthy_paths_stay_strictly_below_a_tenth_and_above_zero(
        paths in vec((1..10_000_u32, 0..3_u8), 2..128),
    ) {
        let mut swrr = immediate();
        let mut unhealthy = Vec::new();
        for (id, &(weight, health)) in (0..).zip(&paths) {
            join(&mut swrr, id, weight);
            let health = HEALTHS[usize::from(health)];
            swrr.set_health(PathId(id), START, health).unwrap();
            if health != Health::Healthy {
                unhealthy.push(PathId(id));
            }
        }
        let share: f64 = unhealthy.iter().map(|&path| swrr.share(path).unwrap()).sum();
        prop_assert!(share < 0.10 || unhealthy.len() == paths.len(), "{}", share);
        prop_assert!(swrr.active().iter().all(|&path| swrr.share(path).unwrap() > 0.0));
        prop_assert!(swrr.active().iter().all(|&path| swrr.weight(path).unwrap() >= 1));
    }

    #[test]
    fn a_weight_rises_by_at_most_a_quarter_per_interval(
        samples in vec((1..400_u64, 0.5..800.0_f64, 0.0..0.3_f64), 1..80),
    ) {
        let a = PathId(0);
        let b = PathId(1);
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        [a, b].into_iter().for_each(|path| join_measured(&mut swrr, path, 50.0));
        // The weight of B does not change, so the weight of A can be computed from the shares.
        let weight = |swrr: &SwrrScheduler| swrr.share(a).unwrap() / swrr.share(b).unwrap();
        let mut now = START;
        let mut raised_at = START;
        for (wait_ms, rtt_ms, loss) in samples {
            now += Duration::from_millis(wait_ms);
            let before = weight(&swrr);
            let outcome = swrr.update_path_rtt(a, now, rtt_ms).unwrap();
            let after = weight(&swrr);
            prop_assert!(after <= before * 1.2501, "{} to {}", before, after);
            if after > before * 1.0001 {
                prop_assert_eq!(outcome, Reweight::Applied);
                prop_assert!(now.since(raised_at) >= Duration::from_millis(100).max(swrr.rtt(a).unwrap()));
                raised_at = now;
            }
            swrr.update_path_loss(a, now, loss).unwrap();
            if weight(&swrr) > after * 1.0001 {
                raised_at = now;
            }
        }
    }

    #[test]
    fn the_formula_is_monotone_and_within_its_limits(
        fast_ms in 0.0..2_000.0_f64, more_ms in 0.0..2_000.0_f64, loss in 0.0..=1.0_f64,
    ) {
        let rules = SwrrRules::default();
        let fast = path_weight(fast_ms, loss, &rules).unwrap();
        let slow = path_weight(fast_ms + more_ms, loss, &rules).unwrap();
        prop_assert!(slow <= fast && (1..=1_000).contains(&slow));
        prop_assert!(fast <= path_weight(fast_ms, 0.0, &rules).unwrap());
    }

    #[test]
    fn a_window_reports_expected_shares_and_the_deviation_of_the_picks(weights in weights(1..9)) {
        let mut swrr = with_weights(&weights);
        (0..100).for_each(|_| { pick(&mut swrr); });
        let window = swrr.last_window().unwrap();
        prop_assert!((window.shares().iter().map(|share| share.theory).sum::<f64>() - 1.0).abs() < 1e-9);
        prop_assert!((window.shares().iter().map(|share| share.observed).sum::<f64>() - 1.0).abs() < 1e-9);
        for (share, &weight) in window.shares().iter().zip(&weights) {
            let theory = f64::from(weight) / f64::from(weights.iter().sum::<u32>());
            prop_assert!((share.theory - theory).abs() < 1e-9);
        }
        prop_assert!(window.mean_deviation() <= harmonic(weights.len()) / 100.0);
        prop_assert!(window.relative_entropy() >= 0.0);
    }
}

/// Picks by the literal rule of the specification, which leaves room for the mistakes shown below.
struct LiteralRule {
    weights: Vec<i64>,
    credits: Vec<i64>,
    active: Vec<bool>,
}

impl LiteralRule {
    fn new(weights: &[i64]) -> Self {
        let paths = weights.len();
        Self { weights: weights.to_vec(), credits: vec![0; paths], active: vec![true; paths] }
    }

    /// Picks a path, which pays `total`.
    fn pick_paying(&mut self, total: i64) -> usize {
        let active = || (0..self.weights.len()).rev().filter(|&path| self.active[path]);
        let credit = |path| self.credits[path] + self.weights[path];
        let winner = active().max_by_key(|&path| credit(path)).unwrap();
        let active_paths: Vec<usize> = active().collect();
        active_paths.into_iter().for_each(|path| self.credits[path] += self.weights[path]);
        self.credits[winner] -= total;
        winner
    }

    fn pick(&mut self) -> usize {
        self.pick_paying(
            (0..self.weights.len()).filter(|&path| self.active[path]).map(|path| self.weights[path]).sum(),
        )
    }
}

/// Returns the number of picks of `path` before the first pick of another path.
fn run_of(path: usize, mut pick: impl FnMut() -> usize) -> u32 {
    (0..).find(|_| pick() != path).unwrap()
}

#[test]
fn the_literal_rule_agrees_with_ours_while_weights_and_paths_are_unchanged() {
    let mut literal = LiteralRule::new(&[7, 2, 3, 3]);
    let mut ours = with_weights(&[7, 2, 3, 3]);
    (0..60).for_each(|_| assert_eq!(literal.pick(), pick(&mut ours)));
}

#[test]
fn an_inactive_weight_in_the_total_would_skew_the_shares() {
    let mut wrong = LiteralRule::new(&[100, 10, 50]);
    wrong.active[2] = false;
    let skewed = (0..1_100).filter(|_| wrong.pick_paying(160) == 0).count();
    assert!((77..=79).contains(&(skewed / 11)), "{skewed}");

    let mut ours = with_weights(&[100, 10, 50]);
    ours.deactivate(PathId(2)).unwrap();
    assert_eq!((0..1_100).filter(|_| pick(&mut ours) == 0).count(), 1_000);
}

/// By the literal rule a path keeps its credit while it is inactive. When it returns at a lower weight, that credit is
/// worth a thousand picks.
#[test]
fn a_kept_credit_would_win_a_thousand_picks_in_a_row() {
    let mut wrong = LiteralRule::new(&[10_000, 10_000]);
    wrong.pick();
    wrong.active[1] = false;
    wrong.pick();
    wrong.weights = vec![10, 10];
    wrong.active = vec![true, true];
    assert!(run_of(1, || wrong.pick()) >= 1_000);

    let mut ours = with_weights(&[10_000, 10_000]);
    ours.pick();
    ours.deactivate(PathId(1)).unwrap();
    ours.pick();
    reweigh(&mut ours, &[10, 10]);
    ours.activate(PathId(1), START).unwrap();
    assert!(run_of(1, || pick(&mut ours)) <= 1);
}

/// By the literal rule credits keep their size when the weights change. After a decrease, a path with credit is then
/// picked many times in a row.
#[test]
fn credits_that_do_not_follow_a_reweight_would_burst() {
    let before = || {
        let mut literal = LiteralRule::new(&[1_000, 1_000]);
        literal.pick();
        literal.weights = vec![10, 10];
        literal
    };
    let mut kept = before();
    assert!(run_of(1, || kept.pick()) >= 100);
    let mut clamped = before();
    clamped.credits.iter_mut().for_each(|credit| *credit = (*credit).clamp(-20, 20));
    assert!(run_of(1, || clamped.pick()) > 1, "clamping the credits still allows a burst");

    // The RTT of both paths changes from 1 ms to 100 ms.
    let config = SwrrConfig { rtt_alpha: 1.0, ..SwrrConfig::default() };
    let mut ours = SwrrScheduler::new(SwrrRules::new(&config).unwrap());
    [PathId(0), PathId(1)].into_iter().for_each(|path| join_measured(&mut ours, path, 1.0));
    refresh(&mut ours, 0, 20);
    assert_eq!((ours.weight(PathId(0)), pick(&mut ours)), (Some(1_000), 0));
    for path in [PathId(0), PathId(1)] {
        ours.update_path_rtt(path, Instant::from_secs(9), 100.0).unwrap();
    }
    assert_eq!((ours.weight(PathId(0)), run_of(1, || pick(&mut ours))), (Some(10), 1));
}

#[test]
fn one_healthy_path_of_the_smallest_weight_outweighs_127_unhealthy_ones() {
    for health in [Health::Degraded, Health::Recovery] {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        for id in 0..128 {
            join(&mut swrr, id, if id == 0 { 1 } else { 10_000 });
            swrr.set_health(PathId(id), START, if id == 0 { Health::Healthy } else { health }).unwrap();
        }
        let healthy = swrr.share(PathId(0)).unwrap();
        assert!(healthy > 0.90 && healthy < 0.92, "{healthy}");
        assert!((1..128).all(|id| swrr.share(PathId(id)).unwrap() > 0.0));
        assert!((0..20_000).filter(|_| pick(&mut swrr) != 0).count() < 2_000);
    }
}

#[test]
fn when_all_paths_are_unhealthy_none_is_capped() {
    let mut swrr = with_weights(&[100, 100]);
    swrr.set_health(PathId(1), START, Health::Degraded).unwrap();
    assert!(swrr.share(PathId(1)).unwrap() < 0.10);
    swrr.set_health(PathId(0), START, Health::Recovery).unwrap();
    assert_eq!((swrr.weight(PathId(0)), swrr.weight(PathId(1))), (Some(70), Some(40)));
}

#[test]
fn a_reactivated_path_ramps_from_a_tenth_of_its_weight() {
    let steady = PathId(0);
    let returning = PathId(1);
    let mut swrr = SwrrScheduler::new(SwrrRules::default());
    join(&mut swrr, 0, 100);
    join(&mut swrr, 1, 100);
    refresh(&mut swrr, 0, 11);
    assert_eq!((swrr.weight(steady), swrr.weight(returning)), (Some(100), Some(100)));
    swrr.deactivate(returning).unwrap();
    swrr.activate(returning, Instant::from_secs(2)).unwrap();
    assert_eq!((swrr.weight(steady), swrr.weight(returning)), (Some(100), Some(10)));
    refresh(&mut swrr, 2_000, 1);
    assert_eq!(swrr.weight(returning), Some(13));
    refresh(&mut swrr, 2_100, 10);
    assert_eq!(swrr.weight(returning), Some(100));
}

#[test]
fn a_small_change_of_rtt_is_suppressed_and_a_large_one_applied() {
    let path = PathId(0);
    let mut swrr = immediate_with_threshold();
    join_measured(&mut swrr, path, 100.0);
    assert_eq!(swrr.update_path_rtt(path, START, 104.0), Ok(Reweight::Suppressed));
    assert_eq!(swrr.update_path_rtt(path, START, 100.0), Ok(Reweight::Settled));
    assert_eq!(
        swrr.reweights(),
        ReweightCounts { applied: 1, suppressed: 1 },
        "applied when it was activated"
    );
    assert_eq!(swrr.update_path_rtt(path, START, 106.0), Ok(Reweight::Applied));
    assert_eq!(swrr.reweights(), ReweightCounts { applied: 2, suppressed: 1 });
}

/// Creates a scheduler in which every change above the threshold takes effect fully and at once.
fn immediate_with_threshold() -> SwrrScheduler {
    let config = SwrrConfig {
        rtt_alpha: 1.0,
        raise_interval_min: Duration::ZERO,
        ramp_start: 1.0,
        ..SwrrConfig::default()
    };
    SwrrScheduler::new(SwrrRules::new(&config).unwrap())
}
