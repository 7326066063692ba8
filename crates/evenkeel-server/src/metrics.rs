//! Metrics of the server: connections, bodies in memory, slow clients.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_telemetry::{Counter, Family, Gauge, Label, MetricDesc, RegisterError, Registry};
use http::StatusCode;
use parking_lot::RwLock;

use crate::route::{ROUTES_MAX, RouteId};

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

const RESPONSES_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_http_responses_total",
    "responses to clients, by route (as `GET /api/routes` lists it, or `none`) and HTTP status",
);
/// Maximum number of HTTP statuses with their own series; further ones are recorded as `other`.
const STATUSES_MAX: usize = 64;

/// Metrics of a server; those of `default()` are not exported.
#[derive(Clone, Debug, Default)]
pub struct ServerMetrics {
    pub(crate) connections: ConnectionMetrics,
    pub(crate) bodies: BodyMetrics,
    pub(crate) slow_readers: Counter,
    pub(crate) responses: ResponseMetrics,
}

/// Counts responses by route and status.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseMetrics {
    /// `None` if the metrics are not exported.
    family: Option<Family<Counter, 2>>,
    /// Series that are in use, so that counting a response compares no strings.
    series: Arc<RwLock<HashMap<(RouteId, StatusCode), Counter>>>,
}

impl ResponseMetrics {
    /// Counts a response; `pattern` returns the pattern of the route.
    pub(crate) fn count(&self, route: RouteId, status: StatusCode, pattern: impl FnOnce() -> String) {
        let Some(family) = &self.family else { return };
        let key = (route, status);
        if let Some(counter) = self.series.read().get(&key) {
            return counter.count();
        }
        let counter = family.with([&pattern(), status.as_str()]);
        counter.count();
        self.series.write().insert(key, counter);
    }
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
        let route = Label { name: "route", values_max: ROUTES_MAX };
        let status = Label { name: "status", values_max: STATUSES_MAX };
        let responses = ResponseMetrics {
            family: Some(registry.counters(RESPONSES_TOTAL, [route, status])?),
            series: Arc::default(),
        };
        Ok(Self { connections, bodies, slow_readers: registry.counter(SLOW_READERS_TOTAL)?, responses })
    }
}
