//! What a subscriber of `tracing` sees of messages, questions and waits.

mod recorder;

use evenkeel_actor::runtime::test::TestOptions;
use evenkeel_actor::{
    Flow, OverflowStrategy, ResumeCondition, SendError, SignalKey, StopMode, SuspendReason,
};
use tracing::{Level, info_span, trace};

use crate::harness::{Msg, World, act, config, fail, go, hold, note};
use recorder::record;

#[test]
fn one_span_links_sender_queue_and_handler() {
    let seen = seen(Level::TRACE, |world| {
        let actor = world.noter("a");
        info_span!("request").in_scope(|| actor.tell(go(|_, _| trace!("at work"))));
        trace!("not yet");
        world.run();
    });
    assert_eq!(
        seen,
        [
            "open request",
            "open request/message actor=\"a\"",
            "event not yet",
            "event request/message: dequeued",
            "event request/message: at work",
            "close request/message",
        ]
    );
}

#[test]
fn the_span_of_a_sent_message_is_a_child_of_the_handled_one() {
    let seen = seen(Level::TRACE, |world| {
        let first = world.noter("first");
        let second = world.noter("second");
        first.tell(go(move |_, _| second.tell(go(|_, _| trace!("reached")))));
        first.tell(go(|_, _| trace!("another")));
        world.run();
    });
    let reached = ["event message/message: reached", "event message: another"];
    assert!(reached.iter().all(|line| seen.contains(&(*line).to_owned())), "{seen:#?}");
    assert!(seen.contains(&"open message/message actor=\"second\"".to_owned()), "{seen:#?}");
}

#[test]
fn an_ask_is_one_span_from_request_to_reply() {
    let seen = seen(Level::TRACE, |world| {
        let actor = world.noter("a");
        let asked = info_span!("request").in_scope(|| actor.ask(|reply| Msg::Ask(7, reply)));
        assert_eq!(world.runtime.block_on(asked), Ok(7));
    });
    assert_eq!(
        seen,
        [
            "open request",
            "open request/ask actor=\"a\"",
            "open request/ask/message actor=\"a\"",
            "event request/ask/message: dequeued",
            "event request/ask: answered",
            "close request/ask/message",
            "close request/ask",
        ]
    );
}

#[test]
fn a_reply_from_another_actor_belongs_to_the_ask() {
    let seen = seen(Level::TRACE, |world| {
        let front = world.noter("front");
        let back = world.noter("back");
        let forward =
            |reply| go(move |_, _| back.tell(go(move |_, _| evenkeel_actor::Reply::send(reply, 1))));
        assert_eq!(world.runtime.block_on(front.ask(forward)), Ok(1));
    });
    assert!(seen.contains(&"open ask/message/message actor=\"back\"".to_owned()), "{seen:#?}");
    assert!(seen.contains(&"event ask: answered".to_owned()), "{seen:#?}");
}

#[test]
fn an_awaiting_actor_names_the_key_of_its_wait_and_resumes_in_the_same_span() {
    let seen = seen(Level::TRACE, |world| {
        let actor = world.noter("a");
        let slot = actor.index().slot;
        let sleep = world.wait_until_ms(5, 1);
        assert_eq!(slot, 0);
        actor.tell(act(move |me, ctx| {
            let Msg::Act(sleep) = sleep else { return Ok(Flow::Continue) };
            let Flow::Await(slept) = sleep(me, ctx)? else { return Ok(Flow::Continue) };
            Ok(Flow::wait(async move {
                slept.await;
                trace!("slept");
                go(|_, _| trace!("told"))
            }))
        }));
        world.pass(10);
    });
    assert_eq!(
        seen,
        [
            "open message actor=\"a\"",
            "event message: dequeued",
            "open message/wait signal_key=0000000000000001",
            "close message/wait",
            "event message: slept",
            "event message: told",
            "close message",
        ]
    );
}

#[test]
fn a_signal_and_the_wait_it_ends_name_the_same_key() {
    let seen = seen(Level::TRACE, |world| {
        let actor = world.noter("a");
        actor.tell(hold(0xbeef));
        world.run();
        info_span!("request").in_scope(|| actor.signal(SignalKey(0xbeef)));
        assert!(world.system.signal(actor.index(), SignalKey(0xcafe)));
        world.run();
    });
    assert_eq!(
        seen,
        [
            "open message actor=\"a\"",
            "event message: dequeued",
            "open message/wait signal_key=000000000000beef",
            "close message",
            "open request",
            "event request: signal signal_key=000000000000beef",
            "event signal signal_key=000000000000cafe",
            "close message/wait",
        ]
    );
}

#[test]
fn a_wait_without_a_key_names_none() {
    let seen = seen(Level::TRACE, |world| {
        let actor = world.noter("a");
        let later = ResumeCondition::After(crate::harness::MS);
        actor.tell(act(move |_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, later))));
        world.pass(10);
    });
    assert!(seen.contains(&"open message/wait".to_owned()), "{seen:#?}");
    assert!(seen.contains(&"close message/wait".to_owned()), "{seen:#?}");
}

#[test]
fn a_span_records_the_outcome_of_an_unhandled_message() {
    let seen = seen(Level::TRACE, |world| {
        let actor = world.spawn(world.puppet("a").places(1, OverflowStrategy::Reject));
        actor.tell(hold(1));
        world.run();
        actor.tell(note(1));
        assert!(matches!(actor.try_tell(note(2)), Err(SendError::Full(_))));
        actor.tell(note(3));
        actor.stop(StopMode::Now);
        world.run();
        actor.tell(note(4));
        let failing = world.noter("b");
        failing.tell(fail("broken"));
        world.run();
    });
    let events: Vec<_> = seen.iter().filter(|line| line.starts_with("event message: ")).collect();
    assert_eq!(
        events,
        [
            "event message: dequeued",
            "event message: rejected",
            "event message: dead_lettered reason=\"full\"",
            "event message: dead_lettered reason=\"stopped\"",
            "event message: dead_lettered reason=\"closed\"",
            "event message: dequeued",
            "event message: failed",
        ]
    );
}

#[test]
fn disabled_levels_produce_no_spans_or_events() {
    let seen = seen(Level::INFO, |world| {
        let actor = world.noter("a");
        actor.tell(hold(1));
        world.run();
        actor.signal(SignalKey(1));
        let answer = info_span!("request").in_scope(|| actor.ask(|reply| Msg::Ask(7, reply)));
        assert_eq!(world.runtime.block_on(answer), Ok(7));
    });
    assert_eq!(seen, ["open request"]);
}

/// What somebody interested up to this level sees while `scene` is played.
fn seen(level: Level, scene: impl FnOnce(&World)) -> Vec<String> {
    record(level, || {
        let world = World::new(TestOptions::new(0), config());
        scene(&world);
    })
}
