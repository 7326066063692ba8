//! Forwarding: sends a request to a peer with its ticket, and takes the peer's report from the response.
//!
//! Guarantees: a request is never sent twice once a byte of it may have been read.
//!
//! Limits: [`REPORT_HEADER_BYTES_MAX`] bytes for a report in a header; a longer one is left out.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use evenkeel_upstream::{HeaderFilter, SendOnceError, Upstream, UpstreamBody};
use http::{HeaderValue, Request, Response};
use tokio::time::Instant;
use tracing::debug;

use crate::key::{ClusterKeys, Nonce};
use crate::peer::{Peer, ReportSource};
use crate::report;
use crate::ticket::{self, TICKET_HEADER};

/// Name of the response header that carries a report.
pub const REPORT_HEADER: &str = "x-evenkeel-report";
/// Maximum length of that header's value.
pub const REPORT_HEADER_BYTES_MAX: usize = 8 * 1024;

const SIGNATURE_LEN: usize = 32;
/// Domain separator: reports in forwarded responses and answers to polls are signed with the same key.
const FORWARDED: &[u8] = b"forwarded";

/// Writes a report for the node that forwarded a request; `None` if it is too long.
pub(crate) fn sign_report(
    keys: &ClusterKeys,
    nonce: &Nonce,
    receiver: &str,
    node: &str,
    json: &[u8],
) -> Option<HeaderValue> {
    let signature = keys.report.sign(&[FORWARDED, receiver.as_bytes(), node.as_bytes(), nonce, json]);
    let text = URL_SAFE_NO_PAD.encode([&signature, json].concat());
    if REPORT_HEADER_BYTES_MAX < text.len() {
        return None;
    }
    HeaderValue::from_str(&text).ok()
}

/// Sends a request and removes the report from its response.
pub(crate) async fn forward(
    node: &str,
    keys: &ClusterKeys,
    upstream: &Upstream,
    peer: &Peer,
    ticket: &str,
    request: &Request<Bytes>,
) -> Result<Response<UpstreamBody>, ForwardError> {
    let header = HeaderValue::from_str(ticket).ok();
    let (Some(header), Some(nonce)) = (header, ticket::read_nonce(ticket)) else {
        return Err(ForwardError::NotSent { reason: "the ticket is malformed".to_owned() });
    };
    let filter = HeaderFilter { keep: |_| true, add: &[(TICKET_HEADER, &header)] };
    let sent = upstream.send_once(&peer.origin, request, filter).await;
    let mut response = sent.map_err(|error| ForwardError::new(peer, error))?;
    if let Some(value) = response.headers_mut().remove(REPORT_HEADER) {
        match read_report(node, keys, peer, &nonce, &value) {
            Ok(()) => {}
            // The next poll decides about the peer.
            Err(reason) => debug!(peer = %peer.name, reason, "ignored the report in a forwarded response"),
        }
    }
    Ok(response)
}

/// Verifies and stores a report.
fn read_report(
    node: &str,
    keys: &ClusterKeys,
    peer: &Peer,
    nonce: &Nonce,
    value: &HeaderValue,
) -> Result<(), String> {
    if REPORT_HEADER_BYTES_MAX < value.len() {
        return Err("it is too long".to_owned());
    }
    let bytes = URL_SAFE_NO_PAD.decode(value).map_err(|error| error.to_string())?;
    let Some((signature, json)) = bytes.split_at_checked(SIGNATURE_LEN) else {
        return Err("it has no signature".to_owned());
    };
    let parts = [FORWARDED, node.as_bytes(), peer.name.as_bytes(), nonce, json];
    if !keys.report.is_valid(&parts, signature) {
        return Err("its signature is wrong".to_owned());
    }
    let report = report::parse(json, &peer.name, Instant::now()).map_err(|error| error.to_string())?;
    peer.record_report(report, ReportSource::ForwardedResponse);
    Ok(())
}

/// A forwarded request without a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The peer did not read any of the request, so another node may serve it.
    #[error("the request was not forwarded: {reason}")]
    NotSent { reason: String },
    /// The peer may have served the request; sending it again could run it twice.
    #[error("the outcome of the forwarded request is unknown: {reason}")]
    OutcomeUnknown { reason: String },
}

impl ForwardError {
    fn new(peer: &Peer, error: SendOnceError) -> Self {
        match error {
            SendOnceError::NotSent(error) => {
                Self::NotSent { reason: format!("peer {:?}: {error}", peer.name) }
            }
            SendOnceError::OutcomeUnknown(error) => {
                Self::OutcomeUnknown { reason: format!("peer {:?}: {error}", peer.name) }
            }
        }
    }
}
