//! Events as metrics and stories.

use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::path::{Cause, PathState, Transition};
use evenkeel_policy::time::Instant;
use evenkeel_telemetry::{
    AttemptFailure, EngineGauges, Event, MetricLimits, ModelId, NodeEvent, NodeGauges, Observer, PickReason,
    Registry, RejectReason, RequestId, RequestLogLimits, RequestOutcome, RouterMetrics, Step,
};

use crate::reader::{read, value};

const ACME: TenantId = TenantId(0);
const BOX: NodeId = NodeId(0);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_step_of_a_walk_is_counted_once() {
    let watched = Watched::new();
    let dispatched = |attempt| Step::Dispatched {
        node: BOX,
        path: None,
        waited: SECOND,
        because: PickReason::Cached,
        attempt,
    };
    for step in [
        Step::Accepted { model: ModelId(0), cost: Cost(700) },
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
            ending: RequestOutcome::Served(Outcome::Good),
        },
    ] {
        watched.tell(ACME, step);
    }
    for (name, labels, expected) in [
        ("evenkeel_accepted_total", &[TENANT][..], 1.0),
        ("evenkeel_delayed_total", &[TENANT], 1.0),
        ("evenkeel_admitted_total", &[TENANT], 1.0),
        ("evenkeel_dispatched_total", &[NODE], 2.0),
        ("evenkeel_wait_seconds_count", &[TENANT], 2.0),
        ("evenkeel_failed_over_total", &[("failure", "timed_out")], 1.0),
        ("evenkeel_first_byte_seconds_sum", &[NODE], 1.0),
        ("evenkeel_finished_total", &[TENANT, ("ending", "served")], 1.0),
        ("evenkeel_cost_units_total", &[TENANT], 650.0),
    ] {
        assert_eq!(watched.value(name, labels), Some(expected), "{name}");
    }
    let page = read(&watched.registry.render()).unwrap();
    assert_eq!(value(&page, "llm_router_request_duration_seconds_sum", &[]), Some(3.0));
}

#[test]
fn a_push_out_and_a_full_queue_are_backpressure_and_nothing_else_is() {
    let watched = Watched::new();
    watched.tell(ACME, Step::Evicted { waiting: 100 });
    watched.tell(ACME, Step::Rejected { reason: RejectReason::QueueFull });
    watched.tell(ACME, Step::Rejected { reason: RejectReason::NoNode });
    watched.tell(ACME, Step::Cancelled);
    let page = read(&watched.registry.render()).unwrap();
    assert_eq!(value(&page, "llm_router_backpressure_rejections_total", &[]), Some(2.0));
    assert_eq!(watched.value("evenkeel_rejected_total", &[TENANT, ("reason", "no_node")]), Some(1.0));
    assert_eq!(watched.value("evenkeel_pushed_out_total", &[TENANT]), Some(1.0));
    assert_eq!(watched.value("evenkeel_cancelled_total", &[TENANT]), Some(1.0));
}

#[test]
fn who_has_no_name_or_no_place_counts_as_other() {
    let watched = Watched::new();
    watched.watch.meters().name_tenant(TenantId(2), "beyond");
    for tenant in 0..4 {
        watched.tell(TenantId(tenant), Step::Admitted { waiting: 1 });
    }
    assert_eq!(watched.value("evenkeel_admitted_total", &[TENANT]), Some(1.0));
    assert_eq!(watched.value("evenkeel_admitted_total", &[("tenant", "other")]), Some(3.0));
    let page = read(&watched.registry.render()).unwrap();
    let over = value(&page, "evenkeel_telemetry_labels_over_total", &[("metric", "evenkeel_accepted_total")]);
    assert_eq!(over, Some(1.0));
}

#[test]
fn whoever_gets_an_id_that_another_had_does_not_get_its_numbers() {
    let watched = Watched::new();
    for name in ["acme", "heir", "third", "acme"] {
        watched.watch.meters().name_tenant(ACME, name);
        watched.tell(ACME, Step::Admitted { waiting: 1 });
    }
    assert_eq!(watched.value("evenkeel_admitted_total", &[TENANT]), Some(2.0));
    assert_eq!(watched.value("evenkeel_admitted_total", &[("tenant", "heir")]), Some(1.0));
    assert_eq!(
        watched.value("evenkeel_admitted_total", &[("tenant", "other")]),
        Some(1.0),
        "one name too many"
    );
    assert_eq!(watched.watch.meters().tenant_name(ACME), Some("acme"));
}

#[test]
fn a_change_of_a_node_and_of_a_path_is_counted() {
    let watched = Watched::new();
    watched.change(NodeEvent::BreakerOpened { until: Instant::from_secs(1) });
    let transition =
        Transition { from: PathState::Inactive, to: PathState::Recovery, cause: Cause::ProbesAnswered };
    watched.change(NodeEvent::Path { path: PathId(1), transition });
    watched.change(NodeEvent::Path {
        path: PathId(1),
        transition: Transition { from: PathState::Recovery, to: PathState::Active, ..transition },
    });
    assert_eq!(watched.value("evenkeel_node_changes_total", &[NODE, ("to", "opened")]), Some(1.0));
    assert_eq!(watched.value("evenkeel_path_changes_total", &[("to", "active")]), Some(1.0));
    let page = read(&watched.registry.render()).unwrap();
    assert_eq!(value(&page, "nyx_multipath_path_activated_total", &[]), Some(1.0));
    assert_eq!(value(&page, "nyx_multipath_path_deactivated_total", &[]), Some(0.0));
    assert_eq!(watched.watch.journal().changes().len(), 3);
}

#[test]
fn two_walks_share_a_page() {
    let watched = Watched::new();
    let sql = Observer::new(&watched.registry, "sql", LIMITS, RequestLogLimits::default()).unwrap();
    sql.meters().name_tenant(ACME, "acme");
    let event = Event::Request { request: RequestId(1), tenant: ACME, step: Step::Cancelled };
    sql.record(Instant::ORIGIN, &event);
    assert_eq!(watched.value("evenkeel_cancelled_total", &[TENANT]), Some(0.0));
    let page = read(&watched.registry.render()).unwrap();
    let cancelled = value(&page, "evenkeel_cancelled_total", &[("pool", "sql"), TENANT]);
    assert_eq!(cancelled, Some(1.0));
}

#[test]
fn a_story_reads_as_sentences() {
    let watched = Watched::new();
    watched.tell(ACME, Step::Accepted { model: ModelId(3), cost: Cost(700) });
    watched.tell(
        ACME,
        Step::Dispatched {
            node: BOX,
            path: Some(PathId(2)),
            waited: SECOND,
            because: PickReason::Preferred,
            attempt: 1,
        },
    );
    let story = watched.watch.journal().history(RequestId(1)).unwrap();
    let told: Vec<_> = story.steps.iter().map(|(_, step)| step.to_string()).collect();
    assert_eq!(
        told,
        [
            "accepted for model 3, thought to cost 700",
            "dispatched to node 0 by path 2 after 1s, attempt 1: preferred by its affinity"
        ]
    );
}

/// Ids are never given again, names and places are.
#[test]
fn after_a_thousand_nodes_that_came_and_went_the_next_has_its_own_series_and_nothing_is_left_of_them() {
    let watched = Watched::new();
    let pages: Vec<usize> = (10..1_010)
        .map(|id| {
            let (node, name) = (NodeId(id), format!("node-{id}"));
            watched.watch.meters().name_node(node, &name);
            watched.watch.record(Instant::ORIGIN, &Event::Node { node, change: NodeEvent::Serving });
            let labels = [("node", name.as_str()), ("to", "serving")];
            assert_eq!(watched.value("evenkeel_node_changes_total", &labels), Some(1.0));
            watched.watch.record(Instant::ORIGIN, &Event::Node { node, change: NodeEvent::Removed });
            assert_eq!(watched.value("evenkeel_node_changes_total", &labels), None);
            assert_eq!(watched.watch.meters().node_name(node), None);
            watched.registry.render().lines().count()
        })
        .collect();
    assert!(pages.iter().all(|lines| *lines == pages[0]), "{pages:?}");
}

#[test]
fn an_engine_that_says_nothing_any_more_has_no_figures() {
    let watched = Watched::new();
    let show = |engine| watched.watch.meters().show_node(BOX, &NodeGauges { slots: 8, busy: 2, engine });
    let waiting = || watched.value("evenkeel_node_engine_waiting", &[NODE]);
    show(Some(EngineGauges { running: 5, waiting: 3 }));
    assert_eq!((waiting(), watched.value("evenkeel_node_slots", &[NODE])), (Some(3.0), Some(8.0)));
    show(None);
    assert_eq!((waiting(), watched.value("evenkeel_node_busy", &[NODE])), (None, Some(2.0)));
}

#[test]
fn a_node_that_replaces_one_of_its_name_keeps_its_series_when_that_has_gone() {
    let watched = Watched::new();
    watched.watch.meters().name_node(NodeId(7), "box");
    watched.change(NodeEvent::Removed);
    watched.watch.record(Instant::ORIGIN, &Event::Node { node: NodeId(7), change: NodeEvent::Serving });
    assert_eq!(watched.value("evenkeel_node_changes_total", &[NODE, ("to", "serving")]), Some(1.0));
}

const TENANT: (&str, &str) = ("tenant", "acme");
const NODE: (&str, &str) = ("node", "box");
const LIMITS: MetricLimits = MetricLimits { tenants_max: 2, nodes_max: 2 };

struct Watched {
    registry: Registry,
    watch: Observer,
}

impl Watched {
    fn new() -> Self {
        let registry = Registry::new();
        let router = RouterMetrics::new(&registry).unwrap();
        let watch =
            Observer::new(&registry, "llm", LIMITS, RequestLogLimits::default()).unwrap().with_router(router);
        watch.meters().name_tenant(ACME, "acme");
        watch.meters().name_node(BOX, "box");
        Self { registry, watch }
    }

    fn tell(&self, tenant: TenantId, step: Step) {
        self.watch.record(Instant::ORIGIN, &Event::Request { request: RequestId(1), tenant, step });
    }

    fn change(&self, change: NodeEvent) {
        self.watch.record(Instant::ORIGIN, &Event::Node { node: BOX, change });
    }

    /// Reads a metric of the pool `llm`.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels: Vec<_> = [("pool", "llm")].into_iter().chain(labels.iter().copied()).collect();
        value(&read(&self.registry.render()).unwrap(), name, &labels)
    }
}
