//! Admission: backpressure by load and by fair share, compared with a bare limit.

use std::hint::black_box;

use evenkeel_policy::backpressure::{BackpressureConfig, BackpressureController, FairAdmission};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::weight::Weight;

use super::Group;
use crate::measure::{Contender, Work};

/// Load: waiting requests as a fraction of the capacity.
const NORMAL: f64 = 0.2;
const WARNING: f64 = 0.6;
const OVERLOADED: f64 = 0.8;

pub(super) fn groups() -> Vec<Group> {
    let capacities = [100, 1_000];
    capacities
        .map(|capacity| Group::new(format!("backpressure/{capacity}-places"), move || contenders(capacity)))
        .into()
}

fn contenders(capacity: usize) -> Vec<Contender> {
    let waiting = |load: f64| (capacity as f64 * load) as usize;
    let plain = |load| Plain { controller: controller(capacity), waiting: waiting(load) };
    let fair = |load| Fair::crowded(capacity, waiting(load));
    vec![
        Contender::new("bare limit", BareLimit { capacity, waiting: waiting(NORMAL) }),
        Contender::new("bare limit again", BareLimit { capacity, waiting: waiting(NORMAL) }),
        Contender::new("plain normal", plain(NORMAL)),
        Contender::new("plain warning", plain(WARNING)),
        Contender::new("plain overloaded", plain(OVERLOADED)),
        Contender::new("fair normal", fair(NORMAL)),
        Contender::new("fair warning", fair(WARNING)),
        Contender::new("fair overloaded", fair(OVERLOADED)),
    ]
}

/// Compares two numbers.
struct BareLimit {
    capacity: usize,
    waiting: usize,
}

impl Work for BareLimit {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            black_box(black_box(self.waiting) < self.capacity);
        }
    }
}

/// Decides by load alone.
struct Plain {
    controller: BackpressureController,
    waiting: usize,
}

impl Work for Plain {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            black_box(self.controller.decide(black_box(self.waiting)));
        }
    }
}

/// Decides on a new tenant's request in the worst case: almost every waiting request belongs to a different tenant.
struct Fair {
    admission: FairAdmission,
    new_tenant: TenantId,
}

impl Fair {
    fn crowded(capacity: usize, waiting: usize) -> Self {
        let mut admission = FairAdmission::new(controller(capacity), capacity as u32);
        // The last tenant has two waiting requests. With the new tenant, that is above its share, and the search for a
        // tenant above its share finds it last.
        let others = waiting as u32 - 1;
        for tenant in (0..others).chain([others - 1]) {
            admission.join(TenantId(tenant), Weight::ONE).expect("there are fewer tenants than tenants_max");
        }
        Self { admission, new_tenant: TenantId(others) }
    }
}

impl Work for Fair {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            black_box(self.admission.decide(black_box(self.new_tenant), Weight::ONE));
        }
    }
}

fn controller(capacity: usize) -> BackpressureController {
    let config = BackpressureConfig { max_queue_size: capacity, ..BackpressureConfig::default() };
    BackpressureController::new(config).expect("the capacity is within the limit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::backpressure::BackpressureState;

    #[test]
    fn each_load_leads_to_the_state_that_it_is_named_after() {
        for capacity in [100, 1_000] {
            for (load, state) in [
                (NORMAL, BackpressureState::Normal),
                (WARNING, BackpressureState::Warning),
                (OVERLOADED, BackpressureState::Overloaded),
            ] {
                let waiting = (capacity as f64 * load) as usize;
                assert_eq!(controller(capacity).decide(waiting).state, state);
                let fair = Fair::crowded(capacity, waiting);
                assert_eq!(fair.admission.waiting(), waiting);
                let decided = fair.admission.decide(fair.new_tenant, Weight::ONE);
                assert_eq!(decided.decision.state, state);
                let evicts = state == BackpressureState::Overloaded;
                assert_eq!(decided.evict.is_some(), evicts);
            }
        }
    }
}
