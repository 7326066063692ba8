//! A server that plays a script, for behaviour that a real one does not show.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_postgres::{ConnectConfig, Pool, PoolConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A connection as the server sees it.
pub(crate) struct FakeClient {
    stream: TcpStream,
}

impl FakeClient {
    /// Accepts a connection and returns the text of its startup message.
    pub(crate) async fn accept(listener: &TcpListener) -> (Self, String) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let length = stream.read_u32().await.unwrap() as usize;
        let mut startup = vec![0; length - 4];
        stream.read_exact(&mut startup).await.unwrap();
        (Self { stream }, String::from_utf8_lossy(&startup[4..]).into_owned())
    }

    /// Accepts a connection and logs it in.
    pub(crate) async fn accept_ready(listener: &TcpListener) -> Self {
        let (mut client, _) = Self::accept(listener).await;
        client.send(b'R', &0_u32.to_be_bytes()).await;
        client.send(b'S', b"server_version\x0015.1\0").await;
        client.send(b'S', b"default_transaction_read_only\0off\0").await;
        client.send(b'K', &[0, 0, 0, 1, 0, 0, 0, 2]).await;
        client.send(b'Z', b"I").await;
        client
    }

    pub(crate) async fn send(&mut self, kind: u8, body: &[u8]) {
        let length = u32::try_from(body.len() + 4).unwrap();
        self.send_raw(&[&[kind], &length.to_be_bytes()[..], body].concat()).await;
    }

    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Receives messages up to and including one of this type.
    pub(crate) async fn receive_until(&mut self, kind: u8) {
        while self.receive().await != kind {}
    }

    /// Receives one message and returns its type.
    pub(crate) async fn receive(&mut self) -> u8 {
        let kind = self.stream.read_u8().await.unwrap();
        let length = self.stream.read_u32().await.unwrap() as usize;
        self.stream.read_exact(&mut vec![0; length - 4]).await.unwrap();
        kind
    }

    /// Waits until the client has closed the connection.
    pub(crate) async fn closed(mut self) {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest).await;
    }
}

/// Binds a port and creates a pool for it.
pub(crate) async fn listen() -> (TcpListener, Arc<Pool>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("postgres://u:p@127.0.0.1:{port}/d?sslmode=disable");
    let mut config = PoolConfig::new(ConnectConfig::parse(&url).unwrap());
    config.message_bytes_max = 1000;
    config.acquire_timeout = Duration::from_secs(60);
    (listener, Pool::new(config))
}
