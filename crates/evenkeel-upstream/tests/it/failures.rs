//! Every way in which a node does not answer.

use http::StatusCode;

use super::*;

#[tokio::test]
async fn a_kept_connection_that_its_node_has_closed_is_replaced() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    drop(first_exchange(&upstream, &stub).await);
    first_exchange(&upstream, &stub).await;
    assert_eq!((upstream.stats().connections_created, upstream.stats().connections_reused), (2, 0));
}

#[tokio::test]
async fn a_kept_connection_that_closes_on_the_request_is_replaced() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        let lost = peer.request().await;
        drop(peer);
        let mut other = stub.accept().await;
        let again = other.answer("two").await;
        assert_eq!(lost, again);
        other
    };
    let (_other, answer) = join!(serving, read(&upstream, &origin));
    assert_eq!(answer.as_deref(), Ok("two"));
    assert_eq!((upstream.stats().connections_created, upstream.stats().connections_reused), (2, 0));
}

#[tokio::test]
async fn a_kept_connection_is_replaced_once() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        peer.request().await;
        drop(peer);
        stub.accept().await.request().await;
    };
    let ((), answer) = join!(serving, read(&upstream, &origin));
    assert!(matches!(answer, Err(UpstreamError::Closed { .. })), "{answer:?}");
    assert_eq!(upstream.stats().connections_created, 2);
}

#[tokio::test]
async fn a_kept_connection_that_closes_within_the_head_is_not_replaced() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut peer = first_exchange(&upstream, &stub).await;
    let serving = async {
        peer.request().await;
        peer.say("HTTP/1.1 200 OK\r\ncont").await;
        drop(peer);
    };
    let ((), answer) = join!(serving, read(&upstream, &origin));
    assert!(matches!(answer, Err(UpstreamError::Closed { .. })), "{answer:?}");
    assert_eq!(upstream.stats().connections_created, 1);
}

#[tokio::test]
async fn a_new_connection_that_closes_without_an_answer_is_closed() {
    let answer = answer_to("").await;
    assert!(matches!(answer, Err(UpstreamError::Closed { .. })), "{answer:?}");
}

#[tokio::test]
async fn what_is_not_http_is_malformed() {
    for said in
        ["220 mail ready\r\n\r\n", "HTTP/1.1 999999 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n"]
    {
        let answer = answer_to(said).await;
        assert!(matches!(answer, Err(UpstreamError::Malformed { .. })), "{said}: {answer:?}");
    }
}

#[tokio::test]
async fn a_head_without_end_is_malformed() {
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(1 << 20));
    let answer = answer_to(&endless).await;
    assert!(matches!(answer, Err(UpstreamError::Malformed { .. })), "{answer:?}");
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
    let answer = answer_to(&many).await;
    assert!(matches!(answer, Err(UpstreamError::Malformed { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_body_shorter_than_promised_is_cut() {
    let bodies = [
        "content-length: 10\r\n\r\nfive!",
        "transfer-encoding: chunked\r\n\r\n5\r\nfive!\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\nfive!\r\nnot a size\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\nfi",
    ];
    for said in bodies {
        let answer = answer_to(&format!("HTTP/1.1 200 OK\r\n{said}")).await;
        assert!(matches!(answer, Err(UpstreamError::Cut { .. })), "{said}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_whole() {
    let answer = answer_to("HTTP/1.1 200 OK\r\n\r\neverything").await;
    assert_eq!(answer.as_deref(), Ok("everything"));
}

/// Reads what a node says that closes after it.
async fn answer_to(said: &str) -> Result<String, UpstreamError> {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.try_say(said).await;
    };
    let ((), answer) = join!(serving, read(&upstream, &origin));
    let stats = upstream.stats();
    assert_eq!((stats.active_connections, stats.idle_connections), (0, 0));
    answer
}

#[tokio::test]
async fn an_answer_before_the_request_was_read_is_an_answer() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.say("HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig").await;
        peer
    };
    let large = request(vec![b' '; 32 << 20]);
    let asking = upstream.send(&origin, &large);
    let (peer, response) = join!(serving, asking);
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(rest(response).await.as_deref(), Ok("big"));
    assert_eq!(upstream.stats().idle_connections, 0, "the rest of the request would be the next one's head");
    peer.closed().await;
}

#[tokio::test]
async fn a_name_without_an_address_is_not_resolved() {
    // No resolver looks for a label beyond 63 characters, so nobody waits for the network.
    let origin = Origin::parse(&format!("http://{}/", "x".repeat(64))).unwrap();
    let answer = ask(&upstream(defaults()), &origin).await;
    assert!(matches!(answer, Err(UpstreamError::Resolve { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_not_connected() {
    let origin = Stub::start().await.origin();
    let answer = ask(&upstream(defaults()), &origin).await;
    assert!(matches!(answer, Err(UpstreamError::Connect { .. })), "{answer:?}");
}
