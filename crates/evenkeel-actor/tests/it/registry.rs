//! Name registry: a name is unique, typed by its actor's messages, and freed when the actor stops.

use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn an_actor_is_found_by_its_name() {
    explore(|harness| {
        let names = harness.system.names();
        let actor = harness.recorder("a");
        assert_eq!(names.register("printer", &actor), Ok(()));
        assert_eq!(names.register("plotter", &actor), Ok(()), "an actor may have several names");
        let found = names.find::<Msg>("printer").unwrap();
        assert!(found.is(&actor));
        found.tell(record(1));
        names.find("plotter").unwrap().tell(record(2));
        assert_eq!(harness.lines(), ["a 1", "a 2"]);
    });
}

#[test]
fn a_taken_name_is_rejected_until_it_is_unregistered() {
    explore(|harness| {
        let names = harness.system.names();
        let first = harness.recorder("a");
        let second = harness.recorder("b");
        names.register("printer", &first).unwrap();
        let error = names.register("printer", &second).unwrap_err();
        assert_eq!(error, RegisterError::Taken { by: first.index() });
        assert_eq!(error.to_string(), format!("the name is taken by actor {}", first.index()));
        assert_eq!(
            names.register("printer", &first),
            Err(error),
            "an actor cannot register the same name twice"
        );
        assert_eq!(names.unregister("printer"), Some(first.index()));
        assert_eq!(names.unregister("printer"), None);
        assert_eq!(names.register("printer", &second), Ok(()));
        assert!(names.find::<Msg>("printer").unwrap().is(&second));
    });
}

#[test]
fn a_wrong_message_type_is_an_error_that_names_the_accepted_type() {
    explore(|harness| {
        let names = harness.system.names();
        names.register("printer", &harness.recorder("a")).unwrap();
        let error = names.find::<u32>("printer").unwrap_err();
        let accepts = std::any::type_name::<Msg>();
        assert_eq!(error, FindError::WrongMessageType { accepts });
        assert_eq!(error.to_string(), format!("the actor with that name accepts messages of type {accepts}"));
        assert_eq!(names.find::<Msg>("unknown").unwrap_err(), FindError::NoSuchName);
    });
}

#[test]
fn a_name_is_free_when_its_actor_has_stopped_although_references_remain() {
    explore(|harness| {
        let names = harness.system.names();
        let old = harness.recorder("a");
        let new = harness.recorder("b");
        names.register("printer", &old).unwrap();
        old.stop(StopMode::Now);
        harness.run();
        assert_eq!(names.register("plotter", &old), Err(RegisterError::Stopped));
        assert_eq!(names.register("printer", &new), Ok(()));
        assert!(names.find::<Msg>("printer").unwrap().is(&new));
    });
}

#[test]
fn a_name_never_resolves_to_a_later_actor_in_the_same_slot() {
    explore(|harness| {
        let names = harness.system.names();
        let old = harness.recorder("a");
        let slot = old.index().slot;
        names.register("printer", &old).unwrap();
        old.stop(StopMode::Now);
        drop(old);
        harness.run();
        let new = harness.recorder("b");
        assert_eq!((new.index().slot, new.index().generation), (slot, 1), "the slot is reused");
        assert_eq!(names.find::<Msg>("printer").unwrap_err(), FindError::NoSuchName);
        assert_eq!(names.unregister("printer"), None);
    });
}

#[test]
fn the_name_is_free_when_watchers_are_notified() {
    explore(|harness| {
        let heir = harness.puppet("heir").signal(|signal, ctx| {
            assert!(matches!(signal, Signal::Terminated { .. }));
            ctx.names().register("printer", &ctx.me()).unwrap();
            Ok(Flow::Continue)
        });
        let actor = harness.recorder("a");
        let heir = harness.spawn(heir);
        harness.system.names().register("printer", &actor).unwrap();
        let watched = actor.clone();
        heir.tell(run(move |_, ctx| ctx.watch(&watched)));
        harness.run();
        actor.stop(StopMode::Now);
        harness.run();
        assert!(harness.system.names().find::<Msg>("printer").unwrap().is(&heir));
    });
}

#[test]
fn a_restart_keeps_the_name() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.recorder("a");
        harness.system.names().register("printer", &actor).unwrap();
        actor.tell(fail("broken"));
        harness.run();
        assert!(harness.system.names().find::<Msg>("printer").unwrap().is(&actor));
    });
}

#[test]
fn an_actor_can_register_itself_before_its_first_message_or_fail() {
    explore_with(supervised(decided_by(|_| guardian::SupervisionDirective::Stop)), |harness| {
        let named = || {
            harness.puppet("a").started(|_, ctx| match ctx.names().register("printer", &ctx.me()) {
                Ok(()) => Ok(Flow::Continue),
                Err(error) => Err(ActorError::new(error.to_string())),
            })
        };
        let first = harness.spawn(named());
        let second = harness.spawn(named());
        assert_eq!((first.state(), second.state()), (ActorState::Running, ActorState::Stopped));
        assert!(harness.system.names().find::<Msg>("printer").unwrap().is(&first));
    });
}

#[test]
fn the_number_of_names_is_limited_and_stopped_actors_do_not_count() {
    let config = ActorSystemConfig { names_max: 100, ..config() };
    explore_with(config, |harness| {
        let names = harness.system.names();
        let long_lived = harness.recorder("a");
        let short_lived = harness.recorder("b");
        (0..60).for_each(|number| names.register(&format!("lasting {number}"), &long_lived).unwrap());
        (0..40).for_each(|number| names.register(&format!("passing {number}"), &short_lived).unwrap());
        assert_eq!(names.register("one more", &long_lived), Err(RegisterError::Full { names_max: 100 }));
        short_lived.stop(StopMode::Now);
        harness.run();
        (0..40).for_each(|number| names.register(&format!("new {number}"), &long_lived).unwrap());
        let error = names.register("one more", &long_lived).unwrap_err();
        assert_eq!(error.to_string(), "the registry is full: 100 names");
        assert!((0..60).all(|number| names.find::<Msg>(&format!("lasting {number}")).is_ok()));
    });
}

#[test]
fn the_length_of_a_name_is_limited() {
    let harness = Harness::new(runtime::test::TestOptions::new(0), config());
    let names = harness.system.names();
    let actor = harness.recorder("a");
    let longest = "n".repeat(NAME_LEN_MAX);
    assert_eq!(names.register(&longest, &actor), Ok(()));
    assert_eq!(names.register(&(longest + "n"), &actor), Err(RegisterError::Length { len: 257 }));
    let error = names.register("", &actor).unwrap_err();
    assert_eq!(error.to_string(), "a name has 1 to 256 bytes, not 0");
}

#[test]
fn an_actor_of_another_system_cannot_be_registered() {
    let [here, there] = [0, 1].map(|seed| Harness::new(runtime::test::TestOptions::new(seed), config()));
    let stranger = there.recorder("a");
    assert_eq!(here.system.names().register("a", &stranger), Err(RegisterError::OtherSystem));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_many_threads_registers_a_contested_name() {
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap());
    let system = ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap();
    for _ in 0..50 {
        let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(spawn_rival(system.clone()))).collect();
        let mut winners = Vec::new();
        for task in tasks {
            winners.extend(task.await.unwrap());
        }
        assert_eq!(winners.len(), 1);
        let found = system.names().find::<Msg>("throne").unwrap();
        assert!(found.is(&winners[0]));
        found.stop(StopMode::Now);
        let freed = async {
            while system.names().find::<Msg>("throne").is_ok() {
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(30), freed).await.is_ok(), "the name is not free");
    }
}

/// Spawns an actor and registers it under the name; returns it if that succeeded.
async fn spawn_rival(system: ReadyQueueScheduler) -> Option<ActorRef<Msg>> {
    let actor = system.spawn(&puppet("rival", &Log::default()).props()).unwrap();
    system.names().register("throne", &actor).ok().map(|()| actor)
}
