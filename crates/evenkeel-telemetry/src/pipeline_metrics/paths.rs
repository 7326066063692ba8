//! Metrics of paths and links (docs/specs.md, weighted round robin).

use std::time::Duration;

use crate::event::{Event, NodeEvent};
use crate::family::{Family, Label};
use crate::metric::{Counter, FloatGauge, Gauge, Histogram};
use crate::metric_names;
use crate::registry::{RegisterError, Registry};

/// Histogram buckets for round-trip times and packet delays.
const LATENCY_BUCKETS: &[Duration] = &[
    Duration::from_micros(100),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// Maximum number of links with a reorder-buffer gauge.
const LINKS_MAX: usize = 64;

/// Metrics of paths and links.
#[derive(Clone, Debug)]
pub struct PathMetrics {
    /// Round-trip times.
    pub rtt: Histogram,
    /// Usable paths.
    pub active: Gauge,
    /// Mean difference between a path's share of picks and its share of the total weight.
    pub weight_ratio_deviation: FloatGauge,
    /// Time that packets waited in the reorder buffer for earlier ones (head-of-line blocking).
    pub reorder_delay: Histogram,
    /// Fraction of each link's reorder buffer in use.
    pub reorder_buffer_utilization: Family<FloatGauge, 1>,
    activated: Counter,
    deactivated: Counter,
}

impl PathMetrics {
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let link = Label { name: "link", values_max: LINKS_MAX };
        Ok(Self {
            rtt: registry.histogram(metric_names::PATH_RTT_SECONDS, LATENCY_BUCKETS)?,
            active: registry.gauge(metric_names::ACTIVE_PATHS)?,
            weight_ratio_deviation: registry.float_gauge(metric_names::WEIGHT_RATIO_DEVIATION)?,
            reorder_delay: registry.histogram(metric_names::REORDER_DELAY_SECONDS, LATENCY_BUCKETS)?,
            reorder_buffer_utilization: registry
                .float_gauges(metric_names::REORDER_BUFFER_UTILIZATION, [link])?,
            activated: registry.counter(metric_names::PATH_ACTIVATED_TOTAL)?,
            deactivated: registry.counter(metric_names::PATH_DEACTIVATED_TOTAL)?,
        })
    }

    /// Counts paths that become usable or unusable.
    pub fn record(&self, event: &Event) {
        let Event::Node { change: NodeEvent::Path { transition, .. }, .. } = event else { return };
        match (transition.from.is_usable(), transition.to.is_usable()) {
            (false, true) => self.activated.count(),
            (true, false) => self.deactivated.count(),
            (true, true) | (false, false) => {}
        }
    }
}
