//! Timeouts, on a paused clock.

use evenkeel_policy::time::Duration;
use tokio::time::{Instant, advance, pause, resume};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Awaits a future on a paused clock; returns how far the clock advanced.
async fn measured<T>(waiting: impl Future<Output = T>) -> (T, Duration) {
    pause();
    let started = Instant::now();
    let done = waiting.await;
    (done, started.elapsed())
}

fn assert_about(passed: Duration, expected: Duration) {
    // Timers are rounded up to milliseconds.
    assert!(expected <= passed && passed <= expected + SECOND / 100, "{passed:?}, not {expected:?}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_idle_timeout() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { idle_timeout: 7 * SECOND, ..defaults() });
    let peer = first_exchange(&upstream, &stub).await;
    let ((), passed) = measured(peer.closed()).await;
    assert_about(passed, 7 * SECOND);
    assert_eq!(upstream.stats().idle_connections, 0);
}

#[tokio::test]
async fn an_idle_connection_is_reused_until_idle_timeout() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { idle_timeout: 7 * SECOND, ..defaults() });
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    advance_clock(6 * SECOND).await;
    let (_, response) = join!(peer.respond("two"), read(&upstream, &origin));
    assert_eq!(response.as_deref(), Ok("two"));
    // Its use restarted the idle timeout.
    advance_clock(6 * SECOND).await;
    let (_, response) = join!(peer.respond("three"), read(&upstream, &origin));
    assert_eq!(response.as_deref(), Ok("three"));
    advance_clock(8 * SECOND).await;
    first_exchange(&upstream, &stub).await;
    assert_eq!(upstream.stats().connections_created, 2);
}

/// Advances the clock without waiting.
async fn advance_clock(duration: Duration) {
    pause();
    advance(duration).await;
    resume();
}

#[tokio::test]
async fn connecting_times_out_after_connect_timeout() {
    let upstream = upstream(ConnectionPoolConfig { connect_timeout: 3 * SECOND, ..defaults() });
    let (_listener, _queue, origin) = full_host();
    let (response, passed) = measured(send(&upstream, &origin)).await;
    assert_eq!(response.err(), Some(UpstreamError::ConnectTimeout));
    assert_about(passed, 3 * SECOND);
}

/// Creates a listener with a full accept queue, which ignores further connections.
fn full_host() -> (socket2::Socket, Vec<socket2::Socket>, Origin) {
    use socket2::{Domain, SockAddr, Socket, Type};
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
    listener.bind(&SockAddr::from(any)).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let queue = (0..4).map(|_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&address);
        socket
    });
    let queue = queue.collect();
    let url = format!("http://{}", address.as_socket().unwrap());
    (listener, queue, Origin::parse(&url).unwrap())
}

#[tokio::test]
async fn connect_timeout_includes_tls() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { connect_timeout: 3 * SECOND, ..defaults() });
    let origin = Origin::parse(&stub.url().replace("http:", "https:")).unwrap();
    let (response, passed) = measured(send(&upstream, &origin)).await;
    assert_eq!(response.err(), Some(UpstreamError::ConnectTimeout));
    assert_about(passed, 3 * SECOND);
}

#[tokio::test]
async fn a_silent_peer_times_out_after_request_timeout() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { request_timeout: 20 * SECOND, ..defaults() });
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        pause();
        let started = Instant::now();
        peer.closed().await;
        started.elapsed()
    };
    let (passed, response) = join!(serving, send(&upstream, &origin));
    assert_eq!(response.err(), Some(UpstreamError::Timeout));
    // The timeout started when the request was sent, shortly before the clock was paused.
    assert!(19 * SECOND < passed && passed <= 20 * SECOND + SECOND / 100, "{passed:?}");
    assert_eq!(upstream.stats().active_connections, 0);
}

#[tokio::test]
async fn request_timeout_applies_to_every_chunk() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { request_timeout: 20 * SECOND, ..defaults() });
    let (mut peer, mut body) = stream(&upstream, &stub).await;
    for _ in 0..3 {
        advance_clock(19 * SECOND).await;
        peer.write("4\r\nmore\r\n").await;
        assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"more"[..]));
    }
    let (result, passed) = measured(chunk(&mut body)).await;
    assert_eq!(result, Err(UpstreamError::Timeout));
    assert_about(passed, 20 * SECOND);
    peer.closed().await;
}

#[tokio::test]
async fn time_without_a_reader_does_not_count() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { request_timeout: 20 * SECOND, ..defaults() });
    let (mut peer, mut body) = stream(&upstream, &stub).await;
    advance_clock(100 * SECOND).await;
    let (read, ()) = join!(chunk(&mut body), peer.write("4\r\nmore\r\n"));
    assert_eq!(read.as_deref(), Ok(&b"more"[..]));
}

#[tokio::test]
async fn a_timeout_of_duration_max_never_fires() {
    let stub = Stub::start().await;
    let forever = Duration::MAX;
    let settings = ConnectionPoolConfig {
        idle_timeout: forever,
        connect_timeout: forever,
        request_timeout: forever,
        tcp_keepalive: Duration::ZERO,
        ..defaults()
    };
    let upstream = upstream(settings);
    first_exchange(&upstream, &stub).await;
    assert_eq!(upstream.stats().idle_connections, 1);
}
