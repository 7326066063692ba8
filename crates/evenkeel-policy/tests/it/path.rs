//! Guarantees of path health: the allowed transitions, their minimum number of samples, and that a set stays usable.

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{
    ActivePath, Alternative, BondChangeKind, BondDemand, BondPath, BondRule, BondedLane, Cause, HopConfig,
    HopRule, IntervalCollector, IntervalSample, Loss, PathConfig, PathRule, PathState, PathStats, Probe,
    PruneRule, QueueTrend, Relays, Role, RouteFigures, RouteRule, RouteVerdict, Streak, Transition,
};
use evenkeel_policy::swrr::{SwrrRules, SwrrScheduler};
use evenkeel_policy::time::{Duration, Instant};
use proptest::collection::vec;
use proptest::prelude::*;

use PathState::{Active, Degraded, Inactive, Probing, Recovery};

/// Smoothed round trip of the best path of the set.
const BEST: Duration = Duration::from_millis(10);

const ALLOWED_TRANSITIONS: [(PathState, PathState); 10] = [
    (Inactive, Probing),
    (Probing, Active),
    (Active, Degraded),
    (Degraded, Recovery),
    (Recovery, Active),
    (Recovery, Degraded),
    (Probing, Inactive),
    (Active, Inactive),
    (Degraded, Inactive),
    (Recovery, Inactive),
];

proptest! {
    #[test]
    fn a_path_makes_only_the_documented_transitions(steps in steps()) {
        let mut path = PathStats::new(PathRule::default());
        let mut state = path.state();
        for (now, input) in steps {
            for transition in step(&mut path, now, input, Some(BEST), Role::OneOfMany) {
                prop_assert_eq!(transition.from, state);
                prop_assert!(ALLOWED_TRANSITIONS.contains(&(transition.from, transition.to)), "{}", transition);
                state = transition.to;
            }
            prop_assert_eq!(path.state(), state);
        }
    }

    #[test]
    fn every_transition_takes_at_least_the_configured_number_of_samples(
        steps in steps(), degrade_samples in 1..8_u32, recover_samples in 1..8_u32, settle_samples in 1..8_u32,
    ) {
        let config = PathConfig { degrade_samples, recover_samples, settle_samples, ..PathConfig::default() };
        let mut path = PathStats::new(PathRule::new(config).unwrap());
        let mut samples_in_state = 0;
        for (now, input) in steps {
            if path.on_time(now).is_some() {
                samples_in_state = 0;
            }
            samples_in_state += 1;
            let Some(transition) = apply(&mut path, now, input, Some(BEST), Role::OneOfMany) else { continue };
            let samples_min = match (transition.from, transition.to, transition.cause) {
                (_, _, Cause::Silent) => 1,
                (Probing, Active, _) => config.activate_answers,
                (Active, Degraded, _) => degrade_samples,
                (Degraded, Recovery, _) => recover_samples,
                (Recovery, Active, _) => settle_samples,
                _ => 1,
            };
            prop_assert!(samples_in_state >= samples_min, "{transition} after {samples_in_state} samples");
            samples_in_state = 0;
        }
    }

    #[test]
    fn a_path_is_degraded_only_above_a_limit_or_when_silent_and_recovers_only_below_all(steps in steps()) {
        let rule = PathRule::default();
        let mut path = PathStats::new(rule);
        for (now, input) in steps {
            for transition in step(&mut path, now, input, Some(BEST), Role::OneOfMany) {
                let is_slow = path.baseline(now).is_some_and(|baseline| path.p95() > Some(rule.p95_max(baseline)))
                    || path.rtt() > Some(rule.ceiling(BEST));
                let loss = path.loss().as_f64();
                match transition.to {
                    Degraded => prop_assert!(is_slow || loss > 0.08 || input == Input::Silence),
                    Recovery => prop_assert!(!is_slow && loss < 0.05),
                    Inactive => prop_assert!(!input.has_answer()),
                    Probing | Active => {}
                }
            }
        }
    }

    /// Jitter of a third either way keeps p95 well below four times the baseline.
    #[test]
    fn a_lossless_path_of_any_length_below_the_ceiling_stays_active_beside_a_short_one(
        rtt_ms in 1..740_u64, jitter in vec(0.66..1.34_f64, 1..400),
    ) {
        let mut path = PathStats::new(PathRule::default());
        let mut now = Instant::ORIGIN;
        let rtt = |jitter: f64| Duration::from_secs_f64(rtt_ms as f64 * jitter / 1_000.0);
        path.on_time(now);
        (0..3).for_each(|_| _ = path.on_probe(now, Probe::Answered { rtt: rtt(1.0) }, Role::OneOfMany));
        for jitter in jitter {
            now += rtt(jitter).max(Duration::from_millis(100));
            let sample = IntervalSample { rtt: Some(rtt(jitter)), acked: 1, ..IntervalSample::default() };
            prop_assert_eq!(path.on_interval(now, sample, Some(BEST), Role::OneOfMany), None);
        }
        prop_assert_eq!(path.state(), Active);
    }

    #[test]
    fn losses_while_the_queue_grows_never_degrade_a_path(
        intervals in vec((1..200_u64, 0..200_u64), 1..200),
    ) {
        let mut path = PathStats::new(PathRule::default());
        path.on_time(Instant::ORIGIN);
        let rtt = Duration::from_millis(30);
        (0..3).for_each(|_| _ = path.on_probe(Instant::ORIGIN, Probe::Answered { rtt }, Role::OneOfMany));
        for (tick, (acked, lost)) in (1..).zip(intervals) {
            let sample = IntervalSample { rtt: Some(rtt), acked, lost, queue: QueueTrend::Growing };
            prop_assert_eq!(path.on_interval(at(tick), sample, Some(BEST), Role::OneOfMany), None);
        }
    }

    /// Every packet is in exactly one sample, and no interval is shorter than max(RTT, 100 ms).
    #[test]
    fn intervals_partition_the_outcomes(
        records in vec((0..80_u64, 0..5_u64, 0..5_u64), 1..200), rtt_ms in 0..300_u64,
    ) {
        let rtt = Duration::from_millis(rtt_ms);
        let mut collector = IntervalCollector::new(&PathRule::default(), Instant::ORIGIN);
        let mut now = Instant::ORIGIN;
        let mut sampled_at = now;
        let mut recorded = (0, 0);
        let mut sampled = (0, 0);
        for (gap_ms, acked, lost) in records {
            now += Duration::from_millis(gap_ms);
            collector.record_acked(acked);
            collector.record_lost(lost);
            recorded = (recorded.0 + acked, recorded.1 + lost);
            if let Some(sample) = collector.poll(now, Some(rtt)) {
                sampled = (sampled.0 + sample.acked, sampled.1 + sample.lost);
                prop_assert_eq!(sampled, recorded);
                prop_assert!(now.since(sampled_at) >= rtt.max(Duration::from_millis(100)));
                sampled_at = now;
            } else {
                let is_due = now.since(sampled_at) >= rtt.max(Duration::from_millis(100));
                prop_assert!(!is_due || sampled == recorded, "a due interval with packets gave no sample");
            }
        }
    }

    #[test]
    fn a_backoff_lasts_one_to_thirty_seconds(steps in steps()) {
        let mut path = PathStats::new(PathRule::default());
        for (now, input) in steps {
            for transition in step(&mut path, now, input, Some(BEST), Role::OneOfMany) {
                if transition.to == Inactive {
                    let backoff = path.retry_at().unwrap().since(now);
                    prop_assert!((Duration::from_secs(1)..=Duration::from_secs(30)).contains(&backoff));
                }
            }
            prop_assert_eq!(path.retry_at().is_some(), path.state() == Inactive);
        }
    }

    #[test]
    fn a_set_with_a_usable_path_always_has_one(
        steps in vec((0..4_usize, 0..2_000_u64, bad_input()), 1..600),
    ) {
        let mut paths = [(); 4].map(|()| PathStats::new(PathRule::default()));
        let mut now = Instant::ORIGIN;
        let mut was_usable = false;
        for (chosen, gap_ms, input) in steps {
            now += Duration::from_millis(gap_ms);
            let others = paths.iter().enumerate().filter(|(path, _)| *path != chosen);
            let others_usable = others.filter(|(_, path)| path.state().is_usable()).count();
            let role = if others_usable == 0 { Role::Last } else { Role::OneOfMany };
            let usable = paths.iter().filter(|path| path.state().is_usable());
            let best_rtt = usable.filter_map(PathStats::rtt).min();
            step(&mut paths[chosen], now, input, best_rtt, role);
            let is_usable = paths.iter().any(|path| path.state().is_usable());
            prop_assert!(is_usable || !was_usable, "the last usable path was deactivated");
            was_usable = is_usable;
        }
    }

    #[test]
    fn a_route_is_replaced_only_after_three_better_rounds_running(
        rounds in vec((1..400_u64, 1..400_u64), 1..40),
    ) {
        let rule = RouteRule::default();
        let figures = |rtt_ms| RouteFigures { rtt: Duration::from_millis(rtt_ms), loss: Loss::NONE };
        let mut better = 0;
        let mut running = 0;
        // Exactly at the margin, rounding decides.
        for (current, candidate) in rounds.into_iter().filter(|(current, candidate)| candidate * 100 != current * 85) {
            better = if candidate * 100 < current * 85 { better + 1 } else { 0 };
            running = match rule.judge(running, &figures(current), &figures(candidate)) {
                RouteVerdict::Keep => {
                    prop_assert_eq!(better, 0);
                    0
                }
                RouteVerdict::ProbeAgain(rounds) => {
                    prop_assert_eq!(rounds, better);
                    rounds
                }
                RouteVerdict::Swap => {
                    prop_assert_eq!(better, 3);
                    better = 0;
                    0
                }
            };
        }
    }

    #[test]
    fn a_hop_count_stays_in_its_range_and_changes_by_at_most_one(
        hops_min in 1..5_u8, range in 0..5_u8, start in 0..5_u8,
        samples in vec((0..1_000_u64, 0.0..=0.3_f64), 1..100),
    ) {
        let hops_max = hops_min + range;
        let config = HopConfig { hops_min, hops_max, hops_start: hops_min + start.min(range), ..HopConfig::default() };
        let rule = HopRule::new(config, Relays::Configured).unwrap().unwrap();
        let mut hops = rule.start();
        for (rtt_ms, loss) in samples {
            let next = rule.step(hops, Duration::from_millis(rtt_ms), Loss::new(loss).unwrap());
            prop_assert!((hops_min..=hops_max).contains(&next.get()));
            let is_bad = loss > 0.1 || rtt_ms > 500;
            let is_good = loss < 0.01 && rtt_ms < 100;
            prop_assert!(next.get() <= hops.get() + u8::from(is_bad));
            prop_assert!(next.get() + u8::from(is_good) >= hops.get());
            hops = next;
        }
    }

    #[test]
    fn a_path_is_pruned_only_for_one_that_was_better_for_ten_samples(
        used_ms in vec(vec(10..100_u64, 1..30), 1..5), idle_ms in vec(vec(10..100_u64, 30), 1..4),
    ) {
        let rule = PruneRule::default();
        let idle_at = |sample: usize| -> Vec<Alternative> {
            let path = |index: usize| PathId(100 + index as u32);
            let alternatives = idle_ms.iter().enumerate();
            alternatives.map(|(index, ms)| alternative(path(index), ms[sample])).collect()
        };
        let used: Vec<ActivePath> = used_ms.iter().enumerate().map(|(index, p95s)| {
            let streak = p95s.iter().enumerate().fold(Streak::default(), |streak, (sample, &ms)| {
                rule.on_sample(streak, Duration::from_millis(ms), &idle_at(sample))
            });
            ActivePath { path: PathId(index as u32), p95: Duration::from_millis(p95s[p95s.len() - 1]), streak }
        }).collect();
        let Some(swap) = rule.swap(&used, &idle_at(29)) else { return Ok(()) };
        let pruned = &used_ms[swap.prune.index()];
        let added = &idle_ms[swap.add.index() - 100];
        prop_assert!(pruned.len() >= 10);
        for sample in pruned.len() - 10..pruned.len() {
            prop_assert!(pruned[sample] * 100 > added[sample] * 115);
        }
        prop_assert!(pruned[pruned.len() - 1] * 100 > added[29] * 115);
    }

    #[test]
    fn at_most_one_path_leaves_the_bonded_lane_per_review_and_never_the_last(
        reviews in vec((vec(bond_path(), 1..5), 0..20_000_000_u64, any::<bool>()), 1..60),
    ) {
        let mut lane = BondedLane::new(BondRule::default());
        (0..5).for_each(|path| lane.add_path(Instant::ORIGIN, PathId(path)));
        for (tick, (mut paths, window, is_busy)) in (1..).zip(reviews) {
            paths.iter_mut().zip(0..).for_each(|(path, id)| path.path = PathId(id));
            let had_member = paths.iter().any(|path| lane.has(path.path));
            let demand = if is_busy { BondDemand::Busy { window } } else { BondDemand::Idle };
            let changes = lane.review(Instant::from_secs(2 * tick), &paths, demand);
            let left: Vec<_> = changes.iter().filter(|change| change.kind == BondChangeKind::Left).collect();
            prop_assert!(left.len() <= usize::from(is_busy));
            for change in left {
                prop_assert!(change.estimate.gain < 0.1 && change.estimate.delay > change.estimate.delay_max);
            }
            prop_assert!(paths.iter().any(|path| lane.has(path.path)) || !had_member);
        }
    }

    #[test]
    fn a_path_that_no_longer_delays_the_others_returns_to_the_lane_within_the_longest_backoff(
        bad_reviews in 2..400_u64, rtt_ms in 1..500_u64,
    ) {
        let good = BondPath { path: STEADY, capacity: 6e6, rtt: BEST, baseline: BEST, loss: Loss::NONE };
        let bad = BondPath { path: FAILING, capacity: 2e5, rtt: 60 * BEST, ..good };
        let mut lane = BondedLane::new(BondRule::default());
        [STEADY, FAILING].iter().for_each(|path| lane.add_path(Instant::ORIGIN, *path));
        let busy = BondDemand::Busy { window: 16_000_000 };
        for review in 0..bad_reviews {
            lane.review(Instant::from_secs(2 * review), &[good, bad], busy);
        }
        let well = BondPath { rtt: Duration::from_millis(rtt_ms), ..bad };
        let mut reviews = (bad_reviews..bad_reviews + 151).map(|review| {
            lane.review(Instant::from_secs(2 * review), &[good, well], busy);
            lane.has(FAILING)
        });
        prop_assert!(reviews.any(|is_in| is_in));
    }

    #[test]
    fn slower_paths_stay_while_no_unused_path_is_better(
        used_ms in vec(10..1_000_u64, 2..8), samples in 0..50_u32,
    ) {
        let rule = PruneRule::default();
        let slowest = used_ms.iter().max().copied().unwrap();
        let idle = [alternative(PathId(100), slowest)];
        let used = used_ms.iter().zip(0..).map(|(&ms, path)| {
            let p95 = Duration::from_millis(ms);
            let streak = (0..samples).fold(Streak::default(), |streak, _| rule.on_sample(streak, p95, &idle));
            ActivePath { path: PathId(path), p95, streak }
        });
        prop_assert_eq!(rule.swap(&used.collect::<Vec<_>>(), &idle), None);
    }
}

#[test]
fn a_path_loses_its_share_while_unhealthy_and_ramps_back_to_it() {
    const SLOW: Duration = Duration::from_millis(150);
    const FAST: Duration = Duration::from_millis(10);
    let mut pair = Pair::new();
    let steps = [(FAST, 20), (SLOW, 20), (FAST, 60)].map(|(rtt, samples)| vec![rtt; samples]).concat();
    let mut states = vec![];
    let mut odds = 0.0;
    for (tick, &rtt) in (20..).zip(&steps) {
        pair.sample(at(tick), rtt);
        let state = pair.failing.state();
        let share = pair.swrr.share(FAILING).unwrap_or(0.0);
        states.push(state);
        assert_eq!(share > 0.0, state.is_usable(), "{share} while {state}");
        assert!(share < 0.1 || state == Active, "{share} while {state}");
        let odds_before = std::mem::replace(&mut odds, share / (1.0 - share));
        assert!(odds <= odds_before.max(0.1) * 1.2501, "{odds_before} to {odds} while {state}");
        if tick == 59 {
            let picks = (0..1_000).filter(|_| pair.swrr.pick() == Some(FAILING)).count();
            assert!((1..=100).contains(&picks), "{picks} of 1000 went over a degraded path");
        }
    }
    states.dedup();
    assert_eq!(states, [Probing, Active, Degraded, Recovery, Active]);
    assert_eq!((pair.swrr.weight(STEADY), pair.swrr.weight(FAILING)), (Some(100), Some(100)));
}

/// Returns the time after `tick` intervals of 100 ms, the shortest between two increases of a weight.
fn at(tick: u64) -> Instant {
    Instant::from_millis(100 * tick)
}

const STEADY: PathId = PathId(0);
const FAILING: PathId = PathId(1);

/// Two paths of equal weight in one scheduler: STEADY has finished its ramp at tick 20, the state of FAILING follows
/// its samples.
struct Pair {
    swrr: SwrrScheduler,
    failing: PathStats,
}

impl Pair {
    fn new() -> Self {
        let mut swrr = SwrrScheduler::new(SwrrRules::default());
        for path in [STEADY, FAILING] {
            swrr.add_path(path).unwrap();
            swrr.set_weight(path, Instant::ORIGIN, 100).unwrap();
        }
        swrr.activate(STEADY, Instant::ORIGIN).unwrap();
        (0..20).for_each(|tick| _ = swrr.refresh(at(tick)));
        Self { swrr, failing: PathStats::new(PathRule::default()) }
    }

    fn sample(&mut self, now: Instant, rtt: Duration) {
        for transition in step(&mut self.failing, now, Input::answered(rtt), Some(BEST), Role::OneOfMany) {
            if let Some(health) = transition.to.health() {
                self.swrr.set_health(FAILING, now, health).unwrap();
                self.swrr.activate(FAILING, now).unwrap();
            } else {
                self.swrr.deactivate(FAILING).unwrap();
            }
        }
        self.swrr.refresh(now);
    }
}

/// One call of a path: a probe while it is probing, otherwise the sample of an interval with the same outcomes, a hard
/// failure or silence.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Packets { rtt: Option<Duration>, lost: u64, queue: QueueTrend },
    Failure,
    Silence,
}

/// Number of packets of a sample.
const PACKETS: u64 = 20;

impl Input {
    fn answered(rtt: Duration) -> Self {
        Self::Packets { rtt: Some(rtt), lost: 0, queue: QueueTrend::Steady }
    }

    fn has_answer(self) -> bool {
        matches!(self, Self::Packets { rtt: Some(_), .. })
    }
}

/// Advances the time to `now`, then applies an input; returns the transitions in order.
fn step(
    path: &mut PathStats,
    now: Instant,
    input: Input,
    best_rtt: Option<Duration>,
    role: Role,
) -> Vec<Transition> {
    let retried = path.on_time(now);
    let sampled = apply(path, now, input, best_rtt, role);
    retried.into_iter().chain(sampled).collect()
}

fn apply(
    path: &mut PathStats,
    now: Instant,
    input: Input,
    best_rtt: Option<Duration>,
    role: Role,
) -> Option<Transition> {
    match input {
        Input::Packets { rtt, .. } if path.state() == Probing => {
            path.on_probe(now, rtt.map_or(Probe::Lost, |rtt| Probe::Answered { rtt }), role)
        }
        Input::Packets { rtt, lost, queue } => {
            let sample = match rtt {
                Some(_) => IntervalSample { rtt, acked: PACKETS - lost, lost, queue },
                None => IntervalSample { rtt: None, acked: 0, lost: PACKETS, queue },
            };
            path.on_interval(now, sample, best_rtt, role)
        }
        Input::Failure => path.on_probe(now, Probe::Failed, role),
        Input::Silence => path.on_silence(now, role),
    }
}

/// Generates inputs with their times, in phases of good and bad ones, so that every state is reached.
fn steps() -> impl Strategy<Value = Vec<(Instant, Input)>> {
    let phase = prop_oneof![
        3 => vec(good_input(), 1..40),
        1 => vec(bad_input(), 1..20),
        1 => vec(packets(201..3_000, 0..1), 1..20),
    ];
    (vec(phase, 1..20), 1..2_000_u64).prop_map(|(phases, gap_ms)| {
        let times = (0..).map(move |step| Instant::from_millis(step * gap_ms));
        times.zip(phases.into_iter().flatten()).collect()
    })
}

fn good_input() -> impl Strategy<Value = Input> {
    prop_oneof![40 => packets(20..50, 0..1), 1 => packets(50..400, 0..3), 1 => Just(Input::Silence)]
}

fn bad_input() -> impl Strategy<Value = Input> {
    let all_lost = Input::Packets { rtt: None, lost: PACKETS, queue: QueueTrend::Steady };
    prop_oneof![
        6 => packets(1..300, 0..PACKETS),
        2 => Just(all_lost),
        2 => Just(Input::Failure),
        1 => Just(Input::Silence),
    ]
}

fn bond_path() -> impl Strategy<Value = BondPath> {
    (0.0..1e8_f64, 0..1_000_u64, 0.0..0.1_f64).prop_map(|(capacity, rtt_ms, loss)| BondPath {
        path: PathId(0),
        capacity,
        rtt: Duration::from_millis(rtt_ms),
        baseline: Duration::from_millis(rtt_ms),
        loss: Loss::new(loss).unwrap(),
    })
}

fn packets(millis: std::ops::Range<u64>, lost: std::ops::Range<u64>) -> impl Strategy<Value = Input> {
    let queue = prop_oneof![3 => Just(QueueTrend::Steady), 1 => Just(QueueTrend::Growing)];
    (millis, lost, queue).prop_map(|(millis, lost, queue)| {
        let rtt = Some(Duration::from_millis(millis));
        Input::Packets { rtt, lost, queue }
    })
}

fn alternative(path: PathId, p95_ms: u64) -> Alternative {
    Alternative { path, p95: Duration::from_millis(p95_ms), answered: 10 }
}
