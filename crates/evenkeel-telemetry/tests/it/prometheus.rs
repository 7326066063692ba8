//! The Prometheus page, parsed strictly, also while other threads record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_policy::id::{ModelId, NodeId, PathId, PeerId, RequestId, TenantId};
use evenkeel_policy::swrr::{ShareWindow, SwrrConfig, SwrrRules, SwrrScheduler};
use evenkeel_policy::time::Instant;
use evenkeel_telemetry::trace::{TraceOptions, Tracer};
use evenkeel_telemetry::{
    ClassGauges, DURATION_BOUNDS, DatagramDrop, EngineGauges, Event, FallbackReason, GenAiMetrics,
    GenAiOperation, Label, MetricDesc, MetricLimits, NodeGauges, Observer, PathGauges, PathMetrics, Registry,
    RelayMetrics, RequestLogLimits, RouteMetrics, RouterGauges, RouterMetrics, Step, metric_names,
};
use proptest::prelude::*;

use crate::reader::{read, value};

#[test]
fn every_metric_of_the_crate_is_on_the_page_in_valid_format() {
    let registry = Registry::new();
    let observer =
        Observer::new(&registry, "llm", MetricLimits::default(), RequestLogLimits::default()).unwrap();
    RouterMetrics::new(&registry).unwrap();
    Tracer::new(&registry, TraceOptions::default()).unwrap();
    let link = PathMetrics::new(&registry).unwrap().add_link("site-b").unwrap();
    link.set_reorder_utilization("7", 0.5);
    link.add_datagrams("wan0", 2, 1);
    link.add_dropped_datagrams(DatagramDrop::Late, 1);
    link.add_lost_datagrams(1);
    link.paths
        .update(&PathGauges { window: Some(&window()), ..PathGauges::default() }, |path| path.0.to_string());
    RelayMetrics::new(&registry).unwrap().refused("busy");
    let routes = RouteMetrics::new(&registry, "site-b").unwrap();
    routes.set_hops("wan0", 3);
    routes.count_failure("no_answer");
    observer.metrics().name_peer(PeerId(0), "b");
    observer.metrics().name_node(NodeId(0), "a");
    let engine = Some(EngineGauges { running: 3, waiting: 1 });
    observer
        .metrics()
        .set_node_gauges(NodeId(0), &NodeGauges { slots: 8, busy: 2, engine, ..NodeGauges::default() });
    let step = Step::FellBack { to: ModelId(0), reason: FallbackReason::NoNode };
    observer.metrics().record(&Event::Request { request: RequestId(0), tenant: TenantId(0), step });
    let operation = GenAiOperation { name: "chat", provider: "openai" };
    GenAiMetrics::new(&registry).unwrap().series(operation, ModelId(0), "a", "a");
    let page = read(&registry.render()).unwrap();
    let found: Vec<_> = page.iter().map(|family| (family.name.as_str(), family.help.as_str())).collect();
    let mut expected: Vec<_> = metric_names::ALL.iter().map(|desc| (desc.name, desc.help)).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Returns the window of a scheduler with one path.
fn window() -> ShareWindow {
    let rules = SwrrRules::new(&SwrrConfig { window_picks: 1, ..SwrrConfig::default() }).unwrap();
    let mut swrr = SwrrScheduler::new(rules);
    swrr.add_path(PathId(0)).unwrap();
    swrr.activate(PathId(0), Instant::ORIGIN).unwrap();
    swrr.pick();
    swrr.last_window().unwrap().clone()
}

#[test]
fn metric_names_of_the_specification_are_unchanged() {
    let registry = Registry::new();
    let router = RouterMetrics::new(&registry).unwrap();
    router.set_gauges(&RouterGauges {
        queue_size: 45,
        cache_hits: 9000,
        cache_misses: 1000,
        pool_connections: 24,
        classes: [1, 2, 3, 4].map(|cost| ClassGauges { waiting: 5, cost }),
    });
    let page = read(&registry.render()).unwrap();
    for (name, expected) in [
        ("llm_router_queue_size", 45.0),
        ("llm_router_backpressure_rejections_total", 0.0),
        ("llm_router_cache_hits_total", 9000.0),
        ("llm_router_cache_misses_total", 1000.0),
        ("llm_router_pool_connections", 24.0),
        ("llm_router_request_duration_seconds_sum", 0.0),
        ("llm_router_request_duration_seconds_count", 0.0),
    ] {
        assert_eq!(value(&page, name, &[]), Some(expected), "{name}");
    }
    for (class, cost) in [("low", 1.0), ("normal", 2.0), ("high", 3.0), ("background", 4.0)] {
        let label = [("class", class)];
        assert_eq!(value(&page, "evenkeel_class_waiting", &label), Some(5.0));
        assert_eq!(value(&page, "evenkeel_class_cost_units_total", &label), Some(cost));
    }
    for le in ["0.01", "0.05", "0.1", "+Inf"] {
        let bucket = value(&page, "llm_router_request_duration_seconds_bucket", &[("le", le)]);
        assert_eq!(bucket, Some(0.0), "{le}");
    }
}

#[test]
fn nothing_recorded_is_lost_and_every_concurrent_page_is_consistent() {
    const THREADS: u64 = 4;
    const RECORDS_PER_THREAD: u64 = 20_000;
    let registry = Registry::new();
    let family = registry
        .counters(MetricDesc::new("a_total", "a"), [Label { name: "thread", values_max: 2 }])
        .unwrap();
    let histogram = registry.histogram(MetricDesc::new("a_seconds", "a"), DURATION_BOUNDS).unwrap();
    let gauge = registry.gauge(MetricDesc::new("a_now", "a")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let record = |thread: u64| {
            let histogram = histogram.clone();
            let gauge = gauge.clone();
            let counter = family.with([&thread.to_string()]);
            move || {
                for number in 0..RECORDS_PER_THREAD {
                    counter.count();
                    gauge.add(if number % 2 == 0 { 1 } else { -1 });
                    histogram.record(Duration::from_millis(number % 200));
                }
            }
        };
        let recorders: Vec<_> = (0..THREADS).map(|thread| scope.spawn(record(thread))).collect();
        let reader = scope.spawn(|| {
            let mut last = 0.0;
            while !done.load(Ordering::Acquire) {
                let page = read(&registry.render()).unwrap();
                let count = value(&page, "a_seconds_count", &[]).unwrap();
                assert!(last <= count, "the count decreased from {last} to {count}");
                last = count;
            }
        });
        recorders.into_iter().for_each(|recorder| recorder.join().unwrap());
        done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    let page = read(&registry.render()).unwrap();
    let total: f64 = ["0", "1", "2", "3", "other"]
        .iter()
        .filter_map(|thread| value(&page, "a_total", &[("thread", thread)]))
        .sum();
    assert_eq!(total as u64, THREADS * RECORDS_PER_THREAD);
    assert_eq!(value(&page, "a_seconds_count", &[]), Some((THREADS * RECORDS_PER_THREAD) as f64));
    assert_eq!(value(&page, "a_now", &[]), Some(0.0));
    let millis: u64 = (0..RECORDS_PER_THREAD).map(|number| number % 200).sum();
    assert_eq!(histogram.read().sum, Duration::from_millis(THREADS * millis));
}

proptest! {
    #[test]
    fn any_text_survives_as_a_label_value(texts in proptest::collection::btree_set(".{0,30}|[\\\\\"\n{},= ]{0,9}", 1..8)) {
        let registry = Registry::new();
        let family = registry.counters(MetricDesc::new("a_total", "a"), [Label { name: "x", values_max: 8 }]).unwrap();
        for (count, text) in (1..).zip(&texts) {
            family.with([text]).add(count);
        }
        let page = read(&registry.render()).map_err(TestCaseError::fail)?;
        for (count, text) in (1..).zip(&texts) {
            prop_assert_eq!(value(&page, "a_total", &[("x", text)]), Some(f64::from(count)));
        }
    }

    #[test]
    fn a_label_stays_within_its_limit_and_no_count_is_lost(
        sent in proptest::collection::vec("[a-z]{1,2}", 1..200), values_max in 0_usize..10,
    ) {
        let registry = Registry::new();
        let family = registry.counters(MetricDesc::new("a_total", "a"), [Label { name: "x", values_max }]).unwrap();
        sent.iter().for_each(|text| family.with([text]).count());
        let page = read(&registry.render()).map_err(TestCaseError::fail)?;
        let samples = &page.iter().find(|family| family.name == "a_total").unwrap().samples;
        prop_assert!(samples.len() <= values_max + 1);
        prop_assert_eq!(samples.iter().map(|sample| sample.value).sum::<f64>() as usize, sent.len());
    }

    #[test]
    fn a_bucket_counts_the_durations_up_to_its_bound(
        durations in proptest::collection::vec(0_u64..200_000_000_000, 0..60),
    ) {
        let registry = Registry::new();
        let histogram = registry.histogram(MetricDesc::new("a_seconds", "a"), DURATION_BOUNDS).unwrap();
        durations.iter().for_each(|nanos| histogram.record(Duration::from_nanos(*nanos)));
        let page = read(&registry.render()).map_err(TestCaseError::fail)?;
        for bound in DURATION_BOUNDS {
            let expected = durations.iter().filter(|nanos| Duration::from_nanos(**nanos) <= *bound).count();
            let le = bound.as_secs_f64().to_string();
            prop_assert_eq!(value(&page, "a_seconds_bucket", &[("le", &le)]), Some(expected as f64));
        }
        prop_assert_eq!(value(&page, "a_seconds_count", &[]), Some(durations.len() as f64));
    }
}
