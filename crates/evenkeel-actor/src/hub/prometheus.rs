//! Writes a snapshot in the Prometheus text exposition format.

use core::fmt::{self, Write};
use core::time::Duration;

use evenkeel_policy::exposition::{MetricKind, SampleValue, SeriesName, write_head};

use super::{HistogramSnapshot, Series, Snapshot, Value, names};

impl Snapshot {
    /// Writes the snapshot in the Prometheus text exposition format.
    ///
    /// Dots in names become underscores; durations are in milliseconds.
    pub fn write_prometheus(&self, out: &mut impl Write) -> fmt::Result {
        let mut family = "";
        for series in self.series() {
            if series.name != family {
                write_head(out, series.name, names::help(series.name), kind(&series.value))?;
                family = series.name;
            }
            write_series(out, series)?;
        }
        Ok(())
    }
}

fn kind(value: &Value) -> MetricKind {
    match value {
        Value::Counter(_) => MetricKind::Counter,
        Value::Gauge(_) => MetricKind::Gauge,
        Value::Histogram(_) => MetricKind::Histogram,
    }
}

fn write_series(out: &mut impl Write, series: &Series) -> fmt::Result {
    let labels = series.labels.iter().map(|(label, value)| (*label, value.as_str()));
    let name = SeriesName { name: series.name, labels };
    match &series.value {
        Value::Counter(count) => name.write_sample(out, SampleValue::Count(*count)),
        Value::Gauge(value) => name.write_sample(out, SampleValue::Float(*value)),
        Value::Histogram(histogram) => {
            name.write_histogram(out, bounded(histogram), millis(histogram.sum()), histogram.count())
        }
    }
}

/// Iterates over the buckets that have an upper bound; the writer adds the last one, `+Inf`.
fn bounded(histogram: &HistogramSnapshot) -> impl Iterator<Item = (f64, u64)> {
    histogram.buckets().filter_map(|(bound, count)| Some((millis(bound?), count)))
}

fn millis(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Histogram;
    use alloc::boxed::Box;
    use alloc::string::{String, ToString};
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn a_family_has_one_header_and_underscores_instead_of_dots() {
        let page = page(vec![
            series(names::MAILBOX_DEPTH, &[("actor", "B")], Value::Gauge(2.5)),
            series(names::MAILBOX_DEPTH, &[("actor", "A")], Value::Gauge(1.0)),
            series(names::READY_QUEUE_DEPTH, &[], Value::Gauge(0.0)),
            series(names::DEAD_LETTERS_TOTAL, &[("reason", "full")], Value::Counter(u64::MAX)),
        ]);
        let expected = "\
# HELP actor_mailbox_depth messages waiting in mailboxes, by actor
# TYPE actor_mailbox_depth gauge
actor_mailbox_depth{actor=\"A\"} 1
actor_mailbox_depth{actor=\"B\"} 2.5
# HELP dead_letters_total messages that reached no handler, by reason
# TYPE dead_letters_total counter
dead_letters_total{reason=\"full\"} 18446744073709551615
# HELP scheduler_ready_queue_depth actors waiting for a worker
# TYPE scheduler_ready_queue_depth gauge
scheduler_ready_queue_depth 0
";
        assert_eq!(page, expected);
    }

    #[test]
    fn an_unknown_metric_has_a_type_and_no_help() {
        assert_eq!(page(vec![series("my.own", &[], Value::Counter(1))]), "# TYPE my_own counter\nmy_own 1\n");
    }

    #[test]
    fn label_values_are_escaped() {
        let page = page(vec![series("a", &[("actor", "a\\new \"x\"\n}")], Value::Counter(1))]);
        assert!(page.ends_with("a{actor=\"a\\\\new \\\"x\\\"\\n}\"} 1\n"), "{page}");
    }

    #[test]
    fn a_histogram_is_in_milliseconds_and_cumulative_up_to_infinity() {
        let histogram = Histogram::default();
        for nanos in [100, 1_000_000, 1_000_000, 60_000_000_000] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let value = Value::Histogram(Box::new(histogram.snapshot()));
        let page = page(vec![series(names::LATENCY_MS, &[("actor", "A")], value)]);
        let lines: Vec<_> = page.lines().skip(2).collect();
        assert_eq!(lines.len(), 28 + 2);
        assert_eq!(lines[0], "scheduler_latency_ms_bucket{actor=\"A\",le=\"0.000256\"} 1");
        assert_eq!(lines[12], "scheduler_latency_ms_bucket{actor=\"A\",le=\"1.048576\"} 3");
        assert_eq!(lines[26], "scheduler_latency_ms_bucket{actor=\"A\",le=\"17179.869184\"} 3");
        assert_eq!(lines[27], "scheduler_latency_ms_bucket{actor=\"A\",le=\"+Inf\"} 4");
        assert_eq!(lines[28], "scheduler_latency_ms_sum{actor=\"A\"} 60002.0001");
        assert_eq!(lines[29], "scheduler_latency_ms_count{actor=\"A\"} 4");
    }

    #[test]
    fn a_histogram_without_labels_has_only_the_label_le() {
        let page = page(vec![series("a", &[], Value::Histogram(Box::default()))]);
        assert!(page.contains("a_bucket{le=\"+Inf\"} 0\na_sum 0\na_count 0\n"), "{page}");
    }

    #[test]
    fn special_numbers_are_written_as_prometheus_expects() {
        let written = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|value| {
            let page = page(vec![series("a", &[], Value::Gauge(value))]);
            page.lines().last().unwrap().to_string()
        });
        assert_eq!(written, ["a NaN", "a +Inf", "a -Inf"]);
    }

    fn series(name: &'static str, labels: &[(&'static str, &str)], value: Value) -> Series {
        Series { name, labels: labels.iter().map(|(key, value)| (*key, value.to_string())).collect(), value }
    }

    fn page(series: Vec<Series>) -> String {
        let mut page = String::new();
        Snapshot::new(series).write_prometheus(&mut page).unwrap();
        page
    }
}
