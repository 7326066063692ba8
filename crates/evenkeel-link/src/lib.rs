//! Multipath transport between two gateways.
//!
//! A link is one session over several paths. Each path is a QUIC connection of its own; a flow is an ordered,
//! reliable byte stream in both directions that survives the loss of its path.
//!
//! - [`flow`] names flows, their lanes and their ends; [`frame`] encodes what travels on the connections.
//! - [`session`] decides: paths, shares, flows, acknowledgements, re-injection. It does no I/O.
//! - [`path_signals`] carries measurements from a connection's congestion controller to the session.
//! - [`identity`] and [`quic`] are the keys and the connections of the paths; [`relay`] is a hop on the way of a path.

mod connector;
mod datagram_flow;
mod driver;
pub mod flow;
mod flow_stream;
pub mod forward;
pub mod frame;
pub mod identity;
mod link;
mod listener;
mod metrics;
pub mod path_signals;
pub mod quic;
mod random;
pub mod relay;
pub mod session;

pub use connector::{
    ConnectorSettings, LINK_PATHS_MAX, LinkConnector, LinkStartError, RELAYS_MAX, RouteSettings,
};
pub use datagram_flow::DatagramFlow;
pub use driver::EndOfSession;
pub use flow_stream::FlowStream;
pub use link::{Link, Links, RecvFlow, SendFlow};
pub use listener::{AcceptedLink, IncomingFlow, IncomingFlows, LinkListener, SESSIONS_MAX};
