//! Graceful shutdown: the port closes, requests in flight finish, and what is cut off is counted.

use std::time::Duration;

use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::{DrainReport, ListenerLimits};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::{Setup, TestServer, read_all, read_until};

#[tokio::test]
async fn a_request_in_flight_finishes_and_idle_connections_close() {
    let mut server = TestServer::start().await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut idle, "ok\n").await;
    let mut silent = server.connect().await;
    let mut busy = server.connect().await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    server.arrivals.recv().await.unwrap();
    let address = server.address;
    let release = server.release.clone();
    let stopping = server.stop();
    assert_eq!(read_all(&mut idle).await, "");
    assert_eq!(read_all(&mut silent).await, "");
    assert!(TcpStream::connect(address).await.is_err(), "the port is still open");
    release.notify_one();
    assert!(read_all(&mut busy).await.ends_with("slow"));
    assert_eq!(stopping.await.unwrap(), DrainReport { connections_cut: 0, requests_cut: 0 });
}

#[tokio::test]
async fn requests_beyond_the_drain_timeout_are_cut_off_counted_and_signalled() {
    let limits = ListenerLimits { drain_max: Duration::from_millis(1), ..ListenerLimits::default() };
    let mut server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let mut streams = Vec::new();
    let mut disconnects = Vec::new();
    for path in ["/slow", "/stream"] {
        let mut stream = server.connect().await;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        disconnects.push(server.arrivals.recv().await.unwrap());
        streams.push(stream);
    }
    assert_eq!(server.stop().await.unwrap(), DrainReport { connections_cut: 2, requests_cut: 2 });
    for mut disconnect in disconnects {
        assert_eq!(disconnect.ended().await, ResponseEnd::Aborted);
    }
}
