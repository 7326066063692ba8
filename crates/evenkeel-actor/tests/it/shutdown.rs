//! Shutdown: no accepted message is lost silently, and every actor and task ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::*;

use crate::harness::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn accepted_messages_are_handled_before_every_actor_stops() {
    explore(|harness| {
        let actors = ["a", "b", "c"].map(|name| harness.recorder(name));
        for number in 0..50 {
            actors.iter().for_each(|actor| actor.tell(record(number)));
        }
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(SECOND));
        assert_eq!(report, ShutdownReport { drained: true, abandoned: 0 });
        assert_eq!(harness.lines().len(), 150);
        assert_eq!((harness.dead_letters(), harness.system.alive()), (vec![], 0));
        assert_eq!((harness.system.lifecycle(), harness.runtime.tasks()), (Lifecycle::Stopped, 0));
    });
}

#[test]
fn a_stopping_system_rejects_new_work() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let child = harness.puppet("child").props();
        assert_eq!(harness.system.lifecycle(), Lifecycle::Running);
        actor.tell(harness.wait_until_ms(50, 1));
        actor.tell(run(move |me, ctx| me.record(format_args!("{:?}", ctx.spawn(&child).map(drop)))));
        harness.run();
        let report_log = spawn_shutdown(harness, SECOND);
        harness.advance_ms(10);
        assert_eq!(harness.system.lifecycle(), Lifecycle::Stopping);
        assert!(matches!(actor.try_tell(record(2)), Err(SendError::Closed(Msg::Record(2)))));
        actor.tell(record(3));
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Refused, 3)]);
        let error = harness.system.spawn(&harness.puppet("b").props()).unwrap_err();
        assert_eq!(error, SpawnError::Stopping);
        assert_eq!(harness.system.spawn_task(async {}), Err(SpawnError::Stopping));
        assert_eq!(harness.runtime.block_on(actor.ask(|reply| Msg::Ask(4, reply))), Err(AskError::Closed));
        harness.advance_ms(100);
        assert_eq!(harness.lines(), ["a 1", "a Err(Stopping)"], "accepted messages are handled");
        assert_eq!(report_log.take(), ["ShutdownReport { drained: true, abandoned: 0 }"]);
    });
}

#[test]
fn a_producer_waiting_for_capacity_gets_its_message_back_when_the_system_stops() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::BlockProducer));
        actor.tell(harness.wait_until_ms(50, 1));
        harness.run();
        actor.tell(record(2));
        let target = actor.clone();
        let log = Log::default();
        let outcome = log.clone();
        spawn_on_runtime(harness, async move {
            let result = target.send(record(3)).await;
            outcome.record(format!("{result:?}"));
        });
        harness.run();
        spawn_shutdown(harness, SECOND);
        harness.advance_ms(100);
        assert_eq!(
            (log.take(), harness.lines()),
            (vec!["Err(Closed(_))".to_owned()], vec!["a 1".into(), "a 2".into()])
        );
    });
}

#[test]
fn a_system_is_draining_while_its_actors_stop() {
    explore(|harness| {
        let system = harness.system.clone();
        let actor =
            harness.puppet("a").stopped(move |me, _| me.record(format_args!("{:?}", system.lifecycle())));
        harness.spawn(actor);
        harness.runtime.block_on(harness.system.graceful_shutdown(SECOND));
        assert_eq!(harness.lines(), ["a Draining"]);
    });
}

#[test]
fn messages_not_handled_in_time_become_dead_letters() {
    explore(|harness| {
        let suspended = harness.recorder("suspended");
        let busy = harness.recorder("busy");
        suspended.tell(suspend_until(1));
        suspended.tell(record(1));
        busy.tell(record(2));
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(SECOND));
        assert_eq!(report, ShutdownReport { drained: false, abandoned: 0 });
        assert!((1_000..1_010).contains(&harness.now_ms()), "{} ms", harness.now_ms());
        assert_eq!(harness.lines(), ["busy 2"]);
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Stopped, 1)]);
        assert_eq!(harness.runtime.tasks(), 0);
    });
}

#[test]
fn a_graceful_shutdown_waits_for_futures_that_actors_await() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(harness.wait_until_ms(500, 1));
        actor.tell(record(2));
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(SECOND));
        assert_eq!((report.drained, harness.lines()), (true, vec!["a 1".to_owned(), "a 2".to_owned()]));
    });
}

#[test]
fn timers_and_suspensions_without_messages_do_not_delay_a_shutdown() {
    explore(|harness| {
        let timed = harness.recorder("t");
        let suspended = harness.recorder("suspended");
        timed.tell(run(|_, ctx| ctx.set_timer(TimerId(1), 3_600 * SECOND, Repeat::Every(MS))));
        timed.tell(run(|_, ctx| ctx.set_receive_timeout(Some(SECOND))));
        suspended.tell(suspend_until(1));
        harness.run();
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(SECOND));
        assert_eq!(report, ShutdownReport { drained: true, abandoned: 0 });
        assert!(harness.now_ms() < 10, "{} ms", harness.now_ms());
        harness.run();
        assert_eq!(harness.runtime.tasks(), 0);
    });
}

#[test]
fn force_stop_stops_every_actor_before_its_next_message_and_ends_every_task() {
    explore(|harness| {
        let actors: Vec<_> = (0..20).map(|_| harness.recorder("a")).collect();
        for actor in &actors {
            (0..5).for_each(|number| actor.tell(record(number)));
        }
        harness.system.force_stop();
        assert_eq!(harness.system.lifecycle(), Lifecycle::Stopped);
        let handled = harness.lines().len() as u64;
        assert_eq!(handled + harness.system.dead_letters_total(), 100);
        assert_eq!((harness.system.alive(), harness.runtime.tasks()), (0, 0));
        assert!(matches!(actors[0].try_tell(record(9)), Err(SendError::Closed(_))));
    });
}

#[test]
fn force_stop_reaches_suspended_awaiting_failed_and_restarting_actors() {
    explore(|harness| {
        let names = ["suspended", "waiting", "failed", "parent"];
        let [suspended, waiting, failed, parent] = names.map(|name| harness.recorder(name));
        let child = spawn_child(harness, &parent, harness.puppet("child"));
        spawn_child(harness, &child, harness.puppet("grandchild"));
        suspended.tell(suspend_until(1));
        waiting.tell(harness.wait_until_ms(1_000_000, 1));
        failed.tell(fail("broken"));
        parent.tell(fail("broken"));
        harness.advance_ms(1);
        assert_eq!([suspended.state(), waiting.state()], [ActorState::Suspended; 2]);
        harness.system.force_stop();
        harness.run();
        assert_eq!((harness.system.alive(), harness.runtime.tasks()), (0, 0));
    });
}

#[test]
fn dropping_the_last_handle_stops_the_system() {
    for seed in 0..12 {
        let harness = Harness::new(runtime::test::TestOptions::new(seed), config());
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        actor.tell(suspend_until(1));
        actor.tell(record(1));
        harness.run();
        let Harness { system, log, runtime } = harness;
        let second_handle = system.clone();
        drop(system);
        runtime.run_until_idle();
        assert_eq!((runtime.tasks(), actor.state()), (3, ActorState::Suspended));
        drop(second_handle);
        runtime.run_until_idle();
        assert_eq!((runtime.tasks(), actor.state()), (0, ActorState::Stopped));
        assert_eq!(log.take(), ["a1 started", "a1 stopped", "a1 dropped"]);
    }
}

#[test]
fn shutting_down_again_returns_the_same_report() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(harness.wait_until_ms(20, 1));
        harness.run();
        let first = spawn_shutdown(harness, SECOND);
        let second = spawn_shutdown(harness, SECOND);
        harness.advance_ms(100);
        let expected = ["ShutdownReport { drained: true, abandoned: 0 }"];
        assert_eq!(
            (first.take(), second.take()),
            (expected.map(str::to_owned).to_vec(), expected.map(str::to_owned).to_vec())
        );
        let third = harness.runtime.block_on(harness.system.graceful_shutdown(SECOND));
        assert_eq!(third, ShutdownReport { drained: true, abandoned: 0 });
        harness.system.force_stop();
        assert_eq!(harness.runtime.tasks(), 0);
    });
}

#[test]
fn no_accepted_message_is_lost_silently_while_producers_send() {
    explore(|harness| {
        let actors: Vec<_> = (0..5)
            .map(|_| harness.spawn(harness.puppet("a").capacity(8, OverflowStrategy::Reject)))
            .collect();
        let accepted = Arc::new(AtomicU64::new(0));
        let tell_count = Arc::new(AtomicU64::new(0));
        for nth in 0..10 {
            let target = actors[nth % 5].clone();
            let handle = harness.runtime.handle();
            let accepted = accepted.clone();
            let tell_count = tell_count.clone();
            spawn_on_runtime(harness, async move {
                for number in 0..200 {
                    match (nth + number as usize) % 3 {
                        0 => {
                            target.tell(record(number));
                            tell_count.fetch_add(1, Ordering::Relaxed);
                        }
                        1 => {
                            accepted.fetch_add(
                                u64::from(target.try_tell(record(number)).is_ok()),
                                Ordering::Relaxed,
                            );
                        }
                        _ => {
                            accepted.fetch_add(
                                u64::from(target.send(record(number)).await.is_ok()),
                                Ordering::Relaxed,
                            );
                        }
                    }
                    if number % 16 == 0 {
                        let now = runtime::RuntimeHandle::now(&handle);
                        runtime::RuntimeHandle::sleep_until(&handle, now + MS).await;
                    }
                }
            });
        }
        harness.advance_ms(5);
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(SECOND));
        assert_eq!(report, ShutdownReport { drained: true, abandoned: 0 });
        harness.advance_ms(1_000);
        let handled = harness.lines().len() as u64;
        let sent = accepted.load(Ordering::Relaxed) + tell_count.load(Ordering::Relaxed);
        assert_eq!(handled + harness.system.dead_letters_total(), sent);
        assert!(0 < handled && 0 < harness.system.dead_letters_total());
    });
}

/// Starts a shutdown in a separate task; returns a log that will receive the report.
fn spawn_shutdown(harness: &Harness, timeout: Duration) -> Log {
    let log = Log::default();
    let system = harness.system.clone();
    let outcome = log.clone();
    spawn_on_runtime(harness, async move {
        let report = system.graceful_shutdown(timeout).await;
        outcome.record(format!("{report:?}"));
    });
    log
}

/// Spawns a plain runtime task, not an actor.
fn spawn_on_runtime(harness: &Harness, task: impl Future<Output = ()> + Send + 'static) {
    runtime::RuntimeHandle::spawn(&harness.runtime.handle(), Box::pin(task)).unwrap();
}
