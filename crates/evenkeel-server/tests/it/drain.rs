//! Stopping: no new connections, those in flight finish, the rest is counted.

use std::time::Duration;

use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::{DrainReport, ListenerLimits};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::{House, Plan, read_all, read_until};

#[tokio::test]
async fn a_request_in_flight_is_answered_and_idle_connections_end() {
    let mut house = House::open().await;
    let mut idle = house.connect().await;
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    read_until(&mut idle, "ok\n").await;
    let mut silent = house.connect().await;
    let mut busy = house.connect().await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    house.arrivals.recv().await.unwrap();
    let address = house.address;
    let release = house.release.clone();
    let stopping = house.stop();
    assert_eq!(read_all(&mut idle).await, "");
    assert_eq!(read_all(&mut silent).await, "");
    assert!(TcpStream::connect(address).await.is_err(), "the port is still open");
    release.notify_one();
    assert!(read_all(&mut busy).await.ends_with("slow"));
    assert_eq!(stopping.await.unwrap(), DrainReport { connections_cut: 0, requests_cut: 0 });
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut_counted_and_told() {
    let limits = ListenerLimits { drain_max: Duration::from_millis(1), ..ListenerLimits::default() };
    let mut house = House::with(Plan { limits, ..Plan::default() }).await;
    let mut streams = Vec::new();
    let mut disconnects = Vec::new();
    for path in ["/slow", "/stream"] {
        let mut stream = house.connect().await;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        disconnects.push(house.arrivals.recv().await.unwrap());
        streams.push(stream);
    }
    assert_eq!(house.stop().await.unwrap(), DrainReport { connections_cut: 2, requests_cut: 2 });
    for mut disconnect in disconnects {
        assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    }
}
