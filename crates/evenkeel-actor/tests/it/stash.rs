//! Stash: messages are unstashed in order, limited in number and never lost.

use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason::{Cleared, DroppedOldest, StashFull, Stashed, Stopped};
use evenkeel_actor::guardian::{MailboxOnRestart, SupervisionDirective};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn unstashed_messages_come_first_and_in_order() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let others = actor.clone();
        actor.tell(run(move |_, ctx| {
            (1..=3).for_each(|number| ctx.stash(record(number)));
            (4..=5).for_each(|number| others.tell(record(number)));
            assert_eq!((ctx.unstash_all(), ctx.stashed()), (3, 0));
        }));
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3", "a 4", "a 5"]);
        assert_eq!(harness.dead_letters(), []);
    });
}

#[test]
fn unstash_returns_the_oldest_message_and_leaves_the_rest() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(stash(1..=3));
        actor.tell(record(9));
        actor.tell(run(|_, ctx| assert!(ctx.unstash())));
        assert_eq!(harness.lines(), ["a 9", "a 1"]);
        actor.tell(run(|me, ctx| me.record(format_args!("has {} stashed", ctx.stashed()))));
        actor.tell(run(|_, ctx| assert!(ctx.unstash() && ctx.unstash() && !ctx.unstash())));
        assert_eq!(harness.lines(), ["a has 2 stashed", "a 2", "a 3"]);
    });
}

#[test]
fn a_message_that_is_stashed_again_while_unstashing_stays_stashed() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|_, ctx| {
            ctx.stash(run(|_, ctx| ctx.stash(record(1))));
            ctx.stash(record(2));
            ctx.unstash_all();
            ctx.stash(record(3));
        }));
        assert_eq!(harness.lines(), ["a 2"]);
        actor.tell(unstash_all());
        assert_eq!(harness.lines(), ["a 3", "a 1"], "3 was stashed first");
    });
}

#[test]
fn a_full_stash_returns_the_message_or_dead_letters_it() {
    explore(|harness| {
        let actor = limited(harness, 2);
        actor.tell(run(|me, ctx| {
            (1..=3).for_each(|number| ctx.stash(record(number)));
            let error = ctx.try_stash(record(4)).unwrap_err();
            me.record(format_args!("{error}: {}", matches!(error.0, Msg::Record(4))));
            ctx.unstash_all();
        }));
        assert_eq!(harness.lines(), ["a stash is full: true", "a 1", "a 2"]);
        assert_eq!(harness.dead_letters(), [(StashFull, 3)]);
        assert_eq!(harness.metric("dead_letters_total", &[("reason", "stash_full")]), 1.0);
    });
}

#[test]
fn a_stash_max_of_zero_disables_the_stash() {
    explore(|harness| {
        let actor = limited(harness, 0);
        actor.tell(stash(1..=1));
        assert_eq!(harness.dead_letters(), [(StashFull, 1)]);
    });
}

#[test]
fn stashed_messages_survive_a_suspension_a_future_and_a_resumed_failure() {
    let resumes = supervised(decided_by(|_| SupervisionDirective::Resume));
    explore_with(resumes, |harness| {
        let actor = harness.recorder("a");
        actor.tell(stash(1..=2));
        actor.tell(suspend_until(7));
        actor.tell(harness.wait_until_ms(5, 3));
        actor.tell(fail("broken"));
        actor.tell(unstash_all());
        actor.tell(record(4));
        harness.run();
        actor.signal(SignalKey(7));
        harness.advance_ms(10);
        assert_eq!(harness.lines(), ["a 3", "a 1", "a 2", "a 4"]);
    });
}

#[test]
fn messages_unstashed_before_a_wait_are_handled_after_it() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(stash(1..=2));
        actor.tell(act(|_, ctx| {
            ctx.unstash_all();
            Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::After(MS * 5)))
        }));
        actor.tell(record(3));
        assert_eq!(harness.lines(), [""; 0]);
        assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 3));
        harness.advance_ms(6);
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3"]);
    });
}

#[test]
fn a_signal_handler_may_unstash_before_the_next_message() {
    explore_batches(|harness| {
        let unstashing = harness.puppet("a").signal(|_, ctx| {
            ctx.unstash_all();
            Ok(Flow::Continue)
        });
        let actor = harness.spawn(unstashing);
        let stopped = harness.recorder("stopped");
        stopped.stop(StopMode::Now);
        harness.run();
        actor.tell(stash(1..=2));
        actor.tell(run(move |_, ctx| ctx.watch(&stopped)));
        actor.tell(record(3));
        assert_eq!(
            harness.lines(),
            ["a 1", "a 2", "a 3"],
            "3 was already queued when the termination was delivered"
        );
    });
}

#[test]
fn a_restart_that_keeps_the_mailbox_unstashes_everything() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        actor.tell(stash(1..=2));
        actor.tell(fail("broken"));
        actor.tell(record(3));
        actor.tell(run(|me, ctx| me.record(format_args!("has {} stashed", ctx.stashed()))));
        let expected = [
            "a1 started",
            "a1 restarting: broken",
            "a1 dropped",
            "a2 started",
            "a 1",
            "a 2",
            "a 3",
            "a has 0 stashed",
        ];
        assert_eq!(harness.lines(), expected);
    });
}

#[test]
fn a_restart_that_clears_the_mailbox_clears_the_stash() {
    let clears = supervised(restart_immediately().with_on_restart(MailboxOnRestart::Clear));
    explore_with(clears, |harness| {
        let actor = harness.recorder("a");
        let others = actor.clone();
        actor.tell(act(move |_, ctx| {
            ctx.stash(record(1));
            others.tell(record(2));
            Err(ActorError::new("broken"))
        }));
        assert_eq!(harness.dead_letters(), [(Cleared, 1), (Cleared, 2)]);
        actor.tell(record(3));
        assert_eq!(harness.lines(), ["a 3"]);
    });
}

#[test]
fn messages_stashed_at_termination_become_dead_letters_with_that_reason() {
    for mode in [StopMode::Now, StopMode::Drained] {
        explore(|harness| {
            let actor = harness.recorder("a");
            actor.tell(stash(1..=2));
            harness.run();
            actor.stop(mode);
            assert_eq!(harness.dead_letters(), [(Stashed, 1), (Stashed, 2)]);
            assert_eq!(actor.state(), ActorState::Stopped);
        });
    }
}

#[test]
fn messages_being_unstashed_at_termination_are_not_lost() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(act(|_, ctx| {
            (1..=2).for_each(|number| ctx.stash(record(number)));
            ctx.unstash();
            Ok(Flow::Stop)
        }));
        actor.tell(record(3));
        assert_eq!(harness.dead_letters(), [(Stashed, 1), (Stashed, 2), (Stopped, 3)]);
    });
}

#[test]
fn stashed_messages_use_no_mailbox_capacity() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(2, OverflowStrategy::Reject));
        actor.tell(stash(1..=2));
        harness.run();
        actor.tell(record(3));
        actor.tell(unstash_all());
        assert_eq!(harness.lines(), ["a 3", "a 1", "a 2"]);
        assert_eq!(harness.dead_letters(), []);
    });
}

#[test]
fn drop_oldest_evicts_unstashed_messages_first() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(2, OverflowStrategy::DropOldest));
        actor.tell(act(|_, ctx| {
            (1..=2).for_each(|number| ctx.stash(record(number)));
            ctx.unstash_all();
            let until = ResumeCondition::ExternalSignal(SignalKey(7));
            Ok(Flow::Suspend(SuspendReason::UserDefined, until))
        }));
        harness.run();
        assert!(matches!(actor.try_tell(record(3)), Ok(SendOutcome::Displaced)));
        assert_eq!(harness.dead_letters(), [(DroppedOldest, 1)]);
        actor.signal(SignalKey(7));
        assert_eq!(harness.lines(), ["a 2", "a 3"]);
    });
}

#[test]
fn the_counters_count_unstashed_messages_again_and_never_decrease() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let count = |what: &str| harness.metric(what, &[("actor", "a"), ("mailbox", "user")]);
        actor.tell(stash(1..=2));
        harness.run();
        assert_eq!(
            (count("actor.mailbox.enqueued_total"), count("actor.mailbox.dequeued_total")),
            (1.0, 1.0)
        );
        actor.tell(unstash_all());
        harness.run();
        assert_eq!(
            (count("actor.mailbox.enqueued_total"), count("actor.mailbox.dequeued_total")),
            (4.0, 4.0)
        );
    });
}

#[test]
fn a_graceful_shutdown_waits_for_stashed_messages_and_reports_when_it_times_out() {
    explore(|harness| {
        let unstashing = harness.puppet("a").signal(|_, ctx| {
            ctx.unstash_all();
            Ok(Flow::Continue)
        });
        let actor = harness.spawn(unstashing);
        actor.tell(stash(1..=1));
        actor.tell(run(|_, ctx| ctx.set_timer(TimerId(1), MS * 20, Repeat::Once)));
        harness.run();
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(MS * 100));
        assert_eq!((report.drained, harness.lines()), (true, vec!["a 1".to_owned()]));
    });
    explore(|harness| {
        harness.recorder("a").tell(stash(1..=1));
        harness.run();
        let report = harness.runtime.block_on(harness.system.graceful_shutdown(MS * 100));
        assert_eq!(
            (report, harness.dead_letters()),
            (ShutdownReport { drained: false, abandoned: 0 }, vec![(Stashed, 1)])
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_threads_every_stashed_message_is_handled_once_and_in_order() {
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap());
    let system = ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap();
    let actor = system.spawn(&Props::new(Batcher::default).build()).unwrap();
    for number in 0..10_000 {
        actor.send(BatcherMsg::Number(number)).await.unwrap();
    }
    let seen = actor.ask(BatcherMsg::Read).within(Duration::from_secs(30)).await.unwrap();
    assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
    assert_eq!(system.dead_letters_total(), 0);
}

/// Stashes numbers until it has a hundred, then handles them all.
#[derive(Default)]
struct Batcher {
    open: u32,
    seen: Vec<u32>,
}

enum BatcherMsg {
    Number(u32),
    Read(Reply<Vec<u32>>),
}

impl Actor for Batcher {
    type Msg = BatcherMsg;

    fn receive(&mut self, message: BatcherMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<BatcherMsg> {
        match message {
            BatcherMsg::Number(number) if self.open == 0 => {
                ctx.stash(BatcherMsg::Number(number));
                if ctx.stashed() == 100 {
                    self.open = 100;
                    ctx.unstash_all();
                }
            }
            BatcherMsg::Number(number) => {
                self.seen.push(number);
                self.open -= 1;
            }
            BatcherMsg::Read(reply) => drop(reply.send(std::mem::take(&mut self.seen))),
        }
        Ok(Flow::Continue)
    }
}

/// Returns a message that stashes a message for each of these numbers.
fn stash(numbers: std::ops::RangeInclusive<u32>) -> Msg {
    run(move |_, ctx| numbers.for_each(|number| ctx.stash(record(number))))
}

fn unstash_all() -> Msg {
    run(|_, ctx| ctx.unstash_all())
}

/// Spawns an actor that may stash this many messages.
fn limited(harness: &Harness, stash_max: usize) -> ActorRef<Msg> {
    harness.spawn(harness.puppet("a").stash_max(stash_max))
}
