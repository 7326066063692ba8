//! The load: connections kept open, each with the next request as soon as the one before was confirmed.
//!
//! One thread speaks for all, and reads no more of an answer than what it must know, so that the cores are free for
//! whoever is measured. Bound: a turn ends after a minute, whatever the server does.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench_support::{RunError, TurnSample, delays};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::args::Load;
use crate::case::{CONSUMERS, Case};
use crate::client::{Protocol, QueueClient, ReceiptHandle};
use crate::contender::Server;

const TURN_MAX: Duration = Duration::from_secs(60);
const SEND_SPAN: Duration = Duration::from_millis(1_000);
/// What consumers find.
const BACKLOG: f64 = 6_000.0;
/// How long a consumer waits that found nothing.
const NOTHING_WAIT: Duration = Duration::from_millis(1);
const FILLERS: usize = 16;
const FILL_BATCH: usize = 10;

/// What a load did.
pub(crate) struct LoadResult {
    pub(crate) messages: usize,
    pub(crate) wall: Duration,
    delays_ns: Vec<u64>,
}

/// Gives a server its turn; `scale` makes it longer or shorter.
pub(crate) async fn turn(
    case: Case,
    server: &Server,
    queue: &str,
    scale: f64,
) -> Result<TurnSample, RunError> {
    let turn = async {
        create(server, queue).await?;
        match case {
            Case::Send { batch, producers } => {
                let clients = connect(server, queue, producers).await?;
                measure(server, send(clients, batch, SEND_SPAN.mul_f64(scale))).await
            }
            Case::Take { batch } => {
                let backlog = fill(server, queue, BACKLOG * server.backlog_part * scale).await?;
                let clients = connect(server, queue, CONSUMERS).await?;
                let sample = measure(server, take(clients, batch, backlog)).await?;
                check_empty(server, queue).await?;
                Ok(sample)
            }
        }
    };
    let local = LocalSet::new();
    let turn = local.run_until(timeout(TURN_MAX, turn));
    turn.await.unwrap_or_else(|_| Err(io::Error::other("it took too long"))).map_err(RunError::from)
}

/// Takes the server's time while a load runs.
async fn measure(
    server: &Server,
    load: impl Future<Output = io::Result<LoadResult>>,
) -> io::Result<TurnSample> {
    let before = server.process.cpu()?;
    let done = load.await?;
    let cpu = server.process.cpu()?.saturating_sub(before);
    let us = |time: Duration| time.as_secs_f64() * 1e6 / done.messages as f64;
    let mut sample = vec![
        ("rate", done.messages as f64 / done.wall.as_secs_f64()),
        ("wall_us", us(done.wall)),
        ("cpu_us", us(cpu)),
    ];
    sample.extend(delays(done.delays_ns));
    Ok(sample)
}

/// Makes a queue.
pub(crate) async fn create(server: &Server, queue: &str) -> io::Result<()> {
    server.protocol.connect(server.address, queue, 0).await?.create().await
}

/// Opens connections to a queue.
pub(crate) async fn connect(server: &Server, queue: &str, count: usize) -> io::Result<Vec<QueueClient>> {
    open(server.protocol, server.address, queue, count).await
}

async fn open(
    protocol: Protocol,
    address: std::net::SocketAddr,
    queue: &str,
    count: usize,
) -> io::Result<Vec<QueueClient>> {
    let mut clients = Vec::new();
    for number in 0..count {
        clients.push(protocol.connect(address, queue, number).await?);
    }
    Ok(clients)
}

/// Sends for so long; all that was begun is waited for.
pub(crate) async fn send(clients: Vec<QueueClient>, batch: usize, span: Duration) -> io::Result<LoadResult> {
    let begun = Instant::now();
    let producer = |mut client: QueueClient| async move {
        let mut delays = Vec::new();
        while begun.elapsed() < span {
            let asked = Instant::now();
            client.send(batch).await?;
            delays.push(asked.elapsed().as_nanos() as u64);
        }
        Ok(delays)
    };
    let delays_ns = all(clients.into_iter().map(|client| spawn_local(producer(client)))).await?;
    Ok(LoadResult { messages: delays_ns.len() * batch, wall: begun.elapsed(), delays_ns })
}

/// Sends so many messages, or a few more; says how many.
pub(crate) async fn fill(server: &Server, queue: &str, wanted: f64) -> io::Result<usize> {
    fill_by(connect(server, queue, FILLERS).await?, wanted as usize).await
}

async fn fill_by(clients: Vec<QueueClient>, wanted: usize) -> io::Result<usize> {
    let at_once = clients.len() * FILL_BATCH;
    let batches = wanted.div_ceil(at_once);
    let filler = |mut client: QueueClient| async move {
        for _ in 0..batches {
            client.send(FILL_BATCH).await?;
        }
        Ok(Vec::<()>::new())
    };
    all(clients.into_iter().map(|client| spawn_local(filler(client)))).await?;
    Ok(batches * at_once)
}

/// Empties a queue of `count` messages; a delay is that of a receive and its acknowledgement.
pub(crate) async fn take(clients: Vec<QueueClient>, batch: usize, count: usize) -> io::Result<LoadResult> {
    let begun = Instant::now();
    let left = Rc::new(Cell::new(count));
    let consumer = |mut client: QueueClient| {
        let left = left.clone();
        async move {
            let mut delays = Vec::new();
            while 0 < left.get() {
                let asked = Instant::now();
                let receipts: Vec<ReceiptHandle> = client.receive(batch).await?;
                if receipts.is_empty() {
                    sleep(NOTHING_WAIT).await;
                    continue;
                }
                client.acknowledge(&receipts).await?;
                let still = left.get().checked_sub(receipts.len());
                left.set(still.ok_or_else(|| io::Error::other("more was delivered than was sent"))?);
                delays.push(asked.elapsed().as_nanos() as u64);
            }
            Ok(delays)
        }
    };
    let delays_ns = all(clients.into_iter().map(|client| spawn_local(consumer(client)))).await?;
    Ok(LoadResult { messages: count, wall: begun.elapsed(), delays_ns })
}

/// What was delivered twice would have left something behind.
async fn check_empty(server: &Server, queue: &str) -> io::Result<()> {
    let mut client = server.protocol.connect(server.address, queue, CONSUMERS).await?;
    let left = client.receive(1).await?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(io::Error::other("a message was acknowledged and is still there"))
    }
}

async fn all<T: 'static>(tasks: impl Iterator<Item = JoinHandle<io::Result<Vec<T>>>>) -> io::Result<Vec<T>> {
    let tasks: Vec<_> = tasks.collect();
    let mut results = Vec::new();
    for task in tasks {
        results.append(&mut task.await.map_err(io::Error::other)??);
    }
    Ok(results)
}

/// Sends to, or takes from, an SQS server that somebody else watches.
pub(crate) fn main(load: &Load) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connect = |count| open(Protocol::Sqs, load.address, "profiled", count);
    LocalSet::new().block_on(&runtime, async {
        connect(1).await?.remove(0).create().await?;
        let done = match load.case {
            Case::Send { batch, producers } => send(connect(producers).await?, batch, load.span).await?,
            Case::Take { batch } => {
                let count = fill_by(connect(FILLERS).await?, load.messages).await?;
                take(connect(CONSUMERS).await?, batch, count).await?
            }
        };
        let rate = done.messages as f64 / done.wall.as_secs_f64();
        crate::print(&format!("{} messages, {rate:.0} a second\n", done.messages))
    })
}
