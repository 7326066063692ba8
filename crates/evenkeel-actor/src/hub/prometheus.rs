//! Writes a snapshot in the Prometheus text exposition format.

use core::fmt::{self, Write};
use core::time::Duration;

use super::{HistogramSnapshot, Series, Snapshot, Value, names};

impl Snapshot {
    /// Writes the snapshot in the Prometheus text exposition format.
    ///
    /// Dots in names become underscores; durations are in milliseconds.
    pub fn write_prometheus(&self, out: &mut impl Write) -> fmt::Result {
        let mut family = "";
        for series in self.series() {
            if series.name != family {
                write_family_header(out, series)?;
                family = series.name;
            }
            match &series.value {
                Value::Counter(count) => write_sample(out, series, "", None, format_args!("{count}"))?,
                Value::Gauge(value) => {
                    write_sample(out, series, "", None, format_args!("{}", Number(*value)))?;
                }
                Value::Histogram(histogram) => write_histogram(out, series, histogram)?,
            }
        }
        Ok(())
    }
}

fn write_family_header(out: &mut impl Write, series: &Series) -> fmt::Result {
    let name = Name(series.name);
    if let Some(help) = names::help(series.name) {
        writeln!(out, "# HELP {name} {help}")?;
    }
    let kind = match series.value {
        Value::Counter(_) => "counter",
        Value::Gauge(_) => "gauge",
        Value::Histogram(_) => "histogram",
    };
    writeln!(out, "# TYPE {name} {kind}")
}

fn write_histogram(out: &mut impl Write, series: &Series, histogram: &HistogramSnapshot) -> fmt::Result {
    for (bound, count) in histogram.buckets() {
        let bound = Number(bound.map_or(f64::INFINITY, millis));
        write_sample(out, series, "_bucket", Some(bound), format_args!("{count}"))?;
    }
    let sum = Number(millis(histogram.sum()));
    write_sample(out, series, "_sum", None, format_args!("{sum}"))?;
    write_sample(out, series, "_count", None, format_args!("{}", histogram.count()))
}

fn millis(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

fn write_sample(
    out: &mut impl Write,
    series: &Series,
    suffix: &str,
    bound: Option<Number>,
    value: fmt::Arguments<'_>,
) -> fmt::Result {
    write!(out, "{}{suffix}", Name(series.name))?;
    let mut separator = '{';
    for (key, value) in &series.labels {
        write!(out, "{separator}{key}=\"{}\"", Escaped(value))?;
        separator = ',';
    }
    if let Some(bound) = bound {
        write!(out, "{separator}le=\"{bound}\"")?;
        separator = ',';
    }
    if separator == ',' {
        out.write_char('}')?;
    }
    writeln!(out, " {value}")
}

struct Name(&'static str);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| f.write_char(if c.is_ascii_alphanumeric() { c } else { '_' }))
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == f64::INFINITY {
            return f.write_str("+Inf");
        }
        if self.0 == f64::NEG_INFINITY {
            return f.write_str("-Inf");
        }
        write!(f, "{}", self.0)
    }
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
    fn a_family_has_one_head_and_its_dots_are_underscores() {
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
    fn a_histogram_without_labels_has_le_alone() {
        let page = page(vec![series("a", &[], Value::Histogram(Box::default()))]);
        assert!(page.contains("a_bucket{le=\"+Inf\"} 0\na_sum 0\na_count 0\n"), "{page}");
    }

    #[test]
    fn special_numbers_are_written_as_prometheus_expects() {
        let written = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|value| Number(value).to_string());
        assert_eq!(written, ["NaN", "+Inf", "-Inf"]);
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
