//! Death watch: the end of an actor is told once to everybody who asked, whenever they asked.

use evenkeel_actor::guardian::SupervisionDirective;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn every_watcher_is_notified_once() {
    explore(|world| {
        let whom = world.noter("x");
        for name in ["a", "b", "c"] {
            watch(&world.noter(name), &whom);
        }
        world.run();
        whom.stop(StopMode::Now);
        world.pass(1_000);
        let mut lines = world.lines();
        lines.sort();
        assert_eq!(lines, ["a", "b", "c"].map(|name| format!("{name} hears end: stopped")));
    });
}

#[test]
fn a_terminal_failure_is_reported_with_its_error() {
    explore_with(supervised(directing(|_| SupervisionDirective::Stop)), |world| {
        let a = world.noter("a");
        let x = world.noter("x");
        watch(&a, &x);
        world.run();
        x.tell(fail("broken"));
        assert_eq!(world.lines(), ["a hears end: broken, the supervisor stops it on this error"]);
    });
}

#[test]
fn watching_a_stopped_actor_is_answered_immediately() {
    explore(|world| {
        let a = world.noter("a");
        let x = world.noter("x");
        x.stop(StopMode::Now);
        world.run();
        watch(&a, &x);
        assert_eq!(world.lines(), ["a hears end: unknown"]);
        watch(&a, &x);
        assert_eq!(world.lines(), ["a hears end: unknown"], "a new watch is a new question");
    });
}

#[test]
fn watching_a_stopping_actor_is_answered_when_it_has_stopped() {
    explore(|world| {
        let a = world.noter("a");
        let x = world.noter("x");
        let child = child_of(world, &x, world.puppet("child"));
        let handle = world.runtime.handle();
        child.tell(go(move |_, _| handle.elapse(MS)));
        x.stop(StopMode::Now);
        watch(&a, &x);
        let lines = world.lines();
        assert!(["a hears end: stopped", "a hears end: unknown"].contains(&lines[0].as_str()), "{lines:?}");
        assert_eq!(lines.len(), 1);
    });
}

#[test]
fn watching_twice_is_watching_once() {
    explore(|world| {
        let a = world.noter("a");
        let x = world.noter("x");
        watch(&a, &x);
        watch(&a, &x);
        world.run();
        x.stop(StopMode::Now);
        world.pass(10);
        assert_eq!(world.lines(), ["a hears end: stopped"]);
    });
}

#[test]
fn an_unwatched_termination_is_not_reported() {
    explore(|world| {
        let a = world.noter("a");
        let x = world.noter("x");
        watch(&a, &x);
        unwatch(&a, &x);
        world.run();
        x.stop(StopMode::Now);
        assert_eq!(world.lines(), [""; 0]);
        watch(&a, &x);
        unwatch(&a, &x);
        assert!(world.lines().len() <= 1, "one who has ended may be told before");
    });
}

#[test]
fn unwatching_during_the_termination_suppresses_the_notification() {
    explore(|world| {
        let a = world.noter("a");
        let x = world.noter("x");
        watch(&a, &x);
        world.run();
        let whom = x.clone();
        a.tell(go(move |_, ctx| {
            // Nobody else runs while this handler does, so its end comes after this line.
            whom.stop(StopMode::Now);
            ctx.unwatch(&whom);
        }));
        world.pass(10);
        assert_eq!((world.lines(), x.state()), (vec![], ActorState::Stopped));
    });
}

#[test]
fn a_renewed_watch_notifies_once() {
    explore(|world| {
        let a = world.noter("a");
        let x = world.noter("x");
        watch(&a, &x);
        unwatch(&a, &x);
        watch(&a, &x);
        world.run();
        x.stop(StopMode::Now);
        assert_eq!(world.lines(), ["a hears end: stopped"]);
    });
}

#[test]
fn a_parent_that_watches_its_child_is_notified_once() {
    explore(|world| {
        let parent = world.noter("p");
        let child = child_of(world, &parent, world.puppet("c"));
        watch(&parent, &child);
        world.run();
        child.stop(StopMode::Now);
        world.pass(10);
        assert_eq!(world.lines(), ["p hears end: stopped"]);
    });
}

#[test]
fn two_actors_that_watch_each_other_can_both_stop() {
    explore(|world| {
        let a = world.noter("a");
        let b = world.noter("b");
        watch(&a, &b);
        watch(&b, &a);
        watch(&a, &a);
        world.run();
        a.stop(StopMode::Now);
        assert_eq!(world.lines(), ["b hears end: stopped"]);
        b.stop(StopMode::Now);
        assert_eq!((world.lines(), world.system.alive()), (vec![], 0));
    });
}

#[test]
fn a_watch_survives_the_restart_of_the_watcher() {
    explore_with(supervised(at_once()), |world| {
        let a = world.noter("a");
        let x = world.noter("x");
        watch(&a, &x);
        a.tell(fail("broken"));
        world.run();
        x.stop(StopMode::Now);
        assert_eq!(world.lines(), ["a hears end: stopped"]);
    });
}

#[test]
fn a_restart_of_the_watched_actor_is_not_a_termination() {
    explore_with(supervised(at_once()), |world| {
        let a = world.noter("a");
        let x = world.noter("x");
        watch(&a, &x);
        world.run();
        x.tell(fail("broken"));
        world.pass(10);
        assert_eq!(world.lines(), [""; 0]);
        x.stop(StopMode::Now);
        assert_eq!(world.lines(), ["a hears end: stopped"]);
    });
}

#[test]
fn concurrent_watches_miss_no_termination() {
    explore(|world| {
        let watchers: Vec<_> = (0..10).map(|_| world.noter("w")).collect();
        let watched: Vec<_> = (0..10).map(|_| world.noter("x")).collect();
        for (nth, whom) in watched.iter().enumerate() {
            for (mth, watcher) in watchers.iter().enumerate() {
                watch(watcher, whom);
                if mth == nth {
                    whom.stop(StopMode::Now);
                }
            }
        }
        world.pass(10);
        let lines = world.lines();
        assert_eq!(lines.len(), 100);
        assert!(lines.iter().all(|line| line.starts_with("w hears end: ")), "{lines:?}");
    });
}

#[test]
fn an_actor_watches_at_most_65536_others() {
    let world = World::new(runtime::test::TestOptions::new(1), config());
    let a = world.noter("a");
    let props = world.puppet("x").props();
    let others: Vec<_> = (0..=65_536).map(|_| world.system.spawn(&props).unwrap()).collect();
    a.tell(go(move |me, ctx| {
        let watched = others.iter().filter(|other| ctx.watch(other)).count();
        me.note(format_args!("watches {watched}, one of them again: {}", ctx.watch(&others[7])));
    }));
    assert_eq!(world.lines(), ["a watches 65536, one of them again: true"]);
}

fn watch(who: &ActorRef<Msg>, whom: &ActorRef<Msg>) {
    let whom = whom.clone();
    who.tell(go(move |_, ctx| assert!(ctx.watch(&whom))));
}

fn unwatch(who: &ActorRef<Msg>, whom: &ActorRef<Msg>) {
    let whom = whom.clone();
    who.tell(go(move |_, ctx| ctx.unwatch(&whom)));
}
