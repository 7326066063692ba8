//! A server process with a limit of connections per address.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use tokio::net::TcpSocket;

use crate::bodies::wait_metric;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

/// A keep-alive connection from an address of this machine.
struct Client(TcpStream);

impl Client {
    fn connect(from: [u8; 4], server: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((from, 0).into()).unwrap();
            socket.connect(server).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Self(stream)
    }

    /// Asks for a probe; reports whether the connection is still served.
    fn is_served(&mut self) -> bool {
        let sent = self.0.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut response = [0; 12];
        sent.is_ok() && self.0.read_exact(&mut response).is_ok() && {
            assert_eq!(&response, b"HTTP/1.1 200");
            let mut rest = Vec::new();
            while !rest.ends_with(b"ok\n") {
                let mut byte = [0];
                self.0.read_exact(&mut byte).unwrap();
                rest.push(byte[0]);
            }
            true
        }
    }
}

#[test]
fn an_address_with_many_connections_closes_its_own_and_is_counted_and_logged() {
    let dir = TestDir::new("address-limit");
    dir.write(
        "evenkeel.toml",
        "[server]\nconnections_per_address_max = 2\n[telemetry]\nmetrics = 'public'\n",
    );
    let server = ServerProcess::start(&dir, &[]);
    let connect = |from| {
        let mut client = Client::connect(from, server.address);
        assert!(client.is_served());
        client
    };
    let mut others: Vec<Client> = [[127, 0, 0, 3], [127, 0, 0, 4]].map(connect).into();
    let mut many: Vec<Client> = (0..4).map(|_| connect([127, 0, 0, 2])).collect();
    let line = server.wait_log("connections_per_address_max");
    assert_eq!(line["address"], "127.0.0.2", "{line}");
    wait_metric(&server, "evenkeel_connections_address_limited_total", |limited| limited >= 2.0);
    wait_metric(&server, "evenkeel_connections_evicted_total", |evicted| evicted >= 2.0);
    let served: Vec<bool> = many.iter_mut().map(Client::is_served).collect();
    assert_eq!(served, [false, false, true, true], "the oldest idle connections are closed");
    assert!(others.iter_mut().all(Client::is_served), "other addresses keep theirs");
}
