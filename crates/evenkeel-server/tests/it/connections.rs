//! The budget of connections: idle ones make room, busy ones do not, probes and administrators always get in.

use evenkeel_server::disconnect::ResponseEnd;
use evenkeel_server::listener::ListenerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::{Setup, TestServer, read_until};

const ADMIN: &str = "authorization: Bearer ek-root\r\n";

/// Connects from an address of this machine.
async fn connect_from(server: &TestServer, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    socket.connect(server.address).await.unwrap()
}

async fn server(connections_max: usize) -> TestServer {
    let limits = ListenerLimits { connections_max, ..ListenerLimits::default() };
    TestServer::with(Setup { limits, ..Setup::default() }).await
}

#[tokio::test]
async fn an_idle_connection_is_closed_for_another() {
    let server = server(1).await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /whoami HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut idle, "open").await;
    assert!(server.request("GET /whoami", "").await.ends_with("open"));
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0, "the idle connection is closed");
}

#[tokio::test]
async fn a_connection_without_a_complete_head_is_closed_for_another() {
    let server = server(1).await;
    for beginning in ["", "GET /who", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut partial = server.connect().await;
        partial.write_all(beginning.as_bytes()).await.unwrap();
        assert!(server.request("GET /whoami", "").await.ends_with("open"), "{beginning:?}");
        let mut rest = Vec::new();
        // A reset means that it is closed too.
        let _ = partial.read_to_end(&mut rest).await;
    }
}

#[tokio::test]
async fn probes_and_administrators_get_in_while_every_connection_is_busy() {
    let mut server = server(2).await;
    let mut busy = Vec::new();
    let mut disconnects = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        disconnects.push(server.arrivals.recv().await.unwrap());
        busy.push(stream);
    }
    assert!(server.request("GET /livez", "").await.starts_with("HTTP/1.1 200 "));
    assert!(server.request("GET /admin", ADMIN).await.ends_with("admin"));
    let refused = server.request("GET /whoami", "").await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("connections_full"), "{refused}");
    assert!(disconnects.iter().all(|disconnect| disconnect.end().is_none()), "a busy connection was closed");
    server.release.notify_one();
    server.release.notify_one();
    for disconnect in &mut disconnects {
        assert_eq!(disconnect.ended().await, ResponseEnd::Complete);
    }
    for mut stream in busy {
        read_until(&mut stream, "slow").await;
    }
    assert!(server.request("GET /whoami", "").await.ends_with("open"));
}

#[tokio::test]
async fn a_busy_connection_that_was_idle_when_it_was_evicted_finishes_its_response() {
    let mut server = server(1).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /whoami HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut stream, "open").await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut disconnect = server.arrivals.recv().await.unwrap();
    assert!(server.request("GET /whoami", "").await.starts_with("HTTP/1.1 503 "));
    server.release.notify_one();
    assert_eq!(disconnect.ended().await, ResponseEnd::Complete);
    read_until(&mut stream, "slow").await;
}

#[tokio::test]
async fn an_address_at_its_maximum_closes_its_own_idle_connections_only() {
    let limits = ListenerLimits { connections_per_address_max: Some(2), ..ListenerLimits::default() };
    let mut server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let whoami = b"GET /whoami HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut other = connect_from(&server, [127, 0, 0, 3]).await;
    other.write_all(whoami).await.unwrap();
    read_until(&mut other, "open").await;
    let mut busy = connect_from(&server, [127, 0, 0, 2]).await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut disconnect = server.arrivals.recv().await.unwrap();
    let mut idle = connect_from(&server, [127, 0, 0, 2]).await;
    idle.write_all(whoami).await.unwrap();
    read_until(&mut idle, "open").await;
    let mut third = connect_from(&server, [127, 0, 0, 2]).await;
    third.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut disconnect_of_third = server.arrivals.recv().await.unwrap();
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0, "the idle connection of the address is closed");
    let mut fourth = connect_from(&server, [127, 0, 0, 2]).await;
    fourth.write_all(whoami).await.unwrap();
    let refused = read_until(&mut fourth, "}}").await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("connections_full"), "{refused}");
    let mut admin = connect_from(&server, [127, 0, 0, 2]).await;
    let request = format!("GET /admin HTTP/1.1\r\nhost: localhost\r\n{ADMIN}\r\n");
    admin.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut admin, "admin").await;
    other.write_all(whoami).await.unwrap();
    read_until(&mut other, "open").await;
    server.release.notify_one();
    server.release.notify_one();
    assert_eq!(disconnect.ended().await, ResponseEnd::Complete);
    assert_eq!(disconnect_of_third.ended().await, ResponseEnd::Complete);
}
