//! Valid and invalid responses: their framing, and the reuse of their connection.

use http::StatusCode;
use http_body::Body as _;
use tokio::io::AsyncReadExt;
use tokio::task::yield_now;

use super::*;

/// State of a connection after its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reuse {
    Reusable,
    Closed,
}
use Reuse::{Closed, Reusable};

/// Sends a request to a server that writes `chunks` one after the other; returns the parsed response.
async fn send_and_read(
    chunks: &[&str],
    request: &Request<Bytes>,
) -> Result<(StatusCode, String, Reuse), UpstreamError> {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        for chunk in chunks {
            peer.try_write(chunk).await;
            // Lets the client read this chunk on its own.
            for _ in 0..4 {
                yield_now().await;
            }
        }
        peer
    };
    let reading = async {
        let response = upstream.send(&origin, request).await?;
        Ok((response.status(), rest(response).await?))
    };
    let (_peer, read) = join!(serving, reading);
    let stats = upstream.stats();
    assert_eq!(stats.active_connections, 0, "a connection is leaked: {read:?}");
    let (status, text) = read?;
    Ok((status, text, if stats.idle_connections == 1 { Reusable } else { Closed }))
}

async fn response_to(raw: &str) -> Result<(StatusCode, String, Reuse), UpstreamError> {
    send_and_read(&[raw], &request("{}")).await
}

/// Checks that a response is parsed the same wherever it is cut into chunks.
async fn assert_same_wherever_cut(raw: &str, expected: (StatusCode, &str, Reuse)) {
    for at in 1..raw.len() {
        let (status, text, reuse) = send_and_read(&[&raw[..at], &raw[at..]], &request("{}")).await.unwrap();
        assert_eq!((status, &*text, reuse), expected, "cut at {at}: {raw}");
    }
    let bytes: Vec<&str> = (0..raw.len()).map(|at| &raw[at..=at]).collect();
    let (status, text, reuse) = send_and_read(&bytes, &request("{}")).await.unwrap();
    assert_eq!((status, &*text, reuse), expected, "byte by byte: {raw}");
}

#[tokio::test]
async fn chunk_extensions_and_trailers_are_skipped_wherever_the_response_is_cut() {
    let raw = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                5;note=1\r\nfirst\r\nA \r\n, second, \r\n0004\r\nlast\r\n0\r\nx: y\r\n\r\n";
    assert_same_wherever_cut(raw, (StatusCode::OK, "first, second, last", Reusable)).await;
}

#[tokio::test]
async fn a_body_with_a_length_is_the_same_wherever_the_response_is_cut() {
    let raw = "HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nx: y\r\n\r\nfirst";
    assert_same_wherever_cut(raw, (StatusCode::NOT_FOUND, "first", Reusable)).await;
}

#[tokio::test]
async fn interim_responses_are_skipped_wherever_the_response_is_cut() {
    let raw = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n\
                HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    assert_same_wherever_cut(raw, (StatusCode::OK, "ok", Reusable)).await;
}

#[tokio::test]
async fn endless_interim_responses_are_malformed() {
    let interim = "HTTP/1.1 102 Processing\r\n\r\n".repeat(20_000);
    let response = response_to(&interim).await;
    assert!(matches!(response, Err(UpstreamError::Malformed { .. })), "{response:?}");
}

#[tokio::test]
async fn a_response_with_ambiguous_framing_is_malformed() {
    for raw in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nok",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: y\n\ncontent-length: 2\r\n\r\nok",
    ] {
        let response = response_to(raw).await;
        assert!(matches!(response, Err(UpstreamError::Malformed { .. })), "{raw}: {response:?}");
    }
}

#[tokio::test]
async fn invalid_chunks_truncate_the_response() {
    for raw in [
        "x\r\n",
        "-1\r\n",
        "0x2\r\nok\r\n0\r\n\r\n",
        "2\r\nokay\r\n0\r\n\r\n",
        "2\nok\r\n0\r\n\r\n",
        "2;a\rb\r\nok\r\n0\r\n\r\n",
        "10000000000000000\r\nok",
        "FFFFFFFFFFFFFFFFF\r\nok",
    ] {
        let response =
            response_to(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{raw}")).await;
        assert!(matches!(response, Err(UpstreamError::Truncated { .. })), "{raw}: {response:?}");
    }
    for endless in [format!("2;{}", "x".repeat(100_000)), format!("0\r\n{}", "x: y\r\n".repeat(10_000))] {
        let raw = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{endless}");
        let response = response_to(&raw).await;
        assert!(matches!(response, Err(UpstreamError::Truncated { .. })), "{response:?}");
    }
}

#[tokio::test]
async fn a_response_that_cannot_have_a_body_has_none_whatever_its_content_length() {
    let head = Request::head("/v1/models").body(Bytes::new()).unwrap();
    for (raw, request, status, reuse) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", &head, 200, Reusable),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", &head, 200, Reusable),
        ("HTTP/1.1 200 OK\r\n\r\n", &head, 200, Reusable),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", &request("{}"), 304, Reusable),
        ("HTTP/1.1 204 No Content\r\n\r\n", &request("{}"), 204, Reusable),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nfirst", &request("{}"), 204, Closed),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", &request("{}"), 204, Closed),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", &request("{}"), 200, Reusable),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(send_and_read(&[raw], request).await, Ok((status, String::new(), reuse)), "{raw}");
    }
}

#[tokio::test]
async fn version_and_connection_header_decide_reuse() {
    for (raw, reuse) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", Reusable),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: Keep-Alive, CLOSE\r\n\r\nok", Closed),
        ("HTTP/1.1 200 OK\r\nconnection: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", Closed),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", Closed),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok", Reusable),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nmore", Closed),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok\r\n", Closed),
    ] {
        assert_eq!(response_to(raw).await, Ok((StatusCode::OK, "ok".to_owned(), reuse)), "{raw}");
    }
}

#[tokio::test]
async fn the_length_of_a_head_is_limited() {
    let head =
        |len: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: {}\r\n\r\nok", "x".repeat(len));
    assert_eq!(response_to(&head(200_000)).await, Ok((StatusCode::OK, "ok".to_owned(), Reusable)));
    let response = response_to(&head(400_000)).await;
    assert!(matches!(response, Err(UpstreamError::Malformed { .. })), "{response:?}");
}

/// Returns a request larger than the socket buffers.
fn large_request() -> Request<Bytes> {
    request(vec![b'x'; 32 << 20])
}

#[tokio::test]
async fn an_early_response_is_read_and_its_connection_closed() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.write("HTTP/1.1 413 Payload Too Large\r\ncontent-length: 8\r\n\r\ntoo much").await;
        peer
    };
    let large = large_request();
    let (peer, response) = join!(serving, upstream.send(&origin, &large));
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(rest(response).await.as_deref(), Ok("too much"));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 0));
    peer.closed().await;
}

#[tokio::test]
async fn a_request_is_still_sent_while_its_response_is_read() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let large = large_request();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
        let mut remaining = large.body().len();
        let mut bytes = vec![0; 1 << 16];
        let mut head = true;
        while remaining > 0 {
            let read = peer.stream.read(&mut bytes).await.unwrap();
            let end = bytes[..read].windows(4).position(|four| four == b"\r\n\r\n").filter(|_| head);
            remaining -= read - end.map_or(0, |end| end + 4);
            head = false;
        }
        peer.write("4\r\nlast\r\n0\r\n\r\n").await;
        peer
    };
    let reading = async { rest(upstream.send(&origin, &large).await?).await };
    let (_peer, read) = join!(serving, reading);
    assert_eq!(read.as_deref(), Ok("firstlast"));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 1));
}

#[tokio::test]
async fn a_response_from_a_peer_that_stops_reading_is_received() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.write("HTTP/1.1 400 Bad Request\r\n\r\nno").await;
        // The server stops reading an invalid request and closes its side, without a reset.
        tokio::io::AsyncWriteExt::shutdown(&mut peer.stream).await.unwrap();
        peer
    };
    let large = large_request();
    let (_peer, response) = join!(serving, upstream.send(&origin, &large));
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(rest(response).await.as_deref(), Ok("no"));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 0));
}

#[tokio::test]
async fn a_request_is_not_resent_after_an_interim_response() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        peer.request().await;
        peer.write("HTTP/1.1 102 Processing\r\n\r\n").await;
        drop(peer);
    };
    let ((), response) = join!(serving, read(&upstream, &origin));
    assert!(matches!(response, Err(UpstreamError::Closed { .. })), "{response:?}");
    assert_eq!(upstream.stats().connections_created, 1);
}

#[tokio::test]
async fn bytes_after_a_chunked_response_are_not_read_as_the_next_response() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let (mut peer, mut body) = stream(&upstream, &stub).await;
    peer.write(&format!("0\r\n\r\n{}", stub::ok_response("smuggled"))).await;
    assert!(body.frame().await.is_none());
    assert!(body.is_end_stream());
    assert_eq!(upstream.stats().idle_connections, 0);
    first_exchange(&upstream, &stub).await;
    peer.closed().await;
}
