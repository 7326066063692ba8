//! Spans and events that a `tracing` subscriber receives for messages, asks and waits.

mod recorder;

use evenkeel_actor::hub::{Value, names};
use evenkeel_actor::runtime::test::TestOptions;
use evenkeel_actor::{
    Actor, Context, Flow, HandlerResult, OverflowStrategy, Props, ResumeCondition, SendError, SignalKey,
    StopMode, SuspendReason,
};
use tracing::{Level, info_span, trace};

use crate::harness::{Harness, Msg, act, config, fail, record, run, suspend_until};
use recorder::capture;

#[test]
fn one_span_links_sender_queue_and_handler() {
    let seen = capture_level(Level::TRACE, |harness| {
        let actor = harness.recorder("a");
        info_span!("request").in_scope(|| actor.tell(run(|_, _| trace!("at work"))));
        trace!("not yet");
        harness.run();
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
    let seen = capture_level(Level::TRACE, |harness| {
        let first = harness.recorder("first");
        let second = harness.recorder("second");
        first.tell(run(move |_, _| second.tell(run(|_, _| trace!("reached")))));
        first.tell(run(|_, _| trace!("another")));
        harness.run();
    });
    let reached = ["event message/message: reached", "event message: another"];
    assert!(reached.iter().all(|line| seen.contains(&(*line).to_owned())), "{seen:#?}");
    assert!(seen.contains(&"open message/message actor=\"second\"".to_owned()), "{seen:#?}");
}

#[test]
fn an_ask_is_one_span_from_request_to_reply() {
    let seen = capture_level(Level::TRACE, |harness| {
        let actor = harness.recorder("a");
        let ask = info_span!("request").in_scope(|| actor.ask(|reply| Msg::Ask(7, reply)));
        assert_eq!(harness.runtime.block_on(ask), Ok(7));
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
    let seen = capture_level(Level::TRACE, |harness| {
        let front = harness.recorder("front");
        let back = harness.recorder("back");
        let forward =
            |reply| run(move |_, _| back.tell(run(move |_, _| evenkeel_actor::Reply::send(reply, 1))));
        assert_eq!(harness.runtime.block_on(front.ask(forward)), Ok(1));
    });
    assert!(seen.contains(&"open ask/message/message actor=\"back\"".to_owned()), "{seen:#?}");
    assert!(seen.contains(&"event ask: answered".to_owned()), "{seen:#?}");
}

#[test]
fn an_awaiting_actor_names_the_key_of_its_wait_and_resumes_in_the_same_span() {
    let seen = capture_level(Level::TRACE, |harness| {
        let actor = harness.recorder("a");
        let slot = actor.index().slot;
        let sleep = harness.wait_until_ms(5, 1);
        assert_eq!(slot, 0);
        actor.tell(act(move |me, ctx| {
            let Msg::Act(sleep) = sleep else { return Ok(Flow::Continue) };
            let Flow::Await(slept) = sleep(me, ctx)? else { return Ok(Flow::Continue) };
            Ok(Flow::wait(async move {
                slept.await;
                trace!("slept");
                run(|_, _| trace!("resumed"))
            }))
        }));
        harness.advance_ms(10);
    });
    assert_eq!(
        seen,
        [
            "open message actor=\"a\"",
            "event message: dequeued",
            "record message signal_key=0000000000000001",
            "open message/wait signal_key=0000000000000001",
            "close message/wait",
            "event message: slept",
            "event message: resumed",
            "close message",
        ]
    );
}

#[test]
fn a_signal_and_the_wait_it_ends_name_the_same_key() {
    let seen = capture_level(Level::TRACE, |harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(0xbeef));
        harness.run();
        info_span!("request").in_scope(|| actor.signal(SignalKey(0xbeef)));
        assert!(harness.system.signal(actor.index(), SignalKey(0xcafe)));
        harness.run();
    });
    assert_eq!(
        seen,
        [
            "open message actor=\"a\"",
            "event message: dequeued",
            "record message signal_key=000000000000beef",
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
    let seen = capture_level(Level::TRACE, |harness| {
        let actor = harness.recorder("a");
        let later = ResumeCondition::After(crate::harness::MS);
        actor.tell(act(move |_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, later))));
        harness.advance_ms(10);
    });
    assert!(seen.contains(&"open message/wait".to_owned()), "{seen:#?}");
    assert!(seen.contains(&"close message/wait".to_owned()), "{seen:#?}");
}

#[test]
fn a_span_records_the_outcome_of_an_unhandled_message() {
    let seen = capture_level(Level::TRACE, |harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::Reject));
        actor.tell(suspend_until(1));
        harness.run();
        actor.tell(record(1));
        assert!(matches!(actor.try_tell(record(2)), Err(SendError::Full(_))));
        actor.tell(record(3));
        actor.stop(StopMode::Now);
        harness.run();
        actor.tell(record(4));
        let failing = harness.recorder("b");
        failing.tell(fail("broken"));
        harness.run();
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
fn a_trace_label_names_an_actor_in_spans_and_dead_letters_and_not_in_metrics() {
    let seen = capture_level(Level::TRACE, |harness| {
        let props = Props::new(|| Idle).label("queue").trace_label("orders").build();
        let actor = harness.system.spawn(&props).unwrap();
        actor.tell(());
        actor.stop(StopMode::Now);
        harness.run();
        let letters = harness.system.take_dead_letters();
        assert_eq!(letters.iter().map(|letter| &*letter.actor).collect::<Vec<_>>(), ["orders"]);
        let enqueued = |label| {
            let labels = [("actor", label), ("mailbox", "user")];
            harness.system.metrics().get(names::MAILBOX_ENQUEUED_TOTAL, &labels).cloned()
        };
        assert_eq!([enqueued("queue"), enqueued("orders")], [Some(Value::Counter(1)), None]);
    });
    assert_eq!(seen[0], "open message actor=\"orders\"");
}

struct Idle;

impl Actor for Idle {
    type Msg = ();

    fn receive(&mut self, _message: (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}

#[test]
fn disabled_levels_produce_no_spans_or_events() {
    let seen = capture_level(Level::INFO, |harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(1));
        harness.run();
        actor.signal(SignalKey(1));
        let answer = info_span!("request").in_scope(|| actor.ask(|reply| Msg::Ask(7, reply)));
        assert_eq!(harness.runtime.block_on(answer), Ok(7));
    });
    assert_eq!(seen, ["open request"]);
}

/// Runs `scenario`; returns the lines that a subscriber with this maximum level records.
fn capture_level(level: Level, scenario: impl FnOnce(&Harness)) -> Vec<String> {
    capture(level, || {
        let harness = Harness::new(TestOptions::new(0), config());
        scenario(&harness);
    })
}
