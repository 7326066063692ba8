//! Who watches a walk: every event goes to its metrics, its journal and the log.

use std::sync::Arc;

use evenkeel_policy::time::Instant;

use crate::event::{Event, NodeEvent};
use crate::logs;
use crate::pipeline_metrics::{MetricLimits, PathMetrics, PipelineMetrics, RouterMetrics};
use crate::registry::{RegisterError, Registry};
use crate::request_log::{RequestLog, RequestLogLimits};
use crate::trace::Tracer;

/// Where one walk tells its events; shared by all who tell.
#[derive(Debug)]
pub struct Observer {
    meters: PipelineMetrics,
    paths: PathMetrics,
    router: Option<RouterMetrics>,
    journal: RequestLog,
    tracer: Option<Arc<Tracer>>,
}

impl Observer {
    /// Watches the walk over one pool of nodes.
    pub fn new(
        registry: &Registry,
        pool: &str,
        meters: MetricLimits,
        journal: RequestLogLimits,
    ) -> Result<Self, RegisterError> {
        Ok(Self {
            meters: PipelineMetrics::new(registry, pool, meters)?,
            paths: PathMetrics::new(registry)?,
            router: None,
            journal: RequestLog::new(journal),
            tracer: None,
        })
    }

    /// Feeds the metrics of the LLM door, too.
    #[must_use]
    pub fn with_router(self, router: RouterMetrics) -> Self {
        Self { router: Some(router), ..self }
    }

    /// Has requests traced, too.
    #[must_use]
    pub fn with_tracer(self, tracer: Arc<Tracer>) -> Self {
        Self { tracer: Some(tracer), ..self }
    }

    /// Who has requests traced, if anybody wants that.
    pub fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.tracer.as_ref()
    }

    /// Tells what happened, to everybody who wants to know.
    pub fn record(&self, now: Instant, event: &Event) {
        self.meters.tell(event);
        self.paths.tell(event);
        if let Some(router) = &self.router {
            router.tell(event);
        }
        self.journal.record(now, event);
        logs::tell(event, &self.meters);
        if let Event::Node { node, change: NodeEvent::Removed } = event {
            self.meters.forget_node(*node);
        }
    }

    /// The metrics, to name tenants and nodes.
    pub fn meters(&self) -> &PipelineMetrics {
        &self.meters
    }

    /// The metrics of paths, for what no event tells: round trips, and how many there are.
    pub fn paths(&self) -> &PathMetrics {
        &self.paths
    }

    /// What happened lately.
    pub fn journal(&self) -> &RequestLog {
        &self.journal
    }
}
