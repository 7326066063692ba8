//! The metrics that seed 000 names for paths and links.

use std::time::Duration;

use crate::event::{Event, NodeEvent};
use crate::family::{Family, Label};
use crate::metric::{Counter, FloatGauge, Gauge, Histogram};
use crate::metric_names;
use crate::registry::{RegisterError, Registry};

/// The buckets of round trips and of waits between packets.
const PACKET_BOUNDS: &[Duration] = &[
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

/// How many links show how full their reorder buffers are.
const LINKS_MAX: usize = 64;

/// The metrics of paths and links.
#[derive(Clone, Debug)]
pub struct PathMetrics {
    /// Round trips over paths.
    pub rtt: Histogram,
    /// Paths in use.
    pub active: Gauge,
    /// How far the paths' shares are from their weights' shares.
    pub weight_ratio_deviation: FloatGauge,
    /// How long data waited for data sent before it.
    pub reorder_delay: Histogram,
    /// The part of each link's reorder buffer in use.
    pub reorder_buffer_utilization: Family<FloatGauge, 1>,
    activated: Counter,
    deactivated: Counter,
}

impl PathMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let link = Label { name: "link", values_max: LINKS_MAX };
        Ok(Self {
            rtt: registry.histogram(metric_names::PATH_RTT_SECONDS, PACKET_BOUNDS)?,
            active: registry.gauge(metric_names::ACTIVE_PATHS)?,
            weight_ratio_deviation: registry.float_gauge(metric_names::WEIGHT_RATIO_DEVIATION)?,
            reorder_delay: registry.histogram(metric_names::REORDER_DELAY_SECONDS, PACKET_BOUNDS)?,
            reorder_buffer_utilization: registry
                .float_gauges(metric_names::REORDER_BUFFER_UTILIZATION, [link])?,
            activated: registry.counter(metric_names::PATH_ACTIVATED_TOTAL)?,
            deactivated: registry.counter(metric_names::PATH_DEACTIVATED_TOTAL)?,
        })
    }

    /// Counts paths that come into use and go out of it.
    pub fn tell(&self, event: &Event) {
        let Event::Node { change: NodeEvent::Path { transition, .. }, .. } = event else { return };
        match (transition.from.is_usable(), transition.to.is_usable()) {
            (false, true) => self.activated.count(),
            (true, false) => self.deactivated.count(),
            (true, true) | (false, false) => {}
        }
    }
}
