//! Metrics of a running system: counters, gauges and sampled histograms.

use std::sync::Mutex;
use std::time::Duration;

use evenkeel_actor::hub::{MetricsSink, OverflowReason, Snapshot, Value, names};
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn every_metric_has_a_series_for_each_actor_worker_or_reason() {
    explore(|harness| {
        harness.recorder("a");
        let snapshot = harness.system.metrics();
        for name in names::ALL {
            let series: Vec<_> = snapshot.series().iter().filter(|series| series.name == *name).collect();
            let expected = match *name {
                names::MAILBOX_OVERFLOW_TOTAL => OverflowReason::ALL.len(),
                names::DEAD_LETTERS_TOTAL => dead_letters::DeadLetterReason::ALL.len(),
                names::MAILBOX_ENQUEUED_TOTAL | names::MAILBOX_DEQUEUED_TOTAL => 2,
                name if name.starts_with("scheduler.")
                    && series[0].labels.first().is_some_and(|label| label.0 == "worker") =>
                {
                    2
                }
                _ => 1,
            };
            assert_eq!(series.len(), expected, "{name}");
        }
    });
}

#[test]
fn every_enqueued_message_is_dequeued_or_waiting() {
    explore(|harness| {
        let actor = harness.recorder("a");
        (0..10).for_each(|number| actor.tell(record(number)));
        actor.tell(suspend_until(1));
        (0..5).for_each(|number| actor.tell(record(number)));
        harness.run();
        assert_eq!(mailbox(harness, "user"), (16.0, 11.0));
        assert_eq!(harness.metric(names::MAILBOX_DEPTH, &A), 5.0);
        actor.signal(SignalKey(1));
        harness.run();
        assert_eq!(mailbox(harness, "user"), (16.0, 16.0));
        assert_eq!(mailbox(harness, "system"), (1.0, 1.0));
        assert_eq!(harness.metric(names::MAILBOX_DEPTH, &A), 0.0);
    });
}

#[test]
fn counts_of_stopped_actors_are_kept() {
    explore(|harness| {
        for _ in 0..3 {
            let actor = harness.recorder("a");
            (0..10).for_each(|number| actor.tell(record(number)));
            actor.stop(StopMode::Drained);
            harness.run();
        }
        assert_eq!(mailbox(harness, "user"), (30.0, 30.0));
        assert_eq!(harness.metric(names::ALIVE, &A), 0.0);
        harness.recorder("a");
        assert_eq!((harness.metric(names::ALIVE, &A), harness.system.alive()), (1.0, 1));
    });
}

#[test]
fn every_overflow_is_counted_by_its_outcome() {
    use OverflowStrategy::{BlockProducer, DeadLetter, DropNewest, DropOldest, Reject};
    for (strategy, reason) in [
        (DropOldest, "dropped_oldest"),
        (DropNewest, "dropped_newest"),
        (BlockProducer, "blocked"),
        (Reject, "rejected"),
        (DeadLetter, "dead_letter"),
    ] {
        explore(|harness| {
            let actor = harness.spawn(harness.puppet("a").capacity(2, strategy));
            actor.tell(suspend_until(1));
            harness.run();
            (0..2).for_each(|number| actor.tell(record(number)));
            for number in 0..3 {
                let to = actor.clone();
                let produce = async move { drop(to.send(record(number)).await) };
                match strategy {
                    BlockProducer => harness.system.spawn_task(produce).unwrap(),
                    _ => drop(actor.try_tell(record(number))),
                }
            }
            harness.run();
            for outcome in OverflowReason::ALL {
                let labels = [("actor", "a"), ("reason", outcome.as_label())];
                let expected = if outcome.as_label() == reason { 3.0 } else { 0.0 };
                assert_eq!(harness.metric(names::MAILBOX_OVERFLOW_TOTAL, &labels), expected, "{strategy:?}");
            }
        });
    }
}

#[test]
fn every_dead_letter_is_counted_by_its_reason() {
    explore_with(ActorSystemConfig { dead_letters_max: 2, ..config() }, |harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(2, OverflowStrategy::Reject));
        actor.tell(suspend_until(1));
        harness.run();
        (0..5).for_each(|number| actor.tell(record(number)));
        actor.stop(StopMode::Now);
        harness.run();
        (0..7).for_each(|number| actor.tell(record(number)));
        harness.system.force_stop();
        actor.tell(record(0));
        let counted = |reason| harness.metric(names::DEAD_LETTERS_TOTAL, &[("reason", reason)]);
        let reasons = ["full", "stopped", "closed", "refused", "overflow"];
        assert_eq!(reasons.map(counted), [3.0, 2.0, 7.0, 1.0, 0.0]);
    });
}

#[test]
fn failures_and_restarts_are_counted_separately() {
    let once = restart_immediately().with_max_restarts(1, Duration::from_secs(60)).unwrap();
    explore_with(supervised(once), |harness| {
        let actor = harness.recorder("a");
        actor.tell(fail("broken"));
        actor.tell(panic("broken again"));
        harness.run();
        let counted = [names::FAILURES_TOTAL, names::RESTARTS_TOTAL].map(|name| harness.metric(name, &A));
        assert_eq!(counted, [2.0, 1.0]);
    });
}

#[test]
fn actors_beyond_the_label_limit_are_counted_as_other() {
    explore_with(ActorSystemConfig { labels_max: 2, ..config() }, |harness| {
        for name in ["a", "b", "c", "d", "a"] {
            harness.recorder(name);
        }
        let alive = |name| harness.metric(names::ALIVE, &[("actor", name)]);
        assert_eq!(["a", "b", "other"].map(alive), [2.0, 1.0, 2.0]);
        assert!(harness.system.metrics().get(names::ALIVE, &[("actor", "c")]).is_none());
    });
}

#[test]
fn an_actor_without_a_label_is_labelled_with_its_type() {
    struct Plain;
    impl Actor for Plain {
        type Msg = ();
        fn receive(&mut self, _message: (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
            Ok(Flow::Continue)
        }
    }
    explore(|harness| {
        let _plain = harness.system.spawn(&Props::new(|| Plain).build()).unwrap();
        assert_eq!(harness.metric(names::ALIVE, &[("actor", "Plain")]), 1.0);
    });
}

#[test]
fn the_busy_ratio_counts_time_spent_in_handlers() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let handle = harness.runtime.handle();
        harness.advance_ms(100);
        harness.system.metrics();
        actor.tell(run(move |_, _| handle.elapse(30 * MS)));
        harness.run();
        harness.advance_ms(70);
        let snapshot = harness.system.metrics();
        let busy = ["0", "1"].map(|worker| read(&snapshot, names::WORKER_BUSY_RATIO, &[("worker", worker)]));
        let total: f64 = busy.iter().sum();
        assert!((0.29..=0.33).contains(&total), "one of two workers was busy for 30 of 100 ms: {busy:?}");
    });
}

#[test]
fn one_run_in_64_is_timed() {
    // A run may handle up to 64 messages, whatever the seed.
    explore_batches(|harness| {
        let actor = harness.recorder("a");
        let handle = harness.runtime.handle();
        for _ in 0..6_400 {
            let handle = handle.clone();
            actor.tell(run(move |_, _| handle.elapse(2 * MS)));
            harness.run();
        }
        let (count, sum) = durations(harness, names::INVOKE_DURATION_MS);
        // A run after a sampled wait is sampled too, and each worker has its own sample counter.
        assert!((100..=204).contains(&count), "{count} of 6400 runs");
        let each = sum / u32::try_from(count).unwrap();
        assert!((2 * MS * 9 / 10..=2 * MS).contains(&each), "each took 2 ms: {each:?}");
    });
}

#[test]
fn one_wait_in_64_for_a_worker_is_timed() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let handle = harness.runtime.handle();
        for _ in 0..640 {
            actor.tell(record(1));
            handle.elapse(3 * MS);
            harness.run();
        }
        let (count, sum) = durations(harness, names::LATENCY_MS);
        assert!((9..=11).contains(&count), "{count} of 640 waits");
        let each = sum / u32::try_from(count).unwrap();
        assert!((3 * MS * 9 / 10..=4 * MS).contains(&each), "each took 3 ms: {each:?}");
    });
}

#[test]
fn the_depth_of_the_ready_queue_is_the_number_of_waiting_actors() {
    explore(|harness| {
        let others: Vec<_> = (0..3).map(|_| harness.recorder("b")).collect();
        let actor = harness.recorder("a");
        let system = harness.system.clone();
        actor.tell(run(move |me, _| {
            others.iter().for_each(|other| other.tell(record(1)));
            // Fewer than four ready actors do not wake the other worker.
            me.record(read(&system.metrics(), names::READY_QUEUE_DEPTH, &[]));
        }));
        assert_eq!(harness.lines()[0], "a 3");
        assert_eq!(harness.metric(names::READY_QUEUE_DEPTH, &[]), 0.0);
    });
}

#[test]
fn workers_count_runs_messages_and_yields() {
    explore_batches(|harness| {
        let actor = harness.recorder("a");
        let before = workers(harness);
        (0..200).for_each(|number| actor.tell(record(number)));
        harness.run();
        let [runs, messages, yields] = std::array::from_fn(|nth| workers(harness)[nth] - before[nth]);
        assert_eq!((runs, messages, yields), (4.0, 200.0, 3.0), "a run handles at most 64 messages");
    });
}

#[test]
fn many_ready_actors_wake_the_second_worker_which_steals_some() {
    explore(|harness| {
        let others: Vec<_> = (0..64).map(|_| harness.recorder("b")).collect();
        let actor = harness.recorder("a");
        harness.run();
        let before = by_workers(&harness.system.metrics(), [names::WAKES_TOTAL, names::STEALS_TOTAL]);
        actor.tell(run(move |_, _| others.iter().for_each(|other| other.tell(record(1)))));
        harness.run();
        let after = by_workers(&harness.system.metrics(), [names::WAKES_TOTAL, names::STEALS_TOTAL]);
        assert!(before[0] < after[0] && before[1] < after[1], "wakes and steals: {before:?}, {after:?}");
    });
}

#[test]
fn a_sink_receives_every_snapshot() {
    #[derive(Default)]
    struct RecordingSink(Mutex<Vec<Snapshot>>);
    impl MetricsSink for RecordingSink {
        fn publish(&self, snapshot: &Snapshot) {
            self.0.lock().unwrap().push(snapshot.clone());
        }
    }
    explore(|harness| {
        let sink = RecordingSink::default();
        let actor = harness.recorder("a");
        for number in 0..3 {
            actor.tell(record(number));
            harness.run();
            harness.system.publish_metrics(&sink);
        }
        let labels = [("actor", "a"), ("mailbox", "user")];
        let enqueued: Vec<_> = sink
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|one| read(one, names::MAILBOX_ENQUEUED_TOTAL, &labels))
            .collect();
        assert_eq!(enqueued, [1.0, 2.0, 3.0]);
    });
}

#[test]
fn the_prometheus_page_has_the_values_of_the_snapshot() {
    explore(|harness| {
        let actor = harness.recorder("a");
        (0..3).for_each(|number| actor.tell(record(number)));
        harness.run();
        let mut page = String::new();
        harness.system.metrics().write_prometheus(&mut page).unwrap();
        for line in [
            "# TYPE actor_mailbox_enqueued_total counter",
            "actor_mailbox_enqueued_total{actor=\"a\",mailbox=\"user\"} 3",
            "actor_mailbox_depth{actor=\"a\"} 0",
            "actor_alive{actor=\"a\"} 1",
            "scheduler_ready_queue_depth 0",
            "dead_letters_total{reason=\"full\"} 0",
        ] {
            assert!(page.lines().any(|printed| printed == line), "{line} is not in\n{page}");
        }
        for family in ["scheduler_worker_busy_ratio", "scheduler_invoke_duration_ms", "scheduler_latency_ms"]
        {
            assert!(page.contains(&format!("# TYPE {family} ")), "{family}");
        }
    });
}

#[test]
fn the_metrics_of_a_stopped_system_can_still_be_read() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(record(1));
        harness.runtime.block_on(harness.system.graceful_shutdown(Duration::from_secs(1)));
        assert_eq!(mailbox(harness, "user"), (1.0, 1.0));
        assert_eq!(harness.metric(names::ALIVE, &A), 0.0);
    });
}

const A: [(&str, &str); 1] = [("actor", "a")];

/// Returns the messages enqueued and dequeued in one mailbox queue of the actors labelled `a`.
fn mailbox(harness: &Harness, queue: &str) -> (f64, f64) {
    let labels = [("actor", "a"), ("mailbox", queue)];
    let [enqueued, dequeued] = [names::MAILBOX_ENQUEUED_TOTAL, names::MAILBOX_DEQUEUED_TOTAL]
        .map(|name| harness.metric(name, &labels));
    (enqueued, dequeued)
}

/// Returns the number and the sum of the samples of the actors labelled `a`.
fn durations(harness: &Harness, name: &str) -> (u64, Duration) {
    match harness.system.metrics().get(name, &A) {
        Some(Value::Histogram(histogram)) => (histogram.count(), histogram.sum()),
        other => panic!("{name} is {other:?}"),
    }
}

fn workers(harness: &Harness) -> [f64; 3] {
    by_workers(&harness.system.metrics(), [names::RUNS_TOTAL, names::MESSAGES_TOTAL, names::YIELDS_TOTAL])
}

fn by_workers<const N: usize>(snapshot: &Snapshot, names: [&str; N]) -> [f64; N] {
    names.map(|name| ["0", "1"].map(|worker| read(snapshot, name, &[("worker", worker)])).iter().sum())
}
