//! What a stranger found: memory that outlived its owners, and waits that nothing ended.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Poll, Waker};

use evenkeel_actor::runtime::test::{TestHandle, TestOptions, TestRuntime};
use evenkeel_actor::runtime::{RuntimeHandle, RuntimeSpawnError, TaskFuture};
use evenkeel_actor::*;
use evenkeel_policy::time::Instant;

use crate::harness::*;

#[test]
fn a_shortened_receive_timeout_fires_in_time() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(3_600_000 * MS))));
        world.pass(10);
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(10 * MS))));
        world.pass(15);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn a_receive_timeout_removed_and_set_again_fires_in_time() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(3_600_000 * MS))));
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(None)));
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(10 * MS))));
        world.pass(15);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn a_restarted_actor_that_sets_a_receive_timeout_receives_it() {
    explore_with(supervised(at_once()), |world| {
        let actor = world.spawn(world.puppet("a").started(|me, ctx| {
            let span = if me.life == 1 { 3_600_000 * MS } else { 10 * MS };
            ctx.set_receive_timeout(Some(span));
            Ok(Flow::Continue)
        }));
        actor.tell(fail("once"));
        world.pass(15);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn a_stopped_actor_frees_its_slot_whatever_its_receive_timeout() {
    let config = ActorSystemConfig { actors_max: 3, timers_max: 3, ..config() };
    explore_with(config, |world| {
        for _ in 0..10 {
            let actor = world.noter("a");
            actor.tell(go(|_, ctx| assert!(ctx.set_receive_timeout(Some(3_600_000 * MS)))));
            actor.stop(StopMode::Drained);
            drop(actor);
            world.run();
        }
    });
}

#[test]
fn a_stopped_watcher_frees_its_slot() {
    let config = ActorSystemConfig { actors_max: 3, ..config() };
    explore_with(config, |world| {
        let watched = world.noter("watched");
        for _ in 0..10 {
            let watcher = world.noter("watcher");
            let whom = watched.clone();
            watcher.tell(go(move |_, ctx| ctx.watch(&whom)));
            watcher.stop(StopMode::Drained);
            drop(watcher);
            world.run();
        }
    });
}

#[test]
fn an_unanswered_ask_fails_when_the_system_stops() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(hold(1));
        world.run();
        let question = actor.ask(|reply| Msg::Ask(1, reply));
        world.system.force_stop();
        world.run();
        let answer = world.runtime.try_block_on(question).expect("nobody ends the wait");
        assert!(matches!(answer, Err(AskError::NoReply | AskError::TimedOut)), "{answer:?}");
    });
}

#[test]
fn a_queued_ask_fails_when_the_system_stops() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(hold(1));
        world.run();
        let system = world.system.clone();
        let stop = async move {
            system.graceful_shutdown(10 * MS).await;
        };
        let both = async { tokio::join!(actor.ask(|reply| Msg::Ask(1, reply)), stop).0 };
        let answer = world.runtime.try_block_on(both).expect("nobody ends the wait");
        assert!(matches!(answer, Err(AskError::NoReply | AskError::TimedOut)), "{answer:?}");
    });
}

#[test]
fn a_failing_middleware_factory_leaves_no_actor_behind() {
    explore(|world| {
        let props = world.puppet("a").middleware(|| panic!("no middleware")).props();
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.system.spawn(&props)));
        assert!(matches!(made, Ok(Err(SpawnError::Factory(_)))));
        assert_eq!(world.system.alive(), 0);
    });
}

#[test]
fn a_deadline_counts_from_the_ask_however_long_the_handler_ran_before() {
    explore(|world| {
        let silent = world.noter("silent");
        silent.tell(hold(1));
        world.run();
        let handle = world.runtime.handle();
        let log = world.log.clone();
        let asker = world.noter("asker");
        asker.tell(go(|_, _| {}));
        world.run();
        asker.tell(act(move |_, _| {
            handle.elapse(500 * MS);
            Ok(Flow::wait(async move {
                let answer = silent.ask(|reply| Msg::Ask(1, reply)).within(100 * MS).await;
                log.note(format!("{} at {}", answer.is_ok(), handle.now().as_nanos() / 1_000_000));
                note(1)
            }))
        }));
        world.pass(550);
        assert_eq!(world.lines(), [] as [&str; 0], "too early");
        world.pass(100);
        assert_eq!(world.lines(), ["false at 600", "asker 1"]);
    });
}

#[test]
fn an_ask_polled_by_several_tasks_uses_one_wheel_entry() {
    let config = ActorSystemConfig { timers_max: 8, ..config() };
    explore_with(config, |world| {
        let silent = world.noter("silent");
        silent.tell(hold(1));
        world.run();
        let handle = world.runtime.handle();
        let log = world.log.clone();
        let task = async move {
            let mut question = pin!(silent.ask(|reply| Msg::Ask(1, reply)).within(2_000 * MS));
            poll_fn(|cx| {
                assert!(question.as_mut().poll(cx).is_pending());
                let mut elsewhere = std::task::Context::from_waker(Waker::noop());
                (0..200).for_each(|_| assert!(question.as_mut().poll(&mut elsewhere).is_pending()));
                Poll::Ready(())
            })
            .await;
            let answer = question.await;
            log.note(format!("{answer:?} at {}", handle.now().as_nanos() / 1_000_000));
        };
        world.system.spawn_task(task).unwrap();
        world.pass(3_000);
        assert_eq!(world.lines(), ["Err(TimedOut) at 2000"]);
    });
}

#[test]
fn an_actor_spawned_while_the_system_stops_is_stopped_or_rejected() {
    explore(|world| {
        let (go_on, wait) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let wait = Mutex::new(wait);
        let props = world.puppet("late").factory(move |_| {
            begun.send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
        });
        let props = props.props();
        let system = world.system.clone();
        let spawner = std::thread::spawn(move || system.spawn(&props).map(|actor| actor.state()));
        begins.recv().unwrap();
        world.system.force_stop();
        world.run();
        go_on.send(()).unwrap();
        let made = spawner.join().unwrap();
        world.run();
        assert_eq!((world.system.alive(), world.runtime.tasks()), (0, 0), "{made:?}");
    });
}

#[test]
fn a_worker_dropped_by_its_runtime_leaves_its_work_to_the_others() {
    for (seed, dropped) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let runtime = TestRuntime::with(TestOptions::new(seed));
        let host = Murderous { inner: runtime.handle(), victims: Victims::default() };
        let victims = host.victims.clone();
        let system = ActorSystemRunner::new(config()).start(host).unwrap();
        let log = Log::default();
        let actor = system.spawn(&puppet("a", &log).props()).unwrap();
        runtime.run_until_idle();
        victims.lock().unwrap()[dropped].lock().unwrap().take();
        (0..10).for_each(|number| {
            actor.tell(note(number));
            runtime.run_until_idle();
        });
        assert_eq!(log.take().len(), 10, "seed {seed}, without worker {dropped}");
    }
}

#[test]
fn an_actor_that_finds_its_own_mailbox_full_does_not_wait_for_itself() {
    explore(|world| {
        let actor = world.spawn(world.puppet("a").places(1, OverflowStrategy::Reject));
        actor.tell(act(|_, ctx| {
            let me = ctx.me();
            assert!(ctx.try_tell(&me, note(1)).is_ok());
            assert!(ctx.try_tell(&me, note(2)).is_err());
            Ok(Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable))
        }));
        assert_eq!(world.lines(), ["a 1"]);
    });
}

#[test]
fn a_stopped_system_is_freed() {
    let forgotten = |use_it: fn(&ReadyQueueScheduler, &Log, &TestRuntime)| {
        for seed in 0..4 {
            let runtime = TestRuntime::with(TestOptions::new(seed));
            let token = Arc::new(());
            let held = Arc::downgrade(&token);
            let log = Log::default();
            let system = ActorSystemRunner::new(config())
                .start(Held { inner: runtime.handle(), _token: token })
                .unwrap();
            use_it(&system, &log, &runtime);
            system.force_stop();
            drop(system);
            runtime.run_until_idle();
            drop(runtime);
            assert_eq!(Weak::strong_count(&held), 0, "seed {seed}");
        }
    };
    forgotten(|_, _, _| {});
    forgotten(|system, log, runtime| {
        let actor = system.spawn(&puppet("a", log).props()).unwrap();
        let me = actor.clone();
        actor.tell(go(move |_, _| drop(me)));
        runtime.run_until_idle();
    });
    forgotten(|system, log, runtime| {
        let actor = system.spawn(&puppet("timeout", log).props()).unwrap();
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(1_000 * MS))));
        runtime.run_until_idle();
    });
    forgotten(|system, log, _| {
        let actor = system.spawn(&puppet("letters", log).props()).unwrap();
        let me = actor.clone();
        actor.stop(StopMode::Now);
        actor.tell(go(move |_, _| drop(me)));
    });
    forgotten(|system, log, runtime| {
        let actor = system.spawn(&puppet("after", log).props()).unwrap();
        system.force_stop();
        runtime.run_until_idle();
        let me = actor.clone();
        actor.tell(go(move |_, _| drop(me)));
    });
}

/// A runtime that tells, by its token, whether its system is still there.
struct Held {
    inner: TestHandle,
    _token: Arc<()>,
}

impl RuntimeHandle for Held {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        self.inner.spawn(task)
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn sleep_until(&self, at: Instant) -> TaskFuture {
        self.inner.sleep_until(at)
    }

    fn yield_now(&self) -> TaskFuture {
        self.inner.yield_now()
    }
}

type Victims = Arc<Mutex<Vec<Arc<Mutex<Option<TaskFuture>>>>>>;

/// A runtime whose tasks may be dropped at any time.
struct Murderous {
    inner: TestHandle,
    victims: Victims,
}

impl RuntimeHandle for Murderous {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        let task = Arc::new(Mutex::new(Some(task)));
        self.victims.lock().unwrap().push(task.clone());
        self.inner.spawn(Box::pin(poll_fn(move |cx| match task.lock().unwrap().as_mut() {
            Some(task) => task.as_mut().poll(cx),
            None => Poll::Ready(()),
        })))
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn sleep_until(&self, at: Instant) -> TaskFuture {
        self.inner.sleep_until(at)
    }

    fn yield_now(&self) -> TaskFuture {
        self.inner.yield_now()
    }
}
