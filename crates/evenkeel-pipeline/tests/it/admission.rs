//! Admission: bounded queues, backpressure delays, rejections with a retry time.

use evenkeel_pipeline::{
    Arrival, Event, ModelId, PipelineLimits, PipelineOptions, Rejection, WaitError, WaitResult,
};
use evenkeel_policy::backpressure::BackpressureState;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;

use crate::driver::{Driver, MODEL, arrival_of};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn in_the_warning_band_a_tenant_above_its_share_is_delayed_before_it_is_queued() {
    let mut driver = Driver::with_nodes(&[1]);
    // A second tenant in the queue halves the first one's share to 40 of 100.
    driver.submit(0);
    driver.submit(1);
    (0..59).for_each(|_| {
        driver.submit(0);
    });
    assert_eq!(driver.pipeline.status().state, BackpressureState::Warning);
    let delayed = driver.submit(0);
    let later = driver.submit(2);
    let entry = driver.pipeline.wait_entry(delayed).unwrap();
    assert_eq!((entry.started_at, entry.timeout_at), (driver.now, driver.now + 30 * SECOND));
    assert_eq!((entry.request_id, entry.model_id), (delayed, MODEL));
    let due = driver.pipeline.poll_timeout().unwrap();
    assert!(due > driver.now && due <= driver.now + Duration::from_millis(100), "{due:?}");
    assert!(driver.pipeline.wait_entry(later).is_some());
    let until = [delayed, later].map(|request| driver.pipeline.delayed_until(request));
    let delays = until.map(|until| until.map(|until| until.since(driver.now).as_millis()));
    assert_eq!(
        (delays, driver.pipeline.waiting(MODEL)),
        ([Some(33), None], 62),
        "a delayed request counts as waiting"
    );
}

#[test]
fn a_full_queue_rejects_with_its_size_and_a_retry_time() {
    let mut driver = Driver::with_nodes(&[1]);
    driver.submit(0);
    let requests: Vec<_> = (0..81).map(|_| driver.submit(0)).collect();
    let last = driver.rejected[requests.last().unwrap()];
    assert_eq!(last, Rejection::QueueFull { current_size: 80, max_size: 100, retry_after: SECOND });
    assert_eq!(last.wait_error(), Some(WaitError::QueueFull { current_size: 80, max_size: 100 }));
    assert_eq!(last.wait_result(), Some(WaitResult::Rejected { queue_size: 80 }));
}

#[test]
fn at_most_max_waiting_requests_wait_and_the_whole_capacity_is_usable() {
    let mut driver = Driver::with_nodes(&[1]);
    driver.submit(0);
    for tenant in 0..200 {
        driver.submit(tenant);
        assert!(driver.waiting() <= 100);
    }
    assert_eq!(driver.waiting(), 100, "a tenant without a waiting request is below its share");
    assert_eq!(driver.pipeline.status().counts.queue_full, 100);
}

#[test]
fn the_newest_queued_request_is_evicted_and_never_one_in_flight() {
    let mut driver = Driver::with_nodes(&[2]);
    let flood: Vec<_> = (0..82).map(|_| driver.submit(0)).collect();
    let quiet = driver.submit(1);
    let evicted: Vec<_> = driver.rejected.keys().copied().collect();
    assert_eq!(evicted, [flood[81]]);
    assert!(matches!(driver.rejected[&flood[81]], Rejection::Evicted { max_size: 100, .. }));
    assert!(driver.is_in_flight(flood[0]) && driver.is_in_flight(flood[1]));
    let counts = driver.pipeline.status().counts;
    assert_eq!((counts.evicted, counts.backpressure_rejections()), (1, 1));
    driver.end(flood[0], 500);
    driver.end(flood[1], 500);
    assert!(driver.is_in_flight(quiet), "a new key is served before the flood's backlog");
}

#[test]
fn a_request_that_waits_too_long_times_out_and_frees_its_queue_capacity() {
    let mut driver = Driver::with_nodes(&[1]);
    driver.submit(0);
    let without_deadline = driver.submit(0);
    let with_deadline = driver.arrive(Arrival { deadline: Some(2 * SECOND), ..arrival_of(0) });
    driver.advance(2 * SECOND);
    assert_eq!(
        driver.rejected[&with_deadline],
        Rejection::WaitTimeout { waited: 2 * SECOND, timeout: 2 * SECOND }
    );
    driver.advance(28 * SECOND);
    let timeout = driver.rejected[&without_deadline];
    assert_eq!(timeout, Rejection::WaitTimeout { waited: 30 * SECOND, timeout: 30 * SECOND });
    assert_eq!(timeout.wait_result(), Some(WaitResult::Timeout { waited: 30 * SECOND }));
    assert_eq!(driver.waiting(), 0);
    assert_eq!(driver.pipeline.status().counts.timed_out, 2);
}

/// One slot that serves 500 units per second: with twenty requests queued, the next waits twenty seconds.
#[test]
fn a_request_that_would_wait_past_its_deadline_is_rejected_at_once() {
    let mut driver = Driver::with_nodes(&[1]);
    let mut running = driver.submit(0);
    (0..35).for_each(|_| {
        driver.submit(0);
    });
    for _ in 0..15 {
        driver.advance(SECOND);
        driver.end(running, 500);
        running = driver.dispatches.last().unwrap().0;
    }
    assert_eq!(driver.waiting(), 20);
    let late = driver.arrive(Arrival { deadline: Some(10 * SECOND), ..arrival_of(0) });
    let Rejection::WouldMissDeadline { retry_after } = driver.rejected[&late] else {
        panic!("expected WouldMissDeadline, got {:?}", driver.rejected[&late])
    };
    // The throughput is measured in slices of a tenth of the window, so it is off by up to one request per slice.
    assert!((18 * SECOND..=20 * SECOND).contains(&retry_after), "{retry_after:?}");
    let in_time = driver.arrive(Arrival { deadline: Some(25 * SECOND), ..arrival_of(0) });
    assert!(!driver.rejected.contains_key(&in_time));
    let quiet = driver.arrive(Arrival { deadline: Some(SECOND), ..arrival_of(1) });
    assert!(!driver.rejected.contains_key(&quiet), "a tenant with nothing queued is not rejected");
}

#[test]
fn the_measured_throughput_is_reset_when_the_pool_grows() {
    let mut driver = Driver::with_nodes(&[1]);
    let mut running = driver.submit(0);
    (0..20).for_each(|_| {
        driver.submit(0);
    });
    for _ in 0..5 {
        driver.advance(SECOND);
        driver.end(running, 500);
        running = driver.dispatches.last().unwrap().0;
    }
    let rate = |driver: &Driver| driver.pipeline.status().models[0].rate;
    assert!(rate(&driver).is_some());
    driver.add(1, &[MODEL]);
    assert_eq!(rate(&driver), None);
}

/// The throughput over a mostly idle minute is close to zero and says nothing about capacity.
#[test]
fn idle_time_does_not_lower_the_measured_throughput() {
    let mut driver = Driver::with_nodes(&[1]);
    for _ in 0..60 {
        let request = driver.submit(0);
        driver.advance(SECOND);
        driver.end(request, 500);
        driver.advance(59 * SECOND);
    }
    assert_eq!(driver.pipeline.status().models[0].rate, None, "no request waited, so nothing was measured");
    (0..20).for_each(|_| {
        driver.arrive(Arrival { deadline: Some(25 * SECOND), ..arrival_of(0) });
    });
    assert!(driver.rejected.is_empty());
}

#[test]
fn requests_for_unknown_or_unserved_ids_are_rejected_with_the_reason() {
    let limits = PipelineLimits { tenants_max: 2, models_max: 2, ..PipelineLimits::default() };
    let mut driver = Driver::new(PipelineOptions { limits, ..PipelineOptions::default() });
    driver.add(1, &[MODEL]);
    for (arrival, rejection) in [
        (arrival_of(2), Rejection::UnknownTenant { tenant: TenantId(2) }),
        (Arrival { model: ModelId(2), ..arrival_of(0) }, Rejection::UnknownModel { model: ModelId(2) }),
        (Arrival { model: ModelId(1), ..arrival_of(0) }, Rejection::NoNode { model: ModelId(1) }),
    ] {
        let request = driver.arrive(arrival);
        assert_eq!(driver.rejected[&request], rejection);
        assert_eq!(rejection.wait_result(), None);
    }
    let served = driver.submit(1);
    assert!(driver.is_in_flight(served));
    let ready = driver.events.iter().find_map(Event::wait_result);
    assert_eq!(ready, Some(WaitResult::Ready { runtime_id: driver.node_of(served) }));
}

#[test]
fn rejections_are_displayed_as_phrases() {
    let full = Rejection::QueueFull { current_size: 80, max_size: 100, retry_after: 2 * SECOND };
    assert_eq!(full.to_string(), "queue is full: 80 of 100 requests waiting, retry after 2s");
    let error = WaitError::Timeout { waited: SECOND, timeout: SECOND };
    assert_eq!(error.to_string(), "no slot became free within 1s, waited 1s");
    assert_eq!(Rejection::NoNode { model: MODEL }.to_string(), "no node serves model 0");
    assert_eq!(Rejection::Cancelled.wait_error(), Some(WaitError::Cancelled));
}
