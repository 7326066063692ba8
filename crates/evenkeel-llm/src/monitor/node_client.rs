//! HTTP client of the monitors: sends the node's API key, and limits the time and the size of each reply.

use bytes::Bytes;
use evenkeel_policy::time::Duration;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::time::timeout;

use evenkeel_upstream::{Origin, Upstream, UpstreamError};

/// Size limit of a reply; a list of some thousand models fits.
const REPLY_BYTES_MAX: usize = 4 << 20;

/// HTTP client for one node's monitors.
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
    /// Sends a GET request and reads the reply, whatever its status.
    pub(super) async fn get(&self, origin: &Origin, path: &'static str) -> Result<NodeReply, UpstreamError> {
        timeout(self.time_max, self.send(origin, path)).await.unwrap_or(Err(UpstreamError::Timeout))
    }

    async fn send(&self, origin: &Origin, path: &'static str) -> Result<NodeReply, UpstreamError> {
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
        let body = Limited::new(body, REPLY_BYTES_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return UpstreamError::Malformed {
                    error: format!("body is longer than {REPLY_BYTES_MAX} bytes"),
                };
            }
            match error.downcast::<UpstreamError>() {
                Ok(error) => *error,
                Err(error) => UpstreamError::Truncated { error: error.to_string() },
            }
        })?;
        Ok(NodeReply { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

impl NodeReply {
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Parses the body of a successful reply as JSON.
    pub(super) fn json(&self) -> Option<Value> {
        if !self.status.is_success() {
            return None;
        }
        serde_json::from_slice(&self.body).ok()
    }
}
