//! Joins the metrics of several actor systems: each series gets the label `system`, and each metric one heading.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Metrics by name, as text.
#[derive(Debug, Default)]
pub(super) struct ActorMetrics {
    families: BTreeMap<String, MetricText>,
}

/// Text of one metric.
#[derive(Debug, Default)]
struct MetricText {
    heading: String,
    samples: String,
}

impl ActorMetrics {
    /// Adds the metrics of one system, which writes a page in Prometheus' text format with a heading for every metric.
    pub(super) fn add(
        &mut self,
        system: &str,
        write_page: impl FnOnce(&mut String) -> fmt::Result,
    ) -> fmt::Result {
        let mut page = String::new();
        write_page(&mut page)?;
        let mut heading = String::new();
        let mut name = "";
        for line in page.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let named = comment.split(' ').nth(1).unwrap_or_default();
                if named != name {
                    name = named;
                    heading.clear();
                }
                writeln!(heading, "{line}")?;
                continue;
            }
            let metric = self.families.entry(name.to_owned()).or_default();
            if metric.heading.is_empty() {
                metric.heading.clone_from(&heading);
            }
            let end = line.find(['{', ' ']).unwrap_or(line.len());
            let (series, rest) = line.split_at(end);
            match rest.strip_prefix('{') {
                Some(labels) => writeln!(metric.samples, "{series}{{system=\"{system}\",{labels}")?,
                None => writeln!(metric.samples, "{series}{{system=\"{system}\"}}{rest}")?,
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut String) {
        for MetricText { heading, samples } in self.families.values() {
            out.push_str(heading);
            out.push_str(samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_has_its_system_as_a_label_and_headings_are_not_repeated() {
        let page = "# HELP a help of a\n# TYPE a gauge\na{actor=\"x y\"} 1\n# TYPE b counter\nb 2\n";
        let mut metrics = ActorMetrics::default();
        metrics.add("llm", |out| out.write_str(page)).unwrap();
        metrics.add("sql", |out| out.write_str(&page.replace('1', "3"))).unwrap();
        let mut out = String::new();
        metrics.write(&mut out);
        let expected = "\
# HELP a help of a
# TYPE a gauge
a{system=\"llm\",actor=\"x y\"} 1
a{system=\"sql\",actor=\"x y\"} 3
# TYPE b counter
b{system=\"llm\"} 2
b{system=\"sql\"} 2
";
        assert_eq!(out, expected);
    }

    #[test]
    fn the_series_of_a_histogram_stay_under_its_heading() {
        let page = "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 2\nh_count 1\n";
        let mut metrics = ActorMetrics::default();
        metrics.add("sql", |out| out.write_str(page)).unwrap();
        let mut out = String::new();
        metrics.write(&mut out);
        let expected = "\
# TYPE h histogram
h_bucket{system=\"sql\",le=\"+Inf\"} 1
h_sum{system=\"sql\"} 2
h_count{system=\"sql\"} 1
";
        assert_eq!(out, expected);
    }
}
