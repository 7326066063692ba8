//! HTTP/2 on the same port.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::{DrainReport, ListenerLimits};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::harness::{Setup, TestServer};

async fn client(server: &TestServer) -> SendRequest<Full<Bytes>> {
    let (sender, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(server.connect().await)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(method: &str, path: &str, body: &'static str) -> Request<Full<Bytes>> {
    let uri = format!("http://localhost{path}");
    Request::builder().method(method).uri(uri).body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
}

#[tokio::test]
async fn http2_is_detected_from_its_preface() {
    let server = TestServer::start().await;
    let mut client = client(&server).await;
    let response = client.send_request(request("POST", "/echo", "hello")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().contains_key("x-request-id"));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
}

#[tokio::test]
async fn a_body_over_the_limit_gets_413_and_the_connection_stays_open() {
    let limits = ListenerLimits { body_bytes_max: 4, ..ListenerLimits::default() };
    let server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let mut client = client(&server).await;
    let response = client.send_request(request("POST", "/echo", "hello")).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(client.send_request(request("GET", "/livez", "")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_reset_stream_is_detected_and_the_others_continue() {
    let mut server = TestServer::start().await;
    let mut client = client(&server).await;
    let response = client.send_request(request("GET", "/stream", "")).await.unwrap();
    let mut disconnect = server.arrivals.recv().await.unwrap();
    drop(response);
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    let waiting = tokio::spawn(client.send_request(request("GET", "/slow", "")));
    let mut disconnect = server.arrivals.recv().await.unwrap();
    waiting.abort();
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    assert_eq!(client.send_request(request("GET", "/livez", "")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_head_over_the_limit_gets_431() {
    let limits = ListenerLimits { head_bytes_max: 8192, ..ListenerLimits::default() };
    let server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let mut large = request("GET", "/livez", "");
    large.headers_mut().insert("x-large", "y".repeat(9000).parse().unwrap());
    let response = client(&server).await.send_request(large).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
}

#[tokio::test]
async fn a_stream_in_flight_finishes_before_the_connection_closes() {
    let mut server = TestServer::start().await;
    let mut client = client(&server).await;
    let waiting = tokio::spawn(client.send_request(request("GET", "/slow", "")));
    server.arrivals.recv().await.unwrap();
    let release = server.release.clone();
    let stopping = server.stop();
    release.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(stopping.await.unwrap(), DrainReport { connections_cut: 0, requests_cut: 0 });
}

#[tokio::test]
async fn a_stream_beyond_the_drain_timeout_is_cut_off_counted_and_signalled() {
    let limits = ListenerLimits { drain_max: Duration::from_millis(1), ..ListenerLimits::default() };
    let mut server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let mut client = client(&server).await;
    let waiting = tokio::spawn(client.send_request(request("GET", "/slow", "")));
    let mut disconnect = server.arrivals.recv().await.unwrap();
    assert_eq!(server.stop().await.unwrap(), DrainReport { connections_cut: 1, requests_cut: 1 });
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    assert!(waiting.await.unwrap().is_err());
}
