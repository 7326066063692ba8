//! Requests that are never sent twice.

use core::time::Duration;

use evenkeel_upstream::{HeaderFilter, SendOnceError};
use http::HeaderValue;

use super::*;

async fn send_once(upstream: &Upstream, origin: &Origin) -> Result<Response<UpstreamBody>, SendOnceError> {
    let ticket = HeaderValue::from_static("one");
    let filter = HeaderFilter { keep: |_| true, add: &[("x-ticket", &ticket)] };
    upstream.send_once(origin, &request("{}"), filter).await
}

#[tokio::test]
async fn a_kept_alive_connection_that_closes_after_the_request_is_an_unknown_outcome() {
    let stub = Stub::start().await;
    let request_timeout = Duration::from_secs(5);
    let upstream = upstream(ConnectionPoolConfig { request_timeout, ..defaults() });
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        let request = peer.request().await;
        drop(peer);
        request
    };
    let (request, response) = join!(serving, send_once(&upstream, &origin));
    assert!(request.contains("x-ticket: one\r\n"), "{request}");
    assert!(
        matches!(response, Err(SendOnceError::OutcomeUnknown(UpstreamError::Closed { .. }))),
        "{response:?}"
    );
    assert_eq!(upstream.stats().connections_created, 1);
}

#[tokio::test]
async fn a_kept_alive_connection_that_was_closed_before_is_replaced() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    drop(first_exchange(&upstream, &stub).await);
    while upstream.stats().idle_connections != 0 {
        tokio::task::yield_now().await;
    }
    let serving = async {
        let mut peer = stub.accept().await;
        peer.respond("two").await;
        peer
    };
    let (_peer, response) = join!(serving, send_once(&upstream, &origin));
    assert_eq!(rest(response.unwrap()).await.as_deref(), Ok("two"));
}

#[tokio::test]
async fn a_new_connection_that_closes_after_the_request_is_an_unknown_outcome() {
    for part_of_response in ["", "HTTP/1.1 200 OK\r\ncont", "not HTTP\r\n\r\n"] {
        let stub = Stub::start().await;
        let upstream = upstream(defaults());
        let origin = stub.origin();
        let serving = async {
            let mut peer = stub.accept().await;
            peer.request().await;
            peer.write(part_of_response).await;
        };
        let ((), response) = join!(serving, send_once(&upstream, &origin));
        assert!(matches!(response, Err(SendOnceError::OutcomeUnknown(_))), "{response:?}");
        assert_eq!(upstream.stats().connections_created, 1);
    }
}

#[tokio::test]
async fn a_peer_that_reads_and_stays_silent_is_an_unknown_outcome() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { request_timeout: Duration::from_millis(1), ..defaults() });
    let origin = stub.origin();
    let response = send_once(&upstream, &origin).await;
    assert!(matches!(response, Err(SendOnceError::OutcomeUnknown(UpstreamError::Timeout))), "{response:?}");
}

#[tokio::test]
async fn a_request_to_a_closed_port_was_not_sent() {
    let origin = Stub::start().await.origin();
    let response = send_once(&upstream(defaults()), &origin).await;
    assert!(matches!(response, Err(SendOnceError::NotSent(UpstreamError::Connect { .. }))), "{response:?}");
}
