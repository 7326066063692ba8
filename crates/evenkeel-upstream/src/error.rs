//! Errors of requests to nodes and other peers.

/// Failure of a request; one variant per case that callers handle differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    #[error("could not resolve the host name: {error}")]
    Resolve { error: String },
    /// No address of the host accepts connections; `error` is the failure of the last address.
    #[error("could not connect: {error}")]
    Connect { error: String },
    /// The link to the peer has as many flows as it allows, so nothing was sent; the peer itself may be well.
    #[error("the link is busy: {error}")]
    LinkBusy { error: String },
    /// Not connected within `connect_timeout`.
    #[error("connect timed out")]
    ConnectTimeout,
    /// The certificate is not trusted, or the peer does not speak TLS.
    #[error("TLS handshake failed: {error}")]
    Tls { error: String },
    /// No response head within `request_timeout`, or no further chunk of the body.
    #[error("response timed out")]
    Timeout,
    /// The connection closed before the response head.
    #[error("connection closed before a response: {error}")]
    Closed { error: String },
    #[error("response is not valid HTTP: {error}")]
    Malformed { error: String },
    /// The connection closed within the body, or the chunked encoding is invalid.
    #[error("response truncated: {error}")]
    Truncated { error: String },
}

/// Failure of a request that is never sent twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendOnceError {
    /// No byte of the request was sent, so the caller may send it elsewhere.
    #[error("request not sent: {0}")]
    NotSent(#[source] UpstreamError),
    /// The peer may have read the request, and may have acted on it.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(#[source] UpstreamError),
}
