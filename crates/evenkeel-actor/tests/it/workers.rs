//! Changing the number of workers while they run: no actor is lost, and the requested number is reached.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_actor::hub::names;
use evenkeel_actor::runtime::test::{TestHandle, TestRuntime};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::runtime::{RuntimeHandle, RuntimeSpawnError, TaskFuture};
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn the_last_requested_worker_count_is_reached() {
    explore(|harness| {
        for number in [5, 1, 64, 2, 2, 3] {
            set_workers(harness, number);
            harness.run();
            assert_eq!((active_workers(harness), harness.system.workers()), (number, workers(number)));
            assert_eq!(
                harness.runtime.tasks(),
                number + 1,
                "one task per worker, and one for the timer driver"
            );
        }
    });
}

#[test]
fn raising_the_count_while_a_worker_exits_reaches_the_target() {
    explore(|harness| {
        for round in 0..20 {
            [1, 4, 2, 4].into_iter().for_each(|number| set_workers(harness, number));
            let busy = harness.spawn(harness.puppet("busy"));
            (0..round).for_each(|number| busy.tell(record(number)));
            harness.run();
            assert_eq!(active_workers(harness), 4);
        }
    });
}

#[test]
fn a_handler_may_change_the_number_of_workers() {
    explore(|harness| {
        let actors = ["a", "b", "c"].map(|name| harness.recorder(name));
        for number in 0..30_u32 {
            for (index, actor) in actors.iter().enumerate() {
                let system = harness.system.clone();
                let wanted = 1 + (number as usize * 7 + index) % 5;
                actor.tell(run(move |_, _| system.set_workers(workers(wanted)).unwrap()));
                actor.tell(record(number));
            }
        }
        let lines = harness.lines();
        for name in ["a", "b", "c"] {
            let lines_of_actor: Vec<_> = lines.iter().filter(|line| line.starts_with(name)).collect();
            let expected: Vec<_> = (0..30).map(|number| format!("{name} {number}")).collect();
            assert_eq!(lines_of_actor, expected.iter().collect::<Vec<_>>());
        }
        assert_eq!(active_workers(harness), harness.system.workers().get());
    });
}

/// Two ready actors are too few for a busy worker to wake another; when it exits, it must wake one for them.
#[test]
fn the_work_of_an_exiting_worker_is_done_by_a_parked_one() {
    explore(|harness| {
        let actors = [harness.recorder("a"), harness.recorder("b"), harness.recorder("c")];
        for round in 0..10 {
            set_workers(harness, 2);
            harness.run();
            let targets = actors.clone();
            let system = harness.system.clone();
            actors[0].tell(run(move |_, _| {
                targets[1..].iter().for_each(|actor| actor.tell(record(round)));
                system.set_workers(workers(1)).unwrap();
            }));
            assert_eq!(harness.lines().len(), 2, "round {round}");
            assert_eq!(active_workers(harness), 1);
        }
    });
}

#[test]
fn the_work_of_many_exiting_workers_is_done_by_the_remaining_one() {
    explore_with(ActorSystemConfig::with_workers(workers(8)), |harness| {
        let actors: Vec<_> = (0..40).map(|_| harness.recorder("actors")).collect();
        let targets = actors.clone();
        let system = harness.system.clone();
        actors[0].tell(run(move |_, _| {
            targets.iter().for_each(|actor| actor.tell(record(1)));
            system.set_workers(workers(1)).unwrap();
        }));
        assert_eq!(harness.lines().len(), 40);
        assert_eq!(active_workers(harness), 1);
    });
}

#[test]
fn more_workers_than_workers_max_are_rejected_with_a_message() {
    explore_with(ActorSystemConfig { workers_max: workers(3), ..config() }, |harness| {
        set_workers(harness, 3);
        let error = harness.system.set_workers(workers(4)).unwrap_err();
        assert_eq!(error.to_string(), "workers is 4, above workers_max 3");
        harness.run();
        assert_eq!((active_workers(harness), harness.system.workers()), (3, workers(3)));
    });
}

#[test]
fn a_workers_max_out_of_range_is_rejected() {
    let start = |workers_max| {
        let runtime = TestRuntime::new(0);
        let config = ActorSystemConfig { workers_max: workers(workers_max), ..config() };
        ActorSystemRunner::new(config).start(runtime.handle()).unwrap_err().to_string()
    };
    assert_eq!(start(1), "workers_max is 1, not from 2 to 1024");
    assert_eq!(start(1025), "workers_max is 1025, not from 2 to 1024");
}

#[test]
fn a_stopping_system_does_not_change_its_worker_count() {
    explore(|harness| {
        set_workers(harness, 4);
        harness.system.force_stop();
        assert_eq!(harness.system.set_workers(workers(2)), Err(SetWorkersError::Stopping));
        harness.run();
        assert_eq!(harness.runtime.tasks(), 0, "all tasks have ended");
    });
}

/// The worker that stops the last actor may be exiting; the others must be woken nevertheless.
#[test]
fn a_shutdown_during_worker_count_changes_stops_all_workers() {
    explore(|harness| {
        let actors: Vec<_> = (0..10).map(|_| harness.recorder("a")).collect();
        for (index, actor) in actors.iter().enumerate() {
            actor.tell(record(0));
            let _stopping = harness.system.set_workers(workers(1 + index % 4));
        }
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(Duration::from_secs(1)));
        assert_eq!(report, ShutdownReport { drained: true, abandoned: 0 });
        assert_eq!(harness.lines().len(), 10);
        assert_eq!(harness.runtime.tasks(), 0);
    });
}

#[test]
fn a_system_has_as_many_workers_as_its_runtime_accepts() {
    for seed in 0..12 {
        let runtime = TestRuntime::new(seed);
        // Two workers and the timer driver, then two more workers.
        let limited = LimitedRuntime { inner: runtime.handle(), remaining: Arc::new(AtomicUsize::new(5)) };
        let system = ActorSystemRunner::new(config()).start(limited).unwrap();
        let error = system.set_workers(workers(7)).unwrap_err();
        assert_eq!(error, SetWorkersError::SpawnFailed { reached: workers(4), source: RuntimeSpawnError });
        assert_eq!(error.to_string(), "the runtime accepts no more tasks, after 4 workers");
        runtime.run_until_idle();
        assert_eq!((system.workers(), runtime.tasks()), (workers(4), 5));
        system.force_stop();
    }
}

/// A worker in a long handler cannot exit; the actors queued behind it are run by others.
#[test]
fn actors_queued_behind_an_exiting_worker_in_a_long_handler_are_found_by_others() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(async {
        let config = ActorSystemConfig::with_workers(workers(4));
        let system = ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap();
        let log = Log::default();
        let [long, short] = ["long", "short"].map(|name| system.spawn(&puppet(name, &log).props()).unwrap());
        for _ in 0..10 {
            system.set_workers(workers(4)).unwrap();
            let (handled, wait) = std::sync::mpsc::channel();
            let short = short.clone();
            let system = system.clone();
            let done = long.ask(|reply| {
                run(move |_, _| {
                    short.tell(run(move |_, _| handled.send(()).unwrap()));
                    system.set_workers(workers(2)).unwrap();
                    reply.send(u32::from(wait.recv_timeout(Duration::from_secs(20)).is_ok())).is_ok()
                })
            });
            assert_eq!(
                done.await.unwrap(),
                1,
                "the short actor ran only after the long handler had returned"
            );
        }
    });
}

/// A runtime that accepts a limited number of tasks.
#[derive(Clone)]
struct LimitedRuntime {
    inner: TestHandle,
    remaining: Arc<AtomicUsize>,
}

impl RuntimeHandle for LimitedRuntime {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        let decrement = |count: usize| count.checked_sub(1);
        let accepted = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement);
        accepted.map_err(|_| RuntimeSpawnError)?;
        self.inner.spawn(task)
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn sleep_until(&self, at: Instant) -> TaskFuture {
        self.inner.sleep_until(at)
    }

    fn yield_now(&self) -> TaskFuture {
        self.inner.yield_now()
    }
}

fn workers(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap()
}

fn set_workers(harness: &Harness, number: usize) {
    harness.system.set_workers(workers(number)).unwrap();
}

fn active_workers(harness: &Harness) -> usize {
    harness.metric(names::WORKERS_ACTIVE, &[]) as usize
}
