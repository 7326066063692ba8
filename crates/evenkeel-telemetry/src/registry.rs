//! Registry of all metrics of the process, and its Prometheus page.
//!
//! Limits: at most [`FAMILIES_MAX`] metrics, [`SOURCES_MAX`] sources and [`BOUNDS_MAX`] buckets per histogram. A name
//! has one type, one help text and one set of labels.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::family::{AnyFamily, Bounds, Family, FamilySpec, Label, Metric, MetricDesc, Series};
use crate::metric::{CountHistogram, Counter, FloatGauge, Gauge, Histogram};
use crate::{metric_names, prometheus};

/// Maximum number of metrics.
pub const FAMILIES_MAX: usize = 512;
/// Maximum number of sources.
pub const SOURCES_MAX: usize = 32;
/// Maximum number of buckets of a histogram, apart from `+Inf`.
pub const BOUNDS_MAX: usize = 64;

/// `Content-Type` of [`Registry::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of the process; clones share them.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    families: Mutex<Vec<AnyFamily>>,
    sources: Mutex<Vec<Arc<Source>>>,
    /// Label values recorded as `other`, by metric.
    overflow: Family<Counter, 1>,
    skipped: Counter,
}

/// Writes the metrics of another crate.
type Source = dyn Fn(&mut String) -> fmt::Result + Send + Sync;

/// Reason why a metric or a source was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    #[error("{name:?} is not a valid metric or label name")]
    InvalidName { name: &'static str },
    /// A histogram needs 1 to [`BOUNDS_MAX`] increasing bounds.
    #[error("the bounds of {name} are not 1 to {BOUNDS_MAX} increasing values")]
    InvalidBounds { name: &'static str },
    /// Another metric has this name, or a histogram has a series of this name.
    #[error("{name} is already registered as something else")]
    Conflict { name: &'static str },
    #[error("{max} are already registered")]
    TooMany { max: usize },
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Creates a registry with two metrics of its own: label values recorded as `other`, and skipped sources.
    pub fn new() -> Self {
        let spec = |desc| FamilySpec { desc, bounds: Bounds::None };
        let by_metric = [Label { name: "metric", values_max: FAMILIES_MAX }];
        let overflow =
            Arc::new(Series::new(spec(metric_names::LABELS_OVER_TOTAL), &by_metric, Counter::default()));
        let skipped =
            Arc::new(Series::new(spec(metric_names::SOURCES_SKIPPED_TOTAL), &[], Counter::default()));
        let inner = Inner {
            skipped: skipped.with(&[]),
            overflow: Family { inner: Arc::clone(&overflow) },
            families: Mutex::new(vec![AnyFamily::Counter(overflow), AnyFamily::Counter(skipped)]),
            sources: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Finds or creates a counter without labels.
    pub fn counter(&self, metric: MetricDesc) -> Result<Counter, RegisterError> {
        Ok(self.counters(metric, [])?.with([]))
    }

    /// Finds or creates counters with labels.
    pub fn counters<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
    ) -> Result<Family<Counter, N>, RegisterError> {
        self.family(metric, labels, Bounds::None)
    }

    /// Finds or creates a gauge without labels.
    pub fn gauge(&self, metric: MetricDesc) -> Result<Gauge, RegisterError> {
        Ok(self.gauges(metric, [])?.with([]))
    }

    /// Finds or creates gauges with labels.
    pub fn gauges<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
    ) -> Result<Family<Gauge, N>, RegisterError> {
        self.family(metric, labels, Bounds::None)
    }

    /// Finds or creates a float gauge without labels.
    pub fn float_gauge(&self, metric: MetricDesc) -> Result<FloatGauge, RegisterError> {
        Ok(self.float_gauges(metric, [])?.with([]))
    }

    /// Finds or creates float gauges with labels.
    pub fn float_gauges<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
    ) -> Result<Family<FloatGauge, N>, RegisterError> {
        self.family(metric, labels, Bounds::None)
    }

    /// Finds or creates a histogram without labels; `bounds` are the upper bounds of the buckets.
    pub fn histogram(
        &self,
        metric: MetricDesc,
        bounds: &'static [Duration],
    ) -> Result<Histogram, RegisterError> {
        Ok(self.histograms(metric, [], bounds)?.with([]))
    }

    /// Finds or creates histograms with labels.
    pub fn histograms<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
        bounds: &'static [Duration],
    ) -> Result<Family<Histogram, N>, RegisterError> {
        check_bounds(metric.name, bounds)?;
        self.family(metric, labels, Bounds::Durations(bounds))
    }

    /// Finds or creates histograms of counts with labels.
    pub fn count_histograms<const N: usize>(
        &self,
        metric: MetricDesc,
        labels: [Label; N],
        bounds: &'static [u64],
    ) -> Result<Family<CountHistogram, N>, RegisterError> {
        check_bounds(metric.name, bounds)?;
        self.family(metric, labels, Bounds::Counts(bounds))
    }

    fn family<M: Metric, const N: usize>(
        &self,
        desc: MetricDesc,
        labels: [Label; N],
        bounds: Bounds,
    ) -> Result<Family<M, N>, RegisterError> {
        let name = desc.name;
        check_names(name, &labels)?;
        let spec = FamilySpec { desc, bounds };
        let mut families = self.inner.families.lock();
        if let Some(found) = families.iter().find(|family| family.spec().desc.name == name) {
            let same = M::from_any(found).filter(|series| series.spec == spec && *series.labels == labels);
            let inner = Arc::clone(same.ok_or(RegisterError::Conflict { name })?);
            return Ok(Family { inner });
        }
        if families.iter().any(|family| overlap(&family.spec(), &spec)) {
            return Err(RegisterError::Conflict { name });
        }
        if families.len() >= FAMILIES_MAX {
            return Err(RegisterError::TooMany { max: FAMILIES_MAX });
        }
        // Only a metric with labels can exceed a label's limit.
        let overflow = if N == 0 { Counter::default() } else { self.inner.overflow.with([name]) };
        let inner = Arc::new(Series::new(spec, &labels, overflow));
        families.push(M::into_any(Arc::clone(&inner)));
        Ok(Family { inner })
    }

    /// Adds a source that writes metrics in Prometheus' text format to the end of each page.
    ///
    /// The actor system's metrics are added this way, so that neither crate depends on the other. A source's
    /// output is omitted, and counted, if it fails or repeats a metric.
    pub fn add_source(
        &self,
        write: impl Fn(&mut String) -> fmt::Result + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        let mut sources = self.inner.sources.lock();
        if sources.len() >= SOURCES_MAX {
            return Err(RegisterError::TooMany { max: SOURCES_MAX });
        }
        sources.push(Arc::new(write));
        Ok(())
    }

    /// Renders all metrics in Prometheus' text format, sorted by name, followed by the sources' output.
    ///
    /// A metric without series is left out. It never blocks a thread that records through a handle.
    pub fn render(&self) -> String {
        let mut families = self.inner.families.lock().clone();
        families.sort_by_key(|family| family.spec().desc.name);
        let sources = self.inner.sources.lock().clone();
        let mut source_output =
            prometheus::SourceOutput::new(families.iter().map(|family| family.spec().desc.name));
        for source in &sources {
            let mut text = String::new();
            if source(&mut text).is_err() || !source_output.append(&text) {
                self.inner.skipped.count();
            }
        }
        let mut out = String::with_capacity(4096);
        for family in &families {
            prometheus::write_family(&mut out, family);
        }
        out.push_str(source_output.text());
        out
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl AnyFamily {
    pub(crate) fn spec(&self) -> FamilySpec {
        match self {
            Self::Counter(family) => family.spec,
            Self::Gauge(family) => family.spec,
            Self::FloatGauge(family) => family.spec,
            Self::Histogram(family) => family.spec,
            Self::CountHistogram(family) => family.spec,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Counter(family) => family.is_empty(),
            Self::Gauge(family) => family.is_empty(),
            Self::FloatGauge(family) => family.is_empty(),
            Self::Histogram(family) => family.is_empty(),
            Self::CountHistogram(family) => family.is_empty(),
        }
    }
}

/// Reports whether one of the metrics is a histogram and the other has the name of one of its series.
fn overlap(a: &FamilySpec, b: &FamilySpec) -> bool {
    let is_series_of = |histogram: &FamilySpec, other: &FamilySpec| {
        let suffix = other.desc.name.strip_prefix(histogram.desc.name);
        histogram.bounds != Bounds::None
            && suffix.is_some_and(|suffix| ["_bucket", "_sum", "_count"].contains(&suffix))
    };
    is_series_of(a, b) || is_series_of(b, a)
}

fn check_bounds<T: PartialOrd>(name: &'static str, bounds: &[T]) -> Result<(), RegisterError> {
    let is_increasing = bounds.windows(2).all(|pair| pair[0] < pair[1]);
    let is_valid = (1..=BOUNDS_MAX).contains(&bounds.len()) && is_increasing;
    if is_valid { Ok(()) } else { Err(RegisterError::InvalidBounds { name }) }
}

fn check_names(name: &'static str, labels: &[Label]) -> Result<(), RegisterError> {
    if !is_name(name) {
        return Err(RegisterError::InvalidName { name });
    }
    for (index, label) in labels.iter().enumerate() {
        let is_reserved = label.name == "le" || label.name.starts_with("__") || label.name.contains(':');
        let is_duplicate = labels[..index].iter().any(|other| other.name == label.name);
        if !is_name(label.name) || is_reserved || is_duplicate {
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
