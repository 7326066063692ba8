//! Connecting side of one path over a chain of relays.

use std::net::SocketAddr;
use std::sync::Arc;

use noq::{Endpoint, EndpointConfig};
use tokio::net::UdpSocket;

use super::config::ConnectionConfig;
use super::connection::PathConnection;
use super::endpoint::{PathRequest, connect_over};
use super::error::{BindError, ConnectError};
use super::runtime::PathRuntime;
use super::socket;
use super::target::{PathBinding, PathTarget, RemoteAddress};
use crate::relay::{ChainError, Hop, RelayTarget, SetupError, SetupKey, set_up_chain};

/// Endpoint whose socket reaches the peer over relays; each route has a socket of its own.
#[derive(Debug)]
pub(crate) struct RoutedEndpoint {
    endpoint: Endpoint,
    /// Address of the first relay, to which the packets go.
    first: SocketAddr,
    /// Address of the peer, which errors name.
    destination: SocketAddr,
    relays: Arc<[String]>,
}

/// Error of setting up a route.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    #[error(transparent)]
    Bind(#[from] BindError),
    /// An address cannot be resolved or has no route.
    #[error(transparent)]
    Address(#[from] ConnectError),
    #[error("could not read random numbers from the system")]
    NoRandomNumbers,
    #[error("relay {relay} (hop {} of {hops}) {error}", hop + 1)]
    Relay { relay: String, hop: usize, hops: usize, error: SetupError },
}

impl RoutedEndpoint {
    /// Opens a socket and sets up the relays of a route, hop by hop.
    pub(crate) async fn open(
        target: &PathTarget,
        relays: &[RelayTarget],
        key: &SetupKey,
    ) -> Result<Self, RouteError> {
        let mut hops = Vec::new();
        for (hop, relay) in relays.iter().enumerate() {
            let address = resolve(&relay.address, &target.binding).await.map_err(|error| {
                let error = SetupError::Socket { reason: error.to_string() };
                RouteError::Relay { relay: relay.to_string(), hop, hops: relays.len(), error }
            })?;
            hops.push(Hop { address, fingerprint: relay.fingerprint });
        }
        let destination = resolve(&target.remote, &target.binding).await?;
        let first = hops.first().map_or(destination, |hop| hop.address);
        socket::check_route(&target.binding, first)
            .map_err(|source| ConnectError::NoRoute { address: first, source })?;
        let way = PathTarget { binding: target.binding.clone(), remote: RemoteAddress::Socket(first) };
        let (socket, address) = socket::bind_path(&way)?;
        let failed = |source| BindError::Address { address, source };
        let socket = UdpSocket::from_std(socket).map_err(failed)?;
        set_up_chain(&socket, key, &hops, destination).await.map_err(|error| match error {
            ChainError::NoRandomNumbers => RouteError::NoRandomNumbers,
            ChainError::Relay { hop, error } => {
                RouteError::Relay { relay: relays[hop].to_string(), hop, hops: relays.len(), error }
            }
        })?;
        let socket = socket.into_std().map_err(failed)?;
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(PathRuntime));
        let relays = relays.iter().map(ToString::to_string).collect();
        Ok(Self { endpoint: endpoint.map_err(failed)?, first, destination, relays })
    }

    /// Returns the relays of the route, the first hop first.
    pub(crate) fn relays(&self) -> &[String] {
        &self.relays
    }

    /// Connects to the peer and introduces the path, within 5 s.
    pub(crate) async fn connect(
        &self,
        config: &ConnectionConfig,
        request: &PathRequest<'_>,
    ) -> Result<PathConnection, ConnectError> {
        let connected =
            connect_over(&self.endpoint, self.first, config, request, Some(self.relays.clone())).await;
        connected.map_err(|error| name_address(error, self.destination))
    }

    /// Waits until the peer has been told of closed connections, as far as possible.
    pub(crate) async fn wait_closed(&self) {
        self.endpoint.wait_all_draining().await;
    }
}

async fn resolve(remote: &RemoteAddress, binding: &PathBinding) -> Result<SocketAddr, ConnectError> {
    let is_reachable = |address: &SocketAddr| match binding {
        PathBinding::Local(local) => local.is_ipv4() == address.is_ipv4(),
        PathBinding::Any | PathBinding::Interface(_) => true,
    };
    let found = remote.resolve().await?.into_iter().find(is_reachable);
    found.ok_or_else(|| ConnectError::NoAddress { host: remote.to_string() })
}

/// Replaces the address in an error: the relays have answered, so it is the peer that failed.
fn name_address(mut error: ConnectError, peer: SocketAddr) -> ConnectError {
    match &mut error {
        ConnectError::NoRoute { address, .. }
        | ConnectError::NoAnswer { address, .. }
        | ConnectError::NoWelcome { address, .. }
        | ConnectError::KeyRefused { address, .. }
        | ConnectError::Version { address, .. }
        | ConnectError::Refused { address, .. }
        | ConnectError::Busy { address }
        | ConnectError::BadWelcome { address, .. }
        | ConnectError::Lost { address, .. }
        | ConnectError::Endpoint { address, .. } => *address = peer,
        ConnectError::Bind(_)
        | ConnectError::Resolve { .. }
        | ConnectError::NoAddress { .. }
        | ConnectError::WrongPeer(_) => {}
    }
    error
}
