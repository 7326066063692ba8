//! One part, in a process of its own; its figures go to the standard output as a line of JSON.

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
    Durability, Epoch, KeyId, NewMessage, Queue, QueueId, QueueSettings, Queues, Seq, UnixMillis,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::client::BODY_BYTES;

const BATCH: usize = 10;
const CONSUMERS: usize = 4;
const FILLERS: usize = 16;
const FILL_BATCH: usize = 100;
/// All fillers' batches once: numbers of messages are multiples of it.
pub(super) const SENT_TOGETHER: usize = FILLERS * FILL_BATCH;
/// How long a consumer waits for a first message before it looks whether there is any left.
const RECEIVE_WAIT: Duration = Duration::from_millis(50);
/// Far more than it takes to deliver everything.
const TAKE_MAX: Duration = Duration::from_secs(300);
const PROBES: usize = 200;

/// Every figure that a part may print.
pub(super) const FIGURES: &[&str] = &[
    "send_cpu_us",
    "send_rate",
    "take_cpu_us",
    "take_rate",
    "book_ns",
    "open_ms",
    "rss_mib",
    "first_us",
    "none_us",
    "one_us",
];

/// EngineCaseKind to do.
#[derive(Debug)]
pub(crate) struct EngineCase {
    what: EngineCaseKind,
    folder: PathBuf,
    /// Keys, or producers.
    first: usize,
    messages: usize,
}

#[derive(Clone, Copy, Debug)]
enum EngineCaseKind {
    Book,
    Keys,
    Producers,
    Fill,
    Drain,
    Open,
}

type Figures = Map<String, Value>;

impl EngineCase {
    /// Finds a part by its name.
    pub(crate) fn of(name: &str, folder: PathBuf, first: usize, messages: usize) -> Option<Self> {
        let what = match name {
            "book" => EngineCaseKind::Book,
            "keys" => EngineCaseKind::Keys,
            "producers" => EngineCaseKind::Producers,
            "fill" => EngineCaseKind::Fill,
            "drain" => EngineCaseKind::Drain,
            "open" => EngineCaseKind::Open,
            _ => return None,
        };
        Some(Self { what, folder, first, messages })
    }
}

/// Does a part, and prints its figures.
pub(crate) fn run(part: &EngineCase) -> io::Result<()> {
    let mut figures = Figures::new();
    if let EngineCaseKind::Book = part.what {
        figures.insert("book_ns".to_owned(), json!(book(part.first, part.messages)?));
        return crate::print(&format!("{}\n", Value::Object(figures)));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(on_disk(part, &mut figures))?;
    crate::print(&format!("{}\n", Value::Object(figures)))
}

async fn on_disk(part: &EngineCase, figures: &mut Figures) -> io::Result<()> {
    let begun = Instant::now();
    let store = DiskStore::open(&part.folder, DiskOptions::default()).map_err(io::Error::other)?;
    let queues = Queues::open(Arc::new(store), 10).await.map_err(io::Error::other)?;
    let durability = if let EngineCaseKind::Fill = part.what { Durability::Os } else { Durability::Fsync };
    let settings = QueueSettings { durability, ..QueueSettings::default() };
    let queue = queues.create("jobs", settings, String::new()).await.map_err(io::Error::other)?.queue();
    let opened = begun.elapsed();
    match part.what {
        EngineCaseKind::Book => {}
        EngineCaseKind::Keys => {
            // A key's first message costs more, because the key is written down with it.
            let first = part.first.next_multiple_of(SENT_TOGETHER);
            let mut untold = Figures::new();
            send(&queue, FILLERS, FILL_BATCH, part.first, first, &mut untold).await?;
            take(&queue, first, &mut untold).await?;
            send(&queue, FILLERS, FILL_BATCH, part.first, part.messages, figures).await?;
            take(&queue, part.messages, figures).await?;
        }
        EngineCaseKind::Producers => send(&queue, part.first, 1, part.first, part.messages, figures).await?,
        EngineCaseKind::Fill => send(&queue, FILLERS, FILL_BATCH, part.first, part.messages, figures).await?,
        EngineCaseKind::Drain => {
            figures.insert("open_ms".to_owned(), json!(opened.as_secs_f64() * 1e3));
            figures.insert("rss_mib".to_owned(), json!(rss_mib()?));
            let first = Instant::now();
            let one = queue.receive(want(1, Duration::ZERO)).await.map_err(io::Error::other)?;
            figures.insert("first_us".to_owned(), json!(first.elapsed().as_secs_f64() * 1e6));
            acknowledge(&queue, &one).await?;
            take(&queue, part.messages - 1, figures).await?;
            probe(&queue, figures).await?;
        }
        EngineCaseKind::Open => {
            figures.insert("open_ms".to_owned(), json!(opened.as_secs_f64() * 1e3));
            figures.insert("rss_mib".to_owned(), json!(rss_mib()?));
            probe(&queue, figures).await?;
        }
    }
    queues.shutdown().await;
    Ok(())
}

/// Sends from many producers.
async fn send(
    queue: &Queue,
    producers: usize,
    batch: usize,
    keys: usize,
    messages: usize,
    figures: &mut Figures,
) -> io::Result<()> {
    let names: Arc<[Arc<str>]> = (0..keys).map(|key| format!("t{key}").into()).collect();
    let cpu = cpu();
    let begun = Instant::now();
    let batches = messages / producers / batch;
    let producer = |number: usize, queue: Queue, names: Arc<[Arc<str>]>| async move {
        for turn in 0..batches {
            let first = (number * batches + turn) * batch;
            let draft = |at: usize| {
                NewMessage::new(vec![b'x'; BODY_BYTES]).of(names[(first + at) % names.len()].clone())
            };
            queue.enqueue((0..batch).map(draft).collect()).await.map_err(io::Error::other)?;
        }
        Ok::<_, io::Error>(())
    };
    let tasks: Vec<_> =
        (0..producers).map(|number| tokio::spawn(producer(number, queue.clone(), names.clone()))).collect();
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    note(figures, "send_cpu_us", "send_rate", messages, cpu, begun);
    Ok(())
}

/// Receives and acknowledges everything.
async fn take(queue: &Queue, messages: usize, figures: &mut Figures) -> io::Result<()> {
    let cpu = cpu();
    let begun = Instant::now();
    let left = Arc::new(AtomicUsize::new(messages));
    let consumer = |queue: Queue, left: Arc<AtomicUsize>| async move {
        while 0 < left.load(Ordering::Relaxed) {
            let found = queue.receive(want(BATCH, RECEIVE_WAIT)).await.map_err(io::Error::other)?;
            acknowledge(&queue, &found).await?;
            let before = left.fetch_sub(found.len(), Ordering::Relaxed);
            if before < found.len() || TAKE_MAX < begun.elapsed() {
                return Err(io::Error::other(format!(
                    "{before} messages were left, and {} came",
                    found.len()
                )));
            }
        }
        Ok::<_, io::Error>(begun.elapsed())
    };
    let tasks: Vec<_> = (0..CONSUMERS).map(|_| tokio::spawn(consumer(queue.clone(), left.clone()))).collect();
    // The first to see that none is left; others may wait a moment longer for one.
    let mut wall = TAKE_MAX;
    for task in tasks {
        wall = wall.min(task.await.map_err(io::Error::other)??);
    }
    note(figures, "take_cpu_us", "take_rate", messages, cpu, begun);
    figures.insert("take_rate".to_owned(), json!(messages as f64 / wall.as_secs_f64()));
    Ok(())
}

/// EngineCaseKind the queue answers when it is empty, and when it has one message: middle of some tries.
async fn probe(queue: &Queue, figures: &mut Figures) -> io::Result<()> {
    let mut none = Vec::new();
    let mut one = Vec::new();
    for _ in 0..PROBES {
        let begun = Instant::now();
        let found = queue.receive(want(1, Duration::ZERO)).await.map_err(io::Error::other)?;
        none.push(begun.elapsed());
        if !found.is_empty() {
            return Err(io::Error::other("the queue is not empty"));
        }
    }
    figures.insert("first_us".to_owned(), json!(none[0].as_secs_f64() * 1e6));
    for _ in 0..PROBES {
        queue.enqueue(vec![NewMessage::new(vec![b'x'; BODY_BYTES])]).await.map_err(io::Error::other)?;
        let begun = Instant::now();
        let found = queue.receive(want(1, Duration::from_secs(1))).await.map_err(io::Error::other)?;
        one.push(begun.elapsed());
        acknowledge(queue, &found).await?;
    }
    for (name, mut took) in [("none_us", none), ("one_us", one)] {
        took.sort_unstable();
        figures.insert(name.to_owned(), json!(took[PROBES / 2].as_secs_f64() * 1e6));
    }
    Ok(())
}

async fn acknowledge(queue: &Queue, found: &[evenkeel_queue::Delivery]) -> io::Result<()> {
    let receipts: Vec<_> = found.iter().map(|delivery| delivery.receipt.clone()).collect();
    for answer in queue.ack(&receipts).await {
        answer.map_err(io::Error::other)?;
    }
    Ok(())
}

fn want(max: usize, wait: Duration) -> ReceiveOptions {
    ReceiveOptions { max, lease: None, wait }
}

fn note(
    figures: &mut Figures,
    cpu_us: &str,
    rate: &str,
    messages: usize,
    cpu_before: Duration,
    begun: Instant,
) {
    let spent = cpu().saturating_sub(cpu_before);
    figures.insert(cpu_us.to_owned(), json!(spent.as_secs_f64() * 1e6 / messages as f64));
    figures.insert(rate.to_owned(), json!(messages as f64 / begun.elapsed().as_secs_f64()));
}

/// Nanoseconds that a message costs in the book: taken in, leased in its turn, acknowledged.
fn book(keys: usize, messages: usize) -> io::Result<f64> {
    let settings = QueueSettings::default();
    let mut book = QueueState::new(Epoch(1), &settings, (1, 2)).map_err(io::Error::other)?;
    let names: Vec<Arc<str>> = (0..keys).map(|key| format!("t{key}").into()).collect();
    let draft = NewMessage::new("");
    let now = UnixMillis(1);
    // As many wait at a time as every key can have in memory: nothing is read from a store here.
    let waiting = (2 * keys).max(200);
    let cpu_before = cpu();
    let mut done = 0_usize;
    let mut sent = 0_usize;
    while done < messages {
        while sent < done + waiting {
            let key = sent % keys;
            let header = MessageMeta {
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
                header,
                not_before: None,
                payload: draft.payload.clone(),
            };
            book.append(now, message).map_err(io::Error::other)?;
            sent += 1;
        }
        for _ in 0..waiting / BATCH {
            let taken = book.lease_messages(now, BATCH, Duration::from_secs(30)).map_err(io::Error::other)?;
            if taken.leased.is_empty() {
                return Err(io::Error::other("the book delivered nothing"));
            }
            for leased in taken.leased {
                let claim = DeliveryId {
                    queue: QueueId(1),
                    key: leased.key,
                    seq: leased.header.seq,
                    epoch: Epoch(1),
                    attempt: leased.delivered.number(),
                };
                book.ack(claim).map_err(io::Error::other)?;
                book.confirm_removal(leased.header.seq);
                done += 1;
            }
        }
    }
    Ok(cpu().saturating_sub(cpu_before).as_secs_f64() * 1e9 / done as f64)
}

/// How long all threads of this process have run.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn rss_mib() -> io::Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.ok_or_else(|| io::Error::other("a process without VmRSS"))? / 1024.0)
}
