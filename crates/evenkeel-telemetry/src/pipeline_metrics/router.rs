//! Metrics of the LLM API's router (docs/specs.md, router load optimization).

use evenkeel_policy::class::Class;

use super::DURATION_BOUNDS;
use crate::event::{Event, RejectReason, Step};
use crate::family::Label;
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
    /// By class, lowest first; background requests last.
    classes: [ClassMetrics; CLASSES],
}

/// Number of classes, with that of background requests.
const CLASSES: usize = Class::COUNT + 1;
/// Names of the classes as label values, in the order of [`RouterGauges::classes`].
const CLASS_NAMES: [&str; CLASSES] =
    [Class::Low.name(), Class::Normal.name(), Class::High.name(), "background"];

/// Metrics of one class.
#[derive(Clone, Debug)]
struct ClassMetrics {
    waiting: Gauge,
    cost: Counter,
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
    /// Classes of requests, lowest first; background requests last.
    pub classes: [ClassGauges; CLASSES],
}

/// Current values of one class, over all tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassGauges {
    /// Waiting requests.
    pub waiting: usize,
    /// Cost of the finished requests, since the start.
    pub cost: u64,
}

impl RouterMetrics {
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let label = [Label { name: "class", values_max: CLASSES }];
        let waiting = registry.gauges(metric_names::CLASS_WAITING, label)?;
        let cost = registry.counters(metric_names::CLASS_COST_UNITS_TOTAL, label)?;
        Ok(Self {
            queue_size: registry.gauge(metric_names::QUEUE_SIZE)?,
            request_duration: registry.histogram(metric_names::REQUEST_DURATION_SECONDS, DURATION_BOUNDS)?,
            backpressure_rejections: registry.counter(metric_names::BACKPRESSURE_REJECTIONS_TOTAL)?,
            cache_hits: registry.counter(metric_names::CACHE_HITS_TOTAL)?,
            cache_misses: registry.counter(metric_names::CACHE_MISSES_TOTAL)?,
            pool_connections: registry.gauge(metric_names::POOL_CONNECTIONS)?,
            classes: CLASS_NAMES
                .map(|name| ClassMetrics { waiting: waiting.with([name]), cost: cost.with([name]) }),
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
            | Step::FellBack { .. }
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
        for (metrics, gauges) in self.classes.iter().zip(&gauges.classes) {
            metrics.waiting.set(i64::try_from(gauges.waiting).unwrap_or(i64::MAX));
            metrics.cost.advance_to(gauges.cost);
        }
    }
}
