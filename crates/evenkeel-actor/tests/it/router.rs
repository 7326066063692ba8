//! Routers: a supervised pool of routees behind one reference.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn round_robin_routes_to_each_routee_in_turn() {
    explore(|harness| {
        let router = router(harness, RouterOptions::round_robin(three()));
        (0..6).for_each(|number| router.tell(record(number)));
        assert_eq!(depths(&router), [2, 2, 2]);
        assert_eq!(router.depth(), 6);
        assert_eq!(sorted(harness.lines()), ["r 0", "r 1", "r 2", "r 3", "r 4", "r 5"]);
    });
}

#[test]
fn least_mailbox_routes_to_the_shortest_mailbox() {
    explore(|harness| {
        let router = router(harness, RouterOptions::least_mailbox(three()));
        let routees = router.routees();
        (0..4).for_each(|number| routees[0].tell(record(number)));
        routees[1].tell(record(4));
        (5..8).for_each(|number| router.tell(record(number)));
        assert_eq!(depths(&router), [4, 2, 2]);
        harness.run();
        (0..6).for_each(|number| router.tell(record(number)));
        assert_eq!(depths(&router), [2, 2, 2], "idle routees take turns");
    });
}

#[test]
fn least_mailbox_skips_suspended_routees_and_counts_awaiting_ones() {
    explore(|harness| {
        let router = router(harness, RouterOptions::least_mailbox(three()));
        let routees = router.routees();
        routees[0].tell(suspend_until(7));
        routees[1].tell(harness.wait_until_ms(1_000, 0));
        harness.run();
        router.tell(suspend_until(8));
        harness.run();
        assert_eq!(routees[2].state(), ActorState::Suspended, "the idle routee was picked next");
        (0..3).for_each(|number| router.tell(record(number)));
        assert_eq!(depths(&router), [0, 3, 0], "an actor that awaits a future resumes by itself");
    });
}

#[test]
fn an_ask_to_a_router_is_answered() {
    explore(|harness| {
        let router = router(harness, RouterOptions::round_robin(three()));
        for number in 0..4 {
            assert_eq!(harness.runtime.block_on(router.ask(|reply| Msg::Ask(number, reply))), Ok(number));
        }
    });
}

#[test]
fn a_router_rejects_only_when_every_routee_is_full() {
    explore(|harness| {
        let props = harness.puppet("r").capacity(2, OverflowStrategy::Reject).props();
        let router = harness.system.spawn_router(&props, RouterOptions::round_robin(three())).unwrap();
        harness.run();
        let routees = router.routees();
        routees[0].tell(record(0));
        routees[0].tell(record(1));
        (2..6).for_each(|number| assert!(matches!(router.try_tell(record(number)), Ok(SendOutcome::Queued))));
        assert!(matches!(router.try_tell(record(6)), Err(SendError::Full(Msg::Record(6)))));
        let ask = router.ask(|reply| Msg::Ask(7, reply));
        router.tell(record(8));
        assert_eq!(harness.runtime.block_on(ask), Err(AskError::Full));
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Full, 8)]);
    });
}

#[test]
fn a_failed_routee_is_restarted_in_its_slot() {
    explore(|harness| {
        let router = router(harness, RouterOptions::round_robin(three()).supervise(restart_immediately()));
        let before = router.routees();
        before[1].tell(fail("broken"));
        before[1].tell(record(1));
        assert_eq!(harness.lines(), ["r 1"]);
        assert!(router.routees().iter().zip(&before).all(|(now, before)| now.is(before)));
    });
}

#[test]
fn a_stopped_routee_is_replaced_while_the_others_serve() {
    explore(|harness| {
        let slow = Supervision::default().with_backoff(Backoff::new(MS * 50, MS * 50, 1, 0).unwrap());
        let router = router(harness, RouterOptions::round_robin(three()).supervise(slow));
        router.routees()[1].tell(act(|_, _| Ok(Flow::Stop)));
        harness.run();
        assert_eq!(router.routees().len(), 2);
        (0..3).for_each(|number| router.tell(record(number)));
        assert_eq!(sorted(harness.lines()), ["r 0", "r 1", "r 2"]);
        harness.advance_ms(60);
        assert_eq!(router.routees().len(), 3);
        (0..3).for_each(|number| router.tell(record(number)));
        assert_eq!(depths(&router), [1, 1, 1]);
        assert_eq!(harness.dead_letters(), []);
    });
}

#[test]
fn a_slot_is_refilled_a_limited_number_of_times_and_the_router_fails_with_the_last_routee() {
    let once = restart_immediately().with_max_restarts(1, Duration::from_secs(60)).unwrap();
    explore_with(supervised(decided_by(|_| guardian::SupervisionDirective::Stop)), |harness| {
        let router = router(harness, RouterOptions::round_robin(three()).supervise(once));
        for left in [3, 2, 2, 1, 1] {
            router.routees()[0].stop(StopMode::Now);
            harness.run();
            assert_eq!(router.routees().len(), left);
        }
        assert_eq!(router.state(), ActorState::Running);
        router.routees()[0].stop(StopMode::Now);
        harness.run();
        assert_eq!((router.state(), harness.system.alive()), (ActorState::Stopped, 0));
        assert!(matches!(router.try_tell(record(1)), Err(SendError::Closed(_))));
        router.tell(record(2));
        assert_eq!(harness.dead_letters(), [(DeadLetterReason::Closed, 2)]);
    });
}

#[test]
fn a_restarted_router_has_all_its_routees_again() {
    explore_with(supervised(restart_immediately()), |harness| {
        let parent = harness.spawn(harness.puppet("parent").supervise(restart_immediately()));
        let router = child_router(harness, &parent, RouterOptions::round_robin(three()));
        let before = router.routees();
        let index = router.index();
        parent.tell(run(move |_, ctx| ctx.command(index, guardian::SupervisionCommand::Restart)));
        harness.run();
        let now = router.routees();
        assert_eq!((now.len(), before[0].state()), (3, ActorState::Stopped));
        router.tell(record(1));
        assert_eq!(harness.lines(), ["r 1"]);
    });
}

#[test]
fn a_routee_that_cannot_be_respawned_is_retried() {
    explore(|harness| {
        let props = harness
            .puppet("r")
            .factory(|incarnation| assert!(![4, 5].contains(&incarnation), "factory failed"))
            .props();
        let options = RouterOptions::round_robin(three()).supervise(restart_immediately());
        let router = harness.system.spawn_router(&props, options).unwrap();
        harness.run();
        router.routees()[2].stop(StopMode::Now);
        harness.run();
        assert_eq!(router.routees().len(), 3, "the sixth spawn succeeded");
    });
}

#[test]
fn a_drained_stop_of_a_router_handles_every_accepted_message() {
    explore(|harness| {
        let router = router(harness, RouterOptions::round_robin(three()));
        (0..9).for_each(|number| router.tell(record(number)));
        router.stop(StopMode::Drained);
        assert_eq!(harness.lines().len(), 9);
        assert_eq!((router.state(), harness.system.alive()), (ActorState::Stopped, 0));
        assert_eq!(harness.dead_letters(), []);
    });
}

#[test]
fn an_immediate_stop_of_a_router_stops_its_routees_and_closes_it() {
    explore(|harness| {
        let router = router(harness, RouterOptions::round_robin(three()));
        router.stop(StopMode::Now);
        harness.run();
        assert_eq!((router.state(), harness.system.alive()), (ActorState::Stopped, 0));
        let ask = router.ask(|reply| Msg::Ask(1, reply));
        assert_eq!(harness.runtime.block_on(ask), Err(AskError::Closed));
    });
}

#[test]
fn a_parent_is_notified_of_its_routers_termination() {
    explore(|harness| {
        let parent = harness.recorder("parent");
        let router = child_router(harness, &parent, RouterOptions::least_mailbox(three()));
        router.stop(StopMode::Drained);
        assert_eq!(harness.lines(), ["parent terminated: stopped"]);
        assert_eq!(harness.system.alive(), 1);
    });
}

#[test]
fn a_router_whose_routees_cannot_be_spawned_leaves_no_actor_behind() {
    explore(|harness| {
        let spawn = |props, size| {
            let size = NonZeroUsize::new(size).unwrap();
            harness.system.spawn_router(&props, RouterOptions::round_robin(size)).unwrap_err()
        };
        let broken =
            harness.puppet("r").factory(|incarnation| assert!(incarnation < 3, "factory failed")).props();
        let error = spawn(broken, 3);
        assert_eq!(error, RouterError::Spawn(SpawnError::Factory(ActorError::panicked("factory failed"))));
        let error = spawn(harness.puppet("r").props(), 1025);
        assert_eq!(error.to_string(), "router size is 1025, above the limit of 1024");
        harness.run();
        assert_eq!(harness.system.alive(), 0);
    });
}

#[test]
fn a_stopped_router_and_its_routees_are_freed() {
    explore(|harness| {
        let alive = Arc::new(());
        let seen = alive.clone();
        let props = harness.puppet("r").factory(move |_| drop(seen.clone())).props();
        let router = harness.system.spawn_router(&props, RouterOptions::round_robin(three())).unwrap();
        drop(props);
        harness.run();
        assert_eq!(Arc::strong_count(&alive), 2);
        router.stop(StopMode::Now);
        drop(router);
        harness.run();
        assert_eq!(Arc::strong_count(&alive), 1);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_threads_every_ask_is_answered_while_routees_come_and_go() {
    // An ask that is kept as a dead letter would not fail, and its asker would wait for it.
    let config = ActorSystemConfig { dead_letters_max: 0, ..config() };
    let system = ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap();
    let patient = restart_immediately().with_max_restarts(1_000, Duration::from_secs(60)).unwrap();
    for options in [RouterOptions::round_robin(three()), RouterOptions::least_mailbox(three())] {
        let props = puppet("r", &Log::default()).props();
        let router = system.spawn_router(&props, options.supervise(patient)).unwrap();
        for number in 0..1_000 {
            if number % 10 == 0 {
                // A message routed to it just before is dead-lettered; the loop below retries its ask.
                router.routees().first().unwrap().stop(StopMode::Now);
            }
            let mut answer = Err(AskError::NoReply);
            while answer.is_err() {
                answer = router.ask(|reply| Msg::Ask(number, reply)).await;
            }
            assert_eq!(answer, Ok(number));
        }
        router.stop(StopMode::Drained);
    }
    let report = system.graceful_shutdown(Duration::from_secs(30)).await;
    assert_eq!(report.abandoned, 0);
}

fn three() -> NonZeroUsize {
    NonZeroUsize::new(3).unwrap()
}

/// Spawns a router of recorders and runs until they have started.
fn router(harness: &Harness, options: RouterOptions) -> Router<Msg> {
    let router = harness.system.spawn_router(&harness.puppet("r").props(), options).unwrap();
    harness.run();
    router
}

/// Spawns a router as a child of an actor and runs until it has started.
fn child_router(harness: &Harness, parent: &ActorRef<Msg>, options: RouterOptions) -> Router<Msg> {
    let props = harness.puppet("r").props();
    let ask = parent.ask(|reply| run(move |_, ctx| reply.send(ctx.spawn_router(&props, options)).is_ok()));
    let router = harness.runtime.block_on(ask).unwrap().unwrap();
    harness.run();
    router
}

/// Returns the mailbox depth of each routee.
fn depths(router: &Router<Msg>) -> Vec<usize> {
    router.routees().iter().map(ActorRef::depth).collect()
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}
