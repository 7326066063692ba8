//! Opens sockets to the server: name resolution, TCP or unix socket, TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::config::{ConnectConfig, Encryption, ServerAddress};
use crate::error::ConnectError;
use crate::transport::{Peer, Transport};

/// Interval of TCP keep-alive probes, so that a vanished server is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Connects to the configured server; tries the addresses of its name in turn.
pub(crate) async fn open(config: &ConnectConfig) -> Result<(Transport, Peer), ConnectError> {
    let (host, port) = match &config.server {
        ServerAddress::Unix(path) => return open_unix(path).await,
        ServerAddress::Tcp { host, port } => (host.as_str(), *port),
    };
    let unresolved = |reason: String| ConnectError::Resolve { host: host.to_owned(), reason };
    let addresses = lookup_host((host, port)).await.map_err(|error| unresolved(error.to_string()))?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    let deadline = Instant::now() + config.connect_timeout;
    let mut last = unresolved("no address".to_owned());
    let mut remaining = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let share = deadline.saturating_duration_since(Instant::now()) / remaining;
        remaining -= 1;
        last = match timeout(share, open_tcp(config, address)).await {
            Ok(Ok(transport)) => return Ok((transport, Peer::Tcp(address))),
            Ok(Err(error @ ConnectError::Tls { .. })) => return Err(error),
            Ok(Err(error)) => error,
            Err(_) => ConnectError::Timeout(config.connect_timeout),
        };
    }
    Err(last)
}

/// Connects to the same server, with the same use of TLS, to cancel a statement or terminate a process.
pub(crate) async fn open_again(config: &ConnectConfig, peer: &Peer) -> Result<Transport, ConnectError> {
    match peer {
        Peer::Tcp(address) => open_tcp(config, *address).await,
        Peer::Unix(path) => open_unix(path).await.map(|(transport, _)| transport),
    }
}

async fn open_unix(path: &Path) -> Result<(Transport, Peer), ConnectError> {
    match UnixStream::connect(path).await {
        Ok(stream) => Ok((Transport::Unix(stream), Peer::Unix(path.to_owned()))),
        Err(error) => {
            Err(ConnectError::Unreachable { address: path.display().to_string(), reason: error.to_string() })
        }
    }
}

async fn open_tcp(config: &ConnectConfig, address: SocketAddr) -> Result<Transport, ConnectError> {
    let unreachable = |error: std::io::Error| ConnectError::Unreachable {
        address: address.to_string(),
        reason: error.to_string(),
    };
    let mut stream = TcpStream::connect(address).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(unreachable)?;
    let tls = match &config.encryption {
        Encryption::Disabled => return Ok(Transport::Tcp(stream)),
        Encryption::Preferred(tls) | Encryption::Required(tls) => tls,
    };
    if offers_tls(&mut stream).await.map_err(unreachable)? {
        return start_tls(config, tls, stream).await;
    }
    match &config.encryption {
        Encryption::Required(_) => {
            Err(ConnectError::Tls { reason: "the server does not offer TLS".to_owned() })
        }
        Encryption::Preferred(_) | Encryption::Disabled => Ok(Transport::Tcp(stream)),
    }
}

/// Asks the server for TLS; reads exactly one byte, so that bytes before the handshake cannot be taken for encrypted ones.
async fn offers_tls(stream: &mut TcpStream) -> std::io::Result<bool> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    Ok(stream.read_u8().await? == b'S')
}

async fn start_tls(
    config: &ConnectConfig,
    tls: &Arc<ClientConfig>,
    stream: TcpStream,
) -> Result<Transport, ConnectError> {
    let failed = |reason: String| ConnectError::Tls { reason };
    let host = match &config.server {
        ServerAddress::Tcp { host, .. } => host.clone(),
        ServerAddress::Unix(_) => return Ok(Transport::Tcp(stream)),
    };
    let name = ServerName::try_from(host).map_err(|error| failed(error.to_string()))?;
    let connecting = TlsConnector::from(tls.clone()).connect(name, stream);
    let stream = connecting.await.map_err(|error| failed(error.to_string()))?;
    Ok(Transport::Tls(Box::new(stream)))
}
