//! Prometheus text exposition format, version 0.0.4.
//!
//! Every `/metrics` endpoint of the workspace is written with these functions. They allocate nothing and write to any
//! [`fmt::Write`]. The caller writes a family's head once, followed by all of its series.

use core::fmt::{self, Write};

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Cumulative buckets, a sum and a count.
    Histogram,
}

/// A sample's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleValue {
    /// An unsigned integer, written exactly.
    Count(u64),
    /// A signed integer, written exactly.
    Integer(i64),
    /// A float, with `NaN`, `+Inf` and `-Inf` as Prometheus spells them.
    Float(f64),
}

/// Writes the head of a family: `# HELP`, unless `help` is `None`, and `# TYPE`.
pub fn write_head(out: &mut impl Write, name: &str, help: Option<&str>, kind: MetricKind) -> fmt::Result {
    let name = Name(name);
    if let Some(help) = help {
        writeln!(out, "# HELP {name} {}", Escaped { text: help, quote: None })?;
    }
    let kind = match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    };
    writeln!(out, "# TYPE {name} {kind}")
}

/// One series of a family: its name and its label pairs.
#[derive(Clone, Debug)]
pub struct SeriesName<'a, L> {
    /// Name of the family; characters that Prometheus does not allow are written as underscores.
    pub name: &'a str,
    /// Pairs of label name and value; values are escaped.
    pub labels: L,
}

impl<'a, L> SeriesName<'a, L>
where
    L: Iterator<Item = (&'a str, &'a str)> + Clone,
{
    /// Writes the sample of a counter or gauge.
    pub fn write_sample(&self, out: &mut impl Write, value: SampleValue) -> fmt::Result {
        self.write_line(out, "", None, value)
    }

    /// Writes the samples of a histogram: cumulative `buckets` by their upper bound, `+Inf`, sum and count.
    pub fn write_histogram(
        &self,
        out: &mut impl Write,
        buckets: impl Iterator<Item = (f64, u64)>,
        sum: f64,
        count: u64,
    ) -> fmt::Result {
        for (bound, count) in buckets {
            self.write_line(out, "_bucket", Some(bound), SampleValue::Count(count))?;
        }
        self.write_line(out, "_bucket", Some(f64::INFINITY), SampleValue::Count(count))?;
        self.write_line(out, "_sum", None, SampleValue::Float(sum))?;
        self.write_line(out, "_count", None, SampleValue::Count(count))
    }

    fn write_line(
        &self,
        out: &mut impl Write,
        suffix: &str,
        bound: Option<f64>,
        value: SampleValue,
    ) -> fmt::Result {
        write!(out, "{}{suffix}", Name(self.name))?;
        let mut separator = '{';
        for (label, value) in self.labels.clone() {
            write!(out, "{separator}{label}=\"{}\"", Escaped { text: value, quote: Some('"') })?;
            separator = ',';
        }
        if let Some(bound) = bound {
            write!(out, "{separator}le=\"{}\"", SampleValue::Float(bound))?;
            separator = ',';
        }
        if separator == ',' {
            out.write_char('}')?;
        }
        writeln!(out, " {value}")
    }
}

impl fmt::Display for SampleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count) => count.fmt(f),
            Self::Integer(integer) => integer.fmt(f),
            Self::Float(f64::INFINITY) => f.write_str("+Inf"),
            Self::Float(f64::NEG_INFINITY) => f.write_str("-Inf"),
            Self::Float(float) => write!(f, "{float}"),
        }
    }
}

struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == ':';
        self.0.chars().try_for_each(|c| f.write_char(if allowed(c) { c } else { '_' }))
    }
}

/// Text displayed with backslashes, newlines and, if given, the `quote` character escaped.
struct Escaped<'a> {
    text: &'a str,
    quote: Option<char>,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '\n' => f.write_str("\\n"),
            c if Some(c) == self.quote => write!(f, "\\{c}"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    #[test]
    fn dots_become_underscores_and_newlines_in_help_are_escaped() {
        let mut page = String::new();
        write_head(&mut page, "actor.mailbox.depth", Some("two\nlines \"quoted\""), MetricKind::Gauge)
            .unwrap();
        assert_eq!(
            page,
            "# HELP actor_mailbox_depth two\\nlines \"quoted\"\n# TYPE actor_mailbox_depth gauge\n"
        );
    }

    #[test]
    fn a_family_without_help_has_only_a_type_line() {
        let mut page = String::new();
        write_head(&mut page, "a", None, MetricKind::Counter).unwrap();
        assert_eq!(page, "# TYPE a counter\n");
    }

    #[test]
    fn label_values_are_escaped() {
        let mut page = String::new();
        let labels = [("actor", "a\\new \"x\"\n}")].into_iter();
        SeriesName { name: "a", labels }.write_sample(&mut page, SampleValue::Count(u64::MAX)).unwrap();
        assert_eq!(page, "a{actor=\"a\\\\new \\\"x\\\"\\n}\"} 18446744073709551615\n");
    }

    #[test]
    fn a_histogram_ends_with_the_infinity_bucket_the_sum_and_the_count() {
        let mut page = String::new();
        let labels = [("node", "x")].into_iter();
        let buckets = [(0.01, 1), (0.5, 3)].into_iter();
        SeriesName { name: "a", labels }.write_histogram(&mut page, buckets, 2.25, 4).unwrap();
        let expected = "a_bucket{node=\"x\",le=\"0.01\"} 1\na_bucket{node=\"x\",le=\"0.5\"} 3\n\
                        a_bucket{node=\"x\",le=\"+Inf\"} 4\na_sum{node=\"x\"} 2.25\na_count{node=\"x\"} 4\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn a_series_without_labels_has_no_braces() {
        let mut page = String::new();
        SeriesName { name: "a", labels: [].into_iter() }
            .write_sample(&mut page, SampleValue::Integer(-1))
            .unwrap();
        assert_eq!(page, "a -1\n");
    }

    #[test]
    fn nan_and_infinities_are_spelled_as_in_prometheus() {
        let spelled =
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|value| SampleValue::Float(value).to_string());
        assert_eq!(spelled, ["NaN", "+Inf", "-Inf"]);
    }
}
