//! A client that leaves is noticed while it waits and while it is answered.

use std::time::Duration;

use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::ListenerLimits;
use tokio::io::AsyncWriteExt;

use crate::harness::{House, Plan, read_until};

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_is_noticed() {
    let mut house = House::open().await;
    let mut stream = house.connect().await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut disconnect = house.arrivals.recv().await.unwrap();
    assert_eq!(disconnect.ending(), None);
    drop(stream);
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
}

#[tokio::test]
async fn a_client_that_leaves_within_a_response_is_noticed_though_nothing_is_written() {
    let mut house = House::open().await;
    let mut stream = house.connect().await;
    stream.write_all(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut disconnect = house.arrivals.recv().await.unwrap();
    read_until(&mut stream, "first\r\n").await;
    assert_eq!(disconnect.ending(), None);
    drop(stream);
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
}

#[tokio::test]
async fn a_client_that_got_everything_is_served() {
    let mut house = House::open().await;
    for method in ["GET", "HEAD"] {
        let mut stream = house.connect().await;
        stream.write_all(format!("{method} /slow HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        let mut disconnect = house.arrivals.recv().await.unwrap();
        house.release.notify_one();
        assert_eq!(disconnect.ended().await, ResponseEnd::Complete, "{method}");
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go() {
    let limits = ListenerLimits { write_wait_max: Duration::from_millis(20), ..ListenerLimits::default() };
    let mut house = House::with(Plan { limits, ..Plan::default() }).await;
    let mut stream = house.connect().await;
    stream.write_all(b"GET /flood HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut disconnect = house.arrivals.recv().await.unwrap();
    assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    drop(stream);
}
