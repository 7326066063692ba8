//! Property tests of backpressure, deadline admission and fair admission.

use evenkeel_policy::backpressure::{
    BackpressureConfig, BackpressureController, BackpressureState, FairAdmission, WaiterState,
    admit_by_deadline, expected_wait,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use proptest::prelude::*;

fn config() -> impl Strategy<Value = BackpressureConfig> {
    (1..=1000_usize, 0.0..0.99, 0.001..1.0, 0..1_000_u64).prop_map(
        |(max_queue_size, warning, gap_fraction, millis)| {
            let overload_threshold = warning + (1.0 - warning) * gap_fraction;
            BackpressureConfig {
                max_queue_size,
                warning_threshold: warning,
                overload_threshold,
                max_delay: Duration::from_millis(millis),
            }
        },
    )
}

/// One change of the queue; the number is the tenant's id.
#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(u32),
    LeaveReserved(u32),
    ReserveSlot(u32),
    Cancel(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..30_u32).prop_map(Step::Arrive),
        1 => Just(Step::Arrive(0)),
        1 => (0..30_u32).prop_map(Step::LeaveReserved),
        1 => (0..30_u32).prop_map(Step::ReserveSlot),
        1 => (0..30_u32).prop_map(Step::Cancel),
    ]
}

/// Expected counts of one tenant (reference model).
#[derive(Clone, Copy, Default)]
struct Model {
    queued: usize,
    reserved: usize,
}

fn fair_share_requests(
    config: &BackpressureConfig,
    weights: &[Weight],
    model: &[Model],
    arrival: usize,
    tenant: usize,
) -> f64 {
    let is_active =
        |tenant: &usize| model[*tenant].queued + model[*tenant].reserved > 0 || *tenant == arrival;
    // Summed in integer thousandths, so that the sum does not depend on the order.
    let sum: u32 = (0..model.len()).filter(is_active).map(|tenant| weights[tenant].millis()).sum();
    let capacity = config.overload_threshold * config.max_queue_size as f64;
    (capacity / f64::from(sum) * f64::from(weights[tenant].millis())).max(1.0)
}

proptest! {
    #[test]
    fn the_state_depends_only_on_the_load_and_the_delay_is_bounded(config in config(), waiting in 0..2_000_usize) {
        let decision = BackpressureController::new(config).unwrap().decide(waiting);
        let load = waiting as f64 / config.max_queue_size as f64;
        let state = match load {
            load if load < config.warning_threshold => BackpressureState::Normal,
            load if load < config.overload_threshold => BackpressureState::Warning,
            _ => BackpressureState::Overloaded,
        };
        prop_assert_eq!(decision.state, state);
        prop_assert_eq!(decision.accept, state != BackpressureState::Overloaded);
        prop_assert!(decision.delay <= config.max_delay);
        prop_assert!(decision.delay.is_zero() || state == BackpressureState::Warning);
        prop_assert_eq!(decision.load_ratio.to_bits(), load.to_bits());
    }

    #[test]
    fn more_load_never_means_less_delay(config in config(), waiting in 0..1_000_usize) {
        let controller = BackpressureController::new(config).unwrap();
        let less = controller.decide(waiting);
        let more = controller.decide(waiting + 1);
        prop_assert!(less.delay <= more.delay || more.state == BackpressureState::Overloaded);
        prop_assert!(less.accept || !more.accept);
    }

    #[test]
    fn an_empty_queue_admits_any_deadline_and_the_expected_wait_grows_with_the_backlog(
        queued in 0..1_000_000_000_u64,
        rate in prop_oneof![Just(0.0), Just(f64::NAN), 1e-9..1e9],
        share in 0.0..=1.0,
        deadline in (0..600_000_u64).prop_map(Duration::from_millis),
    ) {
        prop_assert!(admit_by_deadline(expected_wait(Cost::ZERO, rate, share), deadline).is_ok());
        let less = expected_wait(Cost(queued), rate, share);
        let more = expected_wait(Cost(queued + 1), rate, share);
        prop_assert!(less <= more);
        match admit_by_deadline(less, deadline) {
            Ok(()) => prop_assert!(less.is_none_or(|wait| wait <= deadline)),
            Err(error) => {
                let wait = less.unwrap();
                prop_assert!(deadline < wait);
                prop_assert!((1..=60).contains(&error.retry_after.as_secs()) && error.retry_after.subsec_nanos() == 0);
                prop_assert!(wait <= error.retry_after || error.retry_after == Duration::from_secs(60));
            }
        }
    }

    #[test]
    fn only_tenants_above_their_share_are_evicted_and_the_capacity_is_never_exceeded(
        capacity in 1..60_usize,
        weights in prop::collection::vec((0.01..10.0).prop_map(|weight| Weight::new(weight).unwrap()), 30),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let config = BackpressureConfig { max_queue_size: capacity, ..BackpressureConfig::default() };
        // With it, a share is a tenant's part of the warning mark.
        let marked = BackpressureConfig { overload_threshold: config.warning_threshold, ..config };
        let controller = BackpressureController::new(config).unwrap();
        let mut admission_control = FairAdmission::new(controller.clone(), 30);
        let mut model = vec![Model::default(); 30];
        for step in steps {
            match step {
                Step::Arrive(id) => {
                    let tenant = TenantId(id);
                    let index = id as usize;
                    let admission = admission_control.decide(tenant, weights[index]);
                    let overloaded = admission.decision.state == BackpressureState::Overloaded;
                    let waiting = (model[index].queued + model[index].reserved) as f64;
                    let below = waiting < fair_share_requests(&config, &weights, &model, index, index);
                    let above = |other: usize| {
                        let waiting = (model[other].queued + model[other].reserved) as f64;
                        let share = fair_share_requests(&config, &weights, &model, index, other);
                        model[other].queued > 0 && share < waiting
                    };
                    if let Some(victim) = admission.evict {
                        prop_assert!(overloaded && below && above(victim.index()));
                        model[victim.index()].queued -= 1;
                    } else if overloaded && below {
                        prop_assert!(!(0..30).any(above), "a tenant above its share could have been evicted");
                        prop_assert_eq!(admission.decision.accept, admission_control.waiting() < capacity);
                    } else {
                        prop_assert_eq!(admission.decision.accept, !overloaded);
                    }
                    let mark = fair_share_requests(&marked, &weights, &model, index, index);
                    if admission.decision.state != BackpressureState::Warning || waiting < mark {
                        prop_assert!(admission.decision.delay.is_zero());
                    } else {
                        prop_assert_eq!(admission.decision, controller.decide(admission_control.waiting()));
                    }
                    let admitted = admission_control.admit(tenant, weights[index]);
                    prop_assert_eq!(admitted, Ok(admission), "`decide` must not change the state");
                    if admission.decision.accept {
                        model[index].queued += 1;
                    }
                }
                Step::ReserveSlot(id) if model[id as usize].queued > 0 => {
                    model[id as usize].queued -= 1;
                    model[id as usize].reserved += 1;
                    admission_control.reserve(TenantId(id));
                }
                Step::LeaveReserved(id) if model[id as usize].reserved > 0 => {
                    model[id as usize].reserved -= 1;
                    admission_control.leave(TenantId(id), WaiterState::Reserved);
                }
                Step::Cancel(id) if model[id as usize].queued > 0 => {
                    model[id as usize].queued -= 1;
                    admission_control.leave(TenantId(id), WaiterState::Queued);
                }
                Step::ReserveSlot(_) | Step::LeaveReserved(_) | Step::Cancel(_) => {}
            }
            let total: usize = model.iter().map(|tenant| tenant.queued + tenant.reserved).sum();
            prop_assert_eq!(admission_control.waiting(), total);
            prop_assert!(total <= capacity);
        }
    }
}
