//! Metrics, pipeline events, logs and traces, for every API.
//!
//! Each pipeline step records one [`Event`] in its [`Observer`]; metrics, the request log behind `explain` and the log read
//! it. Everything else is counted through handles of a [`Registry`], which [`renders`](Registry::render) the Prometheus
//! page.
//!
//! ```
//! use evenkeel_policy::{id::{RequestId, TenantId}, time::Instant};
//! use evenkeel_telemetry::{Event, MetricLimits, Observer, Registry, RejectReason, RequestLogLimits, Step};
//!
//! let registry = Registry::new();
//! let observer = Observer::new(&registry, "llm", MetricLimits::default(), RequestLogLimits::default())?;
//! observer.metrics().name_tenant(TenantId(0), "acme");
//!
//! let step = Step::Rejected { reason: RejectReason::QueueFull };
//! observer.record(Instant::ORIGIN, &Event::Request { request: RequestId(7), tenant: TenantId(0), step });
//!
//! let line = r#"evenkeel_rejected_total{pool="llm",tenant="acme",reason="queue_full"} 1"#;
//! assert!(registry.render().lines().any(|found| found == line));
//! let history = observer.request_log().history(RequestId(7)).ok_or("dropped")?;
//! assert_eq!(history.steps[0].1.to_string(), "rejected: the queue is full");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod event;
mod explain;
mod family;
mod gen_ai_metrics;
pub mod logs;
mod metric;
pub mod metric_names;
mod observer;
mod path_metrics;
mod pipeline_metrics;
mod prometheus;
mod registry;
mod relay_metrics;
pub mod request_context;
mod request_log;
mod secret;
pub mod trace;

pub use event::{Event, FallbackReason, HandoverFailure, NodeEvent, RejectReason, Step};
pub use explain::{ExplainNames, ExplainedRequest, ExplainedStep, REQUESTS_EXPLAINED_MAX};
pub use family::{Family, Label, Metric, MetricDesc, OTHER, VALUE_LEN_MAX};
pub use gen_ai_metrics::{GenAiMetrics, GenAiOperation, GenAiSeries};
pub use metric::{CountHistogram, CountSnapshot, Counter, FloatGauge, Gauge, Histogram, HistogramSnapshot};
pub use observer::Observer;
pub use path_metrics::{DatagramDrop, LinkMetrics, PathGauges, PathMetrics, PathSource};
pub use pipeline_metrics::{
    BreakerGauge, ClassGauges, DURATION_BOUNDS, EngineGauges, MetricLimits, NodeGauges, PEERS_MAX, POOLS_MAX,
    PipelineMetrics, RouterGauges, RouterMetrics,
};
pub use registry::{BOUNDS_MAX, CONTENT_TYPE, FAMILIES_MAX, RegisterError, Registry, SOURCES_MAX};
pub use relay_metrics::{ForwardedTraffic, RelayMetrics, RouteMetrics};
pub use request_log::{RequestHistory, RequestLog, RequestLogLimits, RequestName};
pub use secret::Secret;

/// Runs the README's examples as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
