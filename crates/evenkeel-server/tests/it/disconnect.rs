//! Client disconnects: before the response, during it, and after it.

use std::time::Duration;

use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::ListenerLimits;
use tokio::io::AsyncWriteExt;

use crate::harness::{Setup, TestServer, read_until};

#[tokio::test]
async fn a_disconnect_before_the_response_is_detected() {
    let mut server = TestServer::start().await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut disconnect = server.arrivals.recv().await.unwrap();
    assert_eq!(disconnect.end(), None);
    drop(stream);
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
}

#[tokio::test]
async fn a_disconnect_during_a_response_is_detected_without_a_write() {
    let mut server = TestServer::start().await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut disconnect = server.arrivals.recv().await.unwrap();
    read_until(&mut stream, "first\r\n").await;
    assert_eq!(disconnect.end(), None);
    drop(stream);
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
}

#[tokio::test]
async fn a_response_read_in_full_is_complete() {
    let mut server = TestServer::start().await;
    for method in ["GET", "HEAD"] {
        let mut stream = server.connect().await;
        stream
            .write_all(format!("{method} /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut disconnect = server.arrivals.recv().await.unwrap();
        server.release.notify_one();
        assert_eq!(disconnect.ended().await, ResponseEnd::Complete, "{method}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    let limits = ListenerLimits { write_wait_max: Duration::from_millis(20), ..ListenerLimits::default() };
    let mut server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /flood HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut disconnect = server.arrivals.recv().await.unwrap();
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    drop(stream);
}
