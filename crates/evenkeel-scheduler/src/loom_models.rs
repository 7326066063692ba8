//! Loom models of the scheduler's lock: loom runs each in every interleaving that its preemption bound allows.
//!
//! The scheduler, its guards and the pipeline are the real code; only the lock is loom's and the clock is set by the
//! model. A lost wake-up shows as a thread that waits forever, which loom reports as a deadlock.
//!
//! Limits: three threads, three preemptions; `LOOM_MAX_PREEMPTIONS` overrides.

use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::task::Wake;

use evenkeel_pipeline::{AttemptFailure, ModelId, NodeSpec, OutageRule, Priority, Slots, TenantFlow};
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::{MetricLimits, Registry, RequestLogLimits};
use loom::sync::Condvar;
use loom::thread;

use super::*;

const MODEL: ModelId = ModelId(0);
const NAME: RequestName<'_> = RequestName { client_id: b"client-7", earlier: None };
const PREEMPTIONS: usize = 3;

#[test]
fn a_freed_slot_reaches_the_waiting_request() {
    check(|| {
        let scheduler = scheduler_with(&[1]);
        let slot = granted(scheduler.submit(arrival(), NAME));
        let releasing = thread::spawn(move || slot.complete(Cost(1), Outcome::Good));
        let slot = granted(scheduler.submit(arrival(), NAME));
        releasing.join().unwrap();
        drop(slot);
        assert_everything_is_released(&scheduler);
    });
}

#[test]
fn a_slot_granted_to_a_cancelled_request_reaches_the_next() {
    check(|| {
        let scheduler = scheduler_with(&[1]);
        let slot = granted(scheduler.submit(arrival(), NAME));
        let cancelled = scheduler.submit(arrival(), NAME);
        let waiting = scheduler.submit(arrival(), NAME);
        let releasing = thread::spawn(move || slot.complete(Cost(1), Outcome::Good));
        let cancelling = thread::spawn(move || drop(cancelled));
        granted(waiting).complete(Cost(1), Outcome::Good);
        releasing.join().unwrap();
        cancelling.join().unwrap();
        assert_everything_is_released(&scheduler);
    });
}

#[test]
fn a_request_at_its_timeout_is_served_or_rejected_and_the_slot_is_released() {
    check(|| {
        let scheduler = scheduler_with(&[1]);
        let slot = granted(scheduler.submit(arrival(), NAME));
        let future = scheduler.submit(arrival(), NAME);
        let releasing = thread::spawn(move || slot.complete(Cost(1), Outcome::Good));
        let timer = scheduler.clone();
        let timing = thread::spawn(move || {
            timer.clock.set(Duration::from_secs(31));
            timer.on_timer();
        });
        match wait(future) {
            Ok(slot) => drop(slot),
            Err(rejected) => {
                assert!(matches!(rejected.rejection, Rejection::WaitTimeout { .. }), "{rejected:?}");
            }
        }
        releasing.join().unwrap();
        timing.join().unwrap();
        assert_everything_is_released(&scheduler);
    });
}

#[test]
fn a_request_whose_node_failed_gets_the_slot_that_another_releases() {
    check(|| {
        let scheduler = scheduler_with(&[1, 1]);
        let one = granted(scheduler.submit(arrival(), NAME));
        let other = granted(scheduler.submit(arrival(), NAME));
        assert_ne!(one.node(), other.node());
        let cancelling = thread::spawn(move || drop(other));
        let retry = one.fail(AttemptFailure::BadResponse, Cost::ZERO).unwrap();
        granted(retry).complete_whole(Cost(1));
        cancelling.join().unwrap();
        assert_everything_is_released(&scheduler);
    });
}

#[test]
fn requests_submitted_at_once_are_all_served() {
    check(|| {
        let scheduler = scheduler_with(&[1]);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let scheduler = scheduler.clone();
                thread::spawn(move || {
                    granted(scheduler.submit(arrival(), NAME)).complete(Cost(1), Outcome::Good)
                })
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_everything_is_released(&scheduler);
    });
}

/// Checking for a decision and then storing the waker in a second critical section loses wake-ups.
#[test]
#[should_panic(expected = "no waker was called")]
fn checking_before_storing_the_waker_loses_a_wake_up() {
    check(|| {
        let scheduler = scheduler_with(&[1]);
        let slot = granted(scheduler.submit(arrival(), NAME));
        // Dropping it while the failed model unwinds would lock a mutex of a model that has ended.
        let future = ManuallyDrop::new(scheduler.submit(arrival(), NAME));
        let releasing = thread::spawn(move || slot.complete(Cost(1), Outcome::Good));
        let waker = TestWaker::new();
        let found = check_then_store_waker(&future, &mut Context::from_waker(&waker.clone().into()));
        releasing.join().unwrap();
        assert!(
            found.is_ready() || *waker.woken.lock().unwrap(),
            "a slot was granted and no waker was called"
        );
    });
}

/// Takes the lock once to check for a decision, and again to store the waker.
fn check_then_store_waker(future: &SlotFuture, cx: &mut Context<'_>) -> Poll<()> {
    let Some(handle) = &future.handle else { return Poll::Ready(()) };
    let is_decided = |state: &State| state.waiters[&handle.request].decision.is_some();
    if is_decided(&handle.scheduler.state.lock()) {
        return Poll::Ready(());
    }
    if let Some(waiter) = handle.scheduler.state.lock().waiters.get_mut(&handle.request) {
        waiter.set_waker(cx);
    }
    Poll::Pending
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.check(model);
}

fn scheduler_with(slots: &[u32]) -> Arc<RequestScheduler> {
    let observer =
        Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default()).unwrap();
    let scheduler = RequestScheduler::start(PipelineOptions::default(), Arc::new(observer)).unwrap();
    for slots in slots {
        let spec = NodeSpec {
            slots: Slots::Fixed(*slots),
            transactions_max: None,
            weight: Weight::ONE,
            models: vec![MODEL],
            paths: vec![],
        };
        scheduler.update(|pipeline, now| pipeline.add_node(now, &spec)).unwrap();
    }
    scheduler
}

fn arrival() -> Arrival {
    Arrival {
        tenant: TenantId(0),
        model: MODEL,
        cost: Cost(10),
        upfront: Cost(10),
        affinity: None,
        deadline: None,
        request: RequestKind::Infer,
        priority: Priority::Interactive,
        flow: TenantFlow::default(),
        outage: OutageRule::Hold,
    }
}

fn wait(future: SlotFuture) -> Result<SlotGuard, WaitRejection> {
    TestWaker::block_on(future)
}

fn granted(future: SlotFuture) -> SlotGuard {
    wait(future).unwrap_or_else(|rejected| panic!("{rejected:?}"))
}

fn assert_everything_is_released(scheduler: &RequestScheduler) {
    let state = scheduler.state.lock();
    let status = state.pipeline.status();
    assert_eq!((status.in_flight, status.waiting, state.waiters.len()), (0, 0, 0));
    assert!(status.nodes.iter().all(|node| node.busy == 0 && node.in_flight == Cost::ZERO));
    assert_eq!((status.counts.unknown, state.pipeline.audit()), (0, Ok(())));
}

/// A waker on which a thread can block.
struct TestWaker {
    woken: loom::sync::Mutex<bool>,
    changed: Condvar,
}

impl TestWaker {
    fn new() -> Arc<Self> {
        Arc::new(Self { woken: loom::sync::Mutex::new(false), changed: Condvar::new() })
    }

    fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
        let this = Self::new();
        let waker = this.clone().into();
        loop {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            let mut woken = this.woken.lock().unwrap();
            while !*woken {
                woken = this.changed.wait(woken).unwrap();
            }
            *woken = false;
        }
    }
}

impl Wake for TestWaker {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}
