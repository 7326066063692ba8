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
mod journal;
pub mod logs;
mod meters;
mod metric;
pub mod names;
mod page;
mod registry;
mod secret;
pub mod trace;
mod watch;

pub use event::{
    AttemptFailure, Event, ModelId, NodeEvent, PickReason, RejectReason, RequestId, RequestOutcome, Step,
};
pub use family::{Family, Label, Metric, MetricDesc, OTHER, VALUE_LEN_MAX};
pub use journal::{RequestHistory, RequestLog, RequestLogLimits};
pub use meters::{
    DURATION_BOUNDS, EngineGauges, MetricLimits, NodeGauges, POOLS_MAX, PathMetrics, PipelineMetrics,
    RouterGauges, RouterMetrics,
};
pub use metric::{Counter, FloatGauge, Gauge, Histogram, HistogramSnapshot};
pub use registry::{BOUNDS_MAX, CONTENT_TYPE, FAMILIES_MAX, RegisterError, Registry, SOURCES_MAX};
pub use secret::Secret;
pub use watch::Observer;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
