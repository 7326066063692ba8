//! Peer gateways: each node polls the others for their load, and passes requests to them with tickets.
//!
//! Guarantees: reports and tickets are signed with the cluster's secret; neither a forged nor a replayed one is
//! believed. A ticket is accepted at most once, and its expiry needs no wall clock. A forwarded request is never sent
//! twice.
//!
//! Limits: see the modules; every text, list and wait is bounded.

mod forward;
mod key;
mod options;
mod peer;
mod poll;
mod report;
mod ticket;

pub use forward::{ForwardError, REPORT_HEADER, REPORT_HEADER_BYTES_MAX};
pub use key::{ClusterSecret, ClusterSecretError, NoRandomness, SECRET_BYTES_MAX, SECRET_BYTES_MIN};
pub use options::{ClusterOptions, ClusterStartError, NODE_NAME_BYTES_MAX, PEERS_MAX, PeerOptions};
pub use peer::PeerSnapshot;
pub use poll::{POLL_PATH, PollError};
pub use report::{
    BootId, NodeReport, POOLS_MAX, PoolReport, REPORT_BYTES_MAX, ReceivedReport, TEXT_BYTES_MAX,
};
pub use ticket::{TICKET_BYTES_MAX, TICKET_HEADER, Ticket, TicketError, TicketRequest, VISITED_MAX};

use core::fmt;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, Props, ReadyQueueScheduler};
use evenkeel_policy::time::Duration;
use evenkeel_upstream::{Upstream, UpstreamBody};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use key::{ClusterKeys, draw};
use peer::{Peer, SignatureCheck};
use poll::{PollClient, Poller};
use report::Origination;
use ticket::{TicketContext, TicketFields, UsedTickets};

/// One node's view of its cluster. Dropping it stops the polls.
pub struct Cluster {
    node: Arc<str>,
    boot: BootId,
    started_at: Instant,
    keys: Arc<ClusterKeys>,
    peers: Vec<Arc<Peer>>,
    upstream: Upstream,
    down_after: Duration,
    ticket_lifetime: Duration,
    own_report: Box<dyn Fn() -> NodeReport + Send + Sync>,
    report_sequence: AtomicU64,
    used_tickets: Mutex<UsedTickets>,
    system: ReadyQueueScheduler,
}

impl Cluster {
    /// Starts to poll the peers, on the current Tokio runtime.
    ///
    /// `own_report` is called for every incoming poll and every response to a forwarded request, so it must not block.
    pub fn start(
        options: ClusterOptions,
        upstream: Upstream,
        own_report: impl Fn() -> NodeReport + Send + Sync + 'static,
    ) -> Result<Arc<Self>, ClusterStartError> {
        options.check()?;
        let runtime = TokioRuntime::current().ok_or(ClusterStartError::NoRuntime)?;
        let boot = BootId(u64::from_be_bytes(draw()?));
        let config = ActorSystemConfig {
            workers_max: NonZeroUsize::MIN,
            supervision: supervision(),
            ..ActorSystemConfig::with_workers(NonZeroUsize::MIN)
        };
        let system = ActorSystemRunner::new(config).start(runtime)?;
        let node: Arc<str> = options.node.into();
        let keys = Arc::new(ClusterKeys::new(&options.secret));
        let peers = options.peers.into_iter().enumerate();
        let peers: Vec<_> = peers.map(|(index, peer)| Arc::new(Peer::new(index, peer))).collect();
        for peer in &peers {
            let client = PollClient {
                node: node.clone(),
                keys: keys.clone(),
                upstream: upstream.clone(),
                peer: peer.clone(),
                timeout: options.poll_timeout,
            };
            let interval = options.poll_interval;
            let props = Props::new(move || Poller { client: client.clone(), interval });
            system.spawn(&props.supervise(supervision()).build())?;
        }
        Ok(Arc::new(Self {
            node,
            boot,
            started_at: Instant::now(),
            keys,
            peers,
            upstream,
            down_after: options.down_after,
            ticket_lifetime: options.ticket_lifetime,
            own_report: Box::new(own_report),
            report_sequence: AtomicU64::new(0),
            used_tickets: Mutex::new(UsedTickets::new(options.used_tickets_max)),
            system,
        }))
    }

    /// Returns the name of this node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Derives a key that all nodes of the cluster share, for one purpose.
    pub fn secret_key(&self, purpose: &[u8]) -> [u8; 32] {
        self.keys.derive(purpose)
    }

    /// Returns the state of every peer, in the order of the configuration.
    pub fn peers(&self) -> Vec<PeerSnapshot> {
        let now = Instant::now();
        self.peers.iter().map(|peer| peer.snapshot(now, self.down_after)).collect()
    }

    /// Answers a poll: `GET` [`POLL_PATH`].
    pub fn serve_poll(&self, headers: &HeaderMap) -> Result<Response<Bytes>, PollError> {
        let verified = poll::verify(headers, &self.node, &self.keys);
        let check = match verified {
            Ok(_) => Some(SignatureCheck::Valid),
            Err(PollError::Signature { .. }) => Some(SignatureCheck::Invalid),
            // Anyone can send or replay these, so they must not count as a valid poll.
            Err(PollError::Malformed { .. } | PollError::OtherTarget { .. }) => None,
        };
        let poller = poll::claimed_poller(headers).unwrap_or_default();
        // Forged polls in the name of a peer cause at most one line per valid poll.
        let peer = self.peers.iter().find(|peer| *peer.name == *poller);
        if let Some(peer) = peer
            && let Some(check) = check
            && peer.record_signature_check(check)
            && let Err(error) = &verified
        {
            warn!(peer = %peer.name, "{error}");
        }
        Ok(verified?.answer(&self.node, &self.keys, self.report_json()))
    }

    /// Writes the figures of this node.
    fn report_json(&self) -> Vec<u8> {
        // The number is taken first, so that a report with a higher number is not older.
        let sequence = self.report_sequence.fetch_add(1, Ordering::Relaxed);
        let by = Origination { node: &self.node, boot: self.boot, sequence, clock_ms: self.clock_ms() };
        report::to_json((self.own_report)(), by)
    }

    /// Returns the time since this node started.
    fn clock_ms(&self) -> u64 {
        millis(self.started_at.elapsed())
    }

    /// Issues a ticket for one request at a peer.
    pub fn issue_ticket(&self, peer: usize, request: TicketRequest<'_>) -> Result<String, TicketError> {
        let peer = self.peers.get(peer).ok_or(TicketError::UnknownPeer { peer })?;
        let Some(report) = peer.report() else {
            return Err(TicketError::NoReport { peer: peer.name.to_string() });
        };
        if request.visited.iter().any(|node| **node == *peer.name) {
            return Err(TicketError::AlreadyVisited { node: peer.name.to_string() });
        }
        let mut visited = request.visited.to_vec();
        if !visited.iter().any(|node| **node == *self.node) {
            visited.push(self.node.to_string());
        }
        let fields = TicketFields {
            boot: report.boot,
            expires_ms: report.clock_ms_at(Instant::now()).saturating_add(millis(self.ticket_lifetime)),
            nonce: draw()?,
            route_hash: ticket::hash_route(request.method, request.path),
            body_hash: ticket::hash(request.body),
            hops_left: request.hops_left,
            issuer: self.node.to_string(),
            target: peer.name.to_string(),
            tenant: request.tenant.to_owned(),
            database_id: request.database_id.to_owned(),
            visited,
        };
        fields.encode(&self.keys.ticket)
    }

    /// Accepts a ticket for a request to this node, once; the caller then calls [`Ticket::check_body`].
    pub fn accept_ticket(&self, ticket: &str, method: &Method, path: &str) -> Result<Ticket, TicketError> {
        let fields = TicketFields::decode(ticket, &self.keys.ticket)?;
        let clock_ms = self.clock_ms();
        let lifetime_ms = millis(self.ticket_lifetime);
        fields.check(&TicketContext {
            node: &self.node,
            boot: self.boot,
            clock_ms,
            lifetime_ms,
            method,
            path,
        })?;
        self.used_tickets.lock().insert(clock_ms, fields.expires_ms, fields.nonce)?;
        Ok(fields.into_ticket())
    }

    /// Sends a request to a peer with a ticket of [`Self::issue_ticket`], and waits for the response head.
    ///
    /// The caller removes hop-by-hop headers and credentials from the request and from the response.
    pub async fn forward(
        &self,
        peer: usize,
        ticket: &str,
        request: Request<Bytes>,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let Some(peer) = self.peers.get(peer) else {
            return Err(ForwardError::NotSent { reason: format!("there is no peer {peer}") });
        };
        forward::forward(&self.node, &self.keys, &self.upstream, peer, ticket, &request).await
    }

    /// Returns the value of [`REPORT_HEADER`] for the response to a forwarded request; `None` if it would be too long.
    ///
    /// It brings the forwarding node newer figures before its next poll. A redirected client has no use for it.
    pub fn report_header(&self, ticket: &Ticket) -> Option<HeaderValue> {
        forward::sign_report(&self.keys, &ticket.nonce, &ticket.issuer, &self.node, &self.report_json())
    }

    /// Writes the metrics of the pollers' actors in Prometheus' text format.
    pub fn write_actor_metrics(&self, out: &mut String) -> fmt::Result {
        self.system.metrics().write_prometheus(out)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.system.force_stop();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("node", &self.node)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

/// Restarts a failing poller forever: the delays of ten restarts exceed a minute, so the limit per minute is never reached.
fn supervision() -> Supervision {
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30), 2, 20);
    Supervision::default().with_backoff(backoff.unwrap_or(Backoff::DOUBLING))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
