//! Spawn middleware, mailbox presets, and the middleware a mailbox supplies.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_actor::runtime::test::{TestOptions, TestRuntime};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn before_hooks_run_in_order_and_after_hooks_in_reverse() {
    let (harness, log) = observed(&["outer", "inner"], &[]);
    let actor = harness.recorder("a");
    let spawned = format!("spawned {}", actor.index());
    assert_eq!(
        log.take(),
        ["outer sees a", "inner sees a", &format!("inner: {spawned}"), &format!("outer: {spawned}")]
    );
}

#[test]
fn a_rejection_is_returned_to_the_spawner_and_the_factory_is_not_called() {
    let (harness, log) = observed(&["outer", "guard", "inner"], &["b"]);
    let called = Arc::new(AtomicU32::new(0));
    let counter = called.clone();
    let puppet = harness.puppet("b").factory(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let props = puppet.props();
    let error = harness.system.spawn(&props).unwrap_err();
    assert_eq!(error, SpawnError::Refused(ActorError::new("guard rejects b")));
    assert_eq!(error.to_string(), "rejected by spawn middleware: guard rejects b");
    let expected = ["outer sees b", "guard sees b", "outer: rejected by spawn middleware: guard rejects b"];
    assert_eq!(log.take(), expected, "inner middleware is not called");
    assert_eq!((called.load(Ordering::Relaxed), harness.system.alive()), (0, 0));
}

#[test]
fn a_failed_spawn_is_reported_to_the_middleware_that_allowed_it() {
    let (harness, log) = observed(&["outer"], &[]);
    let props = harness.puppet("a").factory(|_| panic!("factory failed")).props();
    assert!(harness.system.spawn(&props).is_err());
    let failure = "outer: the factory created no actor: the handler panicked: factory failed";
    assert_eq!(log.take(), ["outer sees a", failure]);
}

#[test]
fn middleware_wraps_children_tasks_and_routees_but_not_restarts() {
    let (harness, log) = observed(&["m"], &[]);
    let parent = harness.spawn(harness.puppet("parent").supervise(restart_immediately()));
    let child = spawn_child(&harness, &parent, harness.puppet("child"));
    let spawned = |name: &str, index: MailboxIndex| [format!("m sees {name}"), format!("m: spawned {index}")];
    let parents = format!("m sees child of {}", parent.index());
    let [sees, spawned_parent] = spawned("parent", parent.index());
    assert_eq!(log.take(), [sees, spawned_parent, parents, format!("m: spawned {}", child.index())]);
    child.tell(fail("broken"));
    harness.run();
    assert_eq!(log.take(), [""; 0]);
    harness.system.spawn_task(async {}).unwrap();
    assert_eq!(log.take()[0], "m sees task");
    let two = RouterOptions::round_robin(NonZeroUsize::new(2).unwrap());
    let router = harness.system.spawn_router(&harness.puppet("r").props(), two).unwrap();
    let seen: Vec<_> = log.take().into_iter().filter(|line| line.starts_with("m sees")).collect();
    let routee = format!("m sees r of {}", router.index());
    assert_eq!(seen, ["m sees router", &routee, &routee]);
}

#[test]
fn a_panic_in_before_spawn_rejects_and_one_in_after_spawn_is_ignored() {
    let runtime = TestRuntime::with(TestOptions::new(0));
    let runner = ActorSystemRunner::new(config()).spawn_middleware(PanickingMiddleware);
    let harness = Harness { system: runner.start(runtime.handle()).unwrap(), log: Log::default(), runtime };
    let error = harness.system.spawn(&harness.puppet("early").props()).unwrap_err();
    assert_eq!(error, SpawnError::Refused(ActorError::panicked("too early")));
    harness.recorder("late").tell(record(1));
    assert_eq!(harness.lines(), ["late 1"]);
}

#[test]
fn a_preset_chooses_the_mailbox() {
    explore(|harness| {
        let latest = harness.spawn(harness.puppet("a").mailbox(MailboxPreset::Latest.options()));
        (1..=3).for_each(|number| latest.tell(record(number)));
        assert_eq!(harness.lines(), ["a 3"], "older messages are dropped");
        let shedding = Props::new(|| IgnoringActor).mailbox(MailboxPreset::Shedding).build();
        let shedding = harness.system.spawn(&shedding).unwrap();
        let sent: Vec<_> = (0..1026).map(|_| shedding.try_tell(()).unwrap()).collect();
        assert_eq!(
            sent.iter().filter(|sent| **sent == SendOutcome::Discarded).count(),
            2,
            "the reserve for the system takes no capacity from user messages"
        );
    });
}

#[test]
fn actors_without_a_mailbox_setting_get_the_systems_mailbox() {
    let small = ActorSystemConfig { mailbox: MailboxPreset::Small.options(), ..config() };
    explore_with(small, |harness| {
        let accepted = |props: PropsBuilder<IgnoringActor>| {
            let actor = harness.system.spawn(&props.build()).unwrap();
            (0..100).filter(|_| actor.try_tell(()).is_ok()).count()
        };
        assert_eq!(accepted(Props::new(|| IgnoringActor)), 64);
        assert_eq!(accepted(Props::new(|| IgnoringActor).mailbox(MailboxPreset::Default)), 100);
    });
    let invalid = MailboxOptions { reserve_for_system: 80, ..MailboxPreset::Small.options() };
    let invalid = ActorSystemConfig { mailbox: invalid, ..config() };
    let error = ActorSystemRunner::new(invalid).start(TestRuntime::with(TestOptions::new(0)).handle());
    let expected = StartError::Config(InvalidConfig::Mailbox(InvalidMailbox::NoUserCapacity));
    assert_eq!(error.err(), Some(expected));
}

#[test]
fn a_mailbox_supplies_each_actor_with_its_own_middleware() {
    fn make() -> Box<dyn MiddlewareChain> {
        Box::new(AllowOnce(0))
    }
    let hooked = ActorSystemConfig { mailbox: MailboxOptions::default().middleware(make), ..config() };
    assert_eq!(hooked.mailbox.middleware, Some(MiddlewareHook::new(make)));
    explore_with(hooked, |harness| {
        let [left, right] =
            [(); 2].map(|()| harness.system.spawn(&Props::new(|| IgnoringActor).build()).unwrap());
        [&left, &left, &right].into_iter().for_each(|actor| {
            actor.tell(());
            harness.run();
        });
        let status = |actor: &ActorRef<()>| (actor.state(), actor.depth());
        assert_eq!(status(&left), (ActorState::Suspended, 1), "its second run is delayed");
        assert_eq!(status(&right), (ActorState::Running, 0));
    });
}

#[test]
fn the_mailboxs_middleware_wraps_the_actors_own() {
    fn make() -> Box<dyn MiddlewareChain> {
        Box::new(AllowOnce(0))
    }
    explore(|harness| {
        let log = harness.log.clone();
        let own = move || CompositeMiddleware::new().with(RecordingMiddleware(log.clone()));
        let mailbox = MailboxOptions::default().middleware(make);
        let actor = harness.spawn(harness.puppet("a").mailbox(mailbox).middleware(own));
        actor.tell(record(1));
        assert_eq!(harness.lines(), ["own", "a 1"]);
        actor.tell(record(2));
        assert_eq!(harness.lines(), [""; 0], "delayed before the actor's own middleware is called");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_threads_every_spawn_is_seen_and_quotas_hold() {
    let quota = Arc::new(AtomicU32::new(100));
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap());
    let runner = ActorSystemRunner::new(config).spawn_middleware(Quota(quota.clone()));
    let system = runner.start(TokioRuntime::current().unwrap()).unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let system = system.clone();
            tokio::spawn(async move {
                (0..50).filter(|_| system.spawn(&Props::new(|| IgnoringActor).build()).is_ok()).count()
            })
        })
        .collect();
    let mut spawned = 0;
    for task in tasks {
        spawned += task.await.unwrap();
    }
    assert_eq!((spawned, system.alive(), quota.load(Ordering::Relaxed)), (100, 100, 0));
}

/// Creates a harness with one recording spawn middleware per name; `guard` rejects the labels in `rejected`.
fn observed(names: &[&'static str], rejected: &'static [&'static str]) -> (Harness, Log) {
    let runtime = TestRuntime::with(TestOptions::new(0));
    let log = Log::default();
    let runner = names.iter().fold(ActorSystemRunner::new(config()), |runner, name| {
        runner.spawn_middleware(SpawnRecorder { name, log: log.clone(), rejected })
    });
    let system = runner.start(runtime.handle()).unwrap();
    (Harness { system, log: Log::default(), runtime }, log)
}

struct SpawnRecorder {
    name: &'static str,
    log: Log,
    rejected: &'static [&'static str],
}

impl SpawnMiddleware for SpawnRecorder {
    fn before_spawn(&self, ctx: &SpawnContext<'_>) -> Result<(), ActorError> {
        let Self { name, log, rejected } = self;
        let parent = ctx.parent.map(|parent| format!(" of {parent}")).unwrap_or_default();
        log.record(format!("{name} sees {}{parent}", ctx.label));
        if *name == "guard" && rejected.contains(&ctx.label) {
            return Err(ActorError::new(format!("{name} rejects {}", ctx.label)));
        }
        Ok(())
    }

    fn after_spawn(&self, _ctx: &SpawnContext<'_>, spawned: Result<MailboxIndex, &SpawnError>) {
        self.log.record(match spawned {
            Ok(index) => format!("{}: spawned {index}", self.name),
            Err(error) => format!("{}: {error}", self.name),
        });
    }
}

struct PanickingMiddleware;

impl SpawnMiddleware for PanickingMiddleware {
    fn before_spawn(&self, ctx: &SpawnContext<'_>) -> Result<(), ActorError> {
        assert!(ctx.label != "early", "too early");
        Ok(())
    }

    fn after_spawn(&self, _ctx: &SpawnContext<'_>, _spawned: Result<MailboxIndex, &SpawnError>) {
        panic!("too late");
    }
}

/// Allows a limited number of spawns.
struct Quota(Arc<AtomicU32>);

impl SpawnMiddleware for Quota {
    fn before_spawn(&self, _ctx: &SpawnContext<'_>) -> Result<(), ActorError> {
        let acquired = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        acquired.map(drop).map_err(|_| ActorError::new("the quota is used up"))
    }
}

/// Allows one run.
struct AllowOnce(u32);

impl MiddlewareChain for AllowOnce {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.0 += 1;
        if self.0 == 1 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {}
}

/// Records that its before hook was called.
struct RecordingMiddleware(Log);

impl MiddlewareChain for RecordingMiddleware {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.0.record("own");
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {}
}

struct IgnoringActor;

impl Actor for IgnoringActor {
    type Msg = ();

    fn receive(&mut self, _message: (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}
