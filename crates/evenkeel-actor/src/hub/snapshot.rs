//! What the hub read at one moment.
//!
//! Bound: series are in the order of their names, then of their labels, whatever order actors and
//! workers began in.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::HistogramSnapshot;

/// The metrics at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    series: Vec<Series>,
}

/// One metric of one actor, worker or reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The metric; see [`names`](super::names).
    pub name: &'static str,
    /// What tells it from the others of its name.
    pub labels: Vec<(&'static str, String)>,
    /// What was read.
    pub value: Value,
}

/// A reading.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number that only grows.
    Counter(u64),
    /// A number that comes and goes.
    Gauge(f64),
    /// Durations.
    Histogram(Box<HistogramSnapshot>),
}

impl Snapshot {
    /// Puts series in order; of each name and labels, there should be one.
    pub fn new(mut series: Vec<Series>) -> Self {
        series.sort_by(|a, b| (a.name, &a.labels).cmp(&(b.name, &b.labels)));
        Self { series }
    }

    /// Lists all series, by name, then by labels.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Finds the value of one series.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<&Value> {
        let same = |series: &&Series| {
            let ours = series.labels.iter().map(|(key, value)| (*key, value.as_str()));
            series.name == name && ours.eq(labels.iter().copied())
        };
        self.series.iter().find(same).map(|series| &series.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    #[test]
    fn series_come_in_one_order_whatever_order_they_were_read_in() {
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
