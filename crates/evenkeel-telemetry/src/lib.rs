//! Evenkeel's one place for metrics, structured events and logs.
mod event;
mod family;
mod journal;
mod metric;
pub mod names;
mod page;
mod registry;
mod secret;

pub use event::{Because, Ending, Event, Failure, ModelId, NodeChange, Reason, RequestId, Step};
pub use family::{Family, Label, Metric, OTHER, VALUE_LEN_MAX};
pub use journal::{Journal, JournalLimits, Story};
pub use metric::{Counter, FloatGauge, Gauge, Histogram, HistogramReading};
pub use registry::{BOUNDS_MAX, CONTENT_TYPE, FAMILIES_MAX, RegisterError, Registry, SOURCES_MAX};
pub use secret::Secret;
