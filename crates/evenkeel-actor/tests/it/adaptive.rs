//! The number of workers follows the load of a running system.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use evenkeel_actor::adaptive::AdaptiveOptions;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn workers_are_added_under_load_and_removed_after_it() {
    for metrics in [Metrics::On, Metrics::Off] {
        explore_with(ActorSystemConfig { metrics, ..one_worker() }, |harness| {
            let handle = harness.system.adapt_workers(dispatcher(4)).unwrap();
            let actors = spawn_many(harness, 50);
            send_work(harness, &actors, 20);
            harness.advance_ms(50);
            assert_eq!(harness.system.workers().get(), 4, "workers_max is reached");
            assert_eq!(harness.lines().len(), 1_000);
            harness.advance_ms(1_000);
            assert_eq!(harness.system.workers().get(), 1);
            drop(handle);
        });
    }
}

/// Only one wait in 64 is sampled; a single long wait is enough, even if few actors are ready.
#[test]
fn a_long_wait_alone_adds_a_worker() {
    let by_wait = AdaptiveOptions { depth_high: 1_000, grow_after: NonZeroU32::MIN, ..options(3) };
    explore_with(one_worker(), |harness| {
        let handle = harness.system.adapt_workers(AdaptiveDispatcher::new(by_wait).unwrap()).unwrap();
        let actors = spawn_many(harness, 70);
        send_work(harness, &actors, 20);
        harness.advance_ms(10);
        assert!(harness.system.workers().get() > 1, "70 actors that run 2 ms each wait for one worker");
        drop(handle);
    });
}

#[test]
fn dropping_the_adaptive_handle_keeps_the_worker_count() {
    explore_with(one_worker(), |harness| {
        let tasks = harness.runtime.tasks();
        let handle = harness.system.adapt_workers(dispatcher(4)).unwrap();
        harness.system.set_workers(number(3)).unwrap();
        drop(handle);
        harness.advance_ms(1_000);
        assert_eq!((harness.system.workers().get(), harness.runtime.tasks()), (3, tasks + 2));
    });
}

#[test]
fn dropping_the_system_ends_its_adaptive_task() {
    explore_with(one_worker(), |harness| {
        let other = ActorSystemRunner::new(one_worker()).start(harness.runtime.handle()).unwrap();
        let tasks = harness.runtime.tasks();
        let _handle = other.adapt_workers(dispatcher(4)).unwrap();
        drop(other);
        harness.advance_ms(100);
        assert_eq!(
            harness.runtime.tasks(),
            tasks - 2,
            "its worker, timer driver and adaptive task have ended"
        );
    });
}

#[test]
fn an_adaptive_limit_above_workers_max_is_rejected() {
    explore_with(ActorSystemConfig { workers_max: number(3), ..one_worker() }, |harness| {
        let error = harness.system.adapt_workers(dispatcher(4)).unwrap_err();
        assert_eq!(error.to_string(), "workers is 4, above workers_max 3");
        harness.system.force_stop();
        assert_eq!(harness.system.adapt_workers(dispatcher(3)).unwrap_err(), SetWorkersError::Stopping);
    });
}

/// Sends each actor messages that take 2 ms each.
fn send_work(harness: &Harness, actors: &[ActorRef<Msg>], messages: u32) {
    for actor in actors {
        for number in 0..messages {
            let handle = harness.runtime.handle();
            actor.tell(run(move |me, _| {
                handle.elapse(2 * MS);
                me.record(number);
            }));
        }
    }
}

fn spawn_many(harness: &Harness, actors: usize) -> Vec<ActorRef<Msg>> {
    (0..actors).map(|_| harness.recorder("worker")).collect()
}

fn one_worker() -> ActorSystemConfig {
    ActorSystemConfig::with_workers(NonZeroUsize::MIN)
}

fn dispatcher(workers_max: usize) -> AdaptiveDispatcher {
    AdaptiveDispatcher::new(options(workers_max)).unwrap()
}

/// Returns options that sample every 5 ms; two samples under pressure add workers, five calm ones remove one.
fn options(workers_max: usize) -> AdaptiveOptions {
    AdaptiveOptions {
        period: Duration::from_millis(5),
        shrink_after: NonZeroU32::new(5).unwrap(),
        ..AdaptiveOptions::up_to(number(workers_max))
    }
}

fn number(workers: usize) -> NonZeroUsize {
    NonZeroUsize::new(workers).unwrap()
}
