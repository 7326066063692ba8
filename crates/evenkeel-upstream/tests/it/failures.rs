//! Failed exchanges: their error variants, and when a request is resent.

use http::StatusCode;

use super::*;

#[tokio::test]
async fn a_request_is_resent_if_the_reused_connection_was_closed() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    drop(first_exchange(&upstream, &stub).await);
    first_exchange(&upstream, &stub).await;
    assert_eq!((upstream.stats().connections_created, upstream.stats().connections_reused), (2, 0));
}

#[tokio::test]
async fn a_request_is_resent_if_the_reused_connection_closes_without_a_response() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        let first = peer.request().await;
        drop(peer);
        let mut other = stub.accept().await;
        let second = other.respond("two").await;
        assert_eq!(first, second);
        other
    };
    let (_other, response) = join!(serving, read(&upstream, &origin));
    assert_eq!(response.as_deref(), Ok("two"));
    assert_eq!((upstream.stats().connections_created, upstream.stats().connections_reused), (2, 0));
}

#[tokio::test]
async fn a_request_is_resent_once() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        peer.request().await;
        drop(peer);
        stub.accept().await.request().await;
    };
    let ((), response) = join!(serving, read(&upstream, &origin));
    assert!(matches!(response, Err(UpstreamError::Closed { .. })), "{response:?}");
    assert_eq!(upstream.stats().connections_created, 2);
}

#[tokio::test]
async fn a_request_is_not_resent_after_part_of_a_head() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        peer.request().await;
        peer.write("HTTP/1.1 200 OK\r\ncont").await;
        drop(peer);
    };
    let ((), response) = join!(serving, read(&upstream, &origin));
    assert!(matches!(response, Err(UpstreamError::Closed { .. })), "{response:?}");
    assert_eq!(upstream.stats().connections_created, 1);
}

#[tokio::test]
async fn a_new_connection_that_closes_without_a_response_is_an_error() {
    let response = response_to("").await;
    assert!(matches!(response, Err(UpstreamError::Closed { .. })), "{response:?}");
}

#[tokio::test]
async fn a_response_that_is_not_http_is_malformed() {
    for raw in ["220 mail ready\r\n\r\n", "HTTP/1.1 999999 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n"]
    {
        let response = response_to(raw).await;
        assert!(matches!(response, Err(UpstreamError::Malformed { .. })), "{raw}: {response:?}");
    }
}

#[tokio::test]
async fn an_endless_head_is_malformed() {
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(1 << 20));
    let response = response_to(&endless).await;
    assert!(matches!(response, Err(UpstreamError::Malformed { .. })), "{response:?}");
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
    let response = response_to(&many).await;
    assert!(matches!(response, Err(UpstreamError::Malformed { .. })), "{response:?}");
}

#[tokio::test]
async fn a_body_shorter_than_announced_is_truncated() {
    let bodies = [
        "content-length: 10\r\n\r\nfive!",
        "transfer-encoding: chunked\r\n\r\n5\r\nfive!\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\nfive!\r\nnot a size\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\nfi",
    ];
    for raw in bodies {
        let response = response_to(&format!("HTTP/1.1 200 OK\r\n{raw}")).await;
        assert!(matches!(response, Err(UpstreamError::Truncated { .. })), "{raw}: {response:?}");
    }
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_complete() {
    let response = response_to("HTTP/1.1 200 OK\r\n\r\neverything").await;
    assert_eq!(response.as_deref(), Ok("everything"));
}

/// Reads the response of a server that closes the connection after it.
async fn response_to(raw: &str) -> Result<String, UpstreamError> {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.try_write(raw).await;
    };
    let ((), response) = join!(serving, read(&upstream, &origin));
    let stats = upstream.stats();
    assert_eq!((stats.active_connections, stats.idle_connections), (0, 0));
    response
}

#[tokio::test]
async fn a_response_sent_before_the_request_was_read_is_accepted() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.write("HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig").await;
        peer
    };
    let large = request(vec![b' '; 32 << 20]);
    let pending = upstream.send(&origin, &large);
    let (peer, response) = join!(serving, pending);
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(rest(response).await.as_deref(), Ok("big"));
    assert_eq!(
        upstream.stats().idle_connections,
        0,
        "the rest of the request would be taken for the next one's head"
    );
    peer.closed().await;
}

#[tokio::test]
async fn an_unknown_host_name_is_a_resolve_error() {
    // A label of more than 63 characters fails without a network request.
    let origin = Origin::parse(&format!("http://{}/", "x".repeat(64))).unwrap();
    let response = send(&upstream(defaults()), &origin).await;
    assert!(matches!(response, Err(UpstreamError::Resolve { .. })), "{response:?}");
}

#[tokio::test]
async fn a_closed_port_is_a_connect_error() {
    let origin = Stub::start().await.origin();
    let response = send(&upstream(defaults()), &origin).await;
    assert!(matches!(response, Err(UpstreamError::Connect { .. })), "{response:?}");
}
