//! Renders metrics in Prometheus' text exposition format, version 0.0.4.

use std::collections::BTreeSet;
use std::fmt;

use evenkeel_policy::exposition::{MetricKind, SampleValue, SeriesName, write_head};

use crate::family::{AnySeries, Label, MetricDesc};

pub(crate) fn write_family(out: &mut String, family: &AnySeries) {
    try_write_family(out, family).expect("writing to a string does not fail");
}

fn try_write_family(out: &mut String, family: &AnySeries) -> fmt::Result {
    let MetricDesc { name, help } = family.spec().desc;
    write_head(out, name, Some(help), kind(family))?;
    match family {
        AnySeries::Counter(family) => {
            for (values, counter) in family.list() {
                series(name, &family.labels, &values).write_sample(out, SampleValue::Count(counter.get()))?;
            }
        }
        AnySeries::Gauge(family) => {
            for (values, gauge) in family.list() {
                series(name, &family.labels, &values).write_sample(out, SampleValue::Integer(gauge.get()))?;
            }
        }
        AnySeries::FloatGauge(family) => {
            for (values, gauge) in family.list() {
                series(name, &family.labels, &values).write_sample(out, SampleValue::Float(gauge.get()))?;
            }
        }
        AnySeries::Histogram(family) => {
            for (values, histogram) in family.list() {
                let snapshot = histogram.read();
                let buckets = snapshot.buckets.iter().map(|&(bound, count)| (seconds(bound), count));
                let sum = seconds(snapshot.sum);
                series(name, &family.labels, &values).write_histogram(out, buckets, sum, snapshot.count)?;
            }
        }
    }
    Ok(())
}

fn kind(family: &AnySeries) -> MetricKind {
    match family {
        AnySeries::Counter(_) => MetricKind::Counter,
        AnySeries::Gauge(_) | AnySeries::FloatGauge(_) => MetricKind::Gauge,
        AnySeries::Histogram(_) => MetricKind::Histogram,
    }
}

fn series<'a>(
    name: &'a str,
    labels: &'a [Label],
    values: &'a [String],
) -> SeriesName<'a, impl Iterator<Item = (&'a str, &'a str)> + Clone> {
    let labels = labels.iter().zip(values).map(|(label, value)| (label.name, value.as_str()));
    SeriesName { name, labels }
}

/// Divides integer nanoseconds, which rounds only once: 10 ms is exactly `0.01`.
fn seconds(duration: std::time::Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
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
    fn the_output_of_a_source_that_repeats_a_metric_is_omitted() {
        let mut output = SourceOutput::new(["ours"].into_iter());
        assert!(output.append("# TYPE theirs counter\ntheirs 1"));
        assert!(!output.append("# TYPE fresh gauge\nfresh 1\n# TYPE theirs counter\ntheirs 2\n"));
        assert!(!output.append("# TYPE ours counter\nours 2\n"));
        assert!(!output.append("# TYPE twice gauge\n# TYPE twice gauge\n"));
        assert_eq!(output.text(), "# TYPE theirs counter\ntheirs 1\n");
    }
}
