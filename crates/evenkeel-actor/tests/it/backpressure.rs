//! Full mailboxes: each has a defined outcome, and the system is never refused.

use std::num::NonZeroUsize;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::hub::names;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn drop_oldest_keeps_the_latest_and_dead_letters_the_others() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::DropOldest);
        assert_eq!(actor.try_tell(note(4)).ok(), Some(SendOutcome::Displaced));
        assert_eq!(actor.try_tell(note(5)).ok(), Some(SendOutcome::Displaced));
        assert_eq!(actor.depth(), 3);
        actor.signal(HELD);
        assert_eq!(world.lines(), ["a 3", "a 4", "a 5"]);
        let oldest = DeadLetterReason::DroppedOldest;
        assert_eq!(world.letters(), [(oldest, 1), (oldest, 2)]);
        assert_eq!(overflows(world, "dropped_oldest"), 2.0);
    });
}

#[test]
fn drop_newest_keeps_queued_messages_and_dead_letters_the_new_one() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::DropNewest);
        assert_eq!(actor.try_tell(note(4)).ok(), Some(SendOutcome::Discarded));
        actor.tell(note(5));
        actor.signal(HELD);
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3"]);
        let newest = DeadLetterReason::DroppedNewest;
        assert_eq!(world.letters(), [(newest, 4), (newest, 5)]);
        assert_eq!(overflows(world, "dropped_newest"), 2.0);
    });
}

#[test]
fn reject_returns_the_message_and_tell_dead_letters_it() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::Reject);
        let back = actor.try_tell(note(4)).unwrap_err();
        assert!(matches!(back, SendError::Full(Msg::Note(4))));
        assert_eq!(world.letters(), []);
        actor.tell(note(5));
        assert_eq!(world.letters(), [(DeadLetterReason::Full, 5)]);
        actor.signal(HELD);
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3"]);
        assert_eq!(overflows(world, "rejected"), 2.0);
    });
}

#[test]
fn dead_letter_dead_letters_the_new_message_as_overflow() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::DeadLetter);
        assert_eq!(actor.try_tell(note(4)).ok(), Some(SendOutcome::Discarded));
        assert_eq!(world.letters(), [(DeadLetterReason::Overflow, 4)]);
        assert_eq!(overflows(world, "dead_letter"), 1.0);
    });
}

#[test]
fn block_producer_makes_a_sender_wait_for_capacity_and_keeps_its_order() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::BlockProducer);
        assert!(matches!(actor.try_tell(note(0)), Err(SendError::Full(_))), "only `send` waits");
        let to = actor.clone();
        let log = world.log.clone();
        let producer = async move {
            for number in 4..12 {
                to.send(note(number)).await.unwrap();
            }
            log.note("all sent");
        };
        world.system.spawn_task(producer).unwrap();
        assert_eq!(world.lines(), [""; 0]);
        assert_eq!((actor.depth(), overflows(world, "blocked")), (3, 1.0));
        actor.signal(HELD);
        let mut lines = world.lines();
        lines.retain(|line| line != "all sent");
        let expected: Vec<_> = (1..12).map(|number| format!("a {number}")).collect();
        assert_eq!(lines, expected);
        assert_eq!(world.letters(), []);
    });
}

#[test]
fn every_waiting_producer_gets_its_turn() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::BlockProducer);
        for producer in 0..20 {
            let to = actor.clone();
            let produce = async move {
                for number in 0..5 {
                    to.send(note(100 + 10 * producer + number)).await.unwrap();
                }
            };
            world.system.spawn_task(produce).unwrap();
        }
        world.run();
        actor.signal(HELD);
        let lines = world.lines();
        assert_eq!(lines.len(), 3 + 100);
        for producer in 0..20 {
            let own: Vec<_> = (0..5).map(|number| format!("a {}", 100 + 10 * producer + number)).collect();
            let heard: Vec<_> = lines.iter().filter(|line| own.contains(line)).cloned().collect();
            assert_eq!(heard, own, "of producer {producer}");
        }
        assert_eq!(world.system.alive(), 1);
    });
}

#[test]
fn a_producer_waiting_for_a_stopped_actor_gets_its_message_back() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::BlockProducer);
        let to = actor.clone();
        let log = world.log.clone();
        let producer = async move {
            match to.send(note(4)).await {
                Err(SendError::Closed(Msg::Note(number))) => log.note(format!("{number} is back")),
                _ => log.note("lost"),
            }
        };
        world.system.spawn_task(producer).unwrap();
        world.run();
        actor.stop(StopMode::Now);
        assert_eq!(world.lines(), ["4 is back"]);
    });
}

#[test]
fn a_sender_waits_for_capacity_under_any_strategy() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::Reject);
        let sent = world.runtime.try_block_on(async {
            let sending = core::pin::pin!(actor.send(note(4)));
            let mut sending = sending;
            let first = core::future::poll_fn(|cx| core::task::Poll::Ready(sending.as_mut().poll(cx))).await;
            assert!(first.is_pending());
            actor.signal(HELD);
            sending.await
        });
        assert_eq!(sent.unwrap().ok(), Some(SendOutcome::Queued));
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3", "a 4"]);
    });
}

#[test]
fn a_full_mailbox_does_not_reject_system_messages() {
    explore(|world| {
        let watcher = world.noter("w");
        let actor = full(world, OverflowStrategy::Reject);
        let watched = actor.clone();
        watcher.tell(go(move |_, ctx| ctx.watch(&watched)));
        actor.stop(StopMode::Now);
        assert_eq!(world.lines(), ["w hears end: stopped"]);
        assert_eq!(actor.state(), ActorState::Stopped);
    });
}

#[test]
fn user_messages_never_use_the_capacity_reserved_for_the_system() {
    explore(|world| {
        let options = MailboxOptions {
            capacity: NonZeroUsize::new(10).unwrap(),
            reserve_for_system: 7,
            high_watermark: 3,
            low_watermark: 1,
            middleware: None,
            overflow: OverflowStrategy::Reject,
        };
        let actor = world.spawn(world.puppet("a").mailbox(options));
        actor.tell(hold(HELD.0));
        world.run();
        let taken = (0..10).filter(|number| actor.try_tell(note(*number)).is_ok()).count();
        assert_eq!((taken, options.user_capacity()), (3, 3));
    });
}

#[test]
fn messages_taken_by_the_worker_still_count_against_the_capacity() {
    explore_batches(|world| {
        let actor = world.spawn(world.puppet("a").places(4, OverflowStrategy::Reject));
        actor.tell(hold(HELD.0));
        (1..4).for_each(|number| actor.tell(note(number)));
        world.run();
        assert_eq!(actor.depth(), 3, "in the worker's half");
        assert!(actor.try_tell(note(4)).is_ok());
        assert!(matches!(actor.try_tell(note(5)), Err(SendError::Full(_))));
    });
}

#[test]
fn an_actor_blocked_by_a_full_mailbox_resumes_at_its_low_watermark() {
    explore(|world| {
        let options = places_for(8, OverflowStrategy::Reject);
        let target = world.spawn(world.puppet("target").mailbox(options));
        target.tell(hold(HELD.0));
        world.run();
        (0..8).for_each(|number| target.tell(note(number)));
        let source = world.noter("source");
        offer(&source, &target, 100);
        source.tell(note(1));
        assert_eq!(world.lines(), ["source told full"]);
        assert_eq!(source.state(), ActorState::Suspended);
        target.signal(HELD);
        let lines = world.lines();
        let at = |line: &str| lines.iter().position(|noted| noted == line).unwrap();
        assert!(at("target 3") < at("source 1"), "4 of 8 wait by then: {lines:?}");
        assert!(at("source 1") < at("source offers again"), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "target 100");
    });
}

#[test]
fn an_actor_blocked_by_a_full_mailbox_resumes_when_its_owner_stops() {
    explore(|world| {
        let target = full(world, OverflowStrategy::Reject);
        let source = world.noter("source");
        offer(&source, &target, 100);
        source.tell(note(1));
        assert_eq!(world.lines(), ["source told full"]);
        target.stop(StopMode::Now);
        assert_eq!(world.lines(), ["source 1", "source offers again"]);
    });
}

#[test]
fn an_actor_that_found_no_full_mailbox_does_not_wait_for_capacity() {
    explore(|world| {
        let actor = world.noter("a");
        let reason = SuspendReason::Backpressure;
        let until = ResumeCondition::WhenCapacityAvailable;
        actor.tell(act(move |_, _| Ok(Flow::Suspend(reason, until))));
        actor.tell(note(1));
        assert_eq!(world.lines(), ["a 1"]);
    });
}

#[test]
fn an_ask_to_a_full_mailbox_fails_immediately() {
    explore(|world| {
        let actor = full(world, OverflowStrategy::Reject);
        let answer = world.runtime.block_on(actor.ask(|reply| Msg::Ask(4, reply)));
        assert_eq!((answer, world.now_ms()), (Err(AskError::Full), 0));
    });
}

#[test]
fn at_most_65536_producers_wait_for_one_mailbox() {
    let world = World::new(runtime::test::TestOptions::new(1), config());
    let actor = full(&world, OverflowStrategy::BlockProducer);
    for _ in 0..=65_536 {
        let to = actor.clone();
        let log = world.log.clone();
        let produce = async move {
            if let Err(SendError::Full(_)) = to.send(note(9)).await {
                log.note("refused");
            }
        };
        world.system.spawn_task(produce).unwrap();
    }
    assert_eq!(world.lines(), ["refused"]);
    actor.stop(StopMode::Now);
    world.run();
    assert_eq!(world.system.alive(), 0, "everybody who waited was told");
}

const HELD: SignalKey = SignalKey(77);

/// An actor that is held, with 1, 2 and 3 in the three places of its mailbox.
fn full(world: &World, overflow: OverflowStrategy) -> ActorRef<Msg> {
    let actor = world.spawn(world.puppet("a").places(3, overflow));
    actor.tell(hold(HELD.0));
    world.run();
    (1..4).for_each(|number| actor.tell(note(number)));
    assert_eq!(actor.depth(), 3);
    actor
}

/// Has `source` send, waiting for room as an actor does: suspended, and trying again.
fn offer(source: &ActorRef<Msg>, target: &ActorRef<Msg>, number: u32) {
    let target = target.clone();
    source.tell(act(move |me, ctx| {
        if ctx.try_tell(&target, note(number)).is_ok() {
            return Ok(Flow::Continue);
        }
        me.note("told full");
        let again = target.clone();
        ctx.me().tell(go(move |me, ctx| {
            me.note("offers again");
            ctx.try_tell(&again, note(number)).is_ok()
        }));
        Ok(Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable))
    }));
}

fn overflows(world: &World, reason: &str) -> f64 {
    world.metric(names::MAILBOX_OVERFLOW_TOTAL, &[("actor", "a"), ("reason", reason)])
}
