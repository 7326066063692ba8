//! Metrics of the LLM API's router (docs/specs.md, router load optimization).

use super::DURATION_BOUNDS;
use crate::event::{Event, RejectReason, Step};
use crate::metric::{Counter, Gauge, Histogram};
use crate::metric_names;
use crate::registry::{RegisterError, Registry};

/// Metrics of the LLM API's router.
#[derive(Clone, Debug)]
pub struct RouterMetrics {
    queue_size: Gauge,
    request_duration: Histogram,
    backpressure_rejections: Counter,
    cache_hits: Counter,
    cache_misses: Counter,
    pool_connections: Gauge,
}

/// Current values of the router, which its pipeline and its connection pool maintain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterGauges {
    /// Waiting requests.
    pub queue_size: usize,
    /// Requests sent to their cached node, since the start.
    pub cache_hits: u64,
    /// Requests with an affinity key sent to another node, since the start.
    pub cache_misses: u64,
    /// Connections to nodes, active and idle.
    pub pool_connections: usize,
}

impl RouterMetrics {
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        Ok(Self {
            queue_size: registry.gauge(metric_names::QUEUE_SIZE)?,
            request_duration: registry.histogram(metric_names::REQUEST_DURATION_SECONDS, DURATION_BOUNDS)?,
            backpressure_rejections: registry.counter(metric_names::BACKPRESSURE_REJECTIONS_TOTAL)?,
            cache_hits: registry.counter(metric_names::CACHE_HITS_TOTAL)?,
            cache_misses: registry.counter(metric_names::CACHE_MISSES_TOTAL)?,
            pool_connections: registry.gauge(metric_names::POOL_CONNECTIONS)?,
        })
    }

    /// Updates the metrics for an event.
    pub fn record(&self, event: &Event) {
        let Event::Request { step, .. } = event else { return };
        match step {
            Step::Rejected { reason: RejectReason::QueueFull | RejectReason::WouldMissDeadline }
            | Step::Evicted { .. } => self.backpressure_rejections.count(),
            Step::Finished { took, .. } => self.request_duration.record(*took),
            Step::Accepted { .. }
            | Step::Admitted { .. }
            | Step::Delayed { .. }
            | Step::Redirected { .. }
            | Step::SentToOwner { .. }
            | Step::PeerAnswered { .. }
            | Step::PeerFailed { .. }
            | Step::InTransaction { .. }
            | Step::Rejected { .. }
            | Step::Cancelled
            | Step::Dispatched { .. }
            | Step::FirstByte { .. }
            | Step::FailedOver { .. } => {}
        }
    }

    /// Sets the gauges, before a scrape or when they change.
    pub fn set_gauges(&self, gauges: &RouterGauges) {
        self.queue_size.set(i64::try_from(gauges.queue_size).unwrap_or(i64::MAX));
        self.cache_hits.advance_to(gauges.cache_hits);
        self.cache_misses.advance_to(gauges.cache_misses);
        self.pool_connections.set(i64::try_from(gauges.pool_connections).unwrap_or(i64::MAX));
    }
}
