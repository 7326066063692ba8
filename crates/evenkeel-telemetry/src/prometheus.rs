//! Renders metrics in Prometheus' text exposition format, version 0.0.4.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use crate::family::{AnySeries, Label, MetricDesc};
use crate::metric::HistogramSnapshot;

pub(crate) fn write_family(out: &mut String, family: &AnySeries) {
    let MetricDesc { name, help } = family.spec().desc;
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

fn write_histogram(out: &mut String, name: &str, labels: &str, snapshot: &HistogramSnapshot) {
    let comma = if labels.is_empty() { "" } else { "," };
    let bucket = format!("{name}_bucket");
    for (bound, count) in &snapshot.buckets {
        let with_le = format!("{labels}{comma}le=\"{}\"", Number(seconds(*bound)));
        sample(out, &bucket, &with_le, format_args!("{count}"));
    }
    sample(out, &bucket, &format!("{labels}{comma}le=\"+Inf\""), format_args!("{}", snapshot.count));
    let sum = Number(seconds(snapshot.sum));
    sample(out, &format!("{name}_sum"), labels, format_args!("{sum}"));
    sample(out, &format!("{name}_count"), labels, format_args!("{}", snapshot.count));
}

/// Divides integer nanoseconds, which rounds only once: 10 ms is exactly `0.01`.
fn seconds(duration: std::time::Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
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

/// Escapes text so that it ends neither its line nor its quotes.
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

/// A number in Prometheus' notation.
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

/// Output of the sources, without duplicate metrics.
pub(crate) struct SourceOutput {
    names: BTreeSet<String>,
    text: String,
}

impl SourceOutput {
    pub(crate) fn new<'a>(registered: impl Iterator<Item = &'a str>) -> Self {
        Self { names: registered.map(str::to_owned).collect(), text: String::new() }
    }

    /// Appends a source's text, or nothing if it repeats a metric; returns whether it was appended.
    pub(crate) fn append(&mut self, text: &str) -> bool {
        let listed: Vec<_> = text.lines().filter_map(type_name).map(str::to_owned).collect();
        let names: BTreeSet<_> = listed.iter().cloned().collect();
        if names.len() < listed.len() || !names.is_disjoint(&self.names) {
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

/// Returns the metric named by a `# TYPE` line.
fn type_name(line: &str) -> Option<&str> {
    line.strip_prefix("# TYPE ")?.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_prometheus_notation() {
        let numbers = [0.01, 0.05, 2.5, 30.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        assert_eq!(
            numbers.map(|number| Number(number).to_string()),
            ["0.01", "0.05", "2.5", "30", "+Inf", "-Inf", "NaN"]
        );
    }

    #[test]
    fn quotes_are_escaped_in_labels_and_not_in_help_texts() {
        let text = "a\\b \"c\"\nd";
        assert_eq!(Escaped { text, quote: Quote::Double }.to_string(), "a\\\\b \\\"c\\\"\\nd");
        assert_eq!(Escaped { text, quote: Quote::None }.to_string(), "a\\\\b \"c\"\\nd");
    }

    #[test]
    fn the_output_of_a_source_that_repeats_a_metric_is_omitted() {
        let mut output = SourceOutput::new(["ours"].into_iter());
        assert!(output.append("# TYPE theirs counter\ntheirs 1"));
        assert!(!output.append("# TYPE fresh gauge\nfresh 1\n# TYPE theirs counter\ntheirs 2\n"));
        assert!(!output.append("# TYPE ours counter\nours 2\n"));
        assert!(!output.append("# TYPE twice gauge\n# TYPE twice gauge\n"));
        assert_eq!(output.text(), "# TYPE theirs counter\ntheirs 1\n");
    }
}
