//! All series of one metric, told apart by the values of its labels.
//!
//! Bound: a label takes at most `values_max` values; every further one is `other`, and is counted. So a family has at
//! most the product of its labels' `values_max + 1` series, whatever clients send.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::metric::{Counter, FloatGauge, Gauge, Histogram};

/// What a value beyond a label's limit becomes.
pub const OTHER: &str = "other";

/// The longest value a label takes, in bytes; a longer one is [`OTHER`].
pub const VALUE_LEN_MAX: usize = 128;

/// A metric's name, and in a phrase what it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricDesc {
    /// The name.
    pub name: &'static str,
    /// What it tells.
    pub help: &'static str,
}

impl MetricDesc {
    /// Names a metric.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }
}

/// What tells the series of a family apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// How many values it takes, [`OTHER`] aside.
    pub values_max: usize,
}

/// One metric with its labels; [`with`](Self::with) gives the handle to one of its series.
///
/// A handle is made once and kept: making it takes a lock and compares texts, using it does not.
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
    /// Finds or makes the series with these values, one per label in the family's order.
    pub fn with(&self, values: [&str; N]) -> M {
        self.inner.with(&values)
    }

    /// Forgets every series whose first values are these, and makes room for others; handles to them count for nobody.
    pub fn forget(&self, first: &[&str]) {
        self.inner.forget(first);
    }

    /// Counts a value that became [`OTHER`] before it came here.
    pub(crate) fn count_over(&self) {
        self.inner.over.count();
    }
}

/// A kind of metric.
#[expect(private_bounds, reason = "the kinds are these four; nobody adds one")]
pub trait Metric: Clone + Kind {}

impl Metric for Counter {}
impl Metric for Gauge {}
impl Metric for FloatGauge {}
impl Metric for Histogram {}

/// What a family needs to know of its kind.
pub(crate) trait Kind: Sized {
    fn make(bounds: &'static [Duration]) -> Self;
    fn into_any(family: Arc<Series<Self>>) -> AnySeries;
    fn from_any(family: &AnySeries) -> Option<&Arc<Series<Self>>>;
}

/// The series of a family of any kind.
#[derive(Clone, Debug)]
pub(crate) enum AnySeries {
    Counter(Arc<Series<Counter>>),
    Gauge(Arc<Series<Gauge>>),
    FloatGauge(Arc<Series<FloatGauge>>),
    Histogram(Arc<Series<Histogram>>),
}

macro_rules! kind {
    ($kind:ident, $bounds:pat => $make:expr) => {
        impl Kind for $kind {
            fn make($bounds: &'static [Duration]) -> Self {
                $make
            }

            fn into_any(family: Arc<Series<Self>>) -> AnySeries {
                AnySeries::$kind(family)
            }

            fn from_any(family: &AnySeries) -> Option<&Arc<Series<Self>>> {
                if let AnySeries::$kind(family) = family { Some(family) } else { None }
            }
        }
    };
}

kind!(Counter, _ => Self::default());
kind!(Gauge, _ => Self::default());
kind!(FloatGauge, _ => Self::default());
kind!(Histogram, bounds => Self::new(bounds));

/// One metric as it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FamilySpec {
    pub(crate) named: MetricDesc,
    pub(crate) bounds: &'static [Duration],
}

#[derive(Debug)]
pub(crate) struct Series<M> {
    pub(crate) shape: FamilySpec,
    pub(crate) labels: Box<[Label]>,
    known: Mutex<SeriesTable<M>>,
    /// Counts values that became [`OTHER`].
    over: Counter,
}

#[derive(Debug)]
struct SeriesTable<M> {
    /// Each label's values so far.
    values: Vec<BTreeSet<String>>,
    series: BTreeMap<Vec<String>, M>,
}

impl<M: Clone + Kind> Series<M> {
    pub(crate) fn new(shape: FamilySpec, labels: &[Label], over: Counter) -> Self {
        let known = SeriesTable { values: vec![BTreeSet::new(); labels.len()], series: BTreeMap::new() };
        Self { shape, labels: labels.into(), known: Mutex::new(known), over }
    }

    pub(crate) fn with(&self, values: &[&str]) -> M {
        let mut known = self.known.lock();
        let mut key = Vec::with_capacity(values.len());
        for (at, value) in values.iter().enumerate() {
            let fits = known.values[at].len() < self.labels[at].values_max && value.len() <= VALUE_LEN_MAX;
            if *value == OTHER || known.values[at].contains(*value) {
                key.push((*value).to_owned());
            } else if fits {
                known.values[at].insert((*value).to_owned());
                key.push((*value).to_owned());
            } else {
                self.over.count();
                key.push(OTHER.to_owned());
            }
        }
        known.series.entry(key).or_insert_with(|| M::make(self.shape.bounds)).clone()
    }

    fn forget(&self, first: &[&str]) {
        let mut known = self.known.lock();
        let SeriesTable { values, series } = &mut *known;
        series.retain(|key, _| !first.iter().zip(key).all(|(value, of)| value == of));
        for (at, values) in values.iter_mut().enumerate() {
            values.retain(|value| series.keys().any(|key| key[at] == *value));
        }
    }

    /// Lists every series by its values; the lock is free again before anything is printed.
    pub(crate) fn list(&self) -> Vec<(Vec<String>, M)> {
        let known = self.known.lock();
        known.series.iter().map(|(values, metric)| (values.clone(), metric.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_beyond_the_limit_is_other_and_is_counted() {
        let (family, over) = by_tenant(2);
        for tenant in ["a", "b", "c", "d", "a"] {
            family.with([tenant]).count();
        }
        assert_eq!(counts(&family), [("a", 2), ("b", 1), ("other", 2)].map(owned));
        assert_eq!(over.get(), 2);
    }

    #[test]
    fn a_value_that_is_too_long_is_other() {
        let (family, over) = by_tenant(2);
        let fits = "x".repeat(VALUE_LEN_MAX);
        let too_long = "x".repeat(VALUE_LEN_MAX + 1);
        family.with([&fits]).count();
        family.with([&too_long]).count();
        assert_eq!(counts(&family), [("other", 1), (&fits, 1)].map(owned));
        assert_eq!(over.get(), 1);
    }

    #[test]
    fn a_label_at_its_limit_leaves_the_others_alone() {
        let labels = [Label { name: "tenant", values_max: 1 }, Label { name: "reason", values_max: 2 }];
        let series = Series::<Counter>::new(SHAPE, &labels, Counter::default());
        let family = Family::<Counter, 2> { inner: Arc::new(series) };
        for values in [["a", "full"], ["b", "full"], ["c", "late"]] {
            family.with(values).count();
        }
        let keys: Vec<_> = family.inner.list().into_iter().map(|(values, _)| values.join(" ")).collect();
        assert_eq!(keys, ["a full", "other full", "other late"]);
    }

    #[test]
    fn a_value_that_is_forgotten_is_off_the_page_and_makes_room() {
        let labels = [Label { name: "pool", values_max: 2 }, Label { name: "node", values_max: 1 }];
        let series = Series::<Counter>::new(SHAPE, &labels, Counter::default());
        let family = Family::<Counter, 2> { inner: Arc::new(series) };
        for values in [["a", "one"], ["b", "one"], ["a", "two"]] {
            family.with(values).count();
        }
        let keys = || family.inner.list().into_iter().map(|(values, _)| values.join(" ")).collect::<Vec<_>>();
        assert_eq!(keys(), ["a one", "a other", "b one"]);
        family.forget(&["a", "one"]);
        assert_eq!(keys(), ["a other", "b one"]);
        family.with(["a", "two"]);
        assert_eq!(keys(), ["a other", "b one"], "another pool has a node of this name");
        family.forget(&["b", "one"]);
        family.with(["a", "two"]);
        assert_eq!(keys(), ["a other", "a two"]);
    }

    #[test]
    fn handles_of_the_same_values_count_together() {
        let (family, _) = by_tenant(2);
        let one = family.with(["a"]);
        let two = family.with(["a"]);
        one.add(3);
        two.add(4);
        assert_eq!(counts(&family), [owned(("a", 7))]);
    }

    const SHAPE: FamilySpec = FamilySpec { named: MetricDesc::new("a_total", "a"), bounds: &[] };

    fn by_tenant(values_max: usize) -> (Family<Counter, 1>, Counter) {
        let over = Counter::default();
        let series = Series::new(SHAPE, &[Label { name: "tenant", values_max }], over.clone());
        (Family { inner: Arc::new(series) }, over)
    }

    fn counts(family: &Family<Counter, 1>) -> Vec<(String, u64)> {
        family.inner.list().into_iter().map(|(values, counter)| (values.concat(), counter.get())).collect()
    }

    fn owned((value, count): (&str, u64)) -> (String, u64) {
        (value.to_owned(), count)
    }
}
