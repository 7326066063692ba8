//! Suspension: every reason, every resume condition, and signals that are early, late or for another wait.

use evenkeel_actor::*;

use crate::harness::*;

const REASONS: [SuspendReason; 4] = [
    SuspendReason::Backpressure,
    SuspendReason::AwaitExternal,
    SuspendReason::RateLimit,
    SuspendReason::UserDefined,
];

#[test]
fn a_signal_ends_a_suspension_for_any_reason() {
    for reason in REASONS {
        explore(|harness| {
            let actor = harness.recorder("a");
            let until = ResumeCondition::ExternalSignal(SignalKey(5));
            suspend_and_send(harness, &actor, reason, until);
            actor.signal(SignalKey(4));
            harness.advance_ms(1_000);
            assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 2), "{reason:?}");
            actor.signal(SignalKey(5));
            assert_eq!(harness.lines(), ["a 1", "a 2"], "{reason:?}");
        });
    }
}

#[test]
fn a_timed_suspension_for_any_reason_ends_on_time_and_not_earlier() {
    for reason in REASONS {
        explore(|harness| {
            let actor = harness.recorder("a");
            suspend_and_send(harness, &actor, reason, ResumeCondition::After(30 * MS));
            harness.advance_ms(29);
            assert_eq!((harness.lines(), actor.state()), (vec![], ActorState::Suspended), "{reason:?}");
            harness.advance_ms(1);
            assert_eq!(harness.lines(), ["a 1", "a 2"], "{reason:?}");
        });
    }
}

#[test]
fn free_capacity_ends_a_suspension_for_any_reason() {
    for reason in REASONS {
        explore(|harness| {
            let target = harness.spawn(harness.puppet("t").capacity(2, OverflowStrategy::Reject));
            target.tell(suspend_until(9));
            harness.run();
            target.tell(record(1));
            target.tell(record(2));
            let actor = harness.recorder("a");
            let to = target.clone();
            actor.tell(act(move |_, ctx| {
                assert!(matches!(ctx.try_tell(&to, record(3)), Err(SendError::Full(_))));
                Ok(Flow::Suspend(reason, ResumeCondition::WhenCapacityAvailable))
            }));
            actor.tell(record(1));
            harness.advance_ms(1_000);
            assert_eq!((harness.lines(), actor.state()), (vec![], ActorState::Suspended), "{reason:?}");
            target.signal(SignalKey(9));
            let lines = harness.lines();
            assert!(lines.contains(&"a 1".to_owned()), "{reason:?}: {lines:?}");
        });
    }
}

#[test]
fn a_signal_before_the_wait_ends_it_immediately() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.signal(SignalKey(5));
        harness.run();
        actor.tell(suspend_until(5));
        actor.tell(record(1));
        actor.tell(suspend_until(5));
        actor.tell(record(2));
        assert_eq!(harness.lines(), ["a 1"], "an early signal ends only one wait");
    });
}

#[test]
fn sixteen_early_signals_are_remembered_and_the_oldest_is_forgotten_first() {
    explore(|harness| {
        let actor = harness.recorder("a");
        (0..17).for_each(|key| actor.signal(SignalKey(key)));
        harness.run();
        for key in 1..17 {
            actor.tell(suspend_until(key));
            actor.tell(record(u32::try_from(key).unwrap()));
        }
        assert_eq!(harness.lines().len(), 16);
        actor.tell(suspend_until(0));
        actor.tell(record(0));
        assert_eq!(harness.lines(), [""; 0], "the first of seventeen is forgotten");
    });
}

#[test]
fn the_key_of_an_earlier_wait_does_not_end_a_later_one() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let keys = [(); 2].map(|()| {
            let key = harness.runtime.block_on(actor.ask(|reply| {
                act(move |_, ctx| {
                    let key = ctx.signal_key();
                    reply.send(key).unwrap();
                    Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key)))
                })
            }));
            let key = key.unwrap();
            if key.0 & 1 == 1 {
                actor.signal(key);
                harness.run();
            }
            key
        });
        assert_ne!(keys[0], keys[1]);
        actor.tell(record(1));
        actor.signal(keys[0]);
        harness.advance_ms(1_000);
        assert_eq!((harness.lines(), actor.state()), (vec![], ActorState::Suspended));
        actor.signal(keys[1]);
        assert_eq!(harness.lines(), ["a 1"]);
    });
}

#[test]
fn a_signal_by_index_reaches_the_actor_and_not_its_successor() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let index = actor.index();
        actor.tell(suspend_until(5));
        actor.tell(record(1));
        harness.run();
        assert!(harness.system.signal(index, SignalKey(5)));
        assert_eq!(harness.lines(), ["a 1"]);
        actor.stop(StopMode::Now);
        harness.run();
        assert!(!harness.system.signal(index, SignalKey(5)));
    });
}

#[test]
fn a_signal_for_a_later_wait_does_not_end_the_wait_for_a_future() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|_, ctx| {
            let key = ctx.signal_key();
            ctx.me().signal(key);
        }));
        actor.tell(harness.wait_until_ms(10, 1));
        actor.tell(record(2));
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(10);
        assert_eq!(harness.lines(), ["a 1", "a 2"], "the future's output is not lost");
    });
}

#[test]
fn system_messages_are_handled_during_a_suspension() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let other = harness.recorder("b");
        let watched = other.clone();
        actor.tell(run(move |_, ctx| {
            ctx.watch(&watched);
            ctx.set_timer(TimerId(3), 5 * MS, Repeat::Once);
        }));
        actor.tell(suspend_until(1));
        actor.tell(record(1));
        harness.run();
        other.stop(StopMode::Now);
        harness.advance_ms(10);
        assert_eq!(harness.lines(), ["a terminated: stopped", "a timer 3"]);
        assert_eq!(actor.state(), ActorState::Suspended);
    });
}

#[test]
fn a_signal_handler_may_not_begin_a_second_wait() {
    explore_with(supervised(restart_immediately()), |harness| {
        let nested = |_: &Signal, _: &mut Context<'_, Puppet>| {
            Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::After(MS)))
        };
        let actor = harness.spawn(harness.puppet("a").log_hooks().signal(nested));
        actor.tell(run(|_, ctx| ctx.set_timer(TimerId(1), MS, Repeat::Once)));
        actor.tell(suspend_until(1));
        harness.advance_ms(5);
        let lines = harness.lines();
        assert!(lines[1].contains("already waiting"), "{lines:?}");
    });
}

#[test]
fn a_stop_ends_a_suspension_and_dead_letters_queued_messages() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        suspend_and_send(harness, &actor, SuspendReason::UserDefined, ResumeCondition::After(30 * MS));
        actor.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["a1 started", "a1 stopped", "a1 dropped"]);
        let stopped = dead_letters::DeadLetterReason::Stopped;
        assert_eq!(harness.dead_letters(), [(stopped, 1), (stopped, 2)]);
        harness.advance_ms(100);
        assert_eq!(
            harness.lines(),
            [""; 0],
            "a stopped actor must not resume when its wait would have ended"
        );
    });
}

#[test]
fn a_drained_stop_waits_for_the_suspension_to_end() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        suspend_and_send(harness, &actor, SuspendReason::UserDefined, ResumeCondition::After(30 * MS));
        actor.stop(StopMode::Drained);
        harness.advance_ms(29);
        assert_eq!((harness.lines(), actor.state()), (vec!["a1 started".to_owned()], ActorState::Stopping));
        assert!(matches!(actor.try_tell(record(3)), Err(SendError::Closed(_))));
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a 1", "a 2", "a1 stopped", "a1 dropped"]);
    });
}

#[test]
fn the_deadline_of_an_aborted_wait_does_not_end_a_later_wait() {
    explore_with(supervised(restart_immediately()), |harness| {
        let cautious = |me: &mut Puppet, _: &mut Context<'_, Puppet>| match me.incarnation {
            1 => Ok(Flow::Continue),
            _ => Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(50 * MS))),
        };
        let broken = |_: &Signal, _: &mut Context<'_, Puppet>| Err(ActorError::new("broken"));
        let actor = harness.spawn(harness.puppet("a").started(cautious).signal(broken));
        actor.tell(run(|_, ctx| ctx.set_timer(TimerId(1), 10 * MS, Repeat::Once)));
        suspend_and_send(harness, &actor, SuspendReason::RateLimit, ResumeCondition::After(10 * MS));
        harness.advance_ms(59);
        assert_eq!(
            harness.lines(),
            [""; 0],
            "the failure and the end of the first wait both happened at 10 ms"
        );
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a 1", "a 2"]);
    });
}

/// Suspends the actor, then sends it 1 and 2.
fn suspend_and_send(harness: &Harness, actor: &ActorRef<Msg>, reason: SuspendReason, until: ResumeCondition) {
    actor.tell(act(move |_, _| Ok(Flow::Suspend(reason, until))));
    actor.tell(record(1));
    actor.tell(record(2));
    harness.run();
    assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 2));
}
