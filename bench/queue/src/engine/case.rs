//! One engine case, run in a separate process; prints its metrics to standard output as a line of JSON.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_policy::cost::Cost;
use evenkeel_queue::message::{AppendedMessage, MessageMeta};
use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::queue_state::QueueState;
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::{
    Durability, Epoch, KeyId, Namespace, NewMessage, Queue, QueueId, QueueSettings, Queues, Seq, UnixMillis,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::client::BODY_BYTES;

const BATCH: usize = 10;
const CONSUMERS: usize = 4;
const FILLERS: usize = 16;
const FILL_BATCH: usize = 100;
/// Messages in one batch of every filler; message counts are multiples of it.
pub(super) const SENT_TOGETHER: usize = FILLERS * FILL_BATCH;
/// Long-polling time of a consumer before it checks whether messages are left.
const RECEIVE_WAIT: Duration = Duration::from_millis(50);
/// Time limit of a take, far above the time needed to deliver everything.
const TAKE_MAX: Duration = Duration::from_secs(300);
const PROBES: usize = 200;

/// Every metric that a case may print.
pub(super) const METRICS: &[&str] = &[
    "send_cpu_us",
    "send_rate",
    "take_cpu_us",
    "take_rate",
    "state_ns",
    "open_ms",
    "rss_mib",
    "first_us",
    "none_us",
    "one_us",
];

/// Arguments of `queue-bench engine-case`.
#[derive(Debug, clap::Args)]
pub(crate) struct EngineCase {
    kind: EngineCaseKind,
    /// Directory of the queue's store
    directory: PathBuf,
    /// Number of keys, or of producers
    #[arg(value_name = "KEYS")]
    width: usize,
    /// Number of messages
    messages: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum EngineCaseKind {
    State,
    Keys,
    Producers,
    Fill,
    Drain,
    Open,
}

type Metrics = Map<String, Value>;

/// Runs a case and prints its metrics.
pub(crate) fn run(case: &EngineCase) -> io::Result<()> {
    let metrics = if let EngineCaseKind::State = case.kind {
        metrics([("state_ns", state_ns(case.width, case.messages)?)])
    } else {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(on_disk(case))?
    };
    crate::print(&format!("{}\n", Value::Object(metrics)))
}

async fn on_disk(case: &EngineCase) -> io::Result<Metrics> {
    let mut metrics = Metrics::new();
    let started = Instant::now();
    let store = DiskStore::open(&case.directory, DiskOptions::default()).map_err(io::Error::other)?;
    let queues = Queues::open(Arc::new(store), 10).await.map_err(io::Error::other)?;
    let durability = if let EngineCaseKind::Fill = case.kind { Durability::Os } else { Durability::Fsync };
    let settings = QueueSettings { durability, ..QueueSettings::default() };
    let created = queues.create(Namespace::Shared, "jobs", settings, String::new()).await;
    let queue = created.map_err(io::Error::other)?.queue();
    let opened = started.elapsed();
    match case.kind {
        EngineCaseKind::State => {}
        EngineCaseKind::Keys => {
            // The first message of a key also stores the key, so it is sent before measuring.
            let warm_up = case.width.next_multiple_of(SENT_TOGETHER);
            send(&queue, Producers::filling(case.width), warm_up).await?;
            take(&queue, warm_up).await?;
            metrics.extend(send(&queue, Producers::filling(case.width), case.messages).await?);
            metrics.extend(take(&queue, case.messages).await?);
        }
        EngineCaseKind::Producers => {
            let producers = Producers { count: case.width, batch: 1, keys: case.width };
            metrics.extend(send(&queue, producers, case.messages).await?);
        }
        EngineCaseKind::Fill => {
            metrics.extend(send(&queue, Producers::filling(case.width), case.messages).await?);
        }
        EngineCaseKind::Drain => {
            metrics.insert("open_ms".to_owned(), json!(opened.as_secs_f64() * 1e3));
            metrics.insert("rss_mib".to_owned(), json!(rss_mib()?));
            let first = Instant::now();
            let one = queue.receive(receive_options(1, Duration::ZERO)).await.map_err(io::Error::other)?;
            metrics.insert("first_us".to_owned(), json!(first.elapsed().as_secs_f64() * 1e6));
            acknowledge(&queue, &one).await?;
            metrics.extend(take(&queue, case.messages - 1).await?);
            metrics.extend(probe(&queue).await?);
        }
        EngineCaseKind::Open => {
            metrics.insert("open_ms".to_owned(), json!(opened.as_secs_f64() * 1e3));
            metrics.insert("rss_mib".to_owned(), json!(rss_mib()?));
            metrics.extend(probe(&queue).await?);
        }
    }
    queues.shutdown().await;
    Ok(metrics)
}

#[derive(Clone, Copy)]
struct Producers {
    count: usize,
    batch: usize,
    keys: usize,
}

impl Producers {
    fn filling(keys: usize) -> Self {
        Self { count: FILLERS, batch: FILL_BATCH, keys }
    }
}

/// Sends from several producers concurrently.
async fn send(queue: &Queue, producers: Producers, messages: usize) -> io::Result<Metrics> {
    let Producers { count, batch, keys } = producers;
    let names: Arc<[Arc<str>]> = (0..keys).map(|key| format!("t{key}").into()).collect();
    let cpu_before = cpu();
    let started = Instant::now();
    let batches = messages / count / batch;
    let producer = |number: usize, queue: Queue, names: Arc<[Arc<str>]>| async move {
        for batch_index in 0..batches {
            let first = (number * batches + batch_index) * batch;
            let message = |index: usize| {
                NewMessage::new(vec![b'x'; BODY_BYTES]).for_key(names[(first + index) % names.len()].clone())
            };
            queue.enqueue((0..batch).map(message).collect()).await.map_err(io::Error::other)?;
        }
        Ok::<_, io::Error>(())
    };
    let tasks: Vec<_> =
        (0..count).map(|number| tokio::spawn(producer(number, queue.clone(), names.clone()))).collect();
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    let cpu_us = cpu_us_per_message(cpu_before, messages);
    let rate = messages as f64 / started.elapsed().as_secs_f64();
    Ok(metrics([("send_cpu_us", cpu_us), ("send_rate", rate)]))
}

/// Receives and acknowledges all messages.
async fn take(queue: &Queue, messages: usize) -> io::Result<Metrics> {
    let cpu_before = cpu();
    let started = Instant::now();
    let left = Arc::new(AtomicUsize::new(messages));
    let consumer = |queue: Queue, left: Arc<AtomicUsize>| async move {
        while left.load(Ordering::Relaxed) > 0 {
            let deliveries =
                queue.receive(receive_options(BATCH, RECEIVE_WAIT)).await.map_err(io::Error::other)?;
            acknowledge(&queue, &deliveries).await?;
            let before = left.fetch_sub(deliveries.len(), Ordering::Relaxed);
            if before < deliveries.len() || started.elapsed() > TAKE_MAX {
                return Err(io::Error::other(format!(
                    "{before} messages were left, but {} were delivered",
                    deliveries.len()
                )));
            }
        }
        Ok::<_, io::Error>(started.elapsed())
    };
    let tasks: Vec<_> = (0..CONSUMERS).map(|_| tokio::spawn(consumer(queue.clone(), left.clone()))).collect();
    // The time of the first consumer that sees an empty queue; the others may still be in a long poll.
    let mut wall = TAKE_MAX;
    for task in tasks {
        wall = wall.min(task.await.map_err(io::Error::other)??);
    }
    let cpu_us = cpu_us_per_message(cpu_before, messages);
    Ok(metrics([("take_cpu_us", cpu_us), ("take_rate", messages as f64 / wall.as_secs_f64())]))
}

/// Measures receives on an empty queue (the first, and the median) and on a queue with one message (the median).
async fn probe(queue: &Queue) -> io::Result<Metrics> {
    let mut none = Vec::new();
    let mut one = Vec::new();
    for _ in 0..PROBES {
        let started = Instant::now();
        let deliveries = queue.receive(receive_options(1, Duration::ZERO)).await.map_err(io::Error::other)?;
        none.push(started.elapsed());
        if !deliveries.is_empty() {
            return Err(io::Error::other("the queue is not empty"));
        }
    }
    let mut metrics = metrics([("first_us", none[0].as_secs_f64() * 1e6)]);
    for _ in 0..PROBES {
        queue.enqueue(vec![NewMessage::new(vec![b'x'; BODY_BYTES])]).await.map_err(io::Error::other)?;
        let started = Instant::now();
        let deliveries =
            queue.receive(receive_options(1, Duration::from_secs(1))).await.map_err(io::Error::other)?;
        one.push(started.elapsed());
        acknowledge(queue, &deliveries).await?;
    }
    for (name, mut durations) in [("none_us", none), ("one_us", one)] {
        durations.sort_unstable();
        metrics.insert(name.to_owned(), json!(durations[PROBES / 2].as_secs_f64() * 1e6));
    }
    Ok(metrics)
}

async fn acknowledge(queue: &Queue, deliveries: &[evenkeel_queue::Delivery]) -> io::Result<()> {
    let receipts: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
    for result in queue.ack(&receipts).await {
        result.map_err(io::Error::other)?;
    }
    Ok(())
}

fn receive_options(max: usize, wait: Duration) -> ReceiveOptions {
    ReceiveOptions { max, lease: None, wait }
}

fn cpu_us_per_message(cpu_before: Duration, messages: usize) -> f64 {
    cpu().saturating_sub(cpu_before).as_secs_f64() * 1e6 / messages as f64
}

fn metrics<const N: usize>(values: [(&str, f64); N]) -> Metrics {
    values.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

/// Measures the CPU nanoseconds per message in the queue state alone: appended, leased in DRR order, acknowledged.
fn state_ns(keys: usize, messages: usize) -> io::Result<f64> {
    let settings = QueueSettings::default();
    let mut state = QueueState::new(Epoch(1), &settings, (1, 2)).map_err(io::Error::other)?;
    let names: Vec<Arc<str>> = (0..keys).map(|key| format!("t{key}").into()).collect();
    let template = NewMessage::new("");
    let now = UnixMillis(1);
    // Waiting messages must fit into the prefetch windows, because there is no store to read from.
    let waiting = (2 * keys).max(200);
    let cpu_before = cpu();
    let mut done = 0_usize;
    let mut sent = 0_usize;
    while done < messages {
        while sent < done + waiting {
            let key = sent % keys;
            let meta = MessageMeta {
                seq: Seq(sent as u64 + 1),
                sent_at: now,
                size: 1,
                cost: Cost::MESSAGE,
                from: None,
                expires_at: None,
            };
            let message = AppendedMessage {
                key: KeyId(key as u32),
                name: names[key].clone(),
                weight: None,
                meta,
                not_before: None,
                payload: template.payload.clone(),
            };
            state.append(now, message).map_err(io::Error::other)?;
            sent += 1;
        }
        for _ in 0..waiting / BATCH {
            let batch =
                state.lease_messages(now, BATCH, Duration::from_secs(30)).map_err(io::Error::other)?;
            if batch.leased.is_empty() {
                return Err(io::Error::other("the queue state delivered nothing"));
            }
            for leased in batch.leased {
                let delivery = DeliveryId {
                    queue: QueueId(1),
                    key: leased.key,
                    seq: leased.meta.seq,
                    epoch: Epoch(1),
                    attempt: leased.deliveries.number(),
                };
                state.ack(delivery).map_err(io::Error::other)?;
                state.confirm_removal(leased.meta.seq);
                done += 1;
            }
        }
    }
    Ok(cpu().saturating_sub(cpu_before).as_secs_f64() * 1e9 / done as f64)
}

/// Returns the CPU time of all threads of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn rss_mib() -> io::Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.ok_or_else(|| io::Error::other("process status has no VmRSS"))? / 1024.0)
}
