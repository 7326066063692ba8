//! Messages put aside: taken back in order, bounded, never lost.

use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason::{Cleared, DroppedOldest, StashFull, Stashed, Stopped};
use evenkeel_actor::guardian::{MailboxOnRestart, SupervisionDirective};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn unstashed_messages_come_first_and_in_order() {
    explore(|world| {
        let actor = world.noter("a");
        let others = actor.clone();
        actor.tell(go(move |_, ctx| {
            (1..=3).for_each(|number| ctx.stash(note(number)));
            (4..=5).for_each(|number| others.tell(note(number)));
            assert_eq!((ctx.unstash_all(), ctx.stashed()), (3, 0));
        }));
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3", "a 4", "a 5"]);
        assert_eq!(world.letters(), []);
    });
}

#[test]
fn unstashing_one_takes_the_oldest_and_leaves_the_rest() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(aside(1..=3));
        actor.tell(note(9));
        actor.tell(go(|_, ctx| assert!(ctx.unstash())));
        assert_eq!(world.lines(), ["a 9", "a 1"]);
        actor.tell(go(|me, ctx| me.note(format_args!("has {} aside", ctx.stashed()))));
        actor.tell(go(|_, ctx| assert!(ctx.unstash() && ctx.unstash() && !ctx.unstash())));
        assert_eq!(world.lines(), ["a has 2 aside", "a 2", "a 3"]);
    });
}

#[test]
fn a_message_stashed_again_while_unstashing_waits_once_more() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|_, ctx| {
            ctx.stash(go(|_, ctx| ctx.stash(note(1))));
            ctx.stash(note(2));
            ctx.unstash_all();
            ctx.stash(note(3));
        }));
        assert_eq!(world.lines(), ["a 2"]);
        actor.tell(take_back());
        assert_eq!(world.lines(), ["a 3", "a 1"], "3 was put aside first");
    });
}

#[test]
fn a_full_stash_returns_the_message_or_dead_letters_it() {
    explore(|world| {
        let actor = limited(world, 2);
        actor.tell(go(|me, ctx| {
            (1..=3).for_each(|number| ctx.stash(note(number)));
            let refused = ctx.try_stash(note(4)).unwrap_err();
            me.note(format_args!("{refused}: {}", matches!(refused.0, Msg::Note(4))));
            ctx.unstash_all();
        }));
        assert_eq!(world.lines(), ["a stash is full: true", "a 1", "a 2"]);
        assert_eq!(world.letters(), [(StashFull, 3)]);
        assert_eq!(world.metric("dead_letters_total", &[("reason", "stash_full")]), 1.0);
    });
}

#[test]
fn a_stash_max_of_zero_forbids_stashing() {
    explore(|world| {
        let actor = limited(world, 0);
        actor.tell(aside(1..=1));
        assert_eq!(world.letters(), [(StashFull, 1)]);
    });
}

#[test]
fn stashed_messages_survive_a_suspension_a_future_and_a_resumed_failure() {
    let resumes = supervised(directing(|_| SupervisionDirective::Resume));
    explore_with(resumes, |world| {
        let actor = world.noter("a");
        actor.tell(aside(1..=2));
        actor.tell(hold(7));
        actor.tell(world.wait_until_ms(5, 3));
        actor.tell(fail("broken"));
        actor.tell(take_back());
        actor.tell(note(4));
        world.run();
        actor.signal(SignalKey(7));
        world.pass(10);
        assert_eq!(world.lines(), ["a 3", "a 1", "a 2", "a 4"]);
    });
}

#[test]
fn messages_unstashed_before_a_wait_are_handled_after_it() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(aside(1..=2));
        actor.tell(act(|_, ctx| {
            ctx.unstash_all();
            Ok(Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::After(MS * 5)))
        }));
        actor.tell(note(3));
        assert_eq!(world.lines(), [""; 0]);
        assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 3));
        world.pass(6);
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3"]);
    });
}

#[test]
fn a_signal_handler_may_unstash_before_the_next_message() {
    explore_batches(|world| {
        let hears = world.puppet("a").signal(|_, ctx| {
            ctx.unstash_all();
            Ok(Flow::Continue)
        });
        let actor = world.spawn(hears);
        let ended = world.noter("ended");
        ended.stop(StopMode::Now);
        world.run();
        actor.tell(aside(1..=2));
        actor.tell(go(move |_, ctx| ctx.watch(&ended)));
        actor.tell(note(3));
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3"], "3 waited when the end was told");
    });
}

#[test]
fn a_restart_that_keeps_the_mailbox_unstashes_everything() {
    explore_with(supervised(at_once()), |world| {
        let actor = world.spawn(world.puppet("a").loud());
        actor.tell(aside(1..=2));
        actor.tell(fail("broken"));
        actor.tell(note(3));
        actor.tell(go(|me, ctx| me.note(format_args!("has {} aside", ctx.stashed()))));
        let expected = [
            "a1 started",
            "a1 restarting: broken",
            "a1 dropped",
            "a2 started",
            "a 1",
            "a 2",
            "a 3",
            "a has 0 aside",
        ];
        assert_eq!(world.lines(), expected);
    });
}

#[test]
fn a_restart_that_clears_the_mailbox_clears_the_stash() {
    let clears = supervised(at_once().with_on_restart(MailboxOnRestart::Clear));
    explore_with(clears, |world| {
        let actor = world.noter("a");
        let others = actor.clone();
        actor.tell(act(move |_, ctx| {
            ctx.stash(note(1));
            others.tell(note(2));
            Err(ActorError::new("broken"))
        }));
        assert_eq!(world.letters(), [(Cleared, 1), (Cleared, 2)]);
        actor.tell(note(3));
        assert_eq!(world.lines(), ["a 3"]);
    });
}

#[test]
fn messages_stashed_at_termination_become_dead_letters_with_that_reason() {
    for mode in [StopMode::Now, StopMode::Drained] {
        explore(|world| {
            let actor = world.noter("a");
            actor.tell(aside(1..=2));
            world.run();
            actor.stop(mode);
            assert_eq!(world.letters(), [(Stashed, 1), (Stashed, 2)]);
            assert_eq!(actor.state(), ActorState::Stopped);
        });
    }
}

#[test]
fn messages_being_unstashed_at_termination_are_not_lost() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(act(|_, ctx| {
            (1..=2).for_each(|number| ctx.stash(note(number)));
            ctx.unstash();
            Ok(Flow::Stop)
        }));
        actor.tell(note(3));
        assert_eq!(world.letters(), [(Stashed, 1), (Stashed, 2), (Stopped, 3)]);
    });
}

#[test]
fn stashed_messages_use_no_mailbox_capacity() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").places(2, OverflowStrategy::Reject));
        actor.tell(aside(1..=2));
        world.run();
        actor.tell(note(3));
        actor.tell(take_back());
        assert_eq!(world.lines(), ["a 3", "a 1", "a 2"]);
        assert_eq!(world.letters(), []);
    });
}

#[test]
fn drop_oldest_evicts_unstashed_messages_first() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").places(2, OverflowStrategy::DropOldest));
        actor.tell(act(|_, ctx| {
            (1..=2).for_each(|number| ctx.stash(note(number)));
            ctx.unstash_all();
            let until = ResumeCondition::ExternalSignal(SignalKey(7));
            Ok(Flow::Suspend(SuspendReason::UserDefined, until))
        }));
        world.run();
        assert!(matches!(actor.try_tell(note(3)), Ok(SendOutcome::Displaced)));
        assert_eq!(world.letters(), [(DroppedOldest, 1)]);
        actor.signal(SignalKey(7));
        assert_eq!(world.lines(), ["a 2", "a 3"]);
    });
}

#[test]
fn the_counters_count_unstashed_messages_again_and_never_decrease() {
    explore(|world| {
        let actor = world.noter("a");
        let count = |what: &str| world.metric(what, &[("actor", "a"), ("mailbox", "user")]);
        actor.tell(aside(1..=2));
        world.run();
        assert_eq!(
            (count("actor.mailbox.enqueued_total"), count("actor.mailbox.dequeued_total")),
            (1.0, 1.0)
        );
        actor.tell(take_back());
        world.run();
        assert_eq!(
            (count("actor.mailbox.enqueued_total"), count("actor.mailbox.dequeued_total")),
            (4.0, 4.0)
        );
    });
}

#[test]
fn a_graceful_shutdown_waits_for_stashed_messages_and_reports_when_it_times_out() {
    explore(|world| {
        let hears = world.puppet("a").signal(|_, ctx| {
            ctx.unstash_all();
            Ok(Flow::Continue)
        });
        let actor = world.spawn(hears);
        actor.tell(aside(1..=1));
        actor.tell(go(|_, ctx| ctx.set_timer(TimerId(1), MS * 20, Repeat::Once)));
        world.run();
        let ended = world.runtime.block_on(world.system.graceful_shutdown(MS * 100));
        assert_eq!((ended.drained, world.lines()), (true, vec!["a 1".to_owned()]));
    });
    explore(|world| {
        world.noter("a").tell(aside(1..=1));
        world.run();
        let ended = world.runtime.block_on(world.system.graceful_shutdown(MS * 100));
        assert_eq!(
            (ended, world.letters()),
            (ShutdownReport { drained: false, abandoned: 0 }, vec![(Stashed, 1)])
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_threads_every_stashed_message_is_handled_once_and_in_order() {
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap());
    let system = ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap();
    let actor = system.spawn(&Props::new(Sluice::default).build()).unwrap();
    for number in 0..10_000 {
        actor.send(Told::Number(number)).await.unwrap();
    }
    let seen = actor.ask(Told::Read).within(Duration::from_secs(30)).await.unwrap();
    assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
    assert_eq!(system.dead_letters_total(), 0);
}

/// Puts numbers aside until it has a hundred, then handles them all.
#[derive(Default)]
struct Sluice {
    open: u32,
    seen: Vec<u32>,
}

enum Told {
    Number(u32),
    Read(Reply<Vec<u32>>),
}

impl Actor for Sluice {
    type Msg = Told;

    fn receive(&mut self, told: Told, ctx: &mut Context<'_, Self>) -> HandlerResult<Told> {
        match told {
            Told::Number(number) if self.open == 0 => {
                ctx.stash(Told::Number(number));
                if ctx.stashed() == 100 {
                    self.open = 100;
                    ctx.unstash_all();
                }
            }
            Told::Number(number) => {
                self.seen.push(number);
                self.open -= 1;
            }
            Told::Read(reply) => drop(reply.send(std::mem::take(&mut self.seen))),
        }
        Ok(Flow::Continue)
    }
}

/// Has an actor put notes of these numbers aside.
fn aside(numbers: std::ops::RangeInclusive<u32>) -> Msg {
    go(move |_, ctx| numbers.for_each(|number| ctx.stash(note(number))))
}

fn take_back() -> Msg {
    go(|_, ctx| ctx.unstash_all())
}

/// An actor that may put this many messages aside.
fn limited(world: &World, stash_max: usize) -> ActorRef<Msg> {
    world.spawn(world.puppet("a").stash_max(stash_max))
}
