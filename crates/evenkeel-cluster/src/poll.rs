//! Polls between nodes: the headers of a poll, its answer, and the actor that polls one peer.
//!
//! A poll names poller and target and carries a nonce; its signature covers all three. The signature of the answer
//! covers them too, and the body, so an answer to another poll is not believed.
//!
//! Limits: one open request per peer, for at most `poll_timeout`; [`REPORT_BYTES_MAX`] bytes per answer.

mod poller;

pub(crate) use poller::Poller;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use evenkeel_policy::time::Duration;
use evenkeel_upstream::{Upstream, UpstreamError};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use tokio::time::{Instant, timeout};

use crate::key::{ClusterKeys, Nonce, draw};
use crate::peer::{FailureKind, Peer, ReportSource};
use crate::report::{self, REPORT_BYTES_MAX, ReceivedReport};

/// Path of a poll; the method is GET.
pub const POLL_PATH: &str = "/cluster/stats";

const POLLER: &str = "x-evenkeel-node";
const TARGET: &str = "x-evenkeel-target";
const NONCE: &str = "x-evenkeel-nonce";
const SIGNATURE: &str = "x-evenkeel-signature";

/// Domain separator: answers to polls and reports in forwarded responses are signed with the same key.
const ANSWER: &[u8] = b"answer";

/// A poll with a valid signature.
#[derive(Debug)]
pub(crate) struct PollRequest<'a> {
    pub(crate) poller: &'a str,
    nonce: &'a str,
}

/// Returns the name of the poller, which may be false until the signature is checked.
pub(crate) fn claimed_poller(headers: &HeaderMap) -> Option<&str> {
    headers.get(POLLER)?.to_str().ok()
}

/// Verifies a poll of this node.
pub(crate) fn verify<'a>(
    headers: &'a HeaderMap,
    node: &str,
    keys: &ClusterKeys,
) -> Result<PollRequest<'a>, PollError> {
    let text = |name: &'static str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.ok_or(PollError::Malformed { header: name })
    };
    let poller = text(POLLER)?;
    let target = text(TARGET)?;
    let nonce = text(NONCE)?;
    let signature =
        URL_SAFE_NO_PAD.decode(text(SIGNATURE)?).map_err(|_| PollError::Malformed { header: SIGNATURE })?;
    if !keys.poll.is_valid(&[poller.as_bytes(), target.as_bytes(), nonce.as_bytes()], &signature) {
        return Err(PollError::Signature { poller: poller.chars().take(64).collect() });
    }
    if target != node {
        return Err(PollError::OtherTarget { target: target.to_owned(), node: node.to_owned() });
    }
    Ok(PollRequest { poller, nonce })
}

impl PollRequest<'_> {
    /// Signs an answer.
    pub(crate) fn answer(&self, node: &str, keys: &ClusterKeys, json: Vec<u8>) -> Response<Bytes> {
        let parts = [ANSWER, self.poller.as_bytes(), node.as_bytes(), self.nonce.as_bytes(), &json];
        let signature = keys.report.sign(&parts);
        let mut response = Response::new(Bytes::from(json));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        insert(headers, NONCE, self.nonce);
        insert(headers, SIGNATURE, &URL_SAFE_NO_PAD.encode(signature));
        response
    }
}

/// Inserts a header whose value is a checked name, a received header or base64.
fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    headers.insert(name, HeaderValue::from_str(value).expect("the value is visible ASCII"));
}

/// Reason for rejecting a poll.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    #[error("the poll has no valid header {header}")]
    Malformed { header: &'static str },
    #[error("the poll of node {poller:?} has a wrong signature: the cluster secrets differ")]
    Signature { poller: String },
    #[error("the poll is for node {target:?}, this is {node:?}: check the peer's URL")]
    OtherTarget { target: String, node: String },
}

impl PollError {
    /// Returns the status of the response; the poller derives the cause from it.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Malformed { .. } => StatusCode::BAD_REQUEST,
            Self::Signature { .. } => StatusCode::FORBIDDEN,
            Self::OtherTarget { .. } => StatusCode::MISDIRECTED_REQUEST,
        }
    }
}

/// Sends polls to one peer.
#[derive(Clone, Debug)]
pub(crate) struct PollClient {
    pub(crate) node: Arc<str>,
    pub(crate) keys: Arc<ClusterKeys>,
    pub(crate) upstream: Upstream,
    pub(crate) peer: Arc<Peer>,
    pub(crate) timeout: Duration,
}

/// A poll without a valid answer.
struct PollFailure {
    kind: FailureKind,
    reason: String,
}

impl PollClient {
    /// Polls the peer once and records the result.
    pub(crate) async fn poll(&self) {
        let polled = timeout(self.timeout, self.exchange()).await;
        let failure = match polled {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(_) => unreachable(format!("did not answer within {:?}", self.timeout)),
        };
        let reason = format!("peer {:?} {}", self.peer.name, failure.reason);
        self.peer.record_failure(failure.kind, reason);
    }

    async fn exchange(&self) -> Result<(), PollFailure> {
        let nonce: Nonce = draw().map_err(|error| unreachable(format!("was not polled: {error}")))?;
        let nonce = URL_SAFE_NO_PAD.encode(nonce);
        let sent_at = Instant::now();
        let response = self.upstream.send(&self.peer.origin, &self.request(&nonce)).await;
        let (head, body) =
            response.map_err(|error| unreachable(format!("does not answer: {error}")))?.into_parts();
        check_status(head.status, &self.peer)?;
        let body = Limited::new(body, REPORT_BYTES_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return invalid(format!("sent a report of more than {REPORT_BYTES_MAX} bytes"));
            }
            match error.downcast::<UpstreamError>() {
                Ok(error) => unreachable(format!("does not answer: {error}")),
                Err(error) => unreachable(format!("does not answer: {error}")),
            }
        })?;
        self.read_answer(&head.headers, &nonce, &body.to_bytes(), sent_at)
    }

    fn request(&self, nonce: &str) -> Request<Bytes> {
        let parts = [self.node.as_bytes(), self.peer.name.as_bytes(), nonce.as_bytes()];
        let signature = self.keys.poll.sign(&parts);
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = http::Uri::from_static(POLL_PATH);
        let headers = request.headers_mut();
        insert(headers, POLLER, &self.node);
        insert(headers, TARGET, &self.peer.name);
        insert(headers, NONCE, nonce);
        insert(headers, SIGNATURE, &URL_SAFE_NO_PAD.encode(signature));
        request
    }

    /// Verifies and stores a report. Its figures are at most as old as the poll.
    fn read_answer(
        &self,
        headers: &HeaderMap,
        nonce: &str,
        json: &[u8],
        sent_at: Instant,
    ) -> Result<(), PollFailure> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let Some(signature) = text(SIGNATURE).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()) else {
            return Err(invalid("sent a report without a signature".to_owned()));
        };
        if text(NONCE) != Some(nonce) {
            return Err(invalid("sent the answer to another poll".to_owned()));
        }
        let parts = [ANSWER, self.node.as_bytes(), self.peer.name.as_bytes(), nonce.as_bytes(), json];
        if !self.keys.report.is_valid(&parts, &signature) {
            return Err(invalid(
                "sent a report with a wrong signature: the cluster secrets differ".to_owned(),
            ));
        }
        let report = report::parse(json, &self.peer.name, Instant::now());
        let report = report.map_err(|error| invalid(format!("is not believed: {error}")))?;
        let report = ReceivedReport { measured_at: sent_at, ..report };
        self.peer.record_report(report, ReportSource::Poll);
        Ok(())
    }
}

/// Derives the cause of a rejected poll from the status of its response.
fn check_status(status: StatusCode, peer: &Peer) -> Result<(), PollFailure> {
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::FORBIDDEN => {
            Err(invalid("rejected the signature: the cluster secrets differ".to_owned()))
        }
        StatusCode::MISDIRECTED_REQUEST => {
            Err(invalid(format!("is not at {}: the node there has another name", peer.origin)))
        }
        StatusCode::NOT_FOUND => {
            Err(invalid(format!("is not at {}: no cluster is configured there", peer.origin)))
        }
        other => Err(unreachable(format!("answered {other}"))),
    }
}

fn unreachable(reason: String) -> PollFailure {
    PollFailure { kind: FailureKind::Unreachable, reason }
}

fn invalid(reason: String) -> PollFailure {
    PollFailure { kind: FailureKind::Invalid, reason }
}
