//! A process that is killed again and again under load, and a ledger outside of it.
//!
//! The process writes a line for whatever it was told: a message is sent once the queue has confirmed it,
//! delivered when a consumer has it, acknowledged once that is confirmed. What the ledger holds must be true after
//! any number of deaths: every message sent is delivered at least once or is still there, none is delivered after
//! its acknowledgement was confirmed, and a key's first deliveries to one consumer are in the order of sending.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore, FatalHandler};
use evenkeel_queue::{Durability, NewMessage, Queue, QueueSettings, Queues};

pub(crate) const ROUNDS: u64 = 20;
const FOLDER: &str = "EVENKEEL_CRASH_FOLDER";
const ROUND: &str = "EVENKEEL_CRASH_ROUND";
/// Has the process be answered before anything is on disk.
pub(crate) const HASTY: &str = "EVENKEEL_CRASH_HASTY";
/// The process's word for having stopped because the disk failed.
pub(crate) const STOPPED: i32 = 3;
/// The process ends by itself in this round, once the queue is empty.
pub(crate) const LAST: &str = "last";

#[test]
fn twenty_kills_lose_nothing_and_repeat_nothing_that_was_confirmed() {
    let folder = tempfile::TempDir::new().unwrap();
    let mut ledger = Ledger::default();
    for round in 0..ROUNDS {
        let mut process = start(folder.path(), &round.to_string(), &[]);
        let lines = lines_of(round);
        let mut out = BufReader::new(process.stdout.take().unwrap());
        ledger.read(&mut out, lines);
        process.kill().unwrap();
        ledger.read(&mut out, u64::MAX);
        process.wait().unwrap();
        ledger.die();
    }
    let mut process = start(folder.path(), LAST, &[]);
    ledger.read(&mut BufReader::new(process.stdout.take().unwrap()), u64::MAX);
    assert!(process.wait().unwrap().success(), "the queue did not come to its end");
    ledger.check();
}

/// The process is killed after so many lines, which is some hundred milliseconds of work and never the same.
pub(crate) fn lines_of(round: u64) -> u64 {
    200 + (round * 7_919) % 4_000
}

/// What the process was told, as it said.
#[derive(Default)]
pub(crate) struct Ledger {
    sent: BTreeSet<String>,
    delivered: BTreeSet<String>,
    acked: BTreeSet<String>,
    redelivered: u64,
    lives: u64,
    faults: Vec<String>,
    /// What the process said about requests that were refused.
    pub(crate) refused: Vec<String>,
    /// What it said before it stopped by itself.
    pub(crate) fatal: Vec<String>,
    /// The last first delivery of each key to each consumer since the last death.
    order: HashMap<(String, String), u64>,
}

impl Ledger {
    /// Takes in what the process says, until it has said so much or is silent for ever.
    pub(crate) fn read(&mut self, out: &mut impl BufRead, lines_max: u64) {
        let mut line = String::new();
        let mut count = 0;
        while count < lines_max && out.read_line(&mut line).unwrap() > 0 {
            // A line that was cut off by the death was not said.
            if line.ends_with('\n') {
                count += u64::from(self.note(line.trim_end()));
            }
            line.clear();
        }
    }

    fn note(&mut self, line: &str) -> bool {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next(), words.next(), words.next()) {
            (Some("S"), Some(body), None, ..) => {
                assert!(self.sent.insert(body.into()), "{body} was sent twice");
            }
            (Some("D"), Some(body), Some(attempt), Some(seq), Some(consumer)) => {
                if self.acked.contains(body) {
                    self.faults
                        .push(format!("{line}: delivered after its acknowledgement, in life {}", self.lives));
                }
                self.redelivered += u64::from(!self.delivered.insert(body.into()));
                let key = body.split('.').next().unwrap();
                let seq = u64::from_str_radix(seq, 16).unwrap();
                if attempt == "1" {
                    let before = self.order.insert((key.into(), consumer.into()), seq);
                    if before.is_some_and(|before| seq <= before) {
                        self.faults.push(format!("{line}: out of order, in life {}", self.lives));
                    }
                }
            }
            (Some("R"), ..) => self.refused.push(line.into()),
            (Some("F"), ..) => self.fatal.push(line.into()),
            (Some("A"), Some(body), None, ..) => {
                self.acked.insert(body.into());
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn die(&mut self) {
        self.lives += 1;
        self.order.clear();
    }

    /// What is not as it was promised.
    pub(crate) fn faults(&self) -> Vec<String> {
        let lost = self.sent.difference(&self.delivered).map(|body| format!("{body} was lost"));
        self.faults.iter().cloned().chain(lost).collect()
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent.len()
    }

    pub(crate) fn check(&self) {
        println!(
            "{} sent, {} delivered, {} acknowledged, {} delivered again, over {ROUNDS} deaths",
            self.sent.len(),
            self.delivered.len(),
            self.acked.len(),
            self.redelivered,
        );
        assert_eq!(self.faults(), [] as [String; 0]);
        assert!(ROUNDS * 20 < self.sent.len() as u64, "hardly anything was sent: {}", self.sent.len());
        assert!(
            ROUNDS * 5 < self.acked.len() as u64,
            "hardly anything was acknowledged: {}",
            self.acked.len()
        );
    }
}

/// Starts the process on a folder.
pub(crate) fn start(folder: &Path, round: &str, more: &[(&str, &OsStr)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .envs(more.iter().copied())
        .args(["--exact", "crash::the_process_that_is_killed", "--ignored", "--nocapture"])
        .env(FOLDER, folder.join("queue"))
        .env(ROUND, round)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "run by the test above, which kills it"]
fn the_process_that_is_killed() {
    let folder = std::env::var(FOLDER).expect("run by another test");
    let round = std::env::var(ROUND).expect("run by another test");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        // The layer under test reserves nothing, so that a full disk is met and not foreseen.
        let fatal = FatalHandler(Arc::new(|error| {
            say(&format!("F {error}\n"));
            std::process::exit(STOPPED);
        }));
        let options = DiskOptions { fatal, reserve_bytes: 0, ..DiskOptions::default() };
        let store = DiskStore::open(&folder, options).unwrap();
        let queues = Queues::open(Arc::new(store), 10).await.unwrap();
        let durability = if std::env::var_os(HASTY).is_some() { Durability::Os } else { Durability::Fsync };
        let settings = QueueSettings { lease_ms: 400, durability, ..QueueSettings::default() };
        let queue = queues.create("jobs", settings, String::new()).await.unwrap().queue();
        let mut tasks = Vec::new();
        if round != LAST {
            for producer in 0..4 {
                tasks.push(tokio::spawn(produce(queue.clone(), round.clone(), producer)));
            }
        }
        for consumer in 0..3 {
            tasks.push(tokio::spawn(consume(queue.clone(), consumer, round == LAST)));
        }
        for task in tasks {
            task.await.unwrap();
        }
        queues.shutdown().await;
    });
}

async fn produce(queue: Queue, round: String, producer: u32) {
    for number in 0_u64.. {
        let bodies: Vec<String> = (0..3)
            .map(|part| format!("k{}.{round}.{producer}.{number}.{part}", (number + part) % 5))
            .collect();
        let key = |body: &String| body.split('.').next().unwrap().to_owned();
        let in_an_hour = Some(Duration::from_secs(3_600)).filter(|_| number % 2 == 0);
        let message = |body: &String| NewMessage {
            ttl: in_an_hour,
            ..NewMessage::new(body.clone()).for_key(key(body))
        };
        // One more, that may be over before anybody has it, and is not told of.
        let brief = format!("k{}.{round}.{producer}.{number}.brief", number % 5);
        let brief = NewMessage { ttl: Some(Duration::from_millis(1 + number % 50)), ..message(&brief) };
        let messages = bodies.iter().map(message).chain([brief]).collect();
        if let Err(error) = queue.enqueue(messages).await {
            say(&format!("R {error}\n"));
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        say(&bodies.iter().map(|body| format!("S {body}\n")).collect::<String>());
    }
}

async fn consume(queue: Queue, consumer: u32, until_empty: bool) {
    loop {
        let want = ReceiveOptions { max: 5, lease: None, wait: Duration::from_millis(100) };
        // A disk that fails is told to the producers too.
        let taken = queue.receive(want).await.unwrap_or_default();
        let totals = queue.totals();
        if until_empty && taken.is_empty() && totals.pending + totals.in_flight + totals.delayed == 0 {
            return;
        }
        let body = |delivery: &evenkeel_queue::Delivery| {
            String::from_utf8_lossy(&delivery.payload.body).into_owned()
        };
        for delivery in &taken {
            say(&format!("D {} {} {:x} {consumer}\n", body(delivery), delivery.attempt, delivery.id.seq.0));
        }
        // One in seven is forgotten and comes again.
        let done: Vec<_> =
            taken.iter().filter(|delivery| until_empty || delivery.id.seq.0 % 7 != 0).collect();
        let receipts: Vec<_> = done.iter().map(|delivery| delivery.receipt.clone()).collect();
        for (delivery, answer) in done.iter().zip(queue.ack(&receipts).await) {
            if answer.is_ok() {
                say(&format!("A {}\n", body(delivery)));
            }
        }
    }
}

/// Says something in one write, so that a line is whole or missing.
fn say(lines: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(lines.as_bytes()).unwrap();
    out.flush().unwrap();
}
