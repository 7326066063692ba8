//! Renders metrics in the Prometheus text exposition format, version 0.0.4.

use std::collections::BTreeSet;
use std::fmt;

use evenkeel_policy::exposition::{MetricKind, SampleValue, SeriesName, write_head};

use crate::family::{AnyFamily, Label, MetricDesc};

pub(crate) fn write_family(out: &mut String, family: &AnyFamily) {
    try_write_family(out, family).expect("writing to a string does not fail");
}

/// Writes a family, unless it has no series.
fn try_write_family(out: &mut String, family: &AnyFamily) -> fmt::Result {
    if family.is_empty() {
        return Ok(());
    }
    let MetricDesc { name, help } = family.spec().desc;
    write_head(out, name, Some(help), kind(family))?;
    match family {
        AnyFamily::Counter(family) => {
            for (values, counter) in family.list() {
                series_name(name, &family.labels, &values)
                    .write_sample(out, SampleValue::Count(counter.get()))?;
            }
        }
        AnyFamily::Gauge(family) => {
            for (values, gauge) in family.list() {
                series_name(name, &family.labels, &values)
                    .write_sample(out, SampleValue::Integer(gauge.get()))?;
            }
        }
        AnyFamily::FloatGauge(family) => {
            for (values, gauge) in family.list() {
                series_name(name, &family.labels, &values)
                    .write_sample(out, SampleValue::Float(gauge.get()))?;
            }
        }
        AnyFamily::Histogram(family) => {
            for (values, histogram) in family.list() {
                let snapshot = histogram.read();
                let buckets = snapshot.buckets.iter().map(|&(bound, count)| (seconds(bound), count));
                let sum = seconds(snapshot.sum);
                series_name(name, &family.labels, &values).write_histogram(
                    out,
                    buckets,
                    sum,
                    snapshot.count,
                )?;
            }
        }
        AnyFamily::CountHistogram(family) => {
            for (values, histogram) in family.list() {
                let snapshot = histogram.read();
                let buckets = snapshot.buckets.iter().map(|&(bound, count)| (bound as f64, count));
                series_name(name, &family.labels, &values).write_histogram(
                    out,
                    buckets,
                    snapshot.sum as f64,
                    snapshot.count,
                )?;
            }
        }
    }
    Ok(())
}

fn kind(family: &AnyFamily) -> MetricKind {
    match family {
        AnyFamily::Counter(_) => MetricKind::Counter,
        AnyFamily::Gauge(_) | AnyFamily::FloatGauge(_) => MetricKind::Gauge,
        AnyFamily::Histogram(_) | AnyFamily::CountHistogram(_) => MetricKind::Histogram,
    }
}

fn series_name<'a>(
    name: &'a str,
    labels: &'a [Label],
    values: &'a [String],
) -> SeriesName<'a, impl Iterator<Item = (&'a str, &'a str)> + Clone> {
    let labels = labels.iter().zip(values).map(|(label, value)| (label.name, value.as_str()));
    SeriesName { name, labels }
}

/// Converts to seconds with a single rounding step, so that 10 ms prints as `0.01`.
fn seconds(duration: std::time::Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
}

/// Text of external metric sources; a source that repeats a metric is skipped.
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
        let names: Vec<_> = text.lines().filter_map(metric_name).map(str::to_owned).collect();
        let unique_names: BTreeSet<_> = names.iter().cloned().collect();
        if unique_names.len() < names.len() || !unique_names.is_disjoint(&self.names) {
            return false;
        }
        self.names.extend(unique_names);
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
fn metric_name(line: &str) -> Option<&str> {
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
