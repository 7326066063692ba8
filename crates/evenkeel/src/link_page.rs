//! Page of a link process: `GET /status` and `GET /metrics`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_link::identity::Fingerprint;
use evenkeel_link::relay::RelayStatus;
use evenkeel_link::session::{DatagramCounters, FlowStatus, LinkPathStatus, SessionStatus, ShareStatus};
use evenkeel_server::body::{self, Response};
use evenkeel_server::listener::{Listener, ListenerLimits};
use evenkeel_server::route::{Readiness, Routes, handler};
use evenkeel_server::tenant::{Access, Authenticator, Exposure, InsecurePolicy, Tenants};
use evenkeel_telemetry::{CONTENT_TYPE, ForwardedTraffic, PathMetrics, Registry};
use http::header;
use http::{HeaderValue, Method};
use serde_json::{Value, json};

/// Most connections to the page at once.
const CONNECTIONS_MAX: usize = 64;

/// A page that is bound to its port but not served yet.
pub struct LinkPage {
    listener: Listener,
    registry: Registry,
    metrics: PathMetrics,
}

impl LinkPage {
    /// Binds the port.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let limits = ListenerLimits { connections_max: CONNECTIONS_MAX, ..ListenerLimits::default() };
        let listener = Listener::bind(address, None, limits).await?;
        let registry = Registry::new();
        let metrics = PathMetrics::new(&registry).map_err(io::Error::other)?;
        Ok(Self { listener, registry, metrics })
    }

    /// Returns the metrics that the page shows.
    pub fn metrics(&self) -> &PathMetrics {
        &self.metrics
    }

    /// Returns the URL of the page.
    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// Serves the page in the background; `status` also brings metrics up to date.
    pub fn serve(self, status: impl Fn() -> Value + Send + Sync + 'static) -> io::Result<()> {
        let Self { listener, registry, .. } = self;
        let readiness = Readiness::default();
        readiness.ready();
        let mut routes = Routes::new(readiness);
        let status = Arc::new(status);
        let update = status.clone();
        let status = handler(move |_| {
            let page = Response::new(body::full(status().to_string()));
            async { Ok(typed(page, "application/json")) }
        });
        let metrics = handler(move |_| {
            update();
            let page = Response::new(body::full(registry.render()));
            async { Ok(typed(page, CONTENT_TYPE)) }
        });
        routes.add(Method::GET, "/status", Access::Unchecked, status).map_err(io::Error::other)?;
        routes.add(Method::GET, "/metrics", Access::Unchecked, metrics).map_err(io::Error::other)?;
        let tenants = Tenants::new(Vec::new(), Vec::new()).map_err(io::Error::other)?;
        let auth = Authenticator::new(tenants, Exposure::Loopback, InsecurePolicy::default())
            .map_err(io::Error::other)?;
        tokio::spawn(listener.serve(Arc::new(auth), routes, std::future::pending()));
        Ok(())
    }
}

fn typed(mut response: Response, content_type: &'static str) -> Response {
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Describes a relay as JSON.
pub fn describe_relay(relay: &RelayStatus) -> Value {
    let traffic = |traffic: &ForwardedTraffic| {
        json!({
            "packets": traffic.packets.get(),
            "bytes": traffic.bytes.get(),
            "dropped_packets": traffic.dropped.get(),
        })
    };
    let peer = |(peer, associations): &(Fingerprint, usize)| json!({ "fingerprint": peer.to_string(), "associations": associations });
    let refused = relay.refused.iter().map(|(reason, count)| (reason.label().to_owned(), json!(count)));
    json!({
        "relay": {
            "listen": relay.listen.to_string(),
            "fingerprint": relay.fingerprint.to_string(),
            "peers": relay.peers.iter().map(peer).collect::<Vec<_>>(),
            "to_next": traffic(&relay.to_next),
            "to_client": traffic(&relay.to_client),
            "refused": refused.collect::<serde_json::Map<_, _>>(),
        }
    })
}

/// Describes sessions as JSON.
pub fn describe(sessions: &[SessionStatus]) -> Value {
    json!({ "sessions": sessions.iter().map(describe_session).collect::<Vec<_>>() })
}

/// Describes a session as JSON.
pub(crate) fn describe_session(session: &SessionStatus) -> Value {
    let totals = &session.totals;
    json!({
        "paths": session.paths.iter().map(describe_path).collect::<Vec<_>>(),
        "flows": session.flows.iter().map(describe_flow).collect::<Vec<_>>(),
        "receive_buffered_bytes": totals.receive_buffered,
        "send_retained_bytes": totals.send_retained,
        "duplicate_bytes": totals.duplicate_bytes,
        "datagrams": describe_datagrams(&totals.datagrams),
        "share_deviation": totals.share_deviation,
        "relative_entropy": totals.relative_entropy,
        "reweights_applied": totals.reweights_applied,
        "reweights_suppressed": totals.reweights_suppressed,
        "bonded_exits": totals.bonded_exits,
        "path_swaps": {"slower": totals.replacements.slower, "unusable": totals.replacements.unusable},
    })
}

fn describe_path(path: &LinkPathStatus) -> Value {
    let millis = |span: Option<std::time::Duration>| span.map(|span| span.as_secs_f64() * 1e3);
    let share = |share: Option<ShareStatus>| {
        share.map(|share| json!({"observed": share.observed, "theory": share.theory}))
    };
    json!({
        "name": path.name,
        "hops": path.relays.as_ref().map(Vec::len),
        "relays": path.relays,
        "state": path.state.to_string(),
        "role": path.role.to_string(),
        "bonded": path.bonded,
        "connected": path.connected,
        "silent": path.silent,
        "rtt_ms": millis(path.rtt),
        "rtt_deviation_ms": millis(path.rtt_deviation),
        "loss": path.loss,
        "weight": path.weight,
        "flow_share": share(path.flow_share),
        "bonded_share": share(path.bonded_share),
        "in_flight_bytes": path.in_flight,
        "queued_bytes": path.queued,
        "sent_bytes": path.counters.sent_bytes,
        "reinjected_bytes": path.counters.reinjected_bytes,
        "received_bytes": path.counters.received_bytes,
        "datagrams_sent": path.counters.datagrams_sent,
        "datagrams_received": path.counters.datagrams_received,
        "activated": path.counters.activated,
        "deactivated": path.counters.deactivated,
    })
}

fn describe_flow(flow: &FlowStatus) -> Value {
    json!({
        "flow": flow.flow.0,
        "lane": flow.lane.to_string(),
        "path": flow.path.map(|path| path.0),
        "written_bytes": flow.written,
        "acked_bytes": flow.acked,
        "received_bytes": flow.received,
        "read_bytes": flow.read,
        "reorder_bytes": flow.reorder_bytes,
        "reorder_utilization": flow.reorder_utilisation,
        "reorder_datagrams": flow.datagrams.map(|datagrams| datagrams.reorder_datagrams),
        "datagrams": flow.datagrams.map(|datagrams| describe_datagrams(&datagrams.counters)),
    })
}

fn describe_datagrams(counters: &DatagramCounters) -> Value {
    json!({
        "sent": counters.sent,
        "unsent": counters.unsent,
        "received": counters.received,
        "duplicates": counters.duplicates,
        "lost": counters.lost,
        "late": counters.late,
        "unread": counters.unread,
    })
}
