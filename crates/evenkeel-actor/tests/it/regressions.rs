//! Regressions found in review: memory that outlived its owners, and waits that never ended.

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
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(3_600_000 * MS))));
        harness.advance_ms(10);
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(10 * MS))));
        harness.advance_ms(15);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn a_receive_timeout_removed_and_set_again_fires_in_time() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(3_600_000 * MS))));
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(None)));
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(10 * MS))));
        harness.advance_ms(15);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn a_restarted_actor_that_sets_a_receive_timeout_receives_it() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.spawn(harness.puppet("a").started(|me, ctx| {
            let span = if me.incarnation == 1 { 3_600_000 * MS } else { 10 * MS };
            ctx.set_receive_timeout(Some(span));
            Ok(Flow::Continue)
        }));
        actor.tell(fail("once"));
        harness.advance_ms(15);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn a_stopped_actor_frees_its_slot_whatever_its_receive_timeout() {
    let config = ActorSystemConfig { actors_max: 3, timers_max: 3, ..config() };
    explore_with(config, |harness| {
        for _ in 0..10 {
            let actor = harness.recorder("a");
            actor.tell(run(|_, ctx| assert!(ctx.set_receive_timeout(Some(3_600_000 * MS)))));
            actor.stop(StopMode::Drained);
            drop(actor);
            harness.run();
        }
    });
}

#[test]
fn a_stopped_watcher_frees_its_slot() {
    let config = ActorSystemConfig { actors_max: 3, ..config() };
    explore_with(config, |harness| {
        let watched = harness.recorder("watched");
        for _ in 0..10 {
            let watcher = harness.recorder("watcher");
            let target = watched.clone();
            watcher.tell(run(move |_, ctx| ctx.watch(&target)));
            watcher.stop(StopMode::Drained);
            drop(watcher);
            harness.run();
        }
    });
}

#[test]
fn an_unanswered_ask_fails_when_the_system_stops() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(1));
        harness.run();
        let ask = actor.ask(|reply| Msg::Ask(1, reply));
        harness.system.force_stop();
        harness.run();
        let answer = harness.runtime.try_block_on(ask).expect("the ask does not end");
        assert!(matches!(answer, Err(AskError::NoReply | AskError::TimedOut)), "{answer:?}");
    });
}

#[test]
fn a_queued_ask_fails_when_the_system_stops() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(suspend_until(1));
        harness.run();
        let system = harness.system.clone();
        let stop = async move {
            system.graceful_shutdown(10 * MS).await;
        };
        let both = async { tokio::join!(actor.ask(|reply| Msg::Ask(1, reply)), stop).0 };
        let answer = harness.runtime.try_block_on(both).expect("the ask does not end");
        assert!(matches!(answer, Err(AskError::NoReply | AskError::TimedOut)), "{answer:?}");
    });
}

#[test]
fn a_failing_middleware_factory_leaves_no_actor_behind() {
    explore(|harness| {
        let props = harness.puppet("a").middleware(|| panic!("no middleware")).props();
        let spawned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| harness.system.spawn(&props)));
        assert!(matches!(spawned, Ok(Err(SpawnError::Factory(_)))));
        assert_eq!(harness.system.alive(), 0);
    });
}

#[test]
fn a_deadline_counts_from_the_ask_however_long_the_handler_ran_before() {
    explore(|harness| {
        let silent = harness.recorder("silent");
        silent.tell(suspend_until(1));
        harness.run();
        let handle = harness.runtime.handle();
        let log = harness.log.clone();
        let asker = harness.recorder("asker");
        asker.tell(run(|_, _| {}));
        harness.run();
        asker.tell(act(move |_, _| {
            handle.elapse(500 * MS);
            Ok(Flow::wait(async move {
                let answer = silent.ask(|reply| Msg::Ask(1, reply)).within(100 * MS).await;
                log.record(format!("{} at {}", answer.is_ok(), handle.now().as_nanos() / 1_000_000));
                record(1)
            }))
        }));
        harness.advance_ms(550);
        assert_eq!(harness.lines(), [] as [&str; 0], "too early");
        harness.advance_ms(100);
        assert_eq!(harness.lines(), ["false at 600", "asker 1"]);
    });
}

#[test]
fn an_ask_polled_with_several_wakers_uses_one_wheel_entry() {
    let config = ActorSystemConfig { timers_max: 8, ..config() };
    explore_with(config, |harness| {
        let silent = harness.recorder("silent");
        silent.tell(suspend_until(1));
        harness.run();
        let handle = harness.runtime.handle();
        let log = harness.log.clone();
        let task = async move {
            let mut ask = pin!(silent.ask(|reply| Msg::Ask(1, reply)).within(2_000 * MS));
            poll_fn(|cx| {
                assert!(ask.as_mut().poll(cx).is_pending());
                let mut elsewhere = std::task::Context::from_waker(Waker::noop());
                (0..200).for_each(|_| assert!(ask.as_mut().poll(&mut elsewhere).is_pending()));
                Poll::Ready(())
            })
            .await;
            let answer = ask.await;
            log.record(format!("{answer:?} at {}", handle.now().as_nanos() / 1_000_000));
        };
        harness.system.spawn_task(task).unwrap();
        harness.advance_ms(3_000);
        assert_eq!(harness.lines(), ["Err(TimedOut) at 2000"]);
    });
}

#[test]
fn an_actor_spawned_while_the_system_stops_is_stopped_or_rejected() {
    explore(|harness| {
        let (release, released) = mpsc::channel::<()>();
        let (entered_sender, entered) = mpsc::channel();
        let released = Mutex::new(released);
        let props = harness.puppet("late").factory(move |_| {
            entered_sender.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        });
        let props = props.props();
        let system = harness.system.clone();
        let spawner = std::thread::spawn(move || system.spawn(&props).map(|actor| actor.state()));
        entered.recv().unwrap();
        harness.system.force_stop();
        harness.run();
        release.send(()).unwrap();
        let spawned = spawner.join().unwrap();
        harness.run();
        assert_eq!((harness.system.alive(), harness.runtime.tasks()), (0, 0), "{spawned:?}");
    });
}

#[test]
fn a_worker_dropped_by_its_runtime_leaves_its_work_to_the_others() {
    for (seed, dropped) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let runtime = TestRuntime::with(TestOptions::new(seed));
        let host = DroppingRuntime { inner: runtime.handle(), tasks: DroppableTasks::default() };
        let tasks = host.tasks.clone();
        let system = ActorSystemRunner::new(config()).start(host).unwrap();
        let log = Log::default();
        let actor = system.spawn(&puppet("a", &log).props()).unwrap();
        runtime.run_until_idle();
        tasks.lock().unwrap()[dropped].lock().unwrap().take();
        (0..10).for_each(|number| {
            actor.tell(record(number));
            runtime.run_until_idle();
        });
        assert_eq!(log.take().len(), 10, "seed {seed}, without worker {dropped}");
    }
}

#[test]
fn an_actor_that_finds_its_own_mailbox_full_does_not_wait_for_itself() {
    explore(|harness| {
        let actor = harness.spawn(harness.puppet("a").capacity(1, OverflowStrategy::Reject));
        actor.tell(act(|_, ctx| {
            let me = ctx.me();
            assert!(ctx.try_tell(&me, record(1)).is_ok());
            assert!(ctx.try_tell(&me, record(2)).is_err());
            Ok(Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable))
        }));
        assert_eq!(harness.lines(), ["a 1"]);
    });
}

#[test]
fn a_stopped_system_is_freed() {
    let assert_freed = |use_system: fn(&ReadyQueueScheduler, &Log, &TestRuntime)| {
        for seed in 0..4 {
            let runtime = TestRuntime::with(TestOptions::new(seed));
            let token = Arc::new(());
            let token_ref = Arc::downgrade(&token);
            let log = Log::default();
            let system = ActorSystemRunner::new(config())
                .start(TokenRuntime { inner: runtime.handle(), _token: token })
                .unwrap();
            use_system(&system, &log, &runtime);
            system.force_stop();
            drop(system);
            runtime.run_until_idle();
            drop(runtime);
            assert_eq!(Weak::strong_count(&token_ref), 0, "seed {seed}");
        }
    };
    assert_freed(|_, _, _| {});
    assert_freed(|system, log, runtime| {
        let actor = system.spawn(&puppet("a", log).props()).unwrap();
        let me = actor.clone();
        actor.tell(run(move |_, _| drop(me)));
        runtime.run_until_idle();
    });
    assert_freed(|system, log, runtime| {
        let actor = system.spawn(&puppet("timeout", log).props()).unwrap();
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(1_000 * MS))));
        runtime.run_until_idle();
    });
    assert_freed(|system, log, _| {
        let actor = system.spawn(&puppet("dead letters", log).props()).unwrap();
        let me = actor.clone();
        actor.stop(StopMode::Now);
        actor.tell(run(move |_, _| drop(me)));
    });
    assert_freed(|system, log, runtime| {
        let actor = system.spawn(&puppet("after", log).props()).unwrap();
        system.force_stop();
        runtime.run_until_idle();
        let me = actor.clone();
        actor.tell(run(move |_, _| drop(me)));
    });
}

/// A runtime whose token is dropped with the system that owns it.
struct TokenRuntime {
    inner: TestHandle,
    _token: Arc<()>,
}

impl RuntimeHandle for TokenRuntime {
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

type DroppableTasks = Arc<Mutex<Vec<Arc<Mutex<Option<TaskFuture>>>>>>;

/// A runtime whose tasks the test can drop at any time.
struct DroppingRuntime {
    inner: TestHandle,
    tasks: DroppableTasks,
}

impl RuntimeHandle for DroppingRuntime {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        let task = Arc::new(Mutex::new(Some(task)));
        self.tasks.lock().unwrap().push(task.clone());
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
