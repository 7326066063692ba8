//! Tests of the metrics hub as a whole: snapshots of known counters.
//!
//! A `kind` is the interned label of an actor; actors with the same label share their counters.

extern crate std;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;
use std::thread;

use super::*;
use crate::dead_letters::{DeadLetter, DeadLetterReason, DeadLetters};
use crate::index::MailboxIndex;
use evenkeel_policy::time::Instant;

const MS: Duration = Duration::from_millis(1);

#[test]
fn every_metric_has_a_series_with_the_expected_labels() {
    let mut hub = Hub::new(4, 2);
    hub.labels.intern("Worker");
    let snapshot = hub.snapshot();
    for name in names::ALL {
        let series = snapshot.series().iter().find(|series| series.name == *name);
        let labels: Vec<_> = series.unwrap().labels.iter().map(|(key, _)| *key).collect();
        let expected: &[&str] = match *name {
            "actor.mailbox.enqueued_total" | "actor.mailbox.dequeued_total" => &["actor", "mailbox"],
            "actor.mailbox.overflow_total" => &["actor", "reason"],
            "dead_letters_total" => &["reason"],
            "scheduler.ready_queue.depth" | "scheduler.workers_active" => &[],
            "scheduler.invoke.duration_ms" | "scheduler.latency_ms" => &["actor"],
            name if name.starts_with("actor.") => &["actor"],
            _ => &["worker"],
        };
        assert_eq!(labels, expected, "{name}");
    }
    assert!(snapshot.series().iter().all(|series| names::ALL.contains(&series.name)));
}

#[test]
fn totals_of_stopped_and_live_actors_add_up() {
    let mut hub = Hub::new(4, 1);
    let kind = hub.labels.intern("Worker");
    hub.kinds.get(kind).add_spawned();
    hub.kinds.get(kind).add_spawned();
    hub.kinds.get(kind).add_stopped(totals(10, 8));
    hub.live.get_mut(kind).add(totals(3, 1), 2);
    let snapshot = hub.snapshot();
    assert_eq!(
        count(&snapshot, names::MAILBOX_ENQUEUED_TOTAL, &[("actor", "Worker"), ("mailbox", "user")]),
        13
    );
    assert_eq!(
        count(&snapshot, names::MAILBOX_DEQUEUED_TOTAL, &[("actor", "Worker"), ("mailbox", "user")]),
        9
    );
    assert_eq!(gauge(&snapshot, names::MAILBOX_DEPTH, &[("actor", "Worker")]), "2");
    assert_eq!(gauge(&snapshot, names::ALIVE, &[("actor", "Worker")]), "1");
}

#[test]
fn the_user_and_system_queues_are_counted_separately() {
    let mut hub = Hub::new(4, 1);
    let kind = hub.labels.intern("Worker");
    let system = UserSystemTotals { user: 0, system: 5 };
    hub.live.get_mut(kind).add(MailboxTotals { enqueued: system, dequeued: UserSystemTotals::default() }, 5);
    let snapshot = hub.snapshot();
    let enqueued =
        |queue| count(&snapshot, names::MAILBOX_ENQUEUED_TOTAL, &[("actor", "Worker"), ("mailbox", queue)]);
    assert_eq!((enqueued("user"), enqueued("system")), (0, 5));
}

#[test]
fn the_durations_of_all_workers_are_one_histogram_per_actor() {
    let mut hub = Hub::new(4, 3);
    let a = hub.labels.intern("A");
    let b = hub.labels.intern("B");
    for worker in &hub.workers {
        worker.invoke_duration(a).record(MS);
        worker.latency(b).record(2 * MS);
    }
    let snapshot = hub.snapshot();
    let read = |name, actor| match snapshot.get(name, &[("actor", actor)]) {
        Some(Value::Histogram(histogram)) => (histogram.count(), histogram.sum()),
        other => panic!("{other:?} is not a histogram"),
    };
    assert_eq!(read(names::INVOKE_DURATION_MS, "A"), (3, 3 * MS));
    assert_eq!(read(names::LATENCY_MS, "B"), (3, 6 * MS));
    assert_eq!(read(names::LATENCY_MS, "A"), (0, Duration::ZERO));
}

#[test]
fn a_busy_ratio_covers_the_time_since_the_last_snapshot() {
    let mut hub = Hub::new(4, 1);
    hub.work(0, 90 * MS, 10 * MS);
    assert_eq!(hub.busy_ratio(0), "0.9");
    hub.work(0, 10 * MS, 90 * MS);
    assert_eq!(hub.busy_ratio(0), "0.1");
}

#[test]
fn an_unfinished_handler_or_park_counts_up_to_the_snapshot() {
    let mut hub = Hub::new(4, 1);
    hub.work(0, 50 * MS, 50 * MS);
    assert_eq!(hub.busy_ratio(0), "0.5");
    hub.now += 100 * MS;
    assert_eq!(hub.busy_ratio(0), "0", "it is still parked");
    hub.workers[0].enter(WorkerPhase::Running, hub.now);
    hub.now += 100 * MS;
    assert_eq!(hub.busy_ratio(0), "1", "its handler has not returned");
    hub.workers[0].enter(WorkerPhase::Parked, hub.now);
    hub.now += 100 * MS;
    assert_eq!(hub.busy_ratio(0), "0");
}

#[test]
fn without_elapsed_time_the_phase_decides_the_busy_ratio() {
    let mut hub = Hub::new(4, 1);
    assert_eq!(hub.busy_ratio(0), "0", "it has not started");
    hub.workers[0].enter(WorkerPhase::Running, hub.now);
    assert_eq!(hub.busy_ratio(0), "1");
    hub.workers[0].enter(WorkerPhase::Parked, hub.now);
    assert_eq!(hub.busy_ratio(0), "0");
}

#[test]
fn the_busy_ratio_of_a_new_worker_ignores_the_previous_worker_in_its_slot() {
    let mut hub = Hub::new(4, 1);
    hub.work(0, 90 * MS, 10 * MS);
    assert_eq!(hub.busy_ratio(0), "0.9");
    hub.workers[0] = WorkerCounters::new(4);
    hub.work(0, 5 * MS, 5 * MS);
    assert_eq!(hub.busy_ratio(0), "0.5");
}

#[test]
fn removed_workers_are_not_reported() {
    let mut hub = Hub::new(4, 3);
    hub.workers[2].runs.add(7);
    assert_eq!(count(&hub.snapshot(), names::RUNS_TOTAL, &[("worker", "2")]), 7);
    hub.workers.truncate(1);
    let snapshot = hub.snapshot();
    assert_eq!(snapshot.series().iter().filter(|series| series.name == names::RUNS_TOTAL).count(), 1);
}

#[test]
fn each_counter_of_a_worker_has_its_own_series() {
    let mut hub = Hub::new(4, 1);
    let worker = &hub.workers[0];
    for (counter, more) in [
        (&worker.runs, 1),
        (&worker.messages, 2),
        (&worker.yields, 3),
        (&worker.steals, 4),
        (&worker.wakes, 5),
    ] {
        counter.add(more);
    }
    let snapshot = hub.snapshot();
    let read = |name| count(&snapshot, name, &[("worker", "0")]);
    let counts = [
        names::RUNS_TOTAL,
        names::MESSAGES_TOTAL,
        names::YIELDS_TOTAL,
        names::STEALS_TOTAL,
        names::WAKES_TOTAL,
    ]
    .map(read);
    assert_eq!(counts, [1, 2, 3, 4, 5]);
}

#[test]
fn actors_beyond_the_label_limit_share_one_series() {
    let mut hub = Hub::new(3, 1);
    for number in 0..100 {
        let kind = hub.labels.intern(&format!("Actor{number}"));
        hub.kinds.get(kind).add_failure();
    }
    let snapshot = hub.snapshot();
    assert_eq!(count(&snapshot, names::FAILURES_TOTAL, &[("actor", "Actor2")]), 1);
    assert_eq!(count(&snapshot, names::FAILURES_TOTAL, &[("actor", "other")]), 97);
    assert_eq!(snapshot.series().iter().filter(|series| series.name == names::FAILURES_TOTAL).count(), 4);
}

#[test]
fn a_snapshot_does_not_depend_on_the_order_in_which_actors_started() {
    let read = |order: [&str; 3]| {
        let mut hub = Hub::new(4, 1);
        for label in order {
            let kind = hub.labels.intern(label);
            (0..label.len()).for_each(|_| hub.kinds.get(kind).add_restart());
        }
        hub.snapshot()
    };
    let snapshot = read(["a", "bb", "ccc"]);
    assert_eq!(snapshot, read(["ccc", "a", "bb"]));
    assert_eq!(count(&snapshot, names::RESTARTS_TOTAL, &[("actor", "ccc")]), 3);
}

#[test]
fn every_overflow_and_dead_letter_is_reported_by_reason() {
    let mut hub = Hub::new(4, 1);
    let kind = hub.labels.intern("Worker");
    hub.kinds.get(kind).add_overflow(OverflowReason::Rejected);
    let to = MailboxIndex { slot: 0, generation: 0 };
    for _ in 0..3 {
        let letter = DeadLetter::new(to, "Worker", DeadLetterReason::Closed, (), Instant::ORIGIN);
        drop(hub.dead_letters.push(letter));
    }
    let snapshot = hub.snapshot();
    for reason in OverflowReason::ALL {
        let labels = [("actor", "Worker"), ("reason", reason.as_label())];
        let expected = u64::from(reason == OverflowReason::Rejected);
        assert_eq!(count(&snapshot, names::MAILBOX_OVERFLOW_TOTAL, &labels), expected, "{reason:?}");
    }
    for reason in DeadLetterReason::ALL {
        let expected = if reason == DeadLetterReason::Closed { 3 } else { 0 };
        let labels = [("reason", reason.as_label())];
        assert_eq!(count(&snapshot, names::DEAD_LETTERS_TOTAL, &labels), expected, "{reason:?}");
    }
}

#[test]
fn the_prometheus_output_has_every_family_and_every_series_once() {
    let mut hub = Hub::new(4, 2);
    hub.labels.intern("a::Worker");
    hub.labels.intern("b::Worker");
    let mut page = String::new();
    hub.snapshot().write_prometheus(&mut page).unwrap();
    let type_lines: Vec<_> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(type_lines.len(), names::ALL.len());
    let mut keys: Vec<_> =
        page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect();
    let lines = keys.len();
    keys.sort_unstable();
    keys.dedup_by_key(|(key, _)| *key);
    assert_eq!(keys.len(), lines);
}

#[test]
fn a_sink_gets_the_snapshot_unchanged() {
    #[derive(Default)]
    struct RecordingSink(RefCell<Vec<Snapshot>>);
    impl MetricsSink for RecordingSink {
        fn publish(&self, snapshot: &Snapshot) {
            self.0.borrow_mut().push(snapshot.clone());
        }
    }
    let mut hub = Hub::new(4, 1);
    hub.ready = 12;
    let sink = RecordingSink::default();
    let snapshot = hub.snapshot();
    let published: &dyn MetricsSink = &sink;
    published.publish(&snapshot);
    assert_eq!(sink.0.borrow().as_slice(), [snapshot]);
    assert_eq!(gauge(&sink.0.borrow()[0], names::READY_QUEUE_DEPTH, &[]), "12");
}

#[test]
fn no_reader_sees_a_count_decrease_and_no_count_is_lost() {
    const MESSAGES: u64 = 2_000;
    let mut hub = Hub::new(1, 1);
    let kind = hub.labels.intern("Worker");
    let worker = &hub.workers[0];
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..MESSAGES {
                worker.messages.add(1);
                worker.latency(kind).record(MS);
            }
        });
        let mut messages = 0;
        let mut waits = 0;
        while !writer.is_finished() {
            let counted = worker.messages.get();
            let recorded = worker.latency(kind).snapshot().count();
            assert!(messages <= counted && waits <= recorded);
            messages = counted;
            waits = recorded;
            thread::yield_now();
        }
    });
    assert_eq!(worker.latency(kind).snapshot().count(), MESSAGES);
    assert_eq!(count(&hub.snapshot(), names::MESSAGES_TOTAL, &[("worker", "0")]), MESSAGES);
}

/// The parts of a metrics hub, without a running system.
struct Hub {
    labels: Labels,
    kinds: PerKind<KindCounters>,
    live: PerKind<LiveMailboxes>,
    workers: Vec<WorkerCounters>,
    ready: u64,
    dead_letters: DeadLetters,
    collector: Collector,
    now: Instant,
}

impl Hub {
    fn new(labels_max: u16, workers: usize) -> Self {
        Self {
            labels: Labels::new(labels_max),
            kinds: PerKind::new(labels_max),
            live: PerKind::new(labels_max),
            workers: (0..workers).map(|_| WorkerCounters::new(labels_max)).collect(),
            ready: 0,
            dead_letters: DeadLetters::new(10),
            collector: Collector::new(),
            now: Instant::from_secs(1),
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let workers: Vec<_> = self.workers.iter().collect();
        self.collector.collect(&Sources {
            labels: &self.labels,
            kinds: &self.kinds,
            live: &self.live,
            workers: &workers,
            workers_active: workers.len() as u64,
            now: self.now,
            ready_queue_depth: self.ready,
            dead_letters: self.dead_letters.counts(),
        })
    }

    /// Runs a worker for `busy`, then parks it for `parked`.
    fn work(&mut self, worker: usize, busy: Duration, parked: Duration) {
        self.workers[worker].enter(WorkerPhase::Running, self.now);
        self.now += busy;
        self.workers[worker].enter(WorkerPhase::Parked, self.now);
        self.now += parked;
    }

    fn busy_ratio(&mut self, worker: usize) -> String {
        gauge(&self.snapshot(), names::WORKER_BUSY_RATIO, &[("worker", &worker.to_string())])
    }
}

fn totals(enqueued: u64, dequeued: u64) -> MailboxTotals {
    let user = |user| UserSystemTotals { user, system: 0 };
    MailboxTotals { enqueued: user(enqueued), dequeued: user(dequeued) }
}

fn count(snapshot: &Snapshot, name: &str, labels: &[(&str, &str)]) -> u64 {
    match snapshot.get(name, labels) {
        Some(Value::Counter(count)) => *count,
        other => panic!("{name} {labels:?} is {other:?}"),
    }
}

/// Returns a gauge as text, so that fractions can be compared exactly.
fn gauge(snapshot: &Snapshot, name: &str, labels: &[(&str, &str)]) -> String {
    match snapshot.get(name, labels) {
        Some(Value::Gauge(value)) => value.to_string(),
        other => panic!("{name} {labels:?} is {other:?}"),
    }
}
