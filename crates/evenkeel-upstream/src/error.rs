//! Why a node did not answer.

use core::fmt;

/// Why a request to a node has no answer, or not all of it; one variant per thing a caller does differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    /// The host's name has no address.
    Resolve {
        /// What the resolver says.
        error: String,
    },
    /// No address of the host takes connections.
    Connect {
        /// What the last address said.
        error: String,
    },
    /// Nobody took the connection within `connect_timeout`.
    ConnectTimeout,
    /// The host is not who its certificate should say, or does not speak TLS.
    Tls {
        /// What rustls says.
        error: String,
    },
    /// `request_timeout` passed without an answer's head, or without another chunk of its body.
    Timeout,
    /// The connection closed before the answer's head.
    Closed {
        /// What the connection says.
        error: String,
    },
    /// What came back is not HTTP.
    Malformed {
        /// What the parser says.
        error: String,
    },
    /// The connection closed within the body.
    Cut {
        /// What the connection says.
        error: String,
    },
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { error } => write!(f, "host name not resolved: {error}"),
            Self::Connect { error } => write!(f, "host not reached: {error}"),
            Self::ConnectTimeout => f.write_str("host not reached in time"),
            Self::Tls { error } => write!(f, "no trusted connection: {error}"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::Closed { error } => write!(f, "connection closed without an answer: {error}"),
            Self::Malformed { error } => write!(f, "answer is not HTTP: {error}"),
            Self::Cut { error } => write!(f, "answer cut short: {error}"),
        }
    }
}

impl core::error::Error for UpstreamError {}
