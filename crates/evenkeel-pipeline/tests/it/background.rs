//! Background requests (jobs) use idle slots, yield to interactive requests, and share fairly among tenants.

use evenkeel_pipeline::{Arrival, Priority, RequestId};
use evenkeel_policy::id::TenantId;

use crate::driver::{Audits, Driver, MODEL, arrival_of};

fn job(tenant: u32) -> Arrival {
    Arrival { priority: Priority::Background, ..arrival_of(tenant) }
}

/// Ends the oldest request in flight; returns the request dispatched to its slot.
fn end_one(driver: &mut Driver) -> RequestId {
    let oldest = *driver.in_flight.keys().next().unwrap();
    driver.end(oldest, 1_000);
    driver.dispatches.last().unwrap().0
}

#[test]
fn background_jobs_use_every_idle_slot_and_interactive_requests_get_freed_slots_first() {
    let mut driver = Driver::with_nodes(&[2]);
    let jobs: Vec<RequestId> = (0..2_000).map(|_| driver.arrive(job(0))).collect();
    assert_eq!(driver.in_flight.keys().copied().collect::<Vec<_>>(), jobs[..2], "all slots are used");
    let interactive: Vec<RequestId> = (1..4).map(|tenant| driver.submit(tenant)).collect();
    for request in interactive {
        assert_eq!(end_one(&mut driver), request, "interactive requests come before jobs");
    }
    assert_eq!(end_one(&mut driver), jobs[2], "only jobs are waiting");
    assert!(driver.rejected.is_empty());
}

#[test]
fn waiting_jobs_never_delay_or_reject_interactive_requests() {
    let mut driver = Driver::with_nodes(&[1]).with_audits(Audits::Manual);
    for _ in 0..5_000 {
        driver.arrive(job(0));
    }
    let request = driver.submit(1);
    assert_eq!(driver.pipeline.delayed_until(request), None);
    assert_eq!(driver.pipeline.waiting(MODEL), 1);
    let status = driver.pipeline.status();
    assert_eq!((status.waiting, status.models[0].background), (1, 4_999));
    assert!(driver.rejected.is_empty());
    driver.audit();
}

#[test]
fn background_jobs_of_two_tenants_share_by_weight() {
    let mut driver = Driver::with_nodes(&[4]);
    driver.set_rule(0, 3.0, u32::MAX);
    driver.set_rule(1, 1.0, u32::MAX);
    for n in 0..800 {
        driver.arrive(job(n % 2));
    }
    driver.dispatches.clear();
    for _ in 0..400 {
        end_one(&mut driver);
    }
    let of_weight_3 = driver.dispatches.iter().filter(|(_, tenant, _)| *tenant == TenantId(0)).count();
    assert!((292..=308).contains(&of_weight_3), "{of_weight_3} of 400");
}

#[test]
fn background_work_is_not_charged_against_interactive_requests() {
    let mut driver = Driver::with_nodes(&[1]);
    for _ in 0..50 {
        driver.arrive(Arrival { cost: evenkeel_policy::cost::Cost(50_000), ..job(0) });
        end_one(&mut driver);
    }
    let blocker = driver.submit(2);
    for _ in 0..20 {
        driver.submit(1);
    }
    let of_tenant_0 = driver.submit(0);
    driver.end(blocker, 1_000);
    let served_before = (0..20).take_while(|_| end_one(&mut driver) != of_tenant_0).count();
    assert!(served_before <= 2, "{served_before} of the other tenant's requests were served first");
}
