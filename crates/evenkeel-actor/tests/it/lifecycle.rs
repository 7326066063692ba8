//! Life cycle of an actor: spawn, stop, and references, indexes and dead letters afterwards.

use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn stop_now_dead_letters_queued_messages_and_drained_handles_them() {
    for (mode, lines, dead_lettered) in
        [(StopMode::Now, vec![], vec![1, 2]), (StopMode::Drained, vec!["a 1", "a 2"], vec![])]
    {
        explore(|harness| {
            let actor = harness.recorder("a");
            actor.tell(suspend_until(1));
            actor.tell(record(1));
            actor.tell(record(2));
            harness.run();
            actor.stop(mode);
            actor.signal(SignalKey(1));
            assert_eq!(harness.lines(), lines, "{mode:?}");
            let letters: Vec<_> =
                dead_lettered.iter().map(|&number| (DeadLetterReason::Stopped, number)).collect();
            assert_eq!(harness.dead_letters(), letters, "{mode:?}");
            assert_eq!((actor.state(), harness.system.alive()), (ActorState::Stopped, 0));
        });
    }
}

#[test]
fn a_drained_stop_accepts_no_new_messages() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|_, ctx| ctx.me().stop(StopMode::Drained)));
        actor.tell(run(|me, ctx| {
            let error = ctx.me().try_tell(record(9));
            me.record(format_args!("{error:?}"));
        }));
        actor.tell(record(1));
        assert_eq!(harness.lines(), ["a Err(Closed(_))", "a 1"]);
    });
}

#[test]
fn all_children_stop_before_their_parents() {
    explore(|harness| {
        let top = harness.spawn(harness.puppet("t").log_hooks().signal(|_, _| Ok(Flow::Continue)));
        for name in ["a", "b"] {
            let middle = harness.puppet(name).log_hooks().signal(|_, _| Ok(Flow::Continue));
            let middle = spawn_child(harness, &top, middle);
            spawn_child(harness, &middle, harness.puppet(if name == "a" { "c" } else { "d" }).log_hooks());
        }
        harness.lines();
        top.stop(StopMode::Now);
        let lines = harness.lines();
        let at = |name: &str| lines.iter().position(|line| line.starts_with(name)).unwrap();
        assert!(at("c1") < at("a1") && at("d1") < at("b1"), "{lines:?}");
        assert_eq!(lines[8..], ["t1 stopped", "t1 dropped"]);
        assert_eq!(harness.system.alive(), 0);
    });
}

#[test]
fn a_parent_is_notified_of_each_childs_termination_and_removes_it() {
    explore(|harness| {
        let parent = harness.recorder("p");
        let child = spawn_child(harness, &parent, harness.puppet("c"));
        child.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["p terminated: stopped"]);
        parent.tell(run(|me, ctx| me.record(format_args!("has {} children", ctx.children().len()))));
        assert_eq!(harness.lines(), ["p has 0 children"]);
    });
}

#[test]
fn the_index_is_valid_in_the_stopped_hook_and_freed_when_watchers_are_notified() {
    explore(|harness| {
        let system = harness.system.clone();
        let watcher = harness.puppet("w").signal(move |signal, ctx| {
            let Signal::Terminated { actor, .. } = signal else { return Ok(Flow::Continue) };
            let state = system.actor_state(*actor);
            let found = system.signal(*actor, SignalKey(1));
            let line = format!("{state:?}, found: {found}");
            ctx.me().tell(run(move |me, _| me.record(line)));
            Ok(Flow::Continue)
        });
        let watcher = harness.spawn(watcher);
        let system = harness.system.clone();
        let actor = harness.puppet("a").stopped(move |me, ctx| {
            let own_ref = ctx.me();
            let state = system.actor_state(own_ref.index());
            let sent = own_ref.try_tell(record(1));
            let found = system.signal(own_ref.index(), SignalKey(1));
            me.record(format_args!("{state:?}, {sent:?}, found: {found}"));
        });
        let actor = harness.spawn(actor);
        let watched = actor.clone();
        watcher.tell(run(move |_, ctx| ctx.watch(&watched)));
        actor.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["a Stopping, Err(Closed(_)), found: true", "w Stopped, found: false"]);
    });
}

#[test]
fn a_reference_that_outlives_its_actor_delivers_nothing() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.stop(StopMode::Now);
        harness.run();
        assert!(matches!(actor.try_tell(record(1)), Err(SendError::Closed(Msg::Record(1)))));
        actor.tell(record(2));
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Closed, 2)]);
        let answer = harness.runtime.block_on(actor.ask(|reply| Msg::Ask(3, reply)));
        assert_eq!(answer, Err(AskError::Closed));
        let sent = harness.runtime.block_on(actor.send(record(4)));
        assert!(matches!(sent, Err(SendError::Closed(_))));
        actor.stop(StopMode::Now);
        actor.signal(SignalKey(1));
        harness.run();
        assert_eq!(actor.state(), ActorState::Stopped);
    });
}

#[test]
fn an_index_whose_slot_was_reused_finds_no_actor() {
    explore(|harness| {
        let first = harness.recorder("a");
        let stale = first.index();
        first.stop(StopMode::Now);
        harness.run();
        drop(first);
        let second = harness.recorder("b");
        assert_eq!(second.index().slot, stale.slot, "the slot is reused");
        assert_eq!(second.index().generation, stale.generation + 1);
        assert_eq!(harness.system.actor_state(stale), ActorState::Stopped);
        assert!(!harness.system.stop(stale, StopMode::Now));
        assert!(!harness.system.signal(stale, SignalKey(1)));
        second.tell(record(1));
        assert_eq!((harness.lines(), second.state()), (vec!["b 1".to_owned()], ActorState::Running));
    });
}

#[test]
fn a_slot_with_a_live_reference_is_not_reused() {
    explore(|harness| {
        let first = harness.recorder("a");
        first.stop(StopMode::Now);
        harness.run();
        let second = harness.recorder("b");
        assert_ne!(second.index().slot, first.index().slot);
        first.tell(record(1));
        assert_eq!((harness.lines(), harness.dead_letters().len()), (vec![], 1));
    });
}

#[test]
fn an_unknown_index_finds_no_actor() {
    explore(|harness| {
        for slot in [0, 31, 32, 1_000_000, u32::MAX] {
            let index = MailboxIndex { slot, generation: 0 };
            assert_eq!(harness.system.actor_state(index), ActorState::Stopped);
            assert!(!harness.system.stop(index, StopMode::Now));
        }
    });
}

#[test]
fn all_dead_letters_are_counted_and_a_limited_number_is_kept() {
    explore_with(ActorSystemConfig { dead_letters_max: 3, ..config() }, |harness| {
        let actor = harness.recorder("a");
        actor.stop(StopMode::Now);
        harness.run();
        (0..10).for_each(|number| actor.tell(record(number)));
        assert_eq!(harness.system.dead_letters_total(), 10);
        let closed = DeadLetterReason::Closed;
        assert_eq!(harness.dead_letters(), [(closed, 7), (closed, 8), (closed, 9)]);
        assert_eq!(harness.dead_letters(), [], "the dead letters were not removed");
    });
}

#[test]
fn a_dead_letter_names_its_actor_and_time() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.stop(StopMode::Now);
        harness.advance_ms(30);
        actor.tell(record(1));
        let letter = harness.system.take_dead_letters().pop_front().unwrap();
        assert_eq!((letter.to, letter.actor.as_ref(), letter.at), (actor.index(), "a", at_ms(30)));
        assert!(letter.message_type.ends_with("harness::Msg"), "{}", letter.message_type);
    });
}

#[test]
fn actors_max_is_enforced_and_a_termination_frees_a_slot() {
    explore_with(ActorSystemConfig { actors_max: 3, ..config() }, |harness| {
        let mut actors: Vec<_> = (0..3).map(|_| harness.recorder("a")).collect();
        let props = harness.puppet("b").log_hooks().props();
        let error = harness.system.spawn(&props).unwrap_err();
        assert_eq!(error, SpawnError::TooMany { actors_max: 3 });
        assert_eq!((harness.system.alive(), harness.lines()), (3, vec!["b1 dropped".to_owned()]));
        actors.pop().unwrap().stop(StopMode::Now);
        harness.run();
        assert!(harness.system.spawn(&props).is_ok());
    });
}

#[test]
fn mailbox_options_without_user_capacity_or_with_crossed_watermarks_are_rejected() {
    explore(|harness| {
        let nonzero = |capacity| NonZeroUsize::new(capacity).unwrap();
        let good = MailboxOptions::bounded(nonzero(64));
        let bad = [
            (MailboxOptions { reserve_for_system: 80, ..good }, InvalidMailbox::NoUserCapacity),
            (MailboxOptions { low_watermark: good.user_capacity(), ..good }, InvalidMailbox::WatermarksCross),
            (MailboxOptions { high_watermark: good.low_watermark, ..good }, InvalidMailbox::WatermarksCross),
            (MailboxOptions { capacity: nonzero(1 << 32), ..good }, InvalidMailbox::TooLarge),
        ];
        for (options, reason) in bad {
            let error = harness.system.spawn(&harness.puppet("a").mailbox(options).props()).unwrap_err();
            assert_eq!(error, SpawnError::Mailbox(reason));
        }
        assert_eq!(harness.system.alive(), 0);
    });
}

#[test]
fn the_smallest_mailbox_holds_one_message() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").mailbox(MailboxOptions::bounded(NonZeroUsize::MIN)));
        for number in 0..5 {
            assert_eq!(actor.try_tell(record(number)).ok(), Some(SendOutcome::Queued));
            assert!(matches!(actor.try_tell(record(9)), Err(SendError::Full(_))));
            assert_eq!(harness.lines(), [format!("a {number}")]);
        }
    });
}

#[test]
fn an_actor_may_stop_before_its_first_message() {
    explore(|harness| {
        let actor = harness.puppet("a").log_hooks().started(|_, _| Ok(Flow::Stop));
        let actor = harness.system.spawn(&actor.props()).unwrap();
        actor.tell(record(1));
        assert_eq!(harness.lines(), ["a1 started", "a1 stopped", "a1 dropped"]);
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn an_actor_stopped_before_its_first_run_is_started_and_stopped() {
    explore(|harness| {
        let actor = harness.system.spawn(&harness.puppet("a").log_hooks().props()).unwrap();
        actor.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["a1 started", "a1 stopped", "a1 dropped"]);
    });
}

#[test]
fn a_supervision_command_reaches_only_children() {
    explore(|harness| {
        let parent = harness.recorder("p");
        let other = harness.recorder("o");
        let child = spawn_child(harness, &parent, harness.puppet("c").log_hooks());
        let mine = child.index();
        let not_mine = other.index();
        parent.tell(run(move |me, ctx| {
            let stop = guardian::SupervisionCommand::Stop;
            let reached = [not_mine, mine].map(|index| ctx.command(index, stop));
            me.record(format_args!("{reached:?}"));
        }));
        harness.run();
        assert_eq!((child.state(), other.state()), (ActorState::Stopped, ActorState::Running));
        assert!(harness.lines().contains(&"p [false, true]".to_owned()));
    });
}

#[test]
fn a_system_with_an_invalid_configuration_does_not_start() {
    let start = |config: ActorSystemConfig| {
        let runtime = runtime::test::TestRuntime::new(1);
        let error = ActorSystemRunner::new(config).start(runtime.handle()).map(drop);
        assert_eq!(runtime.tasks(), 0);
        error.unwrap_err().to_string()
    };
    let workers = NonZeroUsize::new(1_025);
    assert_eq!(start(ActorSystemConfig { workers, ..config() }), "workers is 1025, above the limit of 1024");
    let no_wait = ActorSystemConfig { capacity_wait_max: Duration::ZERO, ..config() };
    assert_eq!(start(no_wait), "capacity_wait_max is zero");
    let none = start(ActorSystemConfig { actors_max: 0, ..config() });
    assert!(none.starts_with("actors_max is 0, not from 1"), "{none}");
}
