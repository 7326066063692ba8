//! Tests of the HTTP client over real sockets on loopback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod checks;
mod corpus;
mod failures;
mod keep_alive;
mod links;
mod parsing;
mod responses;
mod send_once;
mod stub;
mod times;
mod tls;

use bytes::Bytes;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_upstream::{Origin, TlsRoots, Upstream, UpstreamBody, UpstreamError};
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::join;

use crate::stub::{Peer, Stub};

fn upstream(settings: ConnectionPoolConfig) -> Upstream {
    Upstream::new(settings, TlsRoots::default())
}

fn defaults() -> ConnectionPoolConfig {
    ConnectionPoolConfig::default()
}

fn request(body: impl Into<Bytes>) -> Request<Bytes> {
    Request::post("/v1/chat/completions").body(body.into()).unwrap()
}

async fn send(upstream: &Upstream, origin: &Origin) -> Result<Response<UpstreamBody>, UpstreamError> {
    upstream.send(origin, &request("{}")).await
}

/// Sends a request and reads the response to its end.
async fn read(upstream: &Upstream, origin: &Origin) -> Result<String, UpstreamError> {
    rest(send(upstream, origin).await?).await
}

async fn rest(response: Response<UpstreamBody>) -> Result<String, UpstreamError> {
    let body = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

/// Reads one chunk.
async fn chunk(body: &mut UpstreamBody) -> Result<Bytes, UpstreamError> {
    Ok(body.frame().await.expect("the body continues")?.into_data().expect("the frame is data"))
}

/// Exchanges one request on a new connection; returns the server's end of it.
async fn first_exchange(upstream: &Upstream, stub: &Stub) -> Peer {
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.respond("one").await;
        peer
    };
    let (peer, read) = join!(serving, read(upstream, &origin));
    assert_eq!(read.as_deref(), Ok("one"));
    peer
}

/// Starts a chunked response on a new connection, of which `first` was read.
async fn stream(upstream: &Upstream, stub: &Stub) -> (Peer, UpstreamBody) {
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
        peer
    };
    let (peer, response) = join!(serving, send(upstream, &origin));
    let mut body = response.unwrap().into_body();
    assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"first"[..]));
    (peer, body)
}
