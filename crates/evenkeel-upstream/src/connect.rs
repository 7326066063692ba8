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

use super::{Origin, UpstreamError, after};

/// What a connection runs over.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects, within `connect_timeout` for everything together.
pub(super) async fn connect(
    origin: &Origin,
    settings: &ConnectionPoolConfig,
    tls: &TlsConnector,
) -> Result<Transport, UpstreamError> {
    let by = after(settings.connect_timeout);
    let connecting = async {
        let stream = reach(resolve(origin).await?, by).await?;
        prepare(&stream, settings).map_err(|error| UpstreamError::Connect { error: error.to_string() })?;
        let Some(name) = origin.tls_name() else { return Ok(Transport::Plain(stream)) };
        let stream = tls.connect(name.clone(), stream).await;
        let stream = stream.map_err(|error| UpstreamError::Tls { error: error.to_string() })?;
        Ok(Transport::Tls(Box::new(stream)))
    };
    timeout_at(by, connecting).await.unwrap_or(Err(UpstreamError::ConnectTimeout))
}

async fn resolve(origin: &Origin) -> Result<Vec<SocketAddr>, UpstreamError> {
    match lookup_host(origin.address()).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(UpstreamError::Resolve { error: error.to_string() }),
    }
}

/// Tries addresses in turn; each may take an equal part of the time that is left.
async fn reach(addresses: Vec<SocketAddr>, by: Instant) -> Result<TcpStream, UpstreamError> {
    let mut last = UpstreamError::Resolve { error: "no address".to_owned() };
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let part = by.saturating_duration_since(Instant::now()) / left;
        left -= 1;
        last = match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => UpstreamError::Connect { error: format!("{address}: {error}") },
            Err(_) => UpstreamError::ConnectTimeout,
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

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::TlsRoots;

    async fn connected(settings: ConnectionPoolConfig) -> TcpStream {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let origin = Origin::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let tls = TlsConnector::from(TlsRoots::default().into_config());
        match connect(&origin, &settings, &tls).await.unwrap() {
            Transport::Plain(stream) => stream,
            Transport::Tls(_) => panic!("nobody asked for TLS"),
        }
    }

    #[tokio::test]
    async fn keepalive_is_asked_for_as_often_as_set() {
        let tcp_keepalive = Duration::from_secs(17);
        let stream = connected(ConnectionPoolConfig { tcp_keepalive, ..Default::default() }).await;
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), tcp_keepalive);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), tcp_keepalive);
    }

    #[tokio::test]
    async fn keepalive_below_a_second_is_a_second_and_none_is_none() {
        let often = ConnectionPoolConfig { tcp_keepalive: Duration::from_millis(1), ..Default::default() };
        let stream = connected(often).await;
        assert_eq!(SockRef::from(&stream).tcp_keepalive_time().unwrap(), Duration::from_secs(1));
        let never = ConnectionPoolConfig { tcp_keepalive: Duration::ZERO, ..Default::default() };
        assert!(!SockRef::from(&connected(never).await).keepalive().unwrap());
    }

    #[tokio::test]
    async fn nodelay_is_as_set() {
        for tcp_nodelay in [true, false] {
            let stream = connected(ConnectionPoolConfig { tcp_nodelay, ..Default::default() }).await;
            assert_eq!(stream.nodelay().unwrap(), tcp_nodelay);
        }
    }

    #[tokio::test]
    async fn every_address_is_tried() {
        let gone = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let there = listener.local_addr().unwrap();
        let by = after(Duration::from_secs(60));
        assert_eq!(reach(vec![gone, there], by).await.unwrap().peer_addr().unwrap(), there);
        let refused = reach(vec![gone, gone], by).await.map(|_| ());
        assert!(matches!(refused, Err(UpstreamError::Connect { .. })), "{refused:?}");
        assert!(matches!(reach(vec![], by).await, Err(UpstreamError::Resolve { .. })));
    }
}
