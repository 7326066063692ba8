//! Connecting side of one path over a chain of relays.

use std::net::SocketAddr;
use std::sync::Arc;

use noq::{Endpoint, EndpointConfig, TokioRuntime};
use tokio::net::UdpSocket;

use super::config::ConnectionConfig;
use super::connection::PathConnection;
use super::endpoint::{PathRequest, connect_over};
use super::error::{BindError, ConnectError};
use super::socket;
use super::target::{PathBinding, PathTarget, RemoteAddress};
use crate::relay::{ChainError, Hop, RelayTarget, SetupKey, set_up_chain};

/// Endpoint whose socket reaches the peer over relays; each route has a socket of its own.
#[derive(Debug)]
pub(crate) struct RoutedEndpoint {
    endpoint: Endpoint,
    /// Address of the first relay.
    first: SocketAddr,
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
    #[error("relay {relay} (hop {} of {hops}) {}", error.hop + 1, error.error)]
    Relay { relay: String, hops: usize, error: ChainError },
}

impl RoutedEndpoint {
    /// Opens a socket and sets up the relays of a route, hop by hop.
    pub(crate) async fn open(
        target: &PathTarget,
        relays: &[RelayTarget],
        key: &SetupKey,
    ) -> Result<Self, RouteError> {
        let mut hops = Vec::new();
        for relay in relays {
            let address = resolve(&relay.address, &target.binding).await?;
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
        set_up_chain(&socket, key, &hops, destination).await.map_err(|error| RouteError::Relay {
            relay: relays[error.hop].to_string(),
            hops: relays.len(),
            error,
        })?;
        let socket = socket.into_std().map_err(failed)?;
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime));
        let relays = relays.iter().map(ToString::to_string).collect();
        Ok(Self { endpoint: endpoint.map_err(failed)?, first, relays })
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
        connect_over(&self.endpoint, self.first, config, request, Some(self.relays.clone())).await
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
