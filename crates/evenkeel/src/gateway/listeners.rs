//! The listeners of a gateway: one for clients, and optionally one of their own for administration and metrics.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use evenkeel_server::listener::{DrainReport, Listener};
use evenkeel_server::metrics::ServerMetrics;
use evenkeel_server::route::Routes;
use evenkeel_server::tenant::{Authenticator, Exposure};
use evenkeel_server::tls::Tls;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::StartError;
use crate::config::ServerConfig;
use crate::data_dir::ServerUrls;

/// Bound ports that accept no connections yet.
pub(super) struct Listeners {
    public: Listener,
    admin: Option<Listener>,
    pub(super) address: SocketAddr,
    pub(super) urls: ServerUrls,
    pub(super) exposure: Exposure,
}

impl Listeners {
    pub(super) async fn bind(server: &ServerConfig, tls: Option<&Arc<Tls>>) -> Result<Self, StartError> {
        let (public, address) = bind(server, server.listen, tls).await?;
        let exposure =
            public.exposure().map_err(|error| StartError::Listen { address: server.listen, error })?;
        let url = client_url(address, tls.is_some());
        let Some(admin) = server.admin_listen else {
            let urls = ServerUrls { public: url.clone(), admin: url };
            return Ok(Self { public, admin: None, address, urls, exposure });
        };
        let (admin, admin_address) = bind(server, admin, tls).await?;
        let urls = ServerUrls { public: url, admin: client_url(admin_address, tls.is_some()) };
        Ok(Self { public, admin: Some(admin), address, urls, exposure })
    }

    /// Exports the metrics of all listeners together.
    pub(super) fn set_metrics(&mut self, metrics: &ServerMetrics) {
        for listener in [&mut self.public].into_iter().chain(&mut self.admin) {
            listener.set_metrics(metrics.clone());
        }
    }

    /// Serves in the background until the result is stopped or dropped.
    pub(super) fn serve(self, auth: &Arc<Authenticator>, routes: Routes) -> ServingListeners {
        let Some(admin) = self.admin else {
            return ServingListeners(vec![ServingListener::start(self.public, auth.clone(), routes)]);
        };
        let (public_routes, admin_routes) = routes.split_admin();
        ServingListeners(vec![
            ServingListener::start(self.public, auth.clone(), public_routes),
            ServingListener::start(admin, auth.clone(), admin_routes),
        ])
    }
}

async fn bind(
    server: &ServerConfig,
    address: SocketAddr,
    tls: Option<&Arc<Tls>>,
) -> Result<(Listener, SocketAddr), StartError> {
    let listen_error = |error| StartError::Listen { address, error };
    let listener =
        Listener::bind(address, tls.cloned(), server.limits.clone()).await.map_err(listen_error)?;
    let bound = listener.local_addr().map_err(listen_error)?;
    Ok((listener, bound))
}

/// Returns the URL of a listener for clients on this machine.
fn client_url(address: SocketAddr, tls: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

/// Listeners that serve; dropping them stops them.
#[derive(Debug)]
pub(super) struct ServingListeners(Vec<ServingListener>);

#[derive(Debug)]
struct ServingListener {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<DrainReport>>,
}

impl ServingListener {
    fn start(listener: Listener, auth: Arc<Authenticator>, routes: Routes) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            // Dropping the sender closes the channel and stops the listener too.
            listener.serve(auth, routes, async { stopped.await.unwrap_or_default() }).await
        });
        Self { stop, serving }
    }
}

impl ServingListeners {
    /// Closes the ports and drains the requests in flight.
    pub(super) async fn stop(self) -> io::Result<DrainReport> {
        let mut servings = Vec::new();
        for listener in self.0 {
            // Fails only if the listener has already ended.
            let _ = listener.stop.send(());
            servings.push(listener.serving);
        }
        let mut total = DrainReport { connections_cut: 0, requests_cut: 0 };
        for serving in servings {
            let report = serving.await.unwrap_or_else(|error| Err(io::Error::other(error)))?;
            total.connections_cut += report.connections_cut;
            total.requests_cut += report.requests_cut;
        }
        Ok(total)
    }
}
