//! Passes every event of a pipeline to its metrics, its request log and the process log (`tracing`).

use std::sync::Arc;

use evenkeel_policy::time::Instant;

use crate::event::{Event, NodeEvent};
use crate::gen_ai_metrics::GenAiMetrics;
use crate::logs;
use crate::path_metrics::PathMetrics;
use crate::pipeline_metrics::{MetricLimits, PipelineMetrics, RouterMetrics};
use crate::registry::{RegisterError, Registry};
use crate::request_log::{RequestLog, RequestLogLimits};
use crate::trace::Tracer;

/// Event sink of one pipeline, shared by all its requests.
#[derive(Debug)]
pub struct Observer {
    metrics: PipelineMetrics,
    router: Option<RouterMetrics>,
    gen_ai: Option<GenAiMetrics>,
    request_log: RequestLog,
    tracer: Option<Arc<Tracer>>,
}

impl Observer {
    /// Creates an observer and registers its metrics with the label `pool`.
    pub fn new(
        registry: &Registry,
        pool: &str,
        metrics: MetricLimits,
        request_log: RequestLogLimits,
    ) -> Result<Self, RegisterError> {
        Ok(Self {
            metrics: PipelineMetrics::new(registry, pool, metrics)?,
            router: None,
            gen_ai: None,
            request_log: RequestLog::new(request_log),
            tracer: None,
        })
    }

    /// Also records the LLM API's router metrics.
    #[must_use]
    pub fn with_router(self, router: RouterMetrics) -> Self {
        Self { router: Some(router), ..self }
    }

    /// Sets the metrics of model requests, which request handlers get from [`gen_ai`](Self::gen_ai).
    #[must_use]
    pub fn with_gen_ai(self, gen_ai: GenAiMetrics) -> Self {
        Self { gen_ai: Some(gen_ai), ..self }
    }

    pub fn gen_ai(&self) -> Option<&GenAiMetrics> {
        self.gen_ai.as_ref()
    }

    /// Also records the metrics of paths, which all pools and links share.
    #[must_use]
    pub fn with_paths(self, paths: PathMetrics) -> Self {
        Self { metrics: self.metrics.with_paths(paths), ..self }
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
        if let Some(router) = &self.router {
            router.record(event);
        }
        self.request_log.record(now, event);
        logs::log_event(event, &self.metrics, &self.request_log);
        if let Event::Node { node, change: NodeEvent::Removed } = event {
            self.metrics.forget_node(*node);
        }
    }

    /// Returns the metrics, on which callers set the names of tenants and nodes.
    pub fn metrics(&self) -> &PipelineMetrics {
        &self.metrics
    }

    pub fn request_log(&self) -> &RequestLog {
        &self.request_log
    }
}
