//! A process that is killed repeatedly under load, and a ledger outside of it.
//!
//! The process prints a line for each event: `S` once a send is confirmed, `D` when a consumer receives a message, `A`
//! once an acknowledgement is confirmed, `R` for a rejected send, `F` for a fatal error. Messages that no consumer
//! acknowledges in time move to a dead-letter queue, which is consumed too, while late acknowledgements compete with the
//! moves. The ledger checks after all kills: every sent message was delivered at least once, none was delivered after its
//! confirmed acknowledgement from either queue, and a key's first deliveries to one consumer are in the order they were
//! sent.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore, FatalHandler};
use evenkeel_queue::{Delivery, Durability, Namespace, NewMessage, Queue, QueueSettings, Queues};

pub(crate) const ROUNDS: u64 = 20;
const DIR: &str = "EVENKEEL_CRASH_DIR";
const ROUND: &str = "EVENKEEL_CRASH_ROUND";
const LEASE: Duration = Duration::from_millis(400);
/// Deliveries before a message moves to the dead-letter queue.
const ATTEMPTS_MAX: u32 = 2;
/// Makes the queue answer before it syncs.
pub(crate) const UNSYNCED: &str = "EVENKEEL_CRASH_UNSYNCED";
/// Exit code of the process after a failed fsync.
pub(crate) const STOPPED: i32 = 3;
/// Round in which the process exits by itself, once the queue is empty.
pub(crate) const LAST: &str = "last";

#[test]
fn twenty_kills_lose_no_confirmed_message_and_repeat_no_acknowledged_one() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut ledger = Ledger::default();
    for round in 0..ROUNDS {
        let mut process = start(dir.path(), &round.to_string(), &[]);
        let lines = lines_before_kill(round);
        let mut out = BufReader::new(process.stdout.take().unwrap());
        ledger.read(&mut out, lines);
        process.kill().unwrap();
        ledger.read(&mut out, u64::MAX);
        process.wait().unwrap();
        ledger.record_crash();
    }
    let mut process = start(dir.path(), LAST, &[]);
    ledger.read(&mut BufReader::new(process.stdout.take().unwrap()), u64::MAX);
    assert!(process.wait().unwrap().success(), "the queue was not emptied");
    ledger.check();
}

/// Returns the number of lines before the kill: a few hundred milliseconds of work, different every round.
pub(crate) fn lines_before_kill(round: u64) -> u64 {
    200 + (round * 7_919) % 4_000
}

/// The events that the process printed.
#[derive(Default)]
pub(crate) struct Ledger {
    sent: BTreeSet<String>,
    delivered: BTreeSet<String>,
    acked: BTreeSet<String>,
    redelivered: u64,
    crashes: u64,
    faults: Vec<String>,
    /// Errors of rejected requests.
    pub(crate) rejected: Vec<String>,
    /// Errors printed before the process stopped by itself.
    pub(crate) fatal: Vec<String>,
    /// Sequence number of the last first delivery of each key to each consumer since the last crash.
    order: HashMap<(String, String), u64>,
}

impl Ledger {
    /// Reads up to `lines_max` lines of the process, or until it ends.
    pub(crate) fn read(&mut self, out: &mut impl BufRead, lines_max: u64) {
        let mut line = String::new();
        let mut count = 0;
        while count < lines_max && out.read_line(&mut line).unwrap() > 0 {
            // A line that was cut off by the kill does not count.
            if line.ends_with('\n') {
                count += u64::from(self.record(line.trim_end()));
            }
            line.clear();
        }
    }

    fn record(&mut self, line: &str) -> bool {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next(), words.next(), words.next()) {
            (Some("S"), Some(body), None, ..) => {
                assert!(self.sent.insert(body.into()), "{body} was sent twice");
            }
            (Some("D"), Some(body), Some(attempt), Some(seq), Some(consumer)) => {
                if self.acked.contains(body) {
                    self.faults.push(format!(
                        "{line}: delivered after its acknowledgement, after {} crashes",
                        self.crashes
                    ));
                }
                self.redelivered += u64::from(!self.delivered.insert(body.into()));
                let key = body.split('.').next().unwrap();
                let seq = u64::from_str_radix(seq, 16).unwrap();
                if attempt == "1" {
                    let before = self.order.insert((key.into(), consumer.into()), seq);
                    if before.is_some_and(|before| seq <= before) {
                        self.faults.push(format!("{line}: out of order, after {} crashes", self.crashes));
                    }
                }
            }
            (Some("R"), ..) => self.rejected.push(line.into()),
            (Some("F"), ..) => self.fatal.push(line.into()),
            (Some("A"), Some(body), None, ..) => {
                self.acked.insert(body.into());
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn record_crash(&mut self) {
        self.crashes += 1;
        self.order.clear();
    }

    /// Returns the violations of the guarantees.
    pub(crate) fn faults(&self) -> Vec<String> {
        let lost = self.sent.difference(&self.delivered).map(|body| format!("{body} was lost"));
        self.faults.iter().cloned().chain(lost).collect()
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent.len()
    }

    pub(crate) fn check(&self) {
        println!(
            "{} sent, {} delivered, {} acknowledged, {} redelivered, over {ROUNDS} kills",
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

/// Starts the process on a data directory.
pub(crate) fn start(dir: &Path, round: &str, extra: &[(&str, &OsStr)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .envs(extra.iter().copied())
        .args(["--exact", "crash::the_process_that_is_killed", "--ignored", "--nocapture"])
        .env(DIR, dir.join("queue"))
        .env(ROUND, round)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "run by the test above, which kills it"]
fn the_process_that_is_killed() {
    let dir = std::env::var(DIR).expect("run by another test");
    let round = std::env::var(ROUND).expect("run by another test");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        let fatal = FatalHandler(Arc::new(|error| {
            print_lines(&format!("F {error}\n"));
            std::process::exit(STOPPED);
        }));
        // Without a reserve, so that the disk can become full.
        let options = DiskOptions { fatal, reserve_bytes: 0, ..DiskOptions::default() };
        let store = DiskStore::open(&dir, options).unwrap();
        let queues = Queues::open(Arc::new(store), 10).await.unwrap();
        let durability =
            if std::env::var_os(UNSYNCED).is_some() { Durability::Os } else { Durability::Fsync };
        let settings =
            QueueSettings { lease_ms: LEASE.as_millis() as u64, durability, ..QueueSettings::default() };
        let create = |name, settings| queues.create(Namespace::Shared, name, settings, String::new());
        let dead = create("dead", settings.clone()).await.unwrap().queue();
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: ATTEMPTS_MAX });
        let queue = create("jobs", QueueSettings { redrive, ..settings }).await.unwrap().queue();
        let mut tasks = Vec::new();
        if round != LAST {
            for producer in 0..4 {
                tasks.push(tokio::spawn(produce(queue.clone(), round.clone(), producer)));
            }
        }
        for consumer in 0..3 {
            tasks.push(tokio::spawn(consume([queue.clone(), dead.clone()], consumer, round == LAST)));
        }
        tasks.push(tokio::spawn(consume([dead, queue], 3, round == LAST)));
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
        let ttl = Some(Duration::from_secs(3_600)).filter(|_| number % 2 == 0);
        let message = |body: &String| NewMessage { ttl, ..NewMessage::new(body.clone()).for_key(key(body)) };
        // One more message, which may expire before its delivery and is not reported as sent.
        let short_lived = format!("k{}.{round}.{producer}.{number}.short", number % 5);
        let short_lived =
            NewMessage { ttl: Some(Duration::from_millis(1 + number % 50)), ..message(&short_lived) };
        let messages = bodies.iter().map(message).chain([short_lived]).collect();
        if let Err(error) = queue.enqueue(messages).await {
            print_lines(&format!("R {error}\n"));
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        print_lines(&bodies.iter().map(|body| format!("S {body}\n")).collect::<String>());
    }
}

/// Consumes the first queue; with `until_empty`, until both are empty.
async fn consume([queue, other]: [Queue; 2], consumer: u32, until_empty: bool) {
    let mut late = VecDeque::new();
    loop {
        let options = ReceiveOptions { max: 5, lease: None, wait: Duration::from_millis(100) };
        // Errors of the disk are reported by the producers.
        let received = queue.receive(options).await.unwrap_or_default();
        let is_empty = |queue: &Queue| {
            let totals = queue.totals();
            totals.pending + totals.in_flight + totals.delayed == 0
        };
        if until_empty && received.is_empty() && is_empty(&queue) && is_empty(&other) {
            return;
        }
        for delivery in &received {
            // The first delivery from the dead-letter queue is not the message's first.
            let attempt = delivery.attempt + if delivery.from.is_some() { ATTEMPTS_MAX } else { 0 };
            let seq = delivery.id.seq.0;
            print_lines(&format!("D {} {attempt} {seq:x} {consumer}\n", body_of(delivery)));
        }
        let is_dead = |delivery: &Delivery| delivery.from.is_some();
        // One in seven is not acknowledged in time; the last allowed delivery of half of those is acknowledged late.
        let (mut done, missed): (Vec<Delivery>, Vec<Delivery>) = received
            .into_iter()
            .partition(|delivery| until_empty || is_dead(delivery) || delivery.id.seq.0 % 7 != 0);
        let is_late =
            |delivery: &Delivery| delivery.attempt == ATTEMPTS_MAX && delivery.id.seq.0.is_multiple_of(2);
        late.extend(missed.into_iter().filter(is_late).map(|delivery| (Instant::now(), delivery)));
        let is_over = |(at, _): &mut (Instant, Delivery)| at.elapsed() > LEASE;
        while let Some((_, delivery)) = late.pop_front_if(is_over) {
            done.push(delivery);
        }
        let receipts: Vec<_> = done.iter().map(|delivery| delivery.receipt.clone()).collect();
        for (delivery, answer) in done.iter().zip(queue.ack(&receipts).await) {
            if answer.is_ok() {
                print_lines(&format!("A {}\n", body_of(delivery)));
            }
        }
    }
}

fn body_of(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.payload.body).into_owned()
}

/// Prints in one write, so that a line is complete or missing.
fn print_lines(lines: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(lines.as_bytes()).unwrap();
    out.flush().unwrap();
}
