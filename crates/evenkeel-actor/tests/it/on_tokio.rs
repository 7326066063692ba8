//! The runtime conformance tests on tokio with two threads.

use std::future::Future;
use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler};

crate::runtime_cases::test_every_case!(on_tokio);

const CASE_MAX: Duration = Duration::from_secs(30);

fn on_tokio<F: Future<Output = ()>>(case: fn(ReadyQueueScheduler) -> F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap());
    let system = ActorSystemRunner::new(config).start(TokioRuntime::new(runtime.handle().clone())).unwrap();
    let result = runtime.block_on(async { tokio::time::timeout(CASE_MAX, case(system)).await });
    assert!(result.is_ok(), "the test did not finish within {CASE_MAX:?}");
}
