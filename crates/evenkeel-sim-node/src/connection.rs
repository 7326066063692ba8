//! Connections: HTTP/1.1 as long as all is well, and the ways to end one badly.

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

/// How long a connection may be idle, or half closed.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// How long accepting pauses when the system has no more sockets.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until dropped, never holding more connections than allowed; dropping ends them all.
pub(super) async fn accept(engine: Arc<Engine>, listener: TcpListener, connections_max: u32) {
    let room = Arc::new(Semaphore::new(connections_max as usize));
    let mut connections = JoinSet::new();
    loop {
        let place = room.clone().acquire_owned().await.expect("the semaphore is never closed");
        // What has ended leaves the set, or it would grow with every connection there ever was.
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((socket, peer)) => {
                let open = OpenConnection::count(engine.clone());
                connections.spawn(async move {
                    serve(open.0.clone(), socket, peer).await;
                    drop((open, place));
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Counts a connection for as long as it is there.
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
    // Without it tokens would wait for the acknowledgement of the token before; a socket that refuses
    // it is about to report why.
    let _ = socket.set_nodelay(true);
    let loopback = peer.ip().to_canonical().is_loopback();
    let locality = if loopback { Locality::SameMachine } else { Locality::Elsewhere };
    let (sender, mut cuts) = mpsc::channel(1);
    let client = Client { locality, cuts: sender };
    let service = service_fn(move |request| {
        let answer = engine.clone().answer(client.clone(), request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .serve_connection(TokioIo::new(socket), service);
    // The connection comes first, so that what was said before a cut is on the wire before it.
    let cut = tokio::select! {
        biased;
        _ = &mut connection => return,
        Some(cut) = cuts.recv() => cut,
    };
    end(connection.into_parts().io.into_inner(), cut).await;
}

async fn end(mut socket: TcpStream, cut: Cut) {
    match cut {
        Cut::Close => {}
        // Errors below are a peer that went first.
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
