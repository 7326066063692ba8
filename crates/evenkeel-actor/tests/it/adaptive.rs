//! The number of workers follows the load of a running system.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use evenkeel_actor::adaptive::AdaptiveOptions;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn workers_are_added_under_load_and_removed_after_it() {
    for metrics in [Metrics::On, Metrics::Off] {
        explore_with(ActorSystemConfig { metrics, ..one_worker() }, |world| {
            let adapting = world.system.adapt_workers(dispatcher(4)).unwrap();
            let crowd = crowd(world, 50);
            work(world, &crowd, 20);
            world.pass(50);
            assert_eq!(world.system.workers().get(), 4, "as many as may come");
            assert_eq!(world.lines().len(), 1_000);
            world.pass(1_000);
            assert_eq!(world.system.workers().get(), 1);
            drop(adapting);
        });
    }
}

/// Waits are sampled one in 64; the first long one counts here, however many are ready.
#[test]
fn a_long_wait_alone_adds_a_worker() {
    let by_wait = AdaptiveOptions { depth_high: 1_000, grow_after: NonZeroU32::MIN, ..options(3) };
    explore_with(one_worker(), |world| {
        let adapting = world.system.adapt_workers(AdaptiveDispatcher::new(by_wait).unwrap()).unwrap();
        let crowd = crowd(world, 70);
        work(world, &crowd, 20);
        world.pass(10);
        assert!(1 < world.system.workers().get(), "70 actors of 2 ms each waited for one worker");
        drop(adapting);
    });
}

#[test]
fn dropping_the_adaptive_handle_keeps_the_worker_count() {
    explore_with(one_worker(), |world| {
        let tasks = world.runtime.tasks();
        let adapting = world.system.adapt_workers(dispatcher(4)).unwrap();
        world.system.set_workers(number(3)).unwrap();
        drop(adapting);
        world.pass(1_000);
        assert_eq!((world.system.workers().get(), world.runtime.tasks()), (3, tasks + 2));
    });
}

#[test]
fn dropping_the_system_ends_its_adaptive_task() {
    explore_with(one_worker(), |world| {
        let other = ActorSystemRunner::new(one_worker()).start(world.runtime.handle()).unwrap();
        let tasks = world.runtime.tasks();
        let _adapting = other.adapt_workers(dispatcher(4)).unwrap();
        drop(other);
        world.pass(100);
        assert_eq!(world.runtime.tasks(), tasks - 2, "its worker, its clock and its adaptation are gone");
    });
}

#[test]
fn an_adaptive_limit_above_workers_max_is_rejected() {
    explore_with(ActorSystemConfig { workers_max: number(3), ..one_worker() }, |world| {
        let refused = world.system.adapt_workers(dispatcher(4)).unwrap_err();
        assert_eq!(refused.to_string(), "workers is 4, above workers_max 3");
        world.system.force_stop();
        assert_eq!(world.system.adapt_workers(dispatcher(3)).unwrap_err(), SetWorkersError::Stopping);
    });
}

/// Actors whose messages take 2 ms each.
fn work(world: &World, crowd: &[ActorRef<Msg>], messages: u32) {
    for actor in crowd {
        for number in 0..messages {
            let handle = world.runtime.handle();
            actor.tell(go(move |me, _| {
                handle.elapse(2 * MS);
                me.note(number);
            }));
        }
    }
}

fn crowd(world: &World, actors: usize) -> Vec<ActorRef<Msg>> {
    (0..actors).map(|_| world.noter("crowd")).collect()
}

fn one_worker() -> ActorSystemConfig {
    ActorSystemConfig::with_workers(NonZeroUsize::MIN)
}

fn dispatcher(workers_max: usize) -> AdaptiveDispatcher {
    AdaptiveDispatcher::new(options(workers_max)).unwrap()
}

/// A reading every 5 ms, two to grow and five to shrink.
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
