//! Supervision at work: each directive, the limit on restarts, and the wait before them.

use std::time::Duration;

use evenkeel_actor::guardian::*;
use evenkeel_actor::runtime::test::Probe;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn resume_continues_with_the_next_message_and_the_same_value() {
    explore_with(supervised(directing(|_| SupervisionDirective::Resume)), |world| {
        let actor = world.spawn(world.puppet("a").loud());
        actor.tell(fail("broken"));
        actor.tell(go(|me, _| me.note(me.life)));
        assert_eq!(world.lines(), ["a1 started", "a 1"]);
        assert_eq!(restarts(world), 0.0);
    });
}

#[test]
fn restart_continues_with_the_next_message_and_a_new_value() {
    explore_with(supervised(at_once()), |world| {
        let actor = world.spawn(world.puppet("a").loud());
        actor.tell(fail("broken"));
        actor.tell(go(|me, _| me.note(me.life)));
        assert_eq!(world.lines(), ["a1 started", "a1 restarting: broken", "a1 dropped", "a2 started", "a 2"]);
        assert_eq!(restarts(world), 1.0);
    });
}

#[test]
fn stop_terminates_the_actor_with_its_error() {
    explore(|world| {
        let (probe, child) = probed(world, directing(|_| SupervisionDirective::Stop));
        child.tell(fail("broken"));
        child.tell(note(1));
        let how = probe.expect_terminated(&child, MS);
        let expected = Termination::Failed { error: ActorError::new("broken"), reason: StopReason::Directed };
        assert_eq!(how, expected);
        assert_eq!(world.letters(), [(dead_letters::DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn escalate_fails_the_parent_in_the_childs_place() {
    explore_with(supervised(directing(|_| SupervisionDirective::Stop)), |world| {
        let watcher = Probe::<()>::new(&world.runtime, &world.system).unwrap();
        let parent = world.puppet("parent").supervise(directing(|_| SupervisionDirective::Escalate));
        let parent = world.spawn(parent);
        watcher.watch(&parent);
        let child = child_of(world, &parent, world.puppet("child"));
        child.tell(fail("broken"));
        let Termination::Failed { error, reason } = watcher.expect_terminated(&parent, MS) else { panic!() };
        assert_eq!((error.kind(), reason), (ErrorKind::Escalated, StopReason::Directed));
        assert!(error.message().contains("broken"), "{error}");
        assert_eq!(child.state(), ActorState::Stopped, "the child ends with its parent");
    });
}

#[test]
fn exceeding_the_restart_limit_of_the_window_stops_the_actor() {
    explore(|world| {
        let three = at_once().with_max_restarts(3, Duration::from_secs(1)).unwrap();
        let (probe, child) = probed(world, three);
        for _ in 0..3 {
            child.tell(fail("broken"));
            world.pass(100);
            assert_eq!(child.state(), ActorState::Running);
        }
        child.tell(fail("broken"));
        let Termination::Failed { reason, .. } = probe.expect_terminated(&child, MS) else { panic!() };
        let within = Duration::from_secs(1);
        assert_eq!(reason, StopReason::RestartsExhausted { max_restarts: 3, within });
        assert_eq!(restarts(world), 3.0);
    });
}

#[test]
fn restarts_outside_the_window_do_not_count() {
    explore(|world| {
        let three = at_once().with_max_restarts(3, Duration::from_secs(1)).unwrap();
        let (_probe, child) = probed(world, three);
        for _ in 0..20 {
            child.tell(fail("broken"));
            world.pass(334);
        }
        assert_eq!((child.state(), restarts(world)), (ActorState::Running, 20.0));
    });
}

#[test]
fn each_consecutive_restart_waits_longer_and_messages_stay_queued() {
    explore(|world| {
        let backoff = Backoff::new(10 * MS, 1_000 * MS, 2, 0).unwrap();
        let (_probe, child) = probed(world, Supervision::default().with_backoff(backoff));
        for wait in [10, 20, 40, 80] {
            child.tell(fail("broken"));
            child.tell(note(wait));
            world.pass(u64::from(wait) - 1);
            assert_eq!(world.lines(), [""; 0], "{wait} ms are not over");
            assert_eq!(child.state(), ActorState::Suspended);
            world.pass(1);
            assert_eq!(world.lines(), [format!("a {wait}")]);
        }
    });
}

#[test]
fn a_parent_is_notified_of_the_failure_and_of_the_decision() {
    explore(|world| {
        let backoff = Backoff::new(10 * MS, 1_000 * MS, 2, 0).unwrap();
        let (probe, child) = probed(world, Supervision::default().with_backoff(backoff));
        for restarts in 1..3 {
            child.tell(fail("broken"));
            let Signal::ChildFailed(failure) = probe.expect_signal(MS) else { panic!() };
            let after = 10 * MS * restarts;
            assert_eq!(failure.decision, SupervisionDecision::Restart { after });
            assert_eq!((failure.child, failure.restarts), (child.index(), restarts));
            assert_eq!(failure.error, ActorError::new("broken"));
            world.pass(100);
        }
    });
}

#[test]
fn a_value_without_a_factory_is_stopped_instead_of_restarted() {
    explore(|world| {
        let probe = Probe::<()>::supervising(&world.runtime, &world.system, at_once()).unwrap();
        let child = probe.run(|ctx| {
            let props = Props::of_values().build();
            ctx.spawn_value(Fragile, &props).unwrap()
        });
        child.tell(());
        let expected = Termination::Failed { error: ActorError::new("broken"), reason: StopReason::Directed };
        assert_eq!(probe.expect_terminated(&child, MS), expected);
    });
}

struct Fragile;

impl Actor for Fragile {
    type Msg = ();

    fn receive(&mut self, (): (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        Err(ActorError::new("broken"))
    }
}

/// A child called `a` of a probe that supervises like this.
fn probed(world: &World, supervision: Supervision) -> (Probe<'_, ()>, ActorRef<Msg>) {
    let probe = Probe::supervising(&world.runtime, &world.system, supervision).unwrap();
    let child = probe.spawn(&world.puppet("a").props()).unwrap();
    world.run();
    (probe, child)
}

fn restarts(world: &World) -> f64 {
    world.metric(hub::names::RESTARTS_TOTAL, &[("actor", "a")])
}
