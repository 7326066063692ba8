//! Guarantees of `score`:
//!
//! - A score is within 0..=1 and never falls when a metric improves.
//! - A gated node is never chosen.
//! - Nodes are drawn in proportion to score^power × weight.
//! - A node that is not comparable with the best is chosen only to measure it again.
//! - Picks by weight follow the weights.
//! - The order of the candidates has no influence.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::score::{
    Candidate, Choice, ChoiceReason, Comparison, HotColdConfig, LatencyEstimate, Limits, Measurement,
    NodeSelector, NodeStats, RequestKind, ScoreBreakdown, ScoreConfig, SelectionPolicy, Spread, Status,
    relative_latency,
};
use evenkeel_policy::weight::Weight;
use proptest::array::{uniform2, uniform3, uniform6};
use proptest::collection::vec;
use proptest::num;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;

const BY_WEIGHT: Spread = Spread { key: None, load_max: 1.25 };

proptest! {
    #[test]
    fn every_score_lies_between_zero_and_one(stats in arbitrary_stats(), request in request()) {
        let limits = Limits::default();
        for (name, sub_score) in limits.sub_scores(&stats).named() {
            prop_assert!((0.0..=1.0).contains(&sub_score), "{name} is {sub_score}");
        }
        prop_assert!((0.0..=1.0).contains(&limits.sub_scores(&stats).score(request)));
        if let Ok(score) = limits.assess(&stats, request) {
            prop_assert!(score > 0.0 && score <= 1.0);
        }
    }

    #[test]
    fn a_gate_is_open_exactly_when_its_conditions_hold(stats in arbitrary_stats(), request in request()) {
        let sub_scores = Limits::default().sub_scores(&stats);
        let serving = stats.status == Status::Serving;
        let configured =
            stats.max_http_sessions > 0 && stats.max_open_conns > 0 && stats.max_transaction_conns > 0;
        let has_free_db_conns = configured && sub_scores.db_free > 0.0;
        let open = serving
            && match request {
                RequestKind::Query | RequestKind::Execute => {
                    has_free_db_conns && sub_scores.err > 0.0 && sub_scores.lat > 0.0
                }
                RequestKind::BeginTx => has_free_db_conns && sub_scores.tx_free >= 0.05 && stats.wait_conn_count < 20,
                RequestKind::Infer => sub_scores.http_free > 0.0,
            };
        prop_assert_eq!(Limits::default().gate(&stats, request).is_ok(), open);
    }

    #[test]
    fn an_improving_metric_never_lowers_a_score_or_closes_a_gate(
        stats in realistic_stats(),
        better_by in 1u32..50,
        request in request(),
    ) {
        let limits = Limits::default();
        for (metric, better) in improvements(&stats, better_by) {
            let before = limits.sub_scores(&stats).score(request);
            let after = limits.sub_scores(&better).score(request);
            prop_assert!(after >= before - 1e-12, "{}: {} became {}", metric, before, after);
            let closed = limits.gate(&stats, request).is_ok() && limits.gate(&better, request).is_err();
            prop_assert!(!closed, "a better {} closed a gate", metric);
        }
    }

    #[test]
    fn a_faster_node_never_scores_less_against_the_median(
        one in 0.0..5000.0f64,
        other in 0.0..5000.0f64,
        median in 0.0..5000.0f64,
        k in 1.5..=3.0f64,
    ) {
        let scores = [one.min(other), one.max(other)].map(|p95_ms| relative_latency(p95_ms, median, k));
        prop_assert!(scores[0] >= scores[1]);
        prop_assert!(scores.iter().all(|score| *score > 0.0 && *score <= 1.0));
    }

    #[test]
    fn gated_nodes_are_never_chosen_and_a_pick_fails_only_if_all_are_gated(
        nodes in pool(arbitrary_stats(), 0..12),
        policy in policy(),
        request in request(),
        random in num::f64::ANY,
    ) {
        let open = |node: &Candidate| Limits::default().gate(&node.stats, request).is_ok();
        match pick(policy, &nodes, request, random) {
            None => prop_assert!(!nodes.iter().any(open)),
            Some(choice) => prop_assert!(open(find(&nodes, choice.node))),
        }
    }

    #[test]
    fn the_order_of_the_candidates_has_no_influence(
        (nodes, shuffled) in pool(arbitrary_stats(), 0..12)
            .prop_flat_map(|nodes| (Just(nodes.clone()), Just(nodes).prop_shuffle())),
        policy in policy(),
        request in request(),
        random in 0.0..1.0f64,
    ) {
        prop_assert_eq!(
            pick(policy, &nodes, request, random),
            pick(policy, &shuffled, request, random)
        );
    }

    #[test]
    fn picks_do_not_depend_on_earlier_picks(
        pools in vec(pool(arbitrary_stats(), 0..12), 1..5),
        policy in policy(),
        request in request(),
    ) {
        let mut used = NodeSelector::new(policy).unwrap();
        for nodes in &pools {
            let mut nodes = nodes.clone();
            prop_assert_eq!(pick(policy, &nodes, request, 0.7), used.pick(&mut nodes, request, BY_WEIGHT, 0.7));
        }
    }

    #[test]
    fn a_request_goes_to_a_comparable_node_or_to_one_that_is_due_to_be_measured(
        nodes in pool(arbitrary_stats(), 1..12),
        policy in policy(),
        key in weighted(0.5, num::u64::ANY),
    ) {
        let spread = Spread { key, load_max: 1.25 };
        let mut marked = nodes.clone();
        let mut selector = NodeSelector::new(policy).unwrap();
        let Some(choice) = selector.pick(&mut marked, RequestKind::Infer, spread, 0.5) else { return Ok(()) };
        let chosen = find(&marked, choice.node).comparison;
        prop_assert!(marked.iter().any(|node| node.comparison.comparable));
        match choice.reason {
            ChoiceReason::Measure => {
                prop_assert!(!chosen.comparable || chosen.estimate.is_none());
                prop_assert_eq!(chosen.measurement, Measurement::Due);
            }
            ChoiceReason::Affinity { .. } => prop_assert!(chosen.comparable && key.is_some()),
            ChoiceReason::Weight { .. } => prop_assert!(chosen.comparable),
            ChoiceReason::Score(breakdown) => prop_assert!(false, "{breakdown}"),
        }
        if let SelectionPolicy::HotCold(config) = policy {
            let means = marked.iter().filter_map(|node| node.comparison.estimate).map(|it| it.mean_ms);
            let best = means.min_by(f64::total_cmp).unwrap_or(f64::INFINITY);
            for node in marked.iter().filter(|node| node.comparison.comparable) {
                let lower = node.comparison.estimate.map_or(0.0, |it| it.mean_ms - 0.75 * it.deviation_ms);
                prop_assert!(lower <= config.leave_factor * best + config.slack_ms);
            }
        }
    }

    #[test]
    fn picks_by_weight_stay_within_one_of_their_shares(
        weights in vec(0.01..1000.0f64, 1..12),
        picks in 1u32..400,
    ) {
        let mut pool: Vec<_> = (0..).zip(&weights).map(|(node, weight)| Candidate {
            weight: Weight::new(*weight).unwrap(),
            ..open_node(node)
        }).collect();
        let total: f64 = pool.iter().map(|node| node.weight.as_f64()).sum();
        let mut selector = NodeSelector::new(SelectionPolicy::HotCold(HotColdConfig::default())).unwrap();
        let mut counts = BTreeMap::new();
        for _ in 0..picks {
            let choice = selector.pick(&mut pool, RequestKind::Infer, BY_WEIGHT, 0.5).unwrap();
            *counts.entry(choice.node).or_insert(0) += 1;
        }
        let harmonic: f64 = (1..=pool.len()).map(|n| 1.0 / n as f64).sum();
        for node in &pool {
            let ideal = f64::from(picks) * node.weight.as_f64() / total;
            let count = f64::from(counts.get(&node.node).copied().unwrap_or(0));
            prop_assert!((count - ideal).abs() <= harmonic + 0.01, "{count} instead of {ideal}");
        }
    }

    #[test]
    fn draw_frequencies_are_proportional_to_score_to_the_power_times_weight(
        nodes in pool(realistic_stats(), 1..9),
        top_k in 1usize..=6,
        power in 1u32..=8,
        request in database_request(),
    ) {
        const DRAWS: u32 = 2_000;
        let policy = SelectionPolicy::Score(ScoreConfig { top_k, power, ..ScoreConfig::default() });
        let mut selector = NodeSelector::new(policy).unwrap();
        let mut draw_counts = BTreeMap::new();
        for draw in 0..DRAWS {
            let random = (f64::from(draw) + 0.5) / f64::from(DRAWS);
            if let Some(choice) = selector.pick(&mut nodes.clone(), request, BY_WEIGHT, random) {
                *draw_counts.entry(choice.node).or_insert(0u32) += 1;
            }
        }
        let draw_order = draw_order(policy, &nodes, request);
        prop_assert!(draw_counts.keys().all(|node| draw_order.iter().any(|(candidate, _)| candidate.node == *node)));
        let draw_weight = |(node, scored): &(Candidate, ScoreBreakdown)| {
            scored.score.powi(power as i32) * node.weight.as_f64()
        };
        let total: f64 = draw_order.iter().map(draw_weight).sum();
        for entry in &draw_order {
            let share = draw_weight(entry) / total;
            let drawn = draw_counts.get(&entry.0.node).copied().unwrap_or(0);
            prop_assert!((entry.1.chance - share).abs() < 1e-9);
            let error = f64::from(drawn) - share * f64::from(DRAWS);
            prop_assert!(error.abs() <= 1.0 + 1e-6, "drawn {} times for a share of {}", drawn, share);
        }
    }

    #[test]
    fn the_draw_is_among_the_best_by_score_times_weight(
        nodes in pool(realistic_stats(), 1..12),
        top_k in 1usize..=6,
        request in database_request(),
    ) {
        let score_policy = |top_k| SelectionPolicy::Score(ScoreConfig { top_k, ..ScoreConfig::default() });
        // A pool has fewer than 16 nodes, so this draws from all of them.
        let all = draw_order(score_policy(16), &nodes, request);
        let open = nodes.iter().filter(|node| Limits::default().gate(&node.stats, request).is_ok());
        prop_assert_eq!(all.len(), open.count());
        let ranks: Vec<_> =
            all.iter().map(|(node, scored)| (scored.score * node.weight.as_f64(), Reverse(node.node))).collect();
        prop_assert!(ranks.is_sorted_by(|one, other| one > other), "{:?}", ranks);
        let best = draw_order(score_policy(top_k), &nodes, request);
        prop_assert_eq!(ids(&best), ids(&all[..all.len().min(top_k)]));
    }
}

/// Returns the nodes of a draw, best first, by picking with random numbers just above each cumulative probability.
fn draw_order(
    policy: SelectionPolicy,
    nodes: &[Candidate],
    request: RequestKind,
) -> Vec<(Candidate, ScoreBreakdown)> {
    let mut draw_order: Vec<(Candidate, ScoreBreakdown)> = Vec::new();
    let mut cumulative = 0.0;
    while let Some(choice) = pick(policy, nodes, request, cumulative + 1e-12) {
        let ChoiceReason::Score(scored) = choice.reason else { break };
        draw_order.push((*find(nodes, choice.node), scored));
        cumulative += scored.chance;
        if draw_order.len() == scored.drawn_from {
            break;
        }
    }
    draw_order
}

fn ids(draw_order: &[(Candidate, ScoreBreakdown)]) -> Vec<NodeId> {
    draw_order.iter().map(|(node, _)| node.node).collect()
}

/// Returns copies of the node, each with one metric improved, and the metric's name.
///
/// A larger `max_open_conns` makes the same idle connections a smaller fraction, so it is only tested on nodes
/// without idle connections.
fn improvements(stats: &NodeStats, by: u32) -> Vec<(&'static str, NodeStats)> {
    let fewer = |count: u32| count.saturating_sub(by);
    let more = |maximum: i32| maximum + by as i32;
    let lower = |value: f64| value / f64::from(1 + by);
    let node = *stats;
    let mut better = vec![
        ("http session", NodeStats { running_http_session: fewer(node.running_http_session), ..node }),
        ("transaction", NodeStats { running_tx: fewer(node.running_tx), ..node }),
        ("open connection", NodeStats { open_conns: fewer(node.open_conns), ..node }),
        ("idle connection", NodeStats { idle_conns: node.idle_conns + by, ..node }),
        ("waiting count", NodeStats { wait_conn_count: fewer(node.wait_conn_count), ..node }),
        ("http maximum", NodeStats { max_http_sessions: more(node.max_http_sessions), ..node }),
        (
            "transaction maximum",
            NodeStats { max_transaction_conns: more(node.max_transaction_conns), ..node },
        ),
        ("latency", NodeStats { p95_latency_ms: lower(node.p95_latency_ms), ..node }),
        ("error rate", NodeStats { error_rate_1m: lower(node.error_rate_1m), ..node }),
        ("timeout count", NodeStats { timeouts_1m: fewer(node.timeouts_1m), ..node }),
        ("uptime", NodeStats { uptime_sec: node.uptime_sec + u64::from(by), ..node }),
        ("status", NodeStats { status: Status::Serving, ..node }),
    ];
    if node.idle_conns == 0 {
        let larger = NodeStats { max_open_conns: more(node.max_open_conns), ..node };
        better.push(("connection maximum", larger));
    }
    better
}

fn open_node(node: u32) -> Candidate {
    let stats = NodeStats { max_http_sessions: 1, status: Status::Serving, ..NodeStats::default() };
    Candidate { node: NodeId(node), weight: Weight::ONE, stats, comparison: Comparison::default() }
}

fn pick(policy: SelectionPolicy, nodes: &[Candidate], request: RequestKind, random: f64) -> Option<Choice> {
    NodeSelector::new(policy).expect("the strategies give valid settings").pick(
        &mut nodes.to_vec(),
        request,
        BY_WEIGHT,
        random,
    )
}

fn find(nodes: &[Candidate], id: NodeId) -> &Candidate {
    nodes.iter().find(|node| node.node == id).expect("a choice is one of the candidates")
}

fn request() -> impl Strategy<Value = RequestKind> {
    select(vec![RequestKind::Query, RequestKind::Execute, RequestKind::BeginTx, RequestKind::Infer])
}

fn database_request() -> impl Strategy<Value = RequestKind> {
    select(vec![RequestKind::Query, RequestKind::Execute, RequestKind::BeginTx])
}

fn policy() -> impl Strategy<Value = SelectionPolicy> {
    prop_oneof![
        (1usize..=16, 1u32..=16).prop_map(|(top_k, power)| {
            SelectionPolicy::Score(ScoreConfig { top_k, power, ..ScoreConfig::default() })
        }),
        (1.0..=4.0f64, 0.0..=100.0f64).prop_map(|(join_factor, slack_ms)| {
            let leave_factor = join_factor + 0.5;
            SelectionPolicy::HotCold(HotColdConfig {
                join_factor,
                leave_factor,
                slack_ms,
                ..HotColdConfig::default()
            })
        }),
    ]
}

/// Generates candidates with shuffled ids, some with equal metrics so that ties happen.
fn pool(
    node: impl Strategy<Value = NodeStats> + Clone,
    count: std::ops::Range<usize>,
) -> impl Strategy<Value = Vec<Candidate>> {
    let weight = prop_oneof![3 => Just(1.0), 1 => 0.01..20.0f64];
    let nodes = vec((node.clone(), weight, any::<bool>(), comparison()), count);
    (nodes, node, any::<u32>()).prop_map(|(nodes, tied_stats, id_mask)| {
        let candidate = |(index, (stats, weight, is_tied, comparison))| {
            let stats = if is_tied { tied_stats } else { stats };
            let node = NodeId(((index as u32) ^ id_mask) & 0xff);
            let weight = Weight::new(weight).expect("the strategy gives valid weights");
            Candidate { node, weight, stats, comparison }
        };
        nodes.into_iter().enumerate().map(candidate).collect()
    })
}

fn comparison() -> impl Strategy<Value = Comparison> {
    let estimate = weighted(0.8, (0.0..1_000.0f64, 0.0..500.0f64));
    let measurement = select(vec![Measurement::Settled, Measurement::Due, Measurement::Pending]);
    let capacity = weighted(0.8, 1..64u32);
    (estimate, measurement, any::<bool>(), 0..64u32, capacity).prop_map(
        |(estimate, measurement, comparable, load, capacity)| Comparison {
            estimate: estimate.map(|(mean_ms, deviation_ms)| LatencyEstimate { mean_ms, deviation_ms }),
            measurement,
            comparable,
            credit: 0,
            load,
            external: load / 3,
            capacity,
        },
    )
}

/// Generates the metrics of a healthy or struggling node that mostly passes the gates.
fn realistic_stats() -> impl Strategy<Value = NodeStats> + Clone {
    let connections = (60..120i32, 0..110u32, prop_oneof![Just(0u32), 0..40u32], 0..25u32);
    let capacities = (1..80i32, 0..70u32, 1..30i32, 0..20u32);
    let quality = (0.0..2200.0f64, 15..40u32, 0.0..0.055f64, 0..25u32);
    let status = prop_oneof![6 => Just(Status::Serving), 1 => Just(Status::Draining)];
    (connections, capacities, quality, 0..400u64, status, 0..50u64, 0.0..500.0f64).prop_map(
        |(connections, capacities, quality, uptime_sec, status, in_flight, latency_estimate_ms)| {
            let (max_open_conns, open_conns, idle_conns, wait_conn_count) = connections;
            let (max_http_sessions, running_http_session, max_transaction_conns, running_tx) = capacities;
            let (p95_latency_ms, latency_samples, error_rate_1m, timeouts_1m) = quality;
            NodeStats {
                running_http_session,
                running_sql: open_conns.saturating_sub(idle_conns),
                running_tx,
                max_http_sessions,
                max_open_conns,
                max_transaction_conns,
                open_conns,
                idle_conns,
                wait_conn_count,
                p95_latency_ms,
                latency_samples,
                error_rate_1m,
                timeouts_1m,
                uptime_sec,
                status,
                in_flight: Cost(in_flight),
                latency_estimate_ms,
            }
        },
    )
}

/// Generates realistic metrics, most of which may be replaced by an arbitrary value, including NaN and extremes.
fn arbitrary_stats() -> impl Strategy<Value = NodeStats> + Clone {
    let counts = uniform6(weighted(0.03, any::<u32>()));
    let maxima = uniform3(weighted(0.03, any::<i32>()));
    let floats = uniform3(weighted(0.1, num::f64::ANY));
    let u64s = uniform2(weighted(0.03, any::<u64>()));
    (realistic_stats(), counts, maxima, floats, u64s).prop_map(|(mut node, counts, maxima, floats, u64s)| {
        set_if_some(&mut node.running_http_session, counts[0]);
        set_if_some(&mut node.running_tx, counts[1]);
        set_if_some(&mut node.open_conns, counts[2]);
        set_if_some(&mut node.idle_conns, counts[3]);
        set_if_some(&mut node.wait_conn_count, counts[4]);
        set_if_some(&mut node.timeouts_1m, counts[5]);
        set_if_some(&mut node.max_http_sessions, maxima[0]);
        set_if_some(&mut node.max_open_conns, maxima[1]);
        set_if_some(&mut node.max_transaction_conns, maxima[2]);
        set_if_some(&mut node.p95_latency_ms, floats[0]);
        set_if_some(&mut node.error_rate_1m, floats[1]);
        set_if_some(&mut node.latency_estimate_ms, floats[2]);
        set_if_some(&mut node.uptime_sec, u64s[0]);
        set_if_some(&mut node.in_flight, u64s[1].map(Cost));
        node
    })
}

fn set_if_some<T>(metric: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *metric = value;
    }
}
