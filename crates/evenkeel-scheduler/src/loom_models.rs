//! Models of the walk's lock: loom runs each in every order that its bound of preemptions allows.
//!
//! The walk, its places and slots and the machine behind the lock are the crate's own; what differs is the lock, which is
//! loom's, and time, which the models set. A wake-up that is lost is a thread that waits for ever, which loom tells.
//!
//! Bound: three threads, three preemptions; `LOOM_MAX_PREEMPTIONS` overrules.

use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::task::Wake;

use evenkeel_pipeline::{Failure, ModelId, NodeSpec, Slots, Urgency};
use evenkeel_policy::estimate::Outcome as Did;
use evenkeel_policy::score::Request;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::{JournalLimits, MeterLimits, Registry};
use loom::sync::Condvar;
use loom::thread;

use super::*;

const MODEL: ModelId = ModelId(0);
const PREEMPTIONS: usize = 3;

#[test]
fn a_freed_slot_reaches_whoever_waits() {
    check(|| {
        let walk = walk_to(&[1]);
        let slot = served(walk.enter(ask()));
        let releasing = thread::spawn(move || slot.end(Cost(1), Did::Good));
        let slot = served(walk.enter(ask()));
        releasing.join().unwrap();
        drop(slot);
        assert_everything_is_given_back(&walk);
    });
}

#[test]
fn a_slot_granted_to_one_who_leaves_reaches_the_next() {
    check(|| {
        let walk = walk_to(&[1]);
        let slot = served(walk.enter(ask()));
        let leaver = walk.enter(ask());
        let stayer = walk.enter(ask());
        let releasing = thread::spawn(move || slot.end(Cost(1), Did::Good));
        let leaving = thread::spawn(move || drop(leaver));
        served(stayer).end(Cost(1), Did::Good);
        releasing.join().unwrap();
        leaving.join().unwrap();
        assert_everything_is_given_back(&walk);
    });
}

#[test]
fn one_whose_time_is_over_is_served_or_turned_away_and_the_slot_is_free_again() {
    check(|| {
        let walk = walk_to(&[1]);
        let slot = served(walk.enter(ask()));
        let place = walk.enter(ask());
        let releasing = thread::spawn(move || slot.end(Cost(1), Did::Good));
        let timer = walk.clone();
        let timing = thread::spawn(move || {
            timer.clock.set(Duration::from_secs(31));
            timer.pass_time();
        });
        match wait(place) {
            Ok(slot) => drop(slot),
            Err(turned) => assert!(matches!(turned.rejection, Rejection::WaitTimeout { .. }), "{turned:?}"),
        }
        releasing.join().unwrap();
        timing.join().unwrap();
        assert_everything_is_given_back(&walk);
    });
}

#[test]
fn one_whose_node_failed_gets_the_slot_that_another_gives_back() {
    check(|| {
        let walk = walk_to(&[1, 1]);
        let one = served(walk.enter(ask()));
        let other = served(walk.enter(ask()));
        assert_ne!(one.node(), other.node());
        let leaving = thread::spawn(move || drop(other));
        let again = one.fail(Failure::Broken).unwrap();
        served(again).end_at_once(Cost(1));
        leaving.join().unwrap();
        assert_everything_is_given_back(&walk);
    });
}

#[test]
fn everybody_who_enters_at_once_is_served() {
    check(|| {
        let walk = walk_to(&[1]);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let walk = walk.clone();
                thread::spawn(move || served(walk.enter(ask())).end(Cost(1), Did::Good))
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_everything_is_given_back(&walk);
    });
}

/// The rule that looks right and is not: see that there is no verdict, then leave the waker.
#[test]
#[should_panic(expected = "nobody is told")]
fn whoever_looks_and_then_waits_is_not_woken() {
    check(|| {
        let walk = walk_to(&[1]);
        let slot = served(walk.enter(ask()));
        // Dropped while loom gives up, it would ask for the lock of a model that is over.
        let place = ManuallyDrop::new(walk.enter(ask()));
        let releasing = thread::spawn(move || slot.end(Cost(1), Did::Good));
        let bell = Bell::new();
        let found = look_then_wait(&place, &mut Context::from_waker(&bell.clone().into()));
        releasing.join().unwrap();
        assert!(found.is_ready() || *bell.rung.lock().unwrap(), "a slot is granted and nobody is told");
    });
}

/// Takes the lock once to look, and once more to leave the waker.
fn look_then_wait(place: &Place, cx: &mut Context<'_>) -> Poll<()> {
    let Some(ticket) = &place.ticket else { return Poll::Ready(()) };
    let is_decided = |state: &State| state.waiters[&ticket.request].verdict.is_some();
    if is_decided(&ticket.walk.state.lock()) {
        return Poll::Ready(());
    }
    if let Some(waiter) = ticket.walk.state.lock().waiters.get_mut(&ticket.request) {
        waiter.keep(cx);
    }
    Poll::Pending
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.check(model);
}

fn walk_to(slots: &[u32]) -> Arc<Walk> {
    let watch =
        Watch::new(&Registry::new(), "llm", MeterLimits::default(), JournalLimits::default()).unwrap();
    let walk = Walk::start(PipelineOptions::default(), Arc::new(watch)).unwrap();
    for slots in slots {
        let spec =
            NodeSpec { slots: Slots::Fixed(*slots), weight: Weight::ONE, models: vec![MODEL], paths: vec![] };
        walk.change(|machine, now| machine.add_node(now, &spec)).unwrap();
    }
    walk
}

fn ask() -> Arrival {
    Arrival {
        tenant: TenantId(0),
        model: MODEL,
        cost: Cost(10),
        upfront: Cost(10),
        affinity: None,
        deadline: None,
        request: Request::Infer,
        priority: Priority::Interactive,
    }
}

fn wait(place: Place) -> Result<Slot, Turned> {
    Bell::wait(place)
}

fn served(place: Place) -> Slot {
    wait(place).unwrap_or_else(|turned| panic!("{turned:?}"))
}

fn assert_everything_is_given_back(walk: &Walk) {
    let state = walk.state.lock();
    let status = state.machine.status();
    assert_eq!((status.in_flight, status.waiting, state.waiters.len()), (0, 0, 0));
    assert!(status.nodes.iter().all(|node| node.busy == 0 && node.in_flight == Cost::ZERO));
    assert_eq!((status.counts.unknown, state.machine.audit()), (0, Ok(())));
}

/// A thread that sleeps until its waker is woken.
struct Bell {
    rung: loom::sync::Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self { rung: loom::sync::Mutex::new(false), ringing: Condvar::new() })
    }

    fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
        let bell = Self::new();
        let waker = bell.clone().into();
        loop {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            let mut rung = bell.rung.lock().unwrap();
            while !*rung {
                rung = bell.ringing.wait(rung).unwrap();
            }
            *rung = false;
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap() = true;
        self.ringing.notify_one();
    }
}
