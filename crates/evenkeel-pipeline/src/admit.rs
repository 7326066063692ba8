//! Admit: accepts a request, delays it (backpressure), or rejects it at once (load shedding).
//!
//! A full queue makes room for a tenant below its share by eviction: a request of the tenant furthest above its share is
//! rejected. A tenant that holds its share makes room for its own sessions in the same way, so that one session cannot
//! take all its places. Evicted is the newest request, of the lowest class, of the session that holds the most places.
//!
//! Guarantees: at most `max_waiting` interactive requests wait for one model, delayed ones included; a tenant below its
//! share is rejected only when the queue is full and no tenant is above its share; a session with at least two places
//! fewer than another one of its tenant is not rejected for a full queue.

use evenkeel_policy::backpressure::{
    Admission, BackpressureController, BackpressureDecision, FairAdmission, TooManyTenants, WaiterState,
    admit_by_deadline, retry_after,
};
use evenkeel_policy::id::{RequestId, TenantId};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;

use crate::OptimizedLoadManager;
use crate::accept::{Arrival, ModelQueueId, Priority, RequestState};
use crate::options::AdmitRule;
use crate::pick_node::Avoided;
use crate::queue::TenantQueue;
use crate::rejection::Rejection;

impl OptimizedLoadManager {
    /// Decides on a request that has just arrived.
    pub(crate) fn admit(&mut self, request: RequestId) {
        let Some(arrival) = self.requests.get(request).map(|record| record.arrival) else { return };
        match self.decide_admission(&arrival) {
            Ok(delay) => self.start_waiting(request, delay),
            Err(rejection) => self.reject(request, rejection),
        }
    }

    /// Reserves queue capacity for the arrival and returns its delay, or the reason for its rejection.
    fn decide_admission(&mut self, arrival: &Arrival) -> Result<Duration, Rejection> {
        let Arrival { tenant, model, .. } = *arrival;
        let limits = &self.options.limits;
        if tenant.0 >= limits.tenants_max {
            return Err(Rejection::UnknownTenant { tenant });
        }
        if model.0 >= limits.models_max {
            return Err(Rejection::UnknownModel { model });
        }
        if !self.nodes.serves(model) {
            return Err(Rejection::NoNode { model });
        }
        if let Some(outage) = self.outage(model) {
            return Err(outage);
        }
        let queue_id = arrival.queue_id();
        let expected_wait = self.wait_queue.expected_wait(arrival);
        let timeout = arrival.deadline.unwrap_or(self.options.load.wait_queue.default_timeout);
        // Background requests yield to others anyway, so a long expected wait is no reason to reject them.
        if queue_id.priority == Priority::Interactive
            && let Err(late) = admit_by_deadline(expected_wait, timeout)
        {
            return Err(Rejection::WouldMissDeadline { retry_after: late.retry_after });
        }
        let cooldown_ends_at = self.nodes.cooldown_ends_at(self.now, arrival, Avoided::default());
        if self.now < cooldown_ends_at && self.now + timeout <= cooldown_ends_at {
            return Err(Rejection::WouldMissDeadline {
                retry_after: retry_after(Some(cooldown_ends_at.since(self.now))),
            });
        }
        let admission = self
            .wait_queue
            .admit(self.now, queue_id, tenant)
            .map_err(|_| Rejection::UnknownTenant { tenant })?;
        if let Some(victim) = admission.evict {
            let request = self.wait_queue.tenant_queue(queue_id, victim).and_then(TenantQueue::victim);
            request.into_iter().for_each(|request| self.evict(request));
        }
        let tenant_queue = self.wait_queue.tenant_queue(queue_id, tenant);
        if !admission.decision.accept {
            let by_share = tenant_queue.filter(|_| self.options.admit == AdmitRule::ByShare);
            if let Some(victim) = by_share.and_then(|tenant_queue| tenant_queue.victim_for(arrival.flow)) {
                self.evict(victim);
                return Ok(Duration::ZERO);
            }
            let (current_size, max_size) = self.occupancy(queue_id);
            return Err(Rejection::QueueFull {
                current_size,
                max_size,
                retry_after: retry_after(expected_wait),
            });
        }
        let delay = admission.decision.delay;
        let is_below_average = |tenant_queue: &TenantQueue| {
            delay > Duration::ZERO && tenant_queue.is_below_average(arrival.flow)
        };
        Ok(if tenant_queue.is_some_and(is_below_average) { Duration::ZERO } else { delay })
    }

    /// Registers an admitted request as waiting, and queues it unless it is delayed.
    fn start_waiting(&mut self, request: RequestId, delay: Duration) {
        let now = self.now;
        let Some(record) = self.requests.get_mut(request) else { return };
        record.flow = self.wait_queue.open_flow(&record.arrival);
        if delay > Duration::ZERO {
            record.state = RequestState::Delayed { enters_at: now + delay };
        }
        self.wait_queue.add_waiting(request, record);
        if delay == Duration::ZERO {
            self.enqueue(request);
        }
    }

    /// Evicts a waiting request, whose queue capacity the arrival takes over.
    fn evict(&mut self, request: RequestId) {
        let Some(arrival) = self.requests.get(request).map(|record| record.arrival) else { return };
        self.leave_queue(request);
        let (current_size, max_size) = self.occupancy(arrival.queue_id());
        let retry_after = retry_after(self.wait_queue.expected_wait(&arrival));
        self.reject(request, Rejection::Evicted { current_size, max_size, retry_after });
    }

    /// Returns the number of waiting requests of a model queue, and their maximum.
    fn occupancy(&self, queue_id: ModelQueueId) -> (usize, usize) {
        (self.wait_queue.waiting(queue_id), self.options.load.wait_queue.max_waiting)
    }
}

/// Queue capacity of one model, and each tenant's share of it.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionControl {
    rule: AdmitRule,
    controller: BackpressureController,
    fair: FairAdmission,
}

impl AdmissionControl {
    pub(crate) fn new(rule: AdmitRule, controller: BackpressureController, tenants_max: u32) -> Self {
        let fair = FairAdmission::new(controller.clone(), tenants_max);
        Self { rule, controller, fair }
    }

    /// Decides on an arrival and, if it is admitted, counts it as waiting.
    pub(crate) fn admit(&mut self, tenant: TenantId, weight: Weight) -> Result<Admission, TooManyTenants> {
        match self.rule {
            AdmitRule::ByShare => self.fair.admit(tenant, weight),
            AdmitRule::ByLoad => {
                let decision = self.pressure();
                if decision.accept {
                    self.fair.join(tenant, weight)?;
                }
                Ok(Admission { decision, evict: None })
            }
        }
    }

    /// Admits a background request regardless of the queue's load: their sender limits how many wait.
    pub(crate) fn admit_background(
        &mut self,
        tenant: TenantId,
        weight: Weight,
    ) -> Result<Admission, TooManyTenants> {
        self.fair.join(tenant, weight)?;
        let decision = BackpressureDecision { accept: true, delay: Duration::ZERO, ..self.pressure() };
        Ok(Admission { decision, evict: None })
    }

    /// Reserves capacity for a request whose attempt failed; returns `false` if the queue is full.
    pub(crate) fn readmit(&mut self, tenant: TenantId, weight: Weight) -> bool {
        self.fair.waiting() < self.controller.config().max_queue_size
            && self.fair.join(tenant, weight).is_ok()
    }

    /// Releases the capacity of one request.
    pub(crate) fn leave(&mut self, tenant: TenantId) {
        self.fair.leave(tenant, WaiterState::Queued);
    }

    pub(crate) fn update_weight(&mut self, tenant: TenantId, weight: Weight) {
        self.fair.update_weight(tenant, weight);
    }

    pub(crate) fn weight_share(&self, tenant: TenantId, weight: Weight) -> f64 {
        self.fair.weight_share(tenant, weight)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.fair.waiting()
    }

    pub(crate) fn waiting_of(&self, tenant: TenantId) -> usize {
        self.fair.waiting_of(tenant)
    }

    /// Returns the decision by the queue's load alone, regardless of tenant.
    pub(crate) fn pressure(&self) -> BackpressureDecision {
        self.controller.decide(self.fair.waiting())
    }
}
