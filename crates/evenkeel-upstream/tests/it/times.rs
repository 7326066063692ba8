//! Settings that are times, on a clock that moves when everybody waits.

use evenkeel_policy::time::Duration;
use tokio::time::{Instant, advance, pause, resume};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Waits on a clock that moves at once, and tells how far.
async fn measured<T>(waiting: impl Future<Output = T>) -> (T, Duration) {
    pause();
    let began = Instant::now();
    let done = waiting.await;
    (done, began.elapsed())
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
async fn an_idle_connection_is_used_until_idle_timeout_and_not_after_it() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { idle_timeout: 7 * SECOND, ..defaults() });
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    pass(6 * SECOND).await;
    let (_, answer) = join!(peer.answer("two"), read(&upstream, &origin));
    assert_eq!(answer.as_deref(), Ok("two"));
    // Its time began anew with its use.
    pass(6 * SECOND).await;
    let (_, answer) = join!(peer.answer("three"), read(&upstream, &origin));
    assert_eq!(answer.as_deref(), Ok("three"));
    pass(8 * SECOND).await;
    first_exchange(&upstream, &stub).await;
    assert_eq!(upstream.stats().connections_created, 2);
}

/// Lets time pass with nobody waiting for it.
async fn pass(span: Duration) {
    pause();
    advance(span).await;
    resume();
}

#[tokio::test]
async fn connecting_ends_after_connect_timeout() {
    let upstream = upstream(ConnectionPoolConfig { connect_timeout: 3 * SECOND, ..defaults() });
    let (_listener, _queue, origin) = full_host();
    let (answer, passed) = measured(ask(&upstream, &origin)).await;
    assert_eq!(answer.err(), Some(UpstreamError::ConnectTimeout));
    assert_about(passed, 3 * SECOND);
}

/// A host that takes no further connections, and does not say so.
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
    let (answer, passed) = measured(ask(&upstream, &origin)).await;
    assert_eq!(answer.err(), Some(UpstreamError::ConnectTimeout));
    assert_about(passed, 3 * SECOND);
}

#[tokio::test]
async fn a_node_that_says_nothing_has_request_timeout() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { request_timeout: 20 * SECOND, ..defaults() });
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        pause();
        let began = Instant::now();
        peer.closed().await;
        began.elapsed()
    };
    let (passed, answer) = join!(serving, ask(&upstream, &origin));
    assert_eq!(answer.err(), Some(UpstreamError::Timeout));
    // It counts from when the request was handed over, a little before the clock stood still.
    assert!(19 * SECOND < passed && passed <= 20 * SECOND + SECOND / 100, "{passed:?}");
    assert_eq!(upstream.stats().active_connections, 0);
}

#[tokio::test]
async fn a_node_has_request_timeout_for_every_chunk() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { request_timeout: 20 * SECOND, ..defaults() });
    let (mut peer, mut body) = stream(&upstream, &stub).await;
    for _ in 0..3 {
        pass(19 * SECOND).await;
        peer.say("4\r\nmore\r\n").await;
        assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"more"[..]));
    }
    let (cut, passed) = measured(chunk(&mut body)).await;
    assert_eq!(cut, Err(UpstreamError::Timeout));
    assert_about(passed, 20 * SECOND);
    peer.closed().await;
}

#[tokio::test]
async fn the_time_in_which_nobody_listens_is_not_the_nodes() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { request_timeout: 20 * SECOND, ..defaults() });
    let (mut peer, mut body) = stream(&upstream, &stub).await;
    pass(100 * SECOND).await;
    let (read, ()) = join!(chunk(&mut body), peer.say("4\r\nmore\r\n"));
    assert_eq!(read.as_deref(), Ok(&b"more"[..]));
}

#[tokio::test]
async fn a_span_without_end_is_none() {
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
