//! Requests to nodes, and the connections they go over.

use bytes::Bytes;
use evenkeel_llm::{Origin, SendError, TlsRoots, Upstream, UpstreamBody};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::join;

use crate::stub::Stub;

fn upstream(settings: ConnectionPoolConfig) -> Upstream {
    Upstream::new(settings, TlsRoots::default())
}

fn defaults() -> ConnectionPoolConfig {
    ConnectionPoolConfig::default()
}

async fn ask(upstream: &Upstream, origin: &Origin) -> Result<Response<UpstreamBody>, SendError> {
    let request = Request::post("/v1/chat/completions").body(Full::new(Bytes::from_static(b"{}"))).unwrap();
    upstream.send(origin, request).await
}

/// Asks, and reads the answer to its end.
async fn read(upstream: &Upstream, origin: &Origin) -> Result<String, SendError> {
    let body = ask(upstream, origin).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_connection_is_used_again_once_its_answer_was_read() {
    let (stub, upstream) = (Stub::start().await, upstream(defaults()));
    let origin = stub.origin();
    let (mut peer, first) = join!(
        async {
            let mut peer = stub.accept().await;
            peer.answer("one").await;
            peer
        },
        read(&upstream, &origin)
    );
    assert_eq!(first.as_deref(), Ok("one"));
    assert_eq!(upstream.stats().idle_connections, 1);
    let (request, second) = join!(peer.answer("two"), read(&upstream, &origin));
    assert_eq!(second.as_deref(), Ok("two"));
    assert!(request.starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
    assert!(request.ends_with("content-length: 2\r\n\r\n{}"), "{request}");
    let stats = upstream.stats();
    assert_eq!((stats.connections_created, stats.connections_reused), (1, 1));
    assert_eq!((stats.active_connections, stats.idle_connections), (0, 1));
}
