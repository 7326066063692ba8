//! Timers, receive timeouts and deadlines, in virtual time: never early, and never for nobody.

use std::time::Duration;

use evenkeel_actor::*;

use crate::harness::*;

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_timer_fires_once_and_not_early() {
    explore(|world| {
        let actor = world.noter("a");
        timer(&actor, 1, 30 * MS, Repeat::Once);
        world.pass(29);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(1);
        assert_eq!(world.lines(), ["a hears timer 1"]);
        world.pass(1_000);
        assert_eq!(world.lines(), [""; 0]);
    });
}

#[test]
fn a_timer_may_be_due_immediately_or_in_a_year() {
    explore(|world| {
        let actor = world.noter("a");
        timer(&actor, 1, Duration::ZERO, Repeat::Once);
        timer(&actor, 2, 365 * 24 * HOUR, Repeat::Once);
        world.pass(1);
        assert_eq!(world.lines(), ["a hears timer 1"]);
        world.runtime.advance(365 * 24 * HOUR - 2 * MS);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(1);
        assert_eq!(world.lines(), ["a hears timer 2"]);
    });
}

#[test]
fn a_repeating_timer_keeps_its_interval() {
    explore(|world| {
        let actor = world.noter("a");
        timer(&actor, 1, 5 * MS, Repeat::Every(10 * MS));
        world.pass(5);
        for beat in 0..20 {
            assert_eq!(world.lines(), ["a hears timer 1"], "beat {beat}");
            world.pass(9);
            assert_eq!(world.lines(), [""; 0], "beat {beat}");
            world.pass(1);
        }
    });
}

#[test]
fn a_late_repeating_timer_skips_missed_firings_and_keeps_its_interval() {
    explore(|world| {
        let actor = world.noter("a");
        let handle = world.runtime.handle();
        timer(&actor, 1, 10 * MS, Repeat::Every(10 * MS));
        world.run();
        actor.tell(go(move |_, _| handle.elapse(35 * MS)));
        world.pass(0);
        assert_eq!((world.lines(), world.now_ms()), (vec!["a hears timer 1".to_owned()], 35));
        world.pass(4);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(1);
        assert_eq!(world.lines(), ["a hears timer 1"], "at 40 ms");
    });
}

#[test]
fn a_cancelled_timer_does_not_fire() {
    explore(|world| {
        let actor = world.noter("a");
        timer(&actor, 1, 10 * MS, Repeat::Once);
        timer(&actor, 2, 10 * MS, Repeat::Every(10 * MS));
        world.pass(5);
        actor.tell(go(|_, ctx| {
            ctx.cancel_timer(TimerId(1));
            ctx.cancel_timer(TimerId(2));
            ctx.cancel_timer(TimerId(3));
        }));
        world.pass(100);
        assert_eq!(world.lines(), [""; 0]);
    });
}

#[test]
fn a_firing_in_flight_is_not_delivered_once_its_timer_is_cancelled_or_reset() {
    explore(|world| {
        let actor = world.puppet("a").signal(|signal, ctx| {
            let Signal::Timer(TimerId(id)) = *signal else { return Ok(Flow::Continue) };
            ctx.me().tell(note(u32::try_from(id).unwrap()));
            if id == 1 {
                // All three fired in the same tick; two of them wait behind this one.
                ctx.cancel_timer(TimerId(2));
                ctx.set_timer(TimerId(3), 50 * MS, Repeat::Once);
            }
            Ok(Flow::Continue)
        });
        let actor = world.spawn(actor);
        (1..4).for_each(|id| timer(&actor, id, 10 * MS, Repeat::Once));
        world.pass(59);
        assert_eq!(world.lines(), ["a 1"]);
        world.pass(1);
        assert_eq!(world.lines(), ["a 3"]);
    });
}

#[test]
fn a_reset_timer_fires_only_at_its_new_time() {
    explore(|world| {
        let actor = world.noter("a");
        timer(&actor, 1, 10 * MS, Repeat::Every(10 * MS));
        world.pass(5);
        timer(&actor, 1, 30 * MS, Repeat::Once);
        world.pass(29);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(1_000);
        assert_eq!(world.lines(), ["a hears timer 1"]);
    });
}

#[test]
fn timers_end_when_their_actor_stops_or_restarts() {
    explore_with(supervised(at_once()), |world| {
        let ended = world.noter("e");
        let renewed = world.noter("r");
        for actor in [&ended, &renewed] {
            timer(actor, 1, 10 * MS, Repeat::Once);
            actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(10 * MS))));
        }
        world.run();
        ended.stop(StopMode::Now);
        renewed.tell(fail("broken"));
        world.pass(1_000);
        assert_eq!(world.lines(), [""; 0]);
    });
}

#[test]
fn timers_of_one_tick_fire_in_the_order_they_were_set() {
    explore(|world| {
        let actor = world.noter("a");
        for id in [3, 1, 2] {
            timer(&actor, id, 10 * MS, Repeat::Once);
        }
        world.pass(10);
        assert_eq!(world.lines(), ["a hears timer 3", "a hears timer 1", "a hears timer 2"]);
    });
}

#[test]
fn a_receive_timeout_is_never_early_and_repeats() {
    explore(|world| {
        idle_after(world, 20 * MS);
        let mut before = world.now_ms();
        for round in 0..5 {
            while world.lines().is_empty() {
                world.pass(1);
            }
            let waited = world.now_ms() - before;
            assert!((20..=21).contains(&waited), "{waited} ms in round {round}");
            before = world.now_ms();
        }
    });
}

#[test]
fn a_message_resets_the_receive_timeout() {
    explore(|world| {
        let actor = idle_after(world, 20 * MS);
        for number in 0..10 {
            world.pass(19);
            actor.tell(note(number));
        }
        world.pass(19);
        assert_eq!(world.lines().len(), 10, "no timeout among them");
        world.pass(3);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn system_messages_do_not_reset_the_receive_timeout() {
    explore(|world| {
        let actor = idle_after(world, 20 * MS);
        timer(&actor, 1, 7 * MS, Repeat::Every(7 * MS));
        world.pass(23);
        let lines = world.lines();
        assert!(lines.contains(&"a hears timeout".to_owned()), "{lines:?}");
    });
}

#[test]
fn a_handler_that_takes_longer_than_the_receive_timeout_is_not_idle() {
    explore(|world| {
        let actor = idle_after(world, 20 * MS);
        let handle = world.runtime.handle();
        actor.tell(go(move |_, _| handle.elapse(50 * MS)));
        actor.tell(note(1));
        world.run();
        world.pass(19);
        assert_eq!(world.lines(), ["a 1"]);
        world.pass(2);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn a_receive_timeout_can_be_removed_and_set_again() {
    explore(|world| {
        let actor = idle_after(world, 20 * MS);
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(None)));
        world.pass(1_000);
        assert_eq!(world.lines(), [""; 0]);
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(30 * MS))));
        world.pass(29);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(3);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn a_new_receive_timeout_applies_immediately_whether_shorter_or_longer() {
    explore(|world| {
        let actor = idle_after(world, HOUR);
        world.pass(10);
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(20 * MS))));
        world.pass(23);
        assert_eq!(world.lines(), ["a hears timeout"]);
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(200 * MS))));
        world.pass(199);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(3);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn a_reply_in_time_is_returned_and_a_deadline_is_exact_to_the_tick() {
    explore(|world| {
        let actor = world.noter("a");
        let answer = world.runtime.block_on(actor.ask(|reply| Msg::Ask(1, reply)).within(MS));
        assert_eq!(answer, Ok(1));
        actor.tell(hold(1));
        let asked = world.now_ms();
        let answer = world.runtime.block_on(actor.ask(|reply| Msg::Ask(2, reply)).within(30 * MS));
        let waited = world.now_ms() - asked;
        assert_eq!(answer, Err(AskError::TimedOut));
        assert!((30..=32).contains(&waited), "{waited} ms");
        actor.signal(SignalKey(1));
        assert_eq!(world.lines(), ["a 1", "a 2"], "the question is heard all the same");
    });
}

#[test]
fn an_ask_times_out_after_five_seconds_by_default() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(hold(1));
        let answer = world.runtime.block_on(actor.ask(|reply| Msg::Ask(1, reply)));
        assert_eq!(answer, Err(AskError::TimedOut));
        assert!((5_000..=5_002).contains(&world.now_ms()), "{} ms", world.now_ms());
    });
}

#[test]
fn an_ask_inside_an_actor_has_its_deadline_too() {
    explore(|world| {
        let asker = world.noter("a");
        let whom = world.noter("b");
        whom.tell(hold(1));
        asker.tell(act(move |_, _| {
            Ok(Flow::wait(async move {
                let answer = whom.ask(|reply| Msg::Ask(1, reply)).within(30 * MS).await;
                go(move |me, _| me.note(format_args!("{answer:?}")))
            }))
        }));
        world.pass(29);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(3);
        assert_eq!(world.lines(), ["a Err(TimedOut)"]);
    });
}

#[test]
fn a_dropped_reply_fails_the_ask_immediately() {
    explore(|world| {
        let actor = world.noter("a");
        let answer = world.runtime.block_on(actor.ask(|reply: Reply<()>| go(move |_, _| drop(reply))));
        assert_eq!((answer, world.now_ms()), (Err(AskError::NoReply), 0));
    });
}

#[test]
fn a_late_reply_is_returned_to_the_replier() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(hold(1));
        let late = actor.ask(|reply: Reply<u32>| {
            go(move |me, _| me.note(format_args!("{} {:?}", reply.is_awaited(), reply.send(7))))
        });
        assert_eq!(world.runtime.block_on(late.within(MS)), Err(AskError::TimedOut));
        actor.signal(SignalKey(1));
        assert_eq!(world.lines(), ["a false Err(7)"]);
    });
}

#[test]
fn a_full_wheel_rejects_timers_with_a_value_and_frees_their_entries() {
    explore_with(ActorSystemConfig { timers_max: 3, ..config() }, |world| {
        let actor = world.noter("a");
        actor.tell(go(|me, ctx| {
            let set: Vec<_> = (0..5).map(|id| ctx.set_timer(TimerId(id), 10 * MS, Repeat::Once)).collect();
            me.note(format_args!("{set:?}, {}", ctx.set_receive_timeout(Some(MS))));
        }));
        assert_eq!(world.lines(), ["a [true, true, true, false, false], false"]);
        world.pass(10);
        assert_eq!(world.lines().len(), 3);
        actor.tell(go(|me, ctx| {
            let set = ctx.set_timer(TimerId(1), 10 * MS, Repeat::Once);
            me.note(format_args!("{set}, {}", ctx.set_receive_timeout(Some(MS))));
        }));
        assert_eq!(world.lines(), ["a true, true"]);
    });
}

#[test]
fn a_full_wheel_fails_a_suspension_and_an_ask_instead_of_losing_them() {
    explore_with(ActorSystemConfig { timers_max: 1, ..supervised(at_once()) }, |world| {
        let hog = world.noter("hog");
        let actor = world.spawn(world.puppet("a").loud());
        timer(&hog, 1, HOUR, Repeat::Once);
        actor.tell(act(|_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(MS)))));
        let lines = world.lines();
        assert_eq!(lines[1], "a1 restarting: no room for another timer");
        actor.tell(hold(1));
        let answer = world.runtime.block_on(actor.ask(|reply| Msg::Ask(1, reply)));
        assert_eq!(answer, Err(AskError::TimedOut));
        assert!(world.now_ms() <= 2, "{} ms", world.now_ms());
    });
}

#[test]
fn an_actor_has_at_most_1024_timers() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|me, ctx| {
            let set = (0..2_000).filter(|&id| ctx.set_timer(TimerId(id), HOUR, Repeat::Once)).count();
            me.note(format_args!("set {set}, again {}", ctx.set_timer(TimerId(5), MS, Repeat::Once)));
        }));
        assert_eq!(world.lines(), ["a set 1024, again true"]);
    });
}

#[test]
fn a_stopped_actor_leaves_nothing_in_the_wheel() {
    explore_with(ActorSystemConfig { timers_max: 4, actors_max: 2, ..config() }, |world| {
        for round in 0..10 {
            let actor = world.noter("a");
            timer(&actor, 1, HOUR, Repeat::Once);
            timer(&actor, 2, HOUR, Repeat::Every(HOUR));
            actor.tell(go(|me, ctx| me.note(ctx.set_receive_timeout(Some(HOUR)))));
            let after = ResumeCondition::After(HOUR);
            actor.tell(act(move |_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, after))));
            assert_eq!(world.lines(), ["a true"], "round {round}");
            actor.stop(StopMode::Now);
            world.run();
        }
        assert_eq!(world.runtime.now(), at_ms(0));
    });
}

fn timer(actor: &ActorRef<Msg>, id: u64, after: Duration, repeat: Repeat) {
    actor.tell(go(move |_, ctx| assert!(ctx.set_timer(TimerId(id), after, repeat))));
}

/// An actor that is told after this long without a message.
fn idle_after(world: &World, span: Duration) -> ActorRef<Msg> {
    let actor = world.noter("a");
    actor.tell(go(move |_, ctx| assert!(ctx.set_receive_timeout(Some(span)))));
    world.run();
    actor
}
