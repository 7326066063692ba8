//! Sends a request to a peer with a ticket: by a redirect, or by forwarding it.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_cluster::{Cluster, ForwardError, TicketRequest};
use evenkeel_pipeline::PeerId;
use evenkeel_policy::score::RequestKind;
use evenkeel_scheduler::RequestScheduler;
use evenkeel_server::body::{BodyError, Response, full, json_response};
use evenkeel_server::request_id::REQUEST_ID;
use evenkeel_upstream::UpstreamBody;
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::json;

use super::MODE;
use crate::database::Database;
use crate::received::{NOT_SERVED, ReceivedRequest, TICKET_PARAMETER};
use crate::stats::ActivityGuard;

/// Maximum number of hops of a request: from the node that the client called to a peer, and from there to another.
pub(super) const HOPS_MAX: u8 = 2;
/// Time beyond its own limit after which a forwarded request counts as lost.
const FORWARD_MARGIN: Duration = Duration::from_secs(5);

/// The nodes that a request has visited, this one included, and the hops that it may still take.
pub(super) struct HopHistory {
    visited: Vec<String>,
    hops_left: u8,
}

impl HopHistory {
    /// Returns the hop history of a request; `None` if it may take no further hop.
    pub(super) fn of(received: &ReceivedRequest, cluster: &Cluster) -> Option<Self> {
        let (hops, mut visited) = match &received.ticket {
            Some(ticket) => (ticket.hops_left, ticket.visited.clone()),
            None => (HOPS_MAX, Vec::new()),
        };
        visited.push(cluster.node().to_owned());
        Some(Self { visited, hops_left: hops.checked_sub(1)? })
    }

    /// Returns the peers that the request has visited.
    pub(super) fn visited_peers(&self, cluster: &Cluster) -> Vec<PeerId> {
        let peers = cluster.peers();
        let is_visited = |name: &str| self.visited.iter().any(|visited| visited == name);
        let visited = peers.iter().filter(|peer| is_visited(&peer.name));
        visited.map(|peer| PeerId(peer.index as u32)).collect()
    }
}

/// Reason why a peer did not answer.
pub(super) enum TransferError {
    /// The peer did not execute the request, so another node may serve it.
    NotExecuted { reason: String },
    /// The peer may have executed the request.
    Lost { node: String, reason: String },
}

/// Creates the response that sends the client to a peer.
pub(super) fn redirect(
    cluster: &Cluster,
    peer: PeerId,
    received: &ReceivedRequest,
    history: &HopHistory,
) -> Result<Response, TransferError> {
    let ticket = issue_ticket(cluster, peer, received, history)?;
    let peer = &cluster.peers()[peer.0 as usize];
    let url = format!("{}{}?{TICKET_PARAMETER}={ticket}", peer.url, received.path);
    let not_executed =
        |_| TransferError::NotExecuted { reason: "its URL does not fit in a header".to_owned() };
    let location = HeaderValue::from_str(&url).map_err(not_executed)?;
    let body = json!({
        "code": "redirect",
        "message": format!("this node has no room; send the request to node {:?}", peer.name),
        "redirect": {"node": *peer.name, "url": url},
    });
    let mut response = json_response(StatusCode::TEMPORARY_REDIRECT, full(body.to_string()));
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

/// Forwards a request and returns the peer's response, whose body is relayed as it arrives.
pub(super) async fn forward(
    cluster: &Cluster,
    peer: PeerId,
    received: &ReceivedRequest,
    history: &HopHistory,
    time_max: Duration,
    on_end: ForwardGuards,
) -> Result<Response, TransferError> {
    let ticket = issue_ticket(cluster, peer, received, history)?;
    let index = peer.0 as usize;
    let node = cluster.peers()[index].name.to_string();
    let mut request = Request::new(received.body.clone());
    *request.method_mut() = received.method.clone();
    *request.uri_mut() = received.path.parse().map_err(|_| TransferError::NotExecuted {
        reason: "the path of the request is not valid".to_owned(),
    })?;
    *request.headers_mut() = forwarded_headers(received);
    let lost = |reason: String| TransferError::Lost { node: node.clone(), reason };
    let forwarded = cluster.forward(index, &ticket, request);
    match tokio::time::timeout(time_max + FORWARD_MARGIN, forwarded).await {
        // The peer was restarted, or has begun to drain, since its last report.
        Ok(Ok(response)) if response.headers().contains_key(NOT_SERVED) => {
            let status = response.status();
            Err(TransferError::NotExecuted { reason: format!("peer {node:?} refused the request: {status}") })
        }
        Ok(Ok(response)) => Ok(relay(response, on_end)),
        Ok(Err(ForwardError::NotSent { reason })) => Err(TransferError::NotExecuted { reason }),
        Ok(Err(ForwardError::OutcomeUnknown { reason })) => Err(lost(reason)),
        Err(_) => Err(lost("it did not answer within the time limit of the request plus 5 s".to_owned())),
    }
}

fn issue_ticket(
    cluster: &Cluster,
    peer: PeerId,
    received: &ReceivedRequest,
    history: &HopHistory,
) -> Result<String, TransferError> {
    let request = TicketRequest {
        tenant: &received.tenant.settings.name,
        method: &received.method,
        path: &received.path,
        body: &received.body,
        hops_left: history.hops_left,
        visited: &history.visited,
    };
    let ticket = cluster.issue_ticket(peer.0 as usize, request);
    ticket.map_err(|error| TransferError::NotExecuted { reason: error.to_string() })
}

/// Returns the headers that the peer needs; the ticket replaces the credentials.
fn forwarded_headers(received: &ReceivedRequest) -> HeaderMap {
    let is_forwarded = |name: &HeaderName| {
        let of_a_driver = ["neon-", "amz-sdk-"].iter().any(|prefix| name.as_str().starts_with(prefix));
        *name == ACCEPT || *name == CONTENT_TYPE || of_a_driver
    };
    let kept = received.headers.iter().filter(|(name, _)| is_forwarded(name));
    let mut headers: HeaderMap = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    headers.insert(REQUEST_ID, received.ids.client.clone());
    // If the peer has no room, it must forward too, because this node does not follow redirects.
    headers.insert(MODE, HeaderValue::from_static("forward"));
    headers
}

fn relay(response: http::Response<UpstreamBody>, on_end: ForwardGuards) -> Response {
    let (mut parts, body) = response.into_parts();
    for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    Response::from_parts(parts, RelayedBody { body, _on_end: on_end }.boxed_unsync())
}

/// Guards that are dropped when a forwarded response ends or its client disconnects.
pub(super) struct ForwardGuards {
    /// `None` if there is no database.
    pub(super) _session: Option<ActivityGuard>,
    /// `None` if the request goes to the owner of its transaction.
    pub(super) _forwarded: Option<ForwardedRequest>,
}

/// A request that a peer serves for this node.
pub(super) struct ForwardedRequest {
    pub(super) database: Arc<Database>,
    pub(super) scheduler: Arc<RequestScheduler>,
    pub(super) peer: PeerId,
    pub(super) kind: RequestKind,
}

impl Drop for ForwardedRequest {
    fn drop(&mut self) {
        let now = self.scheduler.now();
        self.database.redirector.lock().handle_returned(now, self.peer, self.kind);
    }
}

/// Body of a peer's response.
struct RelayedBody {
    body: UpstreamBody,
    _on_end: ForwardGuards,
}

impl http_body::Body for RelayedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx).map_err(BodyError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
