//! Slow and stubborn clients: closed windows, uploads that are answered early.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_server::body::channel;
use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::ListenerLimits;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::harness::{Setup, TestServer, tenant};

#[tokio::test]
async fn an_http2_stream_whose_window_stays_closed_is_reset_and_the_others_continue() {
    for window in [0, 1024] {
        let limits =
            ListenerLimits { write_wait_max: Duration::from_millis(20), ..ListenerLimits::default() };
        let mut server = TestServer::with(Setup { limits, ..Setup::default() }).await;
        let mut client = http2::Builder::new(TokioExecutor::new());
        // hyper's client opens the window only when the body is read.
        client.initial_stream_window_size(window).initial_connection_window_size(1 << 20);
        let (mut client, connection) = client.handshake(TokioIo::new(server.connect().await)).await.unwrap();
        tokio::spawn(connection);
        let request = |path: &str| {
            Request::get(format!("http://localhost{path}")).body(Full::<Bytes>::default()).unwrap()
        };
        let unread = client.send_request(request("/flood")).await.unwrap();
        let mut disconnect = server.arrivals.recv().await.unwrap();
        assert_eq!(disconnect.ended().await, ResponseEnd::Aborted, "window {window}");
        assert_eq!(client.send_request(request("/livez")).await.unwrap().status(), 200);
        drop(unread);
    }
}

#[tokio::test]
async fn a_stream_that_waits_for_its_handler_is_not_slow() {
    let limits = ListenerLimits { write_wait_max: Duration::from_millis(1), ..ListenerLimits::default() };
    let mut server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(server.connect().await)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://localhost/stream").body(Full::<Bytes>::default()).unwrap();
    let response = client.send_request(request).await.unwrap();
    let disconnect = server.arrivals.recv().await.unwrap();
    let pause = Request::get("http://localhost/livez").body(Full::<Bytes>::default()).unwrap();
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_millis(50) {
        client.send_request(pause.clone()).await.unwrap();
    }
    assert_eq!(disconnect.end(), None, "a stream without data waiting was ended");
    drop(response);
}

/// A client that sends its whole request before it reads must not find the connection reset.
#[tokio::test]
async fn a_response_to_an_upload_that_is_not_read_arrives() {
    const UPLOAD: usize = 30 << 20;
    let server =
        TestServer::with(Setup { tenants: vec![tenant("acme", "ek-acme")], ..Setup::default() }).await;
    for length in [format!("content-length: {UPLOAD}"), "content-length: 99999999".to_owned()] {
        let mut stream = server.connect().await;
        let head = format!("POST /echo HTTP/1.1\r\nhost: localhost\r\nx-api-key: wrong\r\n{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..UPLOAD / (64 * 1024) {
            stream.write_all(&[b'x'; 64 * 1024]).await.unwrap();
        }
        let mut response = Vec::new();
        stream.shutdown().await.unwrap();
        stream.read_to_end(&mut response).await.unwrap();
        let response = String::from_utf8(response).unwrap();
        assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
        assert!(response.contains("connection: close\r\n"), "{response}");
        assert!(response.contains("invalid_api_key"), "{response}");
    }
}

/// curl reports "Stream error in the HTTP/2 framing layer" if the stream is reset while it is sending.
#[tokio::test]
async fn an_http2_upload_that_is_not_read_can_be_sent_to_its_end() {
    const CHUNKS: usize = 480;
    let server =
        TestServer::with(Setup { tenants: vec![tenant("acme", "ek-acme")], ..Setup::default() }).await;
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(server.connect().await)).await.unwrap();
    tokio::spawn(connection);
    let (chunks, body) = mpsc::channel::<Bytes>(1);
    let request = Request::post("http://localhost/echo").header("x-api-key", "wrong");
    let request = request.body(channel(body)).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), 401);
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"{\"error\""), "{text:?}");
    for sent in 0..CHUNKS {
        let chunk = Bytes::from_static(&[b'x'; 64 * 1024]);
        assert!(chunks.send(chunk).await.is_ok(), "the stream was reset after {sent} chunks");
    }
}
