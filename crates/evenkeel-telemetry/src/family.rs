//! A family: all series of one metric, distinguished by their label values.
//!
//! Limits (label cardinality): a label has at most `values_max` values; any further value is recorded as `other` and
//! counted. The number of series is therefore at most the product of `values_max + 1` of all labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::metric::{CountHistogram, Counter, FloatGauge, Gauge, Histogram};

/// Label value that replaces those beyond a label's limit.
pub const OTHER: &str = "other";

/// Longest label value in bytes; a longer one is recorded as [`OTHER`].
pub const VALUE_LEN_MAX: usize = 128;

/// Name and help text of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricDesc {
    pub name: &'static str,
    pub help: &'static str,
}

impl MetricDesc {
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }
}

/// A label of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub name: &'static str,
    /// Maximum number of values, apart from [`OTHER`].
    pub values_max: usize,
}

/// One metric with labels; [`with`](Self::with) returns the handle of one series.
///
/// Callers should keep the handle: `with` takes a lock and compares strings, recording does neither.
#[derive(Debug)]
pub struct Family<M, const N: usize> {
    pub(crate) inner: Arc<Series<M>>,
}

impl<M, const N: usize> Clone for Family<M, N> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<M: Metric, const N: usize> Family<M, N> {
    /// Finds or creates the series with these label values, in the order of the labels.
    pub fn with(&self, values: [&str; N]) -> M {
        self.inner.with(&values)
    }

    /// Removes every series whose first label values are these; its handles still work but are no longer rendered.
    pub fn forget(&self, first: &[&str]) {
        self.inner.forget(first);
    }

    /// Counts a label value that the caller itself recorded as [`OTHER`].
    pub(crate) fn count_overflow(&self) {
        self.inner.overflow.count();
    }
}

/// A type of metric.
#[expect(private_bounds, reason = "sealed: only the types below implement it")]
pub trait Metric: Clone + Kind {}

impl Metric for Counter {}
impl Metric for Gauge {}
impl Metric for FloatGauge {}
impl Metric for Histogram {}
impl Metric for CountHistogram {}

/// Operations of a family that depend on the type of metric.
pub(crate) trait Kind: Sized {
    fn make(bounds: Bounds) -> Self;
    fn into_any(family: Arc<Series<Self>>) -> AnyFamily;
    fn from_any(family: &AnyFamily) -> Option<&Arc<Series<Self>>>;
}

/// The series of a family of any type.
#[derive(Clone, Debug)]
pub(crate) enum AnyFamily {
    Counter(Arc<Series<Counter>>),
    Gauge(Arc<Series<Gauge>>),
    FloatGauge(Arc<Series<FloatGauge>>),
    Histogram(Arc<Series<Histogram>>),
    CountHistogram(Arc<Series<CountHistogram>>),
}

macro_rules! kind {
    ($kind:ident, $bounds:pat => $make:expr) => {
        impl Kind for $kind {
            fn make($bounds: Bounds) -> Self {
                $make
            }

            fn into_any(family: Arc<Series<Self>>) -> AnyFamily {
                AnyFamily::$kind(family)
            }

            fn from_any(family: &AnyFamily) -> Option<&Arc<Series<Self>>> {
                if let AnyFamily::$kind(family) = family { Some(family) } else { None }
            }
        }
    };
}

kind!(Counter, _ => Self::default());
kind!(Gauge, _ => Self::default());
kind!(FloatGauge, _ => Self::default());
kind!(Histogram, bounds => Self::new(bounds.durations()));
kind!(CountHistogram, bounds => Self::new(bounds.counts()));

/// Upper bounds of a histogram's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounds {
    /// The metric is no histogram.
    None,
    Durations(&'static [Duration]),
    Counts(&'static [u64]),
}

impl Bounds {
    fn durations(self) -> &'static [Duration] {
        match self {
            Self::Durations(bounds) => bounds,
            Self::None | Self::Counts(_) => &[],
        }
    }

    fn counts(self) -> &'static [u64] {
        match self {
            Self::Counts(bounds) => bounds,
            Self::None | Self::Durations(_) => &[],
        }
    }
}

/// Name, help text and buckets of a metric, as registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FamilySpec {
    pub(crate) desc: MetricDesc,
    pub(crate) bounds: Bounds,
}

#[derive(Debug)]
pub(crate) struct Series<M> {
    pub(crate) spec: FamilySpec,
    pub(crate) labels: Box<[Label]>,
    table: Mutex<SeriesTable<M>>,
    /// Number of label values recorded as [`OTHER`].
    overflow: Counter,
}

#[derive(Debug)]
struct SeriesTable<M> {
    /// Distinct values of each label in use.
    values: Vec<BTreeSet<String>>,
    series: BTreeMap<Vec<String>, M>,
}

impl<M: Clone + Kind> Series<M> {
    pub(crate) fn new(spec: FamilySpec, labels: &[Label], overflow: Counter) -> Self {
        let table = SeriesTable { values: vec![BTreeSet::new(); labels.len()], series: BTreeMap::new() };
        Self { spec, labels: labels.into(), table: Mutex::new(table), overflow }
    }

    pub(crate) fn with(&self, values: &[&str]) -> M {
        let mut table = self.table.lock();
        let mut key = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            let fits =
                table.values[index].len() < self.labels[index].values_max && value.len() <= VALUE_LEN_MAX;
            if *value == OTHER || table.values[index].contains(*value) {
                key.push((*value).to_owned());
            } else if fits {
                table.values[index].insert((*value).to_owned());
                key.push((*value).to_owned());
            } else {
                self.overflow.count();
                key.push(OTHER.to_owned());
            }
        }
        table.series.entry(key).or_insert_with(|| M::make(self.spec.bounds)).clone()
    }

    fn forget(&self, first: &[&str]) {
        let mut table = self.table.lock();
        let SeriesTable { values, series } = &mut *table;
        series.retain(|key, _| !first.iter().zip(key).all(|(value, key_value)| value == key_value));
        for (index, values) in values.iter_mut().enumerate() {
            values.retain(|value| series.keys().any(|key| key[index] == *value));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().series.is_empty()
    }

    /// Returns a copy of all series with their label values, so that rendering does not hold the lock.
    pub(crate) fn list(&self) -> Vec<(Vec<String>, M)> {
        let table = self.table.lock();
        table.series.iter().map(|(values, metric)| (values.clone(), metric.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_beyond_the_limit_is_recorded_as_other_and_counted() {
        let (family, overflow) = by_tenant(2);
        for tenant in ["a", "b", "c", "d", "a"] {
            family.with([tenant]).count();
        }
        assert_eq!(counts(&family), owned([("a", 2), ("b", 1), ("other", 2)]));
        assert_eq!(overflow.get(), 2);
    }

    #[test]
    fn a_value_that_is_too_long_is_recorded_as_other() {
        let (family, overflow) = by_tenant(2);
        let fits = "x".repeat(VALUE_LEN_MAX);
        let too_long = "x".repeat(VALUE_LEN_MAX + 1);
        family.with([&fits]).count();
        family.with([&too_long]).count();
        assert_eq!(counts(&family), owned([("other", 1), (&fits, 1)]));
        assert_eq!(overflow.get(), 1);
    }

    #[test]
    fn a_label_at_its_limit_does_not_affect_the_others() {
        let labels = [Label { name: "tenant", values_max: 1 }, Label { name: "reason", values_max: 2 }];
        let series = Series::<Counter>::new(SPEC, &labels, Counter::default());
        let family = Family::<Counter, 2> { inner: Arc::new(series) };
        for values in [["a", "full"], ["b", "full"], ["c", "late"]] {
            family.with(values).count();
        }
        let keys: Vec<_> = family.inner.list().into_iter().map(|(values, _)| values.join(" ")).collect();
        assert_eq!(keys, ["a full", "other full", "other late"]);
    }

    #[test]
    fn a_forgotten_series_is_removed_and_its_label_values_can_be_replaced() {
        let labels = [Label { name: "pool", values_max: 2 }, Label { name: "node", values_max: 1 }];
        let series = Series::<Counter>::new(SPEC, &labels, Counter::default());
        let family = Family::<Counter, 2> { inner: Arc::new(series) };
        for values in [["a", "one"], ["b", "one"], ["a", "two"]] {
            family.with(values).count();
        }
        let keys = || family.inner.list().into_iter().map(|(values, _)| values.join(" ")).collect::<Vec<_>>();
        assert_eq!(keys(), ["a one", "a other", "b one"]);
        family.forget(&["a", "one"]);
        assert_eq!(keys(), ["a other", "b one"]);
        family.with(["a", "two"]);
        assert_eq!(keys(), ["a other", "b one"], "the other pool still uses this label value");
        family.forget(&["b", "one"]);
        family.with(["a", "two"]);
        assert_eq!(keys(), ["a other", "a two"]);
    }

    #[test]
    fn handles_with_the_same_label_values_share_a_counter() {
        let (family, _) = by_tenant(2);
        let one = family.with(["a"]);
        let two = family.with(["a"]);
        one.add(3);
        two.add(4);
        assert_eq!(counts(&family), owned([("a", 7)]));
    }

    const SPEC: FamilySpec = FamilySpec { desc: MetricDesc::new("a_total", "a"), bounds: Bounds::None };

    fn by_tenant(values_max: usize) -> (Family<Counter, 1>, Counter) {
        let overflow = Counter::default();
        let series = Series::new(SPEC, &[Label { name: "tenant", values_max }], overflow.clone());
        (Family { inner: Arc::new(series) }, overflow)
    }

    fn counts(family: &Family<Counter, 1>) -> Vec<(String, u64)> {
        family.inner.list().into_iter().map(|(values, counter)| (values.concat(), counter.get())).collect()
    }

    fn owned<const N: usize>(counts: [(&str, u64); N]) -> [(String, u64); N] {
        counts.map(|(value, count)| (value.to_owned(), count))
    }
}
