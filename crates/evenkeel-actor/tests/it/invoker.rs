//! Runs of an actor: the order of messages, and the end of a run by budget, time slice, yield or stop.

use std::num::NonZeroU32;
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::runtime::test::TestOptions;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn messages_of_one_sender_are_handled_in_the_order_they_were_sent() {
    explore(|harness| {
        let actor = harness.recorder("a");
        (0..200).for_each(|number| actor.tell(record(number)));
        let expected: Vec<_> = (0..200).map(|number| format!("a {number}")).collect();
        assert_eq!(harness.lines(), expected);
    });
}

#[test]
fn started_is_called_once_before_the_first_message() {
    explore(|harness| {
        let actor = harness.system.spawn(&harness.puppet("a").log_hooks().props()).unwrap();
        actor.tell(record(1));
        assert_eq!(harness.lines(), ["a1 started", "a 1"]);
    });
}

#[test]
fn the_output_of_a_future_awaited_in_started_precedes_the_first_message() {
    explore(|harness| {
        let sleep = |ms| runtime::RuntimeHandle::sleep_until(&harness.runtime.handle(), at_ms(ms));
        let handle = harness.runtime.handle();
        let actor = harness.puppet("a").started(move |_, _| {
            let sleep = runtime::RuntimeHandle::sleep_until(&handle, at_ms(5));
            Ok(Flow::wait(async {
                sleep.await;
                record(0)
            }))
        });
        let actor = harness.spawn(actor);
        actor.tell(record(1));
        harness.runtime.block_on(sleep(10));
        assert_eq!(harness.lines(), ["a 0", "a 1"]);
    });
}

#[test]
fn a_message_an_actor_sends_itself_comes_after_queued_messages() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|_, ctx| ctx.me().tell(record(3))));
        actor.tell(record(1));
        actor.tell(record(2));
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3"]);
    });
}

#[test]
fn a_run_ends_after_its_budget_of_messages() {
    let budget = 3;
    for seed in 0..12 {
        let harness = Harness::new(with_budget(seed, budget), one_worker());
        let a = harness.recorder("a");
        let b = harness.recorder("b");
        run_in_handler(&harness, move || {
            (0..9).for_each(|number| a.tell(record(number)));
            (0..9).for_each(|number| b.tell(record(number)));
        });
        let lines = harness.lines();
        assert_eq!((lines.len(), longest_run(&lines)), (18, budget as usize), "{lines:?}");
    }
}

#[test]
fn a_run_ends_with_the_time_slice_once_the_worker_has_measured_the_handlers() {
    for seed in 0..12 {
        let harness = Harness::new(with_budget(seed, 64), one_worker());
        let a = harness.recorder("a");
        let b = harness.recorder("b");
        let handle = harness.runtime.handle();
        run_in_handler(&harness, move || {
            for number in 0..400 {
                let handle = handle.clone();
                [&a, &b][number % 2].tell(run(move |me, _| {
                    handle.elapse(Duration::from_micros(150));
                    me.record(number);
                }));
            }
        });
        let lines = harness.lines();
        assert_eq!(lines.len(), 400);
        // The first messages take no time, so the worker first reads the clock after 128 messages and measures the
        // duration over the next 128. At the end only one actor is left.
        assert!(
            longest_run(&lines[256..370]) <= 3,
            "a handler takes 150 µs, and a slice ends after 200 µs: {lines:?}"
        );
    }
}

#[test]
fn yield_lets_other_actors_run_first() {
    for seed in 0..12 {
        let harness = Harness::new(with_budget(seed, 64), one_worker());
        let a = harness.recorder("a");
        let b = harness.recorder("b");
        run_in_handler(&harness, move || {
            b.tell(record(1));
            a.tell(act(|me, _| {
                me.record(1);
                Ok(Flow::Yield)
            }));
            a.tell(record(2));
        });
        assert_eq!(harness.lines(), ["a 1", "b 1", "a 2"]);
    }
}

#[test]
fn a_stop_takes_effect_before_the_next_message() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|me, ctx| {
            me.record("stops itself");
            ctx.me().stop(StopMode::Now);
        }));
        actor.tell(record(1));
        actor.tell(record(2));
        assert_eq!(harness.lines(), ["a stops itself"]);
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Stopped, 1), (DeadLetterReason::Stopped, 2)]);
    });
}

#[test]
fn an_actor_that_returns_stop_handles_no_further_message() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        actor.tell(act(|_, _| Ok(Flow::Stop)));
        actor.tell(record(1));
        assert_eq!(harness.lines(), ["a1 started", "a1 stopped", "a1 dropped"]);
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn messages_taken_from_the_mailbox_survive_a_suspension_in_order() {
    explore_batches(|harness| {
        let actor = harness.recorder("a");
        actor.tell(record(1));
        actor.tell(suspend_until(7));
        (2..6).for_each(|number| actor.tell(record(number)));
        assert_eq!(harness.lines(), ["a 1"]);
        actor.tell(record(6));
        assert_eq!((actor.depth(), actor.state()), (5, ActorState::Suspended));
        actor.signal(SignalKey(7));
        assert_eq!(harness.lines(), ["a 2", "a 3", "a 4", "a 5", "a 6"]);
    });
}

#[test]
fn an_actor_is_running_then_suspended_then_stopping_then_stopped() {
    explore(|harness| {
        let parent = harness.recorder("parent");
        let state = || harness.system.actor_state(parent.index());
        assert_eq!(state(), ActorState::Running);
        let child = harness.puppet("child").props();
        parent.tell(run(move |_, ctx| ctx.spawn(&child).unwrap().tell(suspend_until(1))));
        parent.tell(suspend_until(2));
        harness.run();
        assert_eq!((state(), parent.state()), (ActorState::Suspended, ActorState::Suspended));
        parent.signal(SignalKey(2));
        harness.run();
        assert_eq!(state(), ActorState::Running);
        parent.tell(run(|_, ctx| ctx.me().stop(StopMode::Drained)));
        parent.tell(act(move |_, ctx| {
            assert_eq!(ctx.me().state(), ActorState::Stopping);
            Ok(Flow::Continue)
        }));
        harness.run();
        assert_eq!((state(), harness.system.alive()), (ActorState::Stopped, 0));
    });
}

#[test]
fn a_task_runs_to_completion_beside_actors() {
    explore(|harness| {
        let log = harness.log.clone();
        let handle = harness.runtime.handle();
        let actor = harness.recorder("a");
        let task = async move {
            runtime::RuntimeHandle::sleep_until(&handle, at_ms(5)).await;
            let answer = actor.ask(|reply| Msg::Ask(4, reply)).await;
            log.record(format!("task {answer:?}"));
        };
        harness.system.spawn_task(task).unwrap();
        harness.advance_ms(4);
        assert_eq!((harness.lines(), harness.system.alive()), (vec![], 2));
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a 4", "task Ok(4)"]);
        assert_eq!(harness.system.alive(), 1);
    });
}

#[test]
fn a_task_that_panics_does_not_affect_others() {
    explore(|harness| {
        let actor = harness.recorder("a");
        harness.system.spawn_task(async { panic!("a task") }).unwrap();
        actor.tell(record(1));
        harness.advance_ms(1_000);
        assert_eq!((harness.lines(), harness.system.alive()), (vec!["a 1".to_owned()], 1));
    });
}

/// Runs `work` in a handler, so that the actors it wakes enter the worker's queue and not the injection queue.
fn run_in_handler(harness: &Harness, work: impl FnOnce() + Send + 'static) {
    harness.recorder("inside").tell(run(move |_, _| work()));
}

/// Returns the largest number of consecutive lines of one actor.
fn longest_run(lines: &[String]) -> usize {
    lines.chunk_by(|one, next| one[..1] == next[..1]).map(<[_]>::len).max().unwrap_or(0)
}

fn with_budget(seed: u64, messages: u32) -> TestOptions {
    TestOptions { messages_per_run: NonZeroU32::new(messages).unwrap(), ..TestOptions::new(seed) }
}

fn one_worker() -> ActorSystemConfig {
    ActorSystemConfig::default()
}
