//! Sends a request to a peer with a ticket: by a redirect, or by forwarding it.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Maximum number of hops: from the first node to a peer, and from there to another.
pub(super) const HOPS_MAX: u8 = 2;
/// Time beyond its own limit after which a forwarded request counts as lost.
const FORWARD_MARGIN: Duration = Duration::from_secs(2);
const NEON_CONNECTION_STRING: &str = "neon-connection-string";

/// A request that goes to a peer.
pub(super) struct Transfer<'a> {
    cluster: &'a Cluster,
    received: &'a ReceivedRequest,
    /// Identity of the database; empty if the transaction of the request decides.
    database_id: &'a str,
    deadline: Instant,
    /// Nodes that the request has visited, this one included.
    visited: Vec<String>,
    hops_left: u8,
}

/// Reason why a peer did not answer.
pub(super) enum TransferError {
    /// The peer did not execute the request, so another node may serve it.
    NotExecuted {
        reason: String,
    },
    OutcomeUnknown {
        node: String,
        reason: String,
    },
}

impl<'a> Transfer<'a> {
    /// Prepares a transfer; `None` if the request may take no further hop.
    pub(super) fn new(
        cluster: &'a Cluster,
        received: &'a ReceivedRequest,
        database_id: &'a str,
        deadline: Instant,
    ) -> Option<Self> {
        let (hops, mut visited) = match &received.ticket {
            Some(ticket) => (ticket.hops_left, ticket.visited.clone()),
            None => (HOPS_MAX, Vec::new()),
        };
        visited.push(cluster.node().to_owned());
        Some(Self { cluster, received, database_id, deadline, visited, hops_left: hops.checked_sub(1)? })
    }

    /// Returns the peers that the request has visited.
    pub(super) fn visited_peers(&self) -> Vec<PeerId> {
        let peers = self.cluster.peers();
        let is_visited = |name: &str| self.visited.iter().any(|visited| visited == name);
        let visited = peers.iter().filter(|peer| is_visited(&peer.name));
        visited.map(|peer| PeerId(peer.index as u32)).collect()
    }

    /// Creates the response that sends the client to a peer.
    pub(super) fn redirect(&self, peer: PeerId) -> Result<Response, TransferError> {
        let ticket = self.issue_ticket(peer)?;
        let peer = &self.cluster.peers()[peer.0 as usize];
        let url = format!("{}{}?{TICKET_PARAMETER}={ticket}", peer.url, self.received.path);
        let location = HeaderValue::from_str(&url).map_err(|_| TransferError::NotExecuted {
            reason: "its URL does not fit in a header".to_owned(),
        })?;
        let body = json!({
            "code": "redirect",
            "message": format!("this node has no room; send the request to node {:?}", peer.name),
            "redirect": {"node": *peer.name, "url": url},
        });
        let mut response = json_response(StatusCode::TEMPORARY_REDIRECT, full(body.to_string()));
        response.headers_mut().insert(LOCATION, location);
        Ok(response)
    }

    /// Forwards the request and returns the peer's response, whose body is relayed as it arrives.
    pub(super) async fn forward(
        &self,
        peer: PeerId,
        guards: ForwardGuards,
    ) -> Result<Response, TransferError> {
        let ticket = self.issue_ticket(peer)?;
        let index = peer.0 as usize;
        let node = self.cluster.peers()[index].name.to_string();
        let mut request = Request::new(self.received.body.clone());
        *request.method_mut() = self.received.method.clone();
        *request.uri_mut() = self.received.path.parse().map_err(|_| TransferError::NotExecuted {
            reason: "the path of the request is not valid".to_owned(),
        })?;
        *request.headers_mut() = forwarded_headers(self.received);
        let lost = |reason: String| TransferError::OutcomeUnknown { node: node.clone(), reason };
        let forwarded = self.cluster.forward(index, &ticket, request);
        match tokio::time::timeout_at((self.deadline + FORWARD_MARGIN).into(), forwarded).await {
            // The peer was restarted or has begun to drain since its last report, or it uses another database.
            Ok(Ok(response)) if response.headers().contains_key(NOT_SERVED) => {
                let reason = format!("peer {node:?} refused the request: {}", response.status());
                Err(TransferError::NotExecuted { reason })
            }
            Ok(Ok(response)) => Ok(relay(response, guards)),
            Ok(Err(ForwardError::NotSent { reason })) => Err(TransferError::NotExecuted { reason }),
            Ok(Err(ForwardError::OutcomeUnknown { reason })) => Err(lost(reason)),
            Err(_) => Err(lost(format!("no response within the time limit and {FORWARD_MARGIN:?}"))),
        }
    }

    fn issue_ticket(&self, peer: PeerId) -> Result<String, TransferError> {
        let request = TicketRequest {
            tenant: &self.received.tenant.settings.name,
            database_id: self.database_id,
            method: &self.received.method,
            path: &self.received.path,
            body: &self.received.body,
            hops_left: self.hops_left,
            visited: &self.visited,
        };
        let ticket = self.cluster.issue_ticket(peer.0 as usize, request);
        ticket.map_err(|error| TransferError::NotExecuted { reason: error.to_string() })
    }
}

/// Returns the headers that the peer needs; the ticket replaces the credentials.
fn forwarded_headers(received: &ReceivedRequest) -> HeaderMap {
    let is_forwarded = |name: &HeaderName| {
        let of_a_driver = ["neon-", "amz-sdk-"].iter().any(|prefix| name.as_str().starts_with(prefix));
        *name == ACCEPT || *name == CONTENT_TYPE || of_a_driver
    };
    let mut headers = HeaderMap::new();
    for (name, value) in received.headers.iter().filter(|(name, _)| is_forwarded(name)) {
        let value = match name.as_str() {
            NEON_CONNECTION_STRING => without_password(value),
            _ => Some(value.clone()),
        };
        headers.extend(value.map(|value| (name.clone(), value)));
    }
    headers.insert(REQUEST_ID, received.ids.client.clone());
    // If the peer has no room either, it must forward too, because this node does not follow redirects.
    headers.insert(MODE, HeaderValue::from_static("forward"));
    headers
}

/// Removes the password of a connection string, which is the tenant's API key.
fn without_password(value: &HeaderValue) -> Option<HeaderValue> {
    let (scheme, rest) = value.to_str().ok()?.split_once("://")?;
    let (credentials, address) = rest.rsplit_once('@')?;
    let user = credentials.split_once(':').map_or(credentials, |(user, _)| user);
    HeaderValue::from_str(&format!("{scheme}://{user}@{address}")).ok()
}

fn relay(response: http::Response<UpstreamBody>, guards: ForwardGuards) -> Response {
    let (mut parts, body) = response.into_parts();
    for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    Response::from_parts(parts, RelayedBody { body, _guards: guards }.boxed_unsync())
}

/// Guards that are dropped when a forwarded response ends or its client disconnects.
///
/// Both are `None` if the request goes to the owner of its transaction.
#[derive(Default)]
pub(super) struct ForwardGuards {
    pub(super) _session: Option<ActivityGuard>,
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
    _guards: ForwardGuards,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_connection_string_has_no_password() {
        let forwarded = |text: &str| {
            let value = without_password(&HeaderValue::from_str(text).unwrap());
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        let stripped = Some("postgresql://app@db.example/orders".to_owned());
        assert_eq!(forwarded("postgresql://app:ek-secret@db.example/orders"), stripped);
        assert_eq!(forwarded("postgresql://app:ek@se:cret@db.example/orders"), stripped);
        assert_eq!(forwarded("postgresql://app@db.example/orders"), stripped);
        assert_eq!(forwarded("not a url"), None);
    }
}
