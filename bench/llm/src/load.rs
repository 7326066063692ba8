//! The load: connections kept open, each asking again as soon as it was answered, or each reading one stream.
//!
//! One thread asks for all, by a parser that reads no more than where answers end, so that the cores are free for
//! whoever is measured.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memchr::memmem;

use crate::chat::{ChatMode, DONE, SENT, request};
use crate::clock::shared_ns;
use bench_support::{Body, HttpConnection};

/// A frame that is under way for longer has stalled.
const STALLED_NS: u64 = 100_000_000;

/// Whom to ask, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Connections go to them in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Connections have them in turn.
    pub(crate) keys: Vec<String>,
}

/// Connections that have been answered once.
pub(crate) struct ClientPool(Vec<LoadClient>);

struct LoadClient {
    wire: HttpConnection,
    request: Vec<u8>,
}

/// How long everything took together, and every question by itself.
pub(crate) struct LoadResult {
    pub(crate) wall: Duration,
    pub(crate) delays_ns: Vec<u64>,
}

/// How all frames travelled.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StreamResult {
    pub(crate) delays_ns: Vec<u64>,
    pub(crate) stalled: usize,
}

impl ClientPool {
    /// Opens connections and asks on each once, so that what opens connections of its own has done so.
    pub(crate) async fn open(target: &Target, count: usize) -> Result<Self, LoadError> {
        let mut tasks = Vec::new();
        for at in 0..count {
            let address = target.addresses[at % target.addresses.len()];
            let request = request(at, &target.keys[at % target.keys.len()], ChatMode::Whole);
            tasks.push(tokio::spawn(async move {
                let mut caller = LoadClient { wire: HttpConnection::connect(address).await?, request };
                caller.ask().await?;
                Ok::<_, LoadError>(caller)
            }));
        }
        let mut callers = Vec::new();
        for task in tasks {
            callers.push(task.await.map_err(io::Error::other)??);
        }
        Ok(Self(callers))
    }

    /// Asks `count` questions in all.
    pub(crate) async fn ask(self, count: usize) -> Result<LoadResult, LoadError> {
        let begun = Instant::now();
        let left = Arc::new(AtomicUsize::new(count));
        let tasks: Vec<_> =
            self.0.into_iter().map(|caller| tokio::spawn(ask_on(caller, left.clone()))).collect();
        let mut delays_ns = Vec::with_capacity(count);
        for task in tasks {
            delays_ns.append(&mut task.await.map_err(io::Error::other)??);
        }
        Ok(LoadResult { wall: begun.elapsed(), delays_ns })
    }
}

async fn ask_on(mut caller: LoadClient, left: Arc<AtomicUsize>) -> Result<Vec<u64>, LoadError> {
    let mut delays = Vec::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        let asked = Instant::now();
        caller.ask().await?;
        delays.push(asked.elapsed().as_nanos() as u64);
    }
    Ok(delays)
}

impl LoadClient {
    async fn ask(&mut self) -> Result<(), LoadError> {
        self.wire.write(&self.request).await?;
        let mut body = head(&mut self.wire).await?;
        while body != Body::Done {
            self.wire.part(&mut body).await?;
        }
        Ok(())
    }
}

/// Reads streams, all at once, each on a connection of its own.
pub(crate) async fn stream(
    target: &Target,
    count: usize,
    delivery: ChatMode,
) -> Result<StreamResult, LoadError> {
    let mut tasks = Vec::new();
    for at in 0..count {
        let address = target.addresses[at % target.addresses.len()];
        let request = request(at, &target.keys[at % target.keys.len()], delivery);
        tasks.push(tokio::spawn(read_stream(address, request)));
    }
    let mut all = StreamResult::default();
    for task in tasks {
        let mut one = task.await.map_err(io::Error::other)??;
        all.delays_ns.append(&mut one.delays_ns);
        all.stalled += one.stalled;
    }
    Ok(all)
}

async fn read_stream(address: SocketAddr, request: Vec<u8>) -> Result<StreamResult, LoadError> {
    let mut wire = HttpConnection::connect(address).await?;
    wire.write(&request).await?;
    let mut body = head(&mut wire).await?;
    let mut streamed = StreamResult::default();
    let mut events = Vec::new();
    let mut done = false;
    while body != Body::Done {
        events.extend_from_slice(wire.part(&mut body).await?);
        let mut used = 0;
        while let Some(length) = memmem::find(&events[used..], b"\n\n") {
            let event = &events[used..used + length];
            used += length + 2;
            match sent_ns(event) {
                Some(sent) => streamed.note(shared_ns().saturating_sub(sent)),
                None => done |= memmem::find(event, DONE.as_bytes()).is_some(),
            }
        }
        events.drain(..used);
    }
    if done { Ok(streamed) } else { Err(LoadError::Truncated) }
}

impl StreamResult {
    fn note(&mut self, delay_ns: u64) {
        self.delays_ns.push(delay_ns);
        self.stalled += usize::from(STALLED_NS < delay_ns);
    }
}

fn sent_ns(event: &[u8]) -> Option<u64> {
    let digits = &event[memmem::find(event, SENT.as_bytes())? + SENT.len()..];
    let digits = digits.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

async fn head(wire: &mut HttpConnection) -> Result<Body, LoadError> {
    let head = wire.head().await?.ok_or(LoadError::Closed)?;
    if head.line.get(9..12) == Some(b"200") {
        return Ok(head.body);
    }
    let line = head.line;
    let mut body = head.body;
    let mut said = Vec::new();
    while body != Body::Done {
        said.extend_from_slice(wire.part(&mut body).await?);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(LoadError::Refused(format!("{}: {}", text(&line), text(&said))))
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum LoadError {
    Io(io::Error),
    Closed,
    Refused(String),
    Truncated,
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Closed => f.write_str("the connection ended instead of an answer"),
            Self::Refused(what) => f.write_str(what),
            Self::Truncated => f.write_str("a stream ended without its last event"),
        }
    }
}
