//! Metrics of relays, and of the routes over them on the connecting side of a link.
//!
//! Limits: at most [`LINKS_MAX`], [`PATHS_MAX`] and [`REASONS_MAX`] label values; further ones are recorded as `other`.

use crate::family::{Family, Label};
use crate::metric::{Counter, Gauge};
use crate::metric_names;
use crate::registry::{RegisterError, Registry};

const LINKS_MAX: usize = 256;
const PATHS_MAX: usize = 256;
const REASONS_MAX: usize = 32;

/// Metrics of one relay.
#[derive(Debug)]
pub struct RelayMetrics {
    pub associations: Gauge,
    /// Traffic of clients to their next hops.
    pub to_next: ForwardedTraffic,
    /// Traffic of next hops to their clients.
    pub to_client: ForwardedTraffic,
    refused: Family<Counter, 1>,
}

/// Packets that a relay forwarded in one direction.
#[derive(Clone, Debug)]
pub struct ForwardedTraffic {
    pub packets: Counter,
    pub bytes: Counter,
    /// Packets that were too long, or that the system did not take.
    pub dropped: Counter,
}

impl RelayMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let direction = Label { name: "direction", values_max: 2 };
        let reason = Label { name: "reason", values_max: REASONS_MAX };
        let packets = registry.counters(metric_names::RELAY_PACKETS_TOTAL, [direction])?;
        let bytes = registry.counters(metric_names::RELAY_BYTES_TOTAL, [direction])?;
        let dropped = registry.counters(metric_names::RELAY_DROPPED_TOTAL, [direction])?;
        let traffic = |direction| ForwardedTraffic {
            packets: packets.with([direction]),
            bytes: bytes.with([direction]),
            dropped: dropped.with([direction]),
        };
        Ok(Self {
            associations: registry.gauge(metric_names::RELAY_ASSOCIATIONS)?,
            to_next: traffic("to_next"),
            to_client: traffic("to_client"),
            refused: registry.counters(metric_names::RELAY_REFUSED_TOTAL, [reason])?,
        })
    }

    /// Returns the number of refused packets and set-ups for a reason.
    pub fn refused(&self, reason: &str) -> Counter {
        self.refused.with([reason])
    }
}

impl ForwardedTraffic {
    /// Counts a forwarded packet.
    pub fn count(&self, bytes: usize) {
        self.packets.count();
        self.bytes.add(bytes as u64);
    }
}

/// Metrics of the routes of one link; dropping them removes its gauges.
#[derive(Debug)]
pub struct RouteMetrics {
    link: String,
    hops: Family<Gauge, 2>,
    /// Routes that replaced a worse one.
    pub swaps: Counter,
    failures: Family<Counter, 2>,
}

impl RouteMetrics {
    /// Registers the metrics of a link.
    pub fn new(registry: &Registry, link: &str) -> Result<Self, RegisterError> {
        let link_label = Label { name: "link", values_max: LINKS_MAX };
        let path = Label { name: "path", values_max: PATHS_MAX };
        let reason = Label { name: "reason", values_max: REASONS_MAX };
        Ok(Self {
            link: link.to_owned(),
            hops: registry.gauges(metric_names::LINK_HOPS, [link_label, path])?,
            swaps: registry.counters(metric_names::LINK_ROUTE_SWAPS_TOTAL, [link_label])?.with([link]),
            failures: registry.counters(metric_names::LINK_ROUTE_FAILURES_TOTAL, [link_label, reason])?,
        })
    }

    /// Sets the number of relays of a path.
    pub fn set_hops(&self, path: &str, hops: usize) {
        self.hops.with([&self.link, path]).set(i64::try_from(hops).unwrap_or(i64::MAX));
    }

    /// Counts a route that could not be set up, or over which the peer did not answer.
    pub fn count_failure(&self, reason: &str) {
        self.failures.with([&self.link, reason]).count();
    }
}

impl Drop for RouteMetrics {
    fn drop(&mut self) {
        self.hops.forget(&[&self.link]);
    }
}
