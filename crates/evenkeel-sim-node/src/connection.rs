//! Serves HTTP/1.1 connections, and closes or resets them if a fault requires it.

use super::engine::{Client, Engine, Locality};
use super::fault::Cut;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Timeout of idle connections and of half-closed ones.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// Pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Accepts at most `connections_max` connections at a time. Dropping the future closes them all.
pub(super) async fn accept(engine: Arc<Engine>, listener: TcpListener, connections_max: u32) {
    let permits = Arc::new(Semaphore::new(connections_max as usize));
    let mut connections = JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        // Removes finished tasks, so that the set does not grow forever.
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((socket, peer)) => {
                let open = OpenConnection::count(engine.clone());
                connections.spawn(async move {
                    serve(open.0.clone(), socket, peer).await;
                    drop((open, permit));
                });
            }
            Err(_) => sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Decrements the number of open connections on drop.
struct OpenConnection(Arc<Engine>);

impl OpenConnection {
    fn count(engine: Arc<Engine>) -> Self {
        engine.connections.send_modify(|open| *open += 1);
        Self(engine)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.send_modify(|open| *open -= 1);
    }
}

async fn serve(engine: Arc<Engine>, socket: TcpStream, peer: SocketAddr) {
    // Without TCP_NODELAY a token would wait for the previous token's ACK. An error is ignored, because the next read
    // or write would fail too.
    let _ = socket.set_nodelay(true);
    let loopback = peer.ip().to_canonical().is_loopback();
    let locality = if loopback { Locality::SameMachine } else { Locality::Remote };
    let (sender, mut cuts) = mpsc::channel(1);
    let client = Client { locality, cuts: sender };
    let service = service_fn(move |request| {
        let response = engine.clone().respond(client.clone(), request);
        async { Ok::<_, Infallible>(response.await) }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .serve_connection(TokioIo::new(socket), service);
    // Polls the connection first, so that bytes written before the cut are sent.
    let cut = tokio::select! {
        biased;
        _ = &mut connection => return,
        Some(cut) = cuts.recv() => cut,
    };
    cut_connection(connection.into_parts().io.into_inner(), cut).await;
}

async fn cut_connection(mut socket: TcpStream, cut: Cut) {
    match cut {
        Cut::Close => {}
        // Errors below mean that the peer closed first.
        Cut::Reset => {
            let _ = socket.set_zero_linger();
        }
        Cut::HalfClose => {
            let _ = socket.shutdown().await;
            let mut ignored = [0; 1_024];
            let drained = async { while matches!(socket.read(&mut ignored).await, Ok(1..)) {} };
            let _ = timeout(IDLE_MAX, drained).await;
        }
    }
}
