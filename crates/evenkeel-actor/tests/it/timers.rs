//! Timers, receive timeouts and deadlines in virtual time: never early, and never delivered to a stopped actor.

use std::time::Duration;

use evenkeel_actor::*;

use crate::harness::*;

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_timer_fires_once_and_not_early() {
    explore(|harness| {
        let actor = harness.recorder("a");
        set_timer(&actor, 1, 30 * MS, Repeat::Once);
        harness.advance_ms(29);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a timer 1"]);
        harness.advance_ms(1_000);
        assert_eq!(harness.lines(), [""; 0]);
    });
}

#[test]
fn a_timer_may_be_due_immediately_or_in_a_year() {
    explore(|harness| {
        let actor = harness.recorder("a");
        set_timer(&actor, 1, Duration::ZERO, Repeat::Once);
        set_timer(&actor, 2, 365 * 24 * HOUR, Repeat::Once);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a timer 1"]);
        harness.runtime.advance(365 * 24 * HOUR - 2 * MS);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a timer 2"]);
    });
}

#[test]
fn a_repeating_timer_keeps_its_interval() {
    explore(|harness| {
        let actor = harness.recorder("a");
        set_timer(&actor, 1, 5 * MS, Repeat::Every(10 * MS));
        harness.advance_ms(5);
        for firing in 0..20 {
            assert_eq!(harness.lines(), ["a timer 1"], "firing {firing}");
            harness.advance_ms(9);
            assert_eq!(harness.lines(), [""; 0], "firing {firing}");
            harness.advance_ms(1);
        }
    });
}

#[test]
fn a_late_repeating_timer_skips_missed_firings_and_keeps_its_interval() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let handle = harness.runtime.handle();
        set_timer(&actor, 1, 10 * MS, Repeat::Every(10 * MS));
        harness.run();
        actor.tell(run(move |_, _| handle.elapse(35 * MS)));
        harness.advance_ms(0);
        assert_eq!((harness.lines(), harness.now_ms()), (vec!["a timer 1".to_owned()], 35));
        harness.advance_ms(4);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a timer 1"], "at 40 ms");
    });
}

#[test]
fn a_cancelled_timer_does_not_fire() {
    explore(|harness| {
        let actor = harness.recorder("a");
        set_timer(&actor, 1, 10 * MS, Repeat::Once);
        set_timer(&actor, 2, 10 * MS, Repeat::Every(10 * MS));
        harness.advance_ms(5);
        actor.tell(run(|_, ctx| {
            ctx.cancel_timer(TimerId(1));
            ctx.cancel_timer(TimerId(2));
            ctx.cancel_timer(TimerId(3));
        }));
        harness.advance_ms(100);
        assert_eq!(harness.lines(), [""; 0]);
    });
}

#[test]
fn a_queued_timer_signal_is_dropped_when_its_timer_is_cancelled_or_reset() {
    explore(|harness| {
        let puppet = harness.puppet("a").signal(|signal, ctx| {
            let Signal::Timer(TimerId(id)) = *signal else { return Ok(Flow::Continue) };
            ctx.me().tell(record(u32::try_from(id).unwrap()));
            if id == 1 {
                // All three timers fired in the same tick; the signals of two are queued behind this one.
                ctx.cancel_timer(TimerId(2));
                ctx.set_timer(TimerId(3), 50 * MS, Repeat::Once);
            }
            Ok(Flow::Continue)
        });
        let actor = harness.spawn(puppet);
        (1..4).for_each(|id| set_timer(&actor, id, 10 * MS, Repeat::Once));
        harness.advance_ms(59);
        assert_eq!(harness.lines(), ["a 1"]);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a 3"]);
    });
}

#[test]
fn a_reset_timer_fires_only_at_its_new_time() {
    explore(|harness| {
        let actor = harness.recorder("a");
        set_timer(&actor, 1, 10 * MS, Repeat::Every(10 * MS));
        harness.advance_ms(5);
        set_timer(&actor, 1, 30 * MS, Repeat::Once);
        harness.advance_ms(29);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(1_000);
        assert_eq!(harness.lines(), ["a timer 1"]);
    });
}

#[test]
fn stopping_or_restarting_an_actor_cancels_its_timers() {
    explore_with(supervised(restart_immediately()), |harness| {
        let stopped = harness.recorder("s");
        let restarted = harness.recorder("r");
        for actor in [&stopped, &restarted] {
            set_timer(actor, 1, 10 * MS, Repeat::Once);
            actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(10 * MS))));
        }
        harness.run();
        stopped.stop(StopMode::Now);
        restarted.tell(fail("broken"));
        harness.advance_ms(1_000);
        assert_eq!(harness.lines(), [""; 0]);
    });
}

#[test]
fn timers_due_in_the_same_tick_fire_in_the_order_they_were_set() {
    explore(|harness| {
        let actor = harness.recorder("a");
        for id in [3, 1, 2] {
            set_timer(&actor, id, 10 * MS, Repeat::Once);
        }
        harness.advance_ms(10);
        assert_eq!(harness.lines(), ["a timer 3", "a timer 1", "a timer 2"]);
    });
}

#[test]
fn a_receive_timeout_is_never_early_and_repeats() {
    explore(|harness| {
        spawn_with_receive_timeout(harness, 20 * MS);
        let mut before = harness.now_ms();
        for round in 0..5 {
            while harness.lines().is_empty() {
                harness.advance_ms(1);
            }
            let waited = harness.now_ms() - before;
            assert!((20..=21).contains(&waited), "{waited} ms in round {round}");
            before = harness.now_ms();
        }
    });
}

#[test]
fn a_message_resets_the_receive_timeout() {
    explore(|harness| {
        let actor = spawn_with_receive_timeout(harness, 20 * MS);
        for number in 0..10 {
            harness.advance_ms(19);
            actor.tell(record(number));
        }
        harness.advance_ms(19);
        assert_eq!(harness.lines().len(), 10, "only the ten recorded messages");
        harness.advance_ms(3);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn timer_signals_do_not_reset_the_receive_timeout() {
    explore(|harness| {
        let actor = spawn_with_receive_timeout(harness, 20 * MS);
        set_timer(&actor, 1, 7 * MS, Repeat::Every(7 * MS));
        harness.advance_ms(23);
        let lines = harness.lines();
        assert!(lines.contains(&"a receive timeout".to_owned()), "{lines:?}");
    });
}

#[test]
fn time_spent_in_a_handler_does_not_count_as_idle() {
    explore(|harness| {
        let actor = spawn_with_receive_timeout(harness, 20 * MS);
        let handle = harness.runtime.handle();
        actor.tell(run(move |_, _| handle.elapse(50 * MS)));
        actor.tell(record(1));
        harness.run();
        harness.advance_ms(19);
        assert_eq!(harness.lines(), ["a 1"]);
        harness.advance_ms(2);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn a_receive_timeout_can_be_removed_and_set_again() {
    explore(|harness| {
        let actor = spawn_with_receive_timeout(harness, 20 * MS);
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(None)));
        harness.advance_ms(1_000);
        assert_eq!(harness.lines(), [""; 0]);
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(30 * MS))));
        harness.advance_ms(29);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(3);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn a_new_receive_timeout_applies_immediately_whether_shorter_or_longer() {
    explore(|harness| {
        let actor = spawn_with_receive_timeout(harness, HOUR);
        harness.advance_ms(10);
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(20 * MS))));
        harness.advance_ms(23);
        assert_eq!(harness.lines(), ["a receive timeout"]);
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(200 * MS))));
        harness.advance_ms(199);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(3);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn an_ask_returns_a_reply_before_its_deadline_and_times_out_within_two_ticks_after_it() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let answer = harness.runtime.block_on(actor.ask(|reply| Msg::Ask(1, reply)).within(MS));
        assert_eq!(answer, Ok(1));
        actor.tell(suspend_until(1));
        let start = harness.now_ms();
        let answer = harness.runtime.block_on(actor.ask(|reply| Msg::Ask(2, reply)).within(30 * MS));
        let waited = harness.now_ms() - start;
        assert_eq!(answer, Err(AskError::TimedOut));
        assert!((30..=32).contains(&waited), "{waited} ms");
        actor.signal(SignalKey(1));
        assert_eq!(harness.lines(), ["a 1", "a 2"], "the message is still handled");
    });
}

#[test]
fn an_ask_times_out_after_five_seconds_by_default() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(1));
        let answer = harness.runtime.block_on(actor.ask(|reply| Msg::Ask(1, reply)));
        assert_eq!(answer, Err(AskError::TimedOut));
        assert!((5_000..=5_002).contains(&harness.now_ms()), "{} ms", harness.now_ms());
    });
}

#[test]
fn an_ask_from_an_actor_also_times_out() {
    explore(|harness| {
        let asker = harness.recorder("a");
        let other = harness.recorder("b");
        other.tell(suspend_until(1));
        asker.tell(act(move |_, _| {
            Ok(Flow::wait(async move {
                let answer = other.ask(|reply| Msg::Ask(1, reply)).within(30 * MS).await;
                run(move |me, _| me.record(format_args!("{answer:?}")))
            }))
        }));
        harness.advance_ms(29);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(3);
        assert_eq!(harness.lines(), ["a Err(TimedOut)"]);
    });
}

#[test]
fn a_dropped_reply_fails_the_ask_immediately() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let answer = harness.runtime.block_on(actor.ask(|reply: Reply<()>| run(move |_, _| drop(reply))));
        assert_eq!((answer, harness.now_ms()), (Err(AskError::NoReply), 0));
    });
}

#[test]
fn a_late_reply_is_returned_to_the_replier() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(1));
        let late = actor.ask(|reply: Reply<u32>| {
            run(move |me, _| me.record(format_args!("{} {:?}", reply.is_awaited(), reply.send(7))))
        });
        assert_eq!(harness.runtime.block_on(late.within(MS)), Err(AskError::TimedOut));
        actor.signal(SignalKey(1));
        assert_eq!(harness.lines(), ["a false Err(7)"]);
    });
}

#[test]
fn a_full_wheel_makes_set_timer_return_false_and_fired_timers_free_their_entries() {
    explore_with(ActorSystemConfig { timers_max: 3, ..config() }, |harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|me, ctx| {
            let set: Vec<_> = (0..5).map(|id| ctx.set_timer(TimerId(id), 10 * MS, Repeat::Once)).collect();
            me.record(format_args!("{set:?}, {}", ctx.set_receive_timeout(Some(MS))));
        }));
        assert_eq!(harness.lines(), ["a [true, true, true, false, false], false"]);
        harness.advance_ms(10);
        assert_eq!(harness.lines().len(), 3);
        actor.tell(run(|me, ctx| {
            let set = ctx.set_timer(TimerId(1), 10 * MS, Repeat::Once);
            me.record(format_args!("{set}, {}", ctx.set_receive_timeout(Some(MS))));
        }));
        assert_eq!(harness.lines(), ["a true, true"]);
    });
}

#[test]
fn when_the_wheel_is_full_a_timed_suspension_fails_the_actor_and_an_ask_times_out_at_once() {
    explore_with(ActorSystemConfig { timers_max: 1, ..supervised(restart_immediately()) }, |harness| {
        let hog = harness.recorder("hog");
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        set_timer(&hog, 1, HOUR, Repeat::Once);
        actor.tell(act(|_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(MS)))));
        let lines = harness.lines();
        assert_eq!(lines[1], "a1 restarting: no room for another timer");
        actor.tell(suspend_until(1));
        let answer = harness.runtime.block_on(actor.ask(|reply| Msg::Ask(1, reply)));
        // No timer is available, so the ask times out at once rather than wait without a deadline.
        assert_eq!(answer, Err(AskError::TimedOut));
        assert!(harness.now_ms() <= 2, "{} ms", harness.now_ms());
    });
}

#[test]
fn an_actor_has_at_most_1024_timers() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|me, ctx| {
            let set = (0..2_000).filter(|&id| ctx.set_timer(TimerId(id), HOUR, Repeat::Once)).count();
            me.record(format_args!("set {set}, reset {}", ctx.set_timer(TimerId(5), MS, Repeat::Once)));
        }));
        assert_eq!(harness.lines(), ["a set 1024, reset true"]);
    });
}

#[test]
fn a_stopped_actor_leaves_nothing_in_the_wheel() {
    explore_with(ActorSystemConfig { timers_max: 4, actors_max: 2, ..config() }, |harness| {
        for round in 0..10 {
            let actor = harness.recorder("a");
            set_timer(&actor, 1, HOUR, Repeat::Once);
            set_timer(&actor, 2, HOUR, Repeat::Every(HOUR));
            actor.tell(run(|me, ctx| me.record(ctx.set_receive_timeout(Some(HOUR)))));
            let after = ResumeCondition::After(HOUR);
            actor.tell(act(move |_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, after))));
            assert_eq!(harness.lines(), ["a true"], "round {round}");
            actor.stop(StopMode::Now);
            harness.run();
        }
        assert_eq!(harness.runtime.now(), at_ms(0), "no timer had to expire");
    });
}

fn set_timer(actor: &ActorRef<Msg>, id: u64, after: Duration, repeat: Repeat) {
    actor.tell(run(move |_, ctx| assert!(ctx.set_timer(TimerId(id), after, repeat))));
}

fn spawn_with_receive_timeout(harness: &Harness, timeout: Duration) -> ActorRef<Msg> {
    let actor = harness.recorder("a");
    actor.tell(run(move |_, ctx| assert!(ctx.set_receive_timeout(Some(timeout)))));
    harness.run();
    actor
}
