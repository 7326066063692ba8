//! Metrics of paths: which sources feed them, and when they are on the page.

use std::time::Duration;

use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::path::{Cause, PathState, Transition};
use evenkeel_policy::swrr::{ReweightCounts, ShareWindow, SwrrConfig, SwrrRules, SwrrScheduler};
use evenkeel_policy::time::Instant;
use evenkeel_telemetry::{
    DatagramDrop, Event, MetricLimits, NodeEvent, Observer, PathGauges, PathMetrics, Registry,
    RequestLogLimits,
};

use crate::reader::{read, value};

const BOX: NodeId = NodeId(0);

#[test]
fn without_a_source_there_are_no_path_metrics() {
    let page = Page::new();
    assert_eq!(page.names(), NONE);
    let paths = PathMetrics::new(&page.0).unwrap();
    assert_eq!(page.names(), NONE);
    let node = paths.add_source("box");
    let of_nodes = [
        "evenkeel_path_relative_entropy",
        "evenkeel_path_reweights_total",
        "nyx_multipath_active_paths",
        "nyx_multipath_path_activated_total",
        "nyx_multipath_path_deactivated_total",
        "nyx_multipath_path_rtt_seconds",
        "nyx_wrr_weight_ratio_deviation",
    ];
    assert_eq!(page.names(), of_nodes);
    let link = paths.add_link("site-b").unwrap();
    link.set_reorder_utilization("1", 0.5);
    let of_links = [
        "evenkeel_link_bonded_exits_total",
        "evenkeel_link_bonded_paths",
        "evenkeel_link_candidate_paths",
        "evenkeel_link_path_swaps_total",
        "evenkeel_link_reinjected_bytes_total",
        "nyx_multipath_reorder_buffer_utilization",
        "nyx_multipath_reorder_delay_seconds",
    ];
    assert!(of_links.iter().all(|name| page.names().iter().any(|found| found == name)));
    drop(link);
    assert_eq!(page.names(), of_nodes);
    drop(node);
    assert_eq!(page.names(), NONE);
}

#[test]
fn gauges_are_the_sum_or_the_maximum_of_all_sources() {
    let page = Page::new();
    let paths = PathMetrics::new(&page.0).unwrap();
    let near = paths.add_source("near");
    let far = paths.add_link("far").unwrap();
    let even = window(|_| ());
    // The second pick is that of path 0 again.
    let uneven = window(SwrrScheduler::reset_weights);
    near.update(&PathGauges { active_paths: 3, window: Some(&even), ..PathGauges::default() }, path_name);
    far.paths
        .update(&PathGauges { active_paths: 2, window: Some(&uneven), ..PathGauges::default() }, path_name);
    assert_eq!(page.value("nyx_multipath_active_paths", &[]), Some(5.0));
    assert_eq!(page.value("nyx_wrr_weight_ratio_deviation", &[]), Some(0.5));
    assert_eq!(page.value("evenkeel_path_relative_entropy", &[]), Some(2.0_f64.ln()));
    let share = |name| [("source", "far"), ("path", name)];
    assert_eq!(page.value("evenkeel_path_share", &share("path-0")), Some(1.0));
    assert_eq!(page.value("evenkeel_path_share_expected", &share("path-1")), Some(0.5));
    drop(far);
    assert_eq!(page.value("nyx_multipath_active_paths", &[]), Some(3.0));
    assert_eq!(page.value("nyx_wrr_weight_ratio_deviation", &[]), Some(0.0));
    assert_eq!(page.value("evenkeel_path_share", &share("path-0")), None);
}

#[test]
fn changes_of_weights_are_counted_once_however_often_they_are_reported() {
    let page = Page::new();
    let paths = PathMetrics::new(&page.0).unwrap();
    let node = paths.add_source("box");
    for applied in [2, 5, 5] {
        let reweights = ReweightCounts { applied, suppressed: 2 * applied };
        node.update(&PathGauges { reweights, ..PathGauges::default() }, path_name);
    }
    assert_eq!(page.value("evenkeel_path_reweights_total", &[("result", "applied")]), Some(5.0));
    assert_eq!(page.value("evenkeel_path_reweights_total", &[("result", "suppressed")]), Some(10.0));
}

#[test]
fn a_link_feeds_its_own_metrics() {
    let page = Page::new();
    let link = PathMetrics::new(&page.0).unwrap().add_link("site-b").unwrap();
    link.add_reinjected_bytes(1_500);
    link.record_reorder_delay(Duration::from_millis(20));
    link.set_reorder_utilization("7", 0.25);
    assert_eq!(page.value("evenkeel_link_reinjected_bytes_total", &[("link", "site-b")]), Some(1_500.0));
    assert_eq!(page.value("nyx_multipath_reorder_delay_seconds_sum", &[]), Some(0.02));
    assert_eq!(page.value("nyx_multipath_reorder_buffer_utilization", &[("flow", "7")]), Some(0.25));
    link.set_bonded_paths(2);
    link.add_bonded_exits(3);
    link.set_candidate_paths(4);
    link.add_slower_replaced(5);
    link.add_unusable_replaced(6);
    for (name, expected) in [("bonded_paths", 2.0), ("bonded_exits_total", 3.0), ("candidate_paths", 4.0)] {
        let name = format!("evenkeel_link_{name}");
        assert_eq!(page.value(&name, &[("link", "site-b")]), Some(expected), "{name}");
    }
    for (cause, expected) in [("slower", 5.0), ("unusable", 6.0)] {
        let labels = [("link", "site-b"), ("cause", cause)];
        assert_eq!(page.value("evenkeel_link_path_swaps_total", &labels), Some(expected));
    }
    link.add_datagrams("wan0", 7, 8);
    link.add_dropped_datagrams(DatagramDrop::Duplicate, 9);
    link.add_lost_datagrams(10);
    let value = |name: &str, labels: &[(&str, &str)]| {
        page.value(&format!("evenkeel_link_datagram_{name}_total"), &[&[("link", "site-b")], labels].concat())
    };
    assert_eq!(value("sent", &[("path", "wan0")]), Some(7.0));
    assert_eq!(value("received", &[("path", "wan0")]), Some(8.0));
    assert_eq!(value("dropped", &[("reason", "duplicate")]), Some(9.0));
    assert_eq!(value("lost", &[]), Some(10.0));
    link.forget_flow("7");
    assert_eq!(page.value("nyx_multipath_reorder_buffer_utilization", &[("flow", "7")]), None);
}

#[test]
fn a_node_with_several_paths_feeds_the_metrics_of_its_observer() {
    let page = Page::new();
    let observer =
        Observer::new(&page.0, "llm", MetricLimits::default(), RequestLogLimits::default()).unwrap();
    let observer = observer.with_paths(PathMetrics::new(&page.0).unwrap());
    let metrics = observer.metrics();
    let change = |from, to| {
        let transition = Transition { from, to, cause: Cause::ProbesAnswered };
        observer.record(
            Instant::ORIGIN,
            &Event::Node { node: BOX, change: NodeEvent::Path { path: PathId(1), transition } },
        );
    };
    metrics.name_node(BOX, "box");
    metrics.record_path_rtt(BOX, Duration::from_secs(1));
    assert_eq!(page.names(), NONE, "a node with one path has no path metrics");
    metrics.add_paths(BOX);
    metrics.record_path_rtt(BOX, Duration::from_secs(45));
    change(PathState::Probing, PathState::Active);
    change(PathState::Active, PathState::Degraded);
    change(PathState::Degraded, PathState::Inactive);
    change(PathState::Inactive, PathState::Probing);
    metrics.set_path_gauges(BOX, &PathGauges { active_paths: 2, ..PathGauges::default() }, path_name);
    for (name, labels, expected) in [
        ("nyx_multipath_path_rtt_seconds_bucket", &[("le", "30")][..], 0.0),
        ("nyx_multipath_path_rtt_seconds_bucket", &[("le", "60")], 1.0),
        ("nyx_multipath_path_activated_total", &[], 1.0),
        ("nyx_multipath_path_deactivated_total", &[], 1.0),
        ("nyx_multipath_active_paths", &[], 2.0),
    ] {
        assert_eq!(page.value(name, labels), Some(expected), "{name}");
    }
    observer.record(Instant::ORIGIN, &Event::Node { node: BOX, change: NodeEvent::Removed });
    assert_eq!(page.names(), NONE);
}

const NONE: [&str; 0] = [];

fn path_name(path: PathId) -> String {
    format!("path-{}", path.0)
}

/// Returns the window of two picks among two paths of equal weight; `between` runs between the picks.
fn window(between: fn(&mut SwrrScheduler)) -> ShareWindow {
    let config = SwrrConfig { window_picks: 2, ..SwrrConfig::default() };
    let mut swrr = SwrrScheduler::new(SwrrRules::new(&config).unwrap());
    for path in [PathId(0), PathId(1)] {
        swrr.add_path(path).unwrap();
        swrr.activate(path, Instant::ORIGIN).unwrap();
    }
    swrr.pick();
    between(&mut swrr);
    swrr.pick();
    swrr.last_window().unwrap().clone()
}

struct Page(Registry);

impl Page {
    fn new() -> Self {
        Self(Registry::new())
    }

    /// Returns the names of the path metrics on the page.
    fn names(&self) -> Vec<String> {
        let names = read(&self.0.render()).unwrap().into_iter().map(|family| family.name);
        let is_path = |name: &String| {
            name.starts_with("nyx_")
                || name.starts_with("evenkeel_link_")
                || (name.starts_with("evenkeel_path_") && name != "evenkeel_path_changes_total")
        };
        names.filter(is_path).collect()
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        value(&read(&self.0.render()).unwrap(), name, labels)
    }
}
