//! Metrics of the server: connections, bodies in memory, slow clients.

use evenkeel_telemetry::{Counter, Gauge, MetricDesc, RegisterError, Registry};

const BODY_BYTES: MetricDesc = MetricDesc::new(
    "evenkeel_body_bytes",
    "bytes of request bodies, and of responses that are read ahead, in memory",
);
const BODY_EVICTIONS_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_body_evictions_total",
    "uploads that were ended with 503 to make room in the budget of bodies",
);
const BODY_REJECTIONS_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_body_rejections_total",
    "requests that were rejected with 503 because their body did not fit into the budget of bodies",
);

const SLOW_READERS_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_slow_readers_total",
    "responses that were ended because the client read less than 1 KiB/s for write_wait_secs",
);

const CONNECTIONS: MetricDesc = MetricDesc::new("evenkeel_connections", "open connections of clients");
const CONNECTIONS_EVICTED_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_connections_evicted_total",
    "idle connections that were closed to make room for others",
);
const CONNECTIONS_REFUSED_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_connections_refused_total",
    "connections and requests that were refused because every connection had a request in flight",
);
const CONNECTIONS_ADDRESS_LIMITED_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_connections_address_limited_total",
    "connections from an address that had connections_per_address_max: an idle one was closed, or the new one refused",
);
const ACCEPT_ERRORS_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_accept_errors_total",
    "connections that could not be accepted, for example for lack of file descriptors",
);

/// Metrics of a server; those of `default()` are not exported.
#[derive(Clone, Debug, Default)]
pub struct ServerMetrics {
    pub(crate) connections: ConnectionMetrics,
    pub(crate) bodies: BodyMetrics,
    pub(crate) slow_readers: Counter,
}

/// Metrics of a listener's connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionMetrics {
    pub(crate) open: Gauge,
    pub(crate) evicted: Counter,
    pub(crate) refused: Counter,
    pub(crate) address_limited: Counter,
    pub(crate) accept_errors: Counter,
}

/// Metrics of the budget of bodies.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyMetrics {
    pub(crate) bytes: Gauge,
    pub(crate) evictions: Counter,
    pub(crate) rejections: Counter,
}

impl ServerMetrics {
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let connections = ConnectionMetrics {
            open: registry.gauge(CONNECTIONS)?,
            evicted: registry.counter(CONNECTIONS_EVICTED_TOTAL)?,
            refused: registry.counter(CONNECTIONS_REFUSED_TOTAL)?,
            address_limited: registry.counter(CONNECTIONS_ADDRESS_LIMITED_TOTAL)?,
            accept_errors: registry.counter(ACCEPT_ERRORS_TOTAL)?,
        };
        let bodies = BodyMetrics {
            bytes: registry.gauge(BODY_BYTES)?,
            evictions: registry.counter(BODY_EVICTIONS_TOTAL)?,
            rejections: registry.counter(BODY_REJECTIONS_TOTAL)?,
        };
        Ok(Self { connections, bodies, slow_readers: registry.counter(SLOW_READERS_TOTAL)? })
    }
}
