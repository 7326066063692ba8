//! Requests as futures: who is woken, and what is given back.

use core::pin::pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll};
use std::task::Wake;

use evenkeel_pipeline::{AttemptFailure, ModelId, NoRetryReason, NodeSpec, Priority, Slots, TenantRule};
use evenkeel_policy::estimate::Outcome as Did;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::{MetricLimits, Registry, RequestLogLimits};
use proptest::prelude::*;

use super::*;

const MODEL: ModelId = ModelId(0);

#[tokio::test]
async fn a_free_slot_is_granted_without_parking() {
    let walk = walk_to(&[1]);
    let mut place = pin!(walk.submit(ask(0)));
    assert!(poll(&mut place, &Bell::new()).is_ready());
    assert!(walk.state.lock().waiters.is_empty());
}

#[tokio::test]
async fn a_freed_slot_wakes_exactly_one_and_is_reserved_for_it() {
    let walk = walk_to(&[1]);
    let slot = walk.submit(ask(0)).await.unwrap();
    let bells = [Bell::new(), Bell::new()];
    let mut first = pin!(walk.submit(ask(1)));
    let mut second = pin!(walk.submit(ask(2)));
    assert!(poll(&mut first, &bells[0]).is_pending() && poll(&mut second, &bells[1]).is_pending());
    slot.complete(Cost(1), Did::Good);
    assert_eq!(bells.map(|bell| bell.rung()), [1, 0]);
    assert_eq!(in_flight(&walk), 1);
    assert!(poll(&mut second, &Bell::new()).is_pending());
    assert!(poll(&mut first, &Bell::new()).is_ready());
}

#[tokio::test]
async fn a_verdict_between_two_polls_is_not_lost() {
    let walk = walk_to(&[1]);
    let slot = walk.submit(ask(0)).await.unwrap();
    let mut place = pin!(walk.submit(ask(1)));
    slot.complete(Cost(1), Did::Good);
    assert!(poll(&mut place, &Bell::new()).is_ready());
}

#[tokio::test]
async fn a_slot_that_was_granted_to_one_who_left_goes_to_the_next() {
    let walk = walk_to(&[1]);
    let slot = walk.submit(ask(0)).await.unwrap();
    let left = walk.submit(ask(1));
    let mut next = pin!(walk.submit(ask(1)));
    let bell = Bell::new();
    assert!(poll(&mut next, &bell).is_pending());
    slot.complete(Cost(1), Did::Good);
    assert_eq!(bell.rung(), 0);
    drop(left);
    assert_eq!(bell.rung(), 1);
    drop(poll(&mut next, &bell));
    assert_everything_is_given_back(&walk);
}

#[tokio::test]
async fn whoever_leaves_pays_for_what_it_used() {
    let walk = walk_to(&[1]);
    for used in [Cost(3), Cost(70)] {
        let mut slot = walk.submit(ask(0)).await.unwrap();
        slot.on_first_byte();
        slot.report_cost(used);
        drop(slot);
    }
    let served = walk.inspect(|machine| machine.status().tenants[0].served);
    assert_eq!(served, Cost(73));
    assert_everything_is_given_back(&walk);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_its_time_is_over() {
    let walk = walk_to(&[1]);
    let _slot = walk.submit(ask(0)).await.unwrap();
    let turned = walk.submit(ask(0)).await.err().unwrap();
    assert!(matches!(turned.rejection, Rejection::WaitTimeout { .. }), "{turned:?}");
    assert!(Duration::from_secs(30) <= turned.waited && turned.waited < Duration::from_secs(31));
}

#[tokio::test(start_paused = true)]
async fn the_timer_is_set_anew_when_something_is_due_earlier() {
    let walk = walk_to(&[1]);
    let _slot = walk.submit(ask(0)).await.unwrap();
    let long = tokio::spawn(walk.submit(ask(0)));
    tokio::task::yield_now().await;
    let deadline = Some(Duration::from_secs(1));
    let turned = walk.submit(Arrival { deadline, ..ask(1) }).await.err().unwrap();
    assert!(turned.waited < Duration::from_secs(2), "{turned:?}");
    assert!(!long.is_finished());
}

#[tokio::test]
async fn a_request_that_failed_is_granted_another_node_at_once() {
    let walk = walk_to(&[1, 1]);
    let slot = walk.submit(ask(0)).await.unwrap();
    let failed = slot.node();
    let mut place = pin!(slot.fail(AttemptFailure::BadResponse).unwrap());
    let Poll::Ready(Ok(slot)) = poll(&mut place, &Bell::new()) else { panic!("another node is free") };
    assert_ne!(slot.node(), failed);
    let turned = slot.fail(AttemptFailure::Unreachable).err().unwrap();
    let Rejection::Failed { attempts, failure, no_retry } = turned.rejection else { panic!("{turned:?}") };
    assert_eq!((attempts, failure, no_retry), (2, AttemptFailure::Unreachable, NoRetryReason::NoOtherNode));
    assert_everything_is_given_back(&walk);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_met_a_busy_node_waits_until_it_is_asked_again() {
    let walk = walk_to(&[1]);
    let slot = walk.submit(ask(0)).await.unwrap();
    let retry_after = Some(Duration::from_secs(7));
    let slot = slot.fail(AttemptFailure::Busy { retry_after }).unwrap().await.unwrap();
    assert!(Duration::from_secs(7) <= slot.waited() && slot.waited() < Duration::from_secs(8));
}

#[tokio::test]
async fn the_timer_ends_with_the_walk() {
    let walk = walk_to(&[1]);
    let weak = Arc::downgrade(&walk);
    drop(walk);
    while weak.strong_count() > 0 || tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_contention_everybody_is_served_or_leaves_and_nothing_is_kept() {
    let walk = walk_to(&[2, 1]);
    let rule = TenantRule { weight: Weight::ONE, concurrency_max: 2 };
    walk.update(|machine, now| machine.set_tenant(now, TenantId(3), rule)).unwrap();
    let clients: Vec<_> = (0..32_u32)
        .map(|client| {
            let walk = walk.clone();
            tokio::spawn(async move {
                for round in 0..100_u32 {
                    let place = walk.submit(ask(client % 4));
                    if (client + round).is_multiple_of(7) {
                        continue;
                    }
                    let mut slot = place.await.expect("32 clients fit into 100 places");
                    tokio::task::yield_now().await;
                    if round.is_multiple_of(5) {
                        slot.on_first_byte();
                        slot.report_cost(Cost(u64::from(round)));
                    }
                    match round % 3 {
                        0 => slot.complete(Cost(5), Did::Good),
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
    assert_everything_is_given_back(&walk);
}

/// What one of four requests does next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Enter { tenant: u32 },
    Poll,
    Leave,
    FirstByte,
    Progress { so_far: u64 },
    End,
    BreakOff,
    Fail { busy: bool },
}

enum Stand {
    Nowhere,
    Waiting(SlotFuture),
    Served(SlotGuard, Begun),
}

#[derive(Clone, Copy, PartialEq)]
enum Begun {
    Yes,
    No,
}

fn moves() -> impl Strategy<Value = Vec<(usize, Move)>> {
    let one = prop_oneof![
        4 => (0..3_u32).prop_map(|tenant| Move::Enter { tenant }),
        4 => Just(Move::Poll),
        1 => Just(Move::Leave),
        1 => Just(Move::FirstByte),
        1 => (0..40_u64).prop_map(|so_far| Move::Progress { so_far }),
        2 => Just(Move::End),
        1 => Just(Move::BreakOff),
        1 => any::<bool>().prop_map(|busy| Move::Fail { busy }),
    ];
    proptest::collection::vec((0..6_usize, one), 0..200)
}

fn play(walk: &Arc<RequestScheduler>, stand: Stand, next: Move) -> Stand {
    match (stand, next) {
        (Stand::Nowhere, Move::Enter { tenant }) => Stand::Waiting(walk.submit(ask(tenant))),
        (Stand::Waiting(mut place), Move::Poll) => match poll(&mut pin!(&mut place), &Bell::new()) {
            Poll::Pending => Stand::Waiting(place),
            Poll::Ready(Ok(slot)) => Stand::Served(slot, Begun::No),
            Poll::Ready(Err(_)) => Stand::Nowhere,
        },
        (Stand::Served(slot, Begun::No), Move::FirstByte) => {
            slot.on_first_byte();
            Stand::Served(slot, Begun::Yes)
        }
        (Stand::Served(mut slot, Begun::Yes), Move::Progress { so_far }) => {
            slot.report_cost(Cost(so_far));
            Stand::Served(slot, Begun::Yes)
        }
        (Stand::Served(slot, Begun::No), Move::End) => {
            slot.complete_whole(Cost(3));
            Stand::Nowhere
        }
        (Stand::Served(slot, Begun::Yes), Move::End) => {
            slot.complete(Cost(3), Did::Good);
            Stand::Nowhere
        }
        (Stand::Served(slot, Begun::Yes), Move::BreakOff) => {
            slot.fail_mid_stream(AttemptFailure::BadResponse);
            Stand::Nowhere
        }
        (Stand::Served(slot, Begun::No), Move::Fail { busy }) => {
            let failure =
                if busy { AttemptFailure::Busy { retry_after: None } } else { AttemptFailure::TimedOut };
            slot.fail(failure).map_or(Stand::Nowhere, Stand::Waiting)
        }
        (_, Move::Leave) => Stand::Nowhere,
        (stand, _) => stand,
    }
}

proptest! {
    #[test]
    fn whatever_requests_do_everything_adds_up_and_is_given_back(moves in moves()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _within = runtime.enter();
        let walk = walk_to(&[1, 2]);
        let mut stands: Vec<Stand> = (0..6).map(|_| Stand::Nowhere).collect();
        for (who, next) in moves {
            let stand = std::mem::replace(&mut stands[who], Stand::Nowhere);
            stands[who] = play(&walk, stand, next);
            let state = walk.state.lock();
            prop_assert_eq!(state.machine.audit(), Ok(()));
            let waiting = stands.iter().filter(|stand| matches!(stand, Stand::Waiting(_))).count();
            prop_assert!(state.waiters.len() <= waiting, "a waiter is kept of one who left");
        }
        drop(stands);
        assert_everything_is_given_back(&walk);
    }
}

fn walk_to(slots: &[u32]) -> Arc<RequestScheduler> {
    let watch =
        Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default()).unwrap();
    let walk = RequestScheduler::start(PipelineOptions::default(), Arc::new(watch)).unwrap();
    for slots in slots {
        let spec =
            NodeSpec { slots: Slots::Fixed(*slots), weight: Weight::ONE, models: vec![MODEL], paths: vec![] };
        walk.update(|machine, now| machine.add_node(now, &spec)).unwrap();
    }
    walk
}

fn ask(tenant: u32) -> Arrival {
    Arrival {
        tenant: TenantId(tenant),
        model: MODEL,
        cost: Cost(10),
        upfront: Cost(10),
        affinity: None,
        deadline: None,
        request: RequestKind::Infer,
        priority: Priority::Interactive,
    }
}

fn in_flight(walk: &RequestScheduler) -> usize {
    walk.inspect(|machine| machine.status().in_flight)
}

fn assert_everything_is_given_back(walk: &RequestScheduler) {
    let state = walk.state.lock();
    let status = state.machine.status();
    assert_eq!((status.in_flight, status.waiting, state.waiters.len()), (0, 0, 0));
    assert!(status.nodes.iter().all(|node| node.busy == 0 && node.in_flight == Cost::ZERO));
    assert_eq!((status.counts.unknown, state.machine.audit()), (0, Ok(())));
}

/// A waker that counts.
struct Bell(AtomicUsize);

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(0)))
    }

    fn rung(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<F: Future>(future: &mut core::pin::Pin<&mut F>, bell: &Arc<Bell>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(&bell.clone().into()))
}
