//! What an answer may look like, where it ends, and what becomes of its connection.

use http::StatusCode;
use http_body::Body as _;
use tokio::io::AsyncReadExt;
use tokio::task::yield_now;

use super::*;

/// What became of a connection after its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Afterwards {
    Kept,
    Closed,
}
use Afterwards::{Closed, Kept};

/// Asks with this request a node that says these pieces one after the other, and tells what was understood.
async fn answer_in(
    pieces: &[&str],
    request: &Request<Bytes>,
) -> Result<(StatusCode, String, Afterwards), UpstreamError> {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        for piece in pieces {
            peer.try_say(piece).await;
            // Whoever reads gets to read this much alone.
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
    assert_eq!(stats.active_connections, 0, "a connection is left: {read:?}");
    let (status, text) = read?;
    Ok((status, text, if stats.idle_connections == 1 { Kept } else { Closed }))
}

async fn answer_to(said: &str) -> Result<(StatusCode, String, Afterwards), UpstreamError> {
    answer_in(&[said], &request("{}")).await
}

/// Cuts what a node says at every place, and sees that all is understood as if it were not cut.
async fn is_the_same_wherever_it_is_cut(said: &str, expected: (StatusCode, &str, Afterwards)) {
    for at in 1..said.len() {
        let (status, text, afterwards) =
            answer_in(&[&said[..at], &said[at..]], &request("{}")).await.unwrap();
        assert_eq!((status, &*text, afterwards), expected, "cut at {at}: {said}");
    }
    let bytes: Vec<&str> = (0..said.len()).map(|at| &said[at..=at]).collect();
    let (status, text, afterwards) = answer_in(&bytes, &request("{}")).await.unwrap();
    assert_eq!((status, &*text, afterwards), expected, "byte by byte: {said}");
}

#[tokio::test]
async fn chunks_with_notes_and_trailers_are_the_same_wherever_they_are_cut() {
    let said = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                5;note=1\r\nfirst\r\nA \r\n, second, \r\n0004\r\nlast\r\n0\r\nx: y\r\n\r\n";
    is_the_same_wherever_it_is_cut(said, (StatusCode::OK, "first, second, last", Kept)).await;
}

#[tokio::test]
async fn a_body_with_a_length_is_the_same_wherever_it_is_cut() {
    let said = "HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nx: y\r\n\r\nfirst";
    is_the_same_wherever_it_is_cut(said, (StatusCode::NOT_FOUND, "first", Kept)).await;
}

#[tokio::test]
async fn word_of_what_a_node_still_does_is_passed_over_wherever_it_is_cut() {
    let said = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n\
                HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    is_the_same_wherever_it_is_cut(said, (StatusCode::OK, "ok", Kept)).await;
}

#[tokio::test]
async fn a_node_that_never_comes_to_its_answer_is_not_listened_to_for_ever() {
    let words = "HTTP/1.1 102 Processing\r\n\r\n".repeat(20_000);
    let answer = answer_to(&words).await;
    assert!(matches!(answer, Err(UpstreamError::Malformed { .. })), "{answer:?}");
}

#[tokio::test]
async fn an_answer_has_one_length_or_is_malformed() {
    for said in [
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
        let answer = answer_to(said).await;
        assert!(matches!(answer, Err(UpstreamError::Malformed { .. })), "{said}: {answer:?}");
    }
}

#[tokio::test]
async fn chunks_that_are_none_cut_the_answer() {
    for said in [
        "x\r\n",
        "-1\r\n",
        "0x2\r\nok\r\n0\r\n\r\n",
        "2\r\nokay\r\n0\r\n\r\n",
        "2\nok\r\n0\r\n\r\n",
        "2;a\rb\r\nok\r\n0\r\n\r\n",
        "10000000000000000\r\nok",
        "FFFFFFFFFFFFFFFFF\r\nok",
    ] {
        let answer = answer_to(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{said}")).await;
        assert!(matches!(answer, Err(UpstreamError::Cut { .. })), "{said}: {answer:?}");
    }
    for endless in [format!("2;{}", "x".repeat(100_000)), format!("0\r\n{}", "x: y\r\n".repeat(10_000))] {
        let said = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{endless}");
        let answer = answer_to(&said).await;
        assert!(matches!(answer, Err(UpstreamError::Cut { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn an_answer_without_a_body_has_none_whatever_its_length_says() {
    let head = Request::head("/v1/models").body(Bytes::new()).unwrap();
    for (said, request, status, afterwards) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", &head, 200, Kept),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", &head, 200, Kept),
        ("HTTP/1.1 200 OK\r\n\r\n", &head, 200, Kept),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", &request("{}"), 304, Kept),
        ("HTTP/1.1 204 No Content\r\n\r\n", &request("{}"), 204, Kept),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nfirst", &request("{}"), 204, Closed),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", &request("{}"), 204, Closed),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", &request("{}"), 200, Kept),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(answer_in(&[said], request).await, Ok((status, String::new(), afterwards)), "{said}");
    }
}

#[tokio::test]
async fn a_connection_is_kept_as_version_and_header_say() {
    for (said, afterwards) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", Kept),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: Keep-Alive, CLOSE\r\n\r\nok", Closed),
        ("HTTP/1.1 200 OK\r\nconnection: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", Closed),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", Closed),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok", Kept),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nmore", Closed),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok\r\n", Closed),
    ] {
        assert_eq!(answer_to(said).await, Ok((StatusCode::OK, "ok".to_owned(), afterwards)), "{said}");
    }
}

#[tokio::test]
async fn a_head_may_be_as_long_as_its_limit_and_no_longer() {
    let head =
        |len: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: {}\r\n\r\nok", "x".repeat(len));
    assert_eq!(answer_to(&head(200_000)).await, Ok((StatusCode::OK, "ok".to_owned(), Kept)));
    let answer = answer_to(&head(400_000)).await;
    assert!(matches!(answer, Err(UpstreamError::Malformed { .. })), "{answer:?}");
}

/// More than a socket takes whose other end does not read.
fn much() -> Request<Bytes> {
    request(vec![b'x'; 32 << 20])
}

#[tokio::test]
async fn an_answer_that_does_not_wait_for_the_request_is_read_and_its_connection_closed() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.say("HTTP/1.1 413 Payload Too Large\r\ncontent-length: 8\r\n\r\ntoo much").await;
        peer
    };
    let much = much();
    let (peer, response) = join!(serving, upstream.send(&origin, &much));
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(rest(response).await.as_deref(), Ok("too much"));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 0));
    peer.closed().await;
}

#[tokio::test]
async fn a_request_goes_on_while_its_answer_is_read() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let much = much();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
        let mut left = much.body().len();
        let mut bytes = vec![0; 1 << 16];
        let mut head = true;
        while 0 < left {
            let read = peer.stream.read(&mut bytes).await.unwrap();
            let end = bytes[..read].windows(4).position(|four| four == b"\r\n\r\n").filter(|_| head);
            left -= read - end.map_or(0, |end| end + 4);
            head = false;
        }
        peer.say("4\r\nlast\r\n0\r\n\r\n").await;
        peer
    };
    let reading = async { rest(upstream.send(&origin, &much).await?).await };
    let (_peer, read) = join!(serving, reading);
    assert_eq!(read.as_deref(), Ok("firstlast"));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 1));
}

#[tokio::test]
async fn a_node_that_answers_and_closes_before_it_has_read_all_is_heard() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.say("HTTP/1.1 400 Bad Request\r\n\r\nno").await;
        // The request is read to where the node sees that it makes no sense, then no further: no reset, an end.
        tokio::io::AsyncWriteExt::shutdown(&mut peer.stream).await.unwrap();
        peer
    };
    let much = much();
    let (_peer, response) = join!(serving, upstream.send(&origin, &much));
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(rest(response).await.as_deref(), Ok("no"));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 0));
}

#[tokio::test]
async fn a_kept_connection_that_closes_after_word_of_an_answer_is_not_replaced() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        peer.request().await;
        peer.say("HTTP/1.1 102 Processing\r\n\r\n").await;
        drop(peer);
    };
    let ((), answer) = join!(serving, read(&upstream, &origin));
    assert!(matches!(answer, Err(UpstreamError::Closed { .. })), "{answer:?}");
    assert_eq!(upstream.stats().connections_created, 1);
}

#[tokio::test]
async fn what_follows_an_answer_in_chunks_answers_nobody() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let (mut peer, mut body) = stream(&upstream, &stub).await;
    peer.say(&format!("0\r\n\r\n{}", stub::whole("smuggled"))).await;
    assert!(body.frame().await.is_none());
    assert!(body.is_end_stream());
    assert_eq!(upstream.stats().idle_connections, 0);
    first_exchange(&upstream, &stub).await;
    peer.closed().await;
}
