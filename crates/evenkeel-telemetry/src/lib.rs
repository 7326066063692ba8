//! Evenkeel's one place for metrics, structured events, logs and traces.
//!
//! A step of the walk tells one [`Event`] to its [`Watch`]; metrics, the journal behind `explain` and the log read it.
//! What no event tells is counted with handles of a [`Registry`], whose [`page`](Registry::page) Prometheus reads.
//!
//! ```
//! use evenkeel_policy::{id::TenantId, time::Instant};
//! use evenkeel_telemetry::{Event, JournalLimits, MeterLimits, Reason, Registry, RequestId, Step, Watch};
//!
//! let registry = Registry::new();
//! let watch = Watch::new(&registry, "llm", MeterLimits::default(), JournalLimits::default())?;
//! watch.meters().name_tenant(TenantId(0), "acme");
//!
//! let step = Step::Rejected { reason: Reason::QueueFull };
//! watch.tell(Instant::ORIGIN, &Event::Request { request: RequestId(7), tenant: TenantId(0), step });
//!
//! let line = r#"evenkeel_rejected_total{pool="llm",tenant="acme",reason="queue_full"} 1"#;
//! assert!(registry.page().lines().any(|found| found == line));
//! let story = watch.journal().story(RequestId(7)).ok_or("forgotten")?;
//! assert_eq!(story.steps[0].1.to_string(), "rejected: the queue is full");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod event;
mod family;
pub mod logs;
mod metric;
pub mod metric_names;
mod observer;
mod pipeline_metrics;
mod prometheus;
mod registry;
mod request_log;
mod secret;
pub mod trace;

pub use event::{
    AttemptFailure, Event, ModelId, NodeEvent, PickReason, RejectReason, RequestId, RequestOutcome, Step,
};
pub use family::{Family, Label, Metric, MetricDesc, OTHER, VALUE_LEN_MAX};
pub use metric::{Counter, FloatGauge, Gauge, Histogram, HistogramSnapshot};
pub use observer::Observer;
pub use pipeline_metrics::{
    DURATION_BOUNDS, EngineGauges, MetricLimits, NodeGauges, POOLS_MAX, PathMetrics, PipelineMetrics,
    RouterGauges, RouterMetrics,
};
pub use registry::{BOUNDS_MAX, CONTENT_TYPE, FAMILIES_MAX, RegisterError, Registry, SOURCES_MAX};
pub use request_log::{RequestHistory, RequestLog, RequestLogLimits};
pub use secret::Secret;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
