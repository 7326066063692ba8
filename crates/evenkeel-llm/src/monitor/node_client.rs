//! One question to a node: a GET with its key, in bounded time, for an answer of bounded length.

use bytes::Bytes;
use evenkeel_policy::time::Duration;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::time::timeout;

use evenkeel_upstream::{Origin, Upstream, UpstreamError};

/// The longest answer that is read; lists of some thousand models fit.
const ANSWER_LEN_MAX: usize = 4 << 20;

/// Asks nodes.
#[derive(Clone, Debug)]
pub(super) struct NodeClient {
    pub(super) upstream: Upstream,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) time_max: Duration,
}

#[derive(Debug)]
pub(super) struct NodeReply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Bytes,
}

impl NodeClient {
    /// Asks, and reads the answer, whatever it says.
    pub(super) async fn get(&self, origin: &Origin, path: &'static str) -> Result<NodeReply, UpstreamError> {
        timeout(self.time_max, self.ask(origin, path)).await.unwrap_or(Err(UpstreamError::Timeout))
    }

    async fn ask(&self, origin: &Origin, path: &'static str) -> Result<NodeReply, UpstreamError> {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = http::Uri::from_static(path);
        request.headers_mut().insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/plain;q=0.9, */*;q=0.1"),
        );
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        let (head, body) = self.upstream.send(origin, &request).await?.into_parts();
        let body = Limited::new(body, ANSWER_LEN_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return UpstreamError::Malformed { error: "longer than any answer to this".to_owned() };
            }
            match error.downcast::<UpstreamError>() {
                Ok(error) => *error,
                Err(error) => UpstreamError::Cut { error: error.to_string() },
            }
        })?;
        Ok(NodeReply { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

impl NodeReply {
    /// All that was said.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Reads it as JSON; `None` if it is none, or no success.
    pub(super) fn json(&self) -> Option<Value> {
        if !self.status.is_success() {
            return None;
        }
        serde_json::from_slice(&self.body).ok()
    }
}
