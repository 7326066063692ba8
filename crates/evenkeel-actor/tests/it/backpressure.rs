//! Backpressure: each overflow strategy has a defined outcome, and system messages are never rejected.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::hub::names;
use evenkeel_actor::runtime::RuntimeHandle;
use evenkeel_actor::runtime::test::{TestHandle, TestOptions};
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn drop_oldest_keeps_the_latest_messages_and_dead_letters_the_oldest() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::DropOldest);
        assert_eq!(actor.try_tell(record(4)).ok(), Some(SendOutcome::Displaced));
        assert_eq!(actor.try_tell(record(5)).ok(), Some(SendOutcome::Displaced));
        assert_eq!(actor.depth(), 3);
        actor.signal(RESUME_KEY);
        assert_eq!(harness.lines(), ["a 3", "a 4", "a 5"]);
        let oldest = DeadLetterReason::DroppedOldest;
        assert_eq!(harness.dead_letters(), [(oldest, 1), (oldest, 2)]);
        assert_eq!(overflows(harness, "dropped_oldest"), 2.0);
    });
}

#[test]
fn a_send_to_a_mailbox_that_drops_its_oldest_message_does_not_wait() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::DropOldest);
        let sent = harness.runtime.block_on(actor.send(record(4)));
        assert_eq!(sent.ok(), Some(SendOutcome::Displaced));
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::DroppedOldest, 1)]);
    });
}

#[test]
fn drop_newest_keeps_queued_messages_and_dead_letters_the_new_one() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::DropNewest);
        assert_eq!(actor.try_tell(record(4)).ok(), Some(SendOutcome::Discarded));
        actor.tell(record(5));
        actor.signal(RESUME_KEY);
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3"]);
        let newest = DeadLetterReason::DroppedNewest;
        assert_eq!(harness.dead_letters(), [(newest, 4), (newest, 5)]);
        assert_eq!(overflows(harness, "dropped_newest"), 2.0);
    });
}

#[test]
fn with_reject_try_tell_returns_the_message_and_tell_dead_letters_it() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::Reject);
        let back = actor.try_tell(record(4)).unwrap_err();
        assert!(matches!(back, SendError::Full(Msg::Record(4))));
        assert_eq!(harness.dead_letters(), []);
        actor.tell(record(5));
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Full, 5)]);
        actor.signal(RESUME_KEY);
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3"]);
        assert_eq!(overflows(harness, "rejected"), 2.0);
    });
}

#[test]
fn the_dead_letter_strategy_dead_letters_the_new_message_as_an_overflow() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::DeadLetter);
        assert_eq!(actor.try_tell(record(4)).ok(), Some(SendOutcome::Discarded));
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Overflow, 4)]);
        assert_eq!(overflows(harness, "dead_letter"), 1.0);
    });
}

#[test]
fn block_producer_makes_a_sender_wait_for_capacity_and_keeps_its_order() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::BlockProducer);
        assert!(matches!(actor.try_tell(record(0)), Err(SendError::Full(_))), "only `send` waits");
        let to = actor.clone();
        let log = harness.log.clone();
        let producer = async move {
            for number in 4..12 {
                to.send(record(number)).await.unwrap();
            }
            log.record("all sent");
        };
        harness.system.spawn_task(producer).unwrap();
        assert_eq!(harness.lines(), [""; 0]);
        assert_eq!((actor.depth(), overflows(harness, "blocked")), (3, 1.0));
        actor.signal(RESUME_KEY);
        let mut lines = harness.lines();
        lines.retain(|line| line != "all sent");
        let expected: Vec<_> = (1..12).map(|number| format!("a {number}")).collect();
        assert_eq!(lines, expected);
        assert_eq!(harness.dead_letters(), []);
    });
}

#[test]
fn every_waiting_producer_is_eventually_served() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::BlockProducer);
        for producer in 0..20 {
            let to = actor.clone();
            let produce = async move {
                for number in 0..5 {
                    to.send(record(100 + 10 * producer + number)).await.unwrap();
                }
            };
            harness.system.spawn_task(produce).unwrap();
        }
        harness.run();
        actor.signal(RESUME_KEY);
        let lines = harness.lines();
        assert_eq!(lines.len(), 3 + 100);
        for producer in 0..20 {
            let own: Vec<_> = (0..5).map(|number| format!("a {}", 100 + 10 * producer + number)).collect();
            let handled: Vec<_> = lines.iter().filter(|line| own.contains(line)).cloned().collect();
            assert_eq!(handled, own, "messages of producer {producer}");
        }
        assert_eq!(harness.system.alive(), 1);
    });
}

#[test]
fn a_producer_waiting_for_a_stopped_actor_gets_its_message_back() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::BlockProducer);
        let to = actor.clone();
        let log = harness.log.clone();
        let producer = async move {
            match to.send(record(4)).await {
                Err(SendError::Closed(Msg::Record(number))) => log.record(format!("{number} is back")),
                _ => log.record("lost"),
            }
        };
        harness.system.spawn_task(producer).unwrap();
        harness.run();
        actor.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["4 is back"]);
    });
}

#[test]
fn a_sender_also_waits_for_capacity_if_the_strategy_is_reject() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::Reject);
        let sent = harness.runtime.try_block_on(async {
            let sending = core::pin::pin!(actor.send(record(4)));
            let mut sending = sending;
            let first = core::future::poll_fn(|cx| core::task::Poll::Ready(sending.as_mut().poll(cx))).await;
            assert!(first.is_pending());
            actor.signal(RESUME_KEY);
            sending.await
        });
        assert_eq!(sent.unwrap().ok(), Some(SendOutcome::Queued));
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3", "a 4"]);
    });
}

#[test]
fn a_full_mailbox_does_not_reject_system_messages() {
    explore(|harness| {
        let watcher = harness.recorder("w");
        let actor = full(harness, OverflowStrategy::Reject);
        let watched = actor.clone();
        watcher.tell(run(move |_, ctx| ctx.watch(&watched)));
        actor.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["w terminated: stopped"]);
        assert_eq!(actor.state(), ActorState::Stopped);
    });
}

#[test]
fn user_messages_never_use_the_capacity_reserved_for_the_system() {
    explore(|harness| {
        let options = MailboxOptions {
            capacity: NonZeroUsize::new(10).unwrap(),
            reserve_for_system: 7,
            high_watermark: 3,
            low_watermark: 1,
            middleware: None,
            overflow: OverflowStrategy::Reject,
        };
        let actor = harness.spawn(harness.puppet("a").mailbox(options));
        actor.tell(suspend_until(RESUME_KEY.0));
        harness.run();
        let accepted = (0..10).filter(|number| actor.try_tell(record(*number)).is_ok()).count();
        assert_eq!((accepted, options.user_capacity()), (3, 3));
    });
}

#[test]
fn a_reserve_for_the_system_takes_nothing_from_the_user_capacity() {
    for user_capacity in [1, 10, 65_536] {
        let options = MailboxOptions::bounded(NonZeroUsize::new(user_capacity).unwrap());
        let reserving = options.reserve_for_system(0).reserve_for_system(7);
        assert_eq!(reserving.reserve_for_system, 7);
        assert_eq!(reserving.user_capacity(), user_capacity);
    }
}

#[test]
fn messages_taken_by_the_worker_still_count_against_the_capacity() {
    explore_batches(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(4, OverflowStrategy::Reject));
        actor.tell(suspend_until(RESUME_KEY.0));
        (1..4).for_each(|number| actor.tell(record(number)));
        harness.run();
        assert_eq!(actor.depth(), 3, "the worker has taken the messages into its private half of the queue");
        assert!(actor.try_tell(record(4)).is_ok());
        assert!(matches!(actor.try_tell(record(5)), Err(SendError::Full(_))));
    });
}

#[test]
fn an_actor_suspended_by_a_full_mailbox_resumes_at_the_low_watermark_of_that_mailbox() {
    explore(|harness| {
        let options = mailbox_options(8, OverflowStrategy::Reject);
        let target = harness.spawn(harness.puppet("target").mailbox(options));
        target.tell(suspend_until(RESUME_KEY.0));
        harness.run();
        (0..8).for_each(|number| target.tell(record(number)));
        let source = harness.recorder("source");
        send_with_backpressure(&source, &target, 100);
        source.tell(record(1));
        assert_eq!(harness.lines(), ["source found the mailbox full"]);
        assert_eq!(source.state(), ActorState::Suspended);
        target.signal(RESUME_KEY);
        let lines = harness.lines();
        let at = |line: &str| lines.iter().position(|logged| logged == line).unwrap();
        assert!(
            at("target 3") < at("source 1"),
            "the source resumes when 4 of 8 messages are left: {lines:?}"
        );
        assert!(at("source 1") < at("source tries again"), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "target 100");
    });
}

#[test]
fn an_actor_suspended_by_a_full_mailbox_stays_suspended_above_the_low_watermark() {
    for seed in 0..12 {
        let options = TestOptions { messages_per_run: NonZeroU32::MIN, ..TestOptions::new(seed) };
        let harness = Harness::new(options, config());
        let target =
            harness.spawn(harness.puppet("target").mailbox(mailbox_options(8, OverflowStrategy::Reject)));
        let source = harness.recorder("source");
        target.tell(suspend_until(RESUME_KEY.0));
        harness.run();
        // Each message takes 10 ms, in which the other worker can run the source.
        let runtime = harness.runtime.handle();
        let pause = move |runtime: &TestHandle| {
            let due = runtime.now() + Duration::from_millis(10);
            let slept = runtime.sleep_until(due);
            Flow::wait(async move {
                slept.await;
                run(|_, _| ())
            })
        };
        for left in (0..8).rev() {
            let source = source.clone();
            let runtime = runtime.clone();
            target.tell(act(move |me, _| {
                me.record(format!("{left} left, source {:?}", source.state()));
                Ok(pause(&runtime))
            }));
        }
        send_with_backpressure(&source, &target, 100);
        assert_eq!(harness.lines(), ["source found the mailbox full"]);
        target.signal(RESUME_KEY);
        harness.advance_ms(35);
        let expected: Vec<_> =
            (4..8).rev().map(|left| format!("target {left} left, source Suspended")).collect();
        assert_eq!(harness.lines()[..4], expected);
        harness.advance_ms(100);
        assert_eq!(source.state(), ActorState::Running);
    }
}

#[test]
fn queued_system_messages_take_no_capacity_from_user_messages() {
    explore_batches(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(4, OverflowStrategy::Reject));
        // Nothing runs until the system queue has been filled.
        (0..16).for_each(|key| actor.signal(SignalKey(key)));
        let accepted = (0..8).filter(|number| actor.try_tell(record(*number)).is_ok()).count();
        assert_eq!((accepted, actor.depth()), (4, 4));
        assert_eq!(harness.lines(), ["a 0", "a 1", "a 2", "a 3"]);
        // Half of them are in the worker's private half when the system messages arrive.
        actor.tell(record(4));
        actor.tell(suspend_until(RESUME_KEY.0));
        actor.tell(record(5));
        harness.run();
        (100..116).for_each(|key| actor.signal(SignalKey(key)));
        let accepted = (6..14).filter(|number| actor.try_tell(record(*number)).is_ok()).count();
        assert_eq!((accepted, actor.depth()), (3, 4));
    });
}

#[test]
fn an_actor_suspended_by_a_full_mailbox_resumes_when_the_receiver_stops() {
    explore(|harness| {
        let target = full(harness, OverflowStrategy::Reject);
        let source = harness.recorder("source");
        send_with_backpressure(&source, &target, 100);
        source.tell(record(1));
        assert_eq!(harness.lines(), ["source found the mailbox full"]);
        target.stop(StopMode::Now);
        assert_eq!(harness.lines(), ["source 1", "source tries again"]);
    });
}

#[test]
fn an_actor_that_found_no_full_mailbox_does_not_wait_for_capacity() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let reason = SuspendReason::Backpressure;
        let until = ResumeCondition::WhenCapacityAvailable;
        actor.tell(act(move |_, _| Ok(Flow::Suspend(reason, until))));
        actor.tell(record(1));
        assert_eq!(harness.lines(), ["a 1"]);
    });
}

#[test]
fn an_ask_to_a_full_mailbox_fails_immediately() {
    explore(|harness| {
        let actor = full(harness, OverflowStrategy::Reject);
        let answer = harness.runtime.block_on(actor.ask(|reply| Msg::Ask(4, reply)));
        assert_eq!((answer, harness.now_ms()), (Err(AskError::Full), 0));
    });
}

#[test]
fn at_most_65536_producers_wait_for_one_mailbox() {
    let harness = Harness::new(TestOptions::new(1), config());
    let actor = full(&harness, OverflowStrategy::BlockProducer);
    for _ in 0..=65_536 {
        let to = actor.clone();
        let log = harness.log.clone();
        let produce = async move {
            if let Err(SendError::Full(_)) = to.send(record(9)).await {
                log.record("rejected");
            }
        };
        harness.system.spawn_task(produce).unwrap();
    }
    assert_eq!(harness.lines(), ["rejected"]);
    actor.stop(StopMode::Now);
    harness.run();
    assert_eq!(harness.system.alive(), 0, "every waiting producer was woken");
}

const RESUME_KEY: SignalKey = SignalKey(77);

/// Spawns a suspended actor whose mailbox of capacity 3 holds 1, 2 and 3.
fn full(harness: &Harness, overflow: OverflowStrategy) -> ActorRef<Msg> {
    let actor = harness.spawn(harness.puppet("a").capacity(3, overflow));
    actor.tell(suspend_until(RESUME_KEY.0));
    harness.run();
    (1..4).for_each(|number| actor.tell(record(number)));
    assert_eq!(actor.depth(), 3);
    actor
}

/// Makes `source` send a number; if the mailbox is full, `source` suspends until there is capacity and tries again.
fn send_with_backpressure(source: &ActorRef<Msg>, target: &ActorRef<Msg>, number: u32) {
    let target = target.clone();
    source.tell(act(move |me, ctx| {
        if ctx.try_tell(&target, record(number)).is_ok() {
            return Ok(Flow::Continue);
        }
        me.record("found the mailbox full");
        let again = target.clone();
        ctx.me().tell(run(move |me, ctx| {
            me.record("tries again");
            ctx.try_tell(&again, record(number)).is_ok()
        }));
        Ok(Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable))
    }));
}

fn overflows(harness: &Harness, reason: &str) -> f64 {
    harness.metric(names::MAILBOX_OVERFLOW_TOTAL, &[("actor", "a"), ("reason", reason)])
}
