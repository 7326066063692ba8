//! The same door over h2, on the same port.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::{DrainReport, ListenerLimits};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::harness::{House, Plan};

async fn client(house: &House) -> SendRequest<Full<Bytes>> {
    let (sender, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(house.connect().await)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(method: &str, path: &str, body: &'static str) -> Request<Full<Bytes>> {
    let uri = format!("http://a{path}");
    Request::builder().method(method).uri(uri).body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
}

#[tokio::test]
async fn h2_is_told_from_its_first_bytes() {
    let house = House::open().await;
    let mut client = client(&house).await;
    let answer = client.send_request(request("POST", "/echo", "hello")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.headers().contains_key("x-request-id"));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
}

#[tokio::test]
async fn a_body_too_large_is_413_over_h2_and_the_connection_lives() {
    let limits = ListenerLimits { body_bytes_max: 4, ..ListenerLimits::default() };
    let house = House::with(Plan { limits, ..Plan::default() }).await;
    let mut client = client(&house).await;
    let answer = client.send_request(request("POST", "/echo", "hello")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(client.send_request(request("GET", "/livez", "")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn one_stream_that_is_dropped_is_noticed_and_the_others_go_on() {
    let mut house = House::open().await;
    let mut client = client(&house).await;
    let answer = client.send_request(request("GET", "/stream", "")).await.unwrap();
    let mut disconnect = house.arrivals.recv().await.unwrap();
    drop(answer);
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    let waiting = tokio::spawn(client.send_request(request("GET", "/slow", "")));
    let mut disconnect = house.arrivals.recv().await.unwrap();
    waiting.abort();
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    assert_eq!(client.send_request(request("GET", "/livez", "")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_head_too_large_is_431_over_h2() {
    let limits = ListenerLimits { head_bytes_max: 8192, ..ListenerLimits::default() };
    let house = House::with(Plan { limits, ..Plan::default() }).await;
    let mut large = request("GET", "/livez", "");
    large.headers_mut().insert("x-large", "y".repeat(9000).parse().unwrap());
    let answer = client(&house).await.send_request(large).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
}

#[tokio::test]
async fn a_stream_in_flight_is_answered_before_the_connection_ends() {
    let mut house = House::open().await;
    let mut client = client(&house).await;
    let waiting = tokio::spawn(client.send_request(request("GET", "/slow", "")));
    house.arrivals.recv().await.unwrap();
    let release = house.release.clone();
    let stopping = house.stop();
    release.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(stopping.await.unwrap(), DrainReport { connections_cut: 0, requests_cut: 0 });
}

#[tokio::test]
async fn a_stream_that_does_not_finish_is_cut_counted_and_told() {
    let limits = ListenerLimits { drain_max: Duration::from_millis(1), ..ListenerLimits::default() };
    let mut house = House::with(Plan { limits, ..Plan::default() }).await;
    let mut client = client(&house).await;
    let waiting = tokio::spawn(client.send_request(request("GET", "/slow", "")));
    let mut disconnect = house.arrivals.recv().await.unwrap();
    assert_eq!(house.stop().await.unwrap(), DrainReport { connections_cut: 1, requests_cut: 1 });
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    assert!(waiting.await.unwrap().is_err());
}
