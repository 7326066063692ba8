//! Scheduler tests: which tasks are woken, and that everything is released.

use core::pin::pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll};
use std::task::Wake;

use evenkeel_pipeline::{
    AttemptFailure, ModelId, NoRetryReason, NodeSpec, OutageRule, Priority, Slots, TenantFlow, TenantRule,
};
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::{MetricLimits, Registry, RequestLogLimits};
use proptest::prelude::*;

use super::*;

const MODEL: ModelId = ModelId(0);
const NAME: RequestName<'_> = RequestName { client_id: b"client-7", earlier: None };

#[tokio::test]
async fn a_free_slot_is_granted_without_registering_a_waiter() {
    let scheduler = scheduler_with(&[1]);
    let mut future = pin!(scheduler.submit(arrival(0), NAME));
    assert!(poll(&mut future, &TestWaker::new()).is_ready());
    assert!(scheduler.state.lock().waiters.is_empty());
}

#[tokio::test]
async fn a_freed_slot_wakes_exactly_one_request_and_is_reserved_for_it() {
    let scheduler = scheduler_with(&[1]);
    let slot = scheduler.submit(arrival(0), NAME).await.unwrap();
    let wakers = [TestWaker::new(), TestWaker::new()];
    let mut first = pin!(scheduler.submit(arrival(1), NAME));
    let mut second = pin!(scheduler.submit(arrival(2), NAME));
    assert!(poll(&mut first, &wakers[0]).is_pending() && poll(&mut second, &wakers[1]).is_pending());
    slot.complete(Cost(1), Outcome::Good);
    assert_eq!(wakers.map(|waker| waker.wakes()), [1, 0]);
    assert_eq!(in_flight(&scheduler), 1);
    assert!(poll(&mut second, &TestWaker::new()).is_pending());
    assert!(poll(&mut first, &TestWaker::new()).is_ready());
}

#[tokio::test]
async fn a_slot_granted_before_the_first_poll_is_not_lost() {
    let scheduler = scheduler_with(&[1]);
    let slot = scheduler.submit(arrival(0), NAME).await.unwrap();
    let mut future = pin!(scheduler.submit(arrival(1), NAME));
    slot.complete(Cost(1), Outcome::Good);
    assert!(poll(&mut future, &TestWaker::new()).is_ready());
}

#[tokio::test]
async fn a_slot_granted_to_a_cancelled_request_goes_to_the_next() {
    let scheduler = scheduler_with(&[1]);
    let slot = scheduler.submit(arrival(0), NAME).await.unwrap();
    let cancelled = scheduler.submit(arrival(1), NAME);
    let mut next = pin!(scheduler.submit(arrival(1), NAME));
    let waker = TestWaker::new();
    assert!(poll(&mut next, &waker).is_pending());
    slot.complete(Cost(1), Outcome::Good);
    assert_eq!(waker.wakes(), 0);
    drop(cancelled);
    assert_eq!(waker.wakes(), 1);
    drop(poll(&mut next, &waker));
    assert_everything_is_released(&scheduler);
}

#[tokio::test]
async fn a_cancelled_request_is_charged_what_it_used() {
    let scheduler = scheduler_with(&[1]);
    for used in [Cost(3), Cost(70)] {
        let mut slot = scheduler.submit(arrival(0), NAME).await.unwrap();
        slot.on_first_byte();
        slot.report_cost(used);
        drop(slot);
    }
    let served = scheduler.inspect(|pipeline| pipeline.status().tenants[0].served);
    assert_eq!(served, Cost(73));
    assert_everything_is_released(&scheduler);
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_is_rejected_at_its_timeout() {
    let scheduler = scheduler_with(&[1]);
    let _slot = scheduler.submit(arrival(0), NAME).await.unwrap();
    let rejected = scheduler.submit(arrival(0), NAME).await.err().unwrap();
    assert!(matches!(rejected.rejection, Rejection::WaitTimeout { .. }), "{rejected:?}");
    assert!(Duration::from_secs(30) <= rejected.waited && rejected.waited < Duration::from_secs(31));
}

#[tokio::test(start_paused = true)]
async fn a_request_with_an_earlier_timeout_resets_the_timer() {
    let scheduler = scheduler_with(&[1]);
    let _slot = scheduler.submit(arrival(0), NAME).await.unwrap();
    let long = tokio::spawn(scheduler.submit(arrival(0), NAME));
    tokio::task::yield_now().await;
    let deadline = Some(Duration::from_secs(1));
    let rejected = scheduler.submit(Arrival { deadline, ..arrival(1) }, NAME).await.err().unwrap();
    assert!(rejected.waited < Duration::from_secs(2), "{rejected:?}");
    assert!(!long.is_finished());
}

#[tokio::test]
async fn a_failed_attempt_is_granted_another_node_at_once() {
    let scheduler = scheduler_with(&[1, 1]);
    let slot = scheduler.submit(arrival(0), NAME).await.unwrap();
    let failed = slot.node();
    let mut future = pin!(slot.fail(AttemptFailure::BadResponse, Cost(1)).unwrap());
    let Poll::Ready(Ok(slot)) = poll(&mut future, &TestWaker::new()) else {
        panic!("another node has a free slot")
    };
    assert_ne!(slot.node(), failed);
    let rejected = slot.fail(AttemptFailure::BadResponse, Cost(1)).err().unwrap();
    let Rejection::Failed { attempts, failure, no_retry } = rejected.rejection else {
        panic!("{rejected:?}")
    };
    assert_eq!((attempts, failure, no_retry), (2, AttemptFailure::BadResponse, NoRetryReason::NoOtherNode));
    assert_everything_is_released(&scheduler);
}

#[tokio::test(start_paused = true)]
async fn a_request_rejected_by_a_busy_node_waits_for_its_cooldown() {
    let scheduler = scheduler_with(&[1]);
    let slot = scheduler.submit(arrival(0), NAME).await.unwrap();
    let retry_after = Some(Duration::from_secs(7));
    let slot = slot.fail(AttemptFailure::Busy { retry_after }, Cost(1)).unwrap().await.unwrap();
    assert!(Duration::from_secs(7) <= slot.waited() && slot.waited() < Duration::from_secs(8));
}

#[tokio::test]
async fn the_timer_task_ends_with_the_scheduler() {
    let scheduler = scheduler_with(&[1]);
    let weak = Arc::downgrade(&scheduler);
    drop(scheduler);
    while weak.strong_count() > 0 || tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_contention_every_request_ends_and_everything_is_released() {
    let scheduler = scheduler_with(&[2, 1]);
    let rule = TenantRule { weight: Weight::ONE, concurrency_max: 2 };
    scheduler.update(|pipeline, now| pipeline.set_tenant(now, TenantId(3), rule)).unwrap();
    let clients: Vec<_> = (0..32_u32)
        .map(|client| {
            let scheduler = scheduler.clone();
            tokio::spawn(async move {
                for round in 0..100_u32 {
                    let future = scheduler.submit(arrival(client % 4), NAME);
                    if (client + round).is_multiple_of(7) {
                        continue;
                    }
                    let mut slot = future.await.expect("32 clients fit into a queue of 100");
                    tokio::task::yield_now().await;
                    if round.is_multiple_of(5) {
                        slot.on_first_byte();
                        slot.report_cost(Cost(u64::from(round)));
                    }
                    match round % 3 {
                        0 => slot.complete(Cost(5), Outcome::Good),
                        1 => slot.complete_whole(Cost(5)),
                        _ => drop(slot),
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_everything_is_released(&scheduler);
}

/// Next call of one of six requests.
#[derive(Clone, Copy, Debug)]
enum Action {
    Submit { tenant: u32 },
    Poll,
    Cancel,
    FirstByte,
    Progress { so_far: u64 },
    Complete,
    FailMidStream,
    Fail { busy: bool },
}

enum ClientState {
    Idle,
    Queued(SlotFuture),
    Attempt(SlotGuard),
    Streaming(SlotGuard),
}

fn actions() -> impl Strategy<Value = Vec<(usize, Action)>> {
    let one = prop_oneof![
        4 => (0..3_u32).prop_map(|tenant| Action::Submit { tenant }),
        4 => Just(Action::Poll),
        1 => Just(Action::Cancel),
        1 => Just(Action::FirstByte),
        1 => (0..40_u64).prop_map(|so_far| Action::Progress { so_far }),
        2 => Just(Action::Complete),
        1 => Just(Action::FailMidStream),
        1 => any::<bool>().prop_map(|busy| Action::Fail { busy }),
    ];
    proptest::collection::vec((0..6_usize, one), 0..200)
}

fn perform(scheduler: &Arc<RequestScheduler>, client: ClientState, action: Action) -> ClientState {
    match (client, action) {
        (ClientState::Idle, Action::Submit { tenant }) => {
            ClientState::Queued(scheduler.submit(arrival(tenant), NAME))
        }
        (ClientState::Queued(mut future), Action::Poll) => {
            match poll(&mut pin!(&mut future), &TestWaker::new()) {
                Poll::Pending => ClientState::Queued(future),
                Poll::Ready(Ok(slot)) => ClientState::Attempt(slot),
                Poll::Ready(Err(_)) => ClientState::Idle,
            }
        }
        (ClientState::Attempt(slot), Action::FirstByte) => {
            slot.on_first_byte();
            ClientState::Streaming(slot)
        }
        (ClientState::Streaming(mut slot), Action::Progress { so_far }) => {
            slot.report_cost(Cost(so_far));
            ClientState::Streaming(slot)
        }
        (ClientState::Attempt(slot), Action::Complete) => {
            slot.complete_whole(Cost(3));
            ClientState::Idle
        }
        (ClientState::Streaming(slot), Action::Complete) => {
            slot.complete(Cost(3), Outcome::Good);
            ClientState::Idle
        }
        (ClientState::Streaming(slot), Action::FailMidStream) => {
            slot.fail_mid_stream(AttemptFailure::BadResponse);
            ClientState::Idle
        }
        (ClientState::Attempt(slot), Action::Fail { busy }) => {
            let failure =
                if busy { AttemptFailure::Busy { retry_after: None } } else { AttemptFailure::TimedOut };
            slot.fail(failure, Cost(1)).map_or(ClientState::Idle, ClientState::Queued)
        }
        (_, Action::Cancel) => ClientState::Idle,
        (client, _) => client,
    }
}

proptest! {
    #[test]
    fn any_sequence_of_calls_keeps_the_totals_right_and_releases_everything(actions in actions()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _within = runtime.enter();
        let scheduler = scheduler_with(&[1, 2]);
        let mut clients: Vec<ClientState> = (0..6).map(|_| ClientState::Idle).collect();
        for (index, action) in actions {
            let client = std::mem::replace(&mut clients[index], ClientState::Idle);
            clients[index] = perform(&scheduler, client, action);
            let state = scheduler.state.lock();
            prop_assert_eq!(state.pipeline.audit(), Ok(()));
            let queued = clients.iter().filter(|client| matches!(client, ClientState::Queued(_))).count();
            prop_assert!(state.waiters.len() <= queued, "a cancelled request is still in the waiters");
        }
        drop(clients);
        assert_everything_is_released(&scheduler);
    }
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

fn arrival(tenant: u32) -> Arrival {
    Arrival {
        tenant: TenantId(tenant),
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

fn in_flight(scheduler: &RequestScheduler) -> usize {
    scheduler.inspect(|pipeline| pipeline.status().in_flight)
}

fn assert_everything_is_released(scheduler: &RequestScheduler) {
    let state = scheduler.state.lock();
    let status = state.pipeline.status();
    assert_eq!((status.in_flight, status.waiting, state.waiters.len()), (0, 0, 0));
    assert!(status.nodes.iter().all(|node| node.busy == 0 && node.in_flight == Cost::ZERO));
    assert_eq!((status.counts.unknown, state.pipeline.audit()), (0, Ok(())));
}

/// A waker that counts its wake-ups.
struct TestWaker(AtomicUsize);

impl TestWaker {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(0)))
    }

    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for TestWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<F: Future>(future: &mut core::pin::Pin<&mut F>, waker: &Arc<TestWaker>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(&waker.clone().into()))
}
