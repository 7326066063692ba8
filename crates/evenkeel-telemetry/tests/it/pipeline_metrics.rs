//! Events as metrics and request histories.

use std::time::Duration;

use evenkeel_policy::class::{Class, SessionId, TenantFlow};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{ModelId, NodeId, PathId, PeerId, RequestId, TenantId};
use evenkeel_policy::outcome::{AttemptFailure, PickReason, RequestOutcome, TripReason};
use evenkeel_policy::path::{Cause, PathState, Transition};
use evenkeel_policy::score::{
    LatencyBasis, Limits, NoRoomReason, NodeStats, RedirectReason, RequestKind, ScoreBreakdown, Status,
};
use evenkeel_policy::time::Instant;
use evenkeel_telemetry::{
    BreakerGauge, EngineGauges, Event, MetricLimits, NodeEvent, NodeGauges, Observer, PEERS_MAX, Registry,
    RejectReason, RequestLogLimits, RouterMetrics, Step,
};

use crate::reader::{read, value};

const ACME: TenantId = TenantId(0);
const BOX: NodeId = NodeId(0);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_step_of_a_request_is_counted_once() {
    let harness = Harness::new();
    let dispatched = |attempt| Step::Dispatched {
        node: BOX,
        path: None,
        waited: SECOND,
        reason: PickReason::Cached,
        attempt,
    };
    for step in [
        Step::Accepted { model: ModelId(0), cost: Cost(700), flow: Some(TenantFlow::default()) },
        Step::Delayed { delay: SECOND },
        Step::Admitted { waiting: 1 },
        dispatched(1),
        Step::FailedOver { failure: AttemptFailure::TimedOut, attempt: 1 },
        dispatched(2),
        Step::FirstByte { node: BOX, after: SECOND },
        Step::Finished {
            node: BOX,
            actual: Cost(650),
            took: 3 * SECOND,
            outcome: RequestOutcome::Served { outcome: Outcome::Good },
        },
    ] {
        harness.record(ACME, step);
    }
    for (name, labels, expected) in [
        ("evenkeel_accepted_total", &[TENANT][..], 1.0),
        ("evenkeel_delayed_total", &[TENANT], 1.0),
        ("evenkeel_admitted_total", &[TENANT], 1.0),
        ("evenkeel_dispatched_total", &[NODE], 2.0),
        ("evenkeel_wait_seconds_count", &[TENANT], 2.0),
        ("evenkeel_failed_over_total", &[("failure", "timed_out")], 1.0),
        ("evenkeel_first_byte_seconds_sum", &[NODE], 1.0),
        ("evenkeel_finished_total", &[TENANT, ("outcome", "served")], 1.0),
        ("evenkeel_cost_units_total", &[TENANT], 650.0),
    ] {
        assert_eq!(harness.value(name, labels), Some(expected), "{name}");
    }
    let page = read(&harness.registry.render()).unwrap();
    assert_eq!(value(&page, "llm_router_request_duration_seconds_sum", &[]), Some(3.0));
}

#[test]
fn only_evictions_full_queues_and_deadlines_count_as_backpressure() {
    let harness = Harness::new();
    harness.record(ACME, Step::Evicted { waiting: 100 });
    harness.record(ACME, Step::Rejected { reason: RejectReason::QueueFull });
    harness.record(ACME, Step::Rejected { reason: RejectReason::WouldMissDeadline });
    harness.record(ACME, Step::Rejected { reason: RejectReason::NoNode });
    harness.record(ACME, Step::Rejected { reason: RejectReason::Failed });
    harness.record(ACME, Step::Rejected { reason: RejectReason::WaitTimeout });
    harness.record(ACME, Step::Rejected { reason: RejectReason::RateLimited });
    harness.record(ACME, Step::Cancelled);
    let page = read(&harness.registry.render()).unwrap();
    assert_eq!(value(&page, "llm_router_backpressure_rejections_total", &[]), Some(3.0));
    assert_eq!(harness.value("evenkeel_rejected_total", &[TENANT, ("reason", "no_node")]), Some(1.0));
    assert_eq!(harness.value("evenkeel_evicted_total", &[TENANT]), Some(1.0));
    assert_eq!(harness.value("evenkeel_cancelled_total", &[TENANT]), Some(1.0));
}

#[test]
fn tenants_without_a_name_or_beyond_the_limit_count_as_other() {
    let harness = Harness::new();
    harness.observer.metrics().name_tenant(TenantId(2), "beyond");
    for tenant in 0..4 {
        harness.record(TenantId(tenant), Step::Admitted { waiting: 1 });
    }
    assert_eq!(harness.value("evenkeel_admitted_total", &[TENANT]), Some(1.0));
    assert_eq!(harness.value("evenkeel_admitted_total", &[("tenant", "other")]), Some(3.0));
    let page = read(&harness.registry.render()).unwrap();
    let over = value(&page, "evenkeel_telemetry_labels_over_total", &[("metric", "evenkeel_accepted_total")]);
    assert_eq!(over, Some(1.0));
}

#[test]
fn a_tenant_with_a_reused_id_does_not_inherit_the_counts() {
    let harness = Harness::new();
    for name in ["acme", "heir", "third", "acme"] {
        harness.observer.metrics().name_tenant(ACME, name);
        harness.record(ACME, Step::Admitted { waiting: 1 });
    }
    assert_eq!(harness.value("evenkeel_admitted_total", &[TENANT]), Some(2.0));
    assert_eq!(harness.value("evenkeel_admitted_total", &[("tenant", "heir")]), Some(1.0));
    assert_eq!(
        harness.value("evenkeel_admitted_total", &[("tenant", "other")]),
        Some(1.0),
        "the third name is beyond the limit"
    );
    assert_eq!(harness.observer.metrics().tenant_name(ACME), Some("acme"));
}

#[test]
fn changes_of_nodes_and_paths_are_counted() {
    let harness = Harness::new();
    harness.change(NodeEvent::BreakerOpened { reason: TripReason::ProbeFailed, backoff: SECOND });
    let transition =
        Transition { from: PathState::Degraded, to: PathState::Recovery, cause: Cause::Improved };
    harness.change(NodeEvent::Path { path: PathId(1), transition });
    harness.change(NodeEvent::Path {
        path: PathId(1),
        transition: Transition { from: PathState::Recovery, to: PathState::Active, ..transition },
    });
    assert_eq!(harness.value("evenkeel_node_changes_total", &[NODE, ("to", "breaker_open")]), Some(1.0));
    assert_eq!(harness.value("evenkeel_path_changes_total", &[("to", "active")]), Some(1.0));
    assert_eq!(harness.observer.request_log().changes().len(), 3);
}

#[test]
fn redirects_are_counted_by_peer_and_kind_and_peers_beyond_the_limit_count_as_other() {
    let harness = Harness::new();
    let redirected = |peer: u32, kind| {
        harness.record(ACME, Step::Redirected { peer: PeerId(peer), kind, reason: redirect_reason() });
    };
    let count = |peer: &str, kind: &str| {
        harness.value("evenkeel_redirected_total", &[("peer", peer), ("kind", kind)])
    };
    assert_eq!(count("other", "query"), None, "a pool without peers has no series");
    let peers_max = u32::try_from(PEERS_MAX).unwrap();
    for peer in 0..=peers_max {
        harness.observer.metrics().name_peer(PeerId(peer), &format!("gateway-{peer}"));
    }
    redirected(1, RequestKind::Query);
    redirected(1, RequestKind::Query);
    redirected(1, RequestKind::BeginTx);
    redirected(peers_max, RequestKind::Execute);
    assert_eq!((count("gateway-1", "query"), count("gateway-1", "begin_tx")), (Some(2.0), Some(1.0)));
    assert_eq!((count("gateway-64", "execute"), count("other", "execute")), (None, Some(1.0)));
    let history = harness.observer.request_log().history(RequestId(1)).unwrap();
    let phrase = history.steps[0].1.to_string();
    assert!(
        phrase.starts_with(
            "query redirected to peer 1: no database connection is free for this request; best of 2 by score"
        ),
        "{phrase}"
    );
}

fn redirect_reason() -> RedirectReason {
    let stats = NodeStats { max_open_conns: 10, status: Status::Serving, ..NodeStats::default() };
    let breakdown = ScoreBreakdown {
        request: RequestKind::Query,
        score: 0.8,
        sub_scores: Limits::default().sub_scores(&stats),
        latency: LatencyBasis::Absolute,
        position: 1,
        open: 2,
        drawn_from: 2,
        chance: 0.5,
    };
    RedirectReason {
        no_room: NoRoomReason::ConnectionsFull,
        breakdown,
        own_score: 0.5,
        age: Duration::from_millis(100),
    }
}

#[test]
fn two_pipelines_on_one_page_have_separate_series() {
    let harness = Harness::new();
    let sql = Observer::new(&harness.registry, "sql", LIMITS, RequestLogLimits::default()).unwrap();
    sql.metrics().name_tenant(ACME, "acme");
    let event = Event::Request { request: RequestId(1), tenant: ACME, step: Step::Cancelled };
    sql.record(Instant::ORIGIN, &event);
    assert_eq!(harness.value("evenkeel_cancelled_total", &[TENANT]), Some(0.0));
    let page = read(&harness.registry.render()).unwrap();
    let cancelled = value(&page, "evenkeel_cancelled_total", &[("pool", "sql"), TENANT]);
    assert_eq!(cancelled, Some(1.0));
}

#[test]
fn each_step_of_a_history_is_displayed_as_a_phrase() {
    let harness = Harness::new();
    let flow = TenantFlow { session: Some(SessionId(0x1234_5678_9abc_def0)), class: Class::High };
    harness.record(ACME, Step::Accepted { model: ModelId(3), cost: Cost(700), flow: Some(flow) });
    harness.record(
        ACME,
        Step::Dispatched {
            node: BOX,
            path: Some(PathId(2)),
            waited: SECOND,
            reason: PickReason::Cached,
            attempt: 1,
        },
    );
    let history = harness.observer.request_log().history(RequestId(1)).unwrap();
    let phrases: Vec<_> = history.steps.iter().map(|(_, step)| step.to_string()).collect();
    assert_eq!(
        phrases,
        [
            "accepted for model 3, estimated cost 700, class high, session 123456789abcdef0",
            "dispatched to node 0 over path 2 after 1s, attempt 1: affinity cache hit"
        ]
    );
}

/// Node ids are never reused, so the limit must count current nodes only.
#[test]
fn removed_nodes_have_no_series_and_do_not_count_towards_the_limit() {
    let harness = Harness::new();
    let page_lines: Vec<usize> = (10..1_010)
        .map(|id| {
            let node = NodeId(id);
            let name = format!("node-{id}");
            harness.observer.metrics().name_node(node, &name);
            harness.observer.record(Instant::ORIGIN, &Event::Node { node, change: NodeEvent::Serving });
            let labels = [("node", name.as_str()), ("to", "serving")];
            assert_eq!(harness.value("evenkeel_node_changes_total", &labels), Some(1.0));
            harness.observer.record(Instant::ORIGIN, &Event::Node { node, change: NodeEvent::Removed });
            assert_eq!(harness.value("evenkeel_node_changes_total", &labels), None);
            assert_eq!(harness.observer.metrics().node_name(node), None);
            harness.registry.render().lines().count()
        })
        .collect();
    assert!(page_lines.iter().all(|lines| *lines == page_lines[0]), "{page_lines:?}");
}

#[test]
fn an_engine_that_stops_reporting_has_no_gauges() {
    let harness = Harness::new();
    let set = |engine| {
        let gauges = NodeGauges { slots: 8, busy: 2, engine, ..NodeGauges::default() };
        harness.observer.metrics().set_node_gauges(BOX, &gauges);
    };
    let waiting = || harness.value("evenkeel_node_engine_waiting", &[NODE]);
    set(Some(EngineGauges { running: 5, waiting: 3 }));
    assert_eq!((waiting(), harness.value("evenkeel_node_slots", &[NODE])), (Some(3.0), Some(8.0)));
    set(None);
    assert_eq!((waiting(), harness.value("evenkeel_node_busy", &[NODE])), (None, Some(2.0)));
}

#[test]
fn a_node_is_up_while_it_is_healthy_and_its_breaker_is_not_open() {
    let harness = Harness::new();
    let cases = [
        (true, BreakerGauge::Closed, (1.0, 0.0)),
        (true, BreakerGauge::HalfOpen, (1.0, 1.0)),
        (true, BreakerGauge::Open, (0.0, 2.0)),
        (false, BreakerGauge::Closed, (0.0, 0.0)),
    ];
    for (is_healthy, breaker, (up, state)) in cases {
        let gauges = NodeGauges { is_healthy, breaker, ..NodeGauges::default() };
        harness.observer.metrics().set_node_gauges(BOX, &gauges);
        let found =
            ["evenkeel_node_up", "evenkeel_node_breaker_state"].map(|name| harness.value(name, &[NODE]));
        assert_eq!(found, [Some(up), Some(state)], "{gauges:?}");
    }
}

#[test]
fn responses_of_a_node_are_counted_by_status() {
    let harness = Harness::new();
    for status in [200, 200, 503, 418] {
        harness.observer.metrics().record_response(BOX, status);
    }
    harness.observer.metrics().record_response(NodeId(99), 500);
    let count = |node, status| harness.value("evenkeel_node_responses_total", &[node, ("status", status)]);
    let counts = ["200", "503", "418", "500"].map(|status| count(NODE, status));
    assert_eq!(counts, [Some(2.0), Some(1.0), Some(1.0), None]);
    assert_eq!(count(("node", "other"), "500"), Some(1.0));
}

#[test]
fn a_replacement_with_the_same_name_keeps_the_series_of_the_removed_node() {
    let harness = Harness::new();
    harness.observer.metrics().name_node(NodeId(7), "box");
    harness.change(NodeEvent::Removed);
    harness.observer.record(Instant::ORIGIN, &Event::Node { node: NodeId(7), change: NodeEvent::Serving });
    assert_eq!(harness.value("evenkeel_node_changes_total", &[NODE, ("to", "serving")]), Some(1.0));
}

const TENANT: (&str, &str) = ("tenant", "acme");
const NODE: (&str, &str) = ("node", "box");
const LIMITS: MetricLimits = MetricLimits { tenants_max: 2, nodes_max: 2 };

struct Harness {
    registry: Registry,
    observer: Observer,
}

impl Harness {
    fn new() -> Self {
        let registry = Registry::new();
        let router = RouterMetrics::new(&registry).unwrap();
        let observer =
            Observer::new(&registry, "llm", LIMITS, RequestLogLimits::default()).unwrap().with_router(router);
        observer.metrics().name_tenant(ACME, "acme");
        observer.metrics().name_node(BOX, "box");
        Self { registry, observer }
    }

    fn record(&self, tenant: TenantId, step: Step) {
        self.observer.record(Instant::ORIGIN, &Event::Request { request: RequestId(1), tenant, step });
    }

    fn change(&self, change: NodeEvent) {
        self.observer.record(Instant::ORIGIN, &Event::Node { node: BOX, change });
    }

    /// Reads a metric of the pool `llm`.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels: Vec<_> = [("pool", "llm")].into_iter().chain(labels.iter().copied()).collect();
        value(&read(&self.registry.render()).unwrap(), name, &labels)
    }
}
