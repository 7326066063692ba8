//! Passes every event of a pipeline to its metrics, its request log and the process log (`tracing`).

use std::sync::Arc;

use evenkeel_policy::time::Instant;

use crate::event::{Event, NodeEvent};
use crate::logs;
use crate::pipeline_metrics::{MetricLimits, PathMetrics, PipelineMetrics, RouterMetrics};
use crate::registry::{RegisterError, Registry};
use crate::request_log::{RequestLog, RequestLogLimits};
use crate::trace::Tracer;

/// Event sink of one pipeline, shared by all its requests.
#[derive(Debug)]
pub struct Observer {
    metrics: PipelineMetrics,
    paths: PathMetrics,
    router: Option<RouterMetrics>,
    request_log: RequestLog,
    tracer: Option<Arc<Tracer>>,
}

impl Observer {
    /// Creates an observer and registers its metrics with the label `pool`; all pools share the path metrics.
    pub fn new(
        registry: &Registry,
        pool: &str,
        metrics: MetricLimits,
        request_log: RequestLogLimits,
    ) -> Result<Self, RegisterError> {
        Ok(Self {
            metrics: PipelineMetrics::new(registry, pool, metrics)?,
            paths: PathMetrics::new(registry)?,
            router: None,
            request_log: RequestLog::new(request_log),
            tracer: None,
        })
    }

    /// Also records the LLM API's router metrics.
    #[must_use]
    pub fn with_router(self, router: RouterMetrics) -> Self {
        Self { router: Some(router), ..self }
    }

    /// Sets the tracer that request handlers get from [`tracer`](Self::tracer).
    #[must_use]
    pub fn with_tracer(self, tracer: Arc<Tracer>) -> Self {
        Self { tracer: Some(tracer), ..self }
    }

    pub fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.tracer.as_ref()
    }

    /// Records an event.
    pub fn record(&self, now: Instant, event: &Event) {
        self.metrics.record(event);
        self.paths.record(event);
        if let Some(router) = &self.router {
            router.record(event);
        }
        self.request_log.record(now, event);
        logs::log_event(event, &self.metrics);
        if let Event::Node { node, change: NodeEvent::Removed } = event {
            self.metrics.forget_node(*node);
        }
    }

    /// Returns the metrics, on which callers set the names of tenants and nodes.
    pub fn metrics(&self) -> &PipelineMetrics {
        &self.metrics
    }

    /// Returns the path metrics, to set values that no event carries: round-trip times and the number of paths.
    pub fn paths(&self) -> &PathMetrics {
        &self.paths
    }

    pub fn request_log(&self) -> &RequestLog {
        &self.request_log
    }
}
