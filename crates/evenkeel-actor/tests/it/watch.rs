//! Death watch: every watcher is notified once of a termination, whenever it started watching.

use evenkeel_actor::guardian::SupervisionDirective;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn every_watcher_is_notified_once() {
    explore(|harness| {
        let target = harness.recorder("x");
        for name in ["a", "b", "c"] {
            watch(&harness.recorder(name), &target);
        }
        harness.run();
        target.stop(StopMode::Now);
        harness.advance_ms(1_000);
        let mut lines = harness.lines();
        lines.sort();
        assert_eq!(lines, ["a", "b", "c"].map(|name| format!("{name} terminated: stopped")));
    });
}

#[test]
fn a_terminal_failure_is_reported_with_its_error() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Stop)), |harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        watch(&a, &x);
        harness.run();
        x.tell(fail("broken"));
        assert_eq!(harness.lines(), ["a terminated: broken, the supervisor stops actors on this error"]);
    });
}

#[test]
fn the_watcher_of_a_stopped_actor_is_notified_immediately() {
    explore(|harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        x.stop(StopMode::Now);
        harness.run();
        watch(&a, &x);
        assert_eq!(harness.lines(), ["a terminated: unknown"]);
        watch(&a, &x);
        assert_eq!(harness.lines(), ["a terminated: unknown"], "a new watch is notified again");
    });
}

#[test]
fn the_watcher_of_a_stopping_actor_is_notified_when_it_has_stopped() {
    explore(|harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        let child = spawn_child(harness, &x, harness.puppet("child"));
        let handle = harness.runtime.handle();
        child.tell(run(move |_, _| handle.elapse(MS)));
        x.stop(StopMode::Now);
        watch(&a, &x);
        let lines = harness.lines();
        assert!(["a terminated: stopped", "a terminated: unknown"].contains(&lines[0].as_str()), "{lines:?}");
        assert_eq!(lines.len(), 1);
    });
}

#[test]
fn an_actor_that_watches_twice_is_notified_once() {
    explore(|harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        watch(&a, &x);
        watch(&a, &x);
        harness.run();
        x.stop(StopMode::Now);
        harness.advance_ms(10);
        assert_eq!(harness.lines(), ["a terminated: stopped"]);
    });
}

#[test]
fn an_unwatched_termination_is_not_reported() {
    explore(|harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        watch(&a, &x);
        unwatch(&a, &x);
        harness.run();
        x.stop(StopMode::Now);
        assert_eq!(harness.lines(), [""; 0]);
        watch(&a, &x);
        unwatch(&a, &x);
        assert!(harness.lines().len() <= 1, "the termination may have been reported before the unwatch");
    });
}

#[test]
fn unwatching_during_the_termination_suppresses_the_notification() {
    explore(|harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        watch(&a, &x);
        harness.run();
        let target = x.clone();
        a.tell(run(move |_, ctx| {
            // No other handler runs meanwhile, so the termination comes after this line.
            target.stop(StopMode::Now);
            ctx.unwatch(&target);
        }));
        harness.advance_ms(10);
        assert_eq!((harness.lines(), x.state()), (vec![], ActorState::Stopped));
    });
}

#[test]
fn a_renewed_watch_notifies_once() {
    explore(|harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        watch(&a, &x);
        unwatch(&a, &x);
        watch(&a, &x);
        harness.run();
        x.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["a terminated: stopped"]);
    });
}

#[test]
fn a_parent_that_watches_its_child_is_notified_once() {
    explore(|harness| {
        let parent = harness.recorder("p");
        let child = spawn_child(harness, &parent, harness.puppet("c"));
        watch(&parent, &child);
        harness.run();
        child.stop(StopMode::Now);
        harness.advance_ms(10);
        assert_eq!(harness.lines(), ["p terminated: stopped"]);
    });
}

#[test]
fn two_actors_that_watch_each_other_can_both_stop() {
    explore(|harness| {
        let a = harness.recorder("a");
        let b = harness.recorder("b");
        watch(&a, &b);
        watch(&b, &a);
        watch(&a, &a);
        harness.run();
        a.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["b terminated: stopped"]);
        b.stop(StopMode::Now);
        assert_eq!((harness.lines(), harness.system.alive()), (vec![], 0));
    });
}

#[test]
fn a_watch_survives_the_restart_of_the_watcher() {
    explore_with(supervised(restart_immediately()), |harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        watch(&a, &x);
        a.tell(fail("broken"));
        harness.run();
        x.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["a terminated: stopped"]);
    });
}

#[test]
fn a_restart_of_the_watched_actor_is_not_a_termination() {
    explore_with(supervised(restart_immediately()), |harness| {
        let a = harness.recorder("a");
        let x = harness.recorder("x");
        watch(&a, &x);
        harness.run();
        x.tell(fail("broken"));
        harness.advance_ms(10);
        assert_eq!(harness.lines(), [""; 0]);
        x.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["a terminated: stopped"]);
    });
}

#[test]
fn concurrent_watches_miss_no_termination() {
    explore(|harness| {
        let watchers: Vec<_> = (0..10).map(|_| harness.recorder("w")).collect();
        let watched: Vec<_> = (0..10).map(|_| harness.recorder("x")).collect();
        for (nth, target) in watched.iter().enumerate() {
            for (mth, watcher) in watchers.iter().enumerate() {
                watch(watcher, target);
                if mth == nth {
                    target.stop(StopMode::Now);
                }
            }
        }
        harness.advance_ms(10);
        let lines = harness.lines();
        assert_eq!(lines.len(), 100);
        assert!(lines.iter().all(|line| line.starts_with("w terminated: ")), "{lines:?}");
    });
}

#[test]
fn an_actor_watches_at_most_65536_others() {
    let harness = Harness::new(runtime::test::TestOptions::new(1), config());
    let a = harness.recorder("a");
    let props = harness.puppet("x").props();
    let others: Vec<_> = (0..=65_536).map(|_| harness.system.spawn(&props).unwrap()).collect();
    a.tell(run(move |me, ctx| {
        let watched = others.iter().filter(|other| ctx.watch(other)).count();
        me.record(format_args!("watches {watched}, one of them again: {}", ctx.watch(&others[7])));
    }));
    assert_eq!(harness.lines(), ["a watches 65536, one of them again: true"]);
}

fn watch(watcher: &ActorRef<Msg>, target: &ActorRef<Msg>) {
    let target = target.clone();
    watcher.tell(run(move |_, ctx| assert!(ctx.watch(&target))));
}

fn unwatch(watcher: &ActorRef<Msg>, target: &ActorRef<Msg>) {
    let target = target.clone();
    watcher.tell(run(move |_, ctx| ctx.unwatch(&target)));
}
