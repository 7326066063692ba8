//! Load generator: keep-alive connections that send the next request as soon as the response is complete, or that read
//! one stream each.
//!
//! One thread drives all connections, and its parser only finds where responses end, so that the cores are left to the
//! contender.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memchr::memmem;

use crate::chat::{ChatMode, DONE, SENT, request};
use crate::clock::shared_ns;
use bench_support::{Body, HttpConnection};

/// Latency above which a frame counts as stalled.
const STALLED_NS: u64 = 100_000_000;

/// Addresses and API keys, assigned to connections round robin.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) keys: Vec<String>,
}

/// Warmed-up connections: each has received one response.
pub(crate) struct ClientPool(Vec<LoadClient>);

struct LoadClient {
    connection: HttpConnection,
    request: Vec<u8>,
}

/// Total time and the latency of each request.
pub(crate) struct LoadResult {
    pub(crate) wall: Duration,
    pub(crate) latencies_ns: Vec<u64>,
}

/// Latency of each frame.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StreamResult {
    pub(crate) latencies_ns: Vec<u64>,
    pub(crate) stalled: usize,
}

impl ClientPool {
    /// Opens connections and sends one request on each, so that the contender's upstream connections are open too.
    pub(crate) async fn open(target: &Target, count: usize) -> Result<Self, LoadError> {
        let mut tasks = Vec::new();
        for index in 0..count {
            let address = target.addresses[index % target.addresses.len()];
            let request = request(index, &target.keys[index % target.keys.len()], ChatMode::Whole);
            tasks.push(tokio::spawn(async move {
                let mut client = LoadClient { connection: HttpConnection::connect(address).await?, request };
                client.send().await?;
                Ok::<_, LoadError>(client)
            }));
        }
        let mut clients = Vec::new();
        for task in tasks {
            clients.push(task.await.map_err(io::Error::other)??);
        }
        Ok(Self(clients))
    }

    /// Sends `count` requests in total, over all connections.
    pub(crate) async fn send(self, count: usize) -> Result<LoadResult, LoadError> {
        let started = Instant::now();
        let left = Arc::new(AtomicUsize::new(count));
        let tasks: Vec<_> =
            self.0.into_iter().map(|client| tokio::spawn(send_until_done(client, left.clone()))).collect();
        let mut latencies_ns = Vec::with_capacity(count);
        for task in tasks {
            latencies_ns.append(&mut task.await.map_err(io::Error::other)??);
        }
        Ok(LoadResult { wall: started.elapsed(), latencies_ns })
    }
}

async fn send_until_done(mut client: LoadClient, left: Arc<AtomicUsize>) -> Result<Vec<u64>, LoadError> {
    let mut latencies = Vec::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        let sent = Instant::now();
        client.send().await?;
        latencies.push(sent.elapsed().as_nanos() as u64);
    }
    Ok(latencies)
}

impl LoadClient {
    async fn send(&mut self) -> Result<(), LoadError> {
        self.connection.write(&self.request).await?;
        let mut body = read_head(&mut self.connection).await?;
        while body != Body::Done {
            self.connection.part(&mut body).await?;
        }
        Ok(())
    }
}

/// Reads `count` streams concurrently, each on its own connection.
pub(crate) async fn stream(target: &Target, count: usize, mode: ChatMode) -> Result<StreamResult, LoadError> {
    let mut tasks = Vec::new();
    for index in 0..count {
        let address = target.addresses[index % target.addresses.len()];
        let request = request(index, &target.keys[index % target.keys.len()], mode);
        tasks.push(tokio::spawn(read_stream(address, request)));
    }
    let mut total = StreamResult::default();
    for task in tasks {
        let mut one = task.await.map_err(io::Error::other)??;
        total.latencies_ns.append(&mut one.latencies_ns);
        total.stalled += one.stalled;
    }
    Ok(total)
}

async fn read_stream(address: SocketAddr, request: Vec<u8>) -> Result<StreamResult, LoadError> {
    let mut connection = HttpConnection::connect(address).await?;
    connection.write(&request).await?;
    let mut body = read_head(&mut connection).await?;
    let mut result = StreamResult::default();
    let mut events = Vec::new();
    let mut done = false;
    while body != Body::Done {
        events.extend_from_slice(connection.part(&mut body).await?);
        let mut used = 0;
        while let Some(length) = memmem::find(&events[used..], b"\n\n") {
            let event = &events[used..used + length];
            used += length + 2;
            match sent_ns(event) {
                Some(sent) => result.record(shared_ns().saturating_sub(sent)),
                None => done |= memmem::find(event, DONE.as_bytes()).is_some(),
            }
        }
        events.drain(..used);
    }
    if done { Ok(result) } else { Err(LoadError::Truncated) }
}

impl StreamResult {
    fn record(&mut self, latency_ns: u64) {
        self.latencies_ns.push(latency_ns);
        self.stalled += usize::from(latency_ns > STALLED_NS);
    }
}

fn sent_ns(event: &[u8]) -> Option<u64> {
    let digits = &event[memmem::find(event, SENT.as_bytes())? + SENT.len()..];
    let digits = digits.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

async fn read_head(connection: &mut HttpConnection) -> Result<Body, LoadError> {
    let head = connection.head().await?.ok_or(LoadError::Closed)?;
    if head.line.get(9..12) == Some(b"200") {
        return Ok(head.body);
    }
    let line = head.line;
    let mut rest = head.body;
    let mut body = Vec::new();
    while rest != Body::Done {
        body.extend_from_slice(connection.part(&mut rest).await?);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(LoadError::Status { line: text(&line), body: text(&body) })
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("connection closed before the response")]
    Closed,
    #[error("{line}: {body}")]
    Status { line: String, body: String },
    #[error("stream ended without the end-of-stream marker")]
    Truncated,
}
