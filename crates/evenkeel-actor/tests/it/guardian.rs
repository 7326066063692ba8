//! Supervision: each directive, the restart limit and the backoff.

use std::time::Duration;

use evenkeel_actor::guardian::*;
use evenkeel_actor::runtime::test::Probe;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn resume_continues_with_the_next_message_and_the_same_value() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Resume)), |harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        actor.tell(fail("broken"));
        actor.tell(run(|me, _| me.record(me.incarnation)));
        assert_eq!(harness.lines(), ["a1 started", "a 1"]);
        assert_eq!(restarts(harness), 0.0);
    });
}

#[test]
fn restart_continues_with_the_next_message_and_a_new_value() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        actor.tell(fail("broken"));
        actor.tell(run(|me, _| me.record(me.incarnation)));
        assert_eq!(
            harness.lines(),
            ["a1 started", "a1 restarting: broken", "a1 dropped", "a2 started", "a 2"]
        );
        assert_eq!(restarts(harness), 1.0);
    });
}

#[test]
fn stop_terminates_the_actor_with_its_error() {
    explore(|harness| {
        let (probe, child) = spawn_probe_and_child(harness, decided_by(|_| SupervisionDirective::Stop));
        child.tell(fail("broken"));
        child.tell(record(1));
        let termination = probe.expect_terminated(&child, MS);
        let expected = Termination::Failed { error: ActorError::new("broken"), reason: StopReason::Directed };
        assert_eq!(termination, expected);
        assert_eq!(harness.dead_letters(), [(dead_letters::DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn escalate_fails_the_parent_in_the_childs_place() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Stop)), |harness| {
        let watcher = Probe::<()>::new(&harness.runtime, &harness.system).unwrap();
        let parent = harness.puppet("parent").supervise(decided_by(|_| SupervisionDirective::Escalate));
        let parent = harness.spawn(parent);
        watcher.watch(&parent);
        let child = spawn_child(harness, &parent, harness.puppet("child"));
        child.tell(fail("broken"));
        let Termination::Failed { error, reason } = watcher.expect_terminated(&parent, MS) else { panic!() };
        assert_eq!((error.kind(), reason), (ErrorKind::Escalated, StopReason::Directed));
        assert!(error.message().contains("broken"), "{error}");
        assert_eq!(child.state(), ActorState::Stopped, "the child stops with its parent");
    });
}

#[test]
fn exceeding_the_restart_limit_of_the_window_stops_the_actor() {
    explore(|harness| {
        let three = restart_immediately().with_max_restarts(3, Duration::from_secs(1)).unwrap();
        let (probe, child) = spawn_probe_and_child(harness, three);
        for _ in 0..3 {
            child.tell(fail("broken"));
            harness.advance_ms(100);
            assert_eq!(child.state(), ActorState::Running);
        }
        child.tell(fail("broken"));
        let Termination::Failed { reason, .. } = probe.expect_terminated(&child, MS) else { panic!() };
        let within = Duration::from_secs(1);
        assert_eq!(reason, StopReason::RestartsExhausted { max_restarts: 3, within });
        assert_eq!(restarts(harness), 3.0);
    });
}

#[test]
fn restarts_outside_the_window_do_not_count() {
    explore(|harness| {
        let three = restart_immediately().with_max_restarts(3, Duration::from_secs(1)).unwrap();
        let (_probe, child) = spawn_probe_and_child(harness, three);
        for _ in 0..20 {
            child.tell(fail("broken"));
            harness.advance_ms(334);
        }
        assert_eq!((child.state(), restarts(harness)), (ActorState::Running, 20.0));
    });
}

#[test]
fn each_consecutive_restart_waits_longer_and_messages_stay_queued() {
    explore(|harness| {
        let backoff = Backoff::new(10 * MS, 1_000 * MS, 2, 0).unwrap();
        let (_probe, child) = spawn_probe_and_child(harness, Supervision::default().with_backoff(backoff));
        for wait in [10, 20, 40, 80] {
            child.tell(fail("broken"));
            child.tell(record(wait));
            harness.advance_ms(u64::from(wait) - 1);
            assert_eq!(harness.lines(), [""; 0], "{wait} ms have not passed");
            assert_eq!(child.state(), ActorState::Suspended);
            harness.advance_ms(1);
            assert_eq!(harness.lines(), [format!("a {wait}")]);
        }
    });
}

#[test]
fn a_parent_is_notified_of_the_failure_and_of_the_decision() {
    explore(|harness| {
        let backoff = Backoff::new(10 * MS, 1_000 * MS, 2, 0).unwrap();
        let (probe, child) = spawn_probe_and_child(harness, Supervision::default().with_backoff(backoff));
        for restarts in 1..3 {
            child.tell(fail("broken"));
            let Signal::ChildFailed(failure) = probe.expect_signal(MS) else { panic!() };
            let after = 10 * MS * restarts;
            assert_eq!(failure.decision, SupervisionDecision::Restart { after });
            assert_eq!((failure.child, failure.restarts), (child.index(), restarts));
            assert_eq!(failure.error, ActorError::new("broken"));
            harness.advance_ms(100);
        }
    });
}

#[test]
fn a_value_without_a_factory_is_stopped_instead_of_restarted() {
    explore(|harness| {
        let probe =
            Probe::<()>::supervising(&harness.runtime, &harness.system, restart_immediately()).unwrap();
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

    fn receive(&mut self, _message: (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        Err(ActorError::new("broken"))
    }
}

/// Spawns a probe with this supervision, and a child `a` of it.
fn spawn_probe_and_child(harness: &Harness, supervision: Supervision) -> (Probe<'_, ()>, ActorRef<Msg>) {
    let probe = Probe::supervising(&harness.runtime, &harness.system, supervision).unwrap();
    let child = probe.spawn(&harness.puppet("a").props()).unwrap();
    harness.run();
    (probe, child)
}

fn restarts(harness: &Harness) -> f64 {
    harness.metric(hub::names::RESTARTS_TOTAL, &[("actor", "a")])
}
