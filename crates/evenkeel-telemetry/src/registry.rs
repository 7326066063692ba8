//! Every metric of the process under its one name, and the page Prometheus reads.
//!
//! Bounds: at most [`FAMILIES_MAX`] metrics, [`SOURCES_MAX`] sources and [`BOUNDS_MAX`] buckets a histogram; a name has
//! one type, one help text and one set of labels.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::family::{AnySeries, Family, FamilySpec, Label, Metric, MetricDesc, Series};
use crate::metric::{Counter, FloatGauge, Gauge, Histogram};
use crate::{metric_names, prometheus};

/// How many metrics there may be.
pub const FAMILIES_MAX: usize = 512;
/// How many others may add to the page.
pub const SOURCES_MAX: usize = 32;
/// How many buckets a histogram may have, the last one aside.
pub const BOUNDS_MAX: usize = 64;

/// The `Content-Type` of [`Registry::page`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Every metric of the process; a clone is the same registry.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    families: Mutex<Vec<AnySeries>>,
    sources: Mutex<Vec<Arc<Source>>>,
    /// Values that became `other`, by metric.
    over: Family<Counter, 1>,
    skipped: Counter,
}

/// Prints what somebody else counts.
type Source = dyn Fn(&mut String) -> fmt::Result + Send + Sync;

/// Why a metric or a source was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Prometheus would not read this name.
    InvalidName {
        /// The name of the metric or of the label.
        name: &'static str,
    },
    /// The bounds of a histogram are none, too many, or not in order.
    InvalidBounds {
        /// The histogram.
        name: &'static str,
    },
    /// There is another metric of this name, or a histogram with a series of this name.
    Taken {
        /// The name.
        name: &'static str,
    },
    /// There are as many as there may be.
    TooMany {
        /// How many there may be.
        max: usize,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidName { name } => write!(f, "{name:?} is no name for a metric or a label"),
            Self::InvalidBounds { name } => {
                write!(f, "the bounds of {name} are not 1 to {BOUNDS_MAX} growing spans")
            }
            Self::Taken { name } => write!(f, "{name} is registered as something else"),
            Self::TooMany { max } => write!(f, "{max} are registered already"),
        }
    }
}

impl std::error::Error for RegisterError {}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Makes a registry that counts what it had to leave out, and nothing else.
    pub fn new() -> Self {
        let shape = |named| FamilySpec { named, bounds: &[] };
        let by_metric = [Label { name: "metric", values_max: FAMILIES_MAX }];
        let over =
            Arc::new(Series::new(shape(metric_names::LABELS_OVER_TOTAL), &by_metric, Counter::default()));
        let skipped =
            Arc::new(Series::new(shape(metric_names::SOURCES_SKIPPED_TOTAL), &[], Counter::default()));
        let inner = Inner {
            skipped: skipped.with(&[]),
            over: Family { inner: Arc::clone(&over) },
            families: Mutex::new(vec![AnySeries::Counter(over), AnySeries::Counter(skipped)]),
            sources: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Finds or makes a counter without labels.
    pub fn counter(&self, metric: MetricDesc) -> Result<Counter, RegisterError> {
        Ok(self.counters(metric, [])?.with([]))
    }

    /// Finds or makes counters with labels.
    pub fn counters<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
    ) -> Result<Family<Counter, N>, RegisterError> {
        self.family(metric, labels, &[])
    }

    /// Finds or makes a gauge without labels.
    pub fn gauge(&self, metric: MetricDesc) -> Result<Gauge, RegisterError> {
        Ok(self.gauges(metric, [])?.with([]))
    }

    /// Finds or makes gauges with labels.
    pub fn gauges<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
    ) -> Result<Family<Gauge, N>, RegisterError> {
        self.family(metric, labels, &[])
    }

    /// Finds or makes a gauge of fractions without labels.
    pub fn float_gauge(&self, metric: MetricDesc) -> Result<FloatGauge, RegisterError> {
        Ok(self.float_gauges(metric, [])?.with([]))
    }

    /// Finds or makes gauges of fractions with labels.
    pub fn float_gauges<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
    ) -> Result<Family<FloatGauge, N>, RegisterError> {
        self.family(metric, labels, &[])
    }

    /// Finds or makes a histogram without labels; the bounds are each bucket's longest span.
    pub fn histogram(
        &self,
        metric: MetricDesc,
        bounds: &'static [Duration],
    ) -> Result<Histogram, RegisterError> {
        Ok(self.histograms(metric, [], bounds)?.with([]))
    }

    /// Finds or makes histograms with labels.
    pub fn histograms<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
        bounds: &'static [Duration],
    ) -> Result<Family<Histogram, N>, RegisterError> {
        let in_order = bounds.windows(2).all(|pair| pair[0] < pair[1]);
        if bounds.is_empty() || BOUNDS_MAX < bounds.len() || !in_order {
            return Err(RegisterError::InvalidBounds { name: metric.name });
        }
        self.family(metric, labels, bounds)
    }

    fn family<M: Metric, const N: usize>(
        &self,
        named: MetricDesc,
        labels: [Label; N],
        bounds: &'static [Duration],
    ) -> Result<Family<M, N>, RegisterError> {
        let name = named.name;
        check_names(name, &labels)?;
        let shape = FamilySpec { named, bounds };
        let mut families = self.inner.families.lock();
        if let Some(found) = families.iter().find(|family| family.shape().named.name == name) {
            let same = M::from_any(found).filter(|series| series.shape == shape && *series.labels == labels);
            let inner = Arc::clone(same.ok_or(RegisterError::Taken { name })?);
            return Ok(Family { inner });
        }
        if families.iter().any(|family| overlap(&family.shape(), &shape)) {
            return Err(RegisterError::Taken { name });
        }
        if FAMILIES_MAX <= families.len() {
            return Err(RegisterError::TooMany { max: FAMILIES_MAX });
        }
        // Only a metric with labels can run over; the others need no counter for it.
        let over = if N == 0 { Counter::default() } else { self.inner.over.with([name]) };
        let inner = Arc::new(Series::new(shape, &labels, over));
        families.push(M::into_any(Arc::clone(&inner)));
        Ok(Family { inner })
    }

    /// Has somebody else print metrics at the end of each page, as Prometheus reads them.
    ///
    /// This is how the actors' hub comes to the page without either crate knowing the other. What a source prints is
    /// left out, and counted, when it fails or names a metric that is on the page already.
    pub fn add_source(
        &self,
        print: impl Fn(&mut String) -> fmt::Result + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        let mut sources = self.inner.sources.lock();
        if SOURCES_MAX <= sources.len() {
            return Err(RegisterError::TooMany { max: SOURCES_MAX });
        }
        sources.push(Arc::new(print));
        Ok(())
    }

    /// Prints every metric in Prometheus' text format, in the order of their names, then what sources print.
    ///
    /// Recorders hold their numbers and meet no lock here.
    pub fn render(&self) -> String {
        let mut families = self.inner.families.lock().clone();
        families.sort_by_key(|family| family.shape().named.name);
        let sources = self.inner.sources.lock().clone();
        let mut appendix =
            prometheus::SourceOutput::new(families.iter().map(|family| family.shape().named.name));
        for source in &sources {
            let mut text = String::new();
            if source(&mut text).is_err() || !appendix.append(&text) {
                self.inner.skipped.count();
            }
        }
        let mut out = String::with_capacity(4096);
        for family in &families {
            prometheus::write_family(&mut out, family);
        }
        out.push_str(appendix.text());
        out
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl AnySeries {
    pub(crate) fn shape(&self) -> FamilySpec {
        match self {
            Self::Counter(family) => family.shape,
            Self::Gauge(family) => family.shape,
            Self::FloatGauge(family) => family.shape,
            Self::Histogram(family) => family.shape,
        }
    }
}

/// Tells whether one of two metrics is a histogram and the other has the name of one of its series.
fn overlap(a: &FamilySpec, b: &FamilySpec) -> bool {
    let within = |histogram: &FamilySpec, other: &FamilySpec| {
        let suffix =
            other.named.name.strip_prefix(histogram.named.name).filter(|_| !histogram.bounds.is_empty());
        suffix.is_some_and(|suffix| ["_bucket", "_sum", "_count"].contains(&suffix))
    };
    within(a, b) || within(b, a)
}

fn check_names(name: &'static str, labels: &[Label]) -> Result<(), RegisterError> {
    if !is_name(name) {
        return Err(RegisterError::InvalidName { name });
    }
    for (at, label) in labels.iter().enumerate() {
        let reserved = label.name == "le" || label.name.starts_with("__") || label.name.contains(':');
        let twice = labels[..at].iter().any(|other| other.name == label.name);
        if !is_name(label.name) || reserved || twice {
            return Err(RegisterError::InvalidName { name: label.name });
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty() && name.chars().all(allowed)
}

#[cfg(test)]
mod tests;
