//! Metrics in Prometheus' text format, version 0.0.4.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use crate::family::{AnySeries, Label, MetricDesc};
use crate::metric::HistogramSnapshot;

pub(crate) fn write_family(out: &mut String, family: &AnySeries) {
    let MetricDesc { name, help } = family.shape().named;
    line(out, format_args!("# HELP {name} {}", Escaped { text: help, quote: Quote::None }));
    line(out, format_args!("# TYPE {name} {}", kind(family)));
    match family {
        AnySeries::Counter(family) => {
            for (values, counter) in family.list() {
                sample(out, name, &labels(&family.labels, &values), format_args!("{}", counter.get()));
            }
        }
        AnySeries::Gauge(family) => {
            for (values, gauge) in family.list() {
                sample(out, name, &labels(&family.labels, &values), format_args!("{}", gauge.get()));
            }
        }
        AnySeries::FloatGauge(family) => {
            for (values, gauge) in family.list() {
                let value = Number(gauge.get());
                sample(out, name, &labels(&family.labels, &values), format_args!("{value}"));
            }
        }
        AnySeries::Histogram(family) => {
            for (values, histogram) in family.list() {
                write_histogram(out, name, &labels(&family.labels, &values), &histogram.read());
            }
        }
    }
}

fn kind(family: &AnySeries) -> &'static str {
    match family {
        AnySeries::Counter(_) => "counter",
        AnySeries::Gauge(_) | AnySeries::FloatGauge(_) => "gauge",
        AnySeries::Histogram(_) => "histogram",
    }
}

fn write_histogram(out: &mut String, name: &str, labels: &str, reading: &HistogramSnapshot) {
    let comma = if labels.is_empty() { "" } else { "," };
    let bucket = format!("{name}_bucket");
    for (bound, count) in &reading.buckets {
        let with_le = format!("{labels}{comma}le=\"{}\"", Number(seconds(*bound)));
        sample(out, &bucket, &with_le, format_args!("{count}"));
    }
    sample(out, &bucket, &format!("{labels}{comma}le=\"+Inf\""), format_args!("{}", reading.count));
    let sum = Number(seconds(reading.sum));
    sample(out, &format!("{name}_sum"), labels, format_args!("{sum}"));
    sample(out, &format!("{name}_count"), labels, format_args!("{}", reading.count));
}

/// Divides whole nanoseconds, which is rounded once: 10 ms is 0.01 and nothing near it.
fn seconds(span: std::time::Duration) -> f64 {
    span.as_nanos() as f64 / 1e9
}

fn labels(labels: &[Label], values: &[String]) -> String {
    let mut out = String::new();
    for (label, value) in labels.iter().zip(values) {
        let comma = if out.is_empty() { "" } else { "," };
        let value = Escaped { text: value, quote: Quote::Double };
        print(&mut out, format_args!("{comma}{}=\"{value}\"", label.name));
    }
    out
}

fn sample(out: &mut String, name: &str, labels: &str, value: fmt::Arguments<'_>) {
    if labels.is_empty() {
        line(out, format_args!("{name} {value}"));
    } else {
        line(out, format_args!("{name}{{{labels}}} {value}"));
    }
}

fn line(out: &mut String, text: fmt::Arguments<'_>) {
    print(out, text);
    out.push('\n');
}

fn print(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}

#[derive(PartialEq)]
enum Quote {
    None,
    Double,
}

/// Text that ends neither its line nor its quotes.
struct Escaped<'a> {
    text: &'a str,
    quote: Quote,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '\n' => f.write_str("\\n"),
            '"' if self.quote == Quote::Double => f.write_str("\\\""),
            c => f.write_char(c),
        })
    }
}

/// A number as Prometheus spells it.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number => write!(f, "{number}"),
        }
    }
}

/// What sources print, as long as no metric comes twice.
pub(crate) struct SourceOutput {
    names: BTreeSet<String>,
    text: String,
}

impl SourceOutput {
    pub(crate) fn new<'a>(taken: impl Iterator<Item = &'a str>) -> Self {
        Self { names: taken.map(str::to_owned).collect(), text: String::new() }
    }

    /// Takes all of a source's text, or, if it names a metric that is there already, nothing.
    pub(crate) fn append(&mut self, text: &str) -> bool {
        let told: Vec<_> = text.lines().filter_map(type_name).map(str::to_owned).collect();
        let names: BTreeSet<_> = told.iter().cloned().collect();
        if names.len() < told.len() || !names.is_disjoint(&self.names) {
            return false;
        }
        self.names.extend(names);
        self.text.push_str(text);
        if !text.is_empty() && !text.ends_with('\n') {
            self.text.push('\n');
        }
        true
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Names the metric whose type a line tells.
fn type_name(line: &str) -> Option<&str> {
    line.strip_prefix("# TYPE ")?.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_as_prometheus_spells_them() {
        let spelled = [0.01, 0.05, 2.5, 30.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        assert_eq!(
            spelled.map(|number| Number(number).to_string()),
            ["0.01", "0.05", "2.5", "30", "+Inf", "-Inf", "NaN"]
        );
    }

    #[test]
    fn what_would_end_a_label_is_escaped_and_a_quote_in_help_is_not() {
        let text = "a\\b \"c\"\nd";
        assert_eq!(Escaped { text, quote: Quote::Double }.to_string(), "a\\\\b \\\"c\\\"\\nd");
        assert_eq!(Escaped { text, quote: Quote::None }.to_string(), "a\\\\b \"c\"\\nd");
    }

    #[test]
    fn a_source_that_repeats_a_metric_is_left_out_whole() {
        let mut appendix = SourceOutput::new(["ours"].into_iter());
        assert!(appendix.append("# TYPE theirs counter\ntheirs 1"));
        assert!(!appendix.append("# TYPE fresh gauge\nfresh 1\n# TYPE theirs counter\ntheirs 2\n"));
        assert!(!appendix.append("# TYPE ours counter\nours 2\n"));
        assert!(!appendix.append("# TYPE twice gauge\n# TYPE twice gauge\n"));
        assert_eq!(appendix.text(), "# TYPE theirs counter\ntheirs 1\n");
    }
}
