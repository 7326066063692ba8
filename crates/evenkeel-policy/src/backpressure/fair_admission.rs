//! Admission that knows who waits: a flood is turned away, not everybody else.

use alloc::vec::Vec;
use core::fmt;

use super::{BackpressureController, BackpressureDecision, BackpressureState};
use crate::id::TenantId;
use crate::time::Duration;
use crate::weight::Weight;

/// Decides by who holds how many of the waiting places.
///
/// A tenant's share of the places is `overload_threshold × max_queue_size × weight / Σ weights of the waiting
/// tenants` (an arrival's included), at least 1. The caller tells who comes and goes; nothing here waits.
#[derive(Clone, Debug)]
pub struct FairAdmission {
    controller: BackpressureController,
    holdings: Vec<TenantOccupancy>,
    /// Tenants that hold at least one place, in no particular order.
    present: Vec<u32>,
    waiting: usize,
    /// Sum of the weights of the tenants present, in thousandths.
    weights: u64,
    tenants_max: u32,
}

/// What one tenant holds.
#[derive(Clone, Copy, Debug)]
struct TenantOccupancy {
    weight: Weight,
    queued: u32,
    reserved: u32,
    /// Its place in `present`, while it holds any.
    at: u32,
}

impl TenantOccupancy {
    const NONE: Self = Self { weight: Weight::ONE, queued: 0, reserved: 0, at: 0 };

    fn waiting(&self) -> u32 {
        self.queued + self.reserved
    }
}

/// How far a waiting request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaiterState {
    /// It waits for a slot.
    Queued,
    /// A slot is reserved for it: it is never pushed out.
    Reserved,
}

/// What to do with an arrival, and who makes room for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// Whether and when the arrival is taken.
    pub decision: BackpressureDecision,
    /// The tenant whose newest queued request gets the rejection instead.
    pub evict: Option<TenantId>,
}

impl FairAdmission {
    /// Makes an empty queue's admission, for tenants with ids below `tenants_max`.
    pub fn new(controller: BackpressureController, tenants_max: u32) -> Self {
        Self { controller, holdings: Vec::new(), present: Vec::new(), waiting: 0, weights: 0, tenants_max }
    }

    /// Decides on one more request of `tenant` and keeps the books: the request waits from now on if it was taken, its
    /// Warning delay included, and the one it pushed out does not.
    pub fn admit(&mut self, tenant: TenantId, weight: Weight) -> Result<Admission, TooManyTenants> {
        let admission = self.decide(tenant, weight);
        if admission.decision.accept {
            self.join(tenant, weight)?;
        }
        if let Some(victim) = admission.evict {
            self.leave(victim, WaiterState::Queued);
        }
        Ok(admission)
    }

    /// Decides on one more request of `tenant` without taking it.
    pub fn decide(&self, tenant: TenantId, weight: Weight) -> Admission {
        let plain = self.controller.decide(self.waiting);
        let holding = self.holding(tenant);
        let counted = if holding.waiting() > 0 { holding.weight } else { weight };
        let below_share =
            f64::from(holding.waiting()) < share(self.places_per_weight(tenant, weight), counted);
        match plain.state {
            BackpressureState::Normal => Admission { decision: plain, evict: None },
            BackpressureState::Warning if below_share => Admission { decision: taken(plain), evict: None },
            BackpressureState::Warning => Admission { decision: plain, evict: None },
            BackpressureState::Overloaded if below_share => self.make_room(plain, tenant, weight),
            BackpressureState::Overloaded => Admission { decision: plain, evict: None },
        }
    }

    /// Notes a request that waits without having been decided on here, such as one taken over from another queue.
    pub fn join(&mut self, tenant: TenantId, weight: Weight) -> Result<(), TooManyTenants> {
        if self.tenants_max <= tenant.0 {
            return Err(TooManyTenants { tenants_max: self.tenants_max });
        }
        if self.holdings.len() <= tenant.index() {
            self.holdings.resize(tenant.index() + 1, TenantOccupancy::NONE);
        }
        let holding = &mut self.holdings[tenant.index()];
        if holding.waiting() == 0 {
            // At most as many tenants are present as requests wait.
            holding.at = self.present.len() as u32;
            holding.weight = weight;
            self.weights += u64::from(weight.millis());
            self.present.push(tenant.0);
        }
        holding.queued += 1;
        self.waiting += 1;
        Ok(())
    }

    /// Notes that a slot is reserved for one of `tenant`'s queued requests.
    pub fn reserve(&mut self, tenant: TenantId) {
        if let Some(holding) = self.holdings.get_mut(tenant.index()).filter(|holding| holding.queued > 0) {
            holding.queued -= 1;
            holding.reserved += 1;
        }
    }

    /// Notes that one of `tenant`'s requests waits no more: served, pushed out, timed out or gone.
    pub fn leave(&mut self, tenant: TenantId, waiter: WaiterState) {
        let Some(holding) = self.holdings.get_mut(tenant.index()) else { return };
        let count = match waiter {
            WaiterState::Queued => &mut holding.queued,
            WaiterState::Reserved => &mut holding.reserved,
        };
        if *count == 0 {
            return;
        }
        *count -= 1;
        self.waiting -= 1;
        if holding.waiting() > 0 {
            return;
        }
        self.weights -= u64::from(holding.weight.millis());
        let at = holding.at;
        self.present.swap_remove(at as usize);
        if let Some(&moved) = self.present.get(at as usize) {
            self.holdings[moved as usize].at = at;
        }
    }

    /// Gives a tenant another weight, also for the places it holds.
    pub fn update_weight(&mut self, tenant: TenantId, weight: Weight) {
        if let Some(holding) = self.holdings.get_mut(tenant.index()).filter(|holding| holding.waiting() > 0) {
            self.weights = self.weights - u64::from(holding.weight.millis()) + u64::from(weight.millis());
            holding.weight = weight;
        }
    }

    /// Counts the requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Counts the requests of one tenant that wait.
    pub fn waiting_of(&self, tenant: TenantId) -> usize {
        self.holding(tenant).waiting() as usize
    }

    /// A tenant's part of the waiting tenants' weights, its own included: 0 to 1.
    pub fn weight_share(&self, tenant: TenantId, weight: Weight) -> f64 {
        let holding = self.holding(tenant);
        if holding.waiting() > 0 {
            return f64::from(holding.weight.millis()) / self.weights as f64;
        }
        let weight = f64::from(weight.millis());
        weight / (self.weights as f64 + weight)
    }

    fn holding(&self, tenant: TenantId) -> TenantOccupancy {
        self.holdings.get(tenant.index()).copied().unwrap_or(TenantOccupancy::NONE)
    }

    /// How many places a thousandth of weight is worth once the arrival counts.
    ///
    /// Every share is a multiple of this one number, so that an arrival below its share and a tenant above its own are
    /// told apart by the same rounding.
    fn places_per_weight(&self, arrival: TenantId, weight: Weight) -> f64 {
        let newcomer = if self.holding(arrival).waiting() > 0 { 0 } else { u64::from(weight.millis()) };
        let config = self.controller.config();
        config.overload_threshold * config.max_queue_size as f64 / (self.weights + newcomer) as f64
    }

    fn make_room(&self, plain: BackpressureDecision, tenant: TenantId, weight: Weight) -> Admission {
        let evict = self.furthest_above_share(tenant, weight);
        if evict.is_some() || self.waiting < self.controller.config().max_queue_size {
            return Admission { decision: taken(plain), evict };
        }
        Admission { decision: plain, evict: None }
    }

    /// Names the tenant that holds most above its share once the arrival counts; ties go to the lowest id.
    fn furthest_above_share(&self, arrival: TenantId, weight: Weight) -> Option<TenantId> {
        let per_weight = self.places_per_weight(arrival, weight);
        let mut furthest: Option<(f64, u32)> = None;
        for &tenant in &self.present {
            let holding = &self.holdings[tenant as usize];
            let above = f64::from(holding.waiting()) - share(per_weight, holding.weight);
            if above <= 0.0 || holding.queued == 0 {
                continue;
            }
            if furthest.is_none_or(|(most, id)| most < above || (most <= above && tenant < id)) {
                furthest = Some((above, tenant));
            }
        }
        furthest.map(|(_, tenant)| TenantId(tenant))
    }
}

/// A tenant beyond what the admission was set up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTenants {
    /// How many tenants there may be.
    pub tenants_max: u32,
}

impl fmt::Display for TooManyTenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} tenants", self.tenants_max)
    }
}

impl core::error::Error for TooManyTenants {}

fn share(places_per_weight: f64, weight: Weight) -> f64 {
    (places_per_weight * f64::from(weight.millis())).max(1.0)
}

/// The same load, but the request is taken at once.
fn taken(decision: BackpressureDecision) -> BackpressureDecision {
    BackpressureDecision { accept: true, delay: Duration::ZERO, ..decision }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backpressure::BackpressureConfig;
    use alloc::string::ToString;

    const FLOOD: TenantId = TenantId(0);
    const QUIET: TenantId = TenantId(1);
    const THIRD: TenantId = TenantId(2);

    /// By load alone the flood fills the queue and the quiet tenant gets the rejection.
    #[test]
    fn a_flood_is_turned_away_and_a_quiet_tenant_is_not() {
        let mut queue = admission(100);
        let mut flood_rejected = 0;
        let mut plain_rejected_quiet = 0;
        for request in 0..1_000 {
            if offer(&mut queue, FLOOD) == Offer::Rejected {
                flood_rejected += 1;
            }
            if request % 100 == 99 {
                plain_rejected_quiet += u32::from(!queue.controller.decide(queue.waiting()).accept);
                let outcome = offer(&mut queue, QUIET);
                assert_eq!(outcome, Offer::Took { pushed_out: Some(FLOOD) });
                queue.leave(QUIET, WaiterState::Queued);
            }
        }
        assert!(flood_rejected > 900);
        assert_eq!(
            plain_rejected_quiet, 10,
            "by load alone every one of the quiet tenant's requests is lost"
        );
    }

    #[test]
    fn the_tenant_furthest_above_its_share_makes_room() {
        let mut queue = admission(100);
        fill(&mut queue, FLOOD, 50);
        fill(&mut queue, THIRD, 30);
        assert_eq!(queue.decide(QUIET, Weight::ONE).evict, Some(FLOOD));
        // Shares of 80 places by 5:1:1 are 57, 11 and 11: now the other is furthest above.
        queue.update_weight(FLOOD, Weight::whole(5).unwrap());
        assert_eq!(queue.decide(QUIET, Weight::ONE).evict, Some(THIRD));
    }

    #[test]
    fn a_new_weight_counts_for_who_waits_and_only_once() {
        let mut queue = admission(100);
        fill(&mut queue, FLOOD, 3);
        fill(&mut queue, THIRD, 1);
        queue.update_weight(FLOOD, Weight::whole(2).unwrap());
        queue.update_weight(FLOOD, Weight::whole(3).unwrap());
        queue.update_weight(QUIET, Weight::MAX);
        queue.update_weight(TenantId(50), Weight::MAX);
        assert!((queue.weight_share(FLOOD, Weight::ONE) - 0.75).abs() < 1e-12);
        assert!((queue.weight_share(THIRD, Weight::ONE) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn ties_go_to_the_lowest_id_in_any_order() {
        for order in [[FLOOD, THIRD], [THIRD, FLOOD]] {
            let mut queue = admission(100);
            for tenant in order {
                fill(&mut queue, tenant, 40);
            }
            assert_eq!(queue.decide(QUIET, Weight::ONE).evict, Some(FLOOD));
        }
    }

    #[test]
    fn a_reserved_waiter_is_never_pushed_out() {
        let mut queue = admission(10);
        fill(&mut queue, FLOOD, 8);
        for _ in 0..8 {
            queue.reserve(FLOOD);
        }
        let admission = queue.decide(QUIET, Weight::ONE);
        assert_eq!((admission.evict, admission.decision.accept), (None, true), "room up to the last place");
        fill(&mut queue, THIRD, 2);
        assert!(!queue.decide(QUIET, Weight::ONE).decision.accept, "THIRD is not above its share of 2.67");
        queue.leave(FLOOD, WaiterState::Reserved);
        assert!(queue.decide(QUIET, Weight::ONE).decision.accept);
    }

    #[test]
    fn with_more_tenants_than_places_each_holds_one_and_the_rest_are_turned_away() {
        let mut queue = admission(10);
        let taken = (0..50).filter(|&tenant| offer(&mut queue, TenantId(tenant)) != Offer::Rejected).count();
        assert_eq!((taken, queue.waiting()), (10, 10));
        // Holding two is above the share of at least one: a flood still makes room.
        queue.leave(TenantId(9), WaiterState::Queued);
        queue.join(TenantId(0), Weight::ONE).unwrap();
        assert_eq!(offer(&mut queue, TenantId(42)), Offer::Took { pushed_out: Some(TenantId(0)) });
    }

    #[test]
    fn below_its_share_a_tenant_skips_the_warning_delay() {
        let mut queue = admission(100);
        fill(&mut queue, FLOOD, 70);
        let flood = queue.decide(FLOOD, Weight::ONE).decision;
        let quiet = queue.decide(QUIET, Weight::ONE).decision;
        assert_eq!((flood.state, quiet.state), (BackpressureState::Warning, BackpressureState::Warning));
        assert_eq!(flood.delay, Duration::ZERO, "alone, its share is all of the 80 places");
        assert_eq!(quiet.delay, Duration::ZERO);
        queue.join(QUIET, Weight::ONE).unwrap();
        assert!(queue.decide(FLOOD, Weight::ONE).decision.delay > Duration::from_millis(60));
        assert_eq!(queue.decide(QUIET, Weight::ONE).decision.delay, Duration::ZERO);
    }

    #[test]
    fn a_lone_tenant_is_turned_away_at_the_overload_threshold() {
        let mut queue = admission(100);
        let taken = (0..200).filter(|_| offer(&mut queue, FLOOD) != Offer::Rejected).count();
        assert_eq!(taken, 80);
    }

    #[test]
    fn who_leaves_twice_is_counted_once() {
        let mut queue = admission(100);
        fill(&mut queue, FLOOD, 1);
        fill(&mut queue, THIRD, 3);
        queue.leave(FLOOD, WaiterState::Reserved);
        assert_eq!(queue.waiting(), 4);
        queue.leave(FLOOD, WaiterState::Queued);
        queue.leave(FLOOD, WaiterState::Queued);
        queue.leave(TenantId(77), WaiterState::Queued);
        queue.reserve(FLOOD);
        assert_eq!((queue.waiting(), queue.waiting_of(FLOOD), queue.waiting_of(THIRD)), (3, 0, 3));
        assert!((queue.weight_share(THIRD, Weight::ONE) - 1.0).abs() < 1e-12);
        assert!((queue.weight_share(FLOOD, Weight::ONE) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_tenant_beyond_the_limit_is_refused_and_leaves_no_trace() {
        let mut queue = admission(100);
        let refused = queue.admit(TenantId(u32::MAX), Weight::ONE).unwrap_err();
        assert_eq!(refused.to_string(), "more than 100 tenants");
        assert_eq!((queue.waiting(), queue.holdings.len()), (0, 0));
        assert_eq!(offer(&mut queue, TenantId(99)), Offer::Took { pushed_out: None });
    }

    #[derive(Debug, PartialEq)]
    enum Offer {
        Took { pushed_out: Option<TenantId> },
        Rejected,
    }

    fn offer(queue: &mut FairAdmission, tenant: TenantId) -> Offer {
        let admission = queue.admit(tenant, Weight::ONE).unwrap();
        match admission.decision.accept {
            true => Offer::Took { pushed_out: admission.evict },
            false => Offer::Rejected,
        }
    }

    fn fill(queue: &mut FairAdmission, tenant: TenantId, places: usize) {
        for _ in 0..places {
            queue.join(tenant, Weight::ONE).unwrap();
        }
    }

    fn admission(max_queue_size: usize) -> FairAdmission {
        let config = BackpressureConfig { max_queue_size, ..BackpressureConfig::default() };
        FairAdmission::new(BackpressureController::new(config).unwrap(), 100)
    }
}
