//! Suspension: every reason, every condition, and signals that come early, late or for another wait.

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
        explore(|world| {
            let actor = world.noter("a");
            let until = ResumeCondition::ExternalSignal(SignalKey(5));
            suspended(world, &actor, reason, until);
            actor.signal(SignalKey(4));
            world.pass(1_000);
            assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 2), "{reason:?}");
            actor.signal(SignalKey(5));
            assert_eq!(world.lines(), ["a 1", "a 2"], "{reason:?}");
        });
    }
}

#[test]
fn a_timed_suspension_for_any_reason_ends_on_time_and_not_earlier() {
    for reason in REASONS {
        explore(|world| {
            let actor = world.noter("a");
            suspended(world, &actor, reason, ResumeCondition::After(30 * MS));
            world.pass(29);
            assert_eq!((world.lines(), actor.state()), (vec![], ActorState::Suspended), "{reason:?}");
            world.pass(1);
            assert_eq!(world.lines(), ["a 1", "a 2"], "{reason:?}");
        });
    }
}

#[test]
fn free_capacity_ends_a_suspension_for_any_reason() {
    for reason in REASONS {
        explore(|world| {
            let target = world.spawn(world.puppet("t").places(2, OverflowStrategy::Reject));
            target.tell(hold(9));
            world.run();
            target.tell(note(1));
            target.tell(note(2));
            let actor = world.noter("a");
            let to = target.clone();
            actor.tell(act(move |_, ctx| {
                assert!(matches!(ctx.try_tell(&to, note(3)), Err(SendError::Full(_))));
                Ok(Flow::Suspend(reason, ResumeCondition::WhenCapacityAvailable))
            }));
            actor.tell(note(1));
            world.pass(1_000);
            assert_eq!((world.lines(), actor.state()), (vec![], ActorState::Suspended), "{reason:?}");
            target.signal(SignalKey(9));
            let lines = world.lines();
            assert!(lines.contains(&"a 1".to_owned()), "{reason:?}: {lines:?}");
        });
    }
}

#[test]
fn a_signal_before_the_wait_ends_it_immediately() {
    explore(|world| {
        let actor = world.noter("a");
        actor.signal(SignalKey(5));
        world.run();
        actor.tell(hold(5));
        actor.tell(note(1));
        actor.tell(hold(5));
        actor.tell(note(2));
        assert_eq!(world.lines(), ["a 1"], "it ends one wait and no more");
    });
}

#[test]
fn sixteen_early_signals_are_remembered_and_the_oldest_is_forgotten_first() {
    explore(|world| {
        let actor = world.noter("a");
        (0..17).for_each(|key| actor.signal(SignalKey(key)));
        world.run();
        for key in 1..17 {
            actor.tell(hold(key));
            actor.tell(note(u32::try_from(key).unwrap()));
        }
        assert_eq!(world.lines().len(), 16);
        actor.tell(hold(0));
        actor.tell(note(0));
        assert_eq!(world.lines(), [""; 0], "the first of seventeen is forgotten");
    });
}

#[test]
fn the_key_of_an_earlier_wait_does_not_end_a_later_one() {
    explore(|world| {
        let actor = world.noter("a");
        let keys = [(); 2].map(|()| {
            let key = world.runtime.block_on(actor.ask(|reply| {
                act(move |_, ctx| {
                    let key = ctx.signal_key();
                    reply.send(key).unwrap();
                    Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key)))
                })
            }));
            let key = key.unwrap();
            if key.0 & 1 == 1 {
                actor.signal(key);
                world.run();
            }
            key
        });
        assert_ne!(keys[0], keys[1]);
        actor.tell(note(1));
        actor.signal(keys[0]);
        world.pass(1_000);
        assert_eq!((world.lines(), actor.state()), (vec![], ActorState::Suspended));
        actor.signal(keys[1]);
        assert_eq!(world.lines(), ["a 1"]);
    });
}

#[test]
fn a_signal_by_index_reaches_the_actor_and_not_its_successor() {
    explore(|world| {
        let actor = world.noter("a");
        let index = actor.index();
        actor.tell(hold(5));
        actor.tell(note(1));
        world.run();
        assert!(world.system.signal(index, SignalKey(5)));
        assert_eq!(world.lines(), ["a 1"]);
        actor.stop(StopMode::Now);
        world.run();
        assert!(!world.system.signal(index, SignalKey(5)));
    });
}

#[test]
fn a_signal_for_a_later_wait_does_not_end_the_wait_for_a_future() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|_, ctx| {
            let key = ctx.signal_key();
            ctx.me().signal(key);
        }));
        actor.tell(world.wait_until_ms(10, 1));
        actor.tell(note(2));
        assert_eq!(world.lines(), [""; 0]);
        world.pass(10);
        assert_eq!(world.lines(), ["a 1", "a 2"], "the future's output is not lost");
    });
}

#[test]
fn system_messages_are_handled_during_a_suspension() {
    explore(|world| {
        let actor = world.noter("a");
        let other = world.noter("b");
        let watched = other.clone();
        actor.tell(go(move |_, ctx| {
            ctx.watch(&watched);
            ctx.set_timer(TimerId(3), 5 * MS, Repeat::Once);
        }));
        actor.tell(hold(1));
        actor.tell(note(1));
        world.run();
        other.stop(StopMode::Now);
        world.pass(10);
        assert_eq!(world.lines(), ["a hears end: stopped", "a hears timer 3"]);
        assert_eq!(actor.state(), ActorState::Suspended);
    });
}

#[test]
fn a_signal_handler_may_not_begin_a_second_wait() {
    explore_with(supervised(at_once()), |world| {
        let nested = |_: &Signal, _: &mut Context<'_, Puppet>| {
            Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::After(MS)))
        };
        let actor = world.spawn(world.puppet("a").loud().signal(nested));
        actor.tell(go(|_, ctx| ctx.set_timer(TimerId(1), MS, Repeat::Once)));
        actor.tell(hold(1));
        world.pass(5);
        let lines = world.lines();
        assert!(lines[1].contains("already waiting"), "{lines:?}");
    });
}

#[test]
fn a_stop_ends_a_suspension_and_dead_letters_queued_messages() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").loud());
        suspended(world, &actor, SuspendReason::UserDefined, ResumeCondition::After(30 * MS));
        actor.stop(StopMode::Now);
        assert_eq!(world.lines(), ["a1 started", "a1 stopped", "a1 dropped"]);
        let stopped = dead_letters::DeadLetterReason::Stopped;
        assert_eq!(world.letters(), [(stopped, 1), (stopped, 2)]);
        world.pass(100);
        assert_eq!(world.lines(), [""; 0], "the end of the wait reaches nobody");
    });
}

#[test]
fn a_drained_stop_waits_for_the_suspension_to_end() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").loud());
        suspended(world, &actor, SuspendReason::UserDefined, ResumeCondition::After(30 * MS));
        actor.stop(StopMode::Drained);
        world.pass(29);
        assert_eq!((world.lines(), actor.state()), (vec!["a1 started".to_owned()], ActorState::Stopping));
        assert!(matches!(actor.try_tell(note(3)), Err(SendError::Closed(_))));
        world.pass(1);
        assert_eq!(world.lines(), ["a 1", "a 2", "a1 stopped", "a1 dropped"]);
    });
}

#[test]
fn the_deadline_of_an_aborted_wait_does_not_end_a_later_wait() {
    explore_with(supervised(at_once()), |world| {
        let cautious = |me: &mut Puppet, _: &mut Context<'_, Puppet>| match me.life {
            1 => Ok(Flow::Continue),
            _ => Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(50 * MS))),
        };
        let broken = |_: &Signal, _: &mut Context<'_, Puppet>| Err(ActorError::new("broken"));
        let actor = world.spawn(world.puppet("a").started(cautious).signal(broken));
        actor.tell(go(|_, ctx| ctx.set_timer(TimerId(1), 10 * MS, Repeat::Once)));
        suspended(world, &actor, SuspendReason::RateLimit, ResumeCondition::After(10 * MS));
        world.pass(59);
        assert_eq!(world.lines(), [""; 0], "both came at 10 ms: the failure, and the end of the first wait");
        world.pass(1);
        assert_eq!(world.lines(), ["a 1", "a 2"]);
    });
}

/// Suspends the actor, then tells it 1 and 2.
fn suspended(world: &World, actor: &ActorRef<Msg>, reason: SuspendReason, until: ResumeCondition) {
    actor.tell(act(move |_, _| Ok(Flow::Suspend(reason, until))));
    actor.tell(note(1));
    actor.tell(note(2));
    world.run();
    assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 2));
}
