//! A new connection: names to addresses, sockets with their options, TLS.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::net::SocketAddr;

use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::time::Duration;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Origin, SendError, after};

/// What a connection runs over.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects, within `connect_timeout` for everything together.
pub(super) async fn connect(
    origin: &Origin,
    settings: &ConnectionPoolConfig,
    tls: &TlsConnector,
) -> Result<Wire, SendError> {
    let by = after(settings.connect_timeout);
    let connecting = async {
        let stream = reach(origin, by).await?;
        prepare(&stream, settings).map_err(|error| SendError::Connect { error: error.to_string() })?;
        let Some(name) = origin.tls_name() else { return Ok(Wire::Plain(stream)) };
        let stream = tls.connect(name.clone(), stream).await;
        let stream = stream.map_err(|error| SendError::Tls { error: error.to_string() })?;
        Ok(Wire::Tls(Box::new(stream)))
    };
    timeout_at(by, connecting).await.unwrap_or(Err(SendError::ConnectTimeout))
}

/// Tries the host's addresses in turn; each may take an equal part of the time that is left.
async fn reach(origin: &Origin, by: Instant) -> Result<TcpStream, SendError> {
    let addresses = lookup_host(origin.address()).await;
    let addresses: Vec<SocketAddr> = match addresses {
        Ok(addresses) => addresses.collect(),
        Err(error) => return Err(SendError::Resolve { error: error.to_string() }),
    };
    let mut last = SendError::Resolve { error: "no address".to_owned() };
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let part = by.saturating_duration_since(Instant::now()) / left;
        left -= 1;
        last = match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => SendError::Connect { error: format!("{address}: {error}") },
            Err(_) => SendError::ConnectTimeout,
        };
    }
    Err(last)
}

fn prepare(stream: &TcpStream, settings: &ConnectionPoolConfig) -> io::Result<()> {
    stream.set_nodelay(settings.tcp_nodelay)?;
    if settings.tcp_keepalive.is_zero() {
        return Ok(());
    }
    // The kernel counts whole seconds, and refuses none.
    let every = settings.tcp_keepalive.max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(every).with_interval(every);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
