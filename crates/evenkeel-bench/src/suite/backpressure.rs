//! Whether to take a request.

use std::hint::black_box;

use evenkeel_policy::backpressure::{BackpressureConfig, BackpressureController, FairAdmission};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::weight::Weight;

use super::Group;
use crate::measure::{Contender, Work};

/// How many wait, as a part of the places.
const NORMAL: f64 = 0.2;
const WARNING: f64 = 0.6;
const OVERLOADED: f64 = 0.8;

pub(super) fn groups() -> Vec<Group> {
    let places = [100, 1_000];
    places
        .map(|places| Group::new(format!("backpressure/{places}-places"), move || contenders(places)))
        .into()
}

fn contenders(places: usize) -> Vec<Contender> {
    let waiting = |load: f64| (places as f64 * load) as usize;
    let plain = |load| Plain { controller: controller(places), waiting: waiting(load) };
    let fair = |load| Fair::crowded(places, waiting(load));
    vec![
        Contender::new("bare limit", BareLimit { places, waiting: waiting(NORMAL) }),
        Contender::new("bare limit again", BareLimit { places, waiting: waiting(NORMAL) }),
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
    places: usize,
    waiting: usize,
}

impl Work for BareLimit {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            black_box(black_box(self.waiting) < self.places);
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

/// Decides on a newcomer while as many others wait as can: all places but one are held by different tenants.
struct Fair {
    admission: FairAdmission,
    newcomer: TenantId,
}

impl Fair {
    fn crowded(places: usize, waiting: usize) -> Self {
        let mut admission = FairAdmission::new(controller(places), places as u32);
        // The last of them holds two: above its share once the newcomer counts, and found last.
        let others = waiting as u32 - 1;
        for tenant in (0..others).chain([others - 1]) {
            admission.join(TenantId(tenant), Weight::ONE).expect("there are fewer tenants than places");
        }
        Self { admission, newcomer: TenantId(others) }
    }
}

impl Work for Fair {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            black_box(self.admission.decide(black_box(self.newcomer), Weight::ONE));
        }
    }
}

fn controller(places: usize) -> BackpressureController {
    let config = BackpressureConfig { max_queue_size: places, ..BackpressureConfig::default() };
    BackpressureController::new(config).expect("places are within the limit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::backpressure::BackpressureState;

    #[test]
    fn loads_are_what_their_names_say() {
        for places in [100, 1_000] {
            for (load, state) in [
                (NORMAL, BackpressureState::Normal),
                (WARNING, BackpressureState::Warning),
                (OVERLOADED, BackpressureState::Overloaded),
            ] {
                let waiting = (places as f64 * load) as usize;
                assert_eq!(controller(places).decide(waiting).state, state);
                let fair = Fair::crowded(places, waiting);
                assert_eq!(fair.admission.waiting(), waiting);
                let decided = fair.admission.decide(fair.newcomer, Weight::ONE);
                assert_eq!(decided.decision.state, state);
                let pushes_out = state == BackpressureState::Overloaded;
                assert_eq!(decided.evict.is_some(), pushes_out);
            }
        }
    }
}
