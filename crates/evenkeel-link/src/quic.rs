//! One authenticated QUIC connection per path.
//!
//! The connecting side has a [`PathEndpoint`] per path, the other side a [`PathListener`]; both yield
//! [`PathConnection`]s. Guarantees:
//! - Both sides prove possession of the pinned keys (TLS 1.3, certificates on both sides, no resumption).
//! - The first path starts a session; every other path proves that it knows the session's key, which comes from the
//!   first connection's exporter. A proof is bound to its own connection, so that it cannot be replayed.
//! - A probe of a route joins no session, but proves that it knows one; it carries no flow data.
//! - No flow data precedes that exchange, and reading it takes at most 1 KiB and 5 s.
//! - At most 64 connections are between their first packet and the end of that exchange; failures are logged once per
//!   source and minute.
//!
//! Files in the order of one connection: `target` and `socket` (the way to the peer), `config` and `tls`, `endpoint`
//! and `routed` (connecting, direct and over relays), `listener` (accepting), `hello` and `session_key` (the exchange), `connection`, `controller`.

mod clock;
mod config;
mod connection;
mod controller;
mod endpoint;
mod error;
mod hello;
mod listener;
mod routed;
mod runtime;
mod session_key;
mod socket;
mod target;
mod tls;

pub use clock::LinkClock;
pub use config::ConnectionConfig;
pub use connection::PathConnection;
pub use endpoint::{PathEndpoint, PathRequest};
pub use error::{BindError, ConnectError, KeyMismatch};
pub use hello::{PathPurpose, PathRejection, RejectionCode};
pub(crate) use listener::{FailureLog, SourceNetwork};
pub use listener::{PathListener, SessionDirectory};
pub(crate) use routed::{RouteError, RoutedEndpoint};
pub use session_key::{SessionId, SessionKey};
pub(crate) use socket::{bind_listener, canonical};
pub use target::{PathBinding, PathTarget, RemoteAddress, TargetError};

pub use noq::{ConnectionError, ReadError, RecvStream, SendDatagramError, SendStream, WriteError};

#[cfg(test)]
mod tests;
