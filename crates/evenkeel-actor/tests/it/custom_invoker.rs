//! Actors whose messages are handled by an invoker of the application.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::guardian::{Backoff, Supervision, SupervisionDirective};
use evenkeel_actor::hub::names;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn a_custom_invoker_gets_the_messages_in_order_and_batches() {
    explore_batches(|harness| {
        let actor = spawn(harness, Batch::take_all);
        (1..=100).for_each(|number| actor.tell(number));
        let lines = harness.lines();
        assert_eq!(lines[0], "created");
        assert_eq!(lines.len() - 1, 100);
        assert!(lines[1..].iter().zip(1..).all(|(line, number)| *line == number.to_string()), "{lines:?}");
        let runs =
            harness.metric("actor.mailbox.dequeued_total", &[("actor", "Scripted"), ("mailbox", "user")]);
        assert_eq!((runs, actor.depth(), actor.state()), (100.0, 0, ActorState::Running));
    });
}

#[test]
fn an_invoker_that_leaves_messages_is_called_again() {
    explore(|harness| {
        let actor = spawn(harness, |batch| {
            batch.take_one();
            InvokeResult::Completed { ready_hint: false }
        });
        (1..=5).for_each(|number| actor.tell(number));
        assert_eq!(harness.lines(), ["created", "1", "2", "3", "4", "5"]);
    });
}

#[test]
fn an_invoker_can_limit_its_rate() {
    explore(|harness| {
        let actor = spawn(harness, |batch| {
            batch.take_one();
            suspended(SuspendReason::RateLimit, ResumeCondition::After(MS * 10))
        });
        (1..=3).for_each(|number| actor.tell(number));
        assert_eq!(harness.lines(), ["created", "1"]);
        assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 2));
        harness.advance_ms(9);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(2);
        assert_eq!(harness.lines(), ["2"]);
        harness.advance_ms(30);
        assert_eq!((harness.lines(), actor.state()), (vec!["3".to_owned()], ActorState::Running));
    });
}

#[test]
fn a_suspended_invoker_is_resumed_by_its_signal() {
    const KEY: SignalKey = SignalKey(0xfeed);
    explore(|harness| {
        let actor = spawn(harness, |batch| {
            batch.take_one();
            suspended(SuspendReason::AwaitExternal, ResumeCondition::ExternalSignal(KEY))
        });
        (1..=2).for_each(|number| actor.tell(number));
        harness.advance_ms(1000);
        assert_eq!(harness.lines(), ["created", "1"]);
        actor.signal(KEY);
        assert_eq!(harness.lines(), ["2"]);
    });
}

#[test]
fn a_failed_batch_restarts_the_actor_after_the_longer_delay_and_keeps_the_rest() {
    for (retry_after, delay_ms) in [(None, 0), (Some(MS * 50), 50)] {
        explore_with(supervised(restart_immediately()), |harness| {
            let actor = spawn(harness, move |batch| match batch.take_one() {
                Some(2) => InvokeResult::Failed { error: ActorError::new("two"), retry_after },
                _ => InvokeResult::Yielded,
            });
            (1..=3).for_each(|number| actor.tell(number));
            harness.run();
            if delay_ms != 0 {
                harness.advance_ms(delay_ms - 1);
                assert_eq!((harness.lines(), actor.depth()), (lines(["created", "1", "2"]), 1));
                harness.advance_ms(2);
                assert_eq!(harness.lines(), ["created", "3"]);
            } else {
                assert_eq!(harness.lines(), ["created", "1", "2", "created", "3"]);
            }
            assert_eq!(harness.metric("actor.restarts_total", &[("actor", "Scripted")]), 1.0);
        });
    }
}

#[test]
fn a_resumed_actor_waits_as_long_as_its_failed_batch_asked() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Resume)), |harness| {
        let actor = spawn(harness, |batch| {
            batch.take_one();
            InvokeResult::Failed { error: ActorError::new("broken"), retry_after: Some(MS * 10) }
        });
        (1..=2).for_each(|number| actor.tell(number));
        assert_eq!(harness.lines(), ["created", "1"]);
        assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 1));
        harness.advance_ms(9);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(2);
        assert_eq!(harness.lines(), ["2"]);
        harness.advance_ms(20);
        assert_eq!(actor.state(), ActorState::Running);
    });
}

#[test]
fn a_panic_of_an_invoker_is_a_failure() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = spawn(harness, |batch| match batch.take_one() {
            Some(1) => panic!("on purpose"),
            _ => InvokeResult::Yielded,
        });
        (1..=2).for_each(|number| actor.tell(number));
        assert_eq!(harness.lines(), ["created", "1", "created", "2"]);
        assert_eq!(harness.metric("actor.failures_total", &[("actor", "Scripted")]), 1.0);
        let by_worker = ["0", "1"].map(|worker| harness.metric(names::MESSAGES_TOTAL, &[("worker", worker)]));
        assert_eq!(by_worker.iter().sum::<f64>(), 2.0, "the message of the failed batch counts");
    });
}

#[test]
fn an_actor_whose_invoker_could_not_be_created_stops_instead_of_resuming() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Resume)), |harness| {
        let props = Props::with_invoker(|_| -> Scripted<fn(&Batch) -> InvokeResult> { panic!("on purpose") });
        let actor = harness.system.spawn(&props.build()).unwrap();
        (1..=3).for_each(|number| actor.tell(number));
        harness.run();
        let labels = [("reason", DeadLetterReason::Stopped.as_label())];
        assert_eq!(harness.metric("dead_letters_total", &labels), 3.0);
        assert_eq!(actor.state(), ActorState::Stopped);
    });
}

#[test]
fn a_parent_that_resumes_an_actor_without_an_invoker_restarts_it() {
    explore(|harness| {
        let slow = Backoff::new(1_000 * MS, 1_000 * MS, 1, 0).unwrap();
        let parent = harness.puppet("p").supervise(Supervision::default().with_backoff(slow));
        let parent = harness.spawn(parent.overrule(|_| Some(SupervisionDirective::Resume)));
        let log = harness.log.clone();
        let is_restart = Arc::new(AtomicBool::new(false));
        let props = Props::with_invoker(move |mailbox| {
            assert!(is_restart.swap(true, Ordering::Relaxed), "fails on purpose");
            let batch = Batch { mailbox, log: log.clone(), messages_max: 0 };
            Scripted { batch, script: |batch: &Batch| batch.take_all() }
        });
        let props = props.build();
        let child = parent.ask(|reply| run(move |_, ctx| drop(reply.send(ctx.spawn(&props).unwrap()))));
        let child = harness.runtime.block_on(child).unwrap();
        (1..=3).for_each(|number| child.tell(number));
        let mut lines = harness.lines();
        lines.retain(|line| !line.starts_with('p'));
        assert_eq!(lines, ["1", "2", "3"]);
        assert_eq!(child.state(), ActorState::Running);
    });
}

#[test]
fn an_invoker_stops_by_its_result_or_from_outside_after_its_queue_is_empty() {
    explore(|harness| {
        let actor = spawn(harness, |batch| match batch.take_one() {
            Some(2) => InvokeResult::Stopped,
            _ => InvokeResult::Yielded,
        });
        (1..=3).for_each(|number| actor.tell(number));
        assert_eq!(harness.lines(), ["created", "1", "2"]);
        assert_eq!((actor.state(), harness.dead_letters().len()), (ActorState::Stopped, 1));
        let drained = spawn(harness, Batch::take_all);
        (1..=3).for_each(|number| drained.tell(number));
        drained.stop(StopMode::Drained);
        assert_eq!(harness.lines(), ["created", "1", "2", "3"]);
        assert_eq!(drained.state(), ActorState::Stopped);
        drained.tell(4);
        assert_eq!(
            harness.metric("dead_letters_total", &[("reason", DeadLetterReason::Closed.as_label())]),
            1.0
        );
    });
}

#[test]
fn senders_wait_for_an_invoker_like_for_any_actor() {
    explore(|harness| {
        let log = harness.log.clone();
        let props = Props::with_invoker(move |mailbox| Scripted {
            batch: Batch { mailbox, log: log.clone(), messages_max: 0 },
            script: |batch: &Batch| {
                batch.take_one();
                suspended(SuspendReason::UserDefined, ResumeCondition::After(MS))
            },
        });
        let options = mailbox_options(2, OverflowStrategy::BlockProducer);
        let actor = harness.system.spawn(&props.mailbox(options).build()).unwrap();
        let sends = async {
            for number in 1..=6 {
                assert_eq!(actor.send(number).await, Ok(SendOutcome::Queued));
            }
        };
        harness.runtime.block_on(sends);
        harness.advance_ms(20);
        assert_eq!(harness.log.take(), ["1", "2", "3", "4", "5", "6"]);
    });
}

#[test]
fn middleware_sees_a_batch_as_one_run() {
    struct Counts(Log);
    impl MiddlewareChain for Counts {
        fn before_invoke(&mut self, ctx: &InvokeContext<'_>) -> std::ops::ControlFlow<(), ()> {
            self.0.record(format!("{} waiting", ctx.messages));
            std::ops::ControlFlow::Continue(())
        }

        fn after_invoke(&mut self, ctx: &InvokeContext<'_>, _result: &InvokeResult) {
            self.0.record(format!("{} handled", ctx.messages));
        }
    }
    explore_batches(|harness| {
        let log = harness.log.clone();
        let counts = harness.log.clone();
        let props = Props::with_invoker(move |mailbox| Scripted {
            batch: Batch { mailbox, log: log.clone(), messages_max: 0 },
            script: |batch: &Batch| batch.take_all(),
        });
        let props = props.middleware(move || Counts(counts.clone())).build();
        let actor = harness.system.spawn(&props).unwrap();
        harness.run();
        let producer = async { (1..=2).for_each(|number| actor.tell(number)) };
        harness.runtime.block_on(producer);
        assert_eq!(harness.lines(), ["2 waiting", "1", "2", "2 handled"]);
    });
}

/// An invoker whose script handles each batch.
struct Scripted<F> {
    batch: Batch,
    script: F,
}

/// A batch to handle.
struct Batch {
    mailbox: MailboxReceiver<u32>,
    log: Log,
    messages_max: usize,
}

impl Batch {
    /// Takes one message and records it.
    fn take_one(&self) -> Option<u32> {
        let number = self.mailbox.dequeue()?;
        self.log.record(number.to_string());
        Some(number)
    }

    fn take_all(&self) -> InvokeResult {
        let taken = (0..self.messages_max).map_while(|_| self.take_one()).count();
        InvokeResult::Completed { ready_hint: taken == self.messages_max }
    }
}

impl<F: FnMut(&Batch) -> InvokeResult> MessageInvoker for Scripted<F> {
    fn invoke_batch(&mut self, messages_max: usize) -> InvokeResult {
        assert!(matches!(self.actor_state(), ActorState::Running | ActorState::Stopping));
        self.batch.messages_max = messages_max;
        (self.script)(&self.batch)
    }

    fn actor_state(&self) -> ActorState {
        self.batch.mailbox.actor_state()
    }
}

fn spawn(
    harness: &Harness,
    script: impl Fn(&Batch) -> InvokeResult + Clone + Send + Sync + 'static,
) -> ActorRef<u32> {
    let log = harness.log.clone();
    let props = Props::with_invoker(move |mailbox| {
        log.record("created");
        Scripted { batch: Batch { mailbox, log: log.clone(), messages_max: 0 }, script: script.clone() }
    });
    harness.system.spawn(&props.label("Scripted").build()).unwrap()
}

fn suspended(reason: SuspendReason, resume_on: ResumeCondition) -> InvokeResult {
    InvokeResult::Suspended { reason, resume_on }
}

fn lines<const N: usize>(lines: [&str; N]) -> Vec<String> {
    lines.map(str::to_owned).into()
}
