//! A snapshot of all metrics.
//!
//! Guarantees: series are sorted by name, then by labels, whatever the order in which actors and workers started.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::HistogramSnapshot;

/// All metrics at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    series: Vec<Series>,
}

/// One metric of one actor, worker or reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The metric; see [`names`](super::names).
    pub name: &'static str,
    /// The labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number that only increases.
    Counter(u64),
    /// A number that goes up and down.
    Gauge(f64),
    /// A distribution of durations.
    Histogram(Box<HistogramSnapshot>),
}

impl Snapshot {
    /// Creates a snapshot of these series; each pair of name and labels should occur once.
    pub fn new(mut series: Vec<Series>) -> Self {
        series.sort_by(|a, b| (a.name, &a.labels).cmp(&(b.name, &b.labels)));
        Self { series }
    }

    /// Returns all series, sorted by name, then by labels.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Returns the value of one series.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<&Value> {
        let matches = |series: &&Series| {
            let ours = series.labels.iter().map(|(key, value)| (*key, value.as_str()));
            series.name == name && ours.eq(labels.iter().copied())
        };
        self.series.iter().find(matches).map(|series| &series.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    #[test]
    fn series_are_sorted_whatever_the_order_of_collection() {
        let read = [("b", "2", 1), ("a", "1", 2), ("b", "10", 3), ("b", "1", 4)];
        let one = snapshot(&read);
        let mut reversed = read;
        reversed.reverse();
        assert_eq!(one, snapshot(&reversed));
        let order: Vec<_> =
            one.series().iter().map(|series| (series.name, series.labels[0].1.as_str())).collect();
        assert_eq!(order, [("a", "1"), ("b", "1"), ("b", "10"), ("b", "2")]);
    }

    #[test]
    fn a_series_is_found_by_its_name_and_all_its_labels() {
        let snapshot = snapshot(&[("a", "1", 7), ("b", "1", 8)]);
        assert_eq!(snapshot.get("b", &[("worker", "1")]), Some(&Value::Counter(8)));
        assert_eq!(snapshot.get("b", &[("worker", "2")]), None);
        assert_eq!(snapshot.get("b", &[]), None);
    }

    fn snapshot(read: &[(&'static str, &str, u64)]) -> Snapshot {
        let series = |&(name, worker, count): &(&'static str, &str, u64)| Series {
            name,
            labels: vec![("worker", worker.to_string())],
            value: Value::Counter(count),
        };
        Snapshot::new(read.iter().map(series).collect())
    }
}
