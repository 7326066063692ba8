//! Failures: caught, handled as supervision decides, and isolated from other actors.

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::guardian::*;
use evenkeel_actor::runtime::test::Probe;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn a_panic_is_caught_and_the_next_message_is_handled() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        actor.tell(record(1));
        actor.tell(panic("on purpose"));
        actor.tell(record(2));
        let expected = [
            "a1 started",
            "a 1",
            "a1 restarting: the handler panicked: on purpose",
            "a1 dropped",
            "a2 started",
            "a 2",
        ];
        assert_eq!(harness.lines(), expected);
    });
}

#[test]
fn a_panic_in_a_signal_handler_fails_the_actor_and_later_signals_are_delivered() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Resume)), |harness| {
        let actor = harness.puppet("a").signal(|signal, ctx| match signal {
            Signal::Timer(TimerId(1)) => panic!("on purpose"),
            _ => {
                ctx.me().tell(record(2));
                Ok(Flow::Continue)
            }
        });
        let actor = harness.spawn(actor);
        actor.tell(run(|_, ctx| {
            ctx.set_timer(TimerId(1), MS, Repeat::Once);
            ctx.set_timer(TimerId(2), MS, Repeat::Once);
        }));
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a 2"]);
    });
}

#[test]
fn supervision_decides_whether_a_restart_keeps_the_mailbox() {
    for (on_restart, lines, dead_letters) in [
        (MailboxOnRestart::Keep, vec!["a 1", "a 2"], vec![]),
        (
            MailboxOnRestart::Clear,
            vec![],
            vec![(DeadLetterReason::Cleared, 1), (DeadLetterReason::Cleared, 2)],
        ),
    ] {
        explore_with(supervised(restart_immediately().with_on_restart(on_restart)), |harness| {
            let actor = harness.recorder("a");
            actor.tell(act(|_, ctx| {
                ctx.me().tell(record(1));
                ctx.me().tell(record(2));
                Err(ActorError::new("broken"))
            }));
            assert_eq!(harness.lines(), lines);
            assert_eq!(harness.dead_letters(), dead_letters);
            actor.tell(record(3));
            assert_eq!(harness.lines(), ["a 3"], "the new incarnation handles messages");
        });
    }
}

#[test]
fn children_stop_before_their_parent_restarts() {
    explore_with(supervised(restart_immediately()), |harness| {
        let parent = harness.spawn(harness.puppet("p").log_hooks());
        let child = spawn_child(harness, &parent, harness.puppet("c").log_hooks());
        let grandchild = spawn_child(harness, &child, harness.puppet("g").log_hooks());
        parent.tell(fail("broken"));
        parent.tell(record(1));
        let expected = [
            "p1 started",
            "c1 started",
            "g1 started",
            "g1 stopped",
            "g1 dropped",
            "c1 stopped",
            "c1 dropped",
            "p1 restarting: broken",
            "p1 dropped",
            "p2 started",
            "p 1",
        ];
        assert_eq!(harness.lines(), expected);
        assert_eq!([child.state(), grandchild.state()], [ActorState::Stopped; 2]);
        assert_eq!(harness.system.alive(), 1);
    });
}

#[test]
fn messages_sent_while_children_stop_wait_for_the_new_incarnation() {
    explore_with(supervised(restart_immediately()), |harness| {
        let parent = harness.spawn(harness.puppet("p").log_hooks());
        let child = spawn_child(harness, &parent, harness.puppet("c"));
        parent.tell(fail("broken"));
        let target = parent.clone();
        child.tell(run(move |_, _| (1..4).for_each(|number| target.tell(record(number)))));
        let lines = harness.lines();
        assert_eq!(lines[..4], ["p1 started", "p1 restarting: broken", "p1 dropped", "p2 started"]);
        let handled = lines.len() - 4;
        // The child either handles its message first, or stops first and its message becomes a dead letter.
        assert!(handled == 3 || harness.dead_letters().len() == 1, "{lines:?}");
    });
}

#[test]
fn a_panic_in_the_restart_hook_does_not_prevent_the_restart() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.spawn(harness.puppet("a").restarting(|_, _| panic!("no way")));
        actor.tell(fail("broken"));
        actor.tell(run(|me, _| me.record(me.incarnation)));
        assert_eq!(harness.lines(), ["a 2"]);
    });
}

#[test]
fn a_failing_start_is_retried_until_it_succeeds() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.puppet("a").log_hooks().started(|me, _| match me.incarnation {
            1 => Err(ActorError::new("too early")),
            2 => panic!("still too early"),
            _ => Ok(Flow::Continue),
        });
        let actor = harness.spawn(actor);
        actor.tell(record(1));
        let expected = [
            "a1 started",
            "a1 restarting: too early",
            "a1 dropped",
            "a2 started",
            "a2 restarting: the handler panicked: still too early",
            "a2 dropped",
            "a3 started",
            "a 1",
        ];
        assert_eq!(harness.lines(), expected);
    });
}

#[test]
fn a_start_that_always_fails_stops_the_actor_and_dead_letters_its_mailbox() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.puppet("a").started(|_, _| Err(ActorError::new("never")));
        let actor = harness.system.spawn(&actor.props()).unwrap();
        actor.tell(record(1));
        harness.run();
        assert_eq!(actor.state(), ActorState::Stopped);
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Stopped, 1)]);
        let [failures, restarts] = [hub::names::FAILURES_TOTAL, hub::names::RESTARTS_TOTAL]
            .map(|name| harness.metric(name, &[("actor", "a")]));
        // By default the eleventh failure within the window exceeds the limit of ten restarts.
        assert_eq!((failures, restarts), (11.0, 10.0));
    });
}

#[test]
fn a_thousand_immediate_restarts_fit_in_a_small_stack() {
    let supervision = restart_immediately().with_max_restarts(1_000, 1_000 * MS).unwrap();
    let harness = Harness::new(runtime::test::TestOptions::new(1), supervised(supervision));
    let thread = std::thread::Builder::new().stack_size(256 * 1024);
    let body = move || {
        let actor = harness.puppet("a").started(|_, _| Err(ActorError::new("never")));
        let actor = harness.spawn(actor);
        assert_eq!(actor.state(), ActorState::Stopped);
    };
    thread.spawn(body).unwrap().join().unwrap();
}

#[test]
fn a_factory_that_panics_on_spawn_creates_no_actor() {
    explore(|harness| {
        let spawned =
            harness.system.spawn(&harness.puppet("a").factory(|_| panic!("factory failed")).props());
        assert_eq!(spawned.unwrap_err(), SpawnError::Factory(ActorError::panicked("factory failed")));
        assert_eq!(harness.system.alive(), 0);
    });
}

#[test]
fn a_factory_that_panics_on_a_restart_counts_as_a_failure() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness
            .puppet("a")
            .factory(|incarnation| assert!(incarnation == 1 || incarnation > 3, "factory failed"));
        let actor = harness.spawn(actor);
        actor.tell(fail("broken"));
        actor.tell(run(|me, _| me.record(me.incarnation)));
        assert_eq!(harness.lines(), ["a 4"]);
        assert_eq!(harness.metric(hub::names::FAILURES_TOTAL, &[("actor", "a")]), 3.0);
    });
}

#[test]
fn resuming_after_a_failed_factory_stops_the_actor() {
    let restart_unless_panicked = |error: &ActorError| match error.kind() {
        ErrorKind::Failed => SupervisionDirective::Restart,
        _ => SupervisionDirective::Resume,
    };
    explore_with(supervised(decided_by(restart_unless_panicked)), |harness| {
        let actor = harness
            .spawn(harness.puppet("a").factory(|incarnation| assert!(incarnation == 1, "factory failed")));
        actor.tell(fail("broken"));
        actor.tell(record(1));
        harness.run();
        assert_eq!(actor.state(), ActorState::Stopped);
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn a_parent_may_overrule_a_delayed_restart() {
    for (overrule, lines) in [
        (SupervisionDirective::Resume, vec!["c 1"]),
        (SupervisionDirective::Restart, vec!["c 2"]),
        (SupervisionDirective::Stop, vec![]),
    ] {
        explore(|harness| {
            let slow = Backoff::new(1_000 * MS, 1_000 * MS, 1, 0).unwrap();
            let parent = harness.puppet("p").supervise(Supervision::default().with_backoff(slow));
            let parent = match overrule {
                SupervisionDirective::Resume => parent.overrule(|_| Some(SupervisionDirective::Resume)),
                SupervisionDirective::Restart => parent.overrule(|_| Some(SupervisionDirective::Restart)),
                _ => parent.overrule(|_| Some(SupervisionDirective::Stop)),
            };
            let parent = harness.spawn(parent);
            let child = spawn_child(harness, &parent, harness.puppet("c"));
            child.tell(fail("broken"));
            child.tell(run(|me, _| me.record(me.incarnation)));
            let mut child_lines = harness.lines();
            child_lines.retain(|line| line.starts_with('c'));
            assert_eq!(child_lines, lines, "{overrule:?}, immediately");
            let is_stopped = overrule == SupervisionDirective::Stop;
            assert_eq!(child.state() == ActorState::Stopped, is_stopped);
            harness.advance_ms(2_000);
            let later_lines: Vec<_> =
                harness.lines().into_iter().filter(|line| line.starts_with('c')).collect();
            assert_eq!(later_lines, [""; 0], "the overruled restart does not happen later");
        });
    }
}

#[test]
fn a_parent_may_escalate_although_its_supervision_says_stop() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Stop)), |harness| {
        let parent = harness.spawn(harness.puppet("p").overrule(|_| Some(SupervisionDirective::Escalate)));
        let child = spawn_child(harness, &parent, harness.puppet("c"));
        child.tell(fail("broken"));
        harness.run();
        assert_eq!([parent.state(), child.state()], [ActorState::Stopped; 2]);
    });
}

#[test]
fn all_for_one_applies_a_directive_to_every_child() {
    explore(|harness| {
        let all = restart_immediately().with_strategy(Strategy::AllForOne);
        let parent = harness.spawn(harness.puppet("p").supervise(all).signal(|_, _| Ok(Flow::Continue)));
        let [a, b, c] = ["a", "b", "c"].map(|name| spawn_child(harness, &parent, harness.puppet(name)));
        b.tell(fail("broken"));
        harness.run();
        [&a, &b, &c].iter().for_each(|child| child.tell(run(|me, _| me.record(me.incarnation))));
        let mut lines = harness.lines();
        lines.sort();
        assert_eq!(lines, ["a 2", "b 2", "c 2"]);
    });
}

#[test]
fn all_for_one_stops_every_child_when_one_is_stopped() {
    explore(|harness| {
        let all = decided_by(|_| SupervisionDirective::Stop).with_strategy(Strategy::AllForOne);
        let parent = harness.recorder_supervising("p", all);
        let children = ["a", "b", "c"].map(|name| spawn_child(harness, &parent, harness.puppet(name)));
        children[1].tell(fail("broken"));
        harness.run();
        assert_eq!(children.map(|child| child.state()), [ActorState::Stopped; 3]);
        assert_eq!((parent.state(), harness.system.alive()), (ActorState::Running, 1));
    });
}

#[test]
fn one_for_one_does_not_affect_the_other_children() {
    explore(|harness| {
        let parent = harness.recorder_supervising("p", decided_by(|_| SupervisionDirective::Stop));
        let children = ["a", "b", "c"].map(|name| spawn_child(harness, &parent, harness.puppet(name)));
        children[1].tell(fail("broken"));
        harness.run();
        let expected = [ActorState::Running, ActorState::Stopped, ActorState::Running];
        assert_eq!(children.map(|child| child.state()), expected);
    });
}

#[test]
fn a_failure_escalated_to_the_root_stops_the_whole_tree() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Escalate)), |harness| {
        let escalating = decided_by(|_| SupervisionDirective::Escalate);
        let top = harness.recorder_supervising("t", escalating);
        let middle = spawn_child(harness, &top, harness.puppet("m").supervise(escalating));
        let bottom = spawn_child(harness, &middle, harness.puppet("b"));
        bottom.tell(panic("all the way up"));
        harness.advance_ms(1_000);
        assert_eq!([&top, &middle, &bottom].map(ActorRef::state), [ActorState::Stopped; 3]);
        assert_eq!(harness.system.alive(), 0);
    });
}

#[test]
fn a_failure_resumed_at_the_root_is_resumed_at_the_child() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Resume)), |harness| {
        let escalating = decided_by(|_| SupervisionDirective::Escalate);
        let top = harness.recorder_supervising("t", escalating);
        let middle = spawn_child(harness, &top, harness.puppet("m").supervise(escalating));
        let bottom = spawn_child(harness, &middle, harness.puppet("b"));
        bottom.tell(fail("broken"));
        [&top, &middle, &bottom].iter().for_each(|actor| actor.tell(record(1)));
        harness.advance_ms(1_000);
        let mut lines = harness.lines();
        lines.retain(|line| line.ends_with(" 1"));
        lines.sort();
        assert_eq!(lines, ["b 1", "m 1", "t 1"]);
    });
}

#[test]
fn a_panic_in_the_stopped_hook_or_in_drop_still_notifies_watchers() {
    explore(|harness| {
        let probe = Probe::<()>::new(&harness.runtime, &harness.system).unwrap();
        let panicking =
            harness.puppet("a").stopped(|_, _| panic!("last words")).dropped(|_| panic!("very last words"));
        let panicking = probe.spawn(&panicking.props()).unwrap();
        let other = probe.spawn(&harness.puppet("b").props()).unwrap();
        panicking.stop(StopMode::Now);
        assert_eq!(probe.expect_terminated(&panicking, MS), Termination::Stopped);
        other.tell(record(1));
        assert_eq!(harness.lines(), ["b 1"], "the worker survives");
    });
}

#[test]
fn a_message_that_panics_on_drop_does_not_affect_others() {
    explore_with(ActorSystemConfig { dead_letters_max: 0, ..config() }, |harness| {
        let probe = Probe::<()>::new(&harness.runtime, &harness.system).unwrap();
        let a = harness.recorder("a");
        let b = harness.recorder("b");
        probe.watch(&a);
        a.tell(suspend_until(1));
        let panics_on_drop = PanicOnDrop;
        a.tell(run(move |_, _| drop(panics_on_drop)));
        a.tell(record(1));
        harness.run();
        a.stop(StopMode::Now);
        assert_eq!(probe.expect_terminated(&a, MS), Termination::Stopped);
        b.tell(record(1));
        assert_eq!(harness.lines(), ["b 1"], "the worker survives");
        assert_eq!(harness.system.dead_letters_total(), 2);
    });
}

#[test]
fn a_decider_that_panics_stops_the_actor() {
    explore_with(supervised(decided_by(|_| panic!("cannot decide"))), |harness| {
        let a = harness.recorder("a");
        let b = harness.recorder("b");
        a.tell(fail("broken"));
        harness.run();
        assert_eq!(a.state(), ActorState::Stopped);
        b.tell(record(1));
        assert_eq!(harness.lines(), ["b 1"]);
    });
}

#[test]
fn a_failed_actor_is_notified_of_terminations_after_its_restart() {
    explore(|harness| {
        let watched = harness.recorder("w");
        let (_parent, child) = spawn_parent_and_slowly_restarting_child(harness);
        let target = watched.clone();
        child.tell(run(move |_, ctx| ctx.watch(&target)));
        child.tell(fail("broken"));
        harness.run();
        watched.stop(StopMode::Now);
        harness.advance_ms(999);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["c terminated: stopped"], "delivered once, to the new incarnation");
    });
}

#[test]
fn timers_due_during_a_failure_fire_after_resume() {
    explore(|harness| {
        let (parent, child) = spawn_parent_and_slowly_restarting_child(harness);
        child.tell(run(|_, ctx| ctx.set_timer(TimerId(1), 5 * MS, Repeat::Every(20 * MS))));
        child.tell(fail("broken"));
        harness.advance_ms(10);
        assert_eq!(harness.lines(), [""; 0]);
        let index = child.index();
        parent.tell(run(move |_, ctx| ctx.command(index, SupervisionCommand::Resume)));
        assert_eq!(harness.lines(), ["c timer 1"]);
        harness.advance_ms(15);
        assert_eq!(harness.lines(), ["c timer 1"], "a repeating timer keeps its interval");
    });
}

#[test]
fn a_failed_actor_whose_child_stopped_meanwhile_can_still_be_stopped_or_restarted() {
    for (command, alive) in [(SupervisionCommand::Stop, 1), (SupervisionCommand::Restart, 2)] {
        explore(|harness| {
            let (parent, child) = spawn_parent_and_slowly_restarting_child(harness);
            let grandchild = spawn_child(harness, &child, harness.puppet("g"));
            child.tell(fail("broken"));
            harness.run();
            grandchild.stop(StopMode::Now);
            harness.run();
            let index = child.index();
            parent.tell(run(move |_, ctx| ctx.command(index, command)));
            harness.run();
            assert_eq!(harness.system.alive(), alive, "{command:?}");
            assert_eq!(child.state() == ActorState::Running, command == SupervisionCommand::Restart);
        });
    }
}

#[test]
fn a_child_spawned_while_its_parent_stops_stops_too() {
    explore(|harness| {
        let late = harness.puppet("late").log_hooks().props();
        let parent = harness.spawn(harness.puppet("p").stopped(move |_, ctx| drop(ctx.spawn(&late))));
        parent.stop(StopMode::Now);
        harness.run();
        assert_eq!(harness.system.alive(), 0);
        assert_eq!(harness.lines().last().unwrap(), "late1 dropped");
    });
}

/// Spawns a parent and a child that restarts one second after a failure.
fn spawn_parent_and_slowly_restarting_child(harness: &Harness) -> (ActorRef<Msg>, ActorRef<Msg>) {
    let slow = Backoff::new(1_000 * MS, 1_000 * MS, 1, 0).unwrap();
    let parent = harness.recorder_supervising("p", Supervision::default().with_backoff(slow));
    let child = spawn_child(harness, &parent, harness.puppet("c"));
    (parent, child)
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("dropped")
    }
}

impl Harness {
    /// Spawns a recorder that supervises its children with `supervision`; it does not record signals.
    fn recorder_supervising(&self, name: &'static str, supervision: Supervision) -> ActorRef<Msg> {
        self.spawn(self.puppet(name).supervise(supervision).signal(|_, _| Ok(Flow::Continue)))
    }
}
