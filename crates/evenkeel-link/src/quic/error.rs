//! Errors of binding and connecting, in words for the person who runs the link.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use noq::{ConnectionError, TransportErrorCode};
use rustls::{AlertDescription, CertificateError, OtherError};

use super::hello::PathRejection;
use crate::identity::Fingerprint;

/// Error of opening a UDP socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system has no such interface.
    #[error("no interface is named {name:?}")]
    NoInterface {
        /// Configured name.
        name: String,
    },
    /// The socket cannot be bound to the interface.
    #[error("cannot bind to interface {name:?}: {source} (needs Linux 5.7 or CAP_NET_RAW)")]
    Interface {
        /// Configured name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The socket cannot be bound to the address.
    #[error("cannot bind to UDP {address}: {source}")]
    Address {
        /// Local address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// Error of connecting one path.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket cannot be opened again.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The host name does not resolve.
    #[error("cannot resolve {host}: {source}")]
    Resolve {
        /// Configured name.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The name has no address that the local address can reach.
    #[error("{host} has no address of the family of the path's local address")]
    NoAddress {
        /// Configured name.
        host: String,
    },
    /// The routing table has no way to the address.
    #[error("no route to {address}: {source}")]
    NoRoute {
        /// Address of the peer.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Nothing came back.
    #[error("no answer from {address} within {timeout:?}; the path is down, or UDP is blocked")]
    NoAnswer {
        /// Address of the peer.
        address: SocketAddr,
        /// Time waited.
        timeout: Duration,
    },
    /// The peer completed the handshake and then fell silent.
    #[error("{address} did not answer the hello within {timeout:?}")]
    NoWelcome {
        /// Address of the peer.
        address: SocketAddr,
        /// Time waited.
        timeout: Duration,
    },
    /// The peer has another key than the configured one.
    #[error(transparent)]
    WrongPeer(#[from] KeyMismatch),
    /// The peer is configured with another key than ours.
    #[error("{address} does not accept our key {own}: {reason}")]
    KeyRefused {
        /// Address of the peer.
        address: SocketAddr,
        /// Fingerprint of our key.
        own: Fingerprint,
        /// The peer's message.
        reason: String,
    },
    /// The peer speaks another protocol, or another version of this one.
    #[error("{address} does not speak version {} of the link protocol: {reason}", super::hello::VERSION)]
    Version {
        /// Address of the peer.
        address: SocketAddr,
        /// The reason as far as it is known.
        reason: String,
    },
    /// The peer answered the hello with a rejection.
    #[error("{address} refused the path: {rejection}")]
    Refused {
        /// Address of the peer.
        address: SocketAddr,
        /// The peer's reason.
        rejection: PathRejection,
    },
    /// The peer has too many connection attempts at once.
    #[error("{address} refused the connection: too many connection attempts at once")]
    Busy {
        /// Address of the peer.
        address: SocketAddr,
    },
    /// The answer is malformed, or does not prove that the peer knows the session.
    #[error("{address} answered the hello wrongly: {reason}")]
    BadWelcome {
        /// Address of the peer.
        address: SocketAddr,
        /// The rule broken.
        reason: &'static str,
    },
    /// The connection ended for another reason.
    #[error("connection to {address} failed: {source}")]
    Lost {
        /// Address of the peer.
        address: SocketAddr,
        /// The cause.
        source: ConnectionError,
    },
    /// The path's socket has failed; the next attempt opens another one.
    #[error("cannot connect to {address}: {source}")]
    Endpoint {
        /// Address of the peer.
        address: SocketAddr,
        /// The cause.
        source: noq::ConnectError,
    },
}

/// Error for a peer whose key is not the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer presented {presented} but {expected} is expected")]
pub struct KeyMismatch {
    /// Fingerprint of the peer's key.
    pub presented: Fingerprint,
    /// Configured fingerprint.
    pub expected: Fingerprint,
}

impl From<KeyMismatch> for rustls::Error {
    fn from(mismatch: KeyMismatch) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(mismatch))))
    }
}

impl ConnectError {
    /// Explains why a connection was not established.
    pub(super) fn explain(error: ConnectionError, address: SocketAddr, own: Fingerprint) -> Self {
        match error {
            ConnectionError::VersionMismatch => {
                Self::Version { address, reason: "no common QUIC version".to_owned() }
            }
            ConnectionError::TransportError(error) => {
                if let Some(mismatch) = key_mismatch(&error) {
                    return Self::WrongPeer(mismatch);
                }
                match alert(error.code) {
                    Some(AlertDescription::NoApplicationProtocol) => {
                        Self::Version { address, reason: error.reason }
                    }
                    _ => Self::Lost { address, source: ConnectionError::TransportError(error) },
                }
            }
            ConnectionError::ConnectionClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                match alert(close.error_code) {
                    Some(AlertDescription::NoApplicationProtocol) => Self::Version { address, reason },
                    Some(alert) if is_about_certificate(alert) => Self::KeyRefused { address, own, reason },
                    _ if close.error_code == TransportErrorCode::CONNECTION_REFUSED => Self::Busy { address },
                    _ => Self::Lost { address, source: ConnectionError::ConnectionClosed(close) },
                }
            }
            source => Self::Lost { address, source },
        }
    }

    /// Returns the peer's rejection, if the peer answered the hello with one.
    pub fn rejection(&self) -> Option<&PathRejection> {
        match self {
            Self::Refused { rejection, .. } => Some(rejection),
            _ => None,
        }
    }
}

/// Returns the TLS alert of an error code, which RFC 9001 adds to 0x100.
fn alert(code: TransportErrorCode) -> Option<AlertDescription> {
    let alert = u64::from(code).checked_sub(0x100)?;
    Some(AlertDescription::from(u8::try_from(alert).ok()?))
}

fn is_about_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::AccessDenied
    )
}

/// Finds the verifier's error in the TLS library's.
fn key_mismatch(error: &noq_proto::TransportError) -> Option<KeyMismatch> {
    let tls = error.crypto.as_ref()?.downcast_ref::<rustls::Error>()?;
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = tls else {
        return None;
    };
    cause.downcast_ref().copied()
}
