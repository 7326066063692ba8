//! Load generator: persistent connections that send the next request as soon as the previous one is confirmed.
//!
//! One thread drives all connections and parses only what it needs, so that the cores are left to the contender.
//! Limits: a turn ends after a minute, whatever the server does.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench_support::{RunError, TurnSample, latency_percentiles};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::args::LoadArgs;
use crate::case::{CONSUMERS, Case};
use crate::client::{Protocol, QueueClient, ReceiptHandle};
use crate::contender::Server;

const TURN_MAX: Duration = Duration::from_secs(60);
const SEND_DURATION: Duration = Duration::from_millis(1_000);
/// Number of messages in the queue when the consumers start.
const BACKLOG: f64 = 6_000.0;
/// Pause of a consumer after an empty receive.
const EMPTY_PAUSE: Duration = Duration::from_millis(1);
/// Backlog of a profiled take case, per second of its duration.
const TAKEN_PER_SECOND: usize = 5_000;
const FILLERS: usize = 16;
const FILL_BATCH: usize = 10;

pub(crate) struct LoadResult {
    pub(crate) messages: usize,
    pub(crate) wall: Duration,
    latencies_ns: Vec<u64>,
}

/// Runs a case on a server; `scale` multiplies its duration or backlog.
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
                measure(server, send(clients, batch, SEND_DURATION.mul_f64(scale))).await
            }
            Case::Take { batch } => {
                let backlog = fill(server, queue, BACKLOG * server.backlog_fraction * scale).await?;
                let clients = connect(server, queue, CONSUMERS).await?;
                let sample = measure(server, take(clients, batch, backlog)).await?;
                check_empty(server, queue).await?;
                Ok(sample)
            }
        }
    };
    let local = LocalSet::new();
    let turn = local.run_until(timeout(TURN_MAX, turn));
    turn.await
        .unwrap_or_else(|_| Err(io::Error::other(format!("timed out after {} s", TURN_MAX.as_secs()))))
        .map_err(RunError::from)
}

/// Runs a load and measures the CPU time that the server uses during it.
async fn measure(
    server: &Server,
    load: impl Future<Output = io::Result<LoadResult>>,
) -> io::Result<TurnSample> {
    let before = server.process.cpu()?;
    let result = load.await?;
    let cpu = server.process.cpu()?.saturating_sub(before);
    let us = |time: Duration| time.as_secs_f64() * 1e6 / result.messages as f64;
    let mut sample = vec![
        ("rate", result.messages as f64 / result.wall.as_secs_f64()),
        ("wall_us", us(result.wall)),
        ("cpu_us", us(cpu)),
    ];
    sample.extend(latency_percentiles(result.latencies_ns));
    Ok(sample)
}

/// Creates a queue.
pub(crate) async fn create(server: &Server, queue: &str) -> io::Result<()> {
    server.protocol.connect(server.address, queue, 0).await?.create().await
}

/// Opens `count` connections to a queue.
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

/// Sends for `duration`, then waits for the outstanding confirmations.
pub(crate) async fn send(
    clients: Vec<QueueClient>,
    batch: usize,
    duration: Duration,
) -> io::Result<LoadResult> {
    let started = Instant::now();
    let producer = |mut client: QueueClient| async move {
        let mut latencies = Vec::new();
        while started.elapsed() < duration {
            let sent = Instant::now();
            client.send(batch).await?;
            latencies.push(sent.elapsed().as_nanos() as u64);
        }
        Ok(latencies)
    };
    let latencies_ns = join_all(clients.into_iter().map(|client| spawn_local(producer(client)))).await?;
    Ok(LoadResult { messages: latencies_ns.len() * batch, wall: started.elapsed(), latencies_ns })
}

/// Sends at least `count` messages and returns how many.
pub(crate) async fn fill(server: &Server, queue: &str, count: f64) -> io::Result<usize> {
    fill_with(connect(server, queue, FILLERS).await?, count as usize).await
}

async fn fill_with(clients: Vec<QueueClient>, count: usize) -> io::Result<usize> {
    let per_round = clients.len() * FILL_BATCH;
    let batches = count.div_ceil(per_round);
    let filler = |mut client: QueueClient| async move {
        for _ in 0..batches {
            client.send(FILL_BATCH).await?;
        }
        Ok(Vec::<()>::new())
    };
    join_all(clients.into_iter().map(|client| spawn_local(filler(client)))).await?;
    Ok(batches * per_round)
}

/// Drains a queue of `count` messages; a latency covers a receive and its acknowledgement.
pub(crate) async fn take(clients: Vec<QueueClient>, batch: usize, count: usize) -> io::Result<LoadResult> {
    let started = Instant::now();
    let left = Rc::new(Cell::new(count));
    let consumer = |mut client: QueueClient| {
        let left = left.clone();
        async move {
            let mut latencies = Vec::new();
            while left.get() > 0 {
                let sent = Instant::now();
                let receipts: Vec<ReceiptHandle> = client.receive(batch).await?;
                if receipts.is_empty() {
                    sleep(EMPTY_PAUSE).await;
                    continue;
                }
                client.acknowledge(&receipts).await?;
                let remaining = left.get().checked_sub(receipts.len());
                left.set(
                    remaining.ok_or_else(|| io::Error::other("more messages were delivered than sent"))?,
                );
                latencies.push(sent.elapsed().as_nanos() as u64);
            }
            Ok(latencies)
        }
    };
    let latencies_ns = join_all(clients.into_iter().map(|client| spawn_local(consumer(client)))).await?;
    Ok(LoadResult { messages: count, wall: started.elapsed(), latencies_ns })
}

/// Checks that the queue is empty: if a message had been delivered twice, another one would be left.
async fn check_empty(server: &Server, queue: &str) -> io::Result<()> {
    let mut client = server.protocol.connect(server.address, queue, CONSUMERS).await?;
    let left = client.receive(1).await?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(io::Error::other("the queue is not empty although every message was acknowledged"))
    }
}

async fn join_all<T: 'static>(
    tasks: impl Iterator<Item = JoinHandle<io::Result<Vec<T>>>>,
) -> io::Result<Vec<T>> {
    let tasks: Vec<_> = tasks.collect();
    let mut results = Vec::new();
    for task in tasks {
        results.append(&mut task.await.map_err(io::Error::other)??);
    }
    Ok(results)
}

/// Runs a case on an SQS server, for profiling it.
pub(crate) fn main(args: &LoadArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let duration = Duration::from_secs(args.seconds.into());
    let messages = args.seconds as usize * TAKEN_PER_SECOND;
    let connect = |count| open(Protocol::Sqs, args.address, "profiled", count);
    LocalSet::new().block_on(&runtime, async {
        connect(1).await?.remove(0).create().await?;
        let result = match args.case {
            Case::Send { batch, producers } => send(connect(producers).await?, batch, duration).await?,
            Case::Take { batch } => {
                let count = fill_with(connect(FILLERS).await?, messages).await?;
                take(connect(CONSUMERS).await?, batch, count).await?
            }
        };
        let rate = result.messages as f64 / result.wall.as_secs_f64();
        crate::print(&format!("{} messages, {rate:.0} per second\n", result.messages))
    })
}
