//! Requests nobody waits for: they use what is idle, give way to who waits, and take turns among themselves.

use evenkeel_pipeline::{Arrival, Priority, RequestId};
use evenkeel_policy::id::TenantId;

use crate::driver::{Audits, Door, MODEL, asks};

fn job(tenant: u32) -> Arrival {
    Arrival { urgency: Priority::Background, ..asks(tenant) }
}

/// Ends whatever was sent first, and names who was sent then.
fn end_one(door: &mut Door) -> RequestId {
    let oldest = *door.flying.keys().next().unwrap();
    door.end(oldest, 1_000);
    door.dispatches.last().unwrap().0
}

#[test]
fn jobs_use_every_idle_slot_and_a_freed_one_goes_to_who_waits_first() {
    let mut door = Door::to(&[2]);
    let jobs: Vec<RequestId> = (0..2_000).map(|_| door.arrive(job(0))).collect();
    assert_eq!(door.flying.keys().copied().collect::<Vec<_>>(), jobs[..2], "all slots, and no more");
    let asked: Vec<RequestId> = (1..4).map(|tenant| door.ask(tenant)).collect();
    for request in asked {
        assert_eq!(end_one(&mut door), request, "before any job");
    }
    assert_eq!(end_one(&mut door), jobs[2], "nobody waits but jobs");
    assert!(door.rejected.is_empty());
}

#[test]
fn however_many_jobs_wait_nobody_is_slowed_or_turned_away_for_them() {
    let mut door = Door::to(&[1]).audited(Audits::AtTheEnd);
    for _ in 0..5_000 {
        door.arrive(job(0));
    }
    let asked = door.ask(1);
    assert_eq!(door.walk.delayed_until(asked), None);
    assert_eq!(door.walk.waiting(MODEL), 1);
    let status = door.walk.status();
    assert_eq!((status.waiting, status.models[0].background), (1, 4_999));
    assert!(door.rejected.is_empty());
    door.audit();
}

#[test]
fn jobs_of_two_tenants_share_by_weight() {
    let mut door = Door::to(&[4]);
    door.rule(0, 3.0, u32::MAX);
    door.rule(1, 1.0, u32::MAX);
    for n in 0..800 {
        door.arrive(job(n % 2));
    }
    door.dispatches.clear();
    for _ in 0..400 {
        end_one(&mut door);
    }
    let of_three = door.dispatches.iter().filter(|(_, tenant, _)| *tenant == TenantId(0)).count();
    assert!((292..=308).contains(&of_three), "{of_three} of 400");
}

#[test]
fn what_was_done_in_the_background_is_no_debt_to_those_who_wait() {
    let mut door = Door::to(&[1]);
    for _ in 0..50 {
        door.arrive(Arrival { cost: evenkeel_policy::cost::Cost(50_000), ..job(0) });
        end_one(&mut door);
    }
    let blocker = door.ask(2);
    for _ in 0..20 {
        door.ask(1);
    }
    let of_worker = door.ask(0);
    door.end(blocker, 1_000);
    let waits = (0..20).take_while(|_| end_one(&mut door) != of_worker).count();
    assert!(waits <= 2, "{waits} of the other went first");
}
