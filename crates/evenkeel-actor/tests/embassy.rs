//! The runtime conformance tests on embassy's executor for hosts: with std the multi-threaded scheduler, without std
//! the single-worker scheduler for microcontrollers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

#[path = "it/runtime_cases.rs"]
mod runtime_cases;

use std::any::Any;
use std::future::{Future, poll_fn};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use embassy_executor::{Executor, SendSpawner};
use evenkeel_actor::runtime::embassy::{EmbassyRuntime, TASKS_MAX};
use evenkeel_actor::runtime::{RuntimeHandle, RuntimeSpawnError, TaskFuture};
use evenkeel_actor::{
    Actor, ActorSystemConfig, ActorSystemRunner, Context as ActorContext, Flow, HandlerResult, Props,
    ReadyQueueScheduler,
};
use evenkeel_policy::time::Instant;

runtime_cases::test_every_case!(on_embassy);

#[test]
fn a_task_above_the_limit_is_rejected_until_another_ends() {
    run(|runtime| async move {
        let token = Arc::new(());
        let task = || {
            let token = Arc::downgrade(&token);
            Box::pin(async move {
                while token.strong_count() > 0 {
                    runtime.yield_now().await;
                }
            })
        };
        for _ in 0..TASKS_MAX {
            // The tasks of the previous test may not have ended yet.
            while runtime.spawn(task()).is_err() {
                runtime.yield_now().await;
            }
        }
        assert_eq!(runtime.spawn(task()), Err(RuntimeSpawnError));
        drop(token);
        while runtime.spawn(Box::pin(async {})).is_err() {
            runtime.yield_now().await;
        }
    });
}

/// Without std, setting a second worker is an error.
#[test]
fn a_second_worker_needs_std() {
    on_embassy(|system| async move {
        let set = |workers| system.set_workers(NonZeroUsize::new(workers).unwrap());
        assert_eq!(set(1), Ok(()));
        let second = set(2).map_err(|error| error.to_string());
        let expected = Err("workers is 2; without std there is one".to_owned());
        assert_eq!(second, if cfg!(feature = "std") { Ok(()) } else { expected });
        let workers = if cfg!(feature = "std") { 2 } else { 1 };
        assert_eq!(system.workers().get(), workers);
    });
}

/// The worker reads the clock between its last empty look and its sleep, so an interrupt at every clock read includes one
/// after which a worker that does not look again would sleep with a message in its queue.
#[test]
fn a_worker_about_to_sleep_sees_a_message_from_an_interrupt() {
    let fired = (0..100).take_while(|clock_reads| interrupt_after(*clock_reads)).count();
    assert!((1..100).contains(&fired), "{fired}");
}

/// Sends a message from an interrupt after `clock_reads` clock reads of a worker without work; returns whether the
/// worker read the clock so often.
fn interrupt_after(clock_reads: u32) -> bool {
    let host = PolledHost::default();
    let config = ActorSystemConfig::with_workers(NonZeroUsize::MIN);
    let system = ActorSystemRunner::new(config).start(host.clone()).unwrap();
    let actor = system.spawn(&Props::new(|| Inbox).build()).unwrap();
    let late = actor.clone();
    *host.0.interrupt.lock().unwrap() = Some((clock_reads, Box::new(move || late.tell(()))));
    host.poll_worker();
    let fired = host.0.interrupt.lock().unwrap().take().is_none();
    assert_eq!(actor.depth(), 0, "the message is handled in the same poll ({clock_reads} clock reads)");
    system.force_stop();
    host.poll_worker();
    host.0.tasks.lock().unwrap().clear();
    fired
}

#[test]
fn a_sleep_is_never_too_short() {
    run(|runtime| async move {
        let due = runtime.now() + Duration::from_nanos(3_000_001);
        runtime.sleep_until(due).await;
        assert!(due <= runtime.now());
        // A due time in the past returns at once.
        runtime.sleep_until(due).await;
    });
}

fn on_embassy<F: Future<Output = ()> + Send + 'static>(case: fn(ReadyQueueScheduler) -> F) {
    run(move |runtime| case(ActorSystemRunner::new(ActorSystemConfig::default()).start(runtime).unwrap()));
}

type CaseResult = Result<(), Box<dyn Any + Send>>;
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

const CASE_MAX: Duration = Duration::from_secs(30);

/// Executor that runs on its own thread until the process exits, shared by all tests.
static EXECUTOR: LazyLock<SendSpawner> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let executor = Box::leak(Box::new(Executor::new()));
        executor.run(|spawner| sender.send(spawner.make_send()).unwrap());
    });
    receiver.recv().unwrap()
});

/// Lock that lets one test run at a time, because [`TASKS_MAX`] limits the tasks of the process.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

fn run<F: Future<Output = ()> + Send + 'static>(case: impl FnOnce(EmbassyRuntime) -> F + Send + 'static) {
    let _exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let (sender, receiver) = mpsc::channel::<CaseResult>();
    let spawner = *EXECUTOR;
    let work = async move {
        let result = catch_panic(async move { case(EmbassyRuntime::new(spawner)).await }).await;
        drop(sender.send(result));
    };
    spawner.spawn(run_work(Box::pin(work)).unwrap());
    match receiver.recv_timeout(CASE_MAX) {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => panic!("the test did not finish within {CASE_MAX:?}"),
    }
}

/// Runs a test. The task pool has room for two: one that has reported its result but not ended yet, and the next one.
#[embassy_executor::task(pool_size = 2)]
async fn run_work(work: Work) {
    work.await;
}

/// Catches a panic, which would otherwise end the executor's thread.
async fn catch_panic(work: impl Future<Output = ()>) -> CaseResult {
    let mut work = pin!(work);
    let poll = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    poll.await
}

/// Handles messages without effect.
struct Inbox;

impl Actor for Inbox {
    type Msg = ();

    fn receive(&mut self, _message: (), _ctx: &mut ActorContext<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }
}

type Interrupt = Box<dyn FnOnce() + Send>;

/// A host that polls the worker only when the test says so, and is interrupted while it reads the clock.
#[derive(Clone, Default)]
struct PolledHost(Arc<PolledTasks>);

#[derive(Default)]
struct PolledTasks {
    /// The worker and the timer task, in this order.
    tasks: Mutex<Vec<TaskFuture>>,
    /// The next interrupt, and the number of clock reads before it.
    interrupt: Mutex<Option<(u32, Interrupt)>>,
}

impl PolledHost {
    fn poll_worker(&self) {
        let mut worker = self.0.tasks.lock().unwrap().remove(0);
        let _polled = worker.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.0.tasks.lock().unwrap().insert(0, worker);
    }
}

impl RuntimeHandle for PolledHost {
    fn spawn(&self, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        self.0.tasks.lock().unwrap().push(task);
        Ok(())
    }

    fn now(&self) -> Instant {
        let mut interrupt = self.0.interrupt.lock().unwrap();
        match interrupt.take() {
            Some((0, send)) => {
                drop(interrupt);
                send();
            }
            Some((left, send)) => *interrupt = Some((left - 1, send)),
            None => {}
        }
        Instant::ORIGIN
    }

    fn sleep_until(&self, _at: Instant) -> TaskFuture {
        Box::pin(std::future::pending())
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(std::future::ready(()))
    }
}
