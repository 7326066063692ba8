//! Evenkeel's one place for metrics, structured events and logs.
mod family;
mod metric;
pub mod names;
mod page;
mod registry;
mod secret;

pub use family::{Family, Label, Metric, OTHER, VALUE_LEN_MAX};
pub use metric::{Counter, FloatGauge, Gauge, Histogram, HistogramReading};
pub use registry::{BOUNDS_MAX, CONTENT_TYPE, FAMILIES_MAX, RegisterError, Registry, SOURCES_MAX};
pub use secret::Secret;
