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
use std::task::Poll;
use std::thread;
use std::time::Duration;

use embassy_executor::{Executor, SendSpawner};
use evenkeel_actor::runtime::embassy::{EmbassyRuntime, TASKS_MAX};
use evenkeel_actor::runtime::{RuntimeHandle, RuntimeSpawnError};
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler};

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
