//! Fair admission: load shedding that rejects or evicts requests of the tenants above their share, not of the others.

use alloc::vec::Vec;

use super::{BackpressureController, BackpressureDecision, BackpressureState};
use crate::id::TenantId;
use crate::time::Duration;
use crate::weight::Weight;

/// Admission control by each tenant's fair share of the queue's capacity.
///
/// A tenant's fair share is `overload_threshold × max_queue_size × weight / Σ weights of the waiting tenants` (an
/// arrival's included), at least 1. In the Warning state a request is delayed if its tenant holds its part of the warning
/// mark, `warning_threshold × max_queue_size × weight / Σ weights`: a lone tenant always does, and among several at least
/// one. The caller reports arrivals and departures; nothing here waits.
#[derive(Clone, Debug)]
pub struct FairAdmission {
    controller: BackpressureController,
    occupancies: Vec<TenantOccupancy>,
    /// Tenants with at least one waiting request, in no particular order.
    waiting_tenants: Vec<u32>,
    waiting: usize,
    /// Sum of the weights of `waiting_tenants`, in thousandths.
    weight_sum: u64,
    tenants_max: u32,
}

/// Waiting requests of one tenant.
#[derive(Clone, Copy, Debug)]
struct TenantOccupancy {
    weight: Weight,
    queued: u32,
    reserved: u32,
    /// Index in `waiting_tenants`; valid only while the tenant has waiting requests.
    index: u32,
}

impl TenantOccupancy {
    const NONE: Self = Self { weight: Weight::ONE, queued: 0, reserved: 0, index: 0 };

    fn waiting(&self) -> u32 {
        self.queued + self.reserved
    }
}

/// State of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaiterState {
    /// Waits for a slot.
    Queued,
    /// A slot is reserved for it: it is never evicted.
    Reserved,
}

/// Decision on an arrival, with the eviction that makes room for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// Backpressure decision on the arrival itself.
    pub decision: BackpressureDecision,
    /// Tenant whose newest queued request is evicted to make room for the arrival.
    pub evict: Option<TenantId>,
}

impl FairAdmission {
    /// Creates the admission control of an empty queue, for tenants with ids below `tenants_max`.
    pub fn new(controller: BackpressureController, tenants_max: u32) -> Self {
        Self {
            controller,
            occupancies: Vec::new(),
            waiting_tenants: Vec::new(),
            waiting: 0,
            weight_sum: 0,
            tenants_max,
        }
    }

    /// Decides on one more request of `tenant` and updates the counts.
    ///
    /// An accepted request counts as waiting at once, even while it is delayed; an evicted one no longer counts.
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

    /// Decides on one more request of `tenant` without changing the counts.
    pub fn decide(&self, tenant: TenantId, weight: Weight) -> Admission {
        let by_load = self.controller.decide(self.waiting);
        let occupancy = self.occupancy(tenant);
        let counted_weight = if occupancy.waiting() > 0 { occupancy.weight } else { weight };
        let config = self.controller.config();
        let waiting = f64::from(occupancy.waiting());
        let per_weight = |threshold| self.capacity_per_weight(threshold, tenant, weight);
        let below_share = waiting < fair_share(per_weight(config.overload_threshold), counted_weight);
        let below_mark = waiting < per_weight(config.warning_threshold) * f64::from(counted_weight.millis());
        match by_load.state {
            BackpressureState::Normal => Admission { decision: by_load, evict: None },
            BackpressureState::Warning if below_mark => {
                Admission { decision: accepted(by_load), evict: None }
            }
            BackpressureState::Warning => Admission { decision: by_load, evict: None },
            BackpressureState::Overloaded if below_share => self.make_room(by_load, tenant, weight),
            BackpressureState::Overloaded => Admission { decision: by_load, evict: None },
        }
    }

    /// Counts a waiting request that was accepted by another rule than [`admit`](Self::admit); no queue limit applies.
    pub fn join(&mut self, tenant: TenantId, weight: Weight) -> Result<(), TooManyTenants> {
        if tenant.0 >= self.tenants_max {
            return Err(TooManyTenants { tenants_max: self.tenants_max });
        }
        if tenant.index() >= self.occupancies.len() {
            self.occupancies.resize(tenant.index() + 1, TenantOccupancy::NONE);
        }
        let occupancy = &mut self.occupancies[tenant.index()];
        if occupancy.waiting() == 0 {
            // At most `tenants_max` tenants wait, so the index fits in a u32.
            occupancy.index = self.waiting_tenants.len() as u32;
            occupancy.weight = weight;
            self.weight_sum += u64::from(weight.millis());
            self.waiting_tenants.push(tenant.0);
        }
        occupancy.queued += 1;
        self.waiting += 1;
        Ok(())
    }

    /// Records that a slot is reserved for one of `tenant`'s queued requests.
    pub fn reserve(&mut self, tenant: TenantId) {
        let occupancy = self.occupancies.get_mut(tenant.index());
        if let Some(occupancy) = occupancy.filter(|occupancy| occupancy.queued > 0) {
            occupancy.queued -= 1;
            occupancy.reserved += 1;
        }
    }

    /// Records that one of `tenant`'s requests stopped waiting: served, evicted, timed out or disconnected.
    pub fn leave(&mut self, tenant: TenantId, waiter: WaiterState) {
        let Some(occupancy) = self.occupancies.get_mut(tenant.index()) else { return };
        let count = match waiter {
            WaiterState::Queued => &mut occupancy.queued,
            WaiterState::Reserved => &mut occupancy.reserved,
        };
        if *count == 0 {
            return;
        }
        *count -= 1;
        self.waiting -= 1;
        if occupancy.waiting() > 0 {
            return;
        }
        self.weight_sum -= u64::from(occupancy.weight.millis());
        let index = occupancy.index;
        self.waiting_tenants.swap_remove(index as usize);
        if let Some(&moved) = self.waiting_tenants.get(index as usize) {
            self.occupancies[moved as usize].index = index;
        }
    }

    /// Sets the weight of a tenant that has waiting requests; does nothing for other tenants.
    pub fn update_weight(&mut self, tenant: TenantId, weight: Weight) {
        let occupancy = self.occupancies.get_mut(tenant.index());
        if let Some(occupancy) = occupancy.filter(|occupancy| occupancy.waiting() > 0) {
            self.weight_sum =
                self.weight_sum - u64::from(occupancy.weight.millis()) + u64::from(weight.millis());
            occupancy.weight = weight;
        }
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of waiting requests of one tenant.
    pub fn waiting_of(&self, tenant: TenantId) -> usize {
        self.occupancy(tenant).waiting() as usize
    }

    /// Returns a tenant's fraction, 0 to 1, of the sum of the waiting tenants' weights and its own.
    ///
    /// `weight` is used only while the tenant has no waiting request.
    pub fn weight_share(&self, tenant: TenantId, weight: Weight) -> f64 {
        let occupancy = self.occupancy(tenant);
        if occupancy.waiting() > 0 {
            return f64::from(occupancy.weight.millis()) / self.weight_sum as f64;
        }
        let weight = f64::from(weight.millis());
        weight / (self.weight_sum as f64 + weight)
    }

    fn occupancy(&self, tenant: TenantId) -> TenantOccupancy {
        self.occupancies.get(tenant.index()).copied().unwrap_or(TenantOccupancy::NONE)
    }

    /// Returns the queue capacity up to a threshold per thousandth of weight, with the arrival's weight included in the
    /// sum.
    ///
    /// Every fair share is a multiple of this number, so that the shares of the arrival and of the waiting tenants are
    /// rounded the same way.
    fn capacity_per_weight(&self, threshold: f64, arrival: TenantId, weight: Weight) -> f64 {
        let arrival_weight =
            if self.occupancy(arrival).waiting() > 0 { 0 } else { u64::from(weight.millis()) };
        let max_queue_size = self.controller.config().max_queue_size as f64;
        threshold * max_queue_size / (self.weight_sum + arrival_weight) as f64
    }

    fn make_room(&self, by_load: BackpressureDecision, tenant: TenantId, weight: Weight) -> Admission {
        let evict = self.furthest_above_share(tenant, weight);
        if evict.is_some() || self.waiting < self.controller.config().max_queue_size {
            return Admission { decision: accepted(by_load), evict };
        }
        Admission { decision: by_load, evict: None }
    }

    /// Returns the tenant furthest above its fair share among those with a queued request; ties go to the lowest id.
    ///
    /// The shares are computed with the arrival's weight included.
    fn furthest_above_share(&self, arrival: TenantId, weight: Weight) -> Option<TenantId> {
        let threshold = self.controller.config().overload_threshold;
        let per_weight = self.capacity_per_weight(threshold, arrival, weight);
        let mut furthest: Option<(f64, u32)> = None;
        for &tenant in &self.waiting_tenants {
            let occupancy = &self.occupancies[tenant as usize];
            let excess = f64::from(occupancy.waiting()) - fair_share(per_weight, occupancy.weight);
            if excess <= 0.0 || occupancy.queued == 0 {
                continue;
            }
            if furthest.is_none_or(|(most, id)| most < excess || (most <= excess && tenant < id)) {
                furthest = Some((excess, tenant));
            }
        }
        furthest.map(|(_, tenant)| TenantId(tenant))
    }
}

/// Error for a tenant id that is not below `tenants_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {tenants_max} tenants")]
pub struct TooManyTenants {
    /// Maximum number of tenants.
    pub tenants_max: u32,
}

fn fair_share(capacity_per_weight: f64, weight: Weight) -> f64 {
    (capacity_per_weight * f64::from(weight.millis())).max(1.0)
}

/// Returns the decision changed to accept the request without delay.
fn accepted(decision: BackpressureDecision) -> BackpressureDecision {
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

    /// By load alone, the flood would fill the queue and the quiet tenant would be rejected.
    #[test]
    fn a_flood_is_rejected_and_a_quiet_tenant_is_not() {
        let mut queue = admission(100);
        let mut flood_rejected = 0;
        let mut quiet_rejected_by_load = 0;
        for request in 0..1_000 {
            if offer(&mut queue, FLOOD) == Offer::Rejected {
                flood_rejected += 1;
            }
            if request % 100 == 99 {
                quiet_rejected_by_load += u32::from(!queue.controller.decide(queue.waiting()).accept);
                let outcome = offer(&mut queue, QUIET);
                assert_eq!(outcome, Offer::Accepted { evicted: Some(FLOOD) });
                queue.leave(QUIET, WaiterState::Queued);
            }
        }
        assert!(flood_rejected > 900);
        assert_eq!(
            quiet_rejected_by_load, 10,
            "by load alone all of the quiet tenant's requests would be rejected"
        );
    }

    #[test]
    fn the_tenant_furthest_above_its_share_is_evicted() {
        let mut queue = admission(100);
        fill(&mut queue, FLOOD, 50);
        fill(&mut queue, THIRD, 30);
        assert_eq!(queue.decide(QUIET, Weight::ONE).evict, Some(FLOOD));
        // Shares of a capacity of 80 by 5:1:1 are 57, 11 and 11, so THIRD is furthest above its share.
        queue.update_weight(FLOOD, Weight::whole(5).unwrap());
        assert_eq!(queue.decide(QUIET, Weight::ONE).evict, Some(THIRD));
    }

    #[test]
    fn a_new_weight_counts_once_and_only_for_waiting_tenants() {
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
    fn a_reserved_waiter_is_never_evicted() {
        let mut queue = admission(10);
        fill(&mut queue, FLOOD, 8);
        for _ in 0..8 {
            queue.reserve(FLOOD);
        }
        let admission = queue.decide(QUIET, Weight::ONE);
        assert_eq!(
            (admission.evict, admission.decision.accept),
            (None, true),
            "accepted while the queue has room"
        );
        fill(&mut queue, THIRD, 2);
        assert!(!queue.decide(QUIET, Weight::ONE).decision.accept, "THIRD is not above its share of 2.67");
        queue.leave(FLOOD, WaiterState::Reserved);
        assert!(queue.decide(QUIET, Weight::ONE).decision.accept);
    }

    #[test]
    fn with_more_tenants_than_capacity_each_holds_one_and_the_rest_are_rejected() {
        let mut queue = admission(10);
        let accepted =
            (0..50).filter(|&tenant| offer(&mut queue, TenantId(tenant)) != Offer::Rejected).count();
        assert_eq!((accepted, queue.waiting()), (10, 10));
        // Tenant 0 has two waiting requests, above the minimum share of one, so one of them is evicted.
        queue.leave(TenantId(9), WaiterState::Queued);
        queue.join(TenantId(0), Weight::ONE).unwrap();
        assert_eq!(offer(&mut queue, TenantId(42)), Offer::Accepted { evicted: Some(TenantId(0)) });
    }

    #[test]
    fn in_warning_a_lone_tenant_is_delayed_as_the_specification_says() {
        let mut queue = admission(100);
        for waiting in 0..80 {
            let decision = queue.decide(FLOOD, Weight::ONE).decision;
            assert_eq!(decision, queue.controller.decide(waiting), "with {waiting} waiting");
            assert_eq!(decision.delay > Duration::ZERO, waiting > 50, "with {waiting} waiting");
            fill(&mut queue, FLOOD, 1);
        }
    }

    #[test]
    fn below_its_part_of_the_warning_mark_a_tenant_skips_the_delay() {
        let mut queue = admission(100);
        fill(&mut queue, FLOOD, 70);
        let quiet = queue.decide(QUIET, Weight::ONE).decision;
        assert_eq!((quiet.state, quiet.delay), (BackpressureState::Warning, Duration::ZERO));
        // The mark of 50 is split into 25 and 25.
        fill(&mut queue, QUIET, 4);
        queue.leave(FLOOD, WaiterState::Queued);
        assert!(queue.decide(FLOOD, Weight::ONE).decision.delay > Duration::from_millis(60));
        assert_eq!(queue.decide(QUIET, Weight::ONE).decision.delay, Duration::ZERO);
        (0..45).for_each(|_| queue.leave(FLOOD, WaiterState::Queued));
        fill(&mut queue, QUIET, 30);
        assert_eq!(queue.decide(FLOOD, Weight::ONE).decision.delay, Duration::ZERO, "24 of its 25");
        assert!(queue.decide(QUIET, Weight::ONE).decision.delay > Duration::ZERO, "34 of its 25");
    }

    #[test]
    fn in_warning_at_least_one_of_the_waiting_tenants_is_delayed() {
        for shares in [[51, 0, 0], [17, 17, 17], [30, 20, 5], [1, 25, 26]] {
            let mut queue = admission(100);
            let tenants = [FLOOD, QUIET, THIRD];
            for (tenant, count) in tenants.into_iter().zip(shares) {
                fill(&mut queue, tenant, count);
            }
            let is_delayed = |tenant: &TenantId| {
                queue.waiting_of(*tenant) > 0
                    && queue.decide(*tenant, Weight::ONE).decision.delay > Duration::ZERO
            };
            assert!(tenants.iter().any(is_delayed), "{shares:?}");
        }
    }

    #[test]
    fn a_lone_tenant_is_rejected_from_the_overload_threshold_on() {
        let mut queue = admission(100);
        let accepted = (0..200).filter(|_| offer(&mut queue, FLOOD) != Offer::Rejected).count();
        assert_eq!(accepted, 80);
    }

    #[test]
    fn a_request_that_leaves_twice_is_counted_once() {
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
    fn a_tenant_id_beyond_the_limit_is_rejected_without_allocating() {
        let mut queue = admission(100);
        let error = queue.admit(TenantId(u32::MAX), Weight::ONE).unwrap_err();
        assert_eq!(error.to_string(), "more than 100 tenants");
        assert_eq!((queue.waiting(), queue.occupancies.len()), (0, 0));
        assert_eq!(offer(&mut queue, TenantId(99)), Offer::Accepted { evicted: None });
    }

    #[derive(Debug, PartialEq)]
    enum Offer {
        Accepted { evicted: Option<TenantId> },
        Rejected,
    }

    fn offer(queue: &mut FairAdmission, tenant: TenantId) -> Offer {
        let admission = queue.admit(tenant, Weight::ONE).unwrap();
        match admission.decision.accept {
            true => Offer::Accepted { evicted: admission.evict },
            false => Offer::Rejected,
        }
    }

    fn fill(queue: &mut FairAdmission, tenant: TenantId, requests: usize) {
        for _ in 0..requests {
            queue.join(tenant, Weight::ONE).unwrap();
        }
    }

    fn admission(max_queue_size: usize) -> FairAdmission {
        let config = BackpressureConfig { max_queue_size, ..BackpressureConfig::default() };
        FairAdmission::new(BackpressureController::new(config).unwrap(), 100)
    }
}
