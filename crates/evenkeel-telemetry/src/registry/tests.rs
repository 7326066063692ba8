use super::*;
use std::fmt::Write;

const TENANT: Label = Label { name: "tenant", values_max: 2 };

#[test]
fn registering_a_metric_twice_returns_the_same_counter() {
    let registry = Registry::new();
    registry.counter(MetricDesc::new("a_total", "a")).unwrap().count();
    registry.clone().counter(MetricDesc::new("a_total", "a")).unwrap().count();
    assert_eq!(registry.counter(MetricDesc::new("a_total", "a")).unwrap().get(), 2);
}

#[test]
fn a_name_cannot_be_registered_again_with_another_type_help_or_label() {
    let registry = Registry::new();
    registry.counters(MetricDesc::new("a_total", "a"), [TENANT]).unwrap();
    let conflict = RegisterError::Conflict { name: "a_total" };
    assert_eq!(registry.gauges(MetricDesc::new("a_total", "a"), [TENANT]).unwrap_err(), conflict);
    assert_eq!(registry.counters(MetricDesc::new("a_total", "b"), [TENANT]).unwrap_err(), conflict);
    assert_eq!(registry.counter(MetricDesc::new("a_total", "a")).unwrap_err(), conflict);
    assert_eq!(
        registry.counters(MetricDesc::new("a_total", "a"), [Label { values_max: 3, ..TENANT }]).unwrap_err(),
        conflict
    );
}

#[test]
fn no_other_metric_may_have_the_name_of_a_histograms_series() {
    const ONE: &[Duration] = &[Duration::from_secs(1)];
    let registry = Registry::new();
    registry.histogram(MetricDesc::new("a_seconds", "a"), ONE).unwrap();
    registry.gauge(MetricDesc::new("b_seconds_count", "b")).unwrap();
    let conflict = |name| RegisterError::Conflict { name };
    assert_eq!(registry.gauge(MetricDesc::new("a_seconds_sum", "a")).unwrap_err(), conflict("a_seconds_sum"));
    assert_eq!(
        registry.histogram(MetricDesc::new("b_seconds", "b"), ONE).unwrap_err(),
        conflict("b_seconds")
    );
    assert!(registry.gauge(MetricDesc::new("a_seconds_summary", "a")).is_ok());
}

#[test]
fn names_that_prometheus_rejects_are_rejected() {
    let registry = Registry::new();
    for name in ["", "1a", "a.b", "a-b", "ä"] {
        assert_eq!(
            registry.counter(MetricDesc::new(name, "")).unwrap_err(),
            RegisterError::InvalidName { name }
        );
    }
    for name in ["", "le", "__name__", "a:b", "a b"] {
        let label = Label { name, values_max: 1 };
        let error = registry.counters(MetricDesc::new("a_total", ""), [label]).unwrap_err();
        assert_eq!(error, RegisterError::InvalidName { name });
    }
    assert!(registry.counters(MetricDesc::new("a_total", ""), [TENANT, TENANT]).is_err());
}

#[test]
fn bounds_must_increase_and_be_neither_empty_nor_too_many() {
    const ONE: Duration = Duration::from_secs(1);
    const MANY: [Duration; BOUNDS_MAX + 1] = {
        let mut many = [ONE; BOUNDS_MAX + 1];
        let mut at = 0;
        while at < many.len() {
            many[at] = Duration::from_secs(at as u64);
            at += 1;
        }
        many
    };
    let registry = Registry::new();
    for bounds in [&[][..], &[ONE, ONE], &[ONE, Duration::ZERO], &MANY] {
        let error = registry.histogram(MetricDesc::new("a_seconds", ""), bounds).unwrap_err();
        assert_eq!(error, RegisterError::InvalidBounds { name: "a_seconds" });
    }
    assert!(registry.histogram(MetricDesc::new("a_seconds", ""), MANY.split_at(BOUNDS_MAX).0).is_ok());
}

#[test]
fn the_numbers_of_metrics_and_sources_are_limited() {
    let registry = Registry::new();
    let names = (0..FAMILIES_MAX).map(|number| &*String::leak(format!("a{number}_total")));
    let refused = names.filter(|name| registry.counter(MetricDesc::new(name, "")).is_err()).count();
    // The registry's own two metrics count towards the limit.
    assert_eq!(refused, 2);
    for _ in 0..SOURCES_MAX {
        registry.add_source(|_| Ok(())).unwrap();
    }
    assert_eq!(registry.add_source(|_| Ok(())).unwrap_err(), RegisterError::TooMany { max: SOURCES_MAX });
}

#[test]
fn a_valid_source_is_rendered_and_an_invalid_one_is_counted() {
    let registry = Registry::new();
    registry.add_source(|out| out.write_str("# TYPE theirs counter\ntheirs 7\n")).unwrap();
    registry.add_source(|_| Err(fmt::Error)).unwrap();
    registry.add_source(|out| out.write_str("# TYPE theirs gauge\ntheirs 8\n")).unwrap();
    let page = registry.render();
    assert!(page.ends_with("# TYPE theirs counter\ntheirs 7\n"), "{page}");
    assert!(page.contains("\nevenkeel_telemetry_sources_skipped_total 2\n"), "{page}");
}

#[test]
fn the_page_counts_label_values_recorded_as_other() {
    let registry = Registry::new();
    let family = registry.counters(MetricDesc::new("a_total", "a"), [TENANT]).unwrap();
    for tenant in ["a", "b", "c"] {
        family.with([tenant]).count();
    }
    let page = registry.render();
    assert!(page.contains("a_total{tenant=\"other\"} 1\n"), "{page}");
    assert!(page.contains("evenkeel_telemetry_labels_over_total{metric=\"a_total\"} 1\n"), "{page}");
}
