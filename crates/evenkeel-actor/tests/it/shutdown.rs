//! The end of a system: nothing accepted is lost silently, and nobody stays behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::*;

use crate::harness::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn accepted_messages_are_handled_before_every_actor_stops() {
    explore(|world| {
        let actors = ["a", "b", "c"].map(|name| world.noter(name));
        for number in 0..50 {
            actors.iter().for_each(|actor| actor.tell(note(number)));
        }
        let end = world.runtime.block_on(world.system.graceful_shutdown(SECOND));
        assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
        assert_eq!(world.lines().len(), 150);
        assert_eq!((world.letters(), world.system.alive()), (vec![], 0));
        assert_eq!((world.system.lifecycle(), world.runtime.tasks()), (Lifecycle::Stopped, 0));
    });
}

#[test]
fn a_stopping_system_returns_new_messages_and_reports_its_lifecycle() {
    explore(|world| {
        let actor = world.noter("a");
        let child = world.puppet("child").props();
        assert_eq!(world.system.lifecycle(), Lifecycle::Running);
        actor.tell(world.wait_until_ms(50, 1));
        actor.tell(go(move |me, ctx| me.note(format_args!("{:?}", ctx.spawn(&child).map(drop)))));
        world.run();
        let end = shut_down(world, SECOND);
        world.pass(10);
        assert_eq!(world.system.lifecycle(), Lifecycle::Stopping);
        assert!(matches!(actor.try_tell(note(2)), Err(SendError::Closed(Msg::Note(2)))));
        actor.tell(note(3));
        assert_eq!(world.letters(), [(DeadLetterReason::Refused, 3)]);
        let refused = world.system.spawn(&world.puppet("b").props()).unwrap_err();
        assert_eq!(refused, SpawnError::Stopping);
        assert_eq!(world.system.spawn_task(async {}), Err(SpawnError::Stopping));
        assert_eq!(world.runtime.block_on(actor.ask(|reply| Msg::Ask(4, reply))), Err(AskError::Closed));
        world.pass(100);
        assert_eq!(world.lines(), ["a 1", "a Err(Stopping)"], "what was accepted is handled");
        assert_eq!(end.take(), ["ShutdownReport { drained: true, abandoned: 0 }"]);
    });
}

#[test]
fn a_producer_waiting_for_capacity_gets_its_message_back_when_the_system_stops() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").places(1, OverflowStrategy::BlockProducer));
        actor.tell(world.wait_until_ms(50, 1));
        world.run();
        actor.tell(note(2));
        let to = actor.clone();
        let log = Log::default();
        let told = log.clone();
        spawn_outside(world, async move {
            let back = to.send(note(3)).await;
            told.note(format!("{back:?}"));
        });
        world.run();
        shut_down(world, SECOND);
        world.pass(100);
        assert_eq!(
            (log.take(), world.lines()),
            (vec!["Err(Closed(_))".to_owned()], vec!["a 1".into(), "a 2".into()])
        );
    });
}

#[test]
fn a_system_is_draining_while_its_actors_stop() {
    explore(|world| {
        let system = world.system.clone();
        let actor = world.puppet("a").stopped(move |me, _| me.note(format_args!("{:?}", system.lifecycle())));
        world.spawn(actor);
        world.runtime.block_on(world.system.graceful_shutdown(SECOND));
        assert_eq!(world.lines(), ["a Draining"]);
    });
}

#[test]
fn messages_not_handled_in_time_become_dead_letters() {
    explore(|world| {
        let held = world.noter("held");
        let busy = world.noter("busy");
        held.tell(hold(1));
        held.tell(note(1));
        busy.tell(note(2));
        let end = world.runtime.block_on(world.system.graceful_shutdown(SECOND));
        assert_eq!(end, ShutdownReport { drained: false, abandoned: 0 });
        assert!((1_000..1_010).contains(&world.now_ms()), "{} ms", world.now_ms());
        assert_eq!(world.lines(), ["busy 2"]);
        assert_eq!(world.letters(), [(DeadLetterReason::Stopped, 1)]);
        assert_eq!(world.runtime.tasks(), 0);
    });
}

#[test]
fn a_shutdown_waits_for_awaited_futures() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(world.wait_until_ms(500, 1));
        actor.tell(note(2));
        let end = world.runtime.block_on(world.system.graceful_shutdown(SECOND));
        assert_eq!((end.drained, world.lines()), (true, vec!["a 1".to_owned(), "a 2".to_owned()]));
    });
}

#[test]
fn timers_and_suspensions_without_messages_do_not_delay_a_shutdown() {
    explore(|world| {
        let timed = world.noter("t");
        let held = world.noter("h");
        timed.tell(go(|_, ctx| ctx.set_timer(TimerId(1), 3_600 * SECOND, Repeat::Every(MS))));
        timed.tell(go(|_, ctx| ctx.set_receive_timeout(Some(SECOND))));
        held.tell(hold(1));
        world.run();
        let end = world.runtime.block_on(world.system.graceful_shutdown(SECOND));
        assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
        assert!(world.now_ms() < 10, "{} ms", world.now_ms());
        world.run();
        assert_eq!(world.runtime.tasks(), 0);
    });
}

#[test]
fn force_stop_stops_every_actor_before_its_next_message_and_ends_every_task() {
    explore(|world| {
        let actors: Vec<_> = (0..20).map(|_| world.noter("a")).collect();
        for actor in &actors {
            (0..5).for_each(|number| actor.tell(note(number)));
        }
        world.system.force_stop();
        assert_eq!(world.system.lifecycle(), Lifecycle::Stopped);
        let handled = world.lines().len() as u64;
        assert_eq!(handled + world.system.dead_letters_total(), 100);
        assert_eq!((world.system.alive(), world.runtime.tasks()), (0, 0));
        assert!(matches!(actors[0].try_tell(note(9)), Err(SendError::Closed(_))));
    });
}

#[test]
fn force_stop_reaches_suspended_awaiting_failed_and_restarting_actors() {
    explore(|world| {
        let names = ["held", "waiting", "failed", "parent"];
        let [held, waiting, failed, parent] = names.map(|name| world.noter(name));
        let child = child_of(world, &parent, world.puppet("child"));
        child_of(world, &child, world.puppet("grandchild"));
        held.tell(hold(1));
        waiting.tell(world.wait_until_ms(1_000_000, 1));
        failed.tell(fail("broken"));
        parent.tell(fail("broken"));
        world.pass(1);
        assert_eq!([held.state(), waiting.state()], [ActorState::Suspended; 2]);
        world.system.force_stop();
        world.run();
        assert_eq!((world.system.alive(), world.runtime.tasks()), (0, 0));
    });
}

#[test]
fn dropping_the_last_handle_stops_the_system() {
    for seed in 0..12 {
        let world = World::new(runtime::test::TestOptions::new(seed), config());
        let actor = world.spawn(world.puppet("a").loud());
        actor.tell(hold(1));
        actor.tell(note(1));
        world.run();
        let World { system, log, runtime } = world;
        let copy = system.clone();
        drop(system);
        runtime.run_until_idle();
        assert_eq!((runtime.tasks(), actor.state()), (3, ActorState::Suspended));
        drop(copy);
        runtime.run_until_idle();
        assert_eq!((runtime.tasks(), actor.state()), (0, ActorState::Stopped));
        assert_eq!(log.take(), ["a1 started", "a1 stopped", "a1 dropped"]);
    }
}

#[test]
fn shutting_down_twice_is_shutting_down_once() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(world.wait_until_ms(20, 1));
        world.run();
        let first = shut_down(world, SECOND);
        let second = shut_down(world, SECOND);
        world.pass(100);
        let expected = ["ShutdownReport { drained: true, abandoned: 0 }"];
        assert_eq!(
            (first.take(), second.take()),
            (expected.map(str::to_owned).to_vec(), expected.map(str::to_owned).to_vec())
        );
        let third = world.runtime.block_on(world.system.graceful_shutdown(SECOND));
        assert_eq!(third, ShutdownReport { drained: true, abandoned: 0 });
        world.system.force_stop();
        assert_eq!(world.runtime.tasks(), 0);
    });
}

#[test]
fn no_accepted_message_is_lost_silently_while_producers_send() {
    explore(|world| {
        let actors: Vec<_> =
            (0..5).map(|_| world.spawn(world.puppet("a").places(8, OverflowStrategy::Reject))).collect();
        let accepted = Arc::new(AtomicU64::new(0));
        let buried = Arc::new(AtomicU64::new(0));
        for nth in 0..10 {
            let to = actors[nth % 5].clone();
            let handle = world.runtime.handle();
            let accepted = accepted.clone();
            let buried = buried.clone();
            spawn_outside(world, async move {
                for number in 0..200 {
                    match (nth + number as usize) % 3 {
                        0 => {
                            to.tell(note(number));
                            buried.fetch_add(1, Ordering::Relaxed);
                        }
                        1 => {
                            accepted
                                .fetch_add(u64::from(to.try_tell(note(number)).is_ok()), Ordering::Relaxed);
                        }
                        _ => {
                            accepted
                                .fetch_add(u64::from(to.send(note(number)).await.is_ok()), Ordering::Relaxed);
                        }
                    }
                    if number % 16 == 0 {
                        let now = runtime::RuntimeHandle::now(&handle);
                        runtime::RuntimeHandle::sleep_until(&handle, now + MS).await;
                    }
                }
            });
        }
        world.pass(5);
        let end = world.runtime.block_on(world.system.graceful_shutdown(SECOND));
        assert_eq!(end, ShutdownReport { drained: true, abandoned: 0 });
        world.pass(1_000);
        let handled = world.lines().len() as u64;
        let sent = accepted.load(Ordering::Relaxed) + buried.load(Ordering::Relaxed);
        assert_eq!(handled + world.system.dead_letters_total(), sent);
        assert!(0 < handled && 0 < world.system.dead_letters_total());
    });
}

/// Shuts the system down in a task of its own; its outcome is the line of the log.
fn shut_down(world: &World, within: Duration) -> Log {
    let log = Log::default();
    let system = world.system.clone();
    let told = log.clone();
    spawn_outside(world, async move {
        let end = system.graceful_shutdown(within).await;
        told.note(format!("{end:?}"));
    });
    log
}

/// Runs a task beside the workers, not on them.
fn spawn_outside(world: &World, task: impl Future<Output = ()> + Send + 'static) {
    runtime::RuntimeHandle::spawn(&world.runtime.handle(), Box::pin(task)).unwrap();
}
