//! No queue without end: who is taken, slowed, turned away, and told when to come back.

use evenkeel_pipeline::{
    Arrival, Event, ModelId, PipelineLimits, PipelineOptions, Rejection, WaitError, WaitResult,
};
use evenkeel_policy::backpressure::BackpressureState;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;

use crate::driver::{Door, MODEL, asks};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn in_the_warning_band_a_tenant_above_its_share_waits_its_delay_before_it_queues() {
    let mut door = Door::to(&[1]);
    // A quiet tenant's place halves the flood's share to 40 of 100.
    door.ask(0);
    door.ask(1);
    (0..59).for_each(|_| {
        door.ask(0);
    });
    assert_eq!(door.walk.status().state, BackpressureState::Warning);
    let delayed = door.ask(0);
    let later = door.ask(2);
    let entry = door.walk.wait_entry(delayed).unwrap();
    assert_eq!((entry.started_at, entry.timeout_at), (door.now, door.now + 30 * SECOND));
    assert_eq!((entry.request_id, entry.model_id), (delayed, MODEL));
    let due = door.walk.poll_timeout().unwrap();
    assert!(due > door.now && due <= door.now + Duration::from_millis(100), "{due:?}");
    let undelayed = door.walk.wait_entry(later).is_some();
    assert!(undelayed, "a delayed request counts as waiting, as any other");
    let until = [delayed, later].map(|request| door.walk.delayed_until(request));
    let slowed = until.map(|until| until.map(|until| until.since(door.now).as_millis()));
    assert_eq!((slowed, door.walk.waiting(MODEL)), ([Some(33), None], 62));
}

#[test]
fn a_full_queue_turns_away_with_its_size_and_a_time_to_come_back() {
    let mut door = Door::to(&[1]);
    door.ask(0);
    let asked: Vec<_> = (0..81).map(|_| door.ask(0)).collect();
    let last = door.rejected[asked.last().unwrap()];
    assert_eq!(last, Rejection::QueueFull { current_size: 80, max_size: 100, retry_after: SECOND });
    assert_eq!(last.wait_error(), Some(WaitError::QueueFull { current_size: 80, max_size: 100 }));
    assert_eq!(last.wait_result(), Some(WaitResult::Rejected { queue_size: 80 }));
}

#[test]
fn no_more_than_max_waiting_ever_wait_and_all_places_can_be_had() {
    let mut door = Door::to(&[1]);
    door.ask(0);
    for tenant in 0..200 {
        door.ask(tenant);
        assert!(door.waiting() <= 100);
    }
    assert_eq!(door.waiting(), 100, "tenants of one place each are all below their share");
    assert_eq!(door.walk.status().counts.queue_full, 100);
}

#[test]
fn the_newest_waiter_is_pushed_out_and_never_one_that_has_a_slot() {
    let mut door = Door::to(&[2]);
    let flood: Vec<_> = (0..82).map(|_| door.ask(0)).collect();
    let quiet = door.ask(1);
    let pushed_out: Vec<_> = door.rejected.keys().copied().collect();
    assert_eq!(pushed_out, [flood[81]]);
    assert!(matches!(door.rejected[&flood[81]], Rejection::Evicted { max_size: 100, .. }));
    assert!(door.is_flying(flood[0]) && door.is_flying(flood[1]));
    let counts = door.walk.status().counts;
    assert_eq!((counts.pushed_out, counts.backpressure_rejections()), (1, 1));
    door.end(flood[0], 500);
    door.end(flood[1], 500);
    assert!(door.is_flying(quiet), "and it goes first, behind the one other that does");
}

#[test]
fn whoever_waits_too_long_is_told_so_and_its_place_is_free() {
    let mut door = Door::to(&[1]);
    door.ask(0);
    let patient = door.ask(0);
    let hurried = door.arrive(Arrival { deadline: Some(2 * SECOND), ..asks(0) });
    door.pass(2 * SECOND);
    assert_eq!(door.rejected[&hurried], Rejection::WaitTimeout { waited: 2 * SECOND, timeout: 2 * SECOND });
    door.pass(28 * SECOND);
    let timeout = door.rejected[&patient];
    assert_eq!(timeout, Rejection::WaitTimeout { waited: 30 * SECOND, timeout: 30 * SECOND });
    assert_eq!(timeout.wait_result(), Some(WaitResult::Timeout { waited: 30 * SECOND }));
    assert_eq!(door.waiting(), 0);
    assert_eq!(door.walk.status().counts.timed_out, 2);
}

/// One slot, a request of 500 units each second: with twenty queued the next waits twenty seconds.
#[test]
fn whoever_would_wait_past_its_deadline_is_turned_away_at_once() {
    let mut door = Door::to(&[1]);
    let mut running = door.ask(0);
    (0..35).for_each(|_| {
        door.ask(0);
    });
    for _ in 0..15 {
        door.pass(SECOND);
        door.end(running, 500);
        running = door.dispatches.last().unwrap().0;
    }
    assert_eq!(door.waiting(), 20);
    let late = door.arrive(Arrival { deadline: Some(10 * SECOND), ..asks(0) });
    let Rejection::WouldMissDeadline { retry_after } = door.rejected[&late] else {
        panic!("it was not too late")
    };
    // The rate is known to a record per slice, a tenth of the window.
    assert!((18 * SECOND..=20 * SECOND).contains(&retry_after), "{retry_after:?}");
    let in_time = door.arrive(Arrival { deadline: Some(25 * SECOND), ..asks(0) });
    assert!(!door.rejected.contains_key(&in_time));
    let quiet = door.arrive(Arrival { deadline: Some(SECOND), ..asks(1) });
    assert!(!door.rejected.contains_key(&quiet), "a tenant with nothing queued is never too late");
}

#[test]
fn what_a_pool_can_do_is_unknown_again_when_it_grows() {
    let mut door = Door::to(&[1]);
    let mut running = door.ask(0);
    (0..20).for_each(|_| {
        door.ask(0);
    });
    for _ in 0..5 {
        door.pass(SECOND);
        door.end(running, 500);
        running = door.dispatches.last().unwrap().0;
    }
    let rate = |door: &Door| door.walk.status().models[0].rate;
    assert!(rate(&door).is_some());
    door.add(1, &[MODEL]);
    assert_eq!(rate(&door), None);
}

/// The pool's throughput over an idle minute is next to nothing, and says nothing about what it can do.
#[test]
fn a_pool_that_was_idle_is_not_taken_for_a_slow_one() {
    let mut door = Door::to(&[1]);
    for _ in 0..60 {
        let request = door.ask(0);
        door.pass(SECOND);
        door.end(request, 500);
        door.pass(59 * SECOND);
    }
    assert_eq!(door.walk.status().models[0].rate, None, "nobody waited, so nothing was measured");
    (0..20).for_each(|_| {
        door.arrive(Arrival { deadline: Some(25 * SECOND), ..asks(0) });
    });
    assert!(door.rejected.is_empty());
}

#[test]
fn what_nobody_can_serve_is_refused_by_its_reason() {
    let limits = PipelineLimits { tenants_max: 2, models_max: 2, ..PipelineLimits::default() };
    let mut door = Door::new(PipelineOptions { limits, ..PipelineOptions::default() });
    door.add(1, &[MODEL]);
    for (arrival, rejection) in [
        (asks(2), Rejection::UnknownTenant { tenant: TenantId(2) }),
        (Arrival { model: ModelId(2), ..asks(0) }, Rejection::UnknownModel { model: ModelId(2) }),
        (Arrival { model: ModelId(1), ..asks(0) }, Rejection::NoNode { model: ModelId(1) }),
    ] {
        let request = door.arrive(arrival);
        assert_eq!(door.rejected[&request], rejection);
        assert_eq!(rejection.wait_result(), None);
    }
    let served = door.ask(1);
    assert!(door.is_flying(served));
    let ready = door.events.iter().find_map(Event::wait_result);
    assert_eq!(ready, Some(WaitResult::Ready { runtime_id: door.node_of(served) }));
}

#[test]
fn rejections_read_as_phrases() {
    let full = Rejection::QueueFull { current_size: 80, max_size: 100, retry_after: 2 * SECOND };
    assert_eq!(full.to_string(), "queue is full, 80 of 100 wait, retry after 2s");
    let error = WaitError::Timeout { waited: SECOND, timeout: SECOND };
    assert_eq!(error.to_string(), "no slot came free, waited 1s of 1s");
    assert_eq!(Rejection::NoNode { model: MODEL }.to_string(), "no node serves model 0");
    assert_eq!(Rejection::Cancelled.wait_error(), Some(WaitError::Cancelled));
}
