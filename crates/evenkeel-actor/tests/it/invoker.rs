//! Runs: what is served when, and for how long.

use std::num::NonZeroU32;
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::runtime::test::TestOptions;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn messages_of_one_sender_are_handled_in_the_order_they_were_sent() {
    explore(|world| {
        let actor = world.noter("a");
        (0..200).for_each(|number| actor.tell(note(number)));
        let expected: Vec<_> = (0..200).map(|number| format!("a {number}")).collect();
        assert_eq!(world.lines(), expected);
    });
}

#[test]
fn started_is_called_once_before_the_first_message() {
    explore(|world| {
        let actor = world.system.spawn(&world.puppet("a").loud().props()).unwrap();
        actor.tell(note(1));
        assert_eq!(world.lines(), ["a1 started", "a 1"]);
    });
}

#[test]
fn the_output_of_a_future_awaited_in_started_precedes_the_first_message() {
    explore(|world| {
        let sleep = |ms| runtime::RuntimeHandle::sleep_until(&world.runtime.handle(), at_ms(ms));
        let handle = world.runtime.handle();
        let actor = world.puppet("a").started(move |_, _| {
            let sleep = runtime::RuntimeHandle::sleep_until(&handle, at_ms(5));
            Ok(Flow::wait(async {
                sleep.await;
                note(0)
            }))
        });
        let actor = world.spawn(actor);
        actor.tell(note(1));
        world.runtime.block_on(sleep(10));
        assert_eq!(world.lines(), ["a 0", "a 1"]);
    });
}

#[test]
fn a_message_an_actor_sends_itself_comes_after_queued_messages() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|_, ctx| ctx.me().tell(note(3))));
        actor.tell(note(1));
        actor.tell(note(2));
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3"]);
    });
}

#[test]
fn a_run_ends_after_its_budget_of_messages() {
    let budget = 3;
    for seed in 0..12 {
        let world = World::new(with_budget(seed, budget), one_worker());
        let a = world.noter("a");
        let b = world.noter("b");
        from_inside(&world, move || {
            (0..9).for_each(|number| a.tell(note(number)));
            (0..9).for_each(|number| b.tell(note(number)));
        });
        let lines = world.lines();
        assert_eq!((lines.len(), longest_turn(&lines)), (18, budget as usize), "{lines:?}");
    }
}

#[test]
fn a_run_ends_with_the_slice_once_the_worker_has_measured_the_handler() {
    for seed in 0..12 {
        let world = World::new(with_budget(seed, 64), one_worker());
        let a = world.noter("a");
        let b = world.noter("b");
        let handle = world.runtime.handle();
        from_inside(&world, move || {
            for number in 0..400 {
                let handle = handle.clone();
                [&a, &b][number % 2].tell(go(move |me, _| {
                    handle.elapse(Duration::from_micros(150));
                    me.note(number);
                }));
            }
        });
        let lines = world.lines();
        assert_eq!(lines.len(), 400);
        // The worker looks at the clock after 128 messages, for they took no time before, and knows how
        // long they take after 128 more; at the end one actor is alone.
        assert!(longest_turn(&lines[256..370]) <= 3, "150 µs each, 200 µs a slice: {lines:?}");
    }
}

#[test]
fn yield_lets_other_actors_run_first() {
    for seed in 0..12 {
        let world = World::new(with_budget(seed, 64), one_worker());
        let a = world.noter("a");
        let b = world.noter("b");
        from_inside(&world, move || {
            b.tell(note(1));
            a.tell(act(|me, _| {
                me.note(1);
                Ok(Flow::Yield)
            }));
            a.tell(note(2));
        });
        assert_eq!(world.lines(), ["a 1", "b 1", "a 2"]);
    }
}

#[test]
fn a_stop_takes_effect_before_the_next_message() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|me, ctx| {
            me.note("stops itself");
            ctx.me().stop(StopMode::Now);
        }));
        actor.tell(note(1));
        actor.tell(note(2));
        assert_eq!(world.lines(), ["a stops itself"]);
        assert_eq!(world.letters(), [(DeadLetterReason::Stopped, 1), (DeadLetterReason::Stopped, 2)]);
    });
}

#[test]
fn an_actor_that_returns_stop_handles_no_further_message() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").loud());
        actor.tell(act(|_, _| Ok(Flow::Stop)));
        actor.tell(note(1));
        assert_eq!(world.lines(), ["a1 started", "a1 stopped", "a1 dropped"]);
        assert_eq!(world.letters(), [(DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn messages_taken_from_the_mailbox_survive_a_suspension_in_order() {
    explore_batches(|world| {
        let actor = world.noter("a");
        actor.tell(note(1));
        actor.tell(hold(7));
        (2..6).for_each(|number| actor.tell(note(number)));
        assert_eq!(world.lines(), ["a 1"]);
        actor.tell(note(6));
        assert_eq!((actor.depth(), actor.state()), (5, ActorState::Suspended));
        actor.signal(SignalKey(7));
        assert_eq!(world.lines(), ["a 2", "a 3", "a 4", "a 5", "a 6"]);
    });
}

#[test]
fn an_actor_is_running_then_suspended_then_stopping_then_stopped() {
    explore(|world| {
        let parent = world.noter("parent");
        let state = || world.system.actor_state(parent.index());
        assert_eq!(state(), ActorState::Running);
        let child = world.puppet("child").props();
        parent.tell(go(move |_, ctx| ctx.spawn(&child).unwrap().tell(hold(1))));
        parent.tell(hold(2));
        world.run();
        assert_eq!((state(), parent.state()), (ActorState::Suspended, ActorState::Suspended));
        parent.signal(SignalKey(2));
        world.run();
        assert_eq!(state(), ActorState::Running);
        parent.tell(go(|_, ctx| ctx.me().stop(StopMode::Drained)));
        parent.tell(act(move |_, ctx| {
            assert_eq!(ctx.me().state(), ActorState::Stopping);
            Ok(Flow::Continue)
        }));
        world.run();
        assert_eq!((state(), world.system.alive()), (ActorState::Stopped, 0));
    });
}

#[test]
fn a_task_runs_to_completion_beside_actors() {
    explore(|world| {
        let log = world.log.clone();
        let handle = world.runtime.handle();
        let actor = world.noter("a");
        let task = async move {
            runtime::RuntimeHandle::sleep_until(&handle, at_ms(5)).await;
            let answer = actor.ask(|reply| Msg::Ask(4, reply)).await;
            log.note(format!("task {answer:?}"));
        };
        world.system.spawn_task(task).unwrap();
        world.pass(4);
        assert_eq!((world.lines(), world.system.alive()), (vec![], 2));
        world.pass(1);
        assert_eq!(world.lines(), ["a 4", "task Ok(4)"]);
        assert_eq!(world.system.alive(), 1);
    });
}

#[test]
fn a_task_that_panics_does_not_affect_others() {
    explore(|world| {
        let actor = world.noter("a");
        world.system.spawn_task(async { panic!("a task") }).unwrap();
        actor.tell(note(1));
        world.pass(1_000);
        assert_eq!((world.lines(), world.system.alive()), (vec!["a 1".to_owned()], 1));
    });
}

/// Has a handler do it, so that what it tells lies in its worker's queue and not in the common one.
fn from_inside(world: &World, work: impl FnOnce() + Send + 'static) {
    world.noter("inside").tell(go(move |_, _| work()));
}

/// How many lines in a row are one actor's at most.
fn longest_turn(lines: &[String]) -> usize {
    lines.chunk_by(|one, next| one[..1] == next[..1]).map(<[_]>::len).max().unwrap_or(0)
}

fn with_budget(seed: u64, messages: u32) -> TestOptions {
    TestOptions { messages_per_run: NonZeroU32::new(messages).unwrap(), ..TestOptions::new(seed) }
}

fn one_worker() -> ActorSystemConfig {
    ActorSystemConfig::default()
}
