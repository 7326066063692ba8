//! Opens connections: name resolution and TCP with its socket options, or a flow of a link; then TLS.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::net::SocketAddr;

use evenkeel_link::session::OpenFlowError;
use evenkeel_link::{FlowStream, Link};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::time::Duration;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{LinkLocalPolicy, Origin, UpstreamError, after};

/// Longest wait for a link that is down; shorter than the time limit of a health check, whose error then has the cause.
const LINK_WAIT_MAX: Duration = Duration::from_secs(1);

/// Byte stream of a connection.
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Flow(FlowStream),
    TlsFlow(Box<TlsStream<FlowStream>>),
}

/// Connects to an origin; all steps together take at most `connect_timeout`.
pub(super) async fn connect(
    origin: &Origin,
    settings: &ConnectionPoolConfig,
    link_local: LinkLocalPolicy,
    tls: &TlsConnector,
) -> Result<Transport, UpstreamError> {
    let deadline = after(settings.connect_timeout);
    let connecting = async {
        let stream = connect_any(link_local.retain(resolve(origin).await?)?, deadline).await?;
        set_options(&stream, settings)
            .map_err(|error| UpstreamError::Connect { error: error.to_string() })?;
        let Some(name) = origin.tls_name() else { return Ok(Transport::Plain(stream)) };
        let stream = tls.connect(name.clone(), stream).await.map_err(tls_error)?;
        Ok(Transport::Tls(Box::new(stream)))
    };
    timeout_at(deadline, connecting).await.unwrap_or(Err(UpstreamError::ConnectTimeout))
}

/// Opens a flow to an origin at the other side of a link, which connects to it when the flow arrives there.
pub(super) async fn connect_over_link(
    origin: &Origin,
    link: Option<Link>,
    settings: &ConnectionPoolConfig,
    tls: &TlsConnector,
) -> Result<Transport, UpstreamError> {
    let failed = |error: String| UpstreamError::Connect { error };
    let link = link.ok_or_else(|| failed("there is no such link".to_owned()))?;
    let connecting = async {
        if !link.wait_up(LINK_WAIT_MAX).await {
            return Err(failed("the link is down: none of its paths answers".to_owned()));
        }
        let stream = link.open_stream(&origin.link_target()).map_err(open_error)?;
        let Some(name) = origin.tls_name() else { return Ok(Transport::Flow(stream)) };
        let stream = tls.connect(name.clone(), stream).await.map_err(tls_error)?;
        Ok(Transport::TlsFlow(Box::new(stream)))
    };
    timeout(settings.connect_timeout, connecting).await.unwrap_or(Err(UpstreamError::ConnectTimeout))
}

fn open_error(error: OpenFlowError) -> UpstreamError {
    let text = error.to_string();
    match error {
        OpenFlowError::TooManyFlows { .. } | OpenFlowError::BudgetExhausted => {
            UpstreamError::LinkBusy { error: text }
        }
        OpenFlowError::TargetTooLong { .. }
        | OpenFlowError::LaneUnsupported { .. }
        | OpenFlowError::SessionEnded => UpstreamError::Connect { error: text },
    }
}

fn tls_error(error: io::Error) -> UpstreamError {
    flow_refusal(&error).unwrap_or_else(|| UpstreamError::Tls { error: error.to_string() })
}

/// Returns the error of a flow that the other side of a link refused, so that the peer has received nothing.
pub(super) fn flow_refusal(error: &io::Error) -> Option<UpstreamError> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(UpstreamError::Connect { error: error.to_string() }),
        io::ErrorKind::QuotaExceeded => Some(UpstreamError::LinkBusy { error: error.to_string() }),
        _ => None,
    }
}

async fn resolve(origin: &Origin) -> Result<Vec<SocketAddr>, UpstreamError> {
    match lookup_host(origin.address()).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(UpstreamError::Resolve { error: error.to_string() }),
    }
}

/// Tries the addresses in turn; each gets an equal share of the remaining time.
async fn connect_any(addresses: Vec<SocketAddr>, deadline: Instant) -> Result<TcpStream, UpstreamError> {
    let mut last = UpstreamError::Resolve { error: "no address".to_owned() };
    let mut remaining = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let share = deadline.saturating_duration_since(Instant::now()) / remaining;
        remaining -= 1;
        last = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => UpstreamError::Connect { error: format!("{address}: {error}") },
            Err(_) => UpstreamError::ConnectTimeout,
        };
    }
    Err(last)
}

fn set_options(stream: &TcpStream, settings: &ConnectionPoolConfig) -> io::Result<()> {
    stream.set_nodelay(settings.tcp_nodelay)?;
    if settings.tcp_keepalive.is_zero() {
        return Ok(());
    }
    // The kernel counts whole seconds, and rejects zero.
    let interval = settings.tcp_keepalive.max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

trait ByteStream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> ByteStream for T {}

impl Transport {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut dyn ByteStream> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
            Self::Flow(stream) => Pin::new(stream),
            Self::TlsFlow(stream) => Pin::new(stream),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buf)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
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
        let tls = TlsConnector::from(TlsRoots::default().into_client_config());
        match connect(&origin, &settings, LinkLocalPolicy::Refuse, &tls).await.unwrap() {
            Transport::Plain(stream) => stream,
            _ => panic!("connected with TLS or over a link to an http:// origin"),
        }
    }

    #[tokio::test]
    async fn the_keepalive_interval_is_set() {
        let tcp_keepalive = Duration::from_secs(17);
        let stream = connected(ConnectionPoolConfig { tcp_keepalive, ..Default::default() }).await;
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), tcp_keepalive);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), tcp_keepalive);
    }

    #[tokio::test]
    async fn a_keepalive_below_a_second_is_a_second_and_zero_turns_it_off() {
        let often = ConnectionPoolConfig { tcp_keepalive: Duration::from_millis(1), ..Default::default() };
        let stream = connected(often).await;
        assert_eq!(SockRef::from(&stream).tcp_keepalive_time().unwrap(), Duration::from_secs(1));
        let never = ConnectionPoolConfig { tcp_keepalive: Duration::ZERO, ..Default::default() };
        assert!(!SockRef::from(&connected(never).await).keepalive().unwrap());
    }

    #[tokio::test]
    async fn nodelay_is_set_as_configured() {
        for tcp_nodelay in [true, false] {
            let stream = connected(ConnectionPoolConfig { tcp_nodelay, ..Default::default() }).await;
            assert_eq!(stream.nodelay().unwrap(), tcp_nodelay);
        }
    }

    #[tokio::test]
    async fn every_address_is_tried() {
        let closed = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let open = listener.local_addr().unwrap();
        let deadline = after(Duration::from_secs(60));
        let stream = connect_any(vec![closed, open], deadline).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
        let refused = connect_any(vec![closed, closed], deadline).await.map(|_| ());
        assert!(matches!(refused, Err(UpstreamError::Connect { .. })), "{refused:?}");
        assert!(matches!(connect_any(vec![], deadline).await, Err(UpstreamError::Resolve { .. })));
    }
}
