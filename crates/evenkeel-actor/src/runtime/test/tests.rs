//! The test runtime: poll order, virtual time, limits.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU32, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::actor::{Actor, Flow, HandlerResult, Signal};
use crate::actor_ref::ActorRef;
use crate::context::Context as ActorContext;
use crate::guardian::ActorError;
use crate::props::Props;
use crate::reply::AskError;
use crate::stop::Termination;
use crate::sync::Lock;
use crate::system::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler};
use crate::timer::{Repeat, TimerId};
use alloc::vec::Vec;

const MS: Duration = Duration::from_millis(1);

#[test]
fn the_same_seed_produces_the_same_events_at_the_same_times() {
    // Miri takes a minute per seed.
    for seed in 0..if cfg!(miri) { 2 } else { 20 } {
        let first = events(seed);
        assert_eq!(first.len(), 3 * (8 * 5 + 4), "seed {seed}");
        assert_eq!(first, events(seed), "seed {seed}");
    }
}

#[test]
fn different_seeds_produce_different_orders() {
    // Miri takes a minute per seed.
    let seeds = if cfg!(miri) { 4 } else { 20 };
    let mut orders: Vec<_> = (0..seeds).map(events).collect();
    orders.sort();
    orders.dedup();
    assert!(3 * seeds / 4 < orders.len() as u64, "only {} orders of {seeds}", orders.len());
}

#[test]
fn any_runnable_task_may_be_next() {
    let first = |seed| {
        let runtime = TestRuntime::new(seed);
        let log = log();
        (0..3).for_each(|task| spawn(&runtime, push(&log, task)));
        runtime.run_until_idle();
        log.with(|log| log[0])
    };
    let mut firsts: Vec<u64> = (0..50).map(first).collect();
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts, [0, 1, 2]);
}

#[test]
fn time_advances_from_sleep_to_sleep_in_order() {
    let runtime = TestRuntime::new(1);
    let log = log();
    for ms in [30, 10, 20, 10] {
        spawn(&runtime, push_after(&runtime, &log, ms));
    }
    runtime.run_until_idle();
    assert_eq!((take(&log), runtime.now()), (vec![], Instant::ORIGIN), "time does not advance by itself");
    runtime.advance(10 * MS);
    assert_eq!(take(&log), [10, 10]);
    runtime.advance(15 * MS);
    assert_eq!((take(&log), runtime.now()), (vec![20], Instant::from_millis(25)));
    runtime.advance(Duration::from_secs(1));
    assert_eq!((take(&log), runtime.now()), (vec![30], Instant::from_millis(1_025)));
}

#[test]
fn a_task_that_sleeps_in_a_loop_wakes_at_every_interval() {
    let runtime = TestRuntime::new(1);
    let beats = Arc::new(AtomicU32::new(0));
    let handle = runtime.handle();
    let counted = beats.clone();
    spawn(&runtime, async move {
        loop {
            handle.sleep_until(handle.now() + 10 * MS).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    runtime.advance(Duration::from_secs(1));
    assert_eq!(beats.load(Ordering::Relaxed), 100);
}

#[test]
fn block_on_advances_time_only_as_far_as_needed() {
    let runtime = TestRuntime::new(1);
    let handle = runtime.handle();
    let woken = runtime.block_on(async {
        handle.sleep_until(Instant::from_secs(3_600)).await;
        handle.now()
    });
    assert_eq!(woken, Instant::from_secs(3_600));
}

#[test]
fn time_elapsed_in_a_handler_delays_due_sleepers() {
    let runtime = TestRuntime::new(1);
    let log = log();
    spawn(&runtime, push_after(&runtime, &log, 5));
    runtime.run_until_idle();
    runtime.handle().elapse(20 * MS);
    assert_eq!(take(&log), []);
    runtime.run_until_idle();
    assert_eq!((take(&log), runtime.now()), (vec![5], Instant::from_millis(20)));
}

#[test]
fn a_dropped_sleep_is_cancelled() {
    let runtime = TestRuntime::new(1);
    let mut sleep = runtime.handle().sleep_until(Instant::from_secs(1));
    runtime.block_on(async {
        let polled = core::future::poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx))).await;
        assert_eq!(polled, Poll::Pending);
    });
    drop(sleep);
    assert_eq!(runtime.try_block_on(core::future::pending::<()>()), Err(deadlock(1, 0)));
}

#[test]
fn a_deadlock_is_reported_with_the_seed() {
    let runtime = TestRuntime::new(77);
    spawn(&runtime, core::future::pending());
    let stuck = runtime.try_block_on(core::future::pending::<()>());
    assert_eq!(stuck, Err(deadlock(77, 1)));
    let message = panic_of(|| runtime.block_on(core::future::pending::<()>()));
    assert_eq!(message, "deadlock: no task is runnable and none sleeps (seed 77, at 0ns, 1 tasks)");
}

#[test]
fn a_livelock_is_reported_after_the_allowed_steps() {
    let options = TestOptions { steps_max: 1_000, ..TestOptions::new(3) };
    let spinning = || {
        let runtime = TestRuntime::with(options);
        let handle = runtime.handle();
        spawn(&runtime, async move {
            loop {
                handle.yield_now().await;
            }
        });
        runtime
    };
    let expected = "livelock: not finished after 1000 steps (seed 3, at 0ns, 1 tasks)";
    assert_eq!(panic_of(|| spinning().run_until_idle()), expected);
    assert_eq!(panic_of(|| spinning().advance(MS)), expected);
    assert_eq!(panic_of(|| spinning().block_on(core::future::pending::<()>())), expected);
}

#[test]
#[cfg_attr(miri, ignore = "the maximum number of tasks takes Miri hours")]
fn tasks_are_limited_and_their_slots_are_reused() {
    let runtime = TestRuntime::new(1);
    let pending = || runtime.handle().spawn(Box::pin(core::future::ready(())));
    (0..TASKS_MAX).for_each(|_| pending().unwrap());
    assert_eq!(pending(), Err(RuntimeSpawnError));
    runtime.run_until_idle();
    assert_eq!((runtime.tasks(), pending()), (0, Ok(())));
}

#[test]
fn a_handle_that_outlives_its_runtime_spawns_nothing() {
    let handle = TestRuntime::new(1).handle();
    assert_eq!(handle.spawn(Box::pin(async {})), Err(RuntimeSpawnError));
}

#[test]
fn tasks_are_dropped_with_their_runtime() {
    let held = Arc::new(());
    let runtime = TestRuntime::new(1);
    let inside = held.clone();
    spawn(&runtime, async move {
        core::future::pending::<()>().await;
        drop(inside);
    });
    runtime.run_until_idle();
    assert_eq!(Arc::strong_count(&held), 2);
    drop(runtime);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_probe_receives_messages_in_order_and_at_their_time() {
    let (runtime, system) = start_system(5);
    let probe = Probe::new(&runtime, &system).unwrap();
    probe.actor().tell(1);
    probe.actor().tell(2);
    probe.expect_eq(&1, Duration::ZERO);
    assert_eq!(probe.expect(Duration::ZERO), 2);
    let to = probe.actor().clone();
    let handle = runtime.handle();
    system
        .spawn_task(async move {
            handle.sleep_until(Instant::from_millis(50)).await;
            to.tell(3);
        })
        .unwrap();
    probe.expect_nothing(49 * MS);
    probe.expect_eq(&3, MS);
    assert_eq!(runtime.now(), Instant::from_millis(50));
}

#[test]
fn a_probe_fails_the_test_on_a_timeout_or_an_unexpected_message() {
    let (runtime, system) = start_system(6);
    let probe = Probe::<u32>::new(&runtime, &system).unwrap();
    assert_eq!(panic_of(|| probe.expect(10 * MS)), "no message arrived within 10ms (seed 6)");
    assert_eq!(panic_of(|| probe.expect_signal(MS)), "no signal arrived within 1ms (seed 6)");
    probe.actor().tell(1);
    assert!(panic_of(|| probe.expect_eq(&2, MS)).contains("seed 6"));
    probe.actor().tell(1);
    assert!(panic_of(|| probe.expect_nothing(MS)).contains("received [1] and []"));
}

#[test]
fn a_probe_watches_and_is_watched() {
    let (runtime, system) = start_system(7);
    let probe = Probe::<u32>::new(&runtime, &system).unwrap();
    let other = Probe::<u32>::new(&runtime, &system).unwrap();
    probe.watch(other.actor());
    other.stop();
    assert_eq!(probe.expect_terminated(other.actor(), MS), Termination::Stopped);
    probe.expect_nothing(MS);
    assert_eq!(system.alive(), 2);
}

#[test]
fn a_probe_is_notified_of_its_childrens_failures() {
    let (runtime, system) = start_system(8);
    let probe = Probe::<u32>::new(&runtime, &system).unwrap();
    let child = probe.spawn(&Props::new(|| Ping { log: log_of_text(), id: 0 }).build()).unwrap();
    child.tell(Round::Fail);
    assert!(
        matches!(probe.expect_signal(MS), Signal::ChildFailed(failure) if failure.child == child.index())
    );
    probe.stop();
    assert_eq!(system.alive(), 0, "its children stop with it");
}

#[test]
fn dropping_the_system_stops_it_and_dropping_the_runtime_frees_it() {
    let held = Arc::new(());
    let inside = held.clone();
    let (runtime, system) = start_system(9);
    let actor = system.spawn(&Props::new(move || Holder(inside.clone())).build()).unwrap();
    runtime.run_until_idle();
    drop((actor, system));
    drop(runtime);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn an_unanswered_ask_times_out_instead_of_deadlocking() {
    let (runtime, system) = start_system(10);
    let actor = system.spawn(&Props::new(|| Hoarder(vec![])).build()).unwrap();
    let reply = runtime.block_on(actor.ask(|reply| reply).within(70 * MS));
    assert_eq!(reply, Err(AskError::TimedOut));
    assert!((70..=72).contains(&(runtime.now().as_nanos() / 1_000_000)), "{:?}", runtime.now());
}

/// Runs three pairs of actors that play 8 rounds each while timers fire; returns their timed log.
fn events(seed: u64) -> Vec<String> {
    let (runtime, system) = start_system(seed);
    let log = log_of_text();
    for id in 0..3 {
        let ping = |id| Ping { log: log.clone(), id };
        let left = system.spawn_value(ping(2 * id), &Props::of_values().build()).unwrap();
        let right = system.spawn_value(ping(2 * id + 1), &Props::of_values().build()).unwrap();
        left.tell(Round::Start);
        right.tell(Round::Start);
        (0..8).for_each(|_| left.tell(Round::Ball { hits_left: 4, to: right.clone(), back: left.clone() }));
    }
    runtime.advance(100 * MS);
    log.with(core::mem::take)
}

fn start_system(seed: u64) -> (TestRuntime, ReadyQueueScheduler) {
    let runtime = TestRuntime::new(seed);
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(3).unwrap());
    let system = ActorSystemRunner::new(config).start(runtime.handle()).unwrap();
    (runtime, system)
}

struct Ping {
    log: Arc<Lock<Vec<String>>>,
    id: u32,
}

enum Round {
    Start,
    Ball { hits_left: u32, to: ActorRef<Round>, back: ActorRef<Round> },
    Fail,
}

impl Ping {
    fn log(&self, event: &str, ctx: &ActorContext<'_, Self>) {
        self.log.with(|log| log.push(format!("{} {event} at {:?}", self.id, ctx.now())));
    }
}

impl Actor for Ping {
    type Msg = Round;

    fn receive(&mut self, round: Round, ctx: &mut ActorContext<'_, Self>) -> HandlerResult<Round> {
        match round {
            Round::Start => {
                self.log("starts", ctx);
                ctx.set_timer(TimerId(1), (7 + self.id) * MS, Repeat::Once);
            }
            Round::Ball { hits_left, to, back } => {
                self.log(&hits_left.to_string(), ctx);
                if let Some(hits_left) = hits_left.checked_sub(1) {
                    to.tell(Round::Ball { hits_left, to: back, back: to.clone() });
                }
            }
            Round::Fail => return Err(ActorError::new("on purpose")),
        }
        Ok(Flow::Continue)
    }

    fn signal(&mut self, _timer: Signal, ctx: &mut ActorContext<'_, Self>) -> HandlerResult<Round> {
        self.log("timer", ctx);
        Ok(Flow::Continue)
    }
}

struct Holder(#[expect(dead_code, reason = "only its reference count is used")] Arc<()>);

impl Actor for Holder {
    type Msg = ();

    fn receive(&mut self, _message: (), _ctx: &mut ActorContext<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}

/// Stores asks and replies to none.
struct Hoarder(Vec<crate::Reply<()>>);

impl Actor for Hoarder {
    type Msg = crate::Reply<()>;

    fn receive(
        &mut self,
        reply: crate::Reply<()>,
        _: &mut ActorContext<'_, Self>,
    ) -> HandlerResult<Self::Msg> {
        self.0.push(reply);
        Ok(Flow::Continue)
    }
}

fn deadlock(seed: u64, tasks: usize) -> Stuck {
    Stuck::Deadlock(RuntimeStatus { seed, now: Instant::ORIGIN, tasks })
}

fn panic_of<T>(work: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work)).map(|_| ()).unwrap_err();
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

fn log() -> Arc<Lock<Vec<u64>>> {
    Arc::new(Lock::new(vec![]))
}

fn log_of_text() -> Arc<Lock<Vec<String>>> {
    Arc::new(Lock::new(vec![]))
}

fn take(log: &Lock<Vec<u64>>) -> Vec<u64> {
    log.with(core::mem::take)
}

fn spawn(runtime: &TestRuntime, task: impl Future<Output = ()> + Send + 'static) {
    runtime.handle().spawn(Box::pin(task)).unwrap();
}

fn push(log: &Arc<Lock<Vec<u64>>>, number: u64) -> impl Future<Output = ()> + Send + 'static {
    let log = log.clone();
    async move { log.with(|log| log.push(number)) }
}

fn push_after(
    runtime: &TestRuntime,
    log: &Arc<Lock<Vec<u64>>>,
    ms: u64,
) -> impl Future<Output = ()> + Send + 'static {
    let handle = runtime.handle();
    let pushed = push(log, ms);
    async move {
        handle.sleep_until(Instant::from_millis(ms)).await;
        pushed.await;
    }
}
